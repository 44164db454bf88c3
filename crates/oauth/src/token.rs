//! The token endpoint: exchanges codes, refresh tokens and client credentials for access tokens, and revokes tokens.

use std::fmt;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use model::{ClientAuth, Login};
use serde::{Deserialize, Serialize};

use crate::{
    Client, Discovery, Http,
    dpop::{self, Key},
    error::{Code, Error, excerpt},
    now,
    request::{basic, post_form, random, refusal, unreadable},
};

/// Maximum bytes of a token. Longer tokens are refused.
const MAX_TOKEN_BYTES: usize = 64 * 1024;
/// The error for a client that the issuer does not know, or that fails to authenticate (RFC 6749, 5.2).
pub(crate) const INVALID_CLIENT: &str = "invalid_client";
/// Lifetime of our signed assertions in seconds.
const ASSERTION_LIFETIME_SECS: i64 = 60;

/// Tokens from an issuer.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    pub access: String,
    pub refresh: Option<String>,
    /// When the access token expires, in seconds since 1970. `None` if the issuer did not say.
    pub expires_at: Option<i64>,
    /// The granted scopes.
    pub scopes: Vec<String>,
    /// The key that the tokens are bound to, if any.
    #[serde(default)]
    pub key: Option<Key>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("refresh", &self.refresh.is_some())
            .field("expires_at", &self.expires_at)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

/// Refreshes the access token.
///
/// # Errors
/// [`Code::Refused`]: the user has to sign in again. [`Code::Unreachable`]: a later attempt may succeed.
pub async fn refresh(
    http: &dyn Http,
    discovery: &Discovery,
    client: &Client,
    login: &Login,
    tokens: &Tokens,
) -> Result<Tokens, Error> {
    let Some(refresh) = &tokens.refresh else {
        let what = "the access token has expired, and the issuer sent no refresh token";
        return Err(Error::new(Code::Refused, what));
    };
    let form = vec![
        ("grant_type", "refresh_token".to_owned()),
        ("refresh_token", refresh.clone()),
    ];
    let key = tokens.key.clone();
    let mut fresh = bound(http, discovery, client, login, form, Code::Refused, key).await?;
    // An issuer that does not rotate refresh tokens omits the new one (RFC 6749, 6).
    fresh.refresh = fresh.refresh.or_else(|| tokens.refresh.clone());
    if fresh.scopes == discovery.scopes {
        fresh.scopes.clone_from(&tokens.scopes);
    }
    Ok(fresh)
}

/// Gets an access token for the client itself (OAuth 2.1, 4.2).
///
/// # Errors
/// The issuer is unreachable or refused.
pub async fn of_client(
    http: &dyn Http,
    discovery: &Discovery,
    client: &Client,
    login: &Login,
) -> Result<Tokens, Error> {
    let mut form = vec![("grant_type", "client_credentials".to_owned())];
    if !discovery.scopes.is_empty() {
        form.push(("scope", discovery.scopes.join(" ")));
    }
    request(http, discovery, client, login, form, Code::Refused).await
}

/// Revokes the tokens, if the issuer supports it (RFC 7009).
///
/// # Errors
/// The issuer is unreachable or did not revoke a token.
pub async fn revoke(
    http: &dyn Http,
    discovery: &Discovery,
    client: &Client,
    login: &Login,
    tokens: &Tokens,
) -> Result<(), Error> {
    let Some(named) = discovery.metadata.revocation_endpoint.as_deref() else {
        return Ok(());
    };
    let place = discovery
        .metadata
        .place("revocation endpoint", Some(named))?;
    let kinds = [
        (tokens.refresh.as_ref(), "refresh_token"),
        (Some(&tokens.access), "access_token"),
    ];
    for (token, kind) in kinds {
        let Some(token) = token else { continue };
        let mut form = vec![
            ("token", token.clone()),
            ("token_type_hint", kind.to_owned()),
        ];
        let shown = authenticate(discovery, client, login, &mut form)?;
        let response = post_form(http, &place, &form, shown, None).await?;
        if !response.status().is_success() {
            let (_, said) = refusal(&response);
            return Err(unreadable(
                &place,
                &format!("it did not revoke the token: {said}"),
            ));
        }
    }
    Ok(())
}

/// Sends a request to the token endpoint. A refusal becomes an error with the code `refused`.
pub(crate) async fn request(
    http: &dyn Http,
    discovery: &Discovery,
    client: &Client,
    login: &Login,
    form: Vec<(&'static str, String)>,
    refused: Code,
) -> Result<Tokens, Error> {
    bound(http, discovery, client, login, form, refused, None).await
}

/// Like [`request`], for tokens bound to `key`. Without `key`, a new key is generated if [`Discovery::dpop`] is set.
async fn bound(
    http: &dyn Http,
    discovery: &Discovery,
    client: &Client,
    login: &Login,
    mut form: Vec<(&'static str, String)>,
    refused: Code,
    key: Option<Key>,
) -> Result<Tokens, Error> {
    let place = discovery.metadata.token_endpoint()?;
    if let Some(resource) = &discovery.resource {
        form.push(("resource", resource.clone()));
    }
    let (response, key) = post(http, discovery, client, login, form, key).await?;
    let status = response.status();
    if status.is_success()
        && let Some(tokens) = read(response.body(), &discovery.scopes, key)
    {
        return Ok(tokens);
    }
    let (error, said) = refusal(&response);
    // A response without an OAuth error may come from anything, such as a proxy in between. Errors of a busy issuer are
    // not refusals. GitHub refuses with HTTP 200.
    Err(match error.as_deref() {
        Some(error) if !status.is_server_error() && !is_passing(status, error) => {
            let issuer = &discovery.metadata.issuer;
            let what = match error {
                INVALID_CLIENT => client.unknown(login, issuer, &said),
                _ => {
                    let issuer = excerpt(issuer);
                    format!("the issuer {issuer} refused the token request: {said}")
                }
            };
            Error::new(refused, what)
        }
        None if status.is_success() => unreadable(&place, "its response contains no bearer token"),
        _ => unreadable(&place, &format!("it answered {said}")),
    })
}

/// Returns true if the issuer has forgotten a registered client. It then refuses any request of the client, here one
/// with an invented refresh token, with `invalid_client` instead of `invalid_grant`. An invented code would look like an
/// attempt to guess codes. False if that cannot be found out.
pub async fn is_forgotten(
    http: &dyn Http,
    discovery: &Discovery,
    client: &Client,
    login: &Login,
) -> bool {
    let form = vec![
        ("grant_type", "refresh_token".to_owned()),
        ("refresh_token", random()),
    ];
    let answer = post(http, discovery, client, login, form, None).await;
    answer.is_ok_and(|(response, _)| refusal(&response).0.as_deref() == Some(INVALID_CLIENT))
}

/// Posts a form to the token endpoint as the client, and again if the issuer requires a nonce (RFC 9449, 8). Returns
/// the response and the key of the proof.
pub(crate) async fn post(
    http: &dyn Http,
    discovery: &Discovery,
    client: &Client,
    login: &Login,
    form: Vec<(&'static str, String)>,
    key: Option<Key>,
) -> Result<(Response<Bytes>, Option<Key>), Error> {
    let place = discovery.metadata.token_endpoint()?;
    let key = key.or_else(|| discovery.dpop.then(Key::generate).flatten());
    let mut nonce = None;
    loop {
        let mut form = form.clone();
        let shown = authenticate(discovery, client, login, &mut form)?;
        let proof = key
            .as_ref()
            .and_then(|key| key.proof("POST", place.as_str(), nonce.as_deref(), None));
        let response = post_form(http, &place, &form, shown, proof).await?;
        let wanted = dpop::nonce(&response).filter(|_| key.is_some() && nonce.is_none());
        match wanted.map(str::to_owned) {
            Some(wanted) if refusal(&response).0.as_deref() == Some(dpop::WANTS_NONCE) => {
                nonce = Some(wanted);
            }
            _ => return Ok((response, key)),
        }
    }
}

/// Returns true if the error is temporary.
fn is_passing(status: StatusCode, error: &str) -> bool {
    let is_busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
    is_busy || ["temporarily_unavailable", "server_error", "slow_down"].contains(&error)
}

/// Parses a token response (OAuth 2.1, 3.2.3). Without `scope`, the requested scopes were granted. `key` is the key of
/// the proof; the response says whether the token is bound to it.
pub(crate) fn read(body: &[u8], asked: &[String], key: Option<Key>) -> Option<Tokens> {
    #[derive(Deserialize)]
    struct Answer {
        access_token: String,
        token_type: Option<String>,
        #[serde(default, deserialize_with = "seconds")]
        expires_in: Option<i64>,
        refresh_token: Option<String>,
        scope: Option<String>,
    }
    let answer: Answer = serde_json::from_slice(body).ok()?;
    let is_of = |kind: &str| {
        let said = answer.token_type.as_deref().unwrap_or("bearer");
        said.eq_ignore_ascii_case(kind)
    };
    let key = key.filter(|_| is_of("dpop"));
    let fits = |token: &str| {
        (1..=MAX_TOKEN_BYTES).contains(&token.len())
            && token.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if !(is_of("bearer") || key.is_some()) || !fits(&answer.access_token) {
        return None;
    }
    let scopes = answer
        .scope
        .as_deref()
        .map(|scope| scope.split_whitespace());
    Some(Tokens {
        key,
        scopes: scopes.map_or_else(|| asked.to_vec(), |all| all.map(str::to_owned).collect()),
        access: answer.access_token,
        refresh: answer.refresh_token.filter(|token| fits(token)),
        expires_at: answer
            .expires_in
            .map(|lasts| now().saturating_add(lasts.max(0))),
    })
}

/// Reads a number that some issuers write as a string or with a decimal point.
fn seconds<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<i64>, D::Error> {
    let value = serde_json::Value::deserialize(value)?;
    let whole = value.as_i64().or_else(|| value.as_str()?.parse().ok());
    let rounded = || {
        let seconds = value.as_f64().filter(|it| (0.0..1e12).contains(it))?;
        #[expect(clippy::cast_possible_truncation, reason = "the value is below 1e12")]
        Some(seconds as i64)
    };
    Ok(whole.or_else(rounded))
}

/// Adds the client's authentication to the form, or returns it as a header.
pub(crate) fn authenticate(
    discovery: &Discovery,
    client: &Client,
    login: &Login,
    form: &mut Vec<(&'static str, String)>,
) -> Result<Option<HeaderValue>, Error> {
    let secret = client.secret.as_deref().unwrap_or_default();
    match client.auth {
        ClientAuth::ClientSecretBasic => return basic(&client.id, secret).map(Some),
        ClientAuth::None => form.push(("client_id", client.id.clone())),
        ClientAuth::ClientSecretPost => {
            form.push(("client_id", client.id.clone()));
            form.push(("client_secret", secret.to_owned()));
        }
        ClientAuth::PrivateKeyJwt => {
            let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
            form.push(("client_id", client.id.clone()));
            form.push(("client_assertion_type", kind.to_owned()));
            form.push(("client_assertion", assertion(discovery, client, login)?));
        }
    }
    Ok(None)
}

/// A signed assertion of the client's identity (RFC 7523, 3).
fn assertion(discovery: &Discovery, client: &Client, login: &Login) -> Result<String, Error> {
    let unusable = |why: &str| {
        let what = format!("`privateKey` in the entry's `login` cannot be used: {why}");
        Error::new(Code::NoClient, what)
    };
    let pem = login.private_key.as_deref().unwrap_or_default().as_bytes();
    let keys = [
        (Algorithm::ES256, EncodingKey::from_ec_pem(pem)),
        (Algorithm::RS256, EncodingKey::from_rsa_pem(pem)),
        (Algorithm::EdDSA, EncodingKey::from_ed_pem(pem)),
    ];
    let usable = keys
        .into_iter()
        .find_map(|(kind, key)| Some((kind, key.ok()?)));
    let (algorithm, key) = usable
        .ok_or_else(|| unusable("it must be the PEM of an EC (P-256), RSA or Ed25519 key"))?;
    let claims = serde_json::json!({
        "iss": client.id, "sub": client.id, "aud": discovery.metadata.issuer,
        "jti": random(), "iat": now(), "exp": now() + ASSERTION_LIFETIME_SECS,
    });
    jsonwebtoken::encode(&Header::new(algorithm), &claims, &key)
        .map_err(|_| unusable("it cannot sign"))
}
