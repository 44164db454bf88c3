//! Translation of URL elicitations between the eras. Pure functions over frames.
//!
//! 2025-11-25 gives each URL elicitation an id, reports its completion, and has an error for a request that must wait
//! for one (-32042). 2026-07-28 has neither ids nor that error: the request returns `input_required` and is retried.

use bytes::Bytes;

use crate::{
    Frame, Kind,
    error::URL_REQUIRED,
    json::{self, Object, Splice, quote},
    protocol::method,
};

/// The `requestState` of a request that is retried after its URLs were opened. It carries no information, so a client
/// that forges it only repeats its request, which is allowed.
pub const STATE: &str = "twh-url";

/// Returns true if these `elicitation/create` params ask for a URL to be opened.
#[must_use]
pub fn is_url(params: &[u8]) -> bool {
    Object::of(params).is_some_and(|params| params.string("mode").as_deref() == Some("url"))
}

/// Returns true if a client with these `capabilities` (JSON text) can be asked to open a URL.
#[must_use]
pub fn opens_urls(capabilities: &[u8]) -> bool {
    Object::of(capabilities)
        .and_then(|all| all.object("elicitation"))
        .is_some_and(|elicitation| elicitation.find("url").is_some())
}

/// Adds the `elicitationId` that 2025-11-25 requires to the params of a URL elicitation. Returns the params and the id:
/// an existing id that is a string, or else `fresh`.
#[must_use]
pub fn with_id(params: &Bytes, fresh: &str) -> (Bytes, String) {
    let Some(object) = Object::of(params) else {
        return (params.clone(), fresh.to_owned());
    };
    if let Some(id) = object.string("elicitationId") {
        return (params.clone(), id.into_owned());
    }
    let mut splice = Splice::new();
    splice.set(params, &object, "elicitationId", quote(fresh));
    (splice.apply(params), fresh.to_owned())
}

/// Returns true if the client accepted an elicitation.
#[must_use]
pub fn is_accepted(answer: &[u8]) -> bool {
    Object::of(answer).is_some_and(|answer| answer.string("action").as_deref() == Some("accept"))
}

#[must_use]
pub fn complete(id: &str) -> Frame {
    let params = format!("{{\"elicitationId\":{}}}", quote(id));
    Frame::notification(method::ELICITATION_COMPLETE, Some(params.as_bytes()))
}

/// The URL elicitations that an error response requires first, as params of `elicitation/create`. Empty for other
/// responses.
#[must_use]
pub fn required(response: &Frame) -> Vec<Bytes> {
    if response.kind() != Kind::Error {
        return Vec::new();
    }
    let Some(error) = response.object() else {
        return Vec::new();
    };
    let text = response.text();
    let code = error.raw("code");
    if code != Some(URL_REQUIRED.to_string().as_bytes()) {
        return Vec::new();
    }
    let asked = error
        .object("data")
        .and_then(|data| data.find("elicitations"));
    asked
        .into_iter()
        .flat_map(|span| json::elements(text, span))
        .map(|span| text.slice(span))
        .filter(|params| is_url(params))
        .collect()
}

/// Returns true if a retried request says that some URL was not opened.
#[must_use]
pub fn is_declined(frame: &Frame) -> bool {
    let responses = frame
        .object()
        .and_then(|params| params.object("inputResponses"));
    let Some(responses) = responses else {
        return true;
    };
    let text = frame.text();
    responses
        .members()
        .any(|member| !is_accepted(&text[member.value]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &'static str) -> Frame {
        Frame::parse(Bytes::from_static(text.as_bytes()), 64).expect(text)
    }

    #[test]
    fn an_id_is_added_where_there_is_none() {
        let params = Bytes::from_static(br#"{"mode":"url","url":"http://x"}"#);
        let (with, id) = with_id(&params, "fresh");
        assert_eq!(id, "fresh");
        assert_eq!(
            with,
            &br#"{"elicitationId":"fresh","mode":"url","url":"http://x"}"#[..]
        );
        assert_eq!(with_id(&with, "another"), (with.clone(), "fresh".into()));
        let odd = Bytes::from_static(br#"{"elicitationId":7,"mode":"url"}"#);
        let replaced = Bytes::from_static(br#"{"elicitationId":"fresh","mode":"url"}"#);
        assert_eq!(with_id(&odd, "fresh"), (replaced, "fresh".into()));
    }

    #[test]
    fn errors_say_what_has_to_be_opened() {
        let asks = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","url":"u"},{"mode":"form"}]}}}"#;
        assert_eq!(required(&frame(asks)), [r#"{"mode":"url","url":"u"}"#]);
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32041,"message":"m","data":{"elicitations":[{"mode":"url"}]}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"code":-32042}}"#,
        ] {
            assert!(required(&frame(text)).is_empty(), "{text}");
        }
    }

    #[test]
    fn only_a_yes_to_all_is_a_yes() {
        for (params, expect) in [
            (r#"{}"#, true),
            (r#"{"inputResponses":{"a":{"action":"accept"}}}"#, false),
            (
                r#"{"inputResponses":{"a":{"action":"accept"},"b":{"action":"decline"}}}"#,
                true,
            ),
            (r#"{"inputResponses":{"a":{}}}"#, true),
        ] {
            let request = Frame::request("1", "tools/call", Some(params.as_bytes()));
            assert_eq!(is_declined(&request), expect, "{params}");
        }
        assert!(opens_urls(br#"{"elicitation":{"url":{}}}"#));
        assert!(!opens_urls(br#"{"elicitation":{"form":{}},"url":{}}"#));
    }
}
