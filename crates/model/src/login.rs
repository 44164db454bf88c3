//! How callers are signed in to a server.
//!
//! Invariant: `Debug` shows no secret.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::Hidden;

/// Whose sign-in a server's requests carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoginMode {
    /// Nobody's: a server that asks for a token gets none.
    None,
    /// One sign-in for all callers of the server's project, made by an administrator.
    #[default]
    Shared,
    /// Each caller's own.
    User,
}

/// How tokens are had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// A person signs in.
    #[default]
    AuthorizationCode,
    /// Nobody does: the client itself is known to the issuer.
    ClientCredentials,
    /// Nobody does: the issuer trusts whoever has made an [`Assertion`].
    JwtBearer,
}

impl Grant {
    #[must_use]
    pub fn needs_person(self) -> bool {
        self == Self::AuthorizationCode
    }
}

/// A statement of somebody else's that is given for an access token ([`Grant::JwtBearer`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    pub text: AssertionText,
    /// Who makes of it, which then is an ID token, one for the server's issuer (ID-JAG); `None`: it is for the server's issuer itself.
    pub idp: Option<Idp>,
}

/// The place of an assertion's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssertionText {
    Is(Hidden),
    /// In a file of the host, which is read each time.
    File(PathBuf),
}

/// A company's identity provider, and what it knows us as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idp {
    pub issuer: String,
    pub client_id: String,
    pub client_secret: Option<Hidden>,
}

/// How a client shows at a token endpoint that it is the one (OpenID Connect Core 1.0, 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    None,
    ClientSecretBasic,
    ClientSecretPost,
    PrivateKeyJwt,
}

/// What an issuer that does not say that it knows PKCE is taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pkce {
    /// One that does not know it: nobody signs in there.
    #[default]
    Required,
    /// One that does know it (Entra, Cognito).
    Assume,
}

/// How callers are signed in to a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// `None`: as the installation has it.
    pub mode: Option<LoginMode>,
    pub grant: Grant,
    pub client_id: Option<String>,
    pub client_secret: Option<String>,
    /// PEM, for [`ClientAuth::PrivateKeyJwt`].
    pub private_key: Option<String>,
    /// `None`: as the issuer wants it.
    pub client_auth: Option<ClientAuth>,
    /// Which issuer, where the server names several, or none.
    pub issuer: Option<String>,
    /// Asked for in any case.
    pub scopes: Vec<String>,
    /// Whether the issuer is told which server the token is for (RFC 8707). Entra refuses that.
    pub resource: bool,
    pub pkce: Pkce,
    /// The address where people sign in, for an issuer without metadata.
    pub endpoints: Option<Box<Endpoints>>,
    pub assertion: Option<Box<Assertion>>,
}

impl Login {
    /// The parts that must be in no text of ours.
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

/// The variables of a launched server whose values are access tokens: `"GITHUB_TOKEN": "${login:github}"`. Its environment has that text
/// until it is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginVariables {
    /// Of the table `[logins.NAME]`.
    pub name: String,
    pub variables: BTreeSet<String>,
    /// `None` if there is no such table.
    pub login: Option<Login>,
}

impl LoginVariables {
    /// Looks the login up.
    ///
    /// # Errors
    /// There is none of that name; the error names those that there are.
    pub fn resolve(&mut self, logins: &BTreeMap<String, Login>) -> Result<(), String> {
        self.login = logins.get(&self.name).cloned();
        if self.login.is_some() {
            return Ok(());
        }
        let names: Vec<String> = logins.keys().map(|name| format!("`{name}`")).collect();
        let known = match names.is_empty() {
            true => "there are none".to_owned(),
            false => format!("there are {}", names.join(", ")),
        };
        let name = &self.name;
        Err(format!(
            "there is no `[logins.{name}]` in toolwharf.toml; {known}"
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
