//! What is kept of a body while its request is held.
//!
//! Owns the bytes. Envoy shows each piece once, keeps it for the pod, and stops reading from the
//! client when it holds too much: no body is ever too long for it.
//! Invariant: the bytes kept are the first of the body, without a gap. Those that stay after their
//! callback are counted for the VM, which bounds them, and given back with the body.
//! Cost: one copy of a body that comes in pieces, none of one that comes whole.

use core::cell::Cell;

thread_local! {
    /// Bytes of bodies that this VM keeps; a VM is one thread.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// The first bytes of a body.
#[derive(Debug, Default)]
pub struct Body {
    bytes: Vec<u8>,
    /// Bytes that arrived.
    seen: usize,
    /// Bytes of it that are counted for the VM.
    counted: usize,
}

impl Body {
    /// Bytes that arrived.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// At most the first `most` bytes of what is kept.
    pub fn first(&self, most: usize) -> &[u8] {
        self.bytes.get(..most).unwrap_or(&self.bytes)
    }

    /// A piece of `size` bytes came.
    pub fn came(&mut self, size: usize) {
        self.seen = self.seen.saturating_add(size);
    }

    /// Keeps the first `most` bytes of the body, or all that came; the rest of them is in the
    /// last piece, of `size` bytes, which `read` shows from a start and at most so many bytes.
    /// False: it does not.
    pub fn keep(
        &mut self,
        most: usize,
        size: usize,
        read: &dyn Fn(usize, usize) -> Option<Vec<u8>>,
    ) -> bool {
        let wanted = most.min(self.seen).saturating_sub(self.bytes.len());
        if wanted == 0 {
            return true;
        }
        let before = self.seen.saturating_sub(size);
        let start = self.bytes.len().saturating_sub(before);
        let Some(piece) = read(start, wanted).filter(|piece| piece.len() == wanted) else {
            return false;
        };
        if self.bytes.is_empty() {
            self.bytes = piece;
        } else {
            self.bytes.extend_from_slice(&piece);
        }
        true
    }

    /// Counts what is kept; false when the VM would keep more than `most` bytes of bodies.
    pub fn stay(&mut self, most: usize) -> bool {
        let others = HELD.get().saturating_sub(self.counted);
        let room = others.saturating_add(self.bytes.len()) <= most;
        if room {
            self.count(self.bytes.len());
        }
        room
    }

    /// Lets the bytes go; what arrived is still known.
    pub fn release(&mut self) {
        self.bytes = Vec::new();
        self.count(0);
    }

    fn count(&mut self, bytes: usize) {
        let others = HELD.get().saturating_sub(self.counted);
        HELD.set(others.saturating_add(bytes));
        self.counted = bytes;
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keep(body: &mut Body, most: usize, piece: &[u8]) -> bool {
        body.keep(most, piece.len(), &|start, most| {
            let rest = &piece[start..];
            Some(rest[..most.min(rest.len())].to_vec())
        })
    }

    proptest! {
        /// However a body is cut, what is kept are its first bytes.
        #[test]
        fn the_first_bytes_are_kept(
            whole in proptest::collection::vec(any::<u8>(), 0..400),
            cuts in proptest::collection::vec(0usize..400, 0..8),
            looks in proptest::collection::vec(1usize..400, 1..4),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let mut body = Body::default();
            let mut most = 0;
            for (n, cut) in cuts.windows(2).enumerate() {
                let piece = &whole[cut[0]..cut[1]];
                body.came(piece.len());
                // What is held until the next piece is kept whole, as the filter does.
                most = most.max(looks[n % looks.len()]).max(body.seen());
                prop_assert!(keep(&mut body, most.min(30), piece));
                prop_assert!(keep(&mut body, most, piece));
                prop_assert_eq!(body.seen(), cut[1]);
                prop_assert_eq!(body.first(usize::MAX), &whole[..cut[1]]);
            }
        }
    }

    #[test]
    fn a_vm_keeps_so_much_and_no_more() {
        let mut bodies: Vec<_> = (0..3).map(|_| Body::default()).collect();
        let piece = [0; 50];
        for (n, body) in bodies.iter_mut().enumerate() {
            body.came(piece.len());
            assert!(keep(body, usize::MAX, &piece));
            assert_eq!(body.stay(100), n < 2);
            assert_eq!(body.stay(100), n < 2, "counted once");
        }
        bodies.remove(0);
        assert!(bodies[1].stay(100), "another has gone");
        drop(bodies);
        assert_eq!(HELD.get(), 0);
    }

    #[test]
    fn a_piece_that_cannot_be_read() {
        let mut body = Body::default();
        body.came(10);
        assert!(!body.keep(10, 10, &|_, _| None));
        assert!(!body.keep(10, 10, &|_, _| Some(vec![0; 9])));
        assert!(body.keep(0, 10, &|_, _| None));
    }
}
