//! Envoy's own view of one host.
//!
//! Owns the bits. Invariant: no bit set is a healthy host.

/// Why Envoy does not like to send requests to a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Health(u8);

impl Health {
    /// The control plane says that it is unhealthy.
    pub const UNHEALTHY: Health = Health(1);
    /// The control plane says that it drains.
    pub const DRAINING: Health = Health(2);
    /// It fails active health checks.
    pub const FAILED_CHECK: Health = Health(4);
    /// Outlier detection ejected it.
    pub const OUTLIER: Health = Health(8);

    /// Whether requests may go there.
    pub fn is_healthy(self) -> bool {
        self.0 == 0
    }

    /// Whether Envoy reaches it; one that drains or is switched off is still there.
    pub fn is_reachable(self) -> bool {
        self.0 & (Self::FAILED_CHECK.0 | Self::OUTLIER.0) == 0
    }

    /// Whether somebody who looks has found it unable to serve. That ends when it is found able
    /// to; an ejection by outlier detection just runs out.
    pub fn is_found_ill(self) -> bool {
        self.0 & (Self::FAILED_CHECK.0 | Self::UNHEALTHY.0) != 0
    }

    /// Both reasons.
    #[must_use]
    pub fn with(self, other: Health) -> Health {
        Health(self.0 | other.0)
    }

    /// The reasons that hold for both: of a host that is listed twice.
    #[must_use]
    pub fn common(self, other: Health) -> Health {
        Health(self.0 & other.0)
    }

    pub(super) fn bits(self) -> u8 {
        self.0
    }

    pub(super) fn from_bits(bits: u8) -> Health {
        Health(bits)
    }
}
