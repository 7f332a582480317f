//! Identity: what changes every chunk of a prompt, because it changes the first token on, or keeps
//! caches apart. It becomes the seed of the chunk hashes.
//!
//! Invariant: absent and null are the same; fields are written in the order of [`FIELDS`], not of
//! the body, each behind its number.
//! Cost: one pass over those fields; tools in canonical spelling are hashed where they lie.

use super::frame::{Frame, Tag};
use super::json::{Kind, Value};
use super::text::Text;
use core::hash::Hasher as _;
use twox_hash::XxHash64;

/// Streams that mean different tokens even where their bytes agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Stream {
    Chat = 1,
    CompletionText = 2,
    CompletionIds = 3,
    Responses = 4,
    Messages = 5,
    EmbeddingText = 6,
    EmbeddingIds = 7,
    EmbeddingChat = 8,
}

/// Fields of a body that are part of the identity. Append only: the place is hashed.
const FIELDS: [&str; 16] = [
    "model",
    "cache_salt",
    "tools",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    REASONING,
    "documents",
    "mm_processor_kwargs",
    "add_special_tokens",
    "truncate_prompt_tokens",
    PROMPT_EMBEDS,
    PREVIOUS_RESPONSE,
    THINKING,
    OUTPUT_CONFIG,
];
const REASONING: &str = "reasoning";
const PROMPT_EMBEDS: &str = "prompt_embeds";
const PREVIOUS_RESPONSE: &str = "previous_response_id";
const THINKING: &str = "thinking";
const OUTPUT_CONFIG: &str = "output_config";

/// The fields of one body.
pub struct Identity<'t> {
    fields: [Option<Value<'t>>; FIELDS.len()],
}

impl<'t> Identity<'t> {
    /// Picks the identity's fields out of a body.
    pub fn of(body: Value<'t>) -> Self {
        Identity {
            fields: body.pick(FIELDS),
        }
    }

    /// The model's name, when all of it was seen.
    pub fn model(&self) -> Option<String> {
        let model = self.fields.first().copied().flatten()?.text()?;
        whole(model).map(|model| String::from_utf8_lossy(&model).into_owned())
    }

    /// The response that this one continues, when all of its id was seen.
    pub fn previous_response(&self) -> Option<Vec<u8>> {
        let mut fields = FIELDS.iter().zip(self.fields);
        let (_, field) = fields.find(|(name, _)| **name == PREVIOUS_RESPONSE)?;
        whole(field?.text()?)
    }

    /// Whether embeddings are given, so that a prompt may be missing.
    pub fn has_embeddings(&self) -> bool {
        FIELDS
            .iter()
            .zip(self.fields)
            .filter(|(name, _)| **name == PROMPT_EMBEDS)
            .any(|(_, field)| field.is_some_and(|value| value.kind() != Kind::Null))
    }

    /// The seed of the hashes of one kind of stream.
    pub fn seed(&self, stream: Stream) -> u64 {
        let mut frame = begin(stream);
        for ((place, name), field) in (0u8..).zip(FIELDS).zip(self.fields) {
            let field = match field {
                // Of these settings, only the effort reaches the template.
                Some(settings) if name == REASONING || name == OUTPUT_CONFIG => {
                    let [effort] = settings.pick(["effort"]);
                    effort
                }
                // Only switched off, which is an effort too; a budget is not in the prompt.
                Some(settings) if name == THINKING => {
                    let [kind] = settings.pick(["type"]);
                    kind.filter(|kind| kind.text().is_some_and(|text| text.is(b"disabled")))
                }
                field => field,
            };
            let Some(value) = field.filter(|value| value.kind() != Kind::Null) else {
                continue;
            };
            frame.field(Tag::Identity);
            frame.bytes(&[place]);
            // A value that is cut counts as far as it is there.
            let _ = frame.value(Tag::Text, value);
        }
        frame.finish().finish()
    }
}

fn whole(text: Text<'_>) -> Option<Vec<u8>> {
    (!text.cut).then(|| text.to_bytes())
}

/// The seed for a text of which nothing but the model is known.
pub fn seed_of_text(model: Option<&str>) -> u64 {
    let mut frame = begin(Stream::CompletionText);
    if let Some(model) = model {
        frame.field(Tag::Identity);
        frame.bytes(&[0]);
        frame.field(Tag::Text);
        frame.bytes(model.as_bytes());
    }
    frame.finish().finish()
}

fn begin(stream: Stream) -> Frame<XxHash64> {
    let mut frame = Frame::new(XxHash64::with_seed(0));
    frame.field(Tag::Stream);
    frame.bytes(&[stream as u8]);
    frame
}
