//! Finds the authorization server that a server trusts, and its metadata (2026-07-28 basic/authorization "Authorization
//! Server Discovery").

use model::Login;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::{
    Challenge, Http, Metadata,
    error::{Code, Error, excerpt},
    metadata::Resource,
    request::{document, endpoint},
};

const RESOURCE_METADATA_PATH: &str = "/.well-known/oauth-protected-resource";
const SERVER_METADATA_PATH: &str = "/.well-known/oauth-authorization-server";
const OPENID_METADATA_PATH: &str = "/.well-known/openid-configuration";
/// Maximum scopes taken from a protected resource's metadata if its challenge names none.
const MAX_LISTED_SCOPES: usize = 100;

/// Everything needed before a sign-in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// The resource to request tokens for (RFC 8707); `None` if the entry turns it off, or without a server.
    pub resource: Option<String>,
    pub metadata: Metadata,
    /// The scopes to request.
    pub scopes: Vec<String>,
    /// True if requested tokens are bound to a key, because both the server and the issuer support that (RFC 9449).
    #[serde(default)]
    pub dpop: bool,
}

/// Finds the authorization server for the server at `url`, which responded with `challenge`.
///
/// # Errors
/// A required document is missing, invalid, or for another resource or issuer.
pub async fn discover(
    http: &dyn Http,
    url: &str,
    login: &Login,
    challenge: &Challenge,
) -> Result<Discovery, Error> {
    let server = Url::parse(url).map_err(|error| {
        let shown = excerpt(&model::url_for_display(url));
        let what = format!("the server's URL `{shown}` is invalid: {error}");
        Error::new(Code::Unsupported, what)
    })?;
    let mut plain = server.clone();
    plain.set_fragment(None);
    let found = protected(http, &plain, challenge).await?;
    let takes_dpop = challenge.is_dpop || found.as_ref().is_some_and(Resource::takes_dpop);
    let (metadata, named, listed) = match (found, &login.issuer) {
        (Some(found), issuer) => {
            let issuer = issuer.as_ref().or(found.authorization_servers.first());
            let Some(issuer) = issuer else {
                let what = "the server's metadata names no authorization server; set `issuer` in the entry's `login`";
                return Err(Error::new(Code::Unsupported, what));
            };
            let metadata = of_issuer(http, issuer).await?;
            (metadata, found.resource, found.scopes_supported)
        }
        (None, Some(issuer)) => (of_issuer(http, issuer).await?, None, None),
        (None, None) => (of_origin(http, &plain).await?, None, None),
    };
    // Servers without metadata follow 2025-03-26, which has no `resource`. Sending it does no harm.
    let resource = named.unwrap_or_else(|| canonical(&plain));
    Ok(Discovery {
        resource: login.resource.then_some(resource),
        scopes: scopes(login, challenge, listed, &metadata),
        dpop: takes_dpop && metadata.supports_dpop(),
        metadata,
    })
}

/// Finds the authorization server without asking a server: the login's issuer, or its endpoints.
///
/// # Errors
/// The issuer's metadata is missing, invalid, or for another issuer.
pub async fn discover_issuer(http: &dyn Http, login: &Login) -> Result<Discovery, Error> {
    let issuer = login.issuer.as_deref();
    let metadata = match (&login.endpoints, issuer) {
        (Some(endpoints), _) => Metadata::of_endpoints(issuer, endpoints),
        (None, Some(issuer)) => of_issuer(http, issuer).await?,
        (None, None) => {
            let what = "the `login` has neither `issuer` nor `endpoints`; set one of them";
            return Err(Error::new(Code::Unsupported, what));
        }
    };
    Ok(Discovery {
        resource: None,
        scopes: scopes(login, &Challenge::default(), None, &metadata),
        dpop: false,
        metadata,
    })
}

/// The scopes to request: the scopes of the entry and of the challenge. If there are none, all scopes that the server
/// lists.
fn scopes(
    login: &Login,
    challenge: &Challenge,
    listed: Option<Vec<String>>,
    metadata: &Metadata,
) -> Vec<String> {
    let mut scopes = login.scopes.clone();
    scopes.extend(challenge.scopes().map(str::to_owned));
    if scopes.is_empty() {
        scopes.extend(listed.into_iter().flatten().take(MAX_LISTED_SCOPES));
    }
    if metadata.supports_scope("offline_access") && metadata.supports_grant("refresh_token") {
        scopes.push("offline_access".to_owned());
    }
    let mut known = std::collections::BTreeSet::new();
    scopes.retain(|scope| known.insert(scope.clone()));
    scopes
}

/// The server's metadata as a protected resource. `None` if it has none.
async fn protected(
    http: &dyn Http,
    server: &Url,
    challenge: &Challenge,
) -> Result<Option<Resource>, Error> {
    let mut places = Vec::new();
    match &challenge.resource_metadata {
        Some(named) => {
            // The metadata's URL may be relative to the server's URL.
            let named = server
                .join(named)
                .map_or_else(|_| named.clone(), String::from);
            places.push(endpoint("resource metadata", &named)?);
        }
        None => {
            let path = server.path().trim_end_matches('/');
            places.push(at(server, &format!("{RESOURCE_METADATA_PATH}{path}")));
            if !path.is_empty() {
                places.push(at(server, RESOURCE_METADATA_PATH));
            }
        }
    }
    for place in places {
        let Some(found) = document::<Resource>(http, &place).await? else {
            continue;
        };
        if let Some(resource) = &found.resource
            && !covers(resource, server)
        {
            let (resource, server) = (excerpt(resource), excerpt(server.as_str()));
            let what = format!("the metadata at {place} is for `{resource}` instead of {server}");
            return Err(Error::new(Code::Mismatch, what));
        }
        return Ok(Some(found));
    }
    Ok(None)
}

/// Returns true if `resource` is the server or contains it: same origin, and a prefix of its path.
fn covers(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else {
        return false;
    };
    let whole = |url: &Url| format!("{}/", url.path().trim_end_matches('/'));
    resource.origin() == server.origin() && whole(server).starts_with(&whole(&resource))
}

/// The server's resource identifier (2026-07-28 basic/authorization "Canonical Server URI").
fn canonical(server: &Url) -> String {
    match server.path() {
        "/" if server.query().is_none() => server.origin().ascii_serialization(),
        _ => server.to_string(),
    }
}

fn at(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_query(None);
    url.set_path(path);
    url
}

/// Fetches an issuer's metadata from its well-known URLs.
pub(crate) async fn of_issuer(http: &dyn Http, issuer: &str) -> Result<Metadata, Error> {
    let places = well_known(&endpoint("issuer", issuer)?);
    first_of(http, issuer, places, |place, says| {
        let (says, issuer) = (excerpt(says), excerpt(issuer));
        format!("the metadata at {place} is for the issuer `{says}` instead of `{issuer}`")
    })
    .await
}

/// The well-known URLs of an issuer's metadata: first the RFC 8414 URL, then the OpenID Connect URLs.
#[must_use]
pub fn well_known(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let mut places = vec![
        at(issuer, &format!("{SERVER_METADATA_PATH}{path}")),
        at(issuer, &format!("{OPENID_METADATA_PATH}{path}")),
    ];
    if !path.is_empty() {
        places.push(at(issuer, &format!("{path}{OPENID_METADATA_PATH}")));
    }
    places
}

/// Fetches an issuer's metadata from the first URL that has it. `mismatch` returns the error text for metadata at a URL
/// that names another issuer.
///
/// # Errors
/// No URL has usable metadata, or the first metadata found does not name exactly `issuer`.
pub async fn first_of(
    http: &dyn Http,
    issuer: &str,
    places: Vec<Url>,
    mismatch: impl Fn(&Url, &str) -> String,
) -> Result<Metadata, Error> {
    let mut failure = None;
    for place in places {
        match document::<Metadata>(http, &place).await {
            Ok(Some(metadata)) if metadata.issuer == issuer => return Ok(metadata),
            Ok(Some(metadata)) => {
                let what = mismatch(&place, &metadata.issuer);
                return Err(Error::new(Code::Mismatch, what));
            }
            Ok(None) => {}
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| {
        let what = format!(
            "the issuer {} has no metadata at its well-known URLs",
            excerpt(issuer)
        );
        Error::new(Code::Unreachable, what)
    }))
}

/// The authorization server according to 2025-03-26: it has the server's origin.
async fn of_origin(http: &dyn Http, server: &Url) -> Result<Metadata, Error> {
    endpoint("server", server.as_str())?;
    let place = at(server, SERVER_METADATA_PATH);
    let Some(metadata) = document::<Metadata>(http, &place).await? else {
        return Ok(Metadata::default_of(server));
    };
    let own = server.origin().ascii_serialization();
    if metadata.issuer.trim_end_matches('/') != own {
        let what = format!(
            "the metadata of {own} is for another issuer, `{}`",
            excerpt(&metadata.issuer)
        );
        return Err(Error::new(Code::Mismatch, what));
    }
    Ok(metadata)
}
