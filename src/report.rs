//! A decision as text: the response header and the filter state.
//!
//! Owns the one spelling of a decision, an RFC 9651 dictionary:
//! `pod="vllm-1", matched=12, chunks=40, reason=prefix, detail="…"`.

use crate::policy::Reason;
use core::fmt::Write;

/// What is said of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report<'a> {
    /// Who was chosen or, once known, who served; absent when nobody is.
    pub pod: Option<&'a str>,
    /// Leading chunks that this pod held when the request was decided, over all its prompts.
    pub matched: u32,
    /// Whole chunks of all prompts in the body.
    pub chunks: u32,
    /// Why.
    pub reason: Reason,
    /// More on the reason, when there is more.
    pub detail: Option<&'a str>,
}

impl Report<'_> {
    /// The whole dictionary.
    pub fn full(&self) -> String {
        let mut text = self.pod_only();
        if !text.is_empty() {
            text.push_str(", ");
        }
        let reason = self.reason.as_str();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "matched={}, chunks={}, reason={reason}",
            self.matched, self.chunks
        );
        if let Some(detail) = self.detail {
            text.push_str(", detail=");
            push_string(&mut text, detail);
        }
        text
    }

    /// The pod alone; empty when there is none.
    pub fn pod_only(&self) -> String {
        let mut text = String::with_capacity(96);
        if let Some(pod) = self.pod {
            text.push_str("pod=");
            push_string(&mut text, pod);
        }
        text
    }
}

/// A structured-field string: visible ASCII, quotes and backslashes escaped, the rest left out.
fn push_string(text: &mut String, value: &str) {
    text.push('"');
    for c in value.chars() {
        if matches!(c, '"' | '\\') {
            text.push('\\');
        }
        if matches!(c, ' '..='~') {
            text.push(c);
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spells_a_dictionary() {
        let mut report = Report {
            pod: Some("vllm-1"),
            matched: 12,
            chunks: 40,
            reason: Reason::Prefix,
            detail: None,
        };
        assert_eq!(
            report.full(),
            r#"pod="vllm-1", matched=12, chunks=40, reason=prefix"#
        );
        assert_eq!(report.pod_only(), r#"pod="vllm-1""#);
        report.detail = Some("a \"quoted\\ \u{e9}\n");
        assert!(
            report.full().ends_with(r#", detail="a \"quoted\\ ""#),
            "{}",
            report.full()
        );
        report.pod = None;
        assert!(report.full().starts_with("matched=12"));
    }
}
