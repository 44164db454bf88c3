//! Signing in to servers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

/// A request to sign in to a server.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoginRequest {
    pub way: LoginWay,
}

/// How somebody signs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LoginWay {
    /// By a link that a browser opens.
    #[default]
    Browser,
    /// By a URL that a browser opens anywhere; the redirect is brought by hand.
    Paste,
    /// By a code that is typed elsewhere.
    Device,
}

/// What somebody who signs in has to do now.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LoginBegun {
    /// A page of the gateway to open in a browser. It is good once.
    pub link: Option<String>,
    /// The issuer's page to open in a browser, whose redirect is brought to `finish`.
    pub authorize_url: Option<String>,
    /// A code to type at `verification_uri`.
    pub user_code: Option<String>,
    pub verification_uri: Option<String>,
    /// Seconds that this is good for.
    pub expires_in: u64,
}

/// Where the issuer sent a browser after a sign-in.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRedirect {
    /// The whole URL, as it stands in the browser's address bar.
    pub redirect: String,
}

/// A sign-in to a server, as far as it may be shown.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Login {
    pub server: String,
    /// The project whose own server it is.
    pub project: Option<String>,
    /// `shared`: one for all callers; `user`: each caller's own.
    pub mode: String,
    /// `signed_in`, `needs_login`, or `absent` where nobody has signed in yet.
    pub state: String,
    /// Why somebody has to sign in again.
    pub reason: Option<String>,
    pub issuer: Option<String>,
    /// What the issuer granted, as far as it said so.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// The end of the access token. It is renewed before.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub updated_at: Option<Time>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Logins {
    pub logins: Vec<Login>,
}
