//! What an answer tells of its tokens, beside what was expected.

use super::*;

const TOKENS: [Metric; 4] = [
    Metric::PromptTokens,
    Metric::PredictedCachedTokens,
    Metric::ReportedCachedTokens,
    Metric::SavedPrefillTokens,
];

impl World {
    /// Sends a prompt, which `upstream` answers with these pieces.
    fn asked(&self, prompt: &str, status: u16, upstream: &str, pieces: &[&str]) -> [u64; 4] {
        let before = TOKENS.map(|metric| self.meter.of(metric));
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{prompt}"}}]}}"#);
        let (mut request, _) = self.send(&body);
        self.answer(&mut request, status, Some(upstream));
        for piece in pieces {
            let read = |start: usize, most: usize| {
                let end = piece.len().min(start + most);
                Some(piece.as_bytes()[start..end].to_vec())
            };
            request.on_answer_body(&self.router, &self.env(), piece.len(), &read);
        }
        self.end(request);
        let mut after = TOKENS.map(|metric| self.meter.of(metric));
        after.iter_mut().zip(before).for_each(|(n, b)| *n -= b);
        after
    }
}

#[test]
fn prediction_and_truth_stand_beside_each_other() {
    let world = World::new("");
    let prompt = "p".repeat(4000);
    let usage = r#"{"usage":{"prompt_tokens":1000,"prompt_tokens_details":{"cached_tokens":960}}}"#;
    let [asked, predicted, reported, saved] = world.asked(&prompt, 200, A, &[usage]);
    assert_eq!((asked, predicted, reported, saved), (1000, 0, 960, 0));
    // Nobody else has it, so half of what A has is what a random choice would have found.
    let (first, rest) = usage.split_at(20);
    let [asked, predicted, reported, saved] = world.asked(&prompt, 200, A, &[first, rest, ""]);
    assert_eq!((asked, reported), (1000, 960));
    assert!((980..=1000).contains(&predicted), "{predicted}");
    assert!((490..=500).contains(&saved), "{saved}");
}

/// Some endpoints of a pod may tell what they found in the cache while others do not.
#[test]
fn who_does_not_tell_what_was_cached_is_not_compared() {
    let world = World::new("");
    let prompt = "p".repeat(4000);
    for usage in [
        r#"{"usage":{"prompt_tokens":1000}}"#,
        r#"{"usage":{"prompt_tokens":1000,"prompt_tokens_details":null}}"#,
    ] {
        world.asked(&prompt, 200, A, &[usage]);
        let [asked, predicted, reported, _] = world.asked(&prompt, 200, A, &[usage]);
        assert_eq!((asked, predicted, reported), (1000, 0, 0));
    }
}

#[test]
fn what_a_bad_choice_costs_is_taken_off_the_next() {
    let world = World::new("");
    let prompt = "p".repeat(4000);
    world.asked(&prompt, 200, A, &["x"]);
    // Only B knows that it has served: what A had is lost.
    let lost = world.asked(&prompt, 200, B, &["x"]);
    assert_eq!(lost, [0; 4]);
    let again = world.asked(&prompt, 200, A, &["x"]);
    assert_eq!(again, [0; 4], "owed");
}

#[test]
fn no_good_answer_counts_nothing() {
    let world = World::new("");
    let usage = r#"{"usage":{"prompt_tokens":10}}"#;
    assert_eq!(world.asked("short", 500, A, &[usage]), [0; 4]);
    assert_eq!(world.asked("short", 200, STRANGER, &[usage]), [0; 4]);
    assert_eq!(world.asked("short", 200, A, &[]), [0; 4], "no answer");
    assert_eq!(world.asked("short", 200, A, &[usage]), [10, 0, 0, 0]);
}
