//! A pod's own `/metrics` and `/v1/models` -> [`Scraped`] and model names.
//!
//! Owns the few names that are looked at; all else is passed over, and so is a line that makes no
//! sense. Numbers of several engines are added up. Cost: one pass over the lines.

use super::admin::text;
use super::registry::{Scraped, MAX_MODELS, MAX_MODEL_BYTES};
use crate::prompt::json::Tape;
use crate::prompt::Extent;

/// A longer answer is not read.
pub const MAX_BYTES: usize = 4 << 20;
/// Where a pod lists its models.
pub const MODELS_PATH: &str = "/v1/models";

/// Reads Prometheus text. Nothing when none of the names is in it: then it is something else.
pub fn read(body: &[u8], now_ms: u64) -> Option<Scraped> {
    let mut scraped = Scraped {
        at_ms: now_ms.max(1),
        ..Scraped::default()
    };
    let mut found = false;
    for line in body.split(|byte| *byte == b'\n') {
        if !line.starts_with(b"vllm:") && !line.starts_with(b"process_start_time_seconds") {
            continue;
        }
        let Some(sample) = Sample::of(line) else {
            continue;
        };
        let whole = u32::try_from(sample.thousandths / 1000).unwrap_or(u32::MAX);
        match sample.name {
            "vllm:num_requests_running" => {
                scraped.running = scraped.running.saturating_add(whole);
            }
            "vllm:num_requests_waiting" => {
                scraped.waiting = scraped.waiting.saturating_add(whole);
            }
            "vllm:kv_cache_usage_perc" => {
                let permille = u32::try_from(sample.thousandths).unwrap_or(u32::MAX);
                scraped.usage_permille = scraped.usage_permille.max(permille);
            }
            "vllm:cache_config_info" => {
                let blocks = sample.label("num_gpu_blocks");
                let tokens = sample.label("block_size").zip(blocks);
                let tokens = tokens.map_or(0, |(size, blocks)| size.saturating_mul(blocks));
                scraped.cache_tokens = scraped.cache_tokens.saturating_add(tokens);
            }
            "process_start_time_seconds" => {
                scraped.started_ms = sample.thousandths;
            }
            _ => continue,
        }
        found = true;
    }
    found.then_some(scraped)
}

/// Reads the answer of [`MODELS_PATH`]; of a pod with more models than are kept, none is.
pub fn read_models(body: &[u8]) -> Option<Vec<String>> {
    let tape = Tape::read(body, Extent::Whole).ok()?;
    let [data] = tape.root()?.pick(["data"]);
    let mut models = Vec::new();
    for item in data?.items() {
        let [id] = item.pick(["id"]);
        let id = text(id?)?;
        if models.len() >= MAX_MODELS || id.len() > MAX_MODEL_BYTES {
            return Some(Vec::new());
        }
        models.push(id);
    }
    Some(models)
}

/// `name{label="value",…} 1.5`, perhaps with a time behind it.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    thousandths: u64,
}

impl<'a> Sample<'a> {
    fn of(line: &'a [u8]) -> Option<Self> {
        let line = core::str::from_utf8(line).ok()?;
        let (name, labels, rest) = match line.split_once('{') {
            Some((name, rest)) => {
                let (labels, rest) = rest.rsplit_once('}')?;
                (name, labels, rest)
            }
            None => {
                let (name, rest) = line.split_once(' ')?;
                (name, "", rest)
            }
        };
        let value = rest.split_ascii_whitespace().next()?;
        Some(Self {
            name,
            labels,
            thousandths: thousandths(value.as_bytes())?,
        })
    }

    /// A label that is a whole number.
    fn label(&self, name: &str) -> Option<u64> {
        let mut pairs = self.labels.split(',');
        pairs.find_map(|pair| {
            let value = pair.trim().strip_prefix(name)?.strip_prefix("=\"")?;
            value.strip_suffix('"')?.parse().ok()
        })
    }
}

/// A decimal number times 1000, rounded down, 0 when it is negative; nothing of NaN or infinity.
/// Whole numbers, because two readings of one start time have to be equal.
fn thousandths(text: &[u8]) -> Option<u64> {
    let (negative, mut rest) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mut digits, mut exponent, mut fraction, mut any) = (0u64, 3i32, false, false);
    while let Some((byte, after)) = rest.split_first() {
        match byte {
            b'0'..=b'9' => {
                any = true;
                let room = digits < 100_000_000_000_000_000;
                if room {
                    let digit = u64::from(byte.wrapping_sub(b'0'));
                    digits = digits.wrapping_mul(10).wrapping_add(digit);
                }
                match (fraction, room) {
                    (true, true) => exponent = exponent.saturating_sub(1),
                    (false, false) => exponent = exponent.saturating_add(1),
                    _ => {}
                }
            }
            b'.' if !fraction => fraction = true,
            b'e' | b'E' if any => {
                let power: i32 = core::str::from_utf8(after).ok()?.parse().ok()?;
                exponent = exponent.saturating_add(power);
                break;
            }
            _ => return None,
        }
        rest = after;
    }
    if !any || negative {
        return any.then_some(0);
    }
    let power = 10u64.checked_pow(exponent.unsigned_abs());
    Some(match (exponent >= 0, power) {
        (true, power) => power.map_or(u64::MAX, |power| digits.saturating_mul(power)),
        (false, power) => power
            .and_then(|power| digits.checked_div(power))
            .unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7
vllm:num_requests_waiting_by_reason{engine="0"} 99
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 5e-01
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="1000",num_gpu_blocks_override="None"} 1.0
vllm:cache_config_info{engine="1",num_gpu_blocks="500",block_size="16"} 1.0
vllm:cache_config_info{engine="2",num_gpu_blocks="None",block_size="16"} 1.0
process_start_time_seconds 1.76123456789e+09
process_start_time_seconds_total NaN
other_metric{} 5
"#;

    #[test]
    fn the_names_of_interest_are_added_up_over_engines() {
        let scraped = read(TEXT.as_bytes(), 77).unwrap();
        let expected = Scraped {
            at_ms: 77,
            running: 5,
            waiting: 7,
            others: 0,
            usage_permille: 500,
            cache_tokens: 24_000,
            started_ms: 1_761_234_567_890,
        };
        assert_eq!(scraped, expected);
    }

    #[test]
    fn numbers_are_read_to_the_thousandth() {
        for (text, number) in [
            ("0", 0),
            ("1", 1000),
            ("2.5", 2500),
            ("0.0019", 1),
            ("1.76123456789e+09", 1_761_234_567_890),
            ("1761234567.89", 1_761_234_567_890),
            ("5E-1", 500),
            ("12345678901234567890123", u64::MAX),
            ("0.00000000000000000000000005", 0),
            ("1e-99999999", 0),
            ("-3", 0),
        ] {
            assert_eq!(thousandths(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["", "-", ".", "NaN", "+Inf", "1x", "1e", "1.2.3", "e5"] {
            assert_eq!(thousandths(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn junk_is_passed_over() {
        for junk in [
            "",
            "hello",
            "{}",
            "vllm:",
            "vllm:num_requests_running",
            "vllm:num_requests_running{",
            "vllm:num_requests_running NaN",
            "vllm:num_requests_running{} +Inf",
        ] {
            assert_eq!(read(junk.as_bytes(), 1), None, "{junk}");
        }
        let bytes = b"vllm:\xFF 1\nvllm:num_requests_running -5\nvllm:num_requests_waiting 1e300 1700000000000\n";
        let scraped = read(bytes, 1).unwrap();
        assert_eq!((scraped.running, scraped.waiting), (0, u32::MAX));
    }

    #[test]
    fn models_are_listed_up_to_a_bound() {
        let list = |n: usize| {
            let ids: Vec<String> = (0..n)
                .map(|n| format!(r#"{{"object": "model", "id": "m{n}"}}"#))
                .collect();
            format!(r#"{{"object": "list", "data": [{}]}}"#, ids.join(","))
        };
        assert_eq!(read_models(list(2).as_bytes()).unwrap(), ["m0", "m1"]);
        assert_eq!(
            read_models(list(MAX_MODELS).as_bytes()).unwrap().len(),
            MAX_MODELS
        );
        assert_eq!(read_models(list(MAX_MODELS + 1).as_bytes()), Some(vec![]));
        for junk in [
            "",
            "{}",
            "[]",
            r#"{"data": [{}]}"#,
            r#"{"data": [{"id": 1}]}"#,
        ] {
            assert_eq!(read_models(junk.as_bytes()), None, "{junk}");
        }
    }
}
