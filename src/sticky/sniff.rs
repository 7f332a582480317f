//! The first bytes of an answer -> the id of the response that it makes.
//!
//! Owns the search: the first `"id"` of the outermost object, or of one directly inside it (the
//! events of a streamed answer wrap the response), whose value begins with `resp_`, as vLLM wants
//! of every response's id. No JSON reader is needed for that, only strings and depth; what stands
//! between the events of a stream has neither.
//! Invariant: the same id however the answer is cut in pieces; at most [`SNIFFED_BYTES`] are
//! looked at, and at most [`LONGEST`] of one string are kept.
//! Cost: one pass, as a rule over the first hundred bytes.

use super::ResponseKey;

/// An id that comes later than this is not found.
pub const SNIFFED_BYTES: usize = 16 << 10;
const LONGEST: usize = 256;

/// Where the search is.
#[derive(Debug, Default)]
pub struct Sniffer {
    seen: usize,
    depth: u32,
    place: Place,
    /// The string so far, or the last one.
    text: Vec<u8>,
    /// The last string was a key `id`, and what follows is its value.
    of_id: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Between,
    String,
    /// After a backslash in a string.
    Escape,
}

impl Sniffer {
    /// Whether nothing more will be found.
    pub fn is_done(&self) -> bool {
        self.seen >= SNIFFED_BYTES
    }

    /// Looks at the next bytes; the id is given once.
    pub fn push(&mut self, bytes: &[u8]) -> Option<ResponseKey> {
        let left = SNIFFED_BYTES.saturating_sub(self.seen);
        self.seen = self.seen.saturating_add(bytes.len());
        for byte in bytes.iter().take(left) {
            match (&self.place, byte) {
                (Place::String, b'"') => {
                    self.place = Place::Between;
                    let id = self.of_id && self.depth <= 2 && self.text.starts_with(b"resp_");
                    self.of_id = false;
                    if id && self.text.len() < LONGEST {
                        self.seen = SNIFFED_BYTES;
                        return Some(ResponseKey::of(&self.text));
                    }
                }
                (Place::Between, b'"') => {
                    self.place = Place::String;
                    self.text.clear();
                }
                (Place::Between, b':' | b',' | b'{' | b'[' | b'}' | b']') => {
                    self.of_id = *byte == b':' && self.text == b"id";
                    self.depth = match byte {
                        b'{' | b'[' => self.depth.saturating_add(1),
                        b'}' | b']' => self.depth.saturating_sub(1),
                        _ => self.depth,
                    };
                }
                (Place::Between, _) => {}
                (Place::String | Place::Escape, _) => {
                    self.place = match (&self.place, byte) {
                        (Place::String, b'\\') => Place::Escape,
                        _ => Place::String,
                    };
                    if self.text.len() < LONGEST {
                        self.text.push(*byte);
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sniff(answer: &str, piece: usize) -> Option<ResponseKey> {
        let mut sniffer = Sniffer::default();
        let mut found = answer
            .as_bytes()
            .chunks(piece)
            .map(|piece| sniffer.push(piece));
        let id = found.find_map(|id| id);
        assert!(id.is_none() || (found.all(|again| again.is_none()) && sniffer.is_done()));
        id
    }

    #[test]
    fn the_id_is_found_however_the_answer_is_cut() {
        let wanted = Some(ResponseKey::of(b"resp_0f"));
        let instructions = r#""instructions":"say \"id\":\"resp_1\" \\","#;
        let answers = [
            r#"{"id":"resp_0f","created_at":1,"metadata":{"id":"resp_2"}}"#.to_owned(),
            format!(r#"{{ "a" : [ {{"x":{{"id":"resp_1"}}}} ], {instructions} "id" : "resp_0f" }}"#),
            format!(r#"{{"previous_response_id":"resp_1",{instructions}"id":"resp_0f"}}"#),
            r#"{"id":null,"output":[{"id":"msg_1"}],"id":1,"x":"resp_1","id":"resp_0f"}"#.to_owned(),
            concat!(
                "event: response.created\n",
                r#"data: {"response":{"id":"resp_0f","object":"response"},"type":"response.created"}"#,
                "\n\nevent: response.in_progress\n",
                r#"data: {"response":{"id":"resp_3"}}"#,
                "\n\n"
            )
            .to_owned(),
        ];
        for answer in &answers {
            for piece in 1..=answer.len() {
                assert_eq!(
                    sniff(answer, piece),
                    wanted,
                    "{answer} in pieces of {piece}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_id_is_not_taken_for_one() {
        let long = format!(r#"{{"id":"resp_{}"}}"#, "x".repeat(LONGEST));
        let late = format!(r#"{{"x":"{}","id":"resp_1"}}"#, "x".repeat(SNIFFED_BYTES));
        for answer in [
            "",
            "not json at all: id resp_1",
            r#"{"id":"chatcmpl-1","choices":[]}"#,
            r#"{"object":"id","x":"resp_1"}"#,
            r#"{"id":["resp_1"],"x":{"y":{"id":"resp_1"}}}"#,
            r#"{"\u0069d":"resp_1"}"#,
            r#"{"id":"resp_1"#,
            "\u{1f}\u{8b}\"\\",
            &long,
            &late,
        ] {
            let found = sniff(answer, 7);
            let shown: String = answer.chars().take(60).collect();
            assert_eq!(found, None, "{shown}");
        }
    }
}
