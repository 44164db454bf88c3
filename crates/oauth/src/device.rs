//! A sign-in without a browser here: a person types a code elsewhere (RFC 8628).

use model::Login;
use serde::{Deserialize, Serialize};

use crate::{
    Client, Discovery, Http, Tokens,
    error::{Code, Error, excerpt},
    metadata::DEVICE,
    now,
    request::{endpoint, post_form, refusal, unreadable},
    token::{authenticate, post, read},
};

/// Seconds between two questions, where the issuer does not say.
const INTERVAL: u64 = 5;
/// Seconds that a code is good for at most.
const LONGEST: i64 = 1800;

/// A sign-in that waits for a person.
#[derive(Clone, Serialize, Deserialize)]
pub struct Device {
    device_code: String,
    /// What the person types.
    pub user_code: String,
    /// Where the person types it.
    pub verification_uri: String,
    /// The same with the code in it.
    pub verification_uri_complete: Option<String>,
    expires_in: i64,
    #[serde(default)]
    interval: Option<u64>,
}

/// What a question came to.
#[derive(Debug)]
pub enum Polled {
    Done(Tokens),
    /// The person has not done it yet: ask again after so many seconds.
    Wait(u64),
}

impl Device {
    /// Begins a sign-in.
    ///
    /// # Errors
    /// When the issuer has no such sign-in, or refuses it.
    pub async fn begin(
        http: &dyn Http,
        discovery: &Discovery,
        client: &Client,
        login: &Login,
    ) -> Result<Self, Error> {
        let metadata = &discovery.metadata;
        let named = metadata.device_authorization_endpoint.as_deref();
        let place = metadata.place("device authorization endpoint", named)?;
        let mut form = Vec::new();
        if !discovery.scopes.is_empty() {
            form.push(("scope", discovery.scopes.join(" ")));
        }
        if let Some(resource) = &discovery.resource {
            form.push(("resource", resource.clone()));
        }
        let shown = authenticate(discovery, client, login, &mut form)?;
        let response = post_form(http, &place, &form, shown, None).await?;
        if !response.status().is_success() {
            let (_, said) = refusal(&response);
            let issuer = excerpt(&metadata.issuer);
            return Err(Error::new(
                Code::Denied,
                format!("the issuer {issuer} refused: {said}"),
            ));
        }
        let device: Self = serde_json::from_slice(response.body())
            .map_err(|_| unreadable(&place, "its answer is no device authorization"))?;
        let uris = [
            Some(&device.verification_uri),
            device.verification_uri_complete.as_ref(),
        ];
        for uri in uris.into_iter().flatten() {
            endpoint("verification URI", uri)?;
        }
        Ok(Self {
            user_code: excerpt(&device.user_code),
            verification_uri: excerpt(&device.verification_uri),
            expires_in: device.expires_in.clamp(0, LONGEST),
            ..device
        })
    }

    /// Seconds from one question to the next.
    #[must_use]
    pub fn interval(&self) -> u64 {
        self.interval.unwrap_or(INTERVAL).clamp(1, 60)
    }

    /// When the code ends, in seconds since 1970, if it was made now.
    #[must_use]
    pub fn expires_at(&self) -> i64 {
        now() + self.expires_in
    }

    /// Asks whether the person has done it.
    ///
    /// # Errors
    /// When nothing will come of it any more.
    pub async fn poll(
        &self,
        http: &dyn Http,
        discovery: &Discovery,
        client: &Client,
        login: &Login,
    ) -> Result<Polled, Error> {
        let place = discovery.metadata.token_endpoint()?;
        let form = vec![
            ("grant_type", DEVICE.to_owned()),
            ("device_code", self.device_code.clone()),
        ];
        let (response, key) = post(http, discovery, client, login, form, None).await?;
        if response.status().is_success()
            && let Some(tokens) = read(response.body(), &discovery.scopes, key)
        {
            return Ok(Polled::Done(tokens));
        }
        // GitHub refuses with HTTP 200.
        let (error, said) = refusal(&response);
        match error.as_deref() {
            Some("authorization_pending") => Ok(Polled::Wait(self.interval())),
            Some("slow_down") => Ok(Polled::Wait(self.interval() + INTERVAL)),
            Some(_) => Err(Error::new(
                Code::Denied,
                format!("the sign-in was refused: {said}"),
            )),
            None => Err(unreadable(&place, &format!("it answered {said}"))),
        }
    }
}
