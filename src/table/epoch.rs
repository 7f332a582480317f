//! Time as the tables keep it: a slot's epochs, and stamps of entries.
//!
//! Owns the arithmetic that survives wrapping. Invariant: anything compared lies within half
//! the circle; rings drop what grows older than [`MAX_SPAN`], and sweeping removes the dead
//! long before they could come round to life.

/// Live entries span at most this many epochs of their slot.
pub(super) const MAX_SPAN: u32 = 1 << 28;
/// Epochs in which every page is swept at least once.
pub(super) const SWEEP_SPAN: u64 = 1 << 26;

const MASK: u32 = (1 << 31) - 1;

/// A slot's clock: 31 bits, wrapping; it advances with what is stored and never resets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch(u32);

impl Epoch {
    pub(super) fn new(raw: u32) -> Self {
        Epoch(raw & MASK)
    }

    pub(super) fn raw(self) -> u32 {
        self.0
    }

    pub(super) fn after(self, steps: u32) -> Self {
        Epoch::new(self.0.wrapping_add(steps))
    }

    /// Epochs from `earlier` to here, forwards.
    pub(super) fn since(self, earlier: Epoch) -> u32 {
        self.0.wrapping_sub(earlier.0) & MASK
    }

    pub(super) fn is_before(self, other: Epoch) -> bool {
        self.since(other) > MASK / 2
    }

    pub(super) fn latest(self, other: Epoch) -> Epoch {
        if self.is_before(other) {
            other
        } else {
            self
        }
    }
}

/// When an entry was last touched: its epoch, and whether anybody but its inserter touched it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(u32);

impl Stamp {
    pub(super) fn new(epoch: Epoch, touched: bool) -> Self {
        Stamp((epoch.0 << 1) | u32::from(touched))
    }

    /// The oldest stamp of an epoch: entries below it are dead when it is the watermark.
    pub(super) fn floor(epoch: Epoch) -> Self {
        Stamp::new(epoch, false)
    }

    pub(super) fn from_raw(raw: u32) -> Self {
        Stamp(raw)
    }

    pub(super) fn raw(self) -> u32 {
        self.0
    }

    pub(super) fn epoch(self) -> Epoch {
        Epoch(self.0 >> 1)
    }

    pub(super) fn is_touched(self) -> bool {
        self.0 & 1 != 0
    }

    /// Newer or the same; within an epoch, touched is newer than untouched.
    #[inline]
    pub(super) fn covers(self, other: Stamp) -> bool {
        self.0.wrapping_sub(other.0) as i32 >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let last = Epoch::new(u32::MAX);
        let next = last.after(1);
        assert_eq!(next.raw(), 0);
        assert!(last.is_before(next) && !next.is_before(last) && !last.is_before(last));
        assert_eq!(next.since(last), 1);
        assert_eq!(last.latest(next), next);
        assert!(Stamp::new(next, false).covers(Stamp::new(last, true)));
        assert!(!Stamp::new(last, true).covers(Stamp::new(next, false)));
        assert!(Stamp::new(last, true).covers(Stamp::new(last, false)));
        assert_eq!(Stamp::new(last, true).epoch(), last);
    }
}
