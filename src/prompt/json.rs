//! JSON as a flat list of nodes that borrow the body.
//!
//! Owns the nodes that [`super::lexer`] makes, and the ways to walk them.
//! Invariant: nodes are in the order of the text, `next` leads past all descendants, a key is
//! followed by its value, nesting is at most [`super::lexer::MAX_DEPTH`].
//! Cost: 16 bytes a node, at most 8 times the body; a look-up walks the fields of one object.

use super::lexer::{self, Fault};
use super::text::Text;
use super::Extent;

/// Kind of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Object,
    Array,
    String,
    Number,
    Null,
    /// `true` or `false`.
    Bool,
}

/// The string has an escape or a mark byte: it must be decoded.
pub const ESCAPED: u8 = 1;
/// The body ended inside this value.
pub const CUT: u8 = 2;
/// The text of this value is not its canonical spelling.
pub const ODD: u8 = 4;

/// One value, or one key.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    /// Where it begins in the text.
    pub start: u32,
    /// Where it ends in the text.
    pub end: u32,
    /// The node after it and all that is in it.
    pub next: u32,
    /// A key is a string.
    pub kind: Kind,
    /// Of [`ESCAPED`], [`CUT`], [`ODD`].
    pub flags: u8,
}

/// A body that was read.
#[derive(Debug)]
pub struct Tape<'b> {
    text: &'b [u8],
    nodes: Vec<Node>,
}

/// One value of a [`Tape`].
#[derive(Debug, Clone, Copy)]
pub struct Value<'t> {
    tape: &'t Tape<'t>,
    at: u32,
    node: Node,
}

impl<'b> Tape<'b> {
    /// Reads `text`.
    pub fn read(text: &'b [u8], extent: Extent) -> Result<Self, Fault> {
        // Python's reader takes a byte order mark.
        let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
        if u32::try_from(text.len()).is_err() {
            return Err(Fault::Malformed);
        }
        let nodes = lexer::nodes(text, extent)?;
        Ok(Tape { text, nodes })
    }

    /// Reads the first value of `text` only, and tells where it ends: a long text can be read
    /// value by value.
    pub fn first(text: &'b [u8]) -> Result<(Self, usize), Fault> {
        if u32::try_from(text.len()).is_err() {
            return Err(Fault::Malformed);
        }
        let (nodes, end) = lexer::first(text)?;
        Ok((Tape { text, nodes }, end))
    }

    /// The outermost value.
    pub fn root(&self) -> Option<Value<'_>> {
        self.value(0)
    }

    fn value(&self, at: u32) -> Option<Value<'_>> {
        let node = *self.nodes.get(at as usize)?;
        Some(Value {
            tape: self,
            at,
            node,
        })
    }
}

impl<'t> Value<'t> {
    /// The kind of the value.
    pub fn kind(self) -> Kind {
        self.node.kind
    }

    /// Whether the body ended inside this value.
    pub fn is_cut(self) -> bool {
        self.node.flags & CUT != 0
    }

    /// Whether [`Value::raw`] is the canonical spelling of this value.
    pub fn is_canonical(self) -> bool {
        self.node.flags & (ODD | CUT) == 0
    }

    /// The value as it is spelled in the body.
    pub fn raw(self) -> &'t [u8] {
        let (start, end) = (self.node.start as usize, self.node.end as usize);
        self.tape.text.get(start..end).unwrap_or_default()
    }

    /// As [`Value::raw`], borrowed from `text`, which the tape was read from.
    pub fn raw_in(self, text: &[u8]) -> Option<&[u8]> {
        text.get(self.node.start as usize..self.node.end as usize)
    }

    /// The string, if it is one.
    pub fn text(self) -> Option<Text<'t>> {
        if self.node.kind != Kind::String {
            return None;
        }
        let cut = self.is_cut();
        let start = (self.node.start as usize).wrapping_add(1);
        let end = (self.node.end as usize).wrapping_sub(usize::from(!cut));
        Some(Text {
            raw: self.tape.text.get(start..end).unwrap_or_default(),
            plain: self.node.flags & ESCAPED == 0,
            canonical: self.node.flags & ODD == 0,
            cut,
        })
    }

    /// The number, if it is an integer from 0 to `u32::MAX` that is not cut.
    pub fn as_u32(self) -> Option<u32> {
        if self.node.kind != Kind::Number || self.is_cut() {
            return None;
        }
        let digits = self.raw();
        if digits.len() > 10 {
            return None;
        }
        let number = digits.iter().try_fold(0u64, |number, byte| {
            let digit = byte.wrapping_sub(b'0');
            (digit < 10).then_some(number.wrapping_mul(10).wrapping_add(digit.into()))
        })?;
        u32::try_from(number).ok()
    }

    /// The members of an array; of anything else, none.
    pub fn items(self) -> impl Iterator<Item = Value<'t>> {
        let (mut at, end) = self.children(Kind::Array);
        core::iter::from_fn(move || {
            let item = (at < end).then(|| self.tape.value(at)).flatten()?;
            at = item.node.next;
            Some(item)
        })
    }

    /// The fields of an object, in order; of anything else, none.
    pub fn fields(self) -> impl Iterator<Item = (Value<'t>, Value<'t>)> {
        let (mut at, end) = self.children(Kind::Object);
        core::iter::from_fn(move || {
            let key = (at < end).then(|| self.tape.value(at)).flatten()?;
            let value = self.tape.value(key.node.next)?;
            at = value.node.next;
            Some((key, value))
        })
    }

    /// The values of the fields named `keys`, each the last of its name.
    pub fn pick<const N: usize>(self, keys: [&str; N]) -> [Option<Value<'t>>; N] {
        let mut found = [None; N];
        for (key, value) in self.fields() {
            let Some(key) = key.text() else { continue };
            for (slot, name) in found.iter_mut().zip(keys) {
                if key.is(name.as_bytes()) {
                    *slot = Some(value);
                    break;
                }
            }
        }
        found
    }

    fn children(self, kind: Kind) -> (u32, u32) {
        if self.node.kind == kind {
            (self.at.wrapping_add(1), self.node.next)
        } else {
            (0, 0)
        }
    }
}

/// The fields of an object that are named `keys`, as they are spelled in `text`; `None` when it is
/// no object. Nothing of the reading stays in memory.
pub fn spelled<'b, const N: usize>(
    text: &'b [u8],
    keys: [&str; N],
) -> Result<Option<[Option<&'b [u8]>; N]>, Fault> {
    let tape = Tape::read(text, Extent::Whole)?;
    let text = tape.text;
    let root = tape.root().filter(|root| root.kind() == Kind::Object);
    let field = |field: Option<Value<'_>>| field.and_then(|value| value.raw_in(text));
    Ok(root.map(|root| root.pick(keys).map(field)))
}

#[cfg(test)]
mod tests;
