//! A serialised `google.protobuf.Struct` -> the same tree as JSON.
//!
//! Envoy hands a plugin configuration that was written as a Struct over in protobuf's wire format.
//! Owns the decoding of that one message. Invariant: nesting is bounded, and what is not a Struct
//! is `None`. Cost: once per configuration update.

use super::tree::Json;

/// Deeper nesting than this is no configuration.
const MAX_DEPTH: usize = 32;
/// Wire types: a varint, eight bytes, a length and so many bytes.
const VARINT: u64 = 0;
const FIXED: u64 = 1;
const BYTES: u64 = 2;

/// One field of a message.
enum Field<'a> {
    Varint(u64),
    Fixed([u8; 8]),
    Bytes(&'a [u8]),
}

/// Decodes a whole Struct.
pub(super) fn decode_struct(bytes: &[u8]) -> Option<Json> {
    object(bytes, MAX_DEPTH)
}

fn object(mut bytes: &[u8], depth: usize) -> Option<Json> {
    let depth = depth.checked_sub(1)?;
    let mut entries: Vec<(String, Json)> = Vec::new();
    while !bytes.is_empty() {
        let (1, Field::Bytes(mut entry)) = field(&mut bytes)? else {
            return None;
        };
        let (mut key, mut json) = (String::new(), Json::Null);
        while !entry.is_empty() {
            match field(&mut entry)? {
                (1, Field::Bytes(text)) => key = core::str::from_utf8(text).ok()?.to_owned(),
                (2, Field::Bytes(bytes)) => json = value(bytes, depth)?,
                _ => return None,
            }
        }
        if entries.iter().any(|(known, _)| *known == key) {
            return None;
        }
        entries.push((key, json));
    }
    Some(Json::Object(entries))
}

fn value(mut bytes: &[u8], depth: usize) -> Option<Json> {
    let depth = depth.checked_sub(1)?;
    let mut json = Json::Null;
    while !bytes.is_empty() {
        json = match field(&mut bytes)? {
            (1, Field::Varint(_)) => Json::Null,
            (2, Field::Fixed(number)) => Json::Number(f64::from_le_bytes(number)),
            (3, Field::Bytes(text)) => Json::Text(core::str::from_utf8(text).ok()?.to_owned()),
            (4, Field::Varint(bool)) => Json::Bool(bool != 0),
            (5, Field::Bytes(fields)) => object(fields, depth)?,
            (6, Field::Bytes(items)) => list(items, depth)?,
            _ => return None,
        };
    }
    Some(json)
}

fn list(mut bytes: &[u8], depth: usize) -> Option<Json> {
    let mut items = Vec::new();
    while !bytes.is_empty() {
        let (1, Field::Bytes(item)) = field(&mut bytes)? else {
            return None;
        };
        items.push(value(item, depth)?);
    }
    Some(Json::List(items))
}

/// The number and content of the next field.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let key = varint(bytes)?;
    let content = match key & 7 {
        VARINT => Field::Varint(varint(bytes)?),
        FIXED => {
            let (fixed, rest) = bytes.split_first_chunk::<8>()?;
            *bytes = rest;
            Field::Fixed(*fixed)
        }
        BYTES => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let (content, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            Field::Bytes(content)
        }
        _ => return None,
    };
    Some((key >> 3, content))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F).wrapping_shl(shift);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(out: &mut Vec<u8>, number: u64, content: &[u8]) {
        let mut varint = |mut n: u64| {
            while n > 0x7F {
                out.push(n as u8 | 0x80);
                n >>= 7;
            }
            out.push(n as u8);
        };
        varint(number << 3 | BYTES);
        varint(content.len() as u64);
        out.extend_from_slice(content);
    }

    fn encode_struct(entries: &[(String, Json)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, json) in entries {
            let mut entry = Vec::new();
            put(&mut entry, 1, key.as_bytes());
            put(&mut entry, 2, &encode(json));
            put(&mut out, 1, &entry);
        }
        out
    }

    fn encode(json: &Json) -> Vec<u8> {
        let mut out = Vec::new();
        match json {
            Json::Null => out.extend_from_slice(&[8, 0]),
            Json::Number(n) => {
                out.push(17);
                out.extend_from_slice(&n.to_le_bytes());
            }
            Json::Text(text) => put(&mut out, 3, text.as_bytes()),
            Json::Bool(b) => out.extend_from_slice(&[32, u8::from(*b)]),
            Json::Object(entries) => put(&mut out, 5, &encode_struct(entries)),
            Json::List(items) => {
                let mut list = Vec::new();
                items
                    .iter()
                    .for_each(|item| put(&mut list, 1, &encode(item)));
                put(&mut out, 6, &list);
            }
        }
        out
    }

    #[test]
    fn reads_what_a_control_plane_writes() {
        let pod = Json::Object(vec![("name".into(), Json::Text("vllm-0".into()))]);
        let entries = vec![
            ("chunk_bytes".into(), Json::Number(128.0)),
            ("pods".into(), Json::List(vec![pod])),
            ("none".into(), Json::Null),
            ("yes".into(), Json::Bool(true)),
        ];
        assert_eq!(
            decode_struct(&encode_struct(&entries)),
            Some(Json::Object(entries))
        );
        assert_eq!(decode_struct(b""), Some(Json::Object(vec![])));
    }

    #[test]
    fn refuses_what_is_no_struct() {
        let mut deep = Json::Null;
        for _ in 0..MAX_DEPTH {
            deep = Json::List(vec![deep]);
        }
        let twice = [("a".to_owned(), Json::Null), ("a".to_owned(), Json::Null)];
        let cases: [Vec<u8>; 5] = [
            b"\n{\"pods\": []}".to_vec(),
            vec![0x0A],
            vec![0xFF; 20],
            encode_struct(&[("a".into(), deep)]),
            encode_struct(&twice),
        ];
        for bytes in cases {
            assert_eq!(decode_struct(&bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode_struct(&bytes);
        }
    }
}
