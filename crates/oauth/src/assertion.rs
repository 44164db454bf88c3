//! Tokens obtained with an assertion about the client or a user (RFC 7523, 2.1). The assertion comes from a workload's
//! platform, or from a company's identity provider, which first exchanges an ID token for an assertion for the server's
//! issuer (RFC 8693; ID-JAG).

use model::{Idp, Login};
use serde::Deserialize;

use crate::{
    Client, Discovery, Http, Tokens,
    discovery::of_issuer,
    error::{Code, Error, excerpt},
    request::{refusal, unreadable},
    token::{post, request},
};

const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";

/// Exchanges an assertion for an access token.
///
/// # Errors
/// The issuer refused. Do not retry with the same assertion.
pub async fn of_assertion(
    http: &dyn Http,
    discovery: &Discovery,
    client: &Client,
    login: &Login,
    assertion: String,
) -> Result<Tokens, Error> {
    let mut form = vec![
        ("grant_type", JWT_BEARER.to_owned()),
        ("assertion", assertion),
    ];
    if !discovery.scopes.is_empty() {
        form.push(("scope", discovery.scopes.join(" ")));
    }
    request(http, discovery, client, login, form, Code::Refused).await
}

/// Exchanges an ID token at the identity provider for an assertion for the server's issuer.
///
/// # Errors
/// The identity provider is unreachable or refused.
pub async fn exchange(
    http: &dyn Http,
    discovery: &Discovery,
    idp: &Idp,
    id_token: String,
) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Answer {
        access_token: String,
        issued_token_type: String,
    }
    let metadata = of_issuer(http, &idp.issuer).await?;
    let place = metadata.token_endpoint()?;
    let client = Client::of_idp(idp, &metadata);
    let mut form = vec![
        ("grant_type", EXCHANGE.to_owned()),
        ("requested_token_type", ID_JAG.to_owned()),
        ("audience", discovery.metadata.issuer.clone()),
        ("subject_token", id_token),
        ("subject_token_type", ID_TOKEN.to_owned()),
    ];
    if let Some(resource) = &discovery.resource {
        form.push(("resource", resource.clone()));
    }
    if !discovery.scopes.is_empty() {
        form.push(("scope", discovery.scopes.join(" ")));
    }
    let idp_discovery = Discovery {
        resource: None,
        scopes: Vec::new(),
        dpop: false,
        metadata,
    };
    let (response, _) = post(http, &idp_discovery, &client, &Login::default(), form, None).await?;
    if !response.status().is_success() {
        let (_, said) = refusal(&response);
        let issuer = excerpt(&idp.issuer);
        let what = format!("the identity provider {issuer} refused the token exchange: {said}");
        return Err(Error::new(Code::Refused, what));
    }
    let answer = serde_json::from_slice::<Answer>(response.body()).ok();
    let answer = answer.filter(|answer| answer.issued_token_type == ID_JAG);
    let answer = answer.ok_or_else(|| unreadable(&place, "its response contains no ID-JAG"))?;
    Ok(answer.access_token)
}
