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

/// The ways to sign in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LoginWay {
    /// Open a link of the gateway in a browser.
    #[default]
    Browser,
    /// Open the issuer's URL in any browser and pass the redirect to the gateway by hand.
    Paste,
    /// Enter a code on the issuer's page.
    Device,
}

/// The next step for the person who signs in.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LoginBegun {
    /// A single-use page of the gateway to open in a browser.
    pub link: Option<String>,
    /// The issuer's page to open in a browser. Pass the redirect that follows to `finish`.
    pub authorize_url: Option<String>,
    /// A code to enter at `verification_uri`.
    pub user_code: Option<String>,
    pub verification_uri: Option<String>,
    /// Seconds until the sign-in expires.
    pub expires_in: u64,
}

/// The redirect of the issuer after a sign-in.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRedirect {
    /// The whole URL from the browser's address bar.
    pub redirect: String,
}

/// A sign-in to a server, without its tokens.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Login {
    pub server: String,
    /// The project that owns the server.
    pub project: Option<String>,
    /// `shared`: one sign-in for all callers. `user`: one for each caller.
    pub mode: String,
    /// `signed_in`, `needs_login`, or `absent` before the first sign-in.
    pub state: String,
    /// Why a new sign-in is needed.
    pub reason: Option<String>,
    pub issuer: Option<String>,
    /// The granted scopes, as far as the issuer reported them.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// When the access token expires. It is renewed before that.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub updated_at: Option<Time>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Logins {
    pub logins: Vec<Login>,
}
