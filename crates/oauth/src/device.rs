//! Sign-in without a local browser: the user types a code on another device (RFC 8628).

use model::Login;
use serde::{Deserialize, Serialize};

use crate::{
    Client, Discovery, Http, Tokens,
    error::{Code, Error, excerpt},
    metadata::DEVICE_CODE_GRANT,
    now,
    request::{endpoint, post_form, refusal, unreadable},
    token::{INVALID_CLIENT, authenticate, post, read},
};

/// Seconds between polls if the issuer does not specify them.
const DEFAULT_INTERVAL_SECS: u64 = 5;
/// Maximum lifetime of a code in seconds.
const MAX_LIFETIME_SECS: i64 = 1800;

/// A pending sign-in.
#[derive(Clone, Serialize, Deserialize)]
pub struct Device {
    device_code: String,
    /// The code that the user types.
    pub user_code: String,
    /// The page on which the user types it.
    pub verification_uri: String,
    /// The same page with the code filled in.
    pub verification_uri_complete: Option<String>,
    expires_in: i64,
    #[serde(default)]
    interval: Option<u64>,
}

/// The result of a poll.
#[derive(Debug)]
pub enum Polled {
    Done(Tokens),
    /// The user has not finished yet. Poll again after this many seconds.
    Wait(u64),
}

impl Device {
    /// Starts a sign-in.
    ///
    /// # Errors
    /// The issuer does not support this kind of sign-in, or refuses it.
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
            let (error, said) = refusal(&response);
            let what = match error.as_deref() {
                Some(INVALID_CLIENT) => client.unknown(login, &metadata.issuer, &said),
                _ => {
                    let issuer = excerpt(&metadata.issuer);
                    format!("the issuer {issuer} refused the device sign-in: {said}")
                }
            };
            return Err(Error::new(Code::Denied, what));
        }
        let device: Self = serde_json::from_slice(response.body())
            .map_err(|_| unreadable(&place, "its response is not a device authorization"))?;
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
            expires_in: device.expires_in.clamp(0, MAX_LIFETIME_SECS),
            ..device
        })
    }

    /// Seconds between polls.
    #[must_use]
    pub fn interval(&self) -> u64 {
        self.interval.unwrap_or(DEFAULT_INTERVAL_SECS).clamp(1, 60)
    }

    /// When the code expires, in seconds since 1970, assuming that it was just issued.
    #[must_use]
    pub fn expires_at(&self) -> i64 {
        now() + self.expires_in
    }

    /// Checks whether the user has finished.
    ///
    /// # Errors
    /// The sign-in failed, or the issuer's response is unusable.
    pub async fn poll(
        &self,
        http: &dyn Http,
        discovery: &Discovery,
        client: &Client,
        login: &Login,
    ) -> Result<Polled, Error> {
        let place = discovery.metadata.token_endpoint()?;
        let form = vec![
            ("grant_type", DEVICE_CODE_GRANT.to_owned()),
            ("device_code", self.device_code.clone()),
        ];
        let (response, key) = post(http, discovery, client, login, form, None).await?;
        if response.status().is_success()
            && let Some(tokens) = read(response.body(), &discovery.scopes, key)
        {
            return Ok(Polled::Done(tokens));
        }
        // GitHub sends errors with HTTP 200.
        let (error, said) = refusal(&response);
        match error.as_deref() {
            Some("authorization_pending") => Ok(Polled::Wait(self.interval())),
            Some("slow_down") => Ok(Polled::Wait(self.interval() + DEFAULT_INTERVAL_SECS)),
            Some(INVALID_CLIENT) => {
                let what = client.unknown(login, &discovery.metadata.issuer, &said);
                Err(Error::new(Code::Denied, what))
            }
            Some(_) => Err(Error::new(
                Code::Denied,
                format!("the sign-in was refused: {said}"),
            )),
            None => Err(unreadable(&place, &format!("it answered {said}"))),
        }
    }
}
