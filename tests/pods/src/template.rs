//! Request bodies to prompts: a simple chat template, and the keys that change every block.

use serde_json::{json, Value};
use twox_hash::XxHash64;

use crate::answer::ApiError;
use crate::tokens::Prompt;

/// Body fields that reach the model without being text of a message.
const KEYS: [&str; 13] = [
    "model",
    "cache_salt",
    "tools",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "documents",
    "mm_processor_kwargs",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "prompt_embeds",
];

/// Marks of a block that an API's clients add and the model never sees.
const IGNORED: &str = "cache_control";

/// Hash of everything that changes every block.
pub fn seed(body: &Value) -> u64 {
    KEYS.iter().fold(0, |seed, key| match body.get(key) {
        None | Some(Value::Null) => seed,
        Some(value) => {
            XxHash64::oneshot(seed, format!("{key}={}", without_marks(value)).as_bytes())
        }
    })
}

fn without_marks(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(k, _)| *k != IGNORED)
            .map(|(k, v)| (k.clone(), without_marks(v)))
            .collect(),
        Value::Array(items) => items.iter().map(without_marks).collect(),
        other => other.clone(),
    }
}

/// A rendered conversation under construction.
#[derive(Default)]
pub struct Rendered(String);

impl Rendered {
    /// Opens a turn: `<|role|>` and, when named, `<|name|>`.
    fn open(&mut self, role: &str, name: Option<&Value>) {
        self.0 += &format!("<|{role}|>");
        if let Some(name) = name.and_then(Value::as_str) {
            self.0 += &format!("<|name {name}|>");
        }
        self.0.push('\n');
    }

    fn close(&mut self) {
        self.0.push('\n');
    }

    /// One turn of plain text.
    pub fn turn(&mut self, role: &str, text: &str) {
        self.open(role, None);
        self.0 += text;
        self.close();
    }

    /// One message of the chat or messages API, or one item of the responses API.
    pub fn message(&mut self, message: &Value) {
        match message["type"].as_str() {
            Some("function_call") => {
                self.open("assistant", None);
                self.call(&message["name"], &message["arguments"]);
            }
            Some("function_call_output") => {
                self.open("tool", None);
                self.content(&message["output"]);
            }
            _ => {
                self.open(
                    message["role"].as_str().unwrap_or("assistant"),
                    message.get("name"),
                );
                if let Some(id) = message["tool_call_id"].as_str() {
                    self.0 += &format!("<|result of {id}|>");
                }
                for field in ["reasoning", "reasoning_content"] {
                    self.content(&message[field]);
                }
                self.content(&message["content"]);
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    self.call(&call["function"]["name"], &call["function"]["arguments"]);
                }
            }
        }
        self.close();
    }

    fn call(&mut self, name: &Value, arguments: &Value) {
        let arguments = arguments
            .as_str()
            .map_or_else(|| arguments.to_string(), str::to_owned);
        self.0 += &format!("<|call {}|>{arguments}", name.as_str().unwrap_or_default());
    }

    /// Content: a string, or blocks of any of the APIs.
    fn content(&mut self, content: &Value) {
        match content {
            Value::String(text) => self.0 += text,
            Value::Array(blocks) => blocks.iter().for_each(|block| self.block(block)),
            _ => {}
        }
    }

    fn block(&mut self, block: &Value) {
        match block["type"].as_str().unwrap_or("text") {
            "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" => {
                self.content(&block["text"])
            }
            "refusal" => self.content(&block["refusal"]),
            "thinking" => self.content(&block["thinking"]),
            "redacted_thinking" => {}
            "tool_use" => self.call(&block["name"], &block["input"]),
            "tool_result" => self.content(&block["content"]),
            _ => {
                let digest = XxHash64::oneshot(0, without_marks(block).to_string().as_bytes());
                self.0 += &format!("<|media {digest:016x}|>");
            }
        }
    }

    /// The prompt, waiting for the assistant's turn.
    pub fn into_prompt(mut self, seed: u64) -> Prompt {
        self.open("assistant", None);
        Prompt {
            bytes: self.0.into_bytes(),
            seed,
        }
    }
}

/// The prompt of a chat request.
pub fn chat(body: &Value) -> Result<Prompt, ApiError> {
    let mut rendered = Rendered::default();
    for message in messages(body)? {
        rendered.message(message);
    }
    Ok(rendered.into_prompt(seed(body)))
}

fn messages(body: &Value) -> Result<&Vec<Value>, ApiError> {
    body["messages"]
        .as_array()
        .ok_or_else(|| missing("messages"))
}

/// What vLLM says of a field that is not there.
pub fn missing(field: &str) -> ApiError {
    let kind = "Bad Request";
    let message =
        json!([{"type": "missing", "loc": ["body", field], "msg": "Field required"}]).to_string();
    ApiError {
        kind,
        ..ApiError::bad_request(message)
    }
}

/// The prompt of a request to the messages API. The billing header that some clients put into
/// the system prompt is left out, as vLLM does.
pub fn anthropic(body: &Value) -> Result<Prompt, ApiError> {
    let mut rendered = Rendered::default();
    let mut system = String::new();
    let of_messages = messages(body)?
        .iter()
        .filter(|m| m["role"] == "system")
        .map(|m| &m["content"]);
    for content in std::iter::once(&body["system"]).chain(of_messages) {
        match content {
            Value::String(text) => system += text,
            Value::Array(blocks) => blocks
                .iter()
                .filter_map(|block| block["text"].as_str())
                .filter(|text| !text.starts_with("x-anthropic-billing-header"))
                .for_each(|text| system += text),
            _ => {}
        }
    }
    if !system.is_empty() {
        rendered.turn("system", &system);
    }
    for message in messages(body)?.iter().filter(|m| m["role"] != "system") {
        rendered.message(message);
    }
    Ok(rendered.into_prompt(seed(body)))
}

/// The prompts of a completion or embedding: a string, token ids, or an array of either.
pub fn prompts(value: &Value, seed: u64, field: &str) -> Result<Vec<Prompt>, ApiError> {
    let prompt = |bytes| Prompt { bytes, seed };
    match value {
        Value::String(text) => Ok(vec![prompt(text.clone().into_bytes())]),
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            Ok(vec![prompt(token_bytes(value)?)])
        }
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(prompt(text.clone().into_bytes())),
                ids => token_bytes(ids).map(prompt),
            })
            .collect(),
        _ => Err(missing(field)),
    }
}

fn token_bytes(ids: &Value) -> Result<Vec<u8>, ApiError> {
    Ok(token_ids(ids)?
        .iter()
        .flat_map(|id| id.to_le_bytes())
        .collect())
}

/// An array of token ids.
pub fn token_ids(ids: &Value) -> Result<Vec<u32>, ApiError> {
    let ids: Option<Vec<u32>> = ids.as_array().and_then(|ids| {
        ids.iter()
            .map(|id| u32::try_from(id.as_u64()?).ok())
            .collect()
    });
    ids.ok_or_else(|| {
        ApiError::bad_request("Each prompt must be a string or an array of token ids")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_extend_the_prompt_before_them() {
        let one = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        let two = json!({"model": "m", "messages": [
            {"content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}], "role": "user"},
            {"role": "assistant", "content": "abcd"}, {"role": "user", "content": "more"}]});
        let (one, two) = (chat(&one).unwrap(), chat(&two).unwrap());
        assert_eq!(one.seed, two.seed);
        let with_reply = [&one.bytes[..], b"abcd"].concat();
        assert!(two.bytes.starts_with(&with_reply));
    }

    #[test]
    fn keys_change_the_seed() {
        let body = |extra: Value| {
            let mut body = json!({"model": "m"});
            body.as_object_mut()
                .unwrap()
                .extend(extra.as_object().unwrap().clone());
            seed(&body)
        };
        let seeds = [
            body(json!({})),
            body(json!({"model": "n"})),
            body(json!({"cache_salt": "s"})),
            body(json!({"tools": [{"type": "function", "function": {"name": "f"}}]})),
            body(json!({"cache_salt": "m"})),
        ];
        for (i, a) in seeds.iter().enumerate() {
            assert!(seeds[i + 1..].iter().all(|b| a != b), "{i}");
        }
        assert_eq!(
            body(json!({"temperature": 0.5, "stream": true})),
            body(json!({}))
        );
    }

    #[test]
    fn the_apis_render_the_same_conversation_alike() {
        let chat = chat(&json!({"model": "m", "messages": [
            {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}))
        .unwrap();
        let anthropic = anthropic(
            &json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}],
            "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be brief"}]}),
        );
        assert_eq!(chat, anthropic.unwrap());
    }

    #[test]
    fn every_form_of_prompt() {
        let count = |v: Value| {
            prompts(&v, 0, "prompt").map(|p| p.iter().map(Prompt::tokens).collect::<Vec<_>>())
        };
        assert_eq!(count(json!("12345")).unwrap(), [2]);
        assert_eq!(count(json!(["1234", "5"])).unwrap(), [1, 1]);
        assert_eq!(count(json!([1, 2, 3])).unwrap(), [3]);
        assert_eq!(count(json!([[1, 2], [3]])).unwrap(), [2, 1]);
        assert!(count(json!([])).is_err());
        assert!(count(json!([-1])).is_err());
        assert!(count(json!({"a": 1})).is_err());
    }
}
