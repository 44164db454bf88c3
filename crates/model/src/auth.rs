//! Issuers of tokens that are taken (`[auth.oidc]`).

use std::collections::BTreeSet;

use crate::{Hidden, ProjectId, Role};

/// An issuer (OpenID Connect, or RFC 8414), and what its people may do here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OidcSettings {
    /// As tokens and the issuer's metadata have it, to the letter.
    pub issuer: String,
    /// One of these has to be among a token's audiences; none: the endpoint that is asked, or one above it.
    pub audiences: BTreeSet<String>,
    /// All of these have to be among a token's scopes.
    pub scopes: BTreeSet<String>,
    /// Where its keys are; `None`: where its metadata says.
    pub jwks_uri: Option<String>,
    /// Whether it is asked about tokens that are no JWT (RFC 7662), with `client_id` and `client_secret`.
    pub introspection: bool,
    /// Toolwharf itself as a client of the issuer. With one, people can sign in at a browser.
    pub client_id: Option<String>,
    pub client_secret: Option<Hidden>,
    /// What people may do: all that the rules which match them give. Without one nobody may do anything.
    pub access: Vec<AccessRule>,
}

/// Gives a role to people with a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// A claim's name, or its path with dots (`realm_access.roles`), and its values, one of which it has to have or be; `None`: everybody.
    pub claim: Option<(String, BTreeSet<String>)>,
    pub role: Role,
    /// Where; none: everywhere.
    pub projects: BTreeSet<ProjectId>,
}
