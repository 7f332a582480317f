//! Answers: a body that is there at once, or events paced by the decode time of their tokens.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::{HeaderValue, CACHE_CONTROL, CONTENT_TYPE};
use hyper::{Response, StatusCode};
use serde_json::{json, Value};

use crate::queue::{Completed, Refused, Running};

/// Why a body ended early: a fault asked for it.
pub type Broken = std::io::Error;

/// Stream of the pieces of a body.
pub type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send>>;

/// Body of an answer.
pub enum Body {
    Whole(Option<Bytes>),
    Events(Pieces),
}

impl Body {
    pub fn empty() -> Self {
        Self::Whole(None)
    }

    /// Its pieces, whatever it was. A whole body is cut into two, so that there is a middle.
    pub fn into_pieces(self) -> Pieces {
        match self {
            Self::Events(pieces) => pieces,
            Self::Whole(bytes) => {
                let bytes = bytes.unwrap_or_default();
                let half = bytes.len() / 2;
                let pieces = [bytes.slice(..half), bytes.slice(half..)];
                Box::pin(stream::iter(pieces.map(Ok)))
            }
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Whole(Some(bytes.into()))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(
                bytes
                    .take()
                    .filter(|b| !b.is_empty())
                    .map(|b| Ok(Frame::data(b))),
            ),
            Self::Events(pieces) => pieces.poll_next_unpin(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// An answer of this pod.
pub type Answer = Response<Body>;

/// A JSON answer.
pub fn json_answer(status: StatusCode, value: &Value) -> Answer {
    typed(status, "application/json", value.to_string().into_bytes())
}

/// An answer of any content type.
pub fn typed(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// One server-sent event, and whether it is due with a token.
pub struct Event {
    pub text: String,
    pub is_token: bool,
}

impl Event {
    /// `data: …`, as the OpenAI endpoints send it.
    pub fn data(value: &Value) -> Self {
        Self {
            text: format!("data: {value}\n\n"),
            is_token: false,
        }
    }

    /// `event: …` and `data: …`, the name being the value's `type`.
    pub fn named(value: &Value) -> Self {
        let name = value["type"].as_str().unwrap_or_default();
        Self {
            text: format!("event: {name}\ndata: {value}\n\n"),
            is_token: false,
        }
    }

    /// The end mark of the OpenAI streams.
    pub fn done() -> Self {
        Self {
            text: "data: [DONE]\n\n".into(),
            is_token: false,
        }
    }

    /// The same event, due with the next token.
    pub fn token(self) -> Self {
        Self {
            is_token: true,
            ..self
        }
    }
}

struct Paced {
    events: VecDeque<Event>,
    /// The request that is being decoded; dropping it (client gone) gives its blocks back.
    running: Option<Running>,
    decoded: usize,
    tokens: usize,
}

/// An event stream. With `running`, each token event waits for its decode time and the request
/// ends, with `tokens` tokens, after the last of them; without it all are sent at once.
pub fn event_stream(events: Vec<Event>, running: Option<Running>, tokens: usize) -> Answer {
    let paced = Paced {
        events: events.into(),
        running,
        decoded: 0,
        tokens,
    };
    let pieces = stream::unfold(paced, |mut paced| async move {
        let Some(event) = paced.events.pop_front() else {
            paced
                .running
                .take()
                .map(|running| running.finish(paced.tokens));
            return None;
        };
        if let (true, Some(running)) = (event.is_token, &paced.running) {
            paced.decoded += 1;
            running.decoded(paced.decoded).await;
            if paced.decoded == paced.tokens {
                paced
                    .running
                    .take()
                    .map(|running| running.finish(paced.tokens));
            }
        }
        Some((Ok(Bytes::from(event.text)), paced))
    });
    let mut answer = Response::new(Body::Events(Box::pin(pieces)));
    answer.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    answer
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    answer
}

/// Numbers of one or several prompts together.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    pub prompt: usize,
    pub cached: usize,
    pub output: usize,
}

impl Usage {
    pub fn of(completed: &[Completed], copies: usize) -> Self {
        completed.iter().fold(Self::default(), |sum, c| Self {
            prompt: sum.prompt + c.prompt_tokens,
            cached: sum.cached + c.cached_tokens,
            output: sum.output + c.output.len() * copies,
        })
    }

    /// The `usage` object of the OpenAI endpoints.
    pub fn openai(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.output,
            "completion_tokens": self.output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        })
    }
}

/// A request that is answered with an error of vLLM's.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub kind: &'static str,
    pub message: String,
    pub param: Option<&'static str>,
}

impl ApiError {
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: message.into(),
            param: None,
        }
    }

    pub fn not_found(message: impl Into<String>, param: &'static str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: message.into(),
            param: Some(param),
        }
    }

    /// The shape of the OpenAI endpoints.
    pub fn openai(&self) -> Answer {
        let error = json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status.as_u16(),
        }});
        json_answer(self.status, &error)
    }

    /// The shape of the Anthropic endpoints.
    pub fn anthropic(&self) -> Answer {
        let error = json!({"type": "error", "error": {"type": self.kind, "message": self.message}});
        json_answer(self.status, &error)
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Empty => Self::bad_request("The decoder prompt cannot be empty"),
            Refused::TooLong { tokens, limit } => Self::bad_request(format!(
                "This model's maximum context length is {limit} tokens. However, your request has {tokens} \
                 input tokens. Please reduce the length of the input messages."
            )),
        }
    }
}
