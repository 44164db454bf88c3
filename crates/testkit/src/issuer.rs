//! An authorization server for tests: npm's `oidc-provider`, on a free loopback port.
//!
//! It supports discovery (RFC 8414 and OpenID), the authorization code flow with PKCE and `iss` (RFC 9207), refresh
//! tokens, client credentials, the device grant, resource indicators with JWT access tokens whose audience is the
//! `resource`, introspection, revocation, DPoP with nonces, open dynamic registration, and client id metadata
//! documents. Any account name can sign in, with any password, on a form with the fields `account` and `password`. A
//! second form, with the buttons `#allow` and `#deny`, asks for consent.
//!
//! Options are passed to [`Issuer::start`] or changed later with [`Issuer::set`]:
//!
//! | option | default | meaning |
//! | --- | --- | --- |
//! | `accounts` | `{}` | claims by account, for example `{"ann": {"groups": ["ml"]}}`; every account has `email` and `groups` |
//! | `answers` | `{}` | responses that replace the issuer's, by path: `{"/jwks": {"status": 200, "headers": {…}, "body": …}}` |
//! | `consent` | `true` | whether users are asked for consent |
//! | `down` | `false` | every connection is closed without a response |
//! | `hold_ms` | 0 | delay of a token response after its work is done, in milliseconds |
//! | `lifetime` | 3600 | lifetime of access tokens, in seconds |
//! | `opaque` | `false` | access tokens for a resource are opaque, for introspection |
//! | `refuse_refresh` | `false` | refresh tokens are refused with `invalid_grant` |
//! | `refuse_resource` | `false` | a `resource` is refused with `invalid_target`, as Entra does |
//! | `rotate` | `true` | each refresh issues a new refresh token, and reuse of an old one revokes the grant |
//! | `withheld` | `[]` | scopes of a resource that are never granted |
//!
//! At start only: `clients` (RFC 7591 fields plus `client_id` and `client_secret`), `scopes` (for every resource;
//! default `mcp:call`, `mcp:read` and `mcp:manage`), `algorithm` (`RS256`, the default, or `ES256`), `host` (default
//! `127.0.0.1`; `localhost` keeps the issuer's cookies separate).

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::{Process, RawClient, conformance::node_modules};

const PROVIDER: &str = "oidc-provider/lib/index.js";
/// Timeout of one request to the issuer's control interface. A sign-in takes a dozen HTTP requests.
const CONTROL_LIMIT: Duration = Duration::from_secs(30);

/// An authorization server. Dropping it stops the server.
pub struct Issuer {
    url: String,
    _process: Process,
}

impl Issuer {
    /// Starts an authorization server. `options` is an object; see the [module](self).
    ///
    /// # Panics
    /// If `oidc-provider` is not installed (`cargo xtask setup`) or does not start.
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

    /// The issuer identifier, without a trailing slash.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Changes `options`. Omitted options keep their values.
    pub async fn set(&self, options: Value) {
        self.control("set", options).await;
    }

    /// Switches to a new signing key and discards the old one.
    pub async fn rotate(&self) {
        self.control("rotate", json!({})).await;
    }

    /// Forgets all clients that were registered dynamically.
    pub async fn forget(&self) {
        self.control("forget", json!({})).await;
    }

    /// Returns how many requests an endpoint has answered: `discovery`, `jwks`, `registration`, `authorization`,
    /// `token`, `introspection`, `revocation`, `device_authorization`; also the token endpoint by grant
    /// (`token:refresh_token`), and a path in `answers` by the path.
    pub async fn count(&self, endpoint: &str) -> u64 {
        let counts = self.control("counts", json!({})).await;
        counts[endpoint].as_u64().unwrap_or(0)
    }

    /// Returns all codes, verifiers and tokens that the token endpoint has received or issued.
    pub async fn secrets(&self) -> Vec<String> {
        let secrets = self.control("secrets", json!({})).await;
        serde_json::from_value(secrets).expect("a list of strings")
    }

    /// Returns an access token as the issuer would sign it, valid for an hour. Each member of `claims` replaces a
    /// claim; `null` removes it.
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

    /// Signs a token with exactly these claims. Each member of `header` replaces a header field: `{"alg": "none"}`
    /// gives no signature, `{"alg": "HS256"}` uses the public key as the secret.
    pub async fn sign(&self, header: Value, claims: Value) -> String {
        let body = json!({ "header": header, "claims": claims });
        let answer = self.control("token", body).await;
        answer["token"].as_str().expect("a token").to_owned()
    }

    /// Acts as `account` in a browser that was sent to `url`: signs in and allows access. Returns the final redirect
    /// target, with the code or the error in its query.
    ///
    /// # Panics
    /// If the issuer shows a page instead, for example after a device was confirmed.
    pub async fn sign_in(&self, url: &str, account: &str) -> String {
        let answer = self.browse(url, account, false).await;
        let location = answer["location"].as_str();
        location
            .unwrap_or_else(|| panic!("the issuer shows a page: {answer}"))
            .to_owned()
    }

    /// Like [`Issuer::sign_in`], but refuses consent if `deny`. Returns an object with `location`, or with the `status`
    /// and `html` of the last page.
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
