//! Body -> identity and prompt stream -> chunk hashes.
//!
//! Owns what an API's body means: which fields are the identity (`identity`), which are the prompt
//! (`messages`, `responses`), and the bytes that they become (`frame`). The body is lexed once
//! into borrowed spans (`lexer`, `json`) and its strings are decoded straight into the hash (`text`).
//! Invariant: equal meaning gives equal chunks, whatever the white space, the escapes and the order
//! of the API's fields; different meaning gives a different stream; a continued prompt keeps all
//! whole chunks of what it continues. Of a body that is cut, the chunks are those that the whole
//! body would give, provided that what precedes them in the stream was seen.
//! Cost: one pass to lex, one to hash; memory within a small multiple of the body.

mod frame;
mod identity;
pub(crate) mod json;
mod lexer;
mod messages;
mod responses;
#[cfg(test)]
mod tests;
mod text;

use crate::chunk::{ChunkHash, Chunker, Gather, Sink};
use frame::{Cut, Frame};
use identity::{Identity, Stream};
use json::{Kind, Tape, Value};
use lexer::Fault;
use text::Text;

/// The endpoints whose bodies are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
    /// `/v1/embeddings`
    Embeddings,
    /// `/tokenize`
    Tokenize,
    /// `/v1/messages/count_tokens`
    CountTokens,
}

impl Api {
    /// The API that a request speaks. The path is matched by its ending, without its query, doubled
    /// or trailing slashes.
    pub fn of(method: &[u8], path: &[u8]) -> Option<Api> {
        const ENDINGS: [(Api, &[&str]); 7] = [
            (Api::Chat, &["completions", "chat", "v1"]),
            (Api::Completions, &["completions", "v1"]),
            (Api::Responses, &["responses", "v1"]),
            (Api::Messages, &["messages", "v1"]),
            (Api::Embeddings, &["embeddings", "v1"]),
            (Api::Tokenize, &["tokenize"]),
            (Api::CountTokens, &["count_tokens", "messages", "v1"]),
        ];
        if method != b"POST" {
            return None;
        }
        let path = path.split(|&byte| byte == b'?').next().unwrap_or_default();
        let segments = || {
            path.rsplit(|&byte| byte == b'/')
                .filter(|segment| !segment.is_empty())
        };
        ENDINGS.into_iter().find_map(|(api, ending)| {
            let mut segments = segments();
            ending
                .iter()
                .all(|want| segments.next() == Some(want.as_bytes()))
                .then_some(api)
        })
    }

    /// Whether a request fills a pod's cache. Those that do not are queried and never notified.
    pub fn fills_cache(self) -> bool {
        !matches!(self, Api::Tokenize | Api::CountTokens)
    }
}

/// How much of a body is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Its first bytes, cut anywhere.
    FirstPart,
}

/// One prompt, hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Hash of what keeps prompts apart whatever their text: model, tools and the like.
    pub identity: u64,
    /// The hash at the end of each whole chunk.
    pub chunks: Vec<ChunkHash>,
    /// Hash of the identity and the first 8 KiB of the stream, or all of it if it is shorter.
    pub home: u64,
    /// Length of the stream in bytes.
    pub bytes: usize,
}

/// What a body asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    /// The model, if one was seen. `None` of a first part: it may be yet to come.
    pub model: Option<String>,
    /// Id of the response that this request continues, of the Responses API only.
    pub previous_response: Option<Vec<u8>>,
    /// Each prompt of the body. None of a first part: none has been seen yet.
    pub prompts: Vec<Prompt>,
    /// All of them are computed, whatever the cache holds; the cache is filled as ever.
    pub recomputes: bool,
}

/// Why a body has no prompt that can be hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unreadable {
    /// Nothing but white space.
    Empty,
    /// Not JSON, not an object, or a prompt of a type that no API takes.
    Malformed,
    /// Nested too deep.
    TooDeep,
    /// The field that holds the prompt is absent.
    NoPromptField,
}

impl Unreadable {
    /// The detail that the decision header shows.
    pub fn as_str(self) -> &'static str {
        match self {
            Unreadable::Empty => "empty",
            Unreadable::Malformed => "malformed",
            Unreadable::TooDeep => "too_deep",
            Unreadable::NoPromptField => "no_prompt_field",
        }
    }
}

impl From<Fault> for Unreadable {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Empty => Unreadable::Empty,
            Fault::Malformed => Unreadable::Malformed,
            Fault::TooDeep => Unreadable::TooDeep,
        }
    }
}

/// Reads a body, or the first part of one, and hashes its prompts in chunks of `chunk_bytes`.
pub fn read(
    api: Api,
    body: &[u8],
    extent: Extent,
    chunk_bytes: usize,
) -> Result<Prompts, Unreadable> {
    let tape = Tape::read(body, extent)?;
    let root = tape.root().ok_or(Unreadable::Empty)?;
    if root.kind() != Kind::Object {
        return Err(Unreadable::Malformed);
    }
    let identity = Identity::of(root);
    let reader = Reader {
        identity: &identity,
        chunk_bytes,
        body_bytes: body.len(),
    };
    let prompts = match reader.prompts(api, root) {
        Err(Unreadable::NoPromptField) if root.is_cut() => Vec::new(),
        prompts => prompts?,
    };
    Ok(Prompts {
        model: identity.model(),
        previous_response: match api {
            Api::Responses => identity.previous_response(),
            _ => None,
        },
        prompts,
        recomputes: recomputes(api, root),
    })
}

/// Whether log-probabilities of the prompt's own tokens are asked for, by their name or as those of
/// an echo: vLLM then leaves its cache unread, for it holds no log-probabilities.
fn recomputes(api: Api, root: Value<'_>) -> bool {
    let [of_prompt, echo, of_answer] = root.pick(["prompt_logprobs", "echo", "logprobs"]);
    let is_given = |field: Option<Value<'_>>| field.is_some_and(|v| v.kind() != Kind::Null);
    let echoes = echo.is_some_and(|echo| echo.raw() == b"true");
    match api {
        Api::Chat => is_given(of_prompt) || echoes,
        Api::Completions => is_given(of_prompt) || echoes && is_given(of_answer),
        _ => false,
    }
}

/// Hashes a text as the completions API would hash it as a prompt.
pub fn raw(text: &[u8], model: Option<&str>, chunk_bytes: usize) -> Prompts {
    let mut chunker = Chunker::new(identity::seed_of_text(model), chunk_bytes, text.len());
    chunker.push(text);
    Prompts {
        model: model.map(str::to_owned),
        previous_response: None,
        prompts: vec![hashed(chunker)],
        recomputes: false,
    }
}

fn hashed(chunker: Chunker) -> Prompt {
    let chunks = chunker.finish();
    Prompt {
        identity: chunks.seed,
        chunks: chunks.hashes,
        home: chunks.home,
        bytes: chunks.bytes,
    }
}

/// Reads the prompts of one body.
struct Reader<'r, 't> {
    identity: &'r Identity<'t>,
    chunk_bytes: usize,
    body_bytes: usize,
}

impl<'t> Reader<'_, 't> {
    fn prompts(&self, api: Api, root: Value<'t>) -> Result<Vec<Prompt>, Unreadable> {
        let [messages, prompt, input, system, instructions] = root
            .pick(["messages", "prompt", "input", "system", "instructions"])
            .map(|field| field.filter(|value| value.kind() != Kind::Null));
        let missing = Unreadable::NoPromptField;
        match api {
            Api::Chat => self.chat(Stream::Chat, None, messages.ok_or(missing)?),
            Api::Messages | Api::CountTokens => {
                self.chat(Stream::Messages, system, messages.ok_or(missing)?)
            }
            Api::Responses => {
                let input = input.ok_or(missing)?;
                if !matches!(input.kind(), Kind::String | Kind::Array) {
                    return Err(Unreadable::Malformed);
                }
                Ok(self.framed(Stream::Responses, |out| {
                    responses::responses(out, instructions, input)
                }))
            }
            Api::Completions => self.list(Stream::CompletionText, Stream::CompletionIds, prompt),
            Api::Tokenize => match messages {
                Some(messages) => self.chat(Stream::Chat, None, messages),
                None => self.list(Stream::CompletionText, Stream::CompletionIds, prompt),
            },
            Api::Embeddings => match messages {
                Some(messages) => self.chat(Stream::EmbeddingChat, None, messages),
                None => self.list(Stream::EmbeddingText, Stream::EmbeddingIds, input),
            },
        }
    }

    fn chat(
        &self,
        stream: Stream,
        system: Option<Value<'t>>,
        list: Value<'t>,
    ) -> Result<Vec<Prompt>, Unreadable> {
        if list.kind() != Kind::Array {
            return Err(Unreadable::Malformed);
        }
        Ok(self.framed(stream, |out| {
            if let Some(system) = system {
                messages::system(out, system)?;
            }
            messages::messages(out, list)
        }))
    }

    /// One prompt of fields; where the body is cut, the stream just ends.
    fn framed(
        &self,
        stream: Stream,
        write: impl FnOnce(&mut Frame<Chunker>) -> Result<(), Cut>,
    ) -> Vec<Prompt> {
        let seed = self.identity.seed(stream);
        let mut out = Frame::new(Chunker::new(seed, self.chunk_bytes, self.body_bytes));
        let _ = write(&mut out);
        vec![hashed(out.finish())]
    }

    /// A string, token ids, or an array of either: each member is a prompt of its own.
    fn list(
        &self,
        texts: Stream,
        ids: Stream,
        prompt: Option<Value<'t>>,
    ) -> Result<Vec<Prompt>, Unreadable> {
        let Some(prompt) = prompt else {
            // The embeddings are the prompt; their digest is in the identity.
            return if self.identity.has_embeddings() {
                Ok(self.framed(texts, |_| Ok(())))
            } else {
                Err(Unreadable::NoPromptField)
            };
        };
        if let Some(text) = prompt.text() {
            return Ok(vec![self.text(self.identity.seed(texts), text)]);
        }
        if prompt.kind() != Kind::Array {
            return Err(Unreadable::Malformed);
        }
        match prompt.items().next().map(Value::kind) {
            Some(Kind::String) => {
                let seed = self.identity.seed(texts);
                prompt
                    .items()
                    .map(|member| member.text().map(|text| self.text(seed, text)))
                    .collect::<Option<Vec<Prompt>>>()
                    .ok_or(Unreadable::Malformed)
            }
            Some(Kind::Array) => {
                let mut ids = self.id_stream(ids);
                prompt
                    .items()
                    .map(|member| self.ids(&mut ids, member))
                    .collect()
            }
            _ => Ok(vec![self.ids(&mut self.id_stream(ids), prompt)?]),
        }
    }

    /// A text alone needs no framing: its stream is its characters.
    fn text(&self, seed: u64, text: Text<'_>) -> Prompt {
        hashed(text.decode_into(Chunker::new(seed, self.chunk_bytes, text.raw.len())))
    }

    fn id_stream(&self, stream: Stream) -> Gather<Chunker> {
        Gather::new(Chunker::new(
            self.identity.seed(stream),
            self.chunk_bytes,
            0,
        ))
    }

    /// Token ids: four bytes each, little-endian. `out` is empty, and is so again afterwards.
    fn ids(&self, out: &mut Gather<Chunker>, list: Value<'_>) -> Result<Prompt, Unreadable> {
        if list.kind() != Kind::Array {
            return Err(Unreadable::Malformed);
        }
        for id in list.items() {
            match id.as_u32() {
                Some(id) => out.head_of(&id.to_le_bytes(), 4),
                None if id.kind() == Kind::Number && id.is_cut() => break,
                None => return Err(Unreadable::Malformed),
            }
        }
        let next = out.inner().restarted();
        Ok(hashed(out.replace(next)))
    }
}
