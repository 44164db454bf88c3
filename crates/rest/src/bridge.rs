//! Direct calls to one server: one request over HTTP, with the response as an HTTP response (H04 to H07, U06).
//!
//! Calls are far more frequent than other API requests, so the listener passes them on without the router. Only calls
//! whose path has an unusual form go through the router.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use api::McpError;
use axum::{BoxError, Extension, extract::State, response::IntoResponse};
use bytes::Bytes;
use engine::{Answer, Caller, Scope, server::Server};
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use mcp::{
    Frame, Kind,
    backlog::Account,
    json::{Object, quote, without_lone_surrogates},
    outbox::{Bounds, Outbox},
    protocol::meta,
    sse::encode,
};
use model::ServerName;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use utoipa::ToSchema;

use super::{
    AppState, Problem, Rest,
    access::{Who, permit},
    answer::{event_stream, found},
    input,
    servers::Target,
};
use auth::{Principal, Role};
use gateway::{Answering, Body, RequestInfo, collect, json_body, prefers_stream};

/// Maximum timeout of a call, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 3_600_000;
/// Limits for messages of a call that wait for a slow reader.
pub(super) const BOUNDS: Bounds = Bounds {
    messages: 256,
    bytes: 8 << 20,
};

/// One JSON-RPC request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallRequest {
    pub(crate) method: String,
    #[schema(value_type = Option<Object>)]
    pub(crate) params: Option<Box<RawValue>>,
    /// Timeout of the call in milliseconds. The default is the server's setting.
    pub(crate) timeout_ms: Option<u64>,
    /// The kinds of questions that the caller can answer, as client capabilities of 2026-07-28, such as
    /// `{"elicitation": {"form": {}}}`. With it, the result may be of the type `input_required`. The caller then
    /// repeats the call with `inputResponses` and `requestState` in its parameters.
    #[schema(value_type = Option<Object>)]
    pub(crate) capabilities: Option<Box<RawValue>>,
    /// The id of a recorded call that this one repeats. Each of the two records refers to the other. Needs an
    /// administrator's key.
    pub(crate) replay_of: Option<String>,
}

/// Returns the server id in the path of a call.
pub(crate) fn called<B>(request: &Request<B>) -> Option<String> {
    let path = request.uri().path().strip_prefix("/api/v1/mcp/servers/")?;
    let id = path.strip_suffix("/call")?;
    let plain = !id.is_empty() && !id.contains(['/', '%']) && request.uri().query().is_none();
    (plain && *request.method() == Method::POST).then(|| id.to_owned())
}

/// Handles a call without the router. `id` is from [`called`].
pub(crate) async fn answer<B>(
    rest: AppState,
    id: String,
    account: Arc<Account>,
    request: Request<B>,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    let answered = async {
        let who = rest.front.guard().key(RequestInfo::of(&request)).await?;
        let server = rest.called(&who, &id).await?;
        permit(&who, Role::Call, server.spec.owner.as_ref())?;
        let (parts, body) = request.into_parts();
        let outbox = Outbox::charged(BOUNDS, account);
        let call = Call {
            who: &who,
            server,
            headers: &parts.headers,
            is_forwarded: false,
        };
        let mut response = call.read(rest, body, outbox).await?;
        response.extensions_mut().insert(who);
        Ok(response)
    };
    let answered: Result<_, Problem> = answered.await;
    match answered {
        Ok(response) => response,
        Err(problem) => problem.into_response().map(Body::Other),
    }
}

/// Handles a call from the router.
pub(super) async fn routed(
    State(rest): State<AppState>,
    Extension(who): Who,
    target: Target,
    headers: HeaderMap,
    body: axum::body::Body,
) -> Result<Response<axum::body::Body>, Problem> {
    let server = rest.enabled(&target).await?;
    let call = Call {
        who: &who,
        server,
        headers: &headers,
        is_forwarded: false,
    };
    let response = call.read(rest, body, Outbox::new(BOUNDS)).await?;
    Ok(response.map(axum::body::Body::new))
}

/// A call to be made.
pub(super) struct Call<'c> {
    pub(super) who: &'c Principal,
    pub(super) server: Arc<Server>,
    pub(super) headers: &'c HeaderMap,
    /// `true` if another replica forwarded the call.
    pub(super) is_forwarded: bool,
}

impl Call<'_> {
    async fn read<B>(
        self,
        rest: AppState,
        mut body: B,
        outbox: Arc<Outbox>,
    ) -> Result<Response<Body>, Problem>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    {
        let most = rest.gateway.settings().limits.max_body_bytes;
        let text = collect(&mut body, most).await?;
        self.made(&rest, text, outbox).await
    }

    pub(super) async fn made(
        self,
        rest: &Rest,
        text: Bytes,
        outbox: Arc<Outbox>,
    ) -> Result<Response<Body>, Problem> {
        let depth = rest.gateway.settings().limits.max_depth;
        let Self {
            who,
            server,
            headers,
            is_forwarded,
        } = self;
        let streams = prefers_stream(headers);
        let quick = if streams { None } else { plain(&text, depth) };
        let (frame, timeout, capabilities, replay_of) = match quick {
            Some(frame) => (frame, None, None, None),
            None => {
                let asked = input::read(&text, depth)?;
                let frame = request(&asked, streams, depth)?;
                let of_client = asked.capabilities.as_deref().map(RawValue::get);
                let of_client = of_client.map(|text| Bytes::copy_from_slice(text.as_bytes()));
                let replay_of = match asked.replay_of.as_deref() {
                    Some(call) => Some(Box::pin(rest.replayed(who, call)).await?),
                    None => None,
                };
                if !is_forwarded && let Some(address) = rest.front.place_elsewhere(&frame) {
                    let key = server.spec.key();
                    let answer = Box::pin(rest.call_at(&address, who, &key, headers, &text));
                    if let Some(answer) = answer.await {
                        return answer;
                    }
                }
                (frame, timeout(&asked)?, of_client, replay_of)
            }
        };
        let scope = Scope {
            project: server.spec.owner.clone(),
            server: Some(server.name().clone()),
            ..Scope::default()
        };
        // The project's settings determine which tools are disabled.
        rest.projects.admit(&scope).await?;
        let scope = rest.gateway.with_values(scope, headers);
        let scope = scope.map_err(|invalid| Problem::new(400, invalid.to_string()))?;
        let principal = who.id.clone();
        let caller = match capabilities {
            Some(_) => Caller::modern(scope, principal, outbox.clone()),
            None => Caller::legacy(scope, principal, outbox.clone()),
        };
        let caller = Caller {
            may_use: true,
            timeout,
            modern_capabilities: capabilities,
            replay_of,
            ..caller
        };
        let gateway = rest.gateway.clone();
        let name = server.name().clone();
        let answering: Answering =
            Box::pin(async move { gateway.call(&caller, &server, &frame).await });
        if streams {
            return Ok(streamed(name, outbox, answering));
        }
        let result = outcome(&name, answering.await)?;
        let mut text = Vec::with_capacity(result.len() + 11);
        text.extend_from_slice(b"{\"result\":");
        text.extend_from_slice(&result);
        text.push(b'}');
        Ok(json_body(StatusCode::OK, Body::text(text)))
    }
}

impl Rest {
    /// Checks `replay_of` and returns the id of the repeated call.
    async fn replayed(&self, who: &Principal, call: &str) -> Result<Arc<str>, Problem> {
        permit(who, Role::Admin, None)?;
        let known = found(self.projects.store().call_get(None, call).await)?;
        let why = "must be the id of a recorded call";
        let unknown = || Problem::field(422, "/replay_of", why);
        Ok(known.ok_or_else(unknown)?.call.id.into())
    }
}

/// Returns the request of a body with only a method and parameters, as most bodies are. Such a body is parsed once,
/// instead of once per check. Returns `None` for any other body: [`input::read`] then reports the error, if there is
/// one.
fn plain(body: &[u8], depth: usize) -> Option<Frame> {
    let members = body.trim_ascii_start().strip_prefix(b"{")?;
    let text = [br#"{"jsonrpc":"2.0","id":1,"#, members].concat();
    let frame = Frame::parse(text.into(), depth).ok()?;
    let fits = frame.kind() == Kind::Request
        && !frame.body().is_empty()
        && Object::of(frame.text())?.members().count() == 4
        && is_request(frame.method());
    fits.then_some(frame)
}

fn timeout(asked: &CallRequest) -> Result<Option<Duration>, Problem> {
    match asked.timeout_ms {
        None => Ok(None),
        Some(ms @ 1..=MAX_TIMEOUT_MS) => Ok(Some(Duration::from_millis(ms))),
        Some(_) => {
            let must = format!("must be a whole number from 1 to {MAX_TIMEOUT_MS}");
            Err(Problem::field(400, "/timeout_ms", must))
        }
    }
}

fn is_request(method: &str) -> bool {
    !method.is_empty() && !method.starts_with("notifications/")
}

/// Builds the JSON-RPC request. It gets a progress token if the response is a stream, and the metadata of 2026-07-28 if
/// the caller can answer questions.
fn request(asked: &CallRequest, streams: bool, depth: usize) -> Result<Frame, Problem> {
    if !is_request(&asked.method) {
        return Err(Problem::field(
            400,
            "/method",
            "must be the name of an MCP request, such as `tools/call`",
        ));
    }
    let params = asked.params.as_ref().map_or("{}", |params| params.get());
    let object = Object::of(params.as_bytes())
        .ok_or_else(|| Problem::field(400, "/params", "must be an object"))?;
    let has_meta = object.raw("_meta").is_some();
    let mut own = Vec::new();
    if let Some(capabilities) = &asked.capabilities {
        if !capabilities.get().starts_with('{') {
            return Err(Problem::field(400, "/capabilities", "must be an object"));
        }
        if has_meta {
            let why = "must be absent if `capabilities` is set: the gateway builds `_meta` from it";
            return Err(Problem::field(400, "/params/_meta", why));
        }
        let info = concat!(
            "{\"name\":\"toolwharf-rest\",\"version\":\"",
            env!("CARGO_PKG_VERSION"),
            "\"}"
        );
        own.push(meta::members(info, capabilities.get()));
    }
    if streams && !has_meta {
        own.push("\"progressToken\":1".to_owned());
    }
    let mut params = params.to_owned();
    if !own.is_empty() {
        let comma = match object.members().count() {
            0 => "",
            _ => ",",
        };
        params.insert_str(1, &format!("\"_meta\":{{{}}}{comma}", own.join(",")));
    }
    let method = quote(&asked.method);
    let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":{method},\"params\":{params}}}");
    Frame::parse(text.into(), depth + 1)
        .map_err(|error| Problem::new(400, format!("invalid request: {error}")))
}

/// Returns the result, or the error as an HTTP problem (H05).
fn outcome(name: &ServerName, answer: Answer) -> Result<Bytes, Problem> {
    let status = answer.status;
    let text = answer.into_text();
    let object = Object::of(&text);
    if let Some(result) = object.as_ref().and_then(|object| object.raw("result")) {
        return Ok(text.slice_ref(result));
    }
    let error = object.and_then(|object| {
        let error = without_lone_surrogates(object.raw("error")?);
        serde_json::from_slice::<McpError>(&error).ok()
    });
    let error = error.unwrap_or_else(|| McpError {
        code: mcp::error::INTERNAL_ERROR,
        message: format!("server `{name}` sent an invalid response"),
        data: None,
    });
    let own = error
        .data
        .as_ref()
        .filter(|data| data["server"] == name.as_str());
    let reason = own.and_then(|data| data["reason"].as_str());
    let needs_login = reason == Some("needs_login");
    let status = match (status, reason, error.code) {
        (Some(status), _, _) => status.as_u16(),
        // Not 401: the caller's own key is valid.
        _ if needs_login => 409,
        (None, Some("timeout"), _) => 504,
        (None, Some("server_busy" | "server_unavailable" | "server_not_ready"), _) => 503,
        (None, _, -32700 | -32600 | -32602) => 400,
        (None, _, -32601 | -32002) => 404,
        _ => 502,
    };
    let mut problem = Problem::new(status, error.message.clone());
    if status == 503 {
        let wait = own.and_then(|data| data["retryAfterMs"].as_u64());
        let seconds = wait.map_or(1, |ms| ms.div_ceil(1000));
        problem.retry_after = NonZeroU32::new(u32::try_from(seconds).unwrap_or(u32::MAX).max(1));
    }
    if needs_login {
        let link = own.and_then(|data| data["url"].as_str());
        let link = link.map(str::to_owned);
        problem.reason = Some("needs_login".to_owned());
        problem.login_url = link;
    }
    problem.mcp = Some(Box::new(error));
    Err(problem)
}

/// Returns the messages of a call, then its result, as an event stream.
fn streamed(name: ServerName, outbox: Arc<Outbox>, answering: Answering) -> Response<Body> {
    enum Stage {
        Going(ServerName, Arc<Outbox>, Answering),
        Over,
    }
    let stage = Stage::Going(name, outbox, answering);
    let events = stream::unfold(stage, async |stage| {
        let Stage::Going(name, outbox, mut answering) = stage else {
            return None;
        };
        let answer = tokio::select! {
            biased;
            message = outbox.next() => match message {
                Some(message) => {
                    let event = encode(Some("message"), None, &message);
                    return Some((event, Stage::Going(name, outbox, answering)));
                }
                None => answering.as_mut().await,
            },
            answer = answering.as_mut() => answer,
        };
        let mut text = Vec::new();
        while let Some((_, message)) = outbox.take() {
            text.extend_from_slice(&encode(Some("message"), None, &message));
        }
        let last = match outcome(&name, answer) {
            Ok(result) => encode(Some("result"), None, &result),
            Err(problem) => encode(Some("error"), None, &json!(*problem).to_string().into()),
        };
        text.extend_from_slice(&last);
        Some((text.into(), Stage::Over))
    });
    event_stream(events).map(Body::Other)
}

#[cfg(test)]
mod tests {
    use mcp::RpcError;
    use serde_json::Value;

    use super::*;

    #[test]
    fn paths_of_the_bridge() {
        let id = |method: &str, path: &str| {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .body(())
                .unwrap();
            called(&request)
        };
        let path = "/api/v1/mcp/servers/notes/call";
        assert_eq!(id("POST", path).as_deref(), Some("notes"));
        assert_eq!(id("POST", &format!("{path}?project=a")), None);
        assert_eq!(id("GET", path), None);
        for other in ["", "a/b/", "%61/", "notes/call/"] {
            let path = format!("/api/v1/mcp/servers/{other}call");
            assert_eq!(id("POST", &path), None, "{path}");
        }
    }

    #[test]
    fn a_body_that_is_read_at_once_is_the_same_request() {
        let depth = 8;
        for (body, is_plain) in [
            (r#"{"method":"tools/call","params":{"name":"echo"}}"#, true),
            (
                " { \"params\" : { \"a\" : [1] } , \"method\" : \"m\\u0061\" } ",
                true,
            ),
            (r#"{"method":"ping"}"#, false),
            (r#"{"method":"ping","params":null}"#, false),
            (r#"{"method":"ping","params":{},"timeout_ms":5}"#, false),
        ] {
            let slow = input::read(body.as_bytes(), depth).unwrap();
            let slow = request(&slow, false, depth).unwrap();
            let quick = plain(body.as_bytes(), depth);
            assert_eq!(quick.is_some(), is_plain, "{body}");
            let quick = quick.unwrap_or_else(|| slow.clone());
            assert_eq!(quick.method(), slow.method(), "{body}");
            assert_eq!(quick.id(), slow.id(), "{body}");
            let params = |frame: &Frame| serde_json::from_slice::<Value>(frame.body()).unwrap();
            assert_eq!(params(&quick), params(&slow), "{body}");
        }
    }

    #[test]
    fn a_call_that_needs_a_sign_in_says_where() {
        let name = ServerName::parse("files").unwrap();
        let refused = |data: &'static str| {
            let request = Frame::parse(r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#.into(), 8);
            let error = RpcError::internal("it needs a sign-in").with_data(data);
            let answer = Answer::error(&request.unwrap(), &error);
            let problem = outcome(&name, answer).unwrap_err();
            let (reason, link) = (problem.reason.clone(), problem.login_url.clone());
            (problem.status, reason, link)
        };
        let reason = Some("needs_login".to_owned());
        let link = Some("http://127.0.0.1/login/x".to_owned());
        for (data, expected) in [
            (
                r#"{"reason":"needs_login","server":"files","url":"http://127.0.0.1/login/x"}"#,
                (409, reason.clone(), link),
            ),
            (
                r#"{"reason":"needs_login","server":"files"}"#,
                (409, reason, None),
            ),
            // The server's own words.
            (
                r#"{"reason":"needs_login","url":"http://127.0.0.1"}"#,
                (502, None, None),
            ),
            (
                r#"{"reason":"server_unavailable","server":"files"}"#,
                (503, None, None),
            ),
        ] {
            assert_eq!(refused(data), expected, "{data}");
        }
    }

    #[test]
    fn what_is_wrong_is_not_read_at_once() {
        for body in [
            "",
            "{",
            "[]",
            "null",
            r#"{"method":"","params":{}}"#,
            r#"{"method":"notifications/x","params":{}}"#,
            r#"{"method":7,"params":{}}"#,
            r#"{"method":"m","params":[]}"#,
            r#"{"method":"m","params":{},"params":{}}"#,
            r#"{"method":"m","params":{"a":1,"a":2}}"#,
            r#"{"method":"m","params":{},"more":1}"#,
            r#"{"method":"m","params":{},"id":2}"#,
            r#"{"method":"m","params":{},"jsonrpc":"2.0"}"#,
            r#"{"method":"m","params":{},"result":{}}"#,
            r#"{"method":"m","params":{}} {}"#,
            r#"{"method":"m","params":{"a":[[[[[[[[[]]]]]]]]]}}"#,
        ] {
            assert!(plain(body.as_bytes(), 8).is_none(), "{body}");
            let asked = input::read(body.as_bytes(), 8);
            let wrong = asked.and_then(|asked| request(&asked, false, 8));
            assert_eq!(wrong.unwrap_err().status, 400, "{body}");
        }
    }
}
