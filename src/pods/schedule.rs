//! When to ask again.
//!
//! Owns the times of one question that is asked over and over. Invariant: never two at once, and
//! never so often that reading the answers takes more than a twentieth of the time.

/// After this long a call is over, whatever became of it.
pub const TIMEOUT_MS: u32 = 5_000;
/// Longest pause between two attempts that fail.
pub const MAX_PAUSE_MS: u64 = 30_000;
/// The pause after one that failed is at least so many times what it took, up to that.
const WAIT_FACTOR: u64 = 6;
/// The pause is at least so many times what reading the last answer took.
const COST_FACTOR: u64 = 20;

/// One question's schedule.
#[derive(Debug, Clone, Copy, Default)]
pub struct Schedule {
    due_ms: u64,
    asked_ms: u64,
    under_way: bool,
    failures: u32,
}

impl Schedule {
    /// Whether to ask now.
    pub fn is_due(&self, now_ms: u64) -> bool {
        // A call that Envoy never answered, though it answers each, is over too.
        now_ms >= self.due_ms
    }

    /// The question was asked.
    pub fn asked(&mut self, now_ms: u64) {
        self.under_way = true;
        self.asked_ms = now_ms;
        let patience = u64::from(TIMEOUT_MS).saturating_mul(2);
        self.due_ms = now_ms.saturating_add(patience);
    }

    /// Whether an answer is awaited.
    pub fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// A good answer came, and took so long to read. Returns when the question was asked.
    pub fn answered(&mut self, now_ms: u64, interval_ms: u32, cost_ms: u64) -> u64 {
        self.under_way = false;
        self.failures = 0;
        let rest = now_ms.saturating_add(cost_ms.saturating_mul(COST_FACTOR));
        // From question to question, and a little less: ticks come a little early or late.
        let pause = u64::from(interval_ms.saturating_sub(interval_ms >> 3));
        self.due_ms = self.asked_ms.saturating_add(pause).max(rest);
        self.asked_ms
    }

    /// No answer, or none that makes sense: ask again, later each time, up to `most_ms`. One that
    /// hangs is asked less often: there is room for few calls at once.
    pub fn failed(&mut self, now_ms: u64, interval_ms: u32, most_ms: u64) {
        self.under_way = false;
        let interval = u64::from(interval_ms);
        let pause = interval.saturating_mul(1 << self.failures.min(8));
        self.failures = self.failures.saturating_add(1);
        let took = now_ms.saturating_sub(self.asked_ms);
        let most = took.saturating_mul(WAIT_FACTOR).max(most_ms);
        self.due_ms = now_ms.saturating_add(pause.min(most.min(MAX_PAUSE_MS).max(interval)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_once_an_interval_and_not_while_an_answer_is_awaited() {
        let mut schedule = Schedule::default();
        assert!(schedule.is_due(0));
        schedule.asked(0);
        assert!(schedule.is_under_way() && !schedule.is_due(9_999));
        assert!(schedule.is_due(10_000), "nothing is awaited for ever");
        schedule.answered(100, 1000, 3);
        assert!(!schedule.is_due(874) && schedule.is_due(875));
    }

    #[test]
    fn an_answer_that_is_long_to_read_is_asked_for_less_often() {
        let mut schedule = Schedule::default();
        schedule.answered(0, 1000, 400);
        assert!(!schedule.is_due(7_999) && schedule.is_due(8_000));
    }

    #[test]
    fn failures_back_off_up_to_a_bound_and_one_success_ends_it() {
        let mut schedule = Schedule::default();
        let mut pauses = vec![];
        for _ in 0..40 {
            schedule.failed(0, 1000, MAX_PAUSE_MS);
            pauses.push(schedule.due_ms);
        }
        assert_eq!(pauses[..6], [1000, 2000, 4000, 8000, 16_000, 30_000]);
        assert_eq!(pauses[39], 30_000);
        schedule.failed(0, 60_000, MAX_PAUSE_MS);
        assert_eq!(schedule.due_ms, 60_000, "never more often than configured");
        schedule.answered(0, 1000, 0);
        schedule.failed(0, 1000, MAX_PAUSE_MS);
        assert_eq!(schedule.due_ms, 1000);
    }

    #[test]
    fn who_is_missed_is_asked_for_often_unless_the_calls_hang() {
        let pauses = [0, 1000, 5000].map(|took| {
            let mut schedule = Schedule::default();
            for now in [0, 100_000, 200_000, 300_000, 400_000, 500_000] {
                schedule.asked(now);
                schedule.failed(now + took, 1000, 2000);
            }
            schedule.due_ms - 500_000 - took
        });
        assert_eq!(pauses, [2000, 6000, 30_000]);
    }
}
