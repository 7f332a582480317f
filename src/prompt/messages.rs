//! Messages and their parts -> fields, for every API that has messages.
//!
//! Order of a message: role, name, content, refusal, tool calls, tool call id, reasoning. Fields that
//! do not reach the model are left out; a part of a kind that is not known is a media part.
//! In a message that is cut, a field that was not seen may be yet to come, so the stream ends where
//! it would stand. The one exception is `name`, which is rare and comes before the content.

use super::frame::{Cut, Frame, Tag};
use super::json::{Kind, Value};
use super::text::Text;
use crate::chunk::Sink;

/// A field of `owner`: null is absent, and absent from an owner that is cut is not known.
pub fn seen<'t>(owner: Value<'t>, field: Option<Value<'t>>) -> Result<Option<Value<'t>>, Cut> {
    match field {
        None if owner.is_cut() => Err(Cut),
        field => Ok(field.filter(|value| value.kind() != Kind::Null)),
    }
}

/// A list of messages.
pub fn messages<S: Sink>(out: &mut Frame<S>, list: Value<'_>) -> Result<(), Cut> {
    for message in list.items() {
        self::message(out, message)?;
    }
    end_of(list)
}

/// One message.
pub fn message<S: Sink>(out: &mut Frame<S>, message: Value<'_>) -> Result<(), Cut> {
    if message.kind() != Kind::Object {
        out.field(Tag::Message);
        out.field(Tag::Json);
        return out.json(message);
    }
    let [role, name, body, refusal, calls, call, call_id, reasoning, reasoning_content, tools] =
        message.pick([
            "role",
            "name",
            "content",
            "refusal",
            "tool_calls",
            "function_call",
            "tool_call_id",
            "reasoning",
            "reasoning_content",
            "tools",
        ]);
    let role = seen(message, role)?;
    if role.is_some_and(Value::is_cut) {
        return Err(Cut);
    }
    out.optional(Tag::Message, role)?;
    if let Some(name) = name.filter(|name| name.kind() != Kind::Null) {
        out.value(Tag::Name, name)?;
    }
    if let Some(body) = seen(message, body)? {
        content(out, body)?;
    }
    if let Some(refusal) = seen(message, refusal)? {
        out.value(Tag::Refusal, refusal)?;
    }
    if let Some(calls) = seen(message, calls)? {
        for call in calls.items() {
            tool_call(out, call)?;
        }
        end_of(calls)?;
    }
    if let Some(call) = seen(message, call)? {
        function(out, Tag::FunctionCall, call)?;
    }
    if let Some(id) = seen(message, call_id)? {
        out.value(Tag::CallId, id)?;
    }
    let reasoning = match seen(message, reasoning)? {
        None => seen(message, reasoning_content)?,
        reasoning => reasoning,
    };
    if let Some(reasoning) = reasoning {
        out.value(Tag::Reasoning, reasoning)?;
    }
    if let Some(tools) = seen(message, tools)? {
        out.value(Tag::Tools, tools)?;
    }
    end_of(message)
}

/// Nothing follows what is cut.
pub fn end_of(value: Value<'_>) -> Result<(), Cut> {
    if value.is_cut() {
        return Err(Cut);
    }
    Ok(())
}

/// Content: a string is one text part.
pub fn content<S: Sink>(out: &mut Frame<S>, content: Value<'_>) -> Result<(), Cut> {
    if content.kind() != Kind::Array {
        return out.value(Tag::Text, content);
    }
    for part in content.items() {
        self::part(out, part)?;
    }
    end_of(content)
}

fn part<S: Sink>(out: &mut Frame<S>, part: Value<'_>) -> Result<(), Cut> {
    if part.kind() != Kind::Object {
        return out.value(Tag::Text, part);
    }
    let [kind, text, refusal, thinking, name, input, id, result_of, result] = part.pick([
        "type",
        "text",
        "refusal",
        "thinking",
        "name",
        "input",
        "id",
        "tool_use_id",
        "content",
    ]);
    if kind.is_some_and(Value::is_cut) {
        return Err(Cut);
    }
    let kind = kind.and_then(Value::text);
    let is = |name: &[u8]| kind.is_some_and(|kind| kind.is(name));
    let strings = [
        (Tag::Text, kind.is_none() || is_text(kind), text),
        (Tag::RefusalPart, is(b"refusal"), refusal),
        (Tag::ReasoningPart, is(b"thinking"), thinking),
    ];
    for (tag, matches, string) in strings {
        if let Some(string) = string.and_then(Value::text).filter(|_| matches) {
            out.field(tag);
            out.text(string)?;
            return end_of(part);
        }
    }
    if is(b"tool_use") {
        out.optional(Tag::CallPart, seen(part, name)?)?;
        out.optional(Tag::Arguments, seen(part, input)?)?;
        out.optional(Tag::CallId, seen(part, id)?)?;
        return end_of(part);
    }
    if is(b"tool_result") {
        out.field(Tag::Result);
        if let Some(result) = seen(part, result)? {
            content(out, result)?;
        }
        out.optional(Tag::CallId, seen(part, result_of)?)?;
        return end_of(part);
    }
    out.media(part)
}

/// The kinds of part whose `text` is what the model reads.
fn is_text(kind: Option<Text<'_>>) -> bool {
    let kinds: [&[u8]; 5] = [
        b"text",
        b"input_text",
        b"output_text",
        b"reasoning_text",
        b"summary_text",
    ];
    kind.is_some_and(|kind| kinds.iter().any(|name| kind.is(name)))
}

fn tool_call<S: Sink>(out: &mut Frame<S>, call: Value<'_>) -> Result<(), Cut> {
    let [callee, id] = call.pick(["function", "id"]);
    match seen(call, callee)? {
        Some(callee) => function(out, Tag::Call, callee)?,
        None => {
            // No function: a kind of call that is not known.
            out.field(Tag::Call);
            out.media(call)?;
        }
    }
    out.optional(Tag::CallId, seen(call, id)?)?;
    end_of(call)
}

/// Name and arguments of a call.
fn function<S: Sink>(out: &mut Frame<S>, tag: Tag, call: Value<'_>) -> Result<(), Cut> {
    let [name, arguments] = call.pick(["name", "arguments"]);
    out.optional(tag, seen(call, name)?)?;
    out.optional(Tag::Arguments, seen(call, arguments)?)?;
    end_of(call)
}

/// The `system` of the Messages API: a string, or blocks. A block that starts with
/// `x-anthropic-billing-header` changes with every request; vLLM leaves it out, and so do we.
pub fn system<S: Sink>(out: &mut Frame<S>, system: Value<'_>) -> Result<(), Cut> {
    out.field(Tag::System);
    if system.kind() != Kind::Array {
        return out.value(Tag::Text, system);
    }
    for block in system.items() {
        let [text] = block.pick(["text"]);
        match text.and_then(Value::text) {
            Some(text) => match text.starts_with(b"x-anthropic-billing-header") {
                Some(true) => end_of(block)?,
                Some(false) => part(out, block)?,
                None => return Err(Cut),
            },
            None => part(out, block)?,
        }
    }
    end_of(system)
}
