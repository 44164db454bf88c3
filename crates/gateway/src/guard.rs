//! Access control of the listener: `Host`, `Origin`, and a key where one is required (2026-07-28
//! basic/transports/streamable-http "Security & Endpoint").

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use mcp::RpcError;
use model::{AddressRange, Settings, origin_and_prefix};
use sha2::{Digest, Sha256};

use super::proxied::Proxied;
use auth::{BASE, Identities, PAGE_SECRET, Principal, Refused, Role, base_of};

/// The tools that a client wants lists to contain: a [`model::ToolMode`].
pub const TOOLS: HeaderName = HeaderName::from_static("x-toolwharf-tools");
pub(crate) const PROJECT_ID: HeaderName = HeaderName::from_static("x-project-id");

#[derive(Clone)]
pub struct Guard {
    hosts: BTreeSet<String>,
    origins: BTreeSet<String>,
    /// Set if the listener binds to all addresses. Clients may then use any address of the machine, so any IP address
    /// is accepted as host.
    any_ip: bool,
    /// The path of the gateway's URL.
    prefix: Arc<str>,
    /// The scheme of connections to this listener.
    scheme: &'static str,
    /// The proxies that say at which address clients reach the gateway. None if the settings say that.
    proxies: Vec<AddressRange>,
    identities: Arc<Identities>,
    /// Set if all MCP requests need a key: other machines can connect, or the settings require a key. Requests through a
    /// trusted proxy need one in any case.
    closed: bool,
    anonymous: Arc<Principal>,
}

/// A refusal as an HTTP response.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub error: RpcError,
    /// The value of `WWW-Authenticate`, which says how to get a valid token.
    pub challenge: Option<HeaderValue>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self {
            status,
            error: RpcError::new(mcp::error::INVALID_REQUEST, why),
            challenge: None,
        }
    }
}

/// The parts of a request that identify its caller.
#[derive(Clone, Copy)]
pub struct RequestInfo<'r> {
    method: &'r Method,
    headers: &'r HeaderMap,
    path: &'r str,
}

impl<'r> RequestInfo<'r> {
    pub fn of<B>(request: &'r Request<B>) -> Self {
        Self {
            method: request.method(),
            headers: request.headers(),
            path: request.uri().path(),
        }
    }
}

impl Guard {
    pub fn new(settings: &Settings, address: IpAddr, identities: Arc<Identities>) -> Self {
        let mut hosts: BTreeSet<String> = settings
            .allowed_hosts
            .iter()
            .map(|host| host.to_ascii_lowercase())
            .collect();
        let public = settings.public_url.as_deref();
        let public = public.map(|url| origin_and_prefix(url).0);
        let host = public.and_then(|origin| origin.split_once("://"));
        hosts.extend(host.map(|(_, host)| host.to_ascii_lowercase()));
        hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        hosts.insert(match address {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        });
        Self {
            hosts,
            origins: settings
                .allowed_origins
                .iter()
                .map(String::as_str)
                .chain(public)
                .map(str::to_ascii_lowercase)
                .collect(),
            any_ip: address.is_unspecified(),
            prefix: origin_and_prefix(identities.tokens.base()).1.into(),
            scheme: if settings.tls.is_some() {
                "https"
            } else {
                "http"
            },
            proxies: match public {
                Some(_) => Vec::new(),
                None => settings.trusted_proxies.clone(),
            },
            // An issuer means that users must sign in. Behind a proxy all connections come from loopback.
            closed: settings.require_key || !address.is_loopback() || identities.tokens.are_taken(),
            identities,
            anonymous: passer_by(engine::ANONYMOUS.into()),
        }
    }

    /// Checks `Host` and `Origin` against DNS rebinding. Also rejects repeated headers that identify the caller or the
    /// project: a proxy may have checked the other value.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        for name in [header::HOST, header::AUTHORIZATION, PROJECT_ID, PAGE_SECRET] {
            if headers.get_all(&name).iter().nth(1).is_some() {
                let what = format!("header {name} occurs more than once");
                return Err(Refusal::new(StatusCode::BAD_REQUEST, what));
            }
        }
        let forbidden = |what: String| Refusal::new(StatusCode::FORBIDDEN, what);
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or_default();
        if !self.host_allowed(host) {
            let host: String = host.chars().take(100).collect();
            return Err(forbidden(format!(
                "Host `{host}` is not allowed; add it to `allowed_hosts`"
            )));
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let Some(origin) = origins.next() else {
            return Ok(());
        };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let ours = is_of(&origin, host);
        if origins.next().is_some() || !(ours || self.origin_allowed(&origin)) {
            let origin: String = origin.chars().take(100).collect();
            return Err(forbidden(format!(
                "Origin `{origin}` is not allowed; add it to `allowed_origins`"
            )));
        }
        Ok(())
    }

    fn host_allowed(&self, host: &str) -> bool {
        let Some(name) = host_name(host) else {
            return false;
        };
        if self.hosts.contains(name) {
            return true;
        }
        let host = host.to_ascii_lowercase();
        let name = &host[..name.len()];
        let is_ip = name
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .is_ok();
        self.hosts.contains(name) || self.hosts.contains(&host) || (self.any_ip && is_ip)
    }

    fn origin_allowed(&self, origin: &str) -> bool {
        if self.origins.contains(origin) || self.origins.contains("*") {
            return true;
        }
        let host = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        let name = host.and_then(host_name);
        matches!(name, Some("localhost" | "127.0.0.1" | "[::1]"))
    }

    pub(crate) fn identities(&self) -> &Arc<Identities> {
        &self.identities
    }

    /// The gateway's address for the client of a request.
    pub fn base<'s>(&'s self, headers: &'s HeaderMap) -> &'s str {
        base_of(headers).unwrap_or_else(|| self.identities.tokens.base())
    }

    /// The path of that address, in the form of [`Self::prefix`].
    pub fn prefix_of<'s>(&'s self, headers: &'s HeaderMap) -> &'s str {
        origin_and_prefix(self.base(headers)).1
    }

    /// Prepares a request of the peer at `from`: takes the client's scheme, host and path prefix from the headers of a
    /// trusted proxy, and removes the prefix from the path. A proxy may have removed it already. Headers of other peers
    /// are ignored.
    ///
    /// # Errors
    /// If the proxy's headers cannot be read. They decide where links and cookies lead, so nothing is guessed.
    pub(crate) fn arrive<B>(&self, from: IpAddr, request: &mut Request<B>) -> Result<(), Refusal> {
        match self.note_proxy(from, request.headers_mut())? {
            Some(prefix) => strip(&prefix, request.uri_mut()),
            None => strip(&self.prefix, request.uri_mut()),
        }
        Ok(())
    }

    /// Adds the address that a trusted proxy names. Returns its prefix.
    fn note_proxy(&self, from: IpAddr, headers: &mut HeaderMap) -> Result<Option<String>, Refusal> {
        headers.remove(BASE);
        if !self.proxies.iter().any(|range| range.contains(from)) {
            return Ok(None);
        }
        let wrong = |what: String| Refusal::new(StatusCode::BAD_REQUEST, what);
        let Some(proxied) = Proxied::read(headers).map_err(wrong)? else {
            return Ok(None);
        };
        if let Some(host) = &proxied.host {
            let value = host_name(host).and_then(|_| HeaderValue::try_from(host).ok());
            let unfit = || wrong("the proxy's header names no valid host".to_owned());
            headers.insert(header::HOST, value.ok_or_else(unfit)?);
        }
        let host = headers.get(header::HOST);
        let host = host.and_then(|host| host.to_str().ok());
        let host = host.filter(|host| host_name(host).is_some());
        let host = host.ok_or_else(|| wrong("the request names no valid host".to_owned()))?;
        let scheme = proxied.scheme.unwrap_or(self.scheme);
        let base = format!("{scheme}://{host}{}", proxied.prefix);
        let base = HeaderValue::try_from(base).map_err(|error| wrong(error.to_string()))?;
        headers.insert(BASE, base);
        Ok(Some(proxied.prefix))
    }

    /// The path of the URL in the settings: empty, or with a slash at its beginning and none at its end. Clients see it
    /// in front of all paths.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The principal of an MCP request. Sessions are bound to it.
    ///
    /// # Errors
    /// If a valid key or token is required and missing. If the request has a Toolwharf key that is not valid, even
    /// where no key is required.
    pub(crate) async fn principal(
        &self,
        asked: RequestInfo<'_>,
    ) -> Result<Arc<Principal>, Refusal> {
        let Some(bearer) = bearer(asked.headers) else {
            // A proxy serves other machines.
            return if self.closed || base_of(asked.headers).is_some() {
                Err(self.unauthorized(asked, None))
            } else {
                Ok(self.anonymous.clone())
            };
        };
        if let Some(principal) = self.identify(bearer, asked).await? {
            return Ok(principal);
        }
        let is_closed = self.closed || base_of(asked.headers).is_some();
        if is_closed || bearer.starts_with(auth::PREFIX.as_bytes()) {
            return Err(self.unauthorized(asked, Some(UNKNOWN_KEY)));
        }
        let digest = Sha256::digest(bearer);
        let digest = hex::encode(&digest[..16]);
        Ok(passer_by(format!("bearer:{digest}").into()))
    }

    /// The principal of a request that always needs a key or token.
    ///
    /// # Errors
    /// If a valid key or token is missing.
    pub async fn key(&self, asked: RequestInfo<'_>) -> Result<Arc<Principal>, Refusal> {
        let Some(bearer) = bearer(asked.headers) else {
            return self.browser(asked).await;
        };
        let principal = self.identify(bearer, asked).await?;
        principal.ok_or_else(|| self.unauthorized(asked, Some(UNKNOWN_KEY)))
    }

    /// The user who signed in at this browser, identified by its cookie and its page secret.
    ///
    /// Only pages of the same origin have the page secret. `Sec-Fetch-Site`, `Origin` and [`BY_SCRIPT`] are a second
    /// line of defence.
    async fn browser(&self, asked: RequestInfo<'_>) -> Result<Arc<Principal>, Refusal> {
        let who = self.identities.browser(asked.headers).await;
        let who = who.map_err(|refused| self.refusal(asked, refused))?;
        let who = who.ok_or_else(|| self.unauthorized(asked, None))?;
        let reads = *asked.method == Method::GET || *asked.method == Method::HEAD;
        let header = |name: &str| {
            asked
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let own_site = header("sec-fetch-site").is_none_or(|site| site == "same-origin");
        if own_site && (reads || self.is_own_page(asked.headers) && header(BY_SCRIPT).is_some()) {
            return Ok(who);
        }
        Err(Refusal::new(StatusCode::FORBIDDEN, FOREIGN_PAGE))
    }

    pub const NO_LINK: &str = "sign-in links need a private connection: use the gateway on loopback, or set an https `public_url`";

    /// A link that signs one browser in as `who`, once; `None` where others could read it. `headers`: those of the
    /// request for the link.
    ///
    /// # Errors
    /// Database errors.
    pub async fn link(
        &self,
        who: &Principal,
        headers: &HeaderMap,
    ) -> store::Result<Option<String>> {
        let base = self.base(headers);
        if !is_private(base) {
            return Ok(None);
        }
        let secret = self.identities.browsers.link(who).await?;
        Ok(Some(format!("{base}/sign-in#{secret}")))
    }

    /// Returns true if a page of this gateway made the request, judging by its `Origin`.
    pub(crate) fn is_own_page(&self, headers: &HeaderMap) -> bool {
        let text = |name| {
            headers
                .get(name)
                .and_then(|value: &HeaderValue| value.to_str().ok())
        };
        let origin = text(header::ORIGIN).unwrap_or_default();
        let host = text(header::HOST).unwrap_or_default();
        let (own, _) = origin_and_prefix(self.identities.tokens.base());
        is_of(origin, host) || origin.eq_ignore_ascii_case(own)
    }

    /// Returns true if the request has an administrator's key. Checks only keys in memory.
    pub(super) fn is_administrators(&self, headers: &HeaderMap) -> bool {
        let bearer = bearer(headers).and_then(|bearer| std::str::from_utf8(bearer).ok());
        let who = bearer.and_then(|bearer| self.identities.keys.identify(bearer));
        who.is_some_and(|who| who.may(Role::Admin, None))
    }

    async fn identify(
        &self,
        bearer: &[u8],
        asked: RequestInfo<'_>,
    ) -> Result<Option<Arc<Principal>>, Refusal> {
        let base = base_of(asked.headers);
        let path = resource(asked.path);
        let found = self.identities.identify(bearer, path, base).await;
        found.map_err(|refused| self.refusal(asked, refused))
    }

    fn refusal(&self, asked: RequestInfo<'_>, refused: Refused) -> Refusal {
        match refused {
            Refused::Invalid(why) => {
                self.unauthorized(asked, Some(&format!("the token is refused: {why}")))
            }
            Refused::Scope => {
                let scopes = self.identities.tokens.scopes().join(" ");
                let why = format!("the token needs all of the scopes `{scopes}`");
                Refusal {
                    challenge: self.challenge(asked, "error=\"insufficient_scope\", "),
                    ..Refusal::new(StatusCode::FORBIDDEN, why)
                }
            }
            Refused::Nobody(id) => Refusal::new(
                StatusCode::FORBIDDEN,
                format!(
                    "`{id}` is signed in, but no rule in `access` grants a role on this gateway: ask an administrator"
                ),
            ),
            Refused::Away(why) => Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("the key or token cannot be checked now: {why}"),
            ),
        }
    }

    /// The refusal for a missing or invalid key or token.
    fn unauthorized(&self, asked: RequestInfo<'_>, why: Option<&str>) -> Refusal {
        let error = match why {
            Some(_) => "error=\"invalid_token\", ",
            None => "",
        };
        let no_key = match self.identities.tokens.are_taken() {
            true => NO_TOKEN,
            false => NO_KEY,
        };
        Refusal {
            challenge: self.challenge(asked, error),
            ..Refusal::new(StatusCode::UNAUTHORIZED, why.unwrap_or(no_key))
        }
    }

    /// Tells a client where to get a token (RFC 9728, section 5.1), and for which scopes; `None` without issuers.
    fn challenge(&self, asked: RequestInfo<'_>, error: &str) -> Option<HeaderValue> {
        let tokens = &self.identities.tokens;
        if !tokens.are_taken() {
            return None;
        }
        let base = self.base(asked.headers);
        let path = resource(asked.path).unwrap_or("/mcp");
        // Also found at the place of RFC 9728, section 3.1, in front of the prefix. A proxy may not forward that one.
        let scopes = tokens.scopes().join(" ");
        let scope = match scopes.is_empty() {
            true => String::new(),
            false => format!(", scope=\"{scopes}\""),
        };
        let text = format!("Bearer {error}resource_metadata=\"{base}{METADATA}{path}\"{scope}");
        HeaderValue::try_from(text).ok()
    }
}

/// `WWW-Authenticate` of a response.
pub fn challenge(status: StatusCode, challenge: Option<&HeaderValue>) -> Option<HeaderValue> {
    let plain = (status == StatusCode::UNAUTHORIZED).then(|| HeaderValue::from_static("Bearer"));
    challenge.cloned().or(plain)
}

/// A header that only a script of the same origin can add to a request.
const BY_SCRIPT: &str = "x-requested-with";
const FOREIGN_PAGE: &str = "a browser sign-in is valid only for pages of this gateway: changes need its `Origin` and the header \
                            X-Requested-With; programs must send `Authorization: Bearer …`";
const NO_KEY: &str = "a key is needed: send `Authorization: Bearer twh_…`; the administrator's key is in the data \
                      directory's file `admin-token`, and `toolwharf key create` creates others";
const NO_TOKEN: &str = "a token or a key is needed: sign in at the issuer named in `WWW-Authenticate`, or send `Authorization: \
                        Bearer twh_…` with a key from `toolwharf key create`";
const UNKNOWN_KEY: &str =
    "the key is unknown, revoked or expired; `toolwharf key create` makes a new one";

/// Path of the metadata of protected resources (RFC 9728). The resource's path follows.
pub const METADATA: &str = "/.well-known/oauth-protected-resource";

/// The rest of a path behind a prefix; `None` if the path is not below it. The rest is empty, or begins with `/` or `?`.
pub(crate) fn below<'p>(prefix: &str, path: &'p str) -> Option<&'p str> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with(['/', '?'])).then_some(rest)
}

/// Removes a prefix from the path of a request.
fn strip(prefix: &str, uri: &mut Uri) {
    if prefix.is_empty() {
        return;
    }
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    let Some(target) = below(prefix, target) else {
        return;
    };
    let slash = if target.starts_with('/') { "" } else { "/" };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = format!("{slash}{target}").parse().ok();
    if let Ok(stripped) = Uri::from_parts(parts) {
        *uri = stripped;
    }
}

/// The path of the resource that a request is for; `None` for a message to a session, which named the resource when it
/// was opened.
fn resource(path: &str) -> Option<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/%".contains(&byte);
    if path == "/message" {
        return None;
    }
    let path = path.trim_end_matches('/');
    let ours = path == "/mcp" || path.starts_with("/mcp/");
    Some(match ours && path.bytes().all(plain) {
        true => path,
        false if path.starts_with("/api/") => "/api/v1",
        false => "/mcp",
    })
}

/// A local user without a key, with the permission to call tools.
fn passer_by(id: Arc<str>) -> Arc<Principal> {
    Arc::new(Principal::new(id, Role::Call, None))
}

/// Returns the bearer token as bytes. A UTF-8 check on each call would scan its thousand bytes once more.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(BEARER.len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(BEARER);
    is_bearer.then(|| token.trim_ascii())
}

const BEARER: &[u8] = b"bearer ";

/// Returns true if a page of this origin came from the host in the request, and thus from the gateway, since the host
/// name was checked. The scheme may differ, since a proxy may terminate TLS.
fn is_of(origin: &str, host: &str) -> bool {
    let of = origin.strip_prefix("http://");
    let of = of.or_else(|| origin.strip_prefix("https://"));
    of.is_some_and(|of| !of.is_empty() && of.eq_ignore_ascii_case(host))
}

/// The host of `host` or `host:port`; `None` if the text contains anything else, such as a user or a path.
fn host_name(text: &str) -> Option<&str> {
    let end = match text.strip_prefix('[') {
        Some(inner) => inner.find(']')? + 2,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (name, port) = text.split_at(end);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~[]:".contains(&byte);
    let has_port = match port.strip_prefix(':') {
        Some(port) => port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    (name.bytes().all(plain) && has_port).then_some(name)
}

/// Returns true if others cannot read the traffic to this address.
fn is_private(base: &str) -> bool {
    let Some((scheme, host)) = origin_and_prefix(base).0.split_once("://") else {
        return false;
    };
    let Some(name) = host_name(host) else {
        return false;
    };
    let ip = name.trim_matches(['[', ']']).parse::<IpAddr>();
    scheme == "https" || name == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests;
