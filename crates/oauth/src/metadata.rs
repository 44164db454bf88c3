//! Metadata documents of authorization servers and protected resources.

use model::Endpoints;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::dpop::ALGORITHM;
use crate::error::Error;
use crate::request::endpoint;

/// The grant type of the device flow.
pub(crate) const DEVICE_CODE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Maximum scopes of a document that are considered.
const MAX_SCOPES: usize = 500;

/// Metadata of an authorization server (RFC 8414, 2; OpenID Connect Discovery 1.0, 3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    pub issuer: String,
    pub authorization_endpoint: Option<String>,
    pub token_endpoint: Option<String>,
    pub jwks_uri: Option<String>,
    pub introspection_endpoint: Option<String>,
    pub registration_endpoint: Option<String>,
    pub revocation_endpoint: Option<String>,
    pub device_authorization_endpoint: Option<String>,
    pub scopes_supported: Option<Vec<String>>,
    pub grant_types_supported: Option<Vec<String>>,
    pub code_challenge_methods_supported: Option<Vec<String>>,
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
    pub dpop_signing_alg_values_supported: Option<Vec<String>>,
    #[serde(default)]
    pub client_id_metadata_document_supported: bool,
    #[serde(default)]
    pub authorization_response_iss_parameter_supported: bool,
}

impl Metadata {
    /// The default endpoints of an authorization server of 2025-03-26 without metadata.
    pub(crate) fn default_of(origin: &Url) -> Self {
        let at = |path| origin.join(path).ok().map(String::from);
        Self {
            issuer: origin.origin().ascii_serialization(),
            authorization_endpoint: at("/authorize"),
            token_endpoint: at("/token"),
            registration_endpoint: at("/register"),
            // 2025-03-26 basic/authorization: clients always use PKCE.
            code_challenge_methods_supported: Some(vec!["S256".into()]),
            ..Self::default()
        }
    }

    /// The metadata of an issuer whose endpoints an administrator has configured.
    pub(crate) fn of_endpoints(issuer: Option<&str>, endpoints: &Endpoints) -> Self {
        let origin =
            || Url::parse(&endpoints.authorize).map(|url| url.origin().ascii_serialization());
        Self {
            issuer: issuer.map_or_else(|| origin().unwrap_or_default(), str::to_owned),
            authorization_endpoint: Some(endpoints.authorize.clone()),
            token_endpoint: Some(endpoints.token.clone()),
            device_authorization_endpoint: endpoints.device.clone(),
            // An issuer without PKCE support ignores the PKCE parameters.
            code_challenge_methods_supported: Some(vec!["S256".into()]),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn supports_scope(&self, scope: &str) -> bool {
        let mut scopes = self.scopes_supported.iter().flatten().take(MAX_SCOPES);
        scopes.any(|known| known == scope)
    }

    /// A missing list means `authorization_code` and `implicit` (RFC 8414, 2).
    pub(crate) fn supports_grant(&self, grant: &str) -> bool {
        let grants = self.grant_types_supported.as_ref();
        grants.map_or(grant == "authorization_code", |all| {
            all.iter().any(|it| it == grant)
        })
    }

    pub(crate) fn supports_dpop(&self) -> bool {
        let mut algorithms = self.dpop_signing_alg_values_supported.iter().flatten();
        algorithms.any(|it| it == ALGORITHM)
    }

    pub(crate) fn token_endpoint(&self) -> Result<Url, Error> {
        self.place("token endpoint", self.token_endpoint.as_deref())
    }

    pub(crate) fn place(&self, name: &str, url: Option<&str>) -> Result<Url, Error> {
        let Some(url) = url else {
            let what = format!(
                "the issuer {} has no {name}",
                crate::error::excerpt(&self.issuer)
            );
            return Err(Error::new(crate::Code::Unsupported, what));
        };
        endpoint(name, url)
    }
}

/// Metadata of a protected resource (RFC 9728, 2).
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Resource {
    pub(crate) resource: Option<String>,
    #[serde(default)]
    pub(crate) authorization_servers: Vec<String>,
    pub(crate) scopes_supported: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) dpop_bound_access_tokens_required: bool,
    pub(crate) dpop_signing_alg_values_supported: Option<Vec<String>>,
}

impl Resource {
    /// Returns true if the resource accepts tokens that are bound to a key (RFC 9728, 2).
    pub(crate) fn takes_dpop(&self) -> bool {
        let algorithms = self.dpop_signing_alg_values_supported.iter().flatten();
        self.dpop_bound_access_tokens_required || algorithms.into_iter().any(|it| it == ALGORITHM)
    }
}
