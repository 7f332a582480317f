//! JSON as a tree that knows where each value stands.
//!
//! Owns the wording of refusals: the key's path, the value, what was expected. Invariant: every
//! key of an object is asked for by a rule, or the object is refused.

use core::fmt;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// Longest piece of a value that a refusal shows.
const SHOWN: usize = 60;

/// Why a configuration was refused, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line, whatever was quoted.
        self.0
            .chars()
            .try_for_each(|c| fmt::Write::write_char(f, if c.is_control() { ' ' } else { c }))
    }
}

impl ConfigError {
    /// A refusal of the whole text.
    pub(super) fn whole(why: impl fmt::Display) -> Self {
        Self(format!("the configuration is not a JSON object: {why}"))
    }
}

/// A JSON value; duplicate keys are refused while it is read.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// Any number.
    Number(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object, in its order.
    Object(Vec<(String, Json)>),
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => Decimal(*value).fmt(f),
            Self::Text(text) => {
                let shown: String = text.chars().take(SHOWN).collect();
                let more = if shown.len() < text.len() { "…" } else { "" };
                write!(f, "\"{shown}{more}\"")
            }
            Self::List(items) => write!(f, "a list of {}", items.len()),
            Self::Object(_) => f.write_str("an object"),
        }
    }
}

/// A number to at most three decimals. The formatting of floats in the standard library would be
/// a twentieth of the module.
struct Decimal(f64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0.0 { "-" } else { "" };
        let thousandths = (self.0.abs() * 1000.0).round() as u64;
        let (whole, rest) = (thousandths / 1000, thousandths % 1000);
        match rest {
            0 => write!(f, "{sign}{whole}"),
            _ => write!(
                f,
                "{}",
                format!("{sign}{whole}.{rest:03}").trim_end_matches('0')
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value as f64))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut entries: Vec<(String, Json)> = Vec::new();
        // Keys as JSON too: `String` would bring the formatting of every type it is not.
        while let Some((key, value)) = map.next_entry::<Json, Json>()? {
            let Json::Text(key) = key else { continue };
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(A::Error::custom(format!(
                    "the key \"{key}\" stands there twice"
                )));
            }
            entries.push((key, value));
        }
        Ok(Json::Object(entries))
    }
}

/// A value and its path.
#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    path: String,
    json: &'a Json,
}

impl<'a> Node<'a> {
    pub fn root(json: &'a Json) -> Self {
        Self {
            path: String::new(),
            json,
        }
    }

    /// The refusal of this value.
    #[inline(never)]
    pub fn refuse(&self, expected: impl fmt::Display) -> ConfigError {
        let path = if self.path.is_empty() {
            "the configuration"
        } else {
            &self.path
        };
        ConfigError(format!("{path}: {} is not {expected}", self.json))
    }

    /// A refusal at this path that is not about the value's own form.
    #[inline(never)]
    pub fn refuse_because(&self, why: impl fmt::Display) -> ConfigError {
        let path = if self.path.is_empty() {
            "the configuration"
        } else {
            &self.path
        };
        ConfigError(format!("{path}: {} {why}", self.json))
    }

    /// The value as an object that has only `known` keys.
    #[inline(never)]
    pub fn object(&self, known: &[&str]) -> Result<Object<'a>, ConfigError> {
        let Json::Object(entries) = self.json else {
            return Err(self.refuse("an object"));
        };
        for (key, json) in entries {
            if !known.contains(&key.as_str()) {
                let node = Node {
                    path: self.join(key),
                    json,
                };
                return Err(ConfigError(format!(
                    "{}: unknown key with value {json}; expected one of {}",
                    node.path,
                    known.join(", ")
                )));
            }
        }
        Ok(Object {
            node: self.clone(),
            entries,
        })
    }

    #[inline(never)]
    pub fn list(&self, most: usize) -> Result<Vec<Node<'a>>, ConfigError> {
        match self.json {
            Json::List(items) if items.len() <= most => {
                let item = |(i, json)| Node {
                    path: format!("{}[{i}]", self.path),
                    json,
                };
                Ok(items.iter().enumerate().map(item).collect())
            }
            _ => Err(self.refuse(format_args!("a list of at most {most}"))),
        }
    }

    #[inline(never)]
    pub fn text(&self, expected: &str, good: impl Fn(&str) -> bool) -> Result<String, ConfigError> {
        match self.json {
            Json::Text(text) if good(text) => Ok(text.clone()),
            _ => Err(self.refuse(expected)),
        }
    }

    /// A whole number; `256.0` is one too, as protobuf's Struct has no integers.
    #[inline(never)]
    pub fn whole(&self, least: u32, most: u32) -> Result<u32, ConfigError> {
        match self.json {
            Json::Number(n)
                if n.fract() == 0.0 && *n >= f64::from(least) && *n <= f64::from(most) =>
            {
                Ok(*n as u32)
            }
            _ => Err(self.refuse(format_args!("a whole number from {least} to {most}"))),
        }
    }

    #[inline(never)]
    pub fn number(&self, least: f64, most: f64) -> Result<f64, ConfigError> {
        match self.json {
            Json::Number(n) if *n >= least && *n <= most => Ok(*n),
            _ => {
                let (least, most) = (Decimal(least), Decimal(most));
                Err(self.refuse(format_args!("a number from {least} to {most}")))
            }
        }
    }

    /// One of a few words.
    #[inline(never)]
    pub fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, ConfigError> {
        let found = match self.json {
            Json::Text(text) => words.iter().find(|(word, _)| word == text),
            _ => None,
        };
        found.map(|(_, value)| *value).ok_or_else(|| {
            let all: Vec<_> = words
                .iter()
                .map(|(word, _)| format!("\"{word}\""))
                .collect();
            self.refuse(format_args!("one of {}", all.join(", ")))
        })
    }

    pub fn is_text(&self, text: &str) -> bool {
        matches!(self.json, Json::Text(found) if found == text)
    }

    fn join(&self, key: &str) -> String {
        let key: String = key.chars().take(SHOWN).collect();
        if self.path.is_empty() {
            key
        } else {
            format!("{}.{key}", self.path)
        }
    }
}

/// An object whose keys are all known.
#[derive(Debug)]
pub(super) struct Object<'a> {
    /// The object itself.
    pub node: Node<'a>,
    entries: &'a [(String, Json)],
}

impl<'a> Object<'a> {
    /// The value of a key, if it is there.
    #[inline(never)]
    pub fn get(&self, key: &str) -> Option<Node<'a>> {
        let (_, json) = self.entries.iter().find(|(name, _)| name == key)?;
        Some(Node {
            path: self.node.join(key),
            json,
        })
    }

    /// The value of a key that must be there.
    #[inline(never)]
    pub fn need(&self, key: &str, expected: &str) -> Result<Node<'a>, ConfigError> {
        self.get(key).ok_or_else(|| {
            ConfigError(format!(
                "{}: missing; expected {expected}",
                self.node.join(key)
            ))
        })
    }

    /// The value of a key as a rule reads it, or a default.
    #[inline(never)]
    pub fn or<T>(
        &self,
        key: &str,
        default: T,
        rule: impl FnOnce(Node<'a>) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        self.get(key).map_or(Ok(default), rule)
    }
}
