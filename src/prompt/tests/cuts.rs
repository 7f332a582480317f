//! Bodies of which only the first part is there.

use super::*;

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
fn messages_that_are_cut_give_what_is_known_of_them() {
    let first = |api, body: &str| {
        let mut read = read(api, body.as_bytes(), Extent::FirstPart, BYTE).unwrap();
        read.prompts.remove(0).chunks
    };
    let whole = |messages| stream(Api::Chat, &json!({"messages": messages}));
    let hello = whole(json!([{"role": "user", "content": "hello"}]));
    for cut in [
        r#"{"messages":[{"role":"user","content":"hello"#,
        r#"{"messages":[{"role":"user","content":"hello"}"#,
        r#"{"messages":[{"role":"user","content":"hello"},{"#,
        r#"{"messages":[{"role":"user","content":"hello"},{"role":"assis"#,
        r#"{"messages":[{"role":"user","content":"hello"},{"content":"of whom"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello"},{"type":"te"#,
    ] {
        assert_eq!(first(Api::Chat, cut), hello, "{cut}");
    }
    // Content may be yet to come, and would precede the id.
    let id = r#"{"messages":[{"role":"tool","tool_call_id":"i""#;
    assert_eq!(first(Api::Chat, id), whole(json!([{"role": "tool"}])));
    let call = r#"{"messages":[{"role":"assistant","content":"c","refusal":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"a"#;
    let call = first(Api::Chat, call);
    let calls = json!([{"id": "i", "function": {"name": "f", "arguments": "{\"a\":1}"}}]);
    let all = whole(json!([{"role": "assistant", "content": "c", "tool_calls": calls}]));
    assert!(all.starts_with(&call));
    assert_eq!(all.len(), call.len() + r#"\":1}"#.len() + 2 + "i".len());

    // What may be a billing header is not begun.
    let of = |text: &str| {
        let body = r#"{"messages":[],"system":[{"type":"text","text":""#;
        first(Api::Messages, &format!("{body}{text}")).len()
    };
    assert_eq!(of("x-anthropic-bill"), of(""));
    assert_eq!(of("x-anthropic-billing-header: 1"), of(""));
    assert_eq!(of("x-anthropic?"), of("") + 2 + "x-anthropic?".len());
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
