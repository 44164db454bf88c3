//! Client identities at issuers (2026-07-28 basic/authorization "Client Registration").

use std::fmt;

use model::{ClientAuth, Idp, Login};
use serde::{Deserialize, Serialize};
use serde_json::json;
use url::Url;

use crate::{
    Discovery, Http, Identity, Metadata,
    error::{Code, Error, excerpt},
    metadata::DEVICE_CODE_GRANT,
    request::{is_loopback, post_json, refusal, unreadable},
};

/// A client of one issuer. Not valid at any other.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    pub id: String,
    pub secret: Option<String>,
    pub auth: ClientAuth,
    /// The redirect URI of a client that Toolwharf registered. `None` for other clients.
    pub redirect_uri: Option<String>,
    /// When the secret expires, in seconds since 1970.
    pub expires_at: Option<i64>,
    /// The scopes that the client was registered for. Issuers refuse other scopes.
    #[serde(default)]
    pub scopes: Vec<String>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id)
            .field("auth", &self.auth)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// The client configured for an identity provider.
    pub(crate) fn of_idp(idp: &Idp, metadata: &Metadata) -> Self {
        let secret = idp.client_secret.as_ref();
        Self {
            id: idp.client_id.clone(),
            secret: secret.map(|secret| secret.reveal().to_owned()),
            auth: secret.map_or(ClientAuth::None, |_| with_secret(metadata)),
            redirect_uri: None,
            expires_at: None,
            scopes: Vec::new(),
        }
    }

    /// The client configured in an entry.
    fn of_entry(id: &str, login: &Login, metadata: &Metadata) -> Self {
        let usual = match (&login.client_secret, &login.private_key) {
            (_, Some(_)) => ClientAuth::PrivateKeyJwt,
            (Some(_), None) => with_secret(metadata),
            (None, None) => ClientAuth::None,
        };
        Self {
            id: id.to_owned(),
            secret: login.client_secret.clone(),
            auth: login.client_auth.unwrap_or(usual),
            redirect_uri: None,
            expires_at: None,
            scopes: Vec::new(),
        }
    }

    /// Why a request failed with `invalid_client`, and the way out. Only a client that Toolwharf registered can be
    /// registered again.
    pub(crate) fn unknown(&self, login: &Login, issuer: &str, said: &str) -> String {
        let (id, issuer) = (excerpt(&self.id), excerpt(issuer));
        if self.redirect_uri.is_some() {
            return format!(
                "the issuer {issuer} no longer knows the client that Toolwharf registered there ({said}): sign in again, and \
                 Toolwharf registers again"
            );
        }
        let is_document = login.client_id.is_none() && id.starts_with("https://");
        let way_out = match is_document {
            true => "it must be able to read this document",
            false => {
                "Toolwharf did not register this client, so it cannot register it again: correct the client id or its \
                 secret in the entry's `login`"
            }
        };
        format!("the issuer {issuer} does not accept the client `{id}` ({said}): {way_out}")
    }
}

/// How a secret is sent if the entry does not say. `client_secret_basic` is the default of the standard (RFC 8414, 2).
fn with_secret(metadata: &Metadata) -> ClientAuth {
    match &metadata.token_endpoint_auth_methods_supported {
        Some(methods) if !methods.iter().any(|it| it == "client_secret_basic") => {
            ClientAuth::ClientSecretPost
        }
        _ => ClientAuth::ClientSecretBasic,
    }
}

/// Chooses the client: the one in the entry, our metadata document, the registered one (`known`), or a new registration
/// if the registered one has expired or lacks a scope.
///
/// # Errors
/// No client is available, or the issuer refuses the registration.
pub async fn identify(
    http: &dyn Http,
    discovery: &Discovery,
    login: &Login,
    identity: &Identity,
    known: Option<Client>,
) -> Result<Client, Error> {
    let metadata = &discovery.metadata;
    if let Some(id) = &login.client_id {
        return Ok(Client::of_entry(id, login, metadata));
    }
    if !login.grant.needs_person() {
        let what = "this `grant` needs a client that the issuer knows: register one there by hand, and set `clientId` in the entry's `login`";
        return Err(Error::new(Code::NoClient, what));
    }
    if metadata.client_id_metadata_document_supported
        && let Some(id) = &identity.metadata_url
    {
        return Ok(Client {
            id: id.clone(),
            secret: None,
            auth: ClientAuth::None,
            redirect_uri: None,
            expires_at: None,
            scopes: Vec::new(),
        });
    }
    let is_ours = |client: &Client| client.redirect_uri.as_ref() == Some(&identity.redirect_uri);
    let known = known.filter(is_ours);
    let mut scopes = known
        .as_ref()
        .map_or_else(Vec::new, |client| client.scopes.clone());
    let before = scopes.len();
    for scope in &discovery.scopes {
        if !scopes.contains(scope) {
            scopes.push(scope.clone());
        }
    }
    let is_usable = |client: &Client| {
        scopes.len() == before && client.expires_at.is_none_or(|end| end > crate::now() + 60)
    };
    match known.filter(is_usable) {
        Some(client) => Ok(client),
        None => register(http, discovery, identity, scopes).await,
    }
}

/// Dynamic client registration (RFC 7591).
async fn register(
    http: &dyn Http,
    discovery: &Discovery,
    identity: &Identity,
    scopes: Vec<String>,
) -> Result<Client, Error> {
    #[derive(Deserialize)]
    struct Registered {
        client_id: String,
        client_secret: Option<String>,
        client_secret_expires_at: Option<i64>,
        token_endpoint_auth_method: Option<ClientAuth>,
    }
    let metadata = &discovery.metadata;
    let issuer = excerpt(&metadata.issuer);
    if metadata.registration_endpoint.is_none() {
        let what = format!(
            "the issuer {issuer} does not support client registration: register a client there with the redirect URI {}, and set \
             `clientId` in the entry's `login`",
            identity.redirect_uri
        );
        return Err(Error::new(Code::NoClient, what));
    }
    let place = metadata.place(
        "registration endpoint",
        metadata.registration_endpoint.as_deref(),
    )?;
    let methods = metadata.token_endpoint_auth_methods_supported.as_deref();
    let supports = |name: &str| methods.is_some_and(|all| all.iter().any(|it| it == name));
    // A secret on a user's machine is not confidential, so a client without one is preferred. PKCE protects its
    // sign-ins.
    let wanted = match methods {
        _ if supports("none") => ClientAuth::None,
        _ => with_secret(metadata),
    };
    let mut grants = vec!["authorization_code"];
    if metadata.grant_types_supported.is_none() || metadata.supports_grant("refresh_token") {
        grants.push("refresh_token");
    }
    if metadata.supports_grant(DEVICE_CODE_GRANT) {
        grants.push(DEVICE_CODE_GRANT);
    }
    let is_native = Url::parse(&identity.redirect_uri).is_ok_and(|uri| is_loopback(&uri));
    let mut body = json!({
        "client_name": "Toolwharf",
        "redirect_uris": [&identity.redirect_uri],
        "grant_types": grants,
        "response_types": ["code"],
        "token_endpoint_auth_method": wanted,
        "application_type": if is_native { "native" } else { "web" },
    });
    if !scopes.is_empty() {
        body["scope"] = scopes.join(" ").into();
    }
    let response = post_json(http, &place, &body).await?;
    if !response.status().is_success() {
        let (_, said) = refusal(&response);
        let what = format!(
            "the issuer {issuer} refused to register Toolwharf ({said}): register a client there by hand, and set `clientId` in the entry's `login`"
        );
        return Err(Error::new(Code::Registration, what));
    }
    let registered: Registered = serde_json::from_slice(response.body())
        .map_err(|_| unreadable(&place, "its response is not a client registration"))?;
    let auth = match (
        registered.token_endpoint_auth_method,
        &registered.client_secret,
    ) {
        (Some(auth), _) => auth,
        (None, None) => ClientAuth::None,
        (None, Some(_)) if wanted == ClientAuth::None => with_secret(metadata),
        (None, Some(_)) => wanted,
    };
    Ok(Client {
        id: registered.client_id,
        secret: registered.client_secret,
        auth,
        redirect_uri: Some(identity.redirect_uri.clone()),
        // Zero means never (RFC 7591, 3.2.1).
        expires_at: registered.client_secret_expires_at.filter(|end| *end > 0),
        scopes,
    })
}
