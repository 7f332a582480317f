//! The canonical byte stream: fields one after the other, each behind a mark.
//!
//! A field is [`MARK`] (0xFF), a [`Tag`] (never 0), and the field's bytes. Inside those bytes 0xFF is
//! followed by 0, so a mark begins a field and nothing else does. Text is written as inside a JSON
//! string, in one spelling: prompts are full of line breaks and quotes, and most clients escape them
//! in just that spelling, so their text is hashed as it came.
//! Injective: cut the stream before each 0xFF that is not followed by 0, and the fields come back,
//! whatever bytes a client sends; this holds for every prefix of a stream too, so no content can
//! pass for the structure of another prompt. That the fields say which messages they came from is
//! up to the callers: a message or item begins with a tag of its own, its fields follow in one order
//! with tags that no part of a content has, and what nests or repeats ends with a field that is
//! never left out.
//! Prefix keeping: a field has no length and no end mark but the mark of the next one, so the stream
//! of a prompt that is continued, by more text or more fields, begins with all of the shorter one.
//! JSON that reaches the model as JSON is written without white space, strings in one spelling, in
//! the order it came, without `cache_control` marks.
//! Cost: strings and JSON that came in canonical spelling are one push each.

use super::json::{Kind, Value};
use super::text::{Style, Text, MARK};
use crate::chunk::{Gather, Sink};
use core::hash::Hasher as _;
use twox_hash::XxHash64;

/// What a field says. The values are part of every hash: changing one forgets all prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// JSON where text is usual; always right after the empty field that it belongs to.
    Json = 1,
    /// Which stream this is: see `identity::Stream`.
    Stream = 2,
    /// A field of the identity follows: its place in the list of those.
    Identity = 3,
    /// Instructions before the messages.
    System = 4,
    /// A message begins: its role.
    Message = 5,
    /// An item other than a message begins: its type.
    Item = 6,
    /// Name of the participant.
    Name = 7,
    /// A text part.
    Text = 8,
    /// Refusal of a message.
    Refusal = 9,
    /// Reasoning of a message, or summary of reasoning.
    Reasoning = 10,
    /// A tool call begins: name of the function.
    Call = 11,
    /// Arguments of a tool call.
    Arguments = 12,
    /// Id of the tool call that was made, or that is answered.
    CallId = 13,
    /// The result of a tool begins; `CallId` ends it.
    Result = 14,
    /// A media part: its digest.
    Media = 15,
    /// Tools that a message brings.
    Tools = 16,
    /// The old form of a tool call begins: name of the function.
    FunctionCall = 17,
    /// A part of the content that is a refusal.
    RefusalPart = 18,
    /// A part of the content that is reasoning.
    ReasoningPart = 19,
    /// A part of the content that is a tool call begins: name of the tool.
    CallPart = 20,
}

/// The body ended here: what follows is not known, so the stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut;

/// Writes fields to a sink.
#[derive(Debug)]
pub struct Frame<S> {
    out: Gather<S>,
}

impl<S: Sink> Frame<S> {
    /// A stream without fields.
    pub fn new(sink: S) -> Self {
        Frame {
            out: Gather::new(sink),
        }
    }

    /// Gives the sink back.
    pub fn finish(self) -> S {
        self.out.finish()
    }

    /// Begins a field.
    pub fn field(&mut self, tag: Tag) {
        self.out.head_of(&[MARK, tag as u8], 2);
    }

    /// Appends bytes of this program's own to the field.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.out.byte(byte);
            if byte == MARK {
                self.out.byte(0);
            }
        }
    }

    /// Appends text to the field.
    pub fn text(&mut self, text: Text<'_>) -> Result<(), Cut> {
        text.decode(Style::Json, &mut self.out);
        if text.cut {
            return Err(Cut);
        }
        Ok(())
    }

    /// A whole field of a value: text when it is a string, else empty and followed by its JSON.
    pub fn value(&mut self, tag: Tag, value: Value<'_>) -> Result<(), Cut> {
        self.field(tag);
        match value.text() {
            Some(text) => self.text(text),
            None => {
                self.field(Tag::Json);
                self.json(value)
            }
        }
    }

    /// A whole field of a value that may be absent: then the field is empty.
    pub fn optional(&mut self, tag: Tag, value: Option<Value<'_>>) -> Result<(), Cut> {
        match value {
            Some(value) => self.value(tag, value),
            None => {
                self.field(tag);
                Ok(())
            }
        }
    }

    /// Appends canonical JSON to the field. Recursion is bounded by `lexer::MAX_DEPTH`.
    pub fn json(&mut self, value: Value<'_>) -> Result<(), Cut> {
        if value.is_canonical() {
            self.out.push(value.raw());
            return Ok(());
        }
        match value.kind() {
            Kind::String => {
                let Some(text) = value.text() else {
                    return Ok(());
                };
                self.out.byte(b'"');
                text.decode(Style::Json, &mut self.out);
                if text.cut {
                    return Err(Cut);
                }
                self.out.byte(b'"');
            }
            Kind::Object => {
                let mut before = b'{';
                for (key, field) in value.fields() {
                    match is_cache_mark(key, field) {
                        Some(true) => continue,
                        Some(false) => {}
                        None => return Err(Cut),
                    }
                    self.out.byte(before);
                    before = b',';
                    self.json(key)?;
                    self.out.byte(b':');
                    self.json(field)?;
                }
                if value.is_cut() {
                    return Err(Cut);
                }
                if before == b'{' {
                    self.out.byte(before);
                }
                self.out.byte(b'}');
            }
            Kind::Array => {
                let mut before = b'[';
                for item in value.items() {
                    self.out.byte(before);
                    before = b',';
                    self.json(item)?;
                }
                if value.is_cut() {
                    return Err(Cut);
                }
                if before == b'[' {
                    self.out.byte(before);
                }
                self.out.byte(b']');
            }
            // Never spelled in two ways, so: cut.
            Kind::Number | Kind::Null | Kind::Bool => return Err(Cut),
        }
        Ok(())
    }

    /// A media part as a digest of its type and data, in whatever order its fields came.
    pub fn media(&mut self, part: Value<'_>) -> Result<(), Cut> {
        if part.is_cut() {
            return Err(Cut);
        }
        self.field(Tag::Media);
        self.bytes(&digest(part).to_le_bytes());
        Ok(())
    }
}

/// Whether a field is a mark for a provider's cache. Not every field of that name is: a tool may
/// have a parameter called so. Not known of a mark that is cut.
fn is_cache_mark(key: Value<'_>, field: Value<'_>) -> Option<bool> {
    let named = key.text().is_some_and(|key| key.is(b"cache_control"));
    if named && field.is_cut() {
        return None;
    }
    let [kind] = if named { field.pick(["type"]) } else { [None] };
    let ephemeral = kind
        .and_then(Value::text)
        .is_some_and(|kind| kind.is(b"ephemeral"));
    Some(named && (ephemeral || field.kind() == Kind::Null))
}

/// Digest of a value that does not depend on the order of the fields of objects: theirs are
/// hashed one by one and added up. `detail` and `cache_control` do not change what is seen.
fn digest(value: Value<'_>) -> u64 {
    let mut hash = XxHash64::with_seed(value.kind() as u64);
    match value.kind() {
        Kind::String => {
            if let Some(text) = value.text() {
                hash = text.decode_into(hash);
            }
        }
        Kind::Array => {
            for item in value.items() {
                hash.write(&digest(item).to_le_bytes());
            }
        }
        Kind::Object => {
            let mut sum = 0u64;
            for (key, field) in value.fields() {
                let left_out = key
                    .text()
                    .is_some_and(|key| key.is(b"detail") || key.is(b"cache_control"));
                if left_out || field.kind() == Kind::Null {
                    continue;
                }
                let mut one = XxHash64::with_seed(digest(key));
                one.write(&digest(field).to_le_bytes());
                sum = sum.wrapping_add(one.finish());
            }
            hash.write(&sum.to_le_bytes());
        }
        Kind::Number | Kind::Null | Kind::Bool => hash.write(value.raw()),
    }
    hash.finish()
}
