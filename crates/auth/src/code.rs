//! Browser sign-in at an issuer: the authorization code flow with PKCE (OpenID Connect Core 3.1, RFC 7636, RFC 9207).
//!
//! Invariants: a state can be used once, within ten minutes, in the tab of the gateway's page that it was made for. An
//! ID token is accepted only with the issuer's signature, for this client and with the nonce of this sign-in. A sign-in
//! may begin at one replica and end at another.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    Principal, Refused, Tokens,
    claims::{self, invalid, text},
    fetch::{Form, encode},
    issuer::Issuer,
    tokens::now,
};
use crate::tickets::{Kind, Tickets, digest};

/// Requested scopes, if the issuer supports them; `openid` always.
const SCOPES: [&str; 4] = ["openid", "profile", "email", "groups"];

/// Sign-ins in progress. The secret of each one's ticket is its state.
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

/// The parameters with which the issuer redirects the browser back, as posted by the redirect page.
#[derive(Default)]
pub struct Answer {
    state: String,
    code: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
    /// The secret from the tab's session storage, which other origins cannot read or write.
    browser: String,
}

impl Answer {
    /// Stores a field of the form. Unknown fields are ignored.
    pub fn take(&mut self, name: &str, value: String) {
        match name {
            "state" => self.state = value,
            "code" => self.code = Some(value),
            "iss" => self.iss = Some(value),
            "error" => self.error = Some(value),
            "error_description" => self.error_description = Some(value),
            "browser" => self.browser = value,
            _ => {}
        }
    }
}

#[derive(Deserialize)]
struct Granted {
    id_token: Option<String>,
}

impl Codes {
    pub(super) fn new(tickets: Arc<Tickets>) -> Self {
        Self(tickets)
    }

    /// Begins a sign-in. Returns the URL that the browser must open, and the secret that its page must keep. `next`:
    /// the page to open after the sign-in.
    ///
    /// # Errors
    /// If the issuer is unknown, has no browser sign-in, or does not respond.
    pub async fn begin(
        &self,
        tokens: &Tokens,
        name: &str,
        next: String,
    ) -> Result<(String, String), Refused> {
        let issuer = tokens.issuer(name)?;
        let client = client(issuer)?;
        let away = |why| Refused::Away(format!("the issuer `{name}` cannot be asked: {why}"));
        let metadata = issuer.metadata().await.map_err(away)?;
        let endpoint = metadata.authorization_endpoint.as_deref();
        let endpoint = issuer
            .trusted("authorization_endpoint", endpoint)
            .map_err(away)?;
        let (verifier, nonce, browser) = (secret(), secret(), secret());
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let known = &metadata.scopes_supported;
        let scopes = SCOPES
            .into_iter()
            .filter(|scope| *scope == "openid" || known.iter().any(|own| own == scope));
        let scopes: Vec<&str> = scopes.collect();
        let begun = Begun {
            issuer: name.to_owned(),
            verifier,
            nonce: nonce.clone(),
            browser: digest(&browser),
            next,
        };
        let kept = self.0.issue(Kind::SignIn, &begun).await;
        let state = kept.map_err(Refused::of_database)?;
        let query = encode(&[
            ("response_type", "code"),
            ("client_id", client),
            ("redirect_uri", &redirect(tokens)),
            ("scope", &scopes.join(" ")),
            ("state", &state),
            ("nonce", &nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let joint = if endpoint.contains('?') { '&' } else { '?' };
        Ok((format!("{endpoint}{joint}{query}"), browser))
    }

    /// Completes a sign-in. Returns the user and the page to open next.
    ///
    /// # Errors
    /// If the identity is not certain, or the user has no role here.
    pub async fn finish(
        &self,
        tokens: &Tokens,
        answer: Answer,
    ) -> Result<(Arc<Principal>, String), Refused> {
        let begun = self.0.take::<Begun>(Kind::SignIn, &answer.state).await;
        let begun = begun.map_err(Refused::of_database)?;
        let begun = begun.filter(|begun| begun.browser == digest(&answer.browser));
        let begun = begun.ok_or_else(|| {
            invalid("this sign-in is over, or began in another tab or browser; begin again")
        })?;
        let issuer = tokens.issuer(&begun.issuer)?;
        if answer.iss.is_some_and(|iss| iss != issuer.settings.issuer) {
            return Err(invalid("the answer is from another issuer"));
        }
        let Some(code) = answer.code else {
            let word = answer.error.unwrap_or_else(|| "no code".to_owned());
            let why = answer.error_description.unwrap_or_default();
            let words: String = format!("the issuer says {word}: {why}")
                .chars()
                .take(300)
                .collect();
            return Err(Refused::Invalid(words));
        };
        let granted = self.redeem(tokens, issuer, &code, &begun.verifier).await;
        let away = |why| Refused::Away(format!("the sign-in at `{}` failed: {why}", issuer.name));
        let granted = granted.map_err(away)?;
        let token = granted
            .id_token
            .ok_or_else(|| invalid("the issuer gave no ID token"))?;
        let claims = tokens.claims_of(issuer, &token).await?;
        if text(&claims, "nonce") != Some(begun.nonce.as_str()) {
            return Err(invalid("the ID token belongs to another sign-in"));
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

    async fn redeem(
        &self,
        tokens: &Tokens,
        issuer: &Issuer,
        code: &str,
        verifier: &str,
    ) -> Result<Granted, String> {
        let metadata = issuer.metadata().await?;
        let url = issuer.trusted("token_endpoint", metadata.token_endpoint.as_deref())?;
        let client = issuer.settings.client_id.as_deref().unwrap_or_default();
        let secret = issuer
            .settings
            .client_secret
            .as_ref()
            .map(|secret| secret.reveal());
        let redirect = redirect(tokens);
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &redirect),
            ("code_verifier", verifier),
        ];
        if secret.is_none() {
            fields.push(("client_id", client));
        }
        let form = Form {
            fields: &fields,
            client: secret.map(|secret| (client, secret)),
        };
        issuer.post(&url, &form).await
    }
}

/// 256 random bits.
fn secret() -> String {
    hex::encode(rand::random::<[u8; 32]>())
}

fn client(issuer: &Issuer) -> Result<&str, Refused> {
    let client = issuer.settings.client_id.as_deref();
    client.ok_or_else(|| {
        invalid(&format!(
            "`{}` has no `client_id` in the settings",
            issuer.name
        ))
    })
}

fn redirect(tokens: &Tokens) -> String {
    format!("{}/sign-in/callback", tokens.base())
}
