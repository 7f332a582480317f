//! stub
use crate::chunk::ChunkHash;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Chat,
    Tokenize,
}
impl Api {
    pub fn of(_: &[u8], p: &[u8]) -> Option<Api> {
        if p.ends_with(b"completions") {
            Some(Api::Chat)
        } else if p.ends_with(b"tokenize") {
            Some(Api::Tokenize)
        } else {
            None
        }
    }
    pub fn fills_cache(self) -> bool {
        self == Api::Chat
    }
}
pub enum Extent {
    Whole,
    FirstPart,
}
#[derive(Debug)]
pub struct Prompts {
    pub model: Option<String>,
    pub prompts: Vec<Prompt>,
}
#[derive(Debug)]
pub struct Prompt {
    pub chunks: Vec<ChunkHash>,
    pub home: u64,
    pub bytes: usize,
}
#[derive(Debug)]
pub struct Unreadable;
impl Unreadable {
    pub fn as_str(&self) -> &'static str {
        "malformed"
    }
}
pub fn read(_: Api, _: &[u8], _: Extent, _: usize) -> Result<Prompts, Unreadable> {
    Err(Unreadable)
}
