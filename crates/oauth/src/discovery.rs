//! Which authorization server a server trusts, and what that is like (2026-07-28 basic/authorization "Authorization Server
//! Discovery").

use model::Login;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::{
    Challenge, Http, Metadata,
    error::{Code, Error, excerpt},
    metadata::Resource,
    request::{document, endpoint},
};

const RESOURCE: &str = "/.well-known/oauth-protected-resource";
const SERVER: &str = "/.well-known/oauth-authorization-server";
const OPENID: &str = "/.well-known/openid-configuration";
/// Scopes of a protected resource that are asked for where it names none in its challenge.
const MOST_SCOPES: usize = 100;

/// What there is to know before a sign-in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// What tokens are asked for (RFC 8707), if the issuer takes that.
    pub resource: Option<String>,
    pub metadata: Metadata,
    /// The scopes to ask for.
    pub scopes: Vec<String>,
    /// Whether tokens are asked for that are bound to a key: the server and the issuer both know that (RFC 9449).
    #[serde(default)]
    pub dpop: bool,
}

/// Finds out where one signs in to the server at `url`, which answered with `challenge`.
///
/// # Errors
/// When a document that has to be there is not, cannot be read, or is of another resource or issuer.
pub async fn discover(
    http: &dyn Http,
    url: &str,
    login: &Login,
    challenge: &Challenge,
) -> Result<Discovery, Error> {
    let server = Url::parse(url)
        .map_err(|_| Error::new(Code::Unsupported, "the server's URL cannot be read"))?;
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
    // Without metadata a server is of 2025-03-26, which knows no `resource`; it does no harm there.
    let resource = named.unwrap_or_else(|| canonical(&plain));
    Ok(Discovery {
        resource: login.resource.then_some(resource),
        scopes: scopes(login, challenge, listed, &metadata),
        dpop: takes_dpop && metadata.supports_dpop(),
        metadata,
    })
}

/// Finds out where one signs in where no server says so: at the issuer of the login, or at its endpoints.
///
/// # Errors
/// When the issuer's metadata is not there, cannot be read, or is of another issuer.
pub async fn discover_issuer(http: &dyn Http, login: &Login) -> Result<Discovery, Error> {
    let issuer = login.issuer.as_deref();
    let metadata = match (&login.endpoints, issuer) {
        (Some(endpoints), _) => Metadata::of_endpoints(issuer, endpoints),
        (None, Some(issuer)) => of_issuer(http, issuer).await?,
        (None, None) => {
            let what = "the login has neither an issuer nor endpoints";
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

/// The scopes to ask for: what the entry says, and what the challenge names; without either, all that the server lists.
fn scopes(
    login: &Login,
    challenge: &Challenge,
    listed: Option<Vec<String>>,
    metadata: &Metadata,
) -> Vec<String> {
    let mut scopes = login.scopes.clone();
    scopes.extend(challenge.scopes().map(str::to_owned));
    if scopes.is_empty() {
        scopes.extend(listed.into_iter().flatten().take(MOST_SCOPES));
    }
    if metadata.supports_scope("offline_access") && metadata.supports_grant("refresh_token") {
        scopes.push("offline_access".to_owned());
    }
    let mut known = std::collections::BTreeSet::new();
    scopes.retain(|scope| known.insert(scope.clone()));
    scopes
}

/// The metadata of the server as a protected resource; `None`: it has none.
async fn protected(
    http: &dyn Http,
    server: &Url,
    challenge: &Challenge,
) -> Result<Option<Resource>, Error> {
    let mut places = Vec::new();
    match &challenge.resource_metadata {
        Some(named) => {
            // It may be written relative to the server.
            let named = server
                .join(named)
                .map_or_else(|_| named.clone(), String::from);
            places.push(endpoint("resource metadata", &named)?);
        }
        None => {
            let path = server.path().trim_end_matches('/');
            places.extend(at(server, &format!("{RESOURCE}{path}")));
            places.extend(at(server, RESOURCE).filter(|_| !path.is_empty()));
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
            let what = format!("the metadata at {place} is of `{resource}`, not of {server}");
            return Err(Error::new(Code::Mismatch, what));
        }
        return Ok(Some(found));
    }
    Ok(None)
}

/// Whether a resource is the server, or what the server is a part of: the same origin, and the beginning of its path.
fn covers(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else {
        return false;
    };
    let whole = |url: &Url| format!("{}/", url.path().trim_end_matches('/'));
    resource.origin() == server.origin() && whole(server).starts_with(&whole(&resource))
}

/// The server as a resource (2026-07-28 basic/authorization "Canonical Server URI").
fn canonical(server: &Url) -> String {
    match server.path() {
        "/" if server.query().is_none() => server.origin().ascii_serialization(),
        _ => server.to_string(),
    }
}

fn at(base: &Url, path: &str) -> Option<Url> {
    let mut url = base.clone();
    url.set_query(None);
    url.set_path(path);
    Some(url)
}

/// The metadata that an issuer has at one of its well-known places.
pub(crate) async fn of_issuer(http: &dyn Http, issuer: &str) -> Result<Metadata, Error> {
    let base = endpoint("issuer", issuer)?;
    let path = base.path().trim_end_matches('/').to_owned();
    let mut places = vec![format!("{SERVER}{path}"), format!("{OPENID}{path}")];
    if !path.is_empty() {
        places.push(format!("{path}{OPENID}"));
    }
    let mut failure = None;
    for place in places.iter().filter_map(|place| at(&base, place)) {
        match document::<Metadata>(http, &place).await {
            Ok(Some(metadata)) if metadata.issuer == issuer => return Ok(metadata),
            Ok(Some(metadata)) => {
                let (says, issuer) = (excerpt(&metadata.issuer), excerpt(issuer));
                let what =
                    format!("the metadata at {place} is of the issuer `{says}`, not of `{issuer}`");
                return Err(Error::new(Code::Mismatch, what));
            }
            Ok(None) => {}
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| {
        let what = format!(
            "the issuer {} has no metadata at its well-known places",
            excerpt(issuer)
        );
        Error::new(Code::Unreachable, what)
    }))
}

/// The authorization server of 2025-03-26: it is where the server is.
async fn of_origin(http: &dyn Http, server: &Url) -> Result<Metadata, Error> {
    endpoint("server", server.as_str())?;
    let place = at(server, SERVER);
    let found = match &place {
        Some(place) => document::<Metadata>(http, place).await?,
        None => None,
    };
    let Some(metadata) = found else {
        return Ok(Metadata::default_of(server));
    };
    let own = server.origin().ascii_serialization();
    if metadata.issuer.trim_end_matches('/') != own {
        let what = format!(
            "the metadata of {own} is of the issuer `{}`",
            excerpt(&metadata.issuer)
        );
        return Err(Error::new(Code::Mismatch, what));
    }
    Ok(metadata)
}
