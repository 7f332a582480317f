//! JSON strings: finding their end, and decoding them straight into a [`Sink`].
//!
//! Invariant: what reaches the sink depends on the characters of the string only, not on how they
//! were escaped. Bytes that are not UTF-8 pass as they are, a lone surrogate as its three bytes
//! (WTF-8), so decoding cannot fail and two different strings stay different.
//! Cost: 16 bytes a step; a string without escapes is one push of borrowed bytes.

use crate::chunk::{Gather, Sink};

const BLOCK: usize = 16;

/// First byte of every mark in a framed stream; see [`super::frame`].
pub const MARK: u8 = 0xFF;

/// How decoded characters are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As they are.
    Bare,
    /// Escaped as inside a JSON string, in one spelling, so that what came in that spelling needs
    /// no work; and a [`MARK`] byte is followed by a zero, so that no text looks like a mark.
    Json,
}

/// A string of the body, still spelled as it came, without its quotes.
#[derive(Debug, Clone, Copy)]
pub struct Text<'b> {
    /// The bytes between the quotes.
    pub raw: &'b [u8],
    /// `raw` holds no escape and no [`MARK`]: decoding is the identity.
    pub plain: bool,
    /// `raw` is already spelled as [`Style::Json`] spells it.
    pub canonical: bool,
    /// The body ended inside this string.
    pub cut: bool,
}

impl Text<'_> {
    /// Writes the string to `out`.
    pub fn decode<S: Sink>(self, style: Style, out: &mut Gather<S>) {
        if self.plain || (self.canonical && style == Style::Json) {
            out.push(self.raw);
        } else {
            decode(self.raw, style, out);
        }
    }

    /// Writes the characters, as they are, to a sink of their own.
    pub fn decode_into<S: Sink>(self, mut sink: S) -> S {
        if self.plain {
            sink.push(self.raw);
            return sink;
        }
        let mut out = Gather::new(sink);
        decode(self.raw, Style::Bare, &mut out);
        out.finish()
    }

    /// The characters as bytes.
    pub fn to_bytes(self) -> Vec<u8> {
        self.decode_into(Vec::with_capacity(self.raw.len()))
    }

    /// Whether the characters are exactly `other`.
    pub fn is(self, other: &[u8]) -> bool {
        if self.plain {
            self.raw == other
        } else {
            // An escape spells one byte in at most six.
            self.raw.len() <= other.len().saturating_mul(6) && self.to_bytes() == other
        }
    }

    /// Whether the characters begin with `prefix`; not known of a cut string that is too short.
    pub fn starts_with(self, prefix: &[u8]) -> Option<bool> {
        let most = prefix.len().saturating_mul(6);
        let head = Text {
            raw: self.raw.get(..most).unwrap_or(self.raw),
            ..self
        };
        let characters = head.to_bytes();
        if self.cut && characters.len() < prefix.len() && prefix.starts_with(&characters) {
            return None;
        }
        Some(characters.starts_with(prefix))
    }
}

/// Whether a string's lexer or decoder has to look at `byte`.
#[inline(always)]
fn is_special(byte: u8) -> bool {
    (byte == b'"') | (byte == b'\\') | (byte < 0x20) | (byte == MARK)
}

/// Index of the first special byte, or [`BLOCK`].
#[cfg(target_feature = "simd128")]
#[inline(always)]
fn first_special(block: &[u8; BLOCK]) -> usize {
    // Safe intrinsics: of the plain loop LLVM makes 16 branches.
    use core::arch::wasm32::{u64x2, u8x16_bitmask, u8x16_eq, u8x16_lt, u8x16_splat, v128_or};
    let both = u128::from_le_bytes(*block);
    let bytes = u64x2(both as u64, both.wrapping_shr(64) as u64);
    let specials = v128_or(
        v128_or(
            u8x16_eq(bytes, u8x16_splat(b'"')),
            u8x16_eq(bytes, u8x16_splat(b'\\')),
        ),
        v128_or(
            u8x16_lt(bytes, u8x16_splat(0x20)),
            u8x16_eq(bytes, u8x16_splat(MARK)),
        ),
    );
    (u32::from(u8x16_bitmask(specials)) | 0x1_0000).trailing_zeros() as usize
}

/// Index of the first special byte, or [`BLOCK`].
#[cfg(not(target_feature = "simd128"))]
#[inline(always)]
fn first_special(block: &[u8; BLOCK]) -> usize {
    const ONES: u128 = u128::MAX / 0xFF;
    const HIGHS: u128 = ONES << 7;
    let bytes = u128::from_le_bytes(*block);
    // The high bit of each byte of `x` that is less than `n`. A borrow can set one above such a
    // byte too, but the lowest is right.
    let below = |x: u128, n: u8| x.wrapping_sub(ONES.wrapping_mul(n.into())) & !x & HIGHS;
    let equal = |n: u8| below(bytes ^ ONES.wrapping_mul(n.into()), 1);
    let specials = equal(b'"') | equal(b'\\') | below(bytes, 0x20) | equal(MARK);
    (specials.trailing_zeros() >> 3) as usize
}

/// Index of the first byte at or after `from` that may end or interrupt a string: a quote, a
/// backslash, a control character or [`MARK`]; the length of `text` when there is none.
#[inline]
pub fn find_special(text: &[u8], from: usize) -> usize {
    let mut at = from;
    let mut rest = text.get(from..).unwrap_or(&[]);
    while let Some((block, after)) = rest.split_first_chunk::<BLOCK>() {
        let found = first_special(block);
        at = at.wrapping_add(found);
        if found < BLOCK {
            return at;
        }
        rest = after;
    }
    let found = rest.iter().position(|&byte| is_special(byte));
    at.wrapping_add(found.unwrap_or(rest.len()))
}

/// One escape sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    /// Two bytes that spell this one.
    Byte(u8),
    /// Six bytes that spell this UTF-16 unit.
    Unit(u16),
    /// The text ends inside the sequence.
    Partial,
    /// No escape of JSON.
    Bad,
}

/// Reads the escape sequence whose backslash is the first byte of `text`.
#[inline]
pub fn escape(text: &[u8]) -> Escape {
    match text.get(1) {
        None => Escape::Partial,
        Some(b'n') => Escape::Byte(b'\n'),
        Some(&byte @ (b'"' | b'\\' | b'/')) => Escape::Byte(byte),
        Some(b't') => Escape::Byte(b'\t'),
        Some(b'r') => Escape::Byte(b'\r'),
        Some(b'b') => Escape::Byte(8),
        Some(b'f') => Escape::Byte(12),
        Some(b'u') => {
            let mut unit = 0u16;
            for at in 2..6 {
                match text.get(at).map(|&b| char::from(b).to_digit(16)) {
                    None => return Escape::Partial,
                    Some(None) => return Escape::Bad,
                    Some(Some(digit)) => unit = unit.wrapping_shl(4) | digit as u16,
                }
            }
            Escape::Unit(unit)
        }
        Some(_) => Escape::Bad,
    }
}

/// Whether `unit` is the first half of a surrogate pair.
pub fn is_high_surrogate(unit: u16) -> bool {
    (0xD800..0xDC00).contains(&unit)
}

/// Whether `unit` is the second half of a surrogate pair.
pub fn is_low_surrogate(unit: u16) -> bool {
    (0xDC00..0xE000).contains(&unit)
}

fn decode<S: Sink>(raw: &[u8], style: Style, out: &mut Gather<S>) {
    let mut rest = raw;
    loop {
        if let Some((block, after)) = rest.split_first_chunk::<BLOCK>() {
            let kept = first_special(block);
            // Two steps of their own: the usual one must not wait for `kept` to be computed.
            if kept == BLOCK {
                out.head_of(block, BLOCK);
                rest = after;
                continue;
            }
            out.head_of(block, kept);
            rest = rest.get(kept..).unwrap_or_default();
        }
        let Some(&first) = rest.first() else { break };
        let taken = match first {
            b'\\' => decode_escape(rest, style, out),
            MARK if style != Style::Bare => {
                out.head_of(&[MARK, 0], 2);
                1
            }
            _ => {
                out.byte(first);
                1
            }
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
}

/// Writes what the escape at the start of `text` spells; returns its length.
fn decode_escape<S: Sink>(text: &[u8], style: Style, out: &mut Gather<S>) -> usize {
    let unit = match escape(text) {
        Escape::Byte(byte) => {
            ascii(byte, style, out);
            return 2;
        }
        Escape::Unit(unit) => unit,
        // The lexer lets neither through.
        Escape::Partial | Escape::Bad => return text.len(),
    };
    let (code, taken) = match low_after(text) {
        Some(low) if is_high_surrogate(unit) => {
            let high = u32::from(unit & 0x3FF).wrapping_shl(10);
            let code = high | u32::from(low & 0x3FF);
            (code.wrapping_add(0x1_0000), 12)
        }
        _ => (u32::from(unit), 6),
    };
    match u8::try_from(code) {
        Ok(byte) if byte < 0x80 => ascii(byte, style, out),
        _ => code_point(code, out),
    }
    taken
}

/// One decoded byte below 0x80.
#[inline(always)]
fn ascii<S: Sink>(byte: u8, style: Style, out: &mut Gather<S>) {
    if style != Style::Json {
        return out.byte(byte);
    }
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\t' => b't',
        b'\r' => b'r',
        8 => b'b',
        12 => b'f',
        _ => return out.byte(byte),
    };
    out.head_of(&[b'\\', short], 2);
}

/// One code point above 0x7F, a lone surrogate included, as UTF-8.
fn code_point<S: Sink>(code: u32, out: &mut Gather<S>) {
    let tail = |shift: u32| 0x80 | (code.wrapping_shr(shift) & 0x3F) as u8;
    if code < 0x800 {
        out.byte(0xC0 | code.wrapping_shr(6) as u8);
    } else if code < 0x1_0000 {
        out.byte(0xE0 | code.wrapping_shr(12) as u8);
        out.byte(tail(6));
    } else {
        out.byte(0xF0 | code.wrapping_shr(18) as u8);
        out.byte(tail(12));
        out.byte(tail(6));
    }
    out.byte(tail(0));
}

/// The low surrogate that is escaped right after the escape at the start of `text`.
fn low_after(text: &[u8]) -> Option<u16> {
    let next = text.get(6..)?;
    match (next.first(), escape(next)) {
        (Some(b'\\'), Escape::Unit(unit)) if is_low_surrogate(unit) => Some(unit),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_special_byte_of_a_block_is_found() {
        for first in 0..=255u8 {
            for second in [
                b'a', b'"', b'!', 0x1F, 0x20, 0x7F, 0x80, 0x9F, 0xFE, MARK, 0,
            ] {
                for at in 0..BLOCK {
                    let mut block = [b'x'; BLOCK];
                    block[at] = first;
                    if let Some(next) = block.get_mut(at + 1) {
                        *next = second;
                    }
                    let want = block.iter().position(|&byte| is_special(byte));
                    assert_eq!(first_special(&block), want.unwrap_or(BLOCK), "{block:?}");
                }
            }
        }
    }
}
