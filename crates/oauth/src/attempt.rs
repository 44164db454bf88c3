//! Sign-in through a browser: redirected to the issuer, returned with a code (OAuth 2.1, 4.1).

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use model::{Login, Pkce};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

use crate::{
    Client, Discovery, Http, Identity, Metadata, Tokens,
    error::{Code, Error, excerpt},
    request::random,
    token,
};

/// A pending sign-in. Valid for one redirect.
#[derive(Clone, Serialize, Deserialize)]
pub struct Attempt {
    pub discovery: Discovery,
    pub client: Client,
    state: String,
    verifier: String,
    redirect_uri: String,
}

/// The parameters of the redirect back to us.
#[derive(Clone, Debug, Default)]
pub struct Callback {
    pub state: Option<String>,
    code: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    description: Option<String>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("issuer", &self.discovery.metadata.issuer)
            .finish_non_exhaustive()
    }
}

impl Callback {
    /// Parses the query of a redirect.
    #[must_use]
    pub fn parse(query: &str) -> Self {
        let mut read = Self::default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "state" => &mut read.state,
                "code" => &mut read.code,
                "iss" => &mut read.iss,
                "error" => &mut read.error,
                "error_description" => &mut read.description,
                _ => continue,
            };
            place.get_or_insert(value.into_owned());
        }
        read
    }

    /// The code, if the redirect comes from the issuer with this metadata.
    ///
    /// # Errors
    /// The redirect comes from another issuer or contains no code, or the user or the issuer refused.
    pub fn code(self, metadata: &Metadata) -> Result<String, Error> {
        let wrong = |what: String| Err(Error::new(Code::WrongRedirect, what));
        // The issuer is checked before any other parameter is trusted, including an error (RFC 9207, 2.4).
        match &self.iss {
            Some(iss) if *iss != metadata.issuer => {
                let (iss, issuer) = (excerpt(iss), excerpt(&metadata.issuer));
                return wrong(format!(
                    "the redirect comes from the issuer `{iss}` instead of `{issuer}`"
                ));
            }
            None if metadata.authorization_response_iss_parameter_supported => {
                let issuer = excerpt(&metadata.issuer);
                return wrong(format!(
                    "the redirect does not name its issuer (`iss`), although the metadata of {issuer} says that it would"
                ));
            }
            _ => {}
        }
        if let Some(error) = &self.error {
            let why = self.description.as_deref().map(excerpt);
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            let what = format!("the sign-in was refused: {}{why}", excerpt(error));
            return Err(Error::new(Code::Denied, what));
        }
        match self.code {
            Some(code) => Ok(code),
            None => wrong("the redirect contains neither a code nor an error".to_owned()),
        }
    }
}

/// The URL for the browser: a request for a code with PKCE (OAuth 2.1, 4.1.1). `more`: additional parameters.
#[must_use]
pub fn authorization_url(
    mut place: Url,
    client_id: &str,
    redirect_uri: &str,
    state: &str,
    verifier: &str,
    more: &[(&str, &str)],
) -> String {
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
    let common = [
        ("response_type", "code"),
        ("client_id", client_id),
        ("redirect_uri", redirect_uri),
        ("state", state),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ];
    place
        .query_pairs_mut()
        .extend_pairs(common)
        .extend_pairs(more);
    place.into()
}

impl Attempt {
    /// Starts a sign-in. Returns the attempt and the URL for the browser.
    ///
    /// # Errors
    /// The issuer does not support this kind of sign-in, or does not declare PKCE support (2026-07-28
    /// basic/authorization "Authorization Code Protection").
    pub fn begin(
        discovery: Discovery,
        client: Client,
        login: &Login,
        identity: &Identity,
    ) -> Result<(Self, String), Error> {
        let metadata = &discovery.metadata;
        let methods = metadata.code_challenge_methods_supported.as_ref();
        let knows_pkce = methods.is_some_and(|all| all.iter().any(|it| it == "S256"));
        if !knows_pkce && (login.pkce == Pkce::Required || methods.is_some()) {
            let what = format!(
                "the issuer {} does not declare support for PKCE with S256; if you know that it supports it, set `\"pkce\": \"assume\"` in the entry's `login`",
                excerpt(&metadata.issuer)
            );
            return Err(Error::new(Code::NoPkce, what));
        }
        let named = metadata.authorization_endpoint.as_deref();
        let place = metadata.place("authorization endpoint", named)?;
        let attempt = Self {
            state: random(),
            verifier: random(),
            redirect_uri: identity.redirect_uri.clone(),
            client,
            discovery,
        };
        let asked = &attempt.discovery;
        let scopes = asked.scopes.join(" ");
        let mut more = Vec::new();
        if !scopes.is_empty() {
            more.push(("scope", &*scopes));
        }
        if asked.scopes.iter().any(|scope| scope == "offline_access") {
            // OpenID Connect Core 1.0, 11: offline access is ignored without `prompt=consent`.
            more.push(("prompt", "consent"));
        }
        more.extend(asked.resource.as_deref().map(|it| ("resource", it)));
        let Self {
            client,
            state,
            verifier,
            redirect_uri,
            ..
        } = &attempt;
        let url = authorization_url(place, &client.id, redirect_uri, state, verifier, &more);
        Ok((attempt, url))
    }

    /// The `state` parameter that identifies this attempt in the redirect.
    #[must_use]
    pub fn state(&self) -> &str {
        &self.state
    }

    /// Completes the sign-in with the parameters of the redirect.
    ///
    /// # Errors
    /// The redirect does not belong to this attempt, the user or the issuer refused, or the issuer rejected the code.
    pub async fn finish(
        self,
        http: &dyn Http,
        callback: Callback,
        login: &Login,
    ) -> Result<Tokens, Error> {
        if callback.state.as_deref() != Some(&self.state) {
            let what = "the redirect belongs to another sign-in; sign in again";
            return Err(Error::new(Code::WrongRedirect, what));
        }
        let code = callback.code(&self.discovery.metadata)?;
        let form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("code", code),
            ("redirect_uri", self.redirect_uri),
            ("code_verifier", self.verifier),
        ];
        token::request(
            http,
            &self.discovery,
            &self.client,
            login,
            form,
            Code::Denied,
        )
        .await
    }
}
