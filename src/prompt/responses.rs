//! The Responses API: `instructions`, then `input` as a string or a list of items.
//!
//! A string is one user message. An item that is no message begins with its type; reasoning, calls
//! and their outputs are written field by field, any other item as a digest.

use super::frame::{Cut, Frame, Tag};
use super::json::{Kind, Value};
use super::messages::{content, end_of, message, seen};
use crate::chunk::Sink;

/// Instructions and input.
pub fn responses<S: Sink>(
    out: &mut Frame<S>,
    instructions: Option<Value<'_>>,
    input: Value<'_>,
) -> Result<(), Cut> {
    if let Some(instructions) = instructions.filter(|value| value.kind() != Kind::Null) {
        out.field(Tag::System);
        content(out, instructions)?;
    }
    if input.kind() != Kind::Array {
        out.field(Tag::Message);
        out.bytes(b"user");
        return content(out, input);
    }
    for item in input.items() {
        self::item(out, item)?;
    }
    end_of(input)
}

fn item<S: Sink>(out: &mut Frame<S>, item: Value<'_>) -> Result<(), Cut> {
    let [kind, role, name, arguments, call_id, output, summary, reasoning] = item.pick([
        "type",
        "role",
        "name",
        "arguments",
        "call_id",
        "output",
        "summary",
        "content",
    ]);
    if kind.is_some_and(Value::is_cut) {
        return Err(Cut);
    }
    let Some(text) = kind.and_then(Value::text) else {
        // Only a message may leave its type out.
        return match role {
            None if item.kind() == Kind::Object => {
                end_of(item)?;
                out.field(Tag::Item);
                out.media(item)
            }
            _ => message(out, item),
        };
    };
    if text.is(b"message") {
        return message(out, item);
    }
    out.field(Tag::Item);
    out.text(text)?;
    if text.is(b"function_call") {
        out.optional(Tag::Call, seen(item, name)?)?;
        out.optional(Tag::Arguments, seen(item, arguments)?)?;
        out.optional(Tag::CallId, seen(item, call_id)?)?;
    } else if text.is(b"function_call_output") {
        if let Some(output) = seen(item, output)? {
            content(out, output)?;
        }
        out.optional(Tag::CallId, seen(item, call_id)?)?;
    } else if text.is(b"reasoning") {
        if let Some(reasoning) = seen(item, reasoning)? {
            content(out, reasoning)?;
        }
        out.field(Tag::Reasoning);
        if let Some(summary) = seen(item, summary)? {
            content(out, summary)?;
        }
    } else {
        out.media(item)?;
    }
    end_of(item)
}
