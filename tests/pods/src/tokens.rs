//! Pseudo-tokens: four bytes of the rendered prompt are one token, and a prompt given as token
//! ids is those ids, little-endian. So text, its token ids and its cache blocks always agree.

use twox_hash::XxHash64;

/// Bytes of a pseudo-token.
pub const TOKEN_BYTES: usize = 4;

/// A prompt as the engine sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// The rendered text or the little-endian token ids.
    pub bytes: Vec<u8>,
    /// Hash of all that changes every block without being text: model, tools, salt, ….
    pub seed: u64,
}

impl Prompt {
    /// Number of tokens; the last one may be partial.
    pub fn tokens(&self) -> usize {
        self.bytes.len().div_ceil(TOKEN_BYTES)
    }

    /// Hash of each full block, every one over all that came before it.
    pub fn chain(&self, block_size: usize) -> Vec<u64> {
        let mut parent = self.seed;
        self.bytes
            .chunks_exact(block_size * TOKEN_BYTES)
            .map(|block| {
                parent = XxHash64::oneshot(parent, block);
                parent
            })
            .collect()
    }
}

/// Token ids of a byte string; the last one is padded with zero bytes.
pub fn encode(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks(TOKEN_BYTES)
        .map(|chunk| {
            let mut word = [0; TOKEN_BYTES];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(word)
        })
        .collect()
}

/// The text of token ids: the inverse of [`encode`] for text without zero bytes.
pub fn decode(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|id| id.to_le_bytes())
        .filter(|&b| b != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `n` generated tokens of four letters each, a function of the prompt alone.
pub fn generate(prompt: &Prompt, n: usize) -> Vec<String> {
    let mut state = XxHash64::oneshot(prompt.seed, &prompt.bytes);
    (0..n)
        .map(|_| {
            state = XxHash64::oneshot(state, b"next");
            let letter = |shift: u32| char::from(b'a' + ((state >> shift) % 26) as u8);
            [letter(0), letter(16), letter(32), ' '].iter().collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_ids_are_one_prompt() {
        let text = "the quick brown fox: ünïcode";
        let ids = encode(text.as_bytes());
        assert_eq!(ids.len(), text.len().div_ceil(4));
        assert_eq!(decode(&ids), text);
    }

    #[test]
    fn chain_keeps_prefixes_and_seed_changes_every_block() {
        let a = Prompt {
            bytes: vec![7; 64 * 3 + 5],
            seed: 1,
        };
        let mut b = a.clone();
        b.bytes.extend([9; 64]);
        assert_eq!(a.chain(16).len(), 3);
        assert_eq!(b.chain(16)[..3], a.chain(16)[..]);
        let c = Prompt {
            seed: 2,
            ..a.clone()
        };
        assert!(a.chain(16).iter().zip(c.chain(16)).all(|(x, y)| *x != y));
        let mut d = a.clone();
        d.bytes[0] = 8;
        assert!(a.chain(16).iter().zip(d.chain(16)).all(|(x, y)| *x != y));
    }

    #[test]
    fn generated_tokens_are_one_token_each() {
        let p = Prompt {
            bytes: b"x".to_vec(),
            seed: 0,
        };
        let out = generate(&p, 5);
        assert!(out.iter().all(|t| t.len() == TOKEN_BYTES));
        assert_eq!(out[..3], generate(&p, 3)[..]);
    }
}
