//! Sign-ins in progress.
//!
//! A caller requests a sign-in and gets a link. The user who opens it proves that they are that caller
//! ([`super::page`]). Their browser gets a cookie and goes to the issuer; the issuer's redirect is accepted in that
//! browser only, and once. Alternatively the caller goes to the issuer without a link, and pastes the redirect
//! (*paste*) or enters a code there (*device*).
//!
//! A link contains the caller and the server, encrypted. Making one stores nothing; only its use is recorded. A sign-in
//! at an issuer is a ticket ([`Tickets`]), so each step may reach another replica. Exception: with *device*, the
//! replica that issued the code polls the issuer.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::LoginBegun;
use engine::Command;
use http::{
    StatusCode,
    header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use model::{Login, ProjectId, ServerKey, ServerName};
use oauth::{Attempt, Callback, Challenge, Client, Code, Device, Discovery, Polled, Tokens};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Logins, Stored, credential::Credential, discover};
use crate::projects::Projects;
use auth::tickets::{Kind, LINK, Tickets};

/// A request that a server answers with 401 if it wants a token.
const PING: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#;
/// Attempts to store a sign-in while the previous one is being changed.
const MAX_ATTEMPTS: u32 = 5;

/// Time for which repeated requests get the same link. Calls that fail at the same time then lead to one link.
const SAME_LINK_TTL: Duration = Duration::from_secs(30);
/// Maximum links that are remembered for [`SAME_LINK_TTL`].
const MAX_REMEMBERED: usize = 1000;

/// The way to sign in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By a link that opens in the user's browser.
    Browser,
    /// By a URL that the user opens in any browser, and the redirect that they paste.
    Paste,
    /// By a code that the user enters on another device.
    Device,
}

/// The caller and the server of a sign-in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Whose {
    project: Option<ProjectId>,
    server: ServerName,
    /// The caller who requested the sign-in.
    principal: Arc<str>,
}

/// The contents of a link.
#[derive(Serialize, Deserialize)]
struct Offer {
    #[serde(flatten)]
    whose: Whose,
    /// Seconds since 1970.
    until: i64,
}

/// A sign-in at the issuer.
#[derive(Serialize, Deserialize)]
struct Away {
    whose: Whose,
    attempt: Attempt,
}

/// The latest links, until they are known to be used.
#[derive(Default)]
pub(super) struct Offers(Mutex<HashMap<Whose, (Instant, String)>>);

impl Offers {
    fn get(&self, whose: Whose, make: impl FnOnce(Whose) -> String) -> String {
        let mut table = self.0.lock();
        table.retain(|_, (made, _)| made.elapsed() < SAME_LINK_TTL);
        if let Some((_, link)) = table.get(&whose) {
            return link.clone();
        }
        let link = make(whose.clone());
        if table.len() < MAX_REMEMBERED {
            table.insert(whose, (Instant::now(), link.clone()));
        }
        link
    }

    /// Drops the links of this server, so that the next request gets a new one.
    pub(super) fn forget(&self, server: &ServerKey) {
        self.0.lock().retain(|whose, _| whose.server() != *server);
    }
}

/// An unused link.
pub(super) struct Link {
    /// The encrypted part of the URL.
    id: String,
    whose: Whose,
    pub(super) credential: Arc<Credential>,
}

impl Link {
    /// The caller who requested the sign-in.
    pub(super) fn principal(&self) -> &str {
        &self.whose.principal
    }
}

impl Whose {
    fn of(credential: &Credential, principal: &Arc<str>) -> Self {
        let server = &credential.id.server;
        Self {
            project: server.owner.clone(),
            server: server.name.clone(),
            principal: principal.clone(),
        }
    }

    fn server(&self) -> ServerKey {
        ServerKey {
            owner: self.project.clone(),
            name: self.server.clone(),
        }
    }
}

/// Makes the encrypted part of a link, which names the caller, the server and the expiry.
fn offer(tickets: &Tickets, whose: Whose) -> String {
    let until = store::now().timestamp() + LINK.as_secs() as i64;
    let text = serde_json::to_string(&Offer { whose, until });
    tickets.seal(&text.expect("an offer contains no maps"))
}

/// The contents of a link, unless it has expired.
fn offered(tickets: &Tickets, id: &str) -> Option<Whose> {
    let offer: Offer = serde_json::from_str(&tickets.open(id)?).ok()?;
    (offer.until > store::now().timestamp()).then_some(offer.whose)
}

/// The sender of a redirect: a browser with these cookies, or the caller of the API with this id.
pub(super) enum Bringer<'a> {
    Browser(Vec<&'a str>),
    Caller(&'a str),
}

impl Logins {
    /// Begins a sign-in for a caller of the API.
    ///
    /// # Errors
    /// Why the issuer or the server does not allow it.
    pub async fn begin(
        self: &Arc<Self>,
        spec: &model::ServerSpec,
        principal: &Arc<str>,
        way: Way,
    ) -> Result<LoginBegun, oauth::Error> {
        let refuse = |what: &str| {
            Err(oauth::Error {
                code: Code::Unsupported,
                what: what.to_owned(),
            })
        };
        let Some(credential) = self.of(spec, principal) else {
            return refuse(
                "this server has no sign-in: it has neither a `url` nor `${login:…}` in its `env`, or its entry says `\"login\": \"none\"`",
            );
        };
        if !credential.place.login.grant.needs_person() {
            return refuse(
                "users do not sign in to this server: Toolwharf does, with the `grant` in its entry",
            );
        }
        let expires_in = LINK.as_secs();
        match way {
            Way::Browser => Ok(LoginBegun {
                link: Some(self.offer(&credential, principal).ok_or_else(no_way_back)?),
                expires_in,
                ..LoginBegun::default()
            }),
            Way::Paste => {
                let (attempt, url) = self.depart(&credential).await?;
                let whose = Whose::of(&credential, principal);
                let state = attempt.state().to_owned();
                let away = Away { whose, attempt };
                let kept = self.tickets()?.put(Kind::Paste, &state, &away).await;
                kept.map_err(unkept)?;
                Ok(LoginBegun {
                    authorize_url: Some(url),
                    expires_in,
                    ..LoginBegun::default()
                })
            }
            Way::Device => self.device(&credential).await,
        }
    }

    /// Makes a link for a caller.
    pub(super) fn offer(&self, credential: &Credential, principal: &Arc<str>) -> Option<String> {
        let at = self.listening.get()?;
        let whose = Whose::of(credential, principal);
        let link = self.offers.get(whose, |whose| offer(&at.tickets, whose));
        Some(format!("{}/login/{link}", at.base))
    }

    /// Looks up an unused link. The project of its server must be loaded already.
    ///
    /// # Errors
    /// Database errors.
    pub(super) async fn offered(&self, id: &str) -> Result<Option<Link>, oauth::Error> {
        let tickets = self.tickets()?;
        let Some(whose) = offered(tickets, id) else {
            return Ok(None);
        };
        let used = tickets.read::<()>(Kind::Used, id).await;
        if used.map_err(unkept)?.is_some() {
            return Ok(None);
        }
        Ok(self.sought(&whose).map(|credential| Link {
            id: id.to_owned(),
            whose,
            credential,
        }))
    }

    /// The project of a link's server.
    pub(super) fn project_of(&self, id: &str) -> Option<ProjectId> {
        offered(self.tickets().ok()?, id)?.project
    }

    fn sought(&self, whose: &Whose) -> Option<Arc<Credential>> {
        let fleet = self.gateway.get()?.fleet();
        let server = fleet.get(&whose.server())?;
        self.of(&server.spec, &whose.principal)
    }

    /// Begins the sign-in of a link in a browser. Returns the issuer's URL and the value of the browser's cookie.
    pub(super) async fn follow(
        self: &Arc<Self>,
        link: Link,
    ) -> Result<(String, String), oauth::Error> {
        let (attempt, url) = self.depart(&link.credential).await?;
        let tickets = self.tickets()?;
        self.offers.forget(&link.whose.server());
        let noted = tickets.put(Kind::Used, &link.id, &()).await;
        if !noted.map_err(unkept)? {
            return Err(oauth::Error {
                code: Code::WrongRedirect,
                what: "this link was used already: request another one".to_owned(),
            });
        }
        let whose = link.whose;
        let away = tickets.issue(Kind::Login, &Away { whose, attempt }).await;
        Ok((url, away.map_err(unkept)?))
    }

    pub(super) fn tickets(&self) -> Result<&Tickets, oauth::Error> {
        let at = self.listening.get().ok_or_else(no_way_back)?;
        Ok(&at.tickets)
    }

    async fn depart(&self, credential: &Credential) -> Result<(Attempt, String), oauth::Error> {
        let (discovery, client) = self.introduce(credential).await?;
        let identity = self.identity().ok_or_else(no_way_back)?;
        Attempt::begin(discovery, client, &credential.place.login, &identity)
    }

    async fn introduce(
        &self,
        credential: &Credential,
    ) -> Result<(Discovery, Client), oauth::Error> {
        let (http, login) = (self.http(&credential.place), &credential.place.login);
        let challenge = self.challenge(credential).await;
        let discovery = discover(&http, &credential.place, &challenge).await?;
        self.bind(&credential.id.server, &credential.place, &discovery)
            .await?;
        let identity = self.identity().ok_or_else(no_way_back)?;
        let check = !credential.take_client_known();
        let client = self
            .client(&http, &discovery, login, &identity, check)
            .await?;
        Ok((discovery, client))
    }

    /// The server's challenge for requests without a token: the last one it sent to any caller, or requested now.
    async fn challenge(&self, credential: &Credential) -> Challenge {
        let own = [credential.challenge()];
        let others = self.known(&credential.id.server);
        let others = others.iter().map(|other| other.challenge());
        let mut said = own.into_iter().chain(others);
        if let Some(said) = said.find(|challenge| *challenge != Challenge::default()) {
            return said;
        }
        let Some(url) = &credential.place.url else {
            return Challenge::default();
        };
        let request = http::Request::post(url)
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(bytes::Bytes::from_static(PING));
        let Ok(request) = request else {
            return Challenge::default();
        };
        match oauth::Http::send(&self.http(&credential.place), request).await {
            Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                let said = answer.headers().get(WWW_AUTHENTICATE);
                let said = said.and_then(|value| value.to_str().ok());
                Challenge::parse(said.unwrap_or_default())
            }
            _ => Challenge::default(),
        }
    }

    /// Finds and removes the sign-in that a redirect belongs to. A browser's cookies must contain the secret of the
    /// sign-in. A caller must be the one who requested it.
    async fn back(&self, state: &str, whose: &Bringer<'_>) -> Result<Option<Away>, oauth::Error> {
        let tickets = self.tickets()?;
        let (kind, secrets) = match whose {
            Bringer::Browser(cookies) => (Kind::Login, cookies.as_slice()),
            Bringer::Caller(_) => (Kind::Paste, std::slice::from_ref(&state)),
        };
        for secret in secrets {
            let read = tickets.read::<Away>(kind, secret).await.map_err(unkept)?;
            let fits = read.is_some_and(|(away, _)| {
                let is_theirs = match whose {
                    Bringer::Browser(_) => true,
                    Bringer::Caller(principal) => **principal == *away.whose.principal,
                };
                is_theirs && away.attempt.state() == state
            });
            if fits {
                return tickets.take(kind, secret).await.map_err(unkept);
            }
        }
        Ok(None)
    }

    /// Completes a sign-in with the redirect; returns the server's name. `projects` loads its project.
    pub(super) async fn arrive(
        self: &Arc<Self>,
        callback: Callback,
        whose: Bringer<'_>,
        projects: &Projects,
    ) -> Result<String, oauth::Error> {
        let state = callback.state.clone().unwrap_or_default();
        let Some(Away { whose, attempt }) = self.back(&state, &whose).await? else {
            let what = "this redirect does not belong to a sign-in of yours: it was used already, is older than ten minutes, or was begun in another browser";
            return Err(oauth::Error {
                code: Code::WrongRedirect,
                what: what.to_owned(),
            });
        };
        if let Some(project) = &whose.project {
            projects.known(project).await.map_err(unkept)?;
        }
        let Some(credential) = self.sought(&whose) else {
            let what = format!(
                "the server `{}` was removed, or no longer has a sign-in",
                whose.server
            );
            return Err(oauth::Error {
                code: Code::Unsupported,
                what,
            });
        };
        let (discovery, client) = (attempt.discovery.clone(), attempt.client.clone());
        let http = self.http(&credential.place);
        let finished = attempt
            .finish(&http, callback, &credential.place.login)
            .await;
        if finished
            .as_ref()
            .is_err_and(|error| error.code == Code::WrongRedirect)
        {
            credential.came_back();
        }
        let tokens = finished?;
        self.arrived(
            &credential,
            Stored {
                tokens,
                discovery,
                client,
            },
        )
        .await?;
        Ok(credential.id.server.name.to_string())
    }

    /// Completes a sign-in with a redirect that the caller pasted.
    ///
    /// # Errors
    /// Why the redirect or the sign-in is invalid.
    pub async fn finish(
        self: &Arc<Self>,
        principal: &str,
        redirect: &str,
        projects: &Projects,
    ) -> Result<(), oauth::Error> {
        let query = redirect
            .trim()
            .split_once('?')
            .map_or("", |(_, query)| query);
        let callback = Callback::parse(query.split('#').next().unwrap_or_default());
        self.arrive(callback, Bringer::Caller(principal), projects)
            .await
            .map(|_| ())
    }

    /// Stores a completed sign-in and restarts the server's connections.
    async fn arrived(
        self: &Arc<Self>,
        credential: &Arc<Credential>,
        stored: Stored,
    ) -> Result<(), oauth::Error> {
        let id = &credential.id;
        let kept = async {
            let mut attempts = 0;
            loop {
                let row = self.store.login_get(&id.server, &id.principal).await?;
                let version = row.map_or(1, |row| row.version + 1);
                let kept = self.keep(id, version, &stored, None).await;
                attempts += 1;
                // The previous sign-in may be renewed at this moment. The new one wins.
                match kept.as_ref().map_err(anyhow::Error::downcast_ref) {
                    Err(Some(store::Error::Conflict { .. })) if attempts < MAX_ATTEMPTS => {}
                    _ => return kept,
                }
            }
        };
        kept.await.map_err(|error| {
            tracing::error!(server = %id.server, "cannot save a sign-in: {error:#}");
            unkept(error)
        })?;
        let others = self.known(&id.server);
        for other in others.iter().filter(|other| other.id == *id) {
            other.forget();
        }
        self.part(id).await;
        self.up(&id.server).await;
        credential.begin(&stored.tokens);
        Ok(())
    }

    /// Starts a server that waited for a sign-in, and waits until it runs.
    pub(super) async fn up(&self, server: &ServerKey) {
        let Some(gateway) = self.gateway.get() else {
            return;
        };
        if let Some(server) = gateway.fleet().get(server).cloned()
            && server.status().needs_login
        {
            server.command(Command::Start).await;
        }
    }

    /// Begins a sign-in with a device code, and polls the issuer in a task.
    async fn device(
        self: &Arc<Self>,
        credential: &Arc<Credential>,
    ) -> Result<LoginBegun, oauth::Error> {
        let (discovery, client) = self.introduce(credential).await?;
        let login: &Login = &credential.place.login;
        let device =
            Device::begin(&self.http(&credential.place), &discovery, &client, login).await?;
        let ends_at = device.expires_at();
        let begun = LoginBegun {
            user_code: Some(device.user_code.clone()),
            verification_uri: Some(match &device.verification_uri_complete {
                Some(complete) => complete.clone(),
                None => device.verification_uri.clone(),
            }),
            expires_in: u64::try_from(ends_at - oauth::now()).unwrap_or(0),
            ..LoginBegun::default()
        };
        let (logins, credential) = (self.clone(), credential.clone());
        self.tasks.spawn(async move {
            let polled = logins.poll(&credential, &discovery, &client, &device, ends_at).await;
            let arrived = match polled {
                Ok(tokens) => {
                    let stored = Stored { tokens, discovery, client };
                    logins.arrived(&credential, stored).await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = arrived {
                tracing::warn!(server = %credential.id.server, "a sign-in with a code failed: {error}");
            }
        });
        Ok(begun)
    }

    async fn poll(
        &self,
        credential: &Credential,
        discovery: &Discovery,
        client: &Client,
        device: &Device,
        ends_at: i64,
    ) -> Result<Tokens, oauth::Error> {
        let mut wait = device.interval();
        loop {
            tokio::time::sleep(Duration::from_secs(wait)).await;
            if oauth::now() > ends_at {
                let what = "the code was not entered before it expired: sign in again".to_owned();
                return Err(oauth::Error {
                    code: Code::Denied,
                    what,
                });
            }
            let http = self.http(&credential.place);
            match device
                .poll(&http, discovery, client, &credential.place.login)
                .await
            {
                Ok(Polled::Done(tokens)) => return Ok(tokens),
                Ok(Polled::Wait(seconds)) => wait = seconds,
                Err(error) if error.is_passing() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The caller's error if the database fails.
fn unkept(error: impl std::fmt::Display) -> oauth::Error {
    let what = format!("the sign-in cannot be read or saved: {error}");
    oauth::Error {
        code: Code::Unreachable,
        what,
    }
}

fn no_way_back() -> oauth::Error {
    let what =
        "a sign-in needs a running gateway, which receives the redirect: start `toolwharf serve`"
            .to_owned();
    oauth::Error {
        code: Code::Unsupported,
        what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whose(project: Option<&str>, principal: &str) -> Whose {
        Whose {
            project: project.map(|id| ProjectId::parse(id).expect("an id")),
            server: "files".parse().expect("a name"),
            principal: principal.into(),
        }
    }

    #[tokio::test]
    async fn a_link_says_what_it_is_for_to_all_replicas_of_the_installation() {
        let (_dir, tickets) = Tickets::for_test().await;
        let (_other_dir, other) = Tickets::for_test().await;
        for whose in [whose(None, ""), whose(Some("p"), "user:corp:ann")] {
            let link = offer(&tickets, whose.clone());
            assert_eq!(offered(&tickets, &link), Some(whose));
            assert_eq!(offered(&other, &link), None);
            assert_eq!(offered(&tickets, &link[1..]), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_again_at_once_gets_the_same_link() {
        let offers = Offers::default();
        let mut made = 0;
        let mut get = |who: &str| {
            offers.get(whose(None, who), |_| {
                made += 1;
                made.to_string()
            })
        };
        assert_eq!((get("ann"), get("ann")), ("1".into(), "1".into()));
        assert_eq!(get("ben"), "2");
        tokio::time::advance(SAME_LINK_TTL).await;
        assert_eq!(get("ann"), "3");
        offers.forget(&whose(None, "").server());
        assert_eq!(get("ann"), "4");
    }

    #[tokio::test]
    async fn a_link_is_good_for_ten_minutes() {
        let (_dir, tickets) = Tickets::for_test().await;
        for (left, is_good) in [(1, true), (0, false)] {
            let offer = Offer {
                whose: whose(None, "ann"),
                until: store::now().timestamp() + left * 60,
            };
            let link = tickets.seal(&serde_json::to_string(&offer).expect("a text"));
            assert_eq!(offered(&tickets, &link).is_some(), is_good);
        }
    }
}
