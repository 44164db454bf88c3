//! Trusted token issuers (`[auth.oidc]`).

use std::collections::BTreeSet;

use crate::{Hidden, ProjectId, Role};

/// An issuer (OpenID Connect or RFC 8414), and the access rules for its users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OidcSettings {
    /// The issuer exactly as in tokens and in its metadata.
    pub issuer: String,
    /// A token's audiences must include one of these. If empty: the requested endpoint or one above it.
    pub audiences: BTreeSet<String>,
    /// A token's scopes must include all of these.
    pub scopes: BTreeSet<String>,
    /// The URL of the signing keys. `None`: taken from its metadata.
    pub jwks_uri: Option<String>,
    /// True: ask the issuer about tokens that are not JWTs (RFC 7662), with `client_id` and `client_secret`.
    pub introspection: bool,
    /// Toolwharf's own client id at the issuer. If set, users can sign in with a browser.
    pub client_id: Option<String>,
    pub client_secret: Option<Hidden>,
    /// The access rules. A user has the roles of all matching rules, and no access without a matching rule.
    pub access: Vec<AccessRule>,
}

/// Grants a role to users with a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// The name or the dotted path (`realm_access.roles`) of a claim, and the accepted values: the claim must equal or
    /// contain one of them. `None`: matches all users.
    pub claim: Option<(String, BTreeSet<String>)>,
    pub role: Role,
    /// The projects in which the role applies. If empty: all projects.
    pub projects: BTreeSet<ProjectId>,
}
