//! An MCP server of both eras that requires access tokens of an [`Issuer`].
//!
//! Its metadata names the issuer (RFC 9728). It accepts unexpired tokens of that issuer whose audience is this server.
//! Its tools:
//!
//! | tool | required scope | returns |
//! | --- | --- | --- |
//! | `whoami` | `files:read` | the `sub` of the token |
//! | `admin` | `files:write` | the scopes of the token |

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{
    Algorithm, DecodingKey, Validation,
    jwk::{JwkSet, ThumbprintHash},
};
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinSet;

use crate::{DEADLINE, Issuer, RawClient, peer, serve::serve};

/// The scopes that the issuer must be configured with.
pub const SCOPES: [&str; 2] = ["files:read", "files:write"];
const METADATA: &str = "/.well-known/oauth-protected-resource/mcp";

/// A protected server. Dropping it stops the server.
pub struct Protected {
    server: Arc<Server>,
    _tasks: JoinSet<()>,
}

/// Behaviour that a test may change.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Refuse every request with 401.
    pub refuse: bool,
    /// The issuer whose tokens are accepted, and which the metadata names.
    pub issuer: String,
    /// The scopes that `admin` needs.
    pub admin: Vec<String>,
    /// Metadata to serve instead of the correct one.
    pub metadata: Option<Value>,
    /// Seconds by which the server's clock is ahead.
    pub ahead: u64,
    /// Tokens that are no longer accepted.
    pub revoked: HashSet<String>,
    /// Accept only tokens bound to a key, with a proof for each request (RFC 9449).
    pub dpop: bool,
}

struct Server {
    /// The server's URL, which is the required audience of tokens.
    resource: String,
    state: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    rules: Rules,
    keys: HashMap<String, JwkSet>,
    known: HashMap<String, Claims>,
    calls: BTreeMap<String, u64>,
    refused: u64,
    /// The ids of all proofs so far.
    proofs: HashSet<String>,
}

/// The claims of a DPoP proof.
#[derive(Deserialize)]
struct Proof {
    jti: String,
    htm: String,
    htu: String,
    ath: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    exp: u64,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    cnf: Value,
}

impl Protected {
    /// Starts a server on a free loopback port. The issuer must know [`SCOPES`].
    pub async fn start(issuer: &Issuer) -> Self {
        let mut inner = Inner::default();
        inner.rules.issuer = issuer.url().to_owned();
        inner.rules.admin = vec!["files:write".to_owned()];
        let mut server = None;
        let (_, tasks) = serve(|url| {
            let made = Arc::new(Server {
                resource: format!("{url}/mcp"),
                state: Mutex::new(inner),
            });
            Router::new()
                .route("/mcp", post(receive))
                .route(METADATA, get(metadata))
                .with_state(server.insert(made).clone())
        })
        .await;
        Self {
            server: server.expect("it is made above"),
            _tasks: tasks,
        }
    }

    #[must_use]
    pub fn url(&self) -> &str {
        &self.server.resource
    }

    /// Changes the rules from now on.
    pub fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.server.inner().rules);
    }

    /// Refuses all tokens that it has accepted so far.
    pub fn revoke(&self) {
        let mut inner = self.server.inner();
        let known: Vec<String> = inner.known.keys().cloned().collect();
        inner.rules.revoked.extend(known);
    }

    /// Returns the number of answered tool calls, by token.
    #[must_use]
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.server.inner().calls.clone()
    }

    /// Returns all tokens that were accepted.
    #[must_use]
    pub fn tokens(&self) -> Vec<String> {
        self.server.inner().known.keys().cloned().collect()
    }

    /// Returns how many requests were refused with 401 or 403.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.server.inner().refused
    }
}

impl Server {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.state.lock()
    }

    fn scheme(&self) -> &'static str {
        match self.inner().rules.dpop {
            true => "DPoP",
            false => "Bearer",
        }
    }

    /// Returns whether a request proves possession of the key that its token is bound to (RFC 9449, 4.3).
    fn is_proved(&self, headers: &HeaderMap, token: &str, claims: &Claims) -> Option<bool> {
        let proof = headers.get("dpop")?.to_str().ok()?;
        let key = jsonwebtoken::decode_header(proof).ok()?.jwk?;
        let mut rules = Validation::new(Algorithm::ES256);
        rules.required_spec_claims.clear();
        let public = DecodingKey::from_jwk(&key).ok()?;
        let proof = jsonwebtoken::decode::<Proof>(proof, &public, &rules)
            .ok()?
            .claims;
        let is_of_key = claims.cnf["jkt"] == key.thumbprint(ThumbprintHash::SHA256).ok()?;
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(token));
        let is_fresh = self.inner().proofs.insert(proof.jti);
        Some(
            is_of_key
                && is_fresh
                && proof.htm == "POST"
                && proof.htu == self.resource
                && proof.ath == digest,
        )
    }

    fn challenge(&self, status: StatusCode, error: &str, scope: &str) -> Response {
        self.inner().refused += 1;
        let base = self.resource.trim_end_matches("/mcp");
        let error = match error {
            "" => String::new(),
            error => format!("error=\"{error}\", "),
        };
        let scheme = self.scheme();
        let challenge =
            format!("{scheme} {error}resource_metadata=\"{base}{METADATA}\", scope=\"{scope}\"");
        (status, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
    }

    /// Returns the token and claims of a request, or `None` if the token is not accepted.
    async fn caller(&self, headers: &HeaderMap) -> Option<(String, Claims)> {
        let token = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let token = token.strip_prefix(self.scheme())?.strip_prefix(' ')?;
        let (rules, known, keys) = {
            let inner = self.inner();
            let keys = inner.keys.get(&inner.rules.issuer).cloned();
            (inner.rules.clone(), inner.known.get(token).cloned(), keys)
        };
        if rules.refuse || rules.revoked.contains(token) {
            return None;
        }
        let claims = match known {
            Some(claims) => claims,
            None => {
                let keys = match keys {
                    Some(keys) => keys,
                    None => keys_of(&rules.issuer).await,
                };
                let claims = verified(token, &keys, &self.resource)?;
                let mut inner = self.inner();
                inner.keys.insert(rules.issuer.clone(), keys);
                inner.known.insert(token.to_owned(), claims.clone());
                claims
            }
        };
        let now = jsonwebtoken::get_current_timestamp() + rules.ahead;
        let is_good = claims.iss == rules.issuer && claims.exp > now;
        if rules.dpop && !self.is_proved(headers, token, &claims)? {
            return None;
        }
        is_good.then(|| (token.to_owned(), claims))
    }
}

async fn keys_of(issuer: &str) -> JwkSet {
    let client = RawClient::new(&format!("{issuer}/jwks"));
    let keys = client.get(&[]).await.collect(DEADLINE).await;
    serde_json::from_slice(&keys.body).expect("the issuer's keys")
}

fn verified(token: &str, keys: &JwkSet, audience: &str) -> Option<Claims> {
    let kid = jsonwebtoken::decode_header(token).ok()?.kid?;
    let key = DecodingKey::from_jwk(keys.find(&kid)?).ok()?;
    let mut rules = Validation::new(Algorithm::RS256);
    rules.set_audience(&[audience]);
    rules.leeway = 0;
    let read = jsonwebtoken::decode::<Claims>(token, &key, &rules).ok()?;
    Some(read.claims)
}

async fn metadata(State(server): State<Arc<Server>>) -> Response {
    let rules = server.inner().rules.clone();
    let right = json!({
        "resource": server.resource,
        "authorization_servers": [rules.issuer],
        "scopes_supported": SCOPES,
    });
    Json(rules.metadata.unwrap_or(right)).into_response()
}

async fn receive(State(server): State<Arc<Server>>, headers: HeaderMap, body: Bytes) -> Response {
    let Some((token, claims)) = server.caller(&headers).await else {
        let error = match headers.contains_key(header::AUTHORIZATION) {
            true => "invalid_token",
            false => "",
        };
        return server.challenge(StatusCode::UNAUTHORIZED, error, "files:read");
    };
    let Ok(message) = serde_json::from_slice::<Value>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else {
        return StatusCode::ACCEPTED.into_response();
    };
    let params = &message["params"];
    let mut result = match method {
        "initialize" => json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "protected", "version": "1" },
        }),
        "server/discover" => json!({
            "supportedVersions": [peer::MODERN],
            "capabilities": { "tools": {} },
            "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "protected", "version": "1" } },
        }),
        "ping" => json!({}),
        "tools/list" => {
            let tool = |name| json!({ "name": name, "inputSchema": { "type": "object" } });
            json!({ "tools": [tool("whoami"), tool("admin")] })
        }
        "tools/call" => {
            let granted: Vec<&str> = claims.scope.split_whitespace().collect();
            let (needed, text) = match params["name"].as_str() {
                Some("admin") => (server.inner().rules.admin.clone(), &claims.scope),
                _ => (vec!["files:read".to_owned()], &claims.sub),
            };
            if !needed.iter().all(|scope| granted.contains(&&**scope)) {
                let needed = needed.join(" ");
                return server.challenge(StatusCode::FORBIDDEN, "insufficient_scope", &needed);
            }
            *server.inner().calls.entry(token).or_default() += 1;
            json!({ "content": [{ "type": "text", "text": text }] })
        }
        _ => {
            let error = json!({ "code": -32601, "message": "Method not found" });
            return Json(json!({ "jsonrpc": "2.0", "id": id, "error": error })).into_response();
        }
    };
    if params["_meta"]["io.modelcontextprotocol/protocolVersion"] == peer::MODERN {
        result["resultType"] = json!("complete");
        if method != "tools/call" {
            result["ttlMs"] = json!(0);
            result["cacheScope"] = json!("private");
        }
    }
    Json(json!({ "jsonrpc": "2.0", "id": id, "result": result })).into_response()
}
