//! The lexer against serde_json, and against cuts.

use super::*;
use crate::prompt::frame::Frame;
use crate::prompt::lexer::MAX_DEPTH;
use proptest::prelude::*;
use serde_json::Value as Json;

fn read(text: &[u8]) -> Result<(), Fault> {
    Tape::read(text, Extent::Whole).map(|_| ())
}

/// The value as serde_json would have it.
fn to_json(value: Value<'_>) -> Json {
    match value.kind() {
        Kind::Null => Json::Null,
        Kind::Bool => Json::Bool(value.raw() == b"true"),
        Kind::Number => serde_json::from_slice(value.raw()).unwrap(),
        Kind::String => String::from_utf8(value.text().unwrap().to_bytes())
            .unwrap()
            .into(),
        Kind::Array => value.items().map(to_json).collect(),
        Kind::Object => value
            .fields()
            .map(|(key, field)| {
                let key = String::from_utf8(key.text().unwrap().to_bytes()).unwrap();
                (key, to_json(field))
            })
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}

fn canonical(value: Value<'_>) -> Vec<u8> {
    let mut out = Frame::new(Vec::new());
    let _ = out.json(value);
    out.finish()
}

/// Whether serde_json refuses `text` for a reason that is no reason here.
fn is_relaxed(text: &[u8], error: &serde_json::Error) -> bool {
    let message = error.to_string();
    message.starts_with("number out of range")
        || message.contains("surrogate")
        || message.contains("unexpected end of hex escape")
        || message.contains("invalid unicode code point")
        || std::str::from_utf8(text).is_err()
        || text.windows(3).any(|w| w == b"NaN" || w == b"Inf")
        || text.starts_with(b"\xEF\xBB\xBF")
}

fn agrees(text: &[u8]) {
    let ours = Tape::read(text, Extent::Whole);
    match (ours, serde_json::from_slice::<Json>(text)) {
        (Ok(tape), Ok(theirs)) => assert_eq!(to_json(tape.root().unwrap()), theirs),
        (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => assert!(
            is_relaxed(text, &error),
            "accepted {:?}, serde_json: {error}",
            String::from_utf8_lossy(text)
        ),
        (Err(fault), Ok(_)) => {
            panic!("refused {:?}: {fault:?}", String::from_utf8_lossy(text))
        }
    }
}

/// Text made of pieces that the grammar cares about.
fn jsonish() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\"a\"",
            "\"k\":",
            "{\"k\":1}",
            "[1,2]",
            "0",
            "-",
            "-1",
            "01",
            "1.5",
            "1.",
            ".5",
            "1e5",
            "1E+",
            "1e-7",
            "true",
            "false",
            "null",
            "tru",
            "nul",
            " ",
            "\n",
            "\t",
            "\\",
            "\\n",
            "\\u0041",
            "\\ud83d",
            "\\ude00",
            "\\u12",
            "\\x",
            "\u{1}",
            "é",
            "😀",
            "\"\\\"\"",
            "\"\\u00e9\\/\"",
            "1e999",
        ])
        .prop_map(str::to_owned),
        "[a-z\"\\\\ ]{0,20}",
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        (-1000.0..1000.0f64).prop_map(Json::from),
        ".{0,40}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
            prop::collection::hash_map(".{0,6}", inner, 0..6)
                .prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn accepts_and_refuses_what_serde_json_does(text in jsonish()) {
        agrees(text.as_bytes());
        agrees(format!("[{text}]").as_bytes());
        agrees(format!("\"{text}\"").as_bytes());
    }

    #[test]
    fn one_wrong_byte_is_judged_alike(json in any_json(), at in any::<prop::sample::Index>(), byte in 0u8..128) {
        let mut text = serde_json::to_vec(&json).unwrap();
        let at = at.index(text.len());
        text[at] = byte;
        agrees(&text);
    }

    #[test]
    fn values_agree_and_spelling_does_not_matter(json in any_json()) {
        let compact = serde_json::to_vec(&json).unwrap();
        let pretty = serde_json::to_vec_pretty(&json).unwrap();
        agrees(&compact);
        agrees(&pretty);
        let (a, b) = (
            Tape::read(&compact, Extent::Whole).unwrap(),
            Tape::read(&pretty, Extent::Whole).unwrap(),
        );
        prop_assert_eq!(canonical(a.root().unwrap()), canonical(b.root().unwrap()));
    }

    #[test]
    fn the_canonical_form_of_a_first_part_is_a_prefix(json in any_json()) {
        let pretty = serde_json::to_vec_pretty(&json).unwrap();
        let tape = Tape::read(&pretty, Extent::Whole).unwrap();
        let whole = canonical(tape.root().unwrap());
        for cut in 0..pretty.len() {
            if let Ok(tape) = Tape::read(&pretty[..cut], Extent::FirstPart) {
                let part = canonical(tape.root().unwrap());
                prop_assert!(whole.starts_with(&part), "cut at {}", cut);
            }
        }
    }
}

#[test]
fn the_canonical_form_is_this_one() {
    let text = br#" { "b" : [ 1 , -2.50 , true , null ] , "a\u0062\/" : "\u00e9\n\u001b\"\\\u0022" , "e" : { } , "f" : [ ] } "#;
    let tape = Tape::read(text, Extent::Whole).unwrap();
    let want = "{\"b\":[1,-2.50,true,null],\"ab/\":\"é\\n\u{1b}\\\"\\\\\\\"\",\"e\":{},\"f\":[]}";
    assert_eq!(
        String::from_utf8(canonical(tape.root().unwrap())).unwrap(),
        want
    );
}

#[test]
fn relaxations_are_those_of_python() {
    for text in [
        "NaN",
        "-Infinity",
        "[Infinity]",
        "1e999",
        "\"\\ud800\"",
        "\u{feff}{}",
    ] {
        assert_eq!(read(text.as_bytes()), Ok(()), "{text}");
    }
    assert_eq!(read(b"\"\xff\xc0\""), Ok(()));
    for text in [
        "{} x",
        "[1,]",
        "{\"a\":1,}",
        "{,}",
        "[1 2]",
        "{\"a\" 1}",
        "'a'",
        "+1",
        "nan",
        "\"\t\"",
        "{\"a\":}",
        "[",
        "\"abc",
        "{\"a\"",
        "tru",
        "--1",
        "1.e5",
        "]",
        "}",
        "[}",
        "{]",
        ",",
        ":",
    ] {
        assert_eq!(read(text.as_bytes()), Err(Fault::Malformed), "{text}");
    }
    for text in ["", " \n", "\u{feff}"] {
        assert_eq!(read(text.as_bytes()), Err(Fault::Empty), "{text:?}");
    }
}

#[test]
fn surrogates_are_joined_or_kept_as_three_bytes() {
    let decoded = |text: &[u8]| {
        let tape = Tape::read(text, Extent::Whole).unwrap();
        tape.root().unwrap().text().unwrap().to_bytes()
    };
    assert_eq!(decoded(br#""\ud83d\ude00""#), "😀".as_bytes());
    assert_eq!(
        decoded(br#""\ud83d\ud83d\ude00""#),
        b"\xED\xA0\xBD\xF0\x9F\x98\x80"
    );
    assert_eq!(decoded(br#""\ude00\ud83dx""#), b"\xED\xB8\x80\xED\xA0\xBDx");
    assert_eq!(decoded(br#""\u0000""#), b"\0");
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
    assert_eq!(read(&nested(MAX_DEPTH)), Ok(()));
    assert_eq!(read(&nested(MAX_DEPTH + 1)), Err(Fault::TooDeep));
    assert_eq!(read(&nested(100_000)), Err(Fault::TooDeep));
    let objects = "{\"a\":".repeat(100_000);
    assert_eq!(read(objects.as_bytes()), Err(Fault::TooDeep));
}

#[test]
fn huge_numbers_are_only_text() {
    let digits = "9".repeat(100_000);
    let tape = Tape::read(digits.as_bytes(), Extent::Whole).unwrap();
    assert_eq!(tape.root().unwrap().as_u32(), None);
}

#[test]
fn integers_are_read_exactly() {
    let id = |text: &str| {
        Tape::read(text.as_bytes(), Extent::Whole)
            .unwrap()
            .root()
            .unwrap()
            .as_u32()
    };
    assert_eq!(id("0"), Some(0));
    assert_eq!(id("4294967295"), Some(u32::MAX));
    for text in [
        "4294967296",
        "-1",
        "-0",
        "1.0",
        "1e3",
        "true",
        "null",
        "NaN",
    ] {
        assert_eq!(id(text), None, "{text}");
    }
}

#[test]
fn a_string_is_found_to_end_wherever_its_end_lies_in_a_block() {
    for length in 0..70 {
        for special in ["\\\"", "\\u0041", "é"] {
            let text = format!("[\"{}{special}{}\",1]", "x".repeat(length), "y".repeat(40));
            agrees(text.as_bytes());
        }
    }
}
