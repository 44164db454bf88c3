//! Signing in at an issuer with a browser: the authorization code flow with PKCE (OpenID Connect Core 3.1, RFC 7636, RFC 9207).
//!
//! Invariants: a state is good once, for ten minutes, and in the tab of this gateway's own page that it was made for; an ID token counts only
//! with the issuer's signature, for this client and with the nonce of this sign-in. It may begin at one replica and end at another.

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

/// What is asked for, as far as the issuer has it; `openid` in any case.
const SCOPES: [&str; 4] = ["openid", "profile", "email", "groups"];

/// Sign-ins under way. The secret of each one's ticket is its state.
pub(crate) struct Codes(Arc<Tickets>);

#[derive(Serialize, Deserialize)]
struct Begun {
    issuer: String,
    verifier: String,
    nonce: String,
    /// The digest of what the page keeps in the storage of its tab.
    browser: String,
    next: String,
}

/// What the issuer sends a browser back with, as the page of the redirect posts it.
#[derive(Default)]
pub(crate) struct Answer {
    state: String,
    code: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
    /// What the page kept in the storage of its tab, which other origins cannot read or write.
    browser: String,
}

impl Answer {
    /// Takes a field of the form; others are ignored.
    pub(crate) fn take(&mut self, name: &str, value: String) {
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

    /// Where a browser has to go to sign in, and what its page has to bring back. `next`: where it goes afterwards.
    ///
    /// # Errors
    /// If there is no such issuer to sign in at, or it cannot be asked.
    pub(crate) async fn begin(
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

    /// Who signed in, and where they want to go.
    ///
    /// # Errors
    /// If that is not known for certain, or they may do nothing here.
    pub(crate) async fn finish(
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
            return Err(invalid("the ID token is of another sign-in"));
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
