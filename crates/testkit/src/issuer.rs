//! An authorization server for tests: npm's `oidc-provider`, on a free port of the loopback.
//!
//! It has discovery (RFC 8414 and OpenID), the authorization code with PKCE and `iss` (RFC 9207), refresh tokens, client credentials,
//! the device grant, resource indicators with JWT access tokens whose audience is the `resource`, introspection, revocation,
//! DPoP with nonces, open dynamic registration, and client id metadata documents. Any account name signs in, with any password, on a form with the
//! fields `account` and `password`; a second form, with the buttons `#allow` and `#deny`, asks for consent.
//!
//! Options, given to [`Issuer::start`] or changed later with [`Issuer::set`]:
//!
//! | option | without it | |
//! | --- | --- | --- |
//! | `accounts` | `{}` | claims by account, as `{"ann": {"groups": ["ml"]}}`; all have `email` and `groups` |
//! | `answers` | `{}` | answers instead of the issuer's own, by path: `{"/jwks": {"status": 200, "headers": {…}, "body": …}}` |
//! | `consent` | `true` | whether people are asked for consent |
//! | `delay_ms` | 0 | how long every answer waits, in milliseconds |
//! | `documents` | `{}` | client id metadata documents by their `https` URL, instead of the network |
//! | `down` | `false` | every connection is closed without an answer |
//! | `hold_ms` | 0 | how long an answer of the token endpoint waits when its work is done, in milliseconds |
//! | `lifetime`, `refresh_lifetime` | 3600, 86400 | of access and refresh tokens, in seconds |
//! | `opaque` | `false` | access tokens for a resource are opaque, for introspection |
//! | `refuse_refresh` | `false` | refresh tokens are refused with `invalid_grant` |
//! | `refuse_resource` | `false` | a `resource` is refused with `invalid_target`, as Entra does |
//! | `rotate` | `true` | each refresh gives a new refresh token, and using an old one revokes the grant |
//! | `withheld` | `[]` | scopes of a resource that nobody is given |
//!
//! And, at its start only: `clients` (in the words of RFC 7591, with `client_id` and `client_secret`), `scopes` (of every resource;
//! `mcp:call`, `mcp:read` and `mcp:manage`), `algorithm` (`RS256`, or `ES256`), `host` (`127.0.0.1`; `localhost` keeps its cookies apart).

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::{Process, RawClient, conformance::node_modules};

const PROVIDER: &str = "oidc-provider/lib/index.js";
/// How long one request to the issuer's controls may take; a sign-in is a dozen requests.
const CONTROL_LIMIT: Duration = Duration::from_secs(30);

/// An authorization server, for as long as it is held.
pub struct Issuer {
    url: String,
    _process: Process,
}

impl Issuer {
    /// Starts one. `options` is an object; see the [module](self).
    ///
    /// # Panics
    /// If it is not installed (`cargo xtask setup`), or does not start.
    pub async fn start(options: Value) -> Self {
        let modules = node_modules();
        assert!(
            modules.join(PROVIDER).is_file(),
            "{} is missing; run: cargo xtask setup",
            modules.join(PROVIDER).display()
        );
        let mut command = Command::new(modules.join("node/bin/node"));
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("issuer/issuer.mjs"))
            .arg(modules)
            .arg(options.to_string());
        let mut process = Process::spawn(command);
        let url = process.url().await;
        Self {
            url,
            _process: process,
        }
    }

    /// Its issuer identifier, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Changes `options`; those that are not named stay.
    pub async fn set(&self, options: Value) {
        self.control("set", options).await;
    }

    /// Takes a new key for signatures, and forgets the old one.
    pub async fn rotate(&self) {
        self.control("rotate", json!({})).await;
    }

    /// How many requests an endpoint has answered: `discovery`, `jwks`, `registration`, `authorization`, `token`, `introspection`,
    /// `revocation`, `device_authorization`; of the token endpoint also by grant (`token:refresh_token`), and of a path in `answers` by
    /// the path.
    pub async fn count(&self, endpoint: &str) -> u64 {
        let counts = self.control("counts", json!({})).await;
        counts[endpoint].as_u64().unwrap_or(0)
    }

    /// All codes, verifiers and tokens that its token endpoint has taken or given.
    pub async fn secrets(&self) -> Vec<String> {
        let secrets = self.control("secrets", json!({})).await;
        serde_json::from_value(secrets).expect("a list of strings")
    }

    /// An access token as the issuer would give it, valid for an hour. Each of `claims` replaces one of its claims; `null` leaves it out.
    pub async fn token(
        &self,
        account: &str,
        client: &str,
        resource: &str,
        scopes: &[&str],
        claims: Value,
    ) -> String {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("the clock is past 1970")
            .as_secs();
        let mut all = json!({
            "iss": self.url, "sub": account, "aud": resource, "client_id": client, "scope": scopes.join(" "),
            "iat": now, "exp": now + 3600, "jti": format!("{account}-{now}"),
        });
        for (name, value) in claims.as_object().expect("claims are an object") {
            all[name] = value.clone();
        }
        if let Some(all) = all.as_object_mut() {
            all.retain(|_, value| !value.is_null());
        }
        self.sign(json!({}), all).await
    }

    /// A token of just these claims. Each of `header` replaces a field of its header: with `{"alg": "none"}` it has no signature, and with
    /// `{"alg": "HS256"}` its secret is the public key.
    pub async fn sign(&self, header: Value, claims: Value) -> String {
        let body = json!({ "header": header, "claims": claims });
        let answer = self.control("token", body).await;
        answer["token"].as_str().expect("a token").to_owned()
    }

    /// Does what `account` does at a browser that was sent to `url`: signs in and allows. Gives the address that the browser is sent to
    /// in the end, with the code or the error in its query.
    ///
    /// # Panics
    /// If the issuer shows a page instead, such as the one after a device was confirmed.
    pub async fn sign_in(&self, url: &str, account: &str) -> String {
        let answer = self.browse(url, account, false).await;
        let location = answer["location"].as_str();
        location
            .unwrap_or_else(|| panic!("the issuer shows a page: {answer}"))
            .to_owned()
    }

    /// As [`Issuer::sign_in`], and does not allow if `deny`: an object with `location`, or with the `status` and `html` of the last page.
    pub async fn browse(&self, url: &str, account: &str, deny: bool) -> Value {
        let body = json!({ "url": url, "account": account, "deny": deny });
        self.control("sign-in", body).await
    }

    async fn control(&self, what: &str, body: Value) -> Value {
        let client = RawClient::new(&format!("{}/__control/{what}", self.url));
        let answer = client
            .send(http::Method::POST, &[], body.to_string())
            .await
            .collect(CONTROL_LIMIT)
            .await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        serde_json::from_slice(&answer.body).expect("an answer in JSON")
    }
}
