//! Text -> nodes of [`super::json`].
//!
//! Owns the grammar: what Python's `json` accepts (which is what vLLM reads a body with) is
//! accepted, so NaN, Infinity and lone surrogates pass; anything else is strict. UTF-8 is not
//! checked. A body of which only the first part is there is read up to the cut: what is open there
//! is marked as cut, so is a token that may be incomplete, and a key without its value is dropped.
//! Invariant: no recursion, and a stack of at most [`MAX_DEPTH`].
//! Cost: one pass, 16 bytes a step inside strings.

use super::json::{Kind, Node, CUT, ESCAPED, ODD};
use super::text::{escape, find_special, is_high_surrogate, is_low_surrogate, Escape, MARK};
use super::Extent;

/// Deepest nesting that is read.
pub const MAX_DEPTH: usize = 128;

/// Why a body is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing but white space.
    Empty,
    /// Not JSON.
    Malformed,
    /// Nested deeper than [`MAX_DEPTH`].
    TooDeep,
}

/// The nodes of `text`, which is shorter than 4 GiB.
pub fn nodes(text: &[u8], extent: Extent) -> Result<Vec<Node>, Fault> {
    let mut lexer = Lexer {
        text,
        at: 0,
        may_be_cut: extent == Extent::FirstPart,
        only_first: false,
        nodes: Vec::with_capacity(text.len() >> 6),
        open: Vec::new(),
        odd: 0,
    };
    lexer.run()?;
    Ok(lexer.nodes)
}

/// The nodes of the first value of `text`, and where that ends, whatever follows.
pub fn first(text: &[u8]) -> Result<(Vec<Node>, usize), Fault> {
    let mut lexer = Lexer {
        text,
        at: 0,
        may_be_cut: false,
        only_first: true,
        nodes: Vec::new(),
        open: Vec::new(),
        odd: 0,
    };
    lexer.run()?;
    Ok((lexer.nodes, lexer.at))
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
}

/// A container that is being read.
#[derive(Debug, Clone, Copy)]
struct Open {
    node: u32,
    kind: Kind,
    /// [`Lexer::odd`] when it began.
    odd: u32,
}

struct Lexer<'b> {
    text: &'b [u8],
    at: usize,
    may_be_cut: bool,
    only_first: bool,
    nodes: Vec<Node>,
    open: Vec<Open>,
    /// Counts what is not spelled canonically: white space, odd escapes, marks to leave out.
    odd: u32,
}

impl Lexer<'_> {
    fn run(&mut self) -> Result<(), Fault> {
        let mut state = State::Value;
        loop {
            if self.only_first && self.open.is_empty() && state == State::CommaOrEnd {
                return Ok(());
            }
            self.skip_space();
            let Some(&byte) = self.text.get(self.at) else {
                return self.end(state);
            };
            state = match (state, byte) {
                (State::Key | State::KeyOrEnd, b'"') => {
                    if !self.string(true)? {
                        return self.end(State::Key);
                    }
                    State::Colon
                }
                (State::Colon, b':') => self.step(State::Value),
                (State::Value | State::ValueOrEnd, _) if byte != b']' => self.value(byte)?,
                (State::ValueOrEnd, b']') => self.close(Kind::Array)?,
                (State::KeyOrEnd, b'}') => self.close(Kind::Object)?,
                (State::CommaOrEnd, b']') => self.close(Kind::Array)?,
                (State::CommaOrEnd, b'}') => self.close(Kind::Object)?,
                (State::CommaOrEnd, b',') => match self.open.last().map(|open| open.kind) {
                    Some(Kind::Object) => self.step(State::Key),
                    Some(_) => self.step(State::Value),
                    None => return Err(Fault::Malformed),
                },
                _ => return Err(Fault::Malformed),
            };
        }
    }

    fn step(&mut self, state: State) -> State {
        self.at = self.at.wrapping_add(1);
        state
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.text.get(self.at) {
            self.at = self.at.wrapping_add(1);
            self.odd = self.odd.wrapping_add(1);
        }
    }

    fn value(&mut self, byte: u8) -> Result<State, Fault> {
        match byte {
            b'"' => {
                self.string(false)?;
            }
            b'{' => {
                self.begin(Kind::Object)?;
                return Ok(self.step(State::KeyOrEnd));
            }
            b'[' => {
                self.begin(Kind::Array)?;
                return Ok(self.step(State::ValueOrEnd));
            }
            b't' => self.word(b"true", Kind::Bool)?,
            b'f' => self.word(b"false", Kind::Bool)?,
            b'n' => self.word(b"null", Kind::Null)?,
            b'N' => self.word(b"NaN", Kind::Number)?,
            b'I' => self.word(b"Infinity", Kind::Number)?,
            b'-' if self.text.get(self.at.wrapping_add(1)) == Some(&b'I') => {
                self.word(b"-Infinity", Kind::Number)?;
            }
            _ => self.number()?,
        }
        Ok(State::CommaOrEnd)
    }

    /// Appends a leaf that ends at `end`, and moves on to there.
    fn leaf(&mut self, kind: Kind, end: usize, flags: u8) {
        let next = (self.nodes.len() as u32).wrapping_add(1);
        self.nodes.push(Node {
            start: self.at as u32,
            end: end as u32,
            next,
            kind,
            flags,
        });
        self.at = end;
    }

    fn begin(&mut self, kind: Kind) -> Result<(), Fault> {
        if self.open.len() >= MAX_DEPTH {
            return Err(Fault::TooDeep);
        }
        self.open.push(Open {
            node: self.nodes.len() as u32,
            kind,
            odd: self.odd,
        });
        let at = self.at;
        self.leaf(kind, at, 0);
        Ok(())
    }

    fn close(&mut self, kind: Kind) -> Result<State, Fault> {
        match self.open.pop() {
            Some(open) if open.kind == kind => {
                self.at = self.at.wrapping_add(1);
                self.seal(open, 0);
                Ok(State::CommaOrEnd)
            }
            _ => Err(Fault::Malformed),
        }
    }

    fn seal(&mut self, open: Open, flags: u8) {
        let next = self.nodes.len() as u32;
        if let Some(node) = self.nodes.get_mut(open.node as usize) {
            node.end = self.at as u32;
            node.next = next;
            node.flags = flags | if open.odd == self.odd { 0 } else { ODD };
        }
    }

    /// The text is over: fine when all is closed, or when it may be cut.
    fn end(&mut self, state: State) -> Result<(), Fault> {
        if self.nodes.is_empty() {
            return Err(Fault::Empty);
        }
        if self.open.is_empty() && state == State::CommaOrEnd {
            return Ok(());
        }
        if !self.may_be_cut {
            return Err(Fault::Malformed);
        }
        // A key whose value is not there says nothing.
        let in_object = self.open.last().map(|open| open.kind) == Some(Kind::Object);
        if in_object && matches!(state, State::Colon | State::Value) {
            self.nodes.pop();
        }
        while let Some(open) = self.open.pop() {
            self.seal(open, CUT);
        }
        Ok(())
    }

    /// Reads a string whose quote is at `self.at`. False for a key that is cut: it is no node.
    fn string(&mut self, is_key: bool) -> Result<bool, Fault> {
        let mut at = self.at.wrapping_add(1);
        let mut flags = 0;
        // Where a high surrogate began and ended whose other half may follow.
        let mut half = (0, 0);
        loop {
            at = find_special(self.text, at);
            match self.text.get(at) {
                Some(b'"') => {
                    let end = at.wrapping_add(1);
                    if is_key && self.text.get(self.at..end) == Some(b"\"cache_control\"") {
                        self.odd = self.odd.wrapping_add(1);
                    }
                    if flags & ODD != 0 {
                        self.odd = self.odd.wrapping_add(1);
                    }
                    self.leaf(Kind::String, end, flags);
                    return Ok(true);
                }
                Some(b'\\') => match escape(self.text.get(at..).unwrap_or_default()) {
                    Escape::Byte(byte) => {
                        flags |= if byte == b'/' { ESCAPED | ODD } else { ESCAPED };
                        at = at.wrapping_add(2);
                    }
                    Escape::Unit(unit) => {
                        flags |= ESCAPED | ODD;
                        let end = at.wrapping_add(6);
                        if is_high_surrogate(unit) {
                            half = (at, end);
                        } else if is_low_surrogate(unit) {
                            half = (0, 0);
                        }
                        at = end;
                    }
                    Escape::Partial => break,
                    Escape::Bad => return Err(Fault::Malformed),
                },
                Some(&MARK) => {
                    flags |= ESCAPED | ODD;
                    at = at.wrapping_add(1);
                }
                Some(_) => return Err(Fault::Malformed),
                None => break,
            }
        }
        if !self.may_be_cut {
            return Err(Fault::Malformed);
        }
        if !is_key {
            let end = if half.1 == at { half.0 } else { at };
            self.leaf(Kind::String, end, flags | CUT);
        }
        self.at = self.text.len();
        Ok(!is_key)
    }

    fn word(&mut self, word: &[u8], kind: Kind) -> Result<(), Fault> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if rest.starts_with(word) {
            self.leaf(kind, self.at.wrapping_add(word.len()), 0);
            Ok(())
        } else if self.may_be_cut && word.starts_with(rest) {
            self.leaf(kind, self.text.len(), CUT);
            Ok(())
        } else {
            Err(Fault::Malformed)
        }
    }

    /// `-? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?`
    fn number(&mut self) -> Result<(), Fault> {
        let mut rest = self.text.get(self.at..).unwrap_or_default();
        if let Some((b'-', after)) = rest.split_first() {
            rest = after;
        }
        rest = match rest.split_first() {
            Some((b'0', after)) => after,
            _ => self.digits(rest)?,
        };
        if let Some((b'.', after)) = rest.split_first() {
            rest = self.digits(after)?;
        }
        if let Some((b'e' | b'E', after)) = rest.split_first() {
            rest = match after.split_first() {
                Some((b'+' | b'-', after)) => self.digits(after)?,
                _ => self.digits(after)?,
            };
        }
        let end = self.text.len().wrapping_sub(rest.len());
        // More digits may follow a number that the cut touches.
        let cut = rest.is_empty() && self.may_be_cut;
        self.leaf(Kind::Number, end, if cut { CUT } else { 0 });
        Ok(())
    }

    /// Skips digits: at least one, unless the body is cut right there.
    fn digits<'a>(&self, text: &'a [u8]) -> Result<&'a [u8], Fault> {
        let mut rest = text;
        while let Some((b'0'..=b'9', after)) = rest.split_first() {
            rest = after;
        }
        let found = rest.len() < text.len() || (text.is_empty() && self.may_be_cut);
        found.then_some(rest).ok_or(Fault::Malformed)
    }
}
