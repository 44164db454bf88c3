//! How callers sign in to a server.
//!
//! Invariant: `Debug` shows no secrets.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::Hidden;

/// The sign-in used for requests to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoginMode {
    /// No sign-in: requests contain no token, even if the server requires one.
    None,
    /// One sign-in, made by an administrator, for all callers of the project.
    #[default]
    Shared,
    /// One sign-in for each caller.
    User,
}

/// How tokens are obtained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// A user signs in.
    #[default]
    AuthorizationCode,
    /// No user is involved. The issuer grants access to the client itself.
    ClientCredentials,
    /// No user is involved. The issuer trusts the party that made an [`Assertion`].
    JwtBearer,
}

impl Grant {
    #[must_use]
    pub fn needs_person(self) -> bool {
        self == Self::AuthorizationCode
    }
}

/// A third party's statement that is exchanged for an access token ([`Grant::JwtBearer`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    pub text: AssertionText,
    /// The identity provider that exchanges the text, an ID token, for an assertion to the server's issuer (ID-JAG).
    /// `None`: the text is already an assertion to the server's issuer.
    pub idp: Option<Idp>,
}

/// The text of an assertion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssertionText {
    Is(Hidden),
    /// The path of a file on the host, which is read each time a token is needed.
    File(PathBuf),
}

/// A company's identity provider, and Toolwharf's registration with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idp {
    pub issuer: String,
    pub client_id: String,
    pub client_secret: Option<Hidden>,
}

/// How a client authenticates to a token endpoint (OpenID Connect Core 1.0, section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    None,
    ClientSecretBasic,
    ClientSecretPost,
    PrivateKeyJwt,
}

/// The behaviour if an issuer does not declare support for PKCE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pkce {
    /// Refuse the sign-in.
    #[default]
    Required,
    /// Assume that it supports PKCE (Entra, Cognito).
    Assume,
}

/// How callers sign in to a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// `None`: the installation's default.
    pub mode: Option<LoginMode>,
    pub grant: Grant,
    pub client_id: Option<String>,
    pub client_secret: Option<String>,
    /// PEM, for [`ClientAuth::PrivateKeyJwt`].
    pub private_key: Option<String>,
    /// `None`: chosen by the issuer.
    pub client_auth: Option<ClientAuth>,
    /// The issuer to use if the server names several or none.
    pub issuer: Option<String>,
    /// Scopes that are always requested.
    pub scopes: Vec<String>,
    /// True: tell the issuer which server the token is for (RFC 8707). Entra refuses that.
    pub resource: bool,
    pub pkce: Pkce,
    /// The endpoints of an issuer without metadata.
    pub endpoints: Option<Box<Endpoints>>,
    pub assertion: Option<Box<Assertion>>,
}

impl Login {
    /// The secrets, for redaction.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        let own = [&self.client_secret, &self.private_key];
        let assertion = self.assertion.as_deref();
        let text = assertion.and_then(|assertion| match &assertion.text {
            AssertionText::Is(text) => Some(text),
            AssertionText::File(_) => None,
        });
        let idp = assertion.and_then(|assertion| assertion.idp.as_ref()?.client_secret.as_ref());
        let own = own.into_iter().flatten().map(String::as_str);
        own.chain(text.into_iter().chain(idp).map(Hidden::reveal))
    }
}

/// The endpoints of an issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    pub authorize: String,
    pub token: String,
    pub device: Option<String>,
}

/// The variables of a launched server whose values are access tokens: `"GITHUB_TOKEN": "${login:github}"`. Its
/// environment contains this placeholder until the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginVariables {
    /// The name of the table `[logins.NAME]`.
    pub name: String,
    pub variables: BTreeSet<String>,
    /// `None`: the table is missing.
    pub login: Option<Login>,
}

impl LoginVariables {
    /// Looks up the login.
    ///
    /// # Errors
    /// There is no login with this name. The error lists those that exist.
    pub fn resolve(&mut self, logins: &BTreeMap<String, Login>) -> Result<(), String> {
        self.login = logins.get(&self.name).cloned();
        if self.login.is_some() {
            return Ok(());
        }
        let names: Vec<String> = logins.keys().map(|name| format!("`{name}`")).collect();
        let known = match names.is_empty() {
            true => "no logins".to_owned(),
            false => names.join(", "),
        };
        let name = &self.name;
        Err(format!(
            "`[logins.{name}]` is missing in toolwharf.toml, which defines {known}"
        ))
    }
}

impl Default for Login {
    fn default() -> Self {
        Self {
            mode: None,
            grant: Grant::default(),
            client_id: None,
            client_secret: None,
            private_key: None,
            client_auth: None,
            issuer: None,
            scopes: Vec::new(),
            resource: true,
            pkce: Pkce::default(),
            endpoints: None,
            assertion: None,
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("mode", &self.mode)
            .field("grant", &self.grant)
            .field("client_id", &self.client_id)
            .field("issuer", &self.issuer)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}
