//! Chat bodies of a given size, each a conversation of its own behind one system prompt.

/// `count` bodies of about `size` bytes: a system prompt that all share (an eighth of the size,
/// at most 4 KiB), then messages of up to 2.5 KB that no two bodies share.
pub fn chats(size: usize, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| chat(size, number)).collect()
}

fn chat(size: usize, number: usize) -> Vec<u8> {
    let system = words(0, (size / 8).min(4096));
    let mut body = format!(r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}}"#);
    let mut message = 0;
    while body.len() + 64 < size {
        let role = if message % 2 == 0 {
            "user"
        } else {
            "assistant"
        };
        let left = size - body.len() - 64;
        let text = words(1 + number * 10_000 + message, left.min(2500));
        body.push_str(&format!(r#",{{"role":"{role}","content":"{text}"}}"#));
        message += 1;
    }
    body.push_str("]}");
    body.into_bytes()
}

/// Text of `length` bytes with a line break now and then, as prompts have.
fn words(seed: usize, length: usize) -> String {
    const WORDS: [&str; 12] = [
        "the", "cache", "holds", "prefix", "blocks", "of", "tokens", "request", "pod", "while",
        "queue", "answers",
    ];
    let mut state = seed as u64 ^ 0x9E37_79B9_7F4A_7C15;
    let mut text = String::with_capacity(length + 16);
    while text.len() < length {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
        text.push_str(if state >> 60 == 0 { "\\n" } else { " " });
    }
    text.truncate(length);
    while text.ends_with('\\') {
        text.pop();
    }
    text
}
