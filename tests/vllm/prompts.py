"""English for prompts: sentences of Python's own reference, shuffled by a seed.

Invariant: texts of different seeds share no first sentence, so no prefix either.
"""

import random
import re
from functools import cache
from pydoc_data.topics import topics


def corpus() -> list[str]:
    """All of the text."""
    return [topics[key] for key in sorted(topics)]


@cache
def sentences() -> list[str]:
    """What the prompts are made of."""
    plain = re.sub(r"\s+", " ", " ".join(corpus()))
    return [s for s in re.split(r"(?<=[.:]) ", plain) if 40 < len(s) < 300]


def text(seed: str, size: int) -> str:
    """About `size` bytes, the same for the same seed."""
    rng = random.Random(seed)
    out = f"On {seed}."
    while len(out) < size:
        out += " " + rng.choice(sentences())
    return out
