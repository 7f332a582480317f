//! Random conversations: injective, independent of spelling, prefix keeping, also when cut.

use super::*;
use proptest::prelude::*;

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
