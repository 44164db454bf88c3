//! Responses whose texts have fewer tokens (the setting `compact_results`).

use bytes::Bytes;
use mcp::json::{Object, Splice, as_string, elements, quote};

use crate::shape::compact;

/// The response with compact JSON in its texts. `None` if nothing is saved, or for an error of the tool.
#[must_use]
pub fn compacted(response: &Bytes) -> Option<Bytes> {
    let text: &[u8] = response;
    let result = Object::of(text)?.object("result")?;
    let [content, error] = result.find_all(["content", "isError"]);
    if error.is_some_and(|at| &text[at] == b"true") {
        return None;
    }
    let mut splice = Splice::new();
    for span in elements(text, content?) {
        let block = Object::at(text, span);
        let block = block.filter(|block| block.string("type").as_deref() == Some("text"));
        let at = block.and_then(|block| block.find("text"));
        let Some(at) = at else { continue };
        let shorter = as_string(&text[at.clone()]).and_then(|text| compact(&text));
        if let Some(shorter) = shorter {
            splice.replace(at, quote(&shorter).into_bytes());
        }
    }
    (!splice.is_empty()).then(|| splice.apply(response))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(result: &str, expect: Option<&str>) {
        let response = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        let found = compacted(&response(result).into());
        assert_eq!(
            found,
            expect.map(|expect| response(expect).into()),
            "{result}"
        );
    }

    #[test]
    fn only_the_texts_change() {
        check(
            r#"{"content":[{"type":"text","text":"{\"a\": null, \"b\": 1}"},{"type":"image","data":"x"}],"structuredContent":{"a":null}}"#,
            Some(
                r#"{"content":[{"type":"text","text":"{\"b\":1}"},{"type":"image","data":"x"}],"structuredContent":{"a":null}}"#,
            ),
        );
        check(r#"{"content":[{"type":"text","text":"plain"}]}"#, None);
        check(
            r#"{"content":[{"type":"text","text":"[ ]"}],"isError":true}"#,
            None,
        );
        check(r#"{"content":7}"#, None);
        check("{}", None);
    }
}
