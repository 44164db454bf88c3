//! Browser sign-in at an issuer: the authorization code flow with PKCE (OpenID Connect Core 3.1, RFC 7636, RFC 9207).
//!
//! Invariants: a state can be used once, within ten minutes, in the browser tab that began the sign-in. An ID token is
//! accepted only with the issuer's signature, for this client and with the nonce of this sign-in. A sign-in may begin
//! at one replica and end at another.

use std::sync::Arc;

use model::sha256_hex;
use oauth::{Callback, Metadata, random};
use serde::{Deserialize, Serialize};

use super::{
    Principal, Refused, Tokens,
    claims::{self, invalid, text},
    issuer::Issuer,
    tokens::now,
};
use crate::tickets::{Kind, Tickets};

/// The scopes to request, if the issuer supports them. `openid` is always requested.
const SCOPES: [&str; 4] = ["openid", "profile", "email", "groups"];

/// Sign-ins in progress. Each is a ticket; its secret is the `state` parameter of the request to the issuer.
pub struct Codes(Arc<Tickets>);

#[derive(Serialize, Deserialize)]
struct Begun {
    issuer: String,
    verifier: String,
    nonce: String,
    /// The digest of the secret that the page keeps in its tab's session storage.
    browser: String,
    next: String,
}

#[derive(Deserialize)]
struct Granted {
    id_token: Option<String>,
}

impl Codes {
    pub(super) fn new(tickets: Arc<Tickets>) -> Self {
        Self(tickets)
    }

    /// Begins a sign-in. Returns the URL that the browser must open, and the secret that its page must keep. `base`: the
    /// gateway's address for this browser. `next`: the page to open after the sign-in.
    ///
    /// # Errors
    /// If the issuer is unknown, has no browser sign-in, or does not respond.
    pub async fn begin(
        &self,
        tokens: &Tokens,
        base: &str,
        name: &str,
        next: String,
    ) -> Result<(String, String), Refused> {
        let issuer = tokens.issuer(name)?;
        let client = client(issuer)?;
        let away = |why| Refused::Away(format!("the issuer `{name}` cannot be queried: {why}"));
        let metadata = issuer.metadata().await.map_err(away)?;
        let endpoint = metadata.authorization_endpoint.as_deref();
        let endpoint = issuer
            .trusted("authorization_endpoint", endpoint)
            .map_err(away)?;
        let (verifier, nonce, browser) = (random(), random(), random());
        let scopes = SCOPES
            .into_iter()
            .filter(|scope| *scope == "openid" || metadata.supports_scope(scope));
        let scopes: Vec<&str> = scopes.collect();
        let begun = Begun {
            issuer: name.to_owned(),
            verifier: verifier.clone(),
            nonce: nonce.clone(),
            browser: sha256_hex(&browser),
            next,
        };
        let kept = self.0.issue(Kind::SignIn, &begun).await;
        let state = kept.map_err(Refused::of_database)?;
        let more = [("scope", &*scopes.join(" ")), ("nonce", &nonce)];
        let redirect = redirect(base);
        let url = oauth::authorization_url(endpoint, client, &redirect, &state, &verifier, &more);
        Ok((url, browser))
    }

    /// Completes a sign-in. Returns the user and the page to open next. `form`: the parameters with which the issuer
    /// redirected the browser back. `base`: as in [`Self::begin`]. `browser`: the secret from the tab's session storage, which other origins cannot
    /// read or write.
    ///
    /// # Errors
    /// If the identity is not certain, or the user has no role here.
    pub async fn finish(
        &self,
        tokens: &Tokens,
        base: &str,
        form: &str,
    ) -> Result<(Arc<Principal>, String), Refused> {
        let callback = Callback::parse(form);
        let browser =
            url::form_urlencoded::parse(form.as_bytes()).find(|(name, _)| name == "browser");
        let browser = browser.map(|(_, secret)| secret).unwrap_or_default();
        let state = callback.state.as_deref().unwrap_or_default();
        let begun = self.0.take::<Begun>(Kind::SignIn, state).await;
        let begun = begun.map_err(Refused::of_database)?;
        let over = "this sign-in was used already, or has expired; sign in again";
        let begun = begun.ok_or_else(|| invalid(over))?;
        if begun.browser != sha256_hex(browser.as_bytes()) {
            return Err(invalid(
                "this sign-in began in another tab or browser; sign in again",
            ));
        }
        let issuer = tokens.issuer(&begun.issuer)?;
        let away = |why| Refused::Away(format!("the sign-in at `{}` failed: {why}", issuer.name));
        let metadata = issuer.metadata().await.map_err(away)?;
        let code = callback.code(&metadata);
        let code = code.map_err(|error| Refused::Invalid(error.what))?;
        let granted = redeem(issuer, &metadata, code, begun.verifier, redirect(base)).await;
        let granted = granted.map_err(away)?;
        let token = granted
            .id_token
            .ok_or_else(|| invalid("the issuer returned no ID token"))?;
        let claims = tokens.claims_of(issuer, &token).await?;
        if text(&claims, "nonce") != Some(begun.nonce.as_str()) {
            return Err(invalid(
                "the ID token belongs to another sign-in; sign in again",
            ));
        }
        let who = claims::identity(
            &issuer.name,
            &issuer.settings,
            &claims,
            client(issuer)?,
            now(),
        )?;
        Ok((who, begun.next))
    }
}

/// Exchanges the code for an ID token.
async fn redeem(
    issuer: &Issuer,
    metadata: &Metadata,
    code: String,
    verifier: String,
    redirect_uri: String,
) -> Result<Granted, String> {
    let url = issuer.trusted("token_endpoint", metadata.token_endpoint.as_deref())?;
    let mut form = vec![
        ("grant_type", "authorization_code".to_owned()),
        ("code", code),
        ("redirect_uri", redirect_uri),
        ("code_verifier", verifier),
    ];
    if issuer.settings.client_secret.is_none() {
        form.push((
            "client_id",
            issuer.settings.client_id.clone().unwrap_or_default(),
        ));
    }
    issuer.post(&url, &form).await
}

fn client(issuer: &Issuer) -> Result<&str, Refused> {
    let client = issuer.settings.client_id.as_deref();
    client.ok_or_else(|| {
        invalid(&format!(
            "browser sign-in at issuer `{0}` needs a `client_id` under `[auth.oidc.{0}]`",
            issuer.name
        ))
    })
}

fn redirect(base: &str) -> String {
    format!("{base}/sign-in/callback")
}
