//! What the filter says about a request: `x-prefix-router` and its filter state.

use sfv::{BareItem, ListEntry, Parser};

/// Name of the response header.
pub const HEADER: &str = "x-prefix-router";

/// The members of the dictionary; a member that is absent is empty or −1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The pod that served.
    pub pod: String,
    /// Leading chunks that the pod held.
    pub matched: i64,
    /// Chunks of the prompt.
    pub chunks: i64,
    /// Why this pod.
    pub reason: String,
    /// More about the reason.
    pub detail: String,
}

impl Decision {
    /// Parses an RFC 9651 dictionary; unknown members and wrong types are errors.
    pub fn parse(text: &str) -> Result<Self, String> {
        let dictionary = Parser::new(text).parse::<sfv::Dictionary>();
        let dictionary = dictionary.map_err(|e| format!("{text:?}: {e}"))?;
        let mut this = Self {
            pod: String::new(),
            matched: -1,
            chunks: -1,
            reason: String::new(),
            detail: String::new(),
        };
        for (key, entry) in &dictionary {
            let ListEntry::Item(item) = entry else {
                return Err(format!("{text:?}: {key} is a list"));
            };
            match (key.as_str(), &item.bare_item) {
                ("pod", BareItem::String(s)) => this.pod = s.as_str().into(),
                ("matched", BareItem::Integer(n)) => this.matched = (*n).into(),
                ("chunks", BareItem::Integer(n)) => this.chunks = (*n).into(),
                ("reason", BareItem::Token(t)) => this.reason = t.as_str().into(),
                ("detail", BareItem::String(s)) => this.detail = s.as_str().into(),
                (key, item) => return Err(format!("{text:?}: {key} is {item:?}")),
            }
        }
        Ok(this)
    }

    /// Leading chunks and all chunks.
    pub fn hit(&self) -> (i64, i64) {
        (self.matched, self.chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_dictionary_and_refuses_others() {
        let text = r#"pod="vllm-1", matched=12, chunks=40, reason=prefix, detail="a \"b\"""#;
        let decision = Decision::parse(text).expect("valid");
        assert_eq!(
            (decision.pod.as_str(), decision.hit()),
            ("vllm-1", (12, 40))
        );
        assert_eq!(
            (decision.reason.as_str(), decision.detail.as_str()),
            ("prefix", "a \"b\"")
        );
        assert!(Decision::parse("pod=vllm-1").is_err());
        assert!(Decision::parse("pod=\"vllm-1").is_err());
    }
}
