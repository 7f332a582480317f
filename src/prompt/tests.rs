//! Bodies as clients send them: shapes, spelling, prefixes, identity, cuts.

use super::*;
use proptest::prelude::*;
use serde_json::{json, Value as Json};

/// With one byte a chunk, equal hashes mean equal streams.
const BYTE: usize = 1;

fn hashes(api: Api, body: &[u8]) -> Vec<Vec<ChunkHash>> {
    let read = read(api, body, Extent::Whole, BYTE).unwrap();
    read.prompts.into_iter().map(|p| p.chunks).collect()
}

fn stream(api: Api, body: &Json) -> Vec<ChunkHash> {
    let mut prompts = hashes(api, body.to_string().as_bytes());
    assert_eq!(prompts.len(), 1);
    prompts.remove(0)
}

fn chat(messages: Json) -> Vec<ChunkHash> {
    stream(Api::Chat, &json!({"model": "m", "messages": messages}))
}

fn user(content: Json) -> Vec<ChunkHash> {
    chat(json!([{"role": "user", "content": content}]))
}

fn refused(api: Api, body: &str) -> Unreadable {
    read(api, body.as_bytes(), Extent::Whole, 256).unwrap_err()
}

/// Spells JSON in one of many ways: white space, escapes, and the order of fields where it does
/// not matter.
struct Speller<'c> {
    choices: std::iter::Cycle<std::slice::Iter<'c, u8>>,
}

impl Speller<'_> {
    fn choice(&mut self, of: usize) -> usize {
        usize::from(*self.choices.next().unwrap()) % of
    }

    fn space(&mut self) -> &'static str {
        ["", "", " ", "\n\t", "  \r\n"][self.choice(5)]
    }

    fn string(&mut self, text: &str) -> String {
        let mut out = String::from("\"");
        for c in text.chars() {
            let short = match c {
                '"' => Some("\\\""),
                '\\' => Some("\\\\"),
                '\n' => Some("\\n"),
                '/' => Some("\\/"),
                _ => None,
            };
            match (self.choice(4), short) {
                (0 | 1, None) if c >= ' ' => out.push(c),
                (0 | 1, Some("\\/")) => out.push('/'),
                (0..=2, Some(short)) => out += short,
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out += &match self.choice(2) {
                            0 => format!("\\u{unit:04x}"),
                            _ => format!("\\u{unit:04X}"),
                        };
                    }
                }
            }
        }
        out + "\""
    }

    fn spell(&mut self, value: &Json, keep_order: bool) -> String {
        let mut out = self.space().to_owned();
        match value {
            Json::String(text) => out += &self.string(text),
            Json::Array(items) => {
                let items: Vec<_> = items.iter().map(|v| self.spell(v, keep_order)).collect();
                out += &format!("[{}{}]", self.space(), items.join(","));
            }
            Json::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if !keep_order && fields.len() > 1 {
                    let by = self.choice(fields.len());
                    fields.rotate_left(by);
                }
                let fields: Vec<_> = fields
                    .into_iter()
                    .map(|(key, field)| {
                        let ordered = keep_order || key == "tools" || key == "input";
                        let field = self.spell(field, ordered);
                        format!(
                            "{}{}{}:{field}",
                            self.space(),
                            self.string(key),
                            self.space()
                        )
                    })
                    .collect();
                out += &format!("{{{}{}}}", fields.join(","), self.space());
            }
            other => out += &other.to_string(),
        }
        out + self.space()
    }
}

fn respell(value: &Json, choices: &[u8]) -> String {
    let mut speller = Speller {
        choices: choices.iter().cycle(),
    };
    speller.spell(value, false)
}

/// Text that likes to be mistaken: marks, tags, quotes, few letters.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab]{0,3}",
        "[a-c\"\\\\/\n\u{1}\u{8}é😀ÿ]{0,30}",
        prop::sample::select(vec!["user", "assistant", "\u{8}a", "ab", "c", "a", "bc"])
            .prop_map(str::to_owned),
    ]
}

fn part() -> impl Strategy<Value = Json> {
    prop_oneof![
        4 => text().prop_map(|t| json!({"type": "text", "text": t})),
        1 => text().prop_map(|t| json!({"type": "refusal", "refusal": t})),
        1 => text().prop_map(|t| json!({"type": "thinking", "thinking": t})),
        1 => text().prop_map(|t| json!({"type": "image_url", "image_url": {"url": t}})),
        1 => text().prop_map(|t| json!({"type": "input_audio", "input_audio": {"data": t, "format": "wav"}})),
        1 => (text(), text()).prop_map(|(n, a)| json!({"type": "tool_use", "id": "i", "name": n, "input": {"z": a, "b": 1}})),
        1 => text().prop_map(|t| json!({"type": "tool_result", "tool_use_id": "i", "content": t})),
    ]
}

fn message() -> impl Strategy<Value = Json> {
    let call = (text(), text(), text())
        .prop_map(|(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
    (
        prop::sample::select(vec!["system", "user", "assistant", "tool"]),
        prop_oneof![
            text().prop_map(Json::from),
            prop::collection::vec(part(), 1..4).prop_map(Json::from),
        ],
        prop::option::weighted(0.2, text()),
        prop::collection::vec(call, 0..3),
        prop::option::weighted(0.2, text()),
        prop::option::weighted(0.2, text()),
    )
        .prop_map(|(role, content, name, calls, call_id, reasoning)| {
            let mut message = json!({"role": role, "content": content});
            if let Some(name) = name {
                message["name"] = name.into();
            }
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            if let Some(id) = call_id {
                message["tool_call_id"] = id.into();
            }
            if let Some(reasoning) = reasoning {
                message["reasoning_content"] = reasoning.into();
            }
            message
        })
}

fn conversation() -> impl Strategy<Value = Vec<Json>> {
    prop::collection::vec(message(), 1..5)
}

/// A message list with what is the same by definition made the same.
fn normal(messages: &[Json]) -> Vec<Json> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Some(text) = message["content"].as_str() {
            message["content"] = json!([{"type": "text", "text": text}]);
        }
    }
    messages
}

fn body(messages: &[Json]) -> Json {
    json!({"model": "m", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"q": 1, "a": "é\n"}}}],
        "temperature": 0.5, "messages": messages})
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn different_messages_give_different_streams(a in conversation(), b in conversation()) {
        let same = normal(&a) == normal(&b);
        prop_assert_eq!(chat(a.into()) == chat(b.into()), same);
    }

    #[test]
    fn one_small_change_gives_a_different_stream(
        a in conversation(), other in message(), at in any::<prop::sample::Index>(), how in 0..4,
    ) {
        let mut b = a.clone();
        let at = at.index(a.len());
        match how {
            0 => b[at] = other,
            1 => { b.remove(at); }
            2 => b.insert(at, other),
            _ => b[at]["content"] = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        }
        let same = normal(&a) == normal(&b);
        prop_assert_eq!(chat(a.into()) == chat(b.into()), same);
    }

    #[test]
    fn spelling_does_not_matter(messages in conversation(), choices in prop::collection::vec(any::<u8>(), 1..64)) {
        let body = body(&messages);
        let spelled = respell(&body, &choices);
        prop_assert_eq!(&serde_json::from_str::<Json>(&spelled).unwrap(), &body);
        for api in [Api::Chat, Api::Messages] {
            prop_assert_eq!(hashes(api, spelled.as_bytes()), vec![stream(api, &body)]);
        }
    }

    #[test]
    fn a_later_turn_keeps_all_of_an_earlier_one(messages in prop::collection::vec(message(), 2..6)) {
        let whole = chat(messages.clone().into());
        for turns in 0..messages.len() {
            prop_assert!(whole.starts_with(&chat(messages[..turns].to_vec().into())));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), api in 0usize..7) {
        let api = APIS[api];
        let body = [b"{\"model\":\"m\",\"messages\":[{\"content\":\"".as_slice(), &bytes].concat();
        for extent in [Extent::Whole, Extent::FirstPart] {
            let _ = read(api, &bytes, extent, 16);
            let _ = read(api, &body, extent, 16);
        }
    }

    #[test]
    fn texts_and_ids_keep_prefixes(t in text(), more in text(), ids in prop::collection::vec(any::<u32>(), 0..40)) {
        let longer = stream(Api::Completions, &json!({"prompt": format!("{t}{more}")}));
        let shorter = stream(Api::Completions, &json!({"prompt": t}));
        prop_assert!(longer.starts_with(&shorter));
        let longer = user(json!(format!("{t}{more}")));
        prop_assert!(longer.starts_with(&user(json!(t))));
        let mut longer = ids.clone();
        longer.push(5);
        let longer = stream(Api::Completions, &json!({"prompt": longer}));
        let shorter = stream(Api::Completions, &json!({"prompt": ids}));
        prop_assert!(longer.starts_with(&shorter));
        prop_assert_eq!(longer.len(), 4 * ids.len() + 4);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_first_part_gives_a_prefix(messages in prop::collection::vec(message(), 1..3), choices in prop::collection::vec(any::<u8>(), 1..64)) {
        // What precedes the messages in the stream also precedes them in the body.
        let head = body(&[]);
        let head = respell(&head, &choices);
        let head = head.trim_end().strip_suffix('}').unwrap().trim_end();
        let mut text = head.to_owned();
        // A name is taken to come first: see `messages`.
        let list: Vec<String> = messages.iter().map(|message| {
            let mut message = message.clone();
            let name = message.as_object_mut().unwrap().remove("name");
            let spelled = respell(&message, &choices);
            match name {
                Some(name) => spelled.replacen('{', &format!("{{\"name\":{name},"), 1),
                None => spelled,
            }
        }).collect();
        text += &format!(",\"messages\":[{}],\"stream\":true}}", list.join(","));
        let from = text.rfind(",\"messages\":[").unwrap();
        let whole = hashes(Api::Chat, text.as_bytes()).remove(0);
        for cut in 0..text.len() {
            let part = read(Api::Chat, &text.as_bytes()[..cut], Extent::FirstPart, BYTE);
            if cut < from { continue; }
            let part = part.unwrap();
            prop_assert_eq!(part.model.as_deref(), Some("m"));
            let chunks = part.prompts.into_iter().next().map_or(Vec::new(), |p| p.chunks);
            if cut > from + 13 {
                prop_assert!(whole.starts_with(&chunks), "cut at {}", cut);
            }
        }
        let part = read(Api::Chat, text.as_bytes(), Extent::FirstPart, BYTE).unwrap();
        prop_assert_eq!(&part.prompts[0].chunks, &whole);
    }
}

const APIS: [Api; 7] = [
    Api::Chat,
    Api::Completions,
    Api::Responses,
    Api::Messages,
    Api::Embeddings,
    Api::Tokenize,
    Api::CountTokens,
];

#[test]
fn paths_are_matched_by_their_ending() {
    let cases: [(&str, Option<Api>); 18] = [
        ("/v1/chat/completions", Some(Api::Chat)),
        ("/team-a//v1/chat/completions/?x=1", Some(Api::Chat)),
        ("/v1//chat///completions//", Some(Api::Chat)),
        ("/v1/completions", Some(Api::Completions)),
        ("/v1/completions?a=/v1/messages", Some(Api::Completions)),
        ("/v1/responses", Some(Api::Responses)),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/messages", Some(Api::Messages)),
        ("/v1/messages/count_tokens", Some(Api::CountTokens)),
        ("/v1/embeddings", Some(Api::Embeddings)),
        ("/tokenize", Some(Api::Tokenize)),
        ("/x/tokenize/", Some(Api::Tokenize)),
        ("/detokenize", None),
        ("/xv1/completions", None),
        ("/chat/completions", None),
        ("/v1/models", None),
        ("/", None),
        ("", None),
    ];
    for (path, api) in cases {
        assert_eq!(Api::of(b"POST", path.as_bytes()), api, "{path}");
        assert_eq!(Api::of(b"GET", path.as_bytes()), None);
    }
    let filling: Vec<Api> = APIS.into_iter().filter(|api| api.fills_cache()).collect();
    assert_eq!(filling, APIS[..5]);
}

#[test]
fn a_string_is_one_text_part_and_parts_have_borders() {
    assert_eq!(
        user(json!("ab")),
        user(json!([{"type": "text", "text": "ab"}]))
    );
    assert_eq!(user(json!("ab")), user(json!([{"text": "ab"}])));
    assert_eq!(user(json!("ab")), user(json!(["ab"])));
    assert_ne!(user(json!(["ab", "c"])), user(json!(["a", "bc"])));
    assert_ne!(user(json!(["ab", "c"])), user(json!(["abc"])));
    assert_eq!(user(json!(null)), chat(json!([{"role": "user"}])));
}

#[test]
fn no_content_passes_for_structure() {
    // The bytes of a second part and of a next message, as content.
    let forged = b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\xFF\\bb\"}]}";
    let forged = hashes(Api::Chat, forged).remove(0);
    let real = user(json!(["a", "b"]));
    assert!(!forged.starts_with(&real[..real.len() - 1]));
    let stuffed =
        b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\xFF\\u0000b\"}]}";
    assert_ne!(hashes(Api::Chat, stuffed).remove(0), forged);
}

#[test]
fn marks_for_caches_and_unknown_fields_are_ignored() {
    let mark = json!({"type": "ephemeral", "ttl": "1h"});
    let plain = json!({"model": "m", "system": [{"type": "text", "text": "s"}],
        "tools": [{"name": "f", "input_schema": {"type": "object", "a": 1}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "t"}]}]});
    let mut marked = plain.clone();
    marked["system"][0]["cache_control"] = mark.clone();
    marked["tools"][0]["cache_control"] = mark.clone();
    marked["messages"][0]["content"][0]["cache_control"] = mark;
    marked["messages"][0]["id"] = json!("x");
    marked["max_tokens"] = json!(5);
    assert_eq!(
        stream(Api::Messages, &plain),
        stream(Api::Messages, &marked)
    );
    // A parameter of that name is none.
    let mut parameter = plain.clone();
    parameter["tools"][0]["input_schema"]["cache_control"] = json!({"type": "string"});
    assert_ne!(
        stream(Api::Messages, &plain),
        stream(Api::Messages, &parameter)
    );
}

#[test]
fn every_field_of_a_message_that_reaches_the_model_counts() {
    let plain = json!({"role": "assistant", "content": "c"});
    let mut streams = vec![chat(json!([plain]))];
    for (field, value) in [
        ("role", json!("user")),
        ("name", json!("n")),
        ("content", json!("d")),
        ("content", json!({"a": 1})),
        ("refusal", json!("r")),
        (
            "tool_calls",
            json!([{"id": "i", "function": {"name": "f", "arguments": "{}"}}]),
        ),
        (
            "tool_calls",
            json!([{"id": "i", "function": {"name": "f", "arguments": {}}}]),
        ),
        (
            "tool_calls",
            json!([{"id": "j", "function": {"name": "f", "arguments": "{}"}}]),
        ),
        (
            "tool_calls",
            json!([{"id": "i", "function": {"name": "g", "arguments": "{}"}}]),
        ),
        ("tool_calls", json!([{"id": "i", "custom": {"name": "g"}}])),
        ("function_call", json!({"name": "f", "arguments": "{}"})),
        ("tool_call_id", json!("i")),
        ("reasoning", json!("r")),
    ] {
        let mut message = plain.clone();
        message[field] = value;
        streams.push(chat(json!([message])));
    }
    let reasoning = chat(json!([{"role": "assistant", "content": "c", "reasoning_content": "r"}]));
    assert_eq!(streams.last(), Some(&reasoning));
    for (i, a) in streams.iter().enumerate() {
        for b in &streams[..i] {
            assert_ne!(a, b);
        }
    }
}

#[test]
fn media_count_by_their_type_and_data() {
    let parts = [
        json!({"type": "image_url", "image_url": {"url": "u"}}),
        json!({"type": "image_url", "image_url": {"url": "v"}}),
        json!({"type": "video_url", "video_url": {"url": "u"}}),
        json!({"type": "input_image", "image_url": "u"}),
        json!({"type": "input_audio", "input_audio": {"data": "u", "format": "wav"}}),
        json!({"type": "input_audio", "input_audio": {"data": "wav", "format": "u"}}),
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "u"}}),
        json!({"type": "document", "source": {"type": "url", "url": "u"}}),
        json!({"type": "file", "file": {"file_id": "u"}}),
    ];
    for (i, a) in parts.iter().enumerate() {
        for b in &parts[..i] {
            assert_ne!(user(json!([a])), user(json!([b])));
        }
    }
    let body = |part: &str| {
        let text = format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#);
        hashes(Api::Chat, text.as_bytes())
    };
    assert_eq!(
        body(r#"{"type":"image_url","image_url":{"url":"u","detail":"low"}}"#),
        body(r#"{"image_url":{"url":"\u0075"},"type":"image_url","cache_control":{}}"#),
    );
}

#[test]
fn each_field_of_the_identity_changes_every_chunk() {
    let messages = json!([{"role": "user", "content": "hello"}]);
    let plain = json!({"messages": messages, "prompt": "hello", "input": "hello"});
    let fields = [
        ("model", json!("m")),
        ("model", json!("n")),
        ("cache_salt", json!("m")),
        ("tools", json!([{"a": 1, "b": 2}])),
        (
            "tools",
            serde_json::from_str(r#"[{"b": 2, "c": 1}]"#).unwrap(),
        ),
        ("tool_choice", json!("none")),
        ("tool_choice", json!({"type": "function"})),
        ("chat_template", json!("m")),
        ("chat_template_kwargs", json!({"enable_thinking": false})),
        ("reasoning_effort", json!("low")),
        ("reasoning", json!({"effort": "low"})),
        ("documents", json!([{"text": "d"}])),
        ("mm_processor_kwargs", json!({"a": 1})),
        ("add_special_tokens", json!(false)),
        ("truncate_prompt_tokens", json!(5)),
        ("prompt_embeds", json!("AAAA")),
        ("previous_response_id", json!("r")),
    ];
    for api in APIS {
        let mut seen = vec![stream(api, &plain)];
        for (field, value) in &fields {
            let mut body = plain.clone();
            body[*field] = json!(null);
            assert_eq!(stream(api, &body), seen[0], "null {field}");
            body[*field] = value.clone();
            seen.push(stream(api, &body));
        }
        for (i, a) in seen.iter().enumerate() {
            for b in &seen[..i] {
                assert!(a.iter().zip(b).all(|(a, b)| a != b), "{api:?} {i}");
            }
        }
    }
    let kwargs = |text: &str| hashes(Api::Chat, text.as_bytes());
    assert_ne!(
        kwargs(r#"{"tools":[{"a":1,"b":2}],"messages":[{"role":"user"}]}"#),
        kwargs(r#"{"tools":[{"b":2,"a":1}],"messages":[{"role":"user"}]}"#),
    );
    let summary = json!({"input": "hello", "reasoning": {"summary": "auto"}});
    assert_eq!(
        stream(Api::Responses, &summary),
        stream(Api::Responses, &json!({"input": "hello"}))
    );
}

#[test]
fn tokenizing_follows_the_chain_of_what_it_tokenizes() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    assert_eq!(stream(Api::Tokenize, &body), stream(Api::Chat, &body));
    assert_eq!(
        stream(Api::CountTokens, &body),
        stream(Api::Messages, &body)
    );
    let body = json!({"model": "m", "prompt": "hello"});
    assert_eq!(
        stream(Api::Tokenize, &body),
        stream(Api::Completions, &body)
    );
    let raw = raw(b"hello", Some("m"), BYTE);
    assert_eq!(raw.prompts[0].chunks, stream(Api::Completions, &body));
    assert_eq!(raw.model.as_deref(), Some("m"));
    let nameless = super::raw(b"hello", None, BYTE);
    assert_eq!(
        nameless.prompts[0].chunks,
        stream(Api::Completions, &json!({"prompt": "hello"}))
    );
}

#[test]
fn each_member_of_a_list_is_a_prompt_of_its_own() {
    let body = |prompt: Json| json!({"model": "m", "prompt": prompt}).to_string();
    let of = |prompt: Json| hashes(Api::Completions, body(prompt).as_bytes());
    let texts = of(json!(["one", "two\n"]));
    assert_eq!(texts, [of(json!("one")), of(json!("two\n"))].concat());
    let ids = of(json!([[1, 2], [3], []]));
    assert_eq!(
        ids,
        [of(json!([1, 2])), of(json!([3])), of(json!([]))].concat()
    );
    assert_eq!(ids[0].len(), 8);
    // Ids are not text, even where the bytes agree.
    assert_ne!(of(json!([0x6f6e_6561])), of(json!("aeno")));
    for bad in [
        json!([1, "a"]),
        json!(["a", 1]),
        json!([[1], "a"]),
        json!([[1], 2]),
        json!([-1]),
        json!([1.5]),
        json!([4_294_967_296u64]),
        json!([[["a"]]]),
        json!({"a": 1}),
        json!(5),
        json!([null]),
    ] {
        assert_eq!(refused(Api::Completions, &body(bad)), Unreadable::Malformed);
    }
    let embeddings = |input: Json| {
        hashes(
            Api::Embeddings,
            json!({"input": input}).to_string().as_bytes(),
        )
    };
    assert_eq!(embeddings(json!(["a", "b"])).len(), 2);
    assert_eq!(embeddings(json!([[1], [2]])).len(), 2);
    assert_ne!(
        embeddings(json!("a")),
        hashes(Api::Completions, br#"{"prompt":"a"}"#)
    );
}

#[test]
fn responses_take_strings_and_items() {
    let of = |input: Json| stream(Api::Responses, &json!({"input": input}));
    assert_eq!(
        of(json!("hi")),
        of(json!([{"role": "user", "content": "hi"}]))
    );
    assert_eq!(
        of(json!("hi")),
        of(
            json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}])
        )
    );
    let items = [
        json!({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c", "id": "x"}),
        json!({"type": "function_call_output", "call_id": "c", "output": "o"}),
        json!({"type": "function_call_output", "call_id": "c", "output": "p"}),
        json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}], "summary": []}),
        json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]}),
        json!({"type": "item_reference", "id": "i"}),
        json!({"id": "i"}),
    ];
    for (i, a) in items.iter().enumerate() {
        for b in &items[..i] {
            assert_ne!(of(json!([a])), of(json!([b])));
        }
    }
    let mut call = items[0].clone();
    call["id"] = json!("other");
    assert_eq!(of(json!([items[0]])), of(json!([call])));

    // Instructions come first, whatever the order of the body.
    let text = br#"{"input":"hi","instructions":"be brief"}"#;
    let turned = br#"{"instructions":"be brief","input":"hi"}"#;
    assert_eq!(hashes(Api::Responses, text), hashes(Api::Responses, turned));
    let longer = br#"{"input":[{"role":"user","content":"hi"},{"role":"assistant","content":"x"}],"instructions":"be brief"}"#;
    let (short, long) = (hashes(Api::Responses, text), hashes(Api::Responses, longer));
    assert!(long[0].starts_with(&short[0]));
    assert_eq!(
        refused(Api::Responses, r#"{"input":7}"#),
        Unreadable::Malformed
    );
}

#[test]
fn system_blocks_are_one_part_each_and_billing_headers_are_left_out() {
    let of = |system: Json| {
        stream(
            Api::Messages,
            &json!({"system": system, "messages": [{"role": "user", "content": "q"}]}),
        )
    };
    let block = |text: &str| json!({"type": "text", "text": text});
    let header = "x-anthropic-billing-header: cc_version=1; cch=abc;";
    assert_eq!(of(json!("s")), of(json!([block("s")])));
    assert_eq!(
        of(json!([block(header), block("s")])),
        of(json!([block("s")]))
    );
    assert_ne!(of(json!(header)), of(json!([block(header)])));
    assert_ne!(
        of(json!([block("s"), block("t")])),
        of(json!([block("st")]))
    );
    let escaped = r#"{"system":[{"type":"text","text":"\u0078-anthropic-billing-header: 1"},{"type":"text","text":"s"}],"messages":[{"role":"user","content":"q"}]}"#;
    assert_eq!(
        hashes(Api::Messages, escaped.as_bytes()),
        [of(json!([block("s")]))]
    );
    // System before messages, whatever the order of the body.
    let turned = r#"{"messages":[{"role":"user","content":"q"}],"system":"s"}"#;
    assert_eq!(hashes(Api::Messages, turned.as_bytes()), [of(json!("s"))]);
}

#[test]
fn the_last_of_two_fields_of_one_name_counts() {
    let twice = br#"{"model":"x","messages":[{"role":"user","content":"a","content":"b"}],"mod\u0065l":"m"}"#;
    assert_eq!(hashes(Api::Chat, twice), [user(json!("b"))]);
}

#[test]
fn what_has_no_prompt_says_why() {
    for api in APIS {
        assert_eq!(refused(api, ""), Unreadable::Empty);
        assert_eq!(refused(api, " \n"), Unreadable::Empty);
        assert_eq!(refused(api, "{}"), Unreadable::NoPromptField);
        assert_eq!(
            refused(api, r#"{"messages":null,"prompt":null,"input":null}"#),
            Unreadable::NoPromptField
        );
        for text in [
            "[]",
            "7",
            "{} {}",
            "{\"a\":\"\u{1}\"}",
            "not json",
            "{\"a\":1",
        ] {
            assert_eq!(refused(api, text), Unreadable::Malformed, "{text}");
        }
        assert_eq!(refused(api, &"[".repeat(100_000)), Unreadable::TooDeep);
    }
    assert_eq!(
        refused(Api::Chat, r#"{"messages":"hi"}"#),
        Unreadable::Malformed
    );
    assert_eq!(Unreadable::TooDeep.as_str(), "too_deep");
}

#[test]
fn short_and_empty_prompts_have_no_chunks() {
    for (api, body) in [
        (Api::Chat, r#"{"messages":[]}"#),
        (Api::Chat, r#"{"messages":[{"role":"user","content":[]}]}"#),
        (Api::Chat, r#"{"messages":[{}, null, 5, "x"]}"#),
        (Api::Completions, r#"{"prompt":""}"#),
        (Api::Completions, r#"{"prompt":[]}"#),
        (Api::Completions, r#"{"prompt":[[]]}"#),
        (Api::Completions, r#"{"prompt_embeds":"AAAA"}"#),
        (Api::Responses, r#"{"input":[]}"#),
        (Api::Messages, r#"{"messages":[],"system":[]}"#),
        (Api::Embeddings, r#"{"input":[""]}"#),
    ] {
        let read = read(api, body.as_bytes(), Extent::Whole, 256).unwrap();
        assert_eq!(read.prompts.len(), 1, "{body}");
        assert!(read.prompts[0].chunks.is_empty());
    }
}

#[test]
fn the_home_is_chosen_by_identity_and_the_first_8_kib() {
    let home = |model: &str, prompt: String| {
        let body = json!({"model": model, "prompt": prompt}).to_string();
        read(Api::Completions, body.as_bytes(), Extent::Whole, 256)
            .unwrap()
            .prompts[0]
            .home
    };
    let head = "x".repeat(8192);
    assert_eq!(home("m", head.clone() + "a"), home("m", head.clone() + "b"));
    assert_ne!(home("m", head.clone()), home("n", head.clone()));
    assert_ne!(home("m", "short".into()), home("m", "other".into()));
}

#[test]
fn a_string_that_is_cut_counts_as_far_as_it_goes() {
    let first = |api, body: &[u8]| read(api, body, Extent::FirstPart, BYTE).unwrap();
    let part = first(Api::Completions, br#"{"model":"m","prompt":"hello wor"#);
    let whole = stream(
        Api::Completions,
        &json!({"model": "m", "prompt": "hello wor"}),
    );
    assert_eq!(part.prompts[0].chunks, whole);
    // Half an escape, and half a pair, say nothing yet.
    for cut in [
        r"ab\",
        r"ab\u00",
        r"ab\ud83d",
        r"ab\ud83d\",
        r"ab\ud83d\ude0",
    ] {
        let part = first(Api::Completions, format!(r#"{{"prompt":"{cut}"#).as_bytes());
        assert_eq!(part.prompts[0].bytes, 2, "{cut}");
    }
    let ids = first(Api::Completions, br#"{"prompt":[[1,2],[3,45"#);
    assert_eq!(
        ids.prompts.iter().map(|p| p.bytes).collect::<Vec<_>>(),
        [8, 4]
    );
    // A media part that is cut ends the stream.
    let image = br#"{"messages":[{"role":"user","content":["a",{"type":"image_url","image_url":{"url":"data:"#;
    let text = stream(
        Api::Chat,
        &json!({"messages": [{"role": "user", "content": "a"}]}),
    );
    assert_eq!(first(Api::Chat, image).prompts[0].chunks, text);
}

#[test]
fn the_model_may_be_yet_to_come() {
    let first = |body: &str| read(Api::Chat, body.as_bytes(), Extent::FirstPart, 16).unwrap();
    let body = r#"{"messages":[{"role":"user","content":"a text of 26 letters, cut.."#;
    assert_eq!(first(body).model, None);
    assert_eq!(first(body).prompts[0].chunks.len(), 2);
    assert_eq!(first(r#"{"model":"m"#).model, None);
    let tools = first(r#"{"model":"m","tools":[{"a"#);
    assert_eq!(
        (tools.model.as_deref(), tools.prompts.len()),
        (Some("m"), 0)
    );
}

#[test]
fn hostile_bodies_at_every_cut() {
    let bodies: [&[u8]; 6] = [
        br#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"\ud83d\u0000\ud800x"},{"type":"image_url","image_url":{"url":"u"}}]},{"role":"assistant","tool_calls":[{"id":"i","function":{"name":"f","arguments":"{\"a\":1}"}}]}],"tools":[{"cache_control":{"type":"ephemeral"}}]}"#,
        br#"{"prompt":["a","\u00e9"],"model":-1.5e+7,"x":[NaN,-Infinity,{}]}"#,
        br#"{"input":[{"type":"reasoning","summary":[{"text":"s"}]},{"type":"function_call","name":"f","arguments":{"a":[1,{}]}},[[]],null],"instructions":["a"]}"#,
        br#"{"system":[{"type":"text","text":"x-anthropic-billing-header"},7],"messages":[{"content":[{"type":"tool_result","content":[{"text":"r"}],"tool_use_id":5},{"type":"tool_use","input":{"a":1}}],"role":["x"]}]}"#,
        b"{\"messages\":[{\"role\":\"\xFF\",\"content\":\"\xFF\xC0\x80\\ud83d\"}],\"model\":{\"a\":[]}}",
        br#"{"input":[[1,2],[4294967295]],"model":"\ud800"}"#,
    ];
    for body in bodies {
        for api in APIS {
            for cut in 0..=body.len() {
                let head = &body[..cut];
                if let Ok(part) = read(api, head, Extent::FirstPart, 16) {
                    let most = part.prompts.iter().map(|p| p.chunks.len()).max();
                    assert!(most.unwrap_or(0) <= body.len());
                }
                assert!(cut == body.len() || read(api, head, Extent::Whole, 16).is_err());
                for junk in [b'"', b'\\', b'}', b']', b',', 0, 0xFF] {
                    let _ = read(api, &[head, &[junk]].concat(), Extent::FirstPart, 16);
                }
            }
        }
    }
}
