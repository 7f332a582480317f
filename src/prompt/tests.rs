//! Bodies as clients send them: paths, shapes, identity.

use super::*;
use serde_json::{json, Value as Json};

mod cuts;
mod properties;

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
fn parts_and_fields_of_a_message_differ() {
    let call = |id: Json| json!({"id": id, "function": {"name": "f", "arguments": {}}});
    let messages = [
        json!({"role": "a", "content": [{"type": "refusal", "refusal": "r"}]}),
        json!({"role": "a", "refusal": "r"}),
        json!({"role": "a", "content": [{"type": "thinking", "thinking": "r"}]}),
        json!({"role": "a", "reasoning": "r"}),
        json!({"role": "a", "content": [{"type": "tool_use", "name": "f", "input": {}, "id": "i"}]}),
        json!({"role": "a", "tool_calls": [call(json!("i"))]}),
        json!({"role": "a", "tool_calls": [call(json!(null))], "tool_call_id": "i"}),
        json!({"role": "a", "tool_calls": [call(json!(null)), call(json!("i"))]}),
        json!({"role": "a", "tool_calls": [call(json!("i")), call(json!(null))]}),
        json!({"role": "a", "content": [{"type": "tool_result", "content": "t", "tool_use_id": "i"}]}),
        json!({"role": "a", "content": [{"type": "tool_result", "tool_use_id": "i"}, "t"]}),
    ];
    for (i, a) in messages.iter().enumerate() {
        for b in &messages[..i] {
            assert_ne!(chat(json!([a])), chat(json!([b])), "{a} {b}");
        }
    }
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
        ("thinking", json!({"type": "disabled"})),
        ("output_config", json!({"effort": "low"})),
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
    let asks = |more: Json| {
        let mut body = json!({"messages": [{"role": "user", "content": "hello"}]});
        body[more[0].as_str().unwrap()] = more[1].clone();
        stream(Api::Messages, &body)
    };
    let plain = asks(json!(["max_tokens", 5]));
    let budget = json!({"type": "enabled", "budget_tokens": 1024});
    assert_eq!(asks(json!(["thinking", budget])), plain);
    let format = json!({"format": {"type": "json_schema"}});
    assert_eq!(asks(json!(["output_config", format])), plain);
    let summary = json!({"input": "hello", "reasoning": {"summary": "auto"}});
    assert_eq!(
        stream(Api::Responses, &summary),
        stream(Api::Responses, &json!({"input": "hello"}))
    );
}

#[test]
fn log_probabilities_of_the_prompt_need_all_of_it() {
    let cases = [
        (r#""prompt_logprobs":0"#, true, true),
        (r#""prompt_logprobs":null"#, false, false),
        (r#""echo":true"#, true, false),
        (r#""echo":true,"logprobs":1"#, true, true),
        (r#""echo":false,"logprobs":1"#, false, false),
        (r#""logprobs":true"#, false, false),
    ];
    for (fields, of_chat, of_text) in cases {
        let body = format!(r#"{{"messages":[],"prompt":"p",{fields}}}"#);
        let recomputes = |api| {
            read(api, body.as_bytes(), Extent::Whole, BYTE)
                .unwrap()
                .recomputes
        };
        assert_eq!(recomputes(Api::Chat), of_chat, "{fields}");
        assert_eq!(recomputes(Api::Completions), of_text, "{fields}");
        assert!(!recomputes(Api::Tokenize));
    }
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
    assert_eq!(
        refused(Api::Completions, r#"{"prompt_embeds":null}"#),
        Unreadable::NoPromptField
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
