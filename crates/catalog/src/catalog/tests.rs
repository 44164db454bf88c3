use super::*;

fn tools(texts: &[&'static str]) -> List {
    let raws = texts.iter().map(|text| Bytes::from_static(text.as_bytes()));
    List::of(ListKind::Tools, raws, true)
}

/// Definitions with flaws are sorted by what happens to them.
#[test]
fn u10_every_flaw_has_a_fate() {
    let list = tools(&[
        r#"{"name":"fine","inputSchema":{"type":"object"}}"#,
        r#"{"name":"repaired"}"#,
        r#"{"name":"unfit","inputSchema":{"type":"string"}}"#,
        r#"{"inputSchema":{"type":"object"}}"#,
        r#"{"name":7,"inputSchema":{"type":"object"}}"#,
        r#""a string""#,
        r#"{"name":"fine","description":"again"}"#,
        r#"{"name":"odd\u0007","inputSchema":{"type":"object"}}"#,
        r#"{"name":"header","inputSchema":{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"A"}}}}"#,
    ]);
    let names: Vec<&str> = list.items.iter().map(|item| &*item.native).collect();
    assert_eq!(names, ["fine", "repaired", "unfit"]);
    let fits: Vec<bool> = list
        .items
        .iter()
        .map(|item| item.fit(Era::Modern).is_some())
        .collect();
    assert_eq!(fits, [true, true, false]);
    assert_eq!(list.nameless.len(), 3);
    let flaws: Vec<(Option<&str>, Fate)> = list
        .flaws
        .iter()
        .map(|flaw| (flaw.native.as_deref(), flaw.fate))
        .collect();
    assert_eq!(
        flaws,
        [
            (Some("repaired"), Fate::Repaired),
            (Some("unfit"), Fate::LeftOut),
            (None, Fate::LeftOut),
            (None, Fate::LeftOut),
            (None, Fate::LeftOut),
            (Some("fine"), Fate::LeftOut),
            (Some("odd\u{7}"), Fate::Refused),
            (Some("header"), Fate::Refused),
        ]
    );
    let said = list.flaws[1].to_string();
    assert_eq!(
        said,
        "tool `unfit` is left out of views of several servers: `inputSchema.type` is \"string\", not \"object\""
    );
    assert_eq!(
        list.flaws[6].to_string(),
        "tool `odd\\u{7}` is left out: its name has control characters"
    );
}

#[test]
fn equal_lists_are_the_same() {
    let one = tools(&[r#"{"name":"a"}"#, r#"{"x":1}"#]);
    assert!(one.is_same(&tools(&[r#"{"name":"a"}"#, r#"{"x":1}"#])));
    assert!(!one.is_same(&tools(&[r#"{"name":"a"}"#, r#"{"x":2}"#])));
    assert!(!one.is_same(&tools(&[r#"{"name":"b"}"#, r#"{"x":1}"#])));
}
