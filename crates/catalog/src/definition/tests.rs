use serde_json::{Value, json};

use super::*;

/// The text for clients of an era, or why there is none.
fn fitted(kind: ListKind, definition: &Value, era: Era) -> Result<Value, String> {
    let raw = Bytes::from(definition.to_string());
    let id = definition[kind.id_key()].as_str().unwrap_or_default();
    let fit = fit(kind, &raw, id, era)?;
    let text = serde_json::from_slice(&fit.text);
    let value: Value = text.unwrap_or_else(|error| panic!("{error}: {:?}", fit.text));
    assert_eq!(fit.repairs.is_empty(), fit.text == raw, "{:?}", fit.repairs);
    Ok(value)
}

/// Checks a tool, given without its name. `expected`: for clients of both eras.
#[track_caller]
fn tool(mut given: Value, expected: Result<Value, &str>) {
    given["name"] = "t".into();
    for era in [Era::Legacy, Era::Modern] {
        let found = fitted(ListKind::Tools, &given, era);
        match expected.clone() {
            Ok(mut expected) => {
                expected["name"] = "t".into();
                assert_eq!(found, Ok(expected), "{given}");
            }
            Err(why) => assert!(found.is_err_and(|found| found.contains(why)), "{given}"),
        }
    }
}

#[test]
fn u10_a_missing_input_schema_is_supplied() {
    let any = || Ok(json!({ "inputSchema": { "type": "object" } }));
    tool(json!({}), any());
    for schema in [
        json!(null),
        json!({}),
        json!([]),
        json!(true),
        json!({ "type": null }),
        json!({ "type": "object", "required": null }),
        json!({ "required": null, "properties": null }),
        json!({ "type": ["object", "null"] }),
        json!({ "properties": [], "$schema": null, "title": null }),
    ] {
        tool(json!({ "inputSchema": schema }), any());
    }
}

#[test]
fn u10_a_schema_that_is_not_of_an_object_is_left_out() {
    for (schema, why) in [
        (
            json!({ "type": "string" }),
            "`inputSchema.type` is \"string\"",
        ),
        (
            json!({ "type": ["string"] }),
            "`inputSchema.type` is an array",
        ),
        (json!("object"), "`inputSchema` is \"object\""),
        (json!([1]), "`inputSchema` is an array"),
        (json!(false), "`inputSchema` is false"),
    ] {
        tool(json!({ "inputSchema": schema }), Err(why));
    }
}

#[test]
fn u10_good_parts_of_a_schema_stay() {
    for (schema, expected) in [
        (
            json!({ "anyOf": [{ "type": "object" }], "default": null }),
            json!({ "type": "object", "anyOf": [{ "type": "object" }], "default": null }),
        ),
        (
            json!({ "type": "object", "required": ["a", 1, null, "b"], "x": {} }),
            json!({ "type": "object", "required": ["a", "b"], "x": {} }),
        ),
        (
            json!({ "properties": { "a": null, "b": { "type": "int" }, "c": "string" } }),
            json!({ "type": "object", "properties": { "a": {}, "b": { "type": "int" }, "c": {} } }),
        ),
    ] {
        let given = json!({ "inputSchema": schema });
        tool(given, Ok(json!({ "inputSchema": expected })));
    }
}

#[test]
fn u10_members_that_do_not_fit_are_dropped() {
    let schema = || json!({ "type": "object" });
    for (members, expected) in [
        (
            json!({ "title": null, "_meta": null, "icons": null, "annotations": null, "description": null, "outputSchema": null }),
            json!({}),
        ),
        (json!({ "title": 7, "own": null }), json!({ "own": null })),
        (
            json!({ "annotations": { "title": null, "readOnlyHint": "yes", "own": 1, "openWorldHint": true } }),
            json!({ "annotations": { "own": 1, "openWorldHint": true } }),
        ),
        (
            json!({ "icons": [{ "src": "a", "sizes": "48x48" }, { "mimeType": "image/png" }, null, { "src": "b", "theme": "red" }] }),
            json!({ "icons": [{ "src": "a" }, { "src": "b" }] }),
        ),
        (
            json!({ "execution": { "taskSupport": "maybe" } }),
            json!({ "execution": {} }),
        ),
    ] {
        let with = |mut members: Value| {
            members["inputSchema"] = schema();
            members
        };
        tool(with(members), Ok(with(expected)));
    }
}

#[test]
fn u10_other_definitions_are_repaired_as_well() {
    let annotations =
        json!({ "audience": ["user", "robot"], "priority": 2, "lastModified": "yesterday" });
    for (kind, given, expected) in [
        (
            ListKind::Prompts,
            json!({ "name": "p", "arguments": null, "title": null }),
            json!({ "name": "p" }),
        ),
        (
            ListKind::Prompts,
            json!({ "name": "p", "arguments": [{ "name": "a", "required": null, "description": 1 }, { "required": true }] }),
            json!({ "name": "p", "arguments": [{ "name": "a" }] }),
        ),
        (
            ListKind::Resources,
            json!({ "uri": "a:b", "size": 1.5, "annotations": annotations, "mimeType": null }),
            json!({ "uri": "a:b", "name": "a:b", "annotations": { "audience": ["user"] } }),
        ),
        (
            ListKind::Resources,
            json!({ "uri": "a:b", "name": null, "size": 7, "annotations": null }),
            json!({ "uri": "a:b", "name": "a:b", "size": 7 }),
        ),
        (
            ListKind::Templates,
            json!({ "uriTemplate": "a:{b}", "name": 1, "icons": {}, "mimeType": "text/plain" }),
            json!({ "uriTemplate": "a:{b}", "name": "a:{b}", "mimeType": "text/plain" }),
        ),
    ] {
        for era in [Era::Legacy, Era::Modern] {
            assert_eq!(fitted(kind, &given, era), Ok(expected.clone()), "{given}");
        }
    }
}

/// In 2026-07-28, the schema of results may be of any type, and schemas of properties may be booleans.
#[test]
fn u10_each_era_has_its_rules() {
    let plain = json!({ "name": "t", "inputSchema": { "type": "object" } });
    for schema in [
        json!({ "type": "array" }),
        json!({ "type": "object", "properties": { "a": { "type": "int" } } }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/none" } } }),
        json!({ "type": "object", "properties": { "a": { "pattern": "(" } } }),
    ] {
        let mut given = plain.clone();
        given["outputSchema"] = schema;
        let legacy = fitted(ListKind::Tools, &given, Era::Legacy);
        assert_eq!(legacy, Ok(plain.clone()), "{given}");
        assert_eq!(fitted(ListKind::Tools, &given, Era::Modern), Ok(given));
    }
    let given = json!({ "name": "t", "inputSchema": { "type": "object", "properties": { "a": true, "b": false } } });
    let legacy = json!({ "a": {}, "b": { "not": {} } });
    let found = fitted(ListKind::Tools, &given, Era::Legacy);
    assert_eq!(
        found.map(|tool| tool["inputSchema"]["properties"].clone()),
        Ok(legacy)
    );
    assert_eq!(fitted(ListKind::Tools, &given, Era::Modern), Ok(given));
    let mut given = plain.clone();
    given["outputSchema"] =
        json!({ "properties": { "a": { "type": "string" } }, "required": null });
    let found = fitted(ListKind::Tools, &given, Era::Legacy);
    let legacy = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
    assert_eq!(found.map(|tool| tool["outputSchema"].clone()), Ok(legacy));
}

#[test]
fn u10_what_fits_is_not_touched() {
    let text = r##" { "name":"t" , "inputSchema":{"type":"object","properties":{"a":{"type":["string","null"],"default":null}},"required":["a"]},
        "outputSchema":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"pattern":"^[a-z\\d_-]{1,3}(?:x|y)*$"}}},
        "annotations":{"readOnlyHint":true,"x":null},"unknown":null,"n":12345678901234567890123} "##;
    let raw = Bytes::from(text);
    for era in [Era::Legacy, Era::Modern] {
        let fit = fit(ListKind::Tools, &raw, "t", era).expect("it fits");
        assert_eq!((fit.repairs, fit.text), (Vec::new(), raw.clone()));
    }
    let resource = json!({ "uri": "a:b", "name": "n", "size": 12, "annotations": { "priority": 0.5, "lastModified": "2025-01-12T15:00:58.5+02:00" } });
    assert_eq!(
        fitted(ListKind::Resources, &resource, Era::Legacy),
        Ok(resource.clone())
    );
}

#[test]
fn u10_half_a_surrogate_pair_is_replaced() {
    let raw = Bytes::from_static(br#"{"name":"t","inputSchema":{"type":"object"},"description":"\ud83d \ud83d\ude00 \\ud83d \ude00"}"#);
    let fit = fit(ListKind::Tools, &raw, "t", Era::Legacy).expect("it is repaired");
    let text: Value = serde_json::from_slice(&fit.text).expect("JSON");
    assert_eq!(text["description"], "\u{fffd} 😀 \\ud83d \u{fffd}");
    assert_eq!(fit.repairs.len(), 1);
}

#[test]
fn times_are_those_of_zod() {
    for (text, expected) in [
        ("2025-01-12T15:00:58Z", true),
        ("2024-02-29T15:00:58.123456+01:00", true),
        ("2025-02-29T15:00:58Z", false),
        ("2025-01-12T15:00:58", false),
        ("2025-01-12 15:00:58Z", false),
        ("2025-01-12T25:00:58Z", false),
        ("2025-01-12", false),
        ("", false),
        ("2025-01-12T15:00:5äZ", false),
    ] {
        assert_eq!(is_time(text), expected, "{text}");
    }
}

proptest::proptest! {
    /// Whatever a server lists, the result is JSON, and fits without further repairs.
    #[test]
    fn repairs_are_complete(value in any_definition()) {
        let raw = Bytes::from(value.to_string());
        for kind in ListKind::ALL {
            for era in [Era::Legacy, Era::Modern] {
                let Ok(once) = fit(kind, &raw, "x", era) else { continue };
                let parsed: Result<Value, _> = serde_json::from_slice(&once.text);
                proptest::prop_assert!(parsed.is_ok(), "{raw:?} {:?}", once.text);
                let again = fit(kind, &once.text, "x", era).expect("it fits");
                proptest::prop_assert_eq!(&again.text, &once.text);
                proptest::prop_assert!(again.repairs.is_empty(), "{:?}", again.repairs);
            }
        }
    }
}

/// Definitions whose members have random values.
fn any_definition() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        Just(json!(1.5)),
        Just(json!("object")),
        Just(json!("a")),
    ];
    let keys = "title|icons|src|annotations|readOnlyHint|arguments|name|required|type|properties|inputSchema|outputSchema|anyOf|x";
    let value = leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(keys, inner, 0..5).prop_map(|map| map.into_iter().collect()),
        ]
    });
    prop::collection::hash_map(keys, value, 0..6).prop_map(|mut map| {
        for id in ["name", "uri", "uriTemplate"] {
            map.insert(id.to_owned(), "x".into());
        }
        map.into_iter().collect()
    })
}
