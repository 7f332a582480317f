//! What an answer says of its prompt's tokens.
//!
//! Owns the search: the last object named `usage` that has a number of prompt tokens, in the last
//! [`KEPT_BYTES`] of the answer, where all APIs have it, streamed or not. A quoted text cannot be
//! taken for it, for there the quotes have a backslash before them. An Anthropic stream tells the
//! prompt's tokens in its first event instead.
//! Invariant: at most twice [`KEPT_BYTES`] are held, however long the answer is.
//! Cost: a copy of each piece, of long ones their end; one look backwards when it is over.

use crate::prompt::json::spelled;

/// An answer's end of which nothing is missed.
pub const KEPT_BYTES: usize = 4096;
/// More objects than this are not looked at.
const MAX_LOOKS: usize = 8;
const NAME: &[u8] = b"\"usage\"";
/// In the first event of an Anthropic stream.
const START: &[u8] = b"\"message_start\"";

/// Tokens of one prompt, or of all prompts of one body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// All of them.
    pub prompt: u64,
    /// Those that needed no prefill, where the answer tells.
    pub cached: Option<u64>,
}

/// The end of an answer as it arrives.
#[derive(Debug, Default)]
pub struct Tail {
    bytes: Vec<u8>,
    first: Option<Usage>,
}

impl Tail {
    /// Whether an answer of this type may tell.
    pub fn may_tell(content_type: &[u8]) -> bool {
        let kind = content_type.split(|byte| *byte == b';').next();
        let kind = kind.unwrap_or_default().trim_ascii();
        [&b"application/json"[..], b"text/event-stream"]
            .iter()
            .any(|told| kind.eq_ignore_ascii_case(told))
    }

    /// The next piece, of a long one its last [`KEPT_BYTES`] will do.
    pub fn push(&mut self, piece: &[u8]) {
        if self.bytes.is_empty() && find(piece, START).is_some() {
            self.first = last_usage(piece);
        }
        let room = KEPT_BYTES.saturating_mul(2);
        if self.bytes.len().saturating_add(piece.len()) > room {
            let surplus = self.bytes.len().saturating_sub(KEPT_BYTES);
            self.bytes.drain(..surplus);
        }
        let skipped = piece.len().saturating_sub(KEPT_BYTES);
        self.bytes
            .extend_from_slice(piece.get(skipped..).unwrap_or_default());
    }

    /// What the answer said, now that it is over.
    pub fn usage(&self) -> Option<Usage> {
        let last = last_usage(&self.bytes);
        last.filter(|usage| usage.cached.is_some())
            .or(self.first)
            .or(last)
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|part| part == what)
}

fn last_usage(text: &[u8]) -> Option<Usage> {
    let names = text.windows(NAME.len()).enumerate().rev();
    let names = names.filter(|(_, part)| *part == NAME).take(MAX_LOOKS);
    names.map(|(at, _)| at).find_map(|at| {
        let rest = text
            .get(at.saturating_add(NAME.len())..)?
            .trim_ascii_start();
        object(rest.strip_prefix(b":")?.trim_ascii_start()).and_then(read)
    })
}

/// The object that the text begins with.
fn object(text: &[u8]) -> Option<&[u8]> {
    let (mut depth, mut quoted, mut escaped) = (0u32, false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth = depth.saturating_add(1),
            b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return text.get(..=at).filter(|_| *byte == b'}');
        }
    }
    None
}

fn read(usage: &[u8]) -> Option<Usage> {
    let keys = [
        "prompt_tokens",
        "input_tokens",
        "prompt_tokens_details",
        "input_tokens_details",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    ];
    let [prompt, input, prompt_details, input_details, read, created] =
        spelled(usage, keys).ok()??;
    if let Some(prompt) = prompt.or(input_details.and(input)).and_then(number) {
        let details = prompt_details.or(input_details);
        return Some(Usage {
            prompt,
            cached: details.and_then(cached),
        });
    }
    // Anthropic's `input_tokens` are those that were not cached.
    let (input, read, created) = (
        number(input?)?,
        read.and_then(number),
        created.and_then(number),
    );
    let parts = [read, created].into_iter().flatten();
    Some(Usage {
        prompt: parts.fold(input, u64::saturating_add),
        cached: read,
    })
}

fn cached(details: &[u8]) -> Option<u64> {
    let [cached] = spelled(details, ["cached_tokens"]).ok()??;
    number(cached?)
}

fn number(spelled: &[u8]) -> Option<u64> {
    core::str::from_utf8(spelled).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(answer: &str, piece: usize) -> Option<Usage> {
        let mut tail = Tail::default();
        for piece in answer.as_bytes().chunks(piece) {
            tail.push(piece);
            assert!(tail.bytes.len() <= 2 * KEPT_BYTES);
        }
        tail.usage()
    }

    fn usage(prompt: u64, cached: Option<u64>) -> Option<Usage> {
        Some(Usage { prompt, cached })
    }

    #[test]
    fn every_api_tells_however_its_answer_is_cut() {
        let long = "x".repeat(3 * KEPT_BYTES);
        let chat = format!(
            r#"{{"id":"c","choices":[{{"message":{{"content":"{long} \"usage\":{{\"prompt_tokens\":9}}"}}}}],"usage" : {{ "prompt_tokens": 70,"total_tokens":74,"prompt_tokens_details":{{"cached_tokens":64}}}},"prompt_logprobs":null}}"#
        );
        let stream = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{long}\"}}}}],\"usage\":null}}\n\n\
             data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":70,\"prompt_tokens_details\":null}}}}\n\n\
             data: [DONE]\n\n"
        );
        let responses = r#"data: {"response":{"tools":[{"parameters":{"properties":{"usage":{"type":"object"}}}}],"usage":{"input_tokens":70,"input_tokens_details":{"cached_tokens":0},"output_tokens":1},"user":null},"type":"response.completed"}"#;
        let message = r#"{"type":"message","usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":64,"output_tokens":2}}"#;
        for piece in [1, 7, 100, 4095, 4096, 5000, 1 << 20] {
            assert_eq!(told(&chat, piece), usage(70, Some(64)), "{piece}");
            assert_eq!(told(&stream, piece), usage(70, None), "{piece}");
            assert_eq!(told(responses, piece), usage(70, Some(0)), "{piece}");
            assert_eq!(told(message, piece), usage(70, Some(64)), "{piece}");
        }
    }

    #[test]
    fn an_anthropic_stream_tells_at_its_start() {
        let start = r#"data: {"type":"message_start","message":{"usage":{"input_tokens":6,"cache_read_input_tokens":64}}}"#;
        let mut tail = Tail::default();
        tail.push(start.as_bytes());
        for _ in 0..1000 {
            tail.push(br#"data: {"type":"content_block_delta","delta":{"text":"hello"}}"#);
        }
        tail.push(
            br#"data: {"type":"message_delta","usage":{"input_tokens":6,"output_tokens":9}}"#,
        );
        assert_eq!(tail.usage(), usage(70, Some(64)));
    }

    #[test]
    fn what_tells_nothing_is_no_usage() {
        for answer in [
            "",
            "\"usage\"",
            r#"{"usage":null}"#,
            r#"{"usage":{"prompt_tokens":7"#,
            r#"{"usage":{"prompt_tokens":-1}}"#,
            r#"{"usage":{"prompt_tokens":1e99}}"#,
            r#"{"usage":{"completion_tokens":7}}"#,
            r#"{"content":"\"usage\":{\"prompt_tokens\":7}"}"#,
            "\"usage\":\u{1f}{{{{\"}",
        ] {
            assert_eq!(told(answer, 5), None, "{answer}");
        }
    }

    #[test]
    fn only_json_and_event_streams_may_tell() {
        for (kind, may) in [
            ("application/json", true),
            ("text/event-stream; charset=utf-8", true),
            ("Application/JSON ;x", true),
            ("text/html", false),
            ("application/jsonl", false),
            ("", false),
        ] {
            assert_eq!(Tail::may_tell(kind.as_bytes()), may, "{kind}");
        }
    }
}
