//! Translation between the eras: adapts a message so that the other side understands it.
//!
//! Pure functions over frames. Messages between peers of the same era are not changed. The translation covers the
//! protocol's `_meta` keys, `resultType`, `ttlMs`, `cacheScope`, `inputResponses`, `requestState`, and error codes that
//! exist in one era only.

use std::borrow::Cow;

use bytes::Bytes;

use crate::{
    Era, Frame, Kind, RpcError, Version, error,
    frame::{Param, Part},
    json::{self, Object, Span, Splice, quote},
    protocol::{meta, method},
};

/// A legacy client's description of itself. Modern servers expect it on every request.
#[derive(Debug, Clone)]
pub struct ClientFace {
    /// `Implementation`: JSON text.
    pub info: Bytes,
    /// `ClientCapabilities`: JSON text.
    pub capabilities: Bytes,
    /// The log level that the client set with `logging/setLevel`.
    pub log_level: Option<&'static str>,
}

/// Adapts a request from a client of one era to a server of another.
pub fn request_up(
    frame: &Frame,
    client: Era,
    server: Era,
    face: &ClientFace,
    splice: &mut Splice<'_>,
) {
    match (client, server) {
        (Era::Legacy, Era::Modern) => add_meta(frame, face, splice),
        (Era::Modern, Era::Legacy) => strip_request(frame, splice),
        _ => {}
    }
}

/// Appends the `_meta` members of a modern request to `out`, without braces.
fn put_modern_meta(out: &mut Vec<u8>, face: &ClientFace) {
    for piece in [
        "\"",
        meta::PROTOCOL_VERSION,
        "\":\"",
        Version::LATEST.as_str(),
        "\",\"",
        meta::CLIENT_INFO,
        "\":",
    ] {
        out.extend_from_slice(piece.as_bytes());
    }
    out.extend_from_slice(&face.info);
    for piece in [",\"", meta::CLIENT_CAPABILITIES, "\":"] {
        out.extend_from_slice(piece.as_bytes());
    }
    out.extend_from_slice(&face.capabilities);
    if let Some(level) = face.log_level {
        for piece in [",\"", meta::LOG_LEVEL, "\":\"", level, "\""] {
            out.extend_from_slice(piece.as_bytes());
        }
    }
}

/// The members of `_meta` that describe a modern client.
const MODERN_META: [&str; 4] = [
    meta::PROTOCOL_VERSION,
    meta::CLIENT_INFO,
    meta::CLIENT_CAPABILITIES,
    meta::LOG_LEVEL,
];

/// Adds the members that a modern request needs to `params._meta`. Creates the object if it is missing, or if `_meta` has
/// another type. Members of these names are replaced: a legacy client has no say in them.
fn add_meta(frame: &Frame, face: &ClientFace, splice: &mut Splice<'_>) {
    let text = frame.text();
    let mut members = Vec::with_capacity(256 + face.info.len() + face.capabilities.len());
    put_modern_meta(&mut members, face);
    let wrapped =
        |before: &str, after: &str| [before.as_bytes(), &members, after.as_bytes()].concat();
    match (frame.object(), frame.meta()) {
        (_, Some(own)) => {
            let old = own.find_all(MODERN_META);
            if own.members().count() > old.iter().flatten().count() {
                members.push(b',');
            }
            remove_all(text, &own.span(), old, splice);
            let inside = own.span().start + 1;
            splice.replace(inside..inside, members);
        }
        (Some(params), None) => {
            splice.set(text, &params, "_meta", wrapped("{", "}"));
        }
        (None, None) => {
            let members = wrapped("\"params\":{\"_meta\":{", "}}");
            splice.insert(text, &json::trimmed(text), members);
        }
    }
}

fn strip_request(frame: &Frame, splice: &mut Splice<'_>) {
    let Some(params) = frame.object() else { return };
    let text = frame.text();
    let retry = [
        frame.param(Param::InputResponses),
        frame.param(Param::RequestState),
    ];
    remove_all(text, &params.span(), retry, splice);
    if let Some(own) = frame.meta() {
        remove_all(text, &own.span(), own.find_all(MODERN_META), splice);
    }
}

/// Removes several members from one object. Adjacent members are removed together with the commas between them.
fn remove_all<const N: usize>(
    text: &[u8],
    object: &Span,
    values: [Option<Span>; N],
    splice: &mut Splice<'_>,
) {
    let gone = |value: &Span| values.iter().flatten().any(|span| span == value);
    if !values.iter().any(Option::is_some) {
        return;
    }
    let members: Vec<_> = json::members(text, object.clone()).collect();
    let kept_first = members.iter().position(|member| !gone(&member.value));
    for (at, member) in members.iter().enumerate() {
        if !gone(&member.value) {
            continue;
        }
        let start = member.key.start - 1;
        let span = match kept_first {
            // Before the first member that is kept: remove up to the next member. After it: remove from the end of the
            // previous one.
            Some(first) if at < first => start..members[at + 1].key.start - 1,
            Some(_) => members[at - 1].value.end..member.value.end,
            None => {
                start
                    ..members
                        .get(at + 1)
                        .map_or(member.value.end, |next| next.key.start - 1)
            }
        };
        splice.replace(span, &b""[..]);
    }
}

/// The members that only modern results have.
const MODERN_PARTS: [Part; 3] = [Part::ResultType, Part::TtlMs, Part::CacheScope];

/// Adapts a server's response to a client of another era. `asked` is the method of the request.
pub fn response_down(
    frame: &Frame,
    client: Era,
    server: Era,
    asked: &str,
    splice: &mut Splice<'_>,
) {
    match (frame.kind(), client, server) {
        (Kind::Result, Era::Modern, Era::Legacy) => {
            let Some(result) = frame.object() else { return };
            let [kind, ttl, scope] = MODERN_PARTS.map(|part| frame.part(part));
            let mut members: Vec<&str> = Vec::new();
            if kind.is_none() {
                members.push("\"resultType\":\"complete\"");
            }
            if is_cacheable(asked) {
                if ttl.is_none() {
                    members.push("\"ttlMs\":0");
                }
                if scope.is_none() {
                    members.push("\"cacheScope\":\"private\"");
                }
            }
            if !members.is_empty() {
                splice.insert(frame.text(), &result.span(), members.join(",").as_bytes());
            }
        }
        (Kind::Result, Era::Legacy, Era::Modern) => {
            if let Some(result) = frame.object() {
                let spans = MODERN_PARTS.map(|part| frame.part(part));
                remove_all(frame.text(), &result.span(), spans, splice);
            }
        }
        (Kind::Error, client, server) if client != server && asked == method::RESOURCES_READ => {
            let (from, to) = match client {
                Era::Modern => (error::RESOURCE_NOT_FOUND, error::INVALID_PARAMS),
                Era::Legacy => (error::INVALID_PARAMS, error::RESOURCE_NOT_FOUND),
            };
            let code = frame.object().and_then(|error| error.find("code"));
            if let Some(code) =
                code.filter(|code| frame.text()[code.clone()] == *from.to_string().as_bytes())
            {
                splice.replace(code, to.to_string().into_bytes());
            }
        }
        _ => {}
    }
}

/// 2026-07-28 server/utilities/caching "Cacheable Results".
fn is_cacheable(asked: &str) -> bool {
    matches!(
        asked,
        method::TOOLS_LIST
            | method::PROMPTS_LIST
            | method::RESOURCES_LIST
            | method::TEMPLATES_LIST
            | method::RESOURCES_READ
            | method::SKILLS_LIST
            | method::SKILLS_GET
    )
}

/// Returns true if a modern result asks for input instead of a final result (2026-07-28 basic/patterns/mrtr).
#[must_use]
pub fn is_input_required(frame: &Frame) -> bool {
    frame
        .part(Part::ResultType)
        .and_then(|at| json::as_string(&frame.text()[at]))
        .as_deref()
        == Some("input_required")
}

/// The type of a modern result that no client of the legacy era can read: neither `complete`, the default, nor one that
/// the bridge translates.
#[must_use]
pub fn unknown_result_type(frame: &Frame) -> Option<String> {
    let raw = &frame.text()[frame.part(Part::ResultType)?];
    match json::as_string(raw) {
        Some(kind) if matches!(&*kind, "complete" | "input_required" | "task") => None,
        Some(kind) => Some(kind.chars().take(80).collect()),
        None => Some(json::excerpt(raw)),
    }
}

/// Adds the description of a server (JSON text) to `_meta` of a modern result (JSON text), unless it has one.
#[must_use]
pub fn with_server_info(result: &[u8], info: &str) -> Option<Vec<u8>> {
    let object = Object::of(result)?;
    let member = format!("\"{}\":{info}", meta::SERVER_INFO);
    let mut splice = Splice::new();
    match object.object("_meta") {
        Some(own) if own.find(meta::SERVER_INFO).is_some() => return None,
        Some(own) => splice.insert(result, &own.span(), member),
        None => splice.set(result, &object, "_meta", format!("{{{member}}}")),
    };
    Some(splice.apply_within(result, object.span()).to_vec())
}

/// The input requests of an `input_required` result: key, method, and `params` as JSON text.
#[must_use]
pub fn input_requests(frame: &Frame) -> Vec<(String, String, Bytes)> {
    let Some(requests) = frame
        .object()
        .and_then(|result| result.object("inputRequests"))
    else {
        return Vec::new();
    };
    let text = frame.text();
    requests
        .members()
        .filter_map(|member| {
            let key = json::decode(&text[member.key])?.into_owned();
            let request = Object::at(text, member.value)?;
            let method = request.string("method")?.into_owned();
            let params = request
                .find("params")
                .map_or_else(|| Bytes::from_static(b"{}"), |at| text.slice(at));
            Some((key, method, params))
        })
        .collect()
}

/// Builds the retry of a request, with `inputResponses` (key, JSON text) and the server's `requestState`. Returns a
/// frame, so that later steps can rewrite it further.
#[must_use]
pub fn retry(frame: &Frame, responses: &[(String, Bytes)], state: Option<&str>) -> Option<Frame> {
    let params = frame.object()?;
    let text = frame.text();
    let mut splice = Splice::new();
    let old = params.find_all(["inputResponses", "requestState"]);
    let left = params.members().count() > old.iter().flatten().count();
    remove_all(text, &params.span(), old, &mut splice);
    let mut members = String::new();
    if !responses.is_empty() {
        let pairs: Vec<String> = responses
            .iter()
            .map(|(key, value)| format!("{}:{}", quote(key), String::from_utf8_lossy(value)))
            .collect();
        members = format!("\"inputResponses\":{{{}}}", pairs.join(","));
    }
    if let Some(state) = state {
        let comma = if members.is_empty() { "" } else { "," };
        members.push_str(&format!("{comma}\"requestState\":{}", quote(state)));
    }
    if !members.is_empty() {
        if left {
            members.push(',');
        }
        let inside = params.span().start + 1;
        splice.replace(inside..inside, members.into_bytes());
    }
    Frame::parse(splice.apply(text), usize::MAX).ok()
}

/// An `input_required` result: `requests` are key, method and `params` as JSON text.
#[must_use]
pub fn input_required(requests: &[(String, String, Bytes)], state: &str) -> String {
    let pairs: Vec<String> = requests
        .iter()
        .map(|(key, method, params)| {
            let params = String::from_utf8_lossy(params);
            format!(
                "{}:{{\"method\":{},\"params\":{params}}}",
                quote(key),
                quote(method)
            )
        })
        .collect();
    format!(
        "{{\"resultType\":\"input_required\",\"inputRequests\":{{{}}},\"requestState\":{}}}",
        pairs.join(","),
        quote(state)
    )
}

/// The client capability that a server request needs.
#[must_use]
pub fn capability_for(server_request: &str) -> Option<&'static str> {
    match server_request {
        method::SAMPLING => Some("sampling"),
        method::ELICIT => Some("elicitation"),
        method::ROOTS_LIST => Some("roots"),
        _ => None,
    }
}

/// Returns true if `capabilities` (JSON text) has the member `name`.
#[must_use]
pub fn declares(capabilities: &[u8], name: &str) -> bool {
    Object::of(capabilities).is_some_and(|object| object.find(name).is_some())
}

/// A modern request's description of its client.
#[derive(Debug, Clone)]
pub struct ModernFace<'a> {
    pub version: Cow<'a, str>,
    pub capabilities: &'a [u8],
    pub info: Option<&'a [u8]>,
    pub log_level: Option<&'static str>,
}

/// Reads `params._meta` of a modern request (2026-07-28 basic "Per-request protocol fields").
///
/// # Errors
/// -32602, naming the missing or invalid field.
pub fn modern_face(frame: &Frame) -> Result<ModernFace<'_>, RpcError> {
    let missing = |what: &str| RpcError::invalid_params(format!("Invalid params: {what}"));
    let own = frame.meta().ok_or_else(|| missing("`_meta` is missing"))?;
    let text = frame.text();
    let [version, capabilities, info, level] = own.find_all([
        meta::PROTOCOL_VERSION,
        meta::CLIENT_CAPABILITIES,
        meta::CLIENT_INFO,
        meta::LOG_LEVEL,
    ]);
    let version = version
        .and_then(|at| json::as_string(&text[at]))
        .ok_or_else(|| {
            missing(&format!(
                "`_meta[\"{}\"]` must be a string",
                meta::PROTOCOL_VERSION
            ))
        })?;
    let capabilities = capabilities
        .filter(|at| text[at.start] == b'{')
        .ok_or_else(|| {
            missing(&format!(
                "`_meta[\"{}\"]` must be an object",
                meta::CLIENT_CAPABILITIES
            ))
        })?;
    let log_level = level
        .map(|at| {
            let named = json::as_string(&text[at]).and_then(|level| log_level(&level));
            named.ok_or_else(|| {
                missing(&format!(
                    "`_meta[\"{}\"]` must be one of {}",
                    meta::LOG_LEVEL,
                    LOG_LEVELS.join(", ")
                ))
            })
        })
        .transpose()?;
    Ok(ModernFace {
        version,
        capabilities: &text[capabilities],
        info: info.map(|at| &text[at]),
        log_level,
    })
}

/// The levels of `notifications/message`, least severe first (2025-11-25 server/utilities/logging).
pub const LOG_LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

/// Returns the static name of a valid log level.
#[must_use]
pub fn log_level(text: &str) -> Option<&'static str> {
    LOG_LEVELS.into_iter().find(|level| *level == text)
}

/// Returns true if a client with minimum level `least` wants log messages of `level`.
#[must_use]
pub fn is_logged(level: &str, least: &str) -> bool {
    let rank = |level: &str| {
        LOG_LEVELS
            .iter()
            .position(|known| *known == level)
            .unwrap_or(LOG_LEVELS.len())
    };
    rank(level) >= rank(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &'static str) -> Frame {
        Frame::parse(Bytes::from_static(text.as_bytes()), 64).expect(text)
    }

    fn face() -> ClientFace {
        ClientFace {
            info: "{\"name\":\"c\"}".into(),
            capabilities: "{}".into(),
            log_level: Some("info"),
        }
    }

    fn up(text: &'static str, client: Era, server: Era) -> String {
        let frame = frame(text);
        let mut splice = Splice::new();
        request_up(&frame, client, server, &face(), &mut splice);
        let out = splice.apply(frame.text());
        json::validate(&out, 64).unwrap_or_else(|fault| panic!("{fault}: {out:?}"));
        String::from_utf8(out.to_vec()).expect("utf-8")
    }

    #[test]
    fn legacy_requests_get_their_meta() {
        let added = "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\"io.modelcontextprotocol/clientInfo\":{\"name\":\"c\"},\"io.modelcontextprotocol/clientCapabilities\":{},\"io.modelcontextprotocol/logLevel\":\"info\"";
        for (text, expect) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#,
                r#"{"params":{"_meta":{ADDED}},"jsonrpc":"2.0","id":1,"method":"m"}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{ADDED},"a":1}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"x":2}}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{ADDED,"x":2}}}"#,
            ),
            // No key is there twice.
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1,"_meta":null}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1,"_meta":{ADDED}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"io.modelcontextprotocol/clientInfo":7,"x":2}}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{ADDED,"x":2}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{ "io.modelcontextprotocol/logLevel":"x"}}}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{ADDED }}}"#,
            ),
        ] {
            let expect = expect.replace("ADDED", added);
            assert_eq!(up(text, Era::Legacy, Era::Modern), expect);
            assert_eq!(up(text, Era::Legacy, Era::Legacy), text);
        }
    }

    #[test]
    fn modern_requests_lose_theirs() {
        let check = |text, expect: &str| assert_eq!(up(text, Era::Modern, Era::Legacy), expect);
        check(
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"x","progressToken":3,"io.modelcontextprotocol/clientInfo":{}, "io.modelcontextprotocol\/clientCapabilities":{}},"name":"n","requestState":"s"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":3},"name":"n"}}"#,
        );
        check(
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"x", "io.modelcontextprotocol/logLevel":"y"},"inputResponses":{},"requestState":"s","a":1}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{},"a":1}}"#,
        );
    }

    #[test]
    fn results_are_completed_and_stripped() {
        let check = |asked, client, server, text, expect: &str| {
            let frame = frame(text);
            let mut splice = Splice::new();
            response_down(&frame, client, server, asked, &mut splice);
            assert_eq!(splice.apply(frame.text()), expect);
        };
        for (text, expect) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[]}}"#,
                r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[]}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"gone"}}"#,
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"gone"}}"#,
            ),
        ] {
            check("resources/read", Era::Modern, Era::Legacy, text, expect);
        }
        let text = r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":0,"x":1}}"#;
        let expect = r#"{"jsonrpc":"2.0","id":1,"result":{"x":1}}"#;
        check("tools/call", Era::Legacy, Era::Modern, text, expect);
    }

    #[test]
    fn unknown_types_of_results_are_named() {
        for (kind, expect) in [
            ("", None),
            (r#""resultType":"complete","#, None),
            (r#""resultType":"input_required","#, None),
            (r#""resultType":"task","#, None),
            (r#""resultType":"stream","#, Some("stream")),
            (r#""resultType":7,"#, Some("7")),
        ] {
            let result = format!(r#"{{{kind}"x":1}}"#);
            let frame = Frame::result(b"1", result.as_bytes());
            assert_eq!(unknown_result_type(&frame).as_deref(), expect, "{result}");
        }
    }

    #[test]
    fn results_name_their_server_once() {
        let check = |result: &str, expect: Option<&str>| {
            let expect = expect.map(|text| text.replace("KEY", meta::SERVER_INFO));
            let result = result.replace("KEY", meta::SERVER_INFO);
            let found = with_server_info(result.as_bytes(), "{\"name\":\"n\"}");
            assert_eq!(found, expect.map(String::into_bytes), "{result}");
        };
        check("{}", Some(r#"{"_meta":{"KEY":{"name":"n"}}}"#));
        check(
            r#"{"a":1,"_meta":{"b":2}}"#,
            Some(r#"{"a":1,"_meta":{"KEY":{"name":"n"},"b":2}}"#),
        );
        check(r#"{"_meta":{"KEY":{}}}"#, None);
        check(
            r#"{"_meta":null,"a":1}"#,
            Some(r#"{"_meta":{"KEY":{"name":"n"}},"a":1}"#),
        );
    }

    #[test]
    fn a_log_level_must_be_known() {
        let read = |level: &str| {
            let params = format!(
                r#"{{"_meta":{{"{}":"2026-07-28","{}":{{}},"{}":{level}}}}}"#,
                meta::PROTOCOL_VERSION,
                meta::CLIENT_CAPABILITIES,
                meta::LOG_LEVEL
            );
            let frame = Frame::request("1", "tools/list", Some(params.as_bytes()));
            modern_face(&frame).map(|face| face.log_level)
        };
        assert_eq!(read("\"warning\""), Ok(Some("warning")));
        for bad in ["\"loud\"", "\"Warning\"", "3", "null"] {
            let error = read(bad).expect_err(bad);
            assert_eq!(error.code, error::INVALID_PARAMS);
            assert!(error.message.contains("debug, info"), "{error}");
        }
    }

    #[test]
    fn retries_carry_the_answers() {
        let asked = frame(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"requestState":"old","name":"n"}}"#,
        );
        let again =
            retry(&asked, &[("k".into(), "{\"a\":1}".into())], Some("new")).expect("a frame");
        assert_eq!(
            again.text(),
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"inputResponses":{"k":{"a":1}},"requestState":"new","name":"n"}}"#
        );
        let result = frame(
            r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}}}}"#,
        );
        assert!(is_input_required(&result));
        assert_eq!(
            input_requests(&result),
            [("k".into(), "roots/list".into(), Bytes::from_static(b"{}"))]
        );
    }
}
