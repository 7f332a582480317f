//! Custom resources against the schemas of their definitions, where these are at hand.
//!
//! As an API server does with `--validate=strict`: a field that the schema does not know is an
//! error. Rules in CEL (`x-kubernetes-validations`) are not evaluated.

use e2e::bootstrap::root;
use e2e::manifest::{documents, files, read, skipped};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Schemas by kind and API version; nothing where the folder is absent.
fn schemas() -> Option<BTreeMap<(String, String), Value>> {
    let folder = root().join("../shared/schemas");
    let entries = std::fs::read_dir(folder).ok()?;
    let mut all = BTreeMap::new();
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        for definition in documents(&read(&path)) {
            let spec = &definition["spec"];
            for version in spec["versions"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().expect("text").to_string();
                let api = format!("{}/{}", text(&spec["group"]), text(&version["name"]));
                let mut schema = version["schema"]["openAPIV3Schema"].clone();
                // An API server knows these of itself.
                for (key, kind) in [
                    ("apiVersion", "string"),
                    ("kind", "string"),
                    ("metadata", "object"),
                ] {
                    schema["properties"][key]["type"] = kind.into();
                }
                close(&mut schema);
                all.insert((text(&spec["names"]["kind"]), api), schema);
            }
        }
    }
    Some(all)
}

/// An object has the properties that it lists and no others.
fn close(schema: &mut Value) {
    let Some(keys) = schema.as_object_mut() else {
        return;
    };
    let open = keys.contains_key("additionalProperties")
        || keys.contains_key("x-kubernetes-preserve-unknown-fields");
    if keys.contains_key("properties") && !open {
        keys.insert("additionalProperties".into(), false.into());
    }
    if let Some(properties) = keys.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(close);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = keys.get_mut(key) {
            close(inner);
        }
    }
}

fn errors(schema: &Value, document: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(schema).expect("a schema");
    let errors = validator.iter_errors(document);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

#[test]
fn custom_resources_fit_their_schemas() {
    let Some(schemas) = schemas() else {
        skipped("custom_resources_fit_their_schemas", "no ../shared/schemas");
        return;
    };
    let mut checked = BTreeSet::new();
    let mut without = BTreeSet::new();
    for file in files() {
        for document in documents(&read(&file)) {
            let text = |key: &str| document[key].as_str().unwrap_or("").to_string();
            let (kind, api) = (text("kind"), text("apiVersion"));
            let group = api.split('/').next().unwrap_or("");
            let custom = group.ends_with(".istio.io") || group.ends_with(".envoyproxy.io");
            if !custom {
                continue;
            }
            let Some(schema) = schemas.get(&(kind.clone(), api)) else {
                without.insert(kind);
                continue;
            };
            let errors = errors(schema, &document);
            assert!(errors.is_empty(), "{file:?}, {kind}: {errors:#?}");
            // The check can fail.
            let mut wrong = document.clone();
            wrong["spec"]["no_such_field"] = true.into();
            assert!(!self::errors(schema, &wrong).is_empty(), "{kind}");
            checked.insert(kind);
        }
    }
    for kind in without {
        skipped(&format!("schema of {kind}"), "not in ../shared/schemas");
    }
    let known = [
        "BackendTrafficPolicy",
        "DestinationRule",
        "EnvoyExtensionPolicy",
        "EnvoyFilter",
        "EnvoyPatchPolicy",
        "Gateway",
        "VirtualService",
    ];
    assert_eq!(checked, BTreeSet::from(known.map(String::from)));
}
