//! Sign-ins under way.
//!
//! Somebody asks, and gets a link. Whoever opens it shows that they are the one who asked ([`super::page`]), and goes to the issuer with
//! their browser, which has a cookie from then on; what the issuer sends back counts in that browser only, and once. Or the one who asked
//! goes to the issuer by themselves, and brings the redirect (*paste*) or types a code there (*device*).
//!
//! A link contains, sealed, whose sign-in it is for and to which server. So it costs nothing to make one, and only its use is noted. A sign-in at an issuer is a ticket
//! ([`Tickets`]). So each step may come to another replica, but for *device*: the replica that gave the code asks whether it was typed.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::LoginBegun;
use engine::Order;
use http::{
    StatusCode,
    header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use model::{Login, ProjectId, ServerKey, ServerName};
use oauth::{Attempt, Callback, Challenge, Client, Code, Device, Discovery, Polled, Tokens};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Http, Logins, Stored, credential::Credential, discover};
use crate::{
    projects::Projects,
    tickets::{Kind, LINK, Tickets},
};

/// A request that any server refuses without a token, if it wants one.
const PING: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#;
/// Attempts to keep a sign-in in the place of one that changes.
const MAX_ATTEMPTS: u32 = 5;

/// How long whoever asks again gets the same link: calls that fail at once are one step for whoever made them.
const SAME: Duration = Duration::from_secs(30);
/// Links that are remembered for that.
const MANY: usize = 1000;

/// How somebody wants to sign in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a link that their browser opens.
    Browser,
    /// By a URL that they open wherever they like, and the redirect that they bring.
    Paste,
    /// By a code that they type elsewhere.
    Device,
}

/// Whose sign-in to which server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Whose {
    project: Option<ProjectId>,
    server: ServerName,
    /// The caller who asked for the sign-in.
    principal: Arc<str>,
}

/// What a link says.
#[derive(Serialize, Deserialize)]
struct Offer {
    #[serde(flatten)]
    whose: Whose,
    /// In seconds since 1970.
    until: i64,
}

/// A sign-in at the issuer.
#[derive(Serialize, Deserialize)]
struct Away {
    whose: Whose,
    attempt: Attempt,
}

/// The links that were made last, while they are not known to be used.
#[derive(Default)]
pub(super) struct Offers(Mutex<HashMap<Whose, (Instant, String)>>);

impl Offers {
    fn get(&self, whose: Whose, make: impl FnOnce(Whose) -> String) -> String {
        let mut table = self.0.lock();
        table.retain(|_, (made, _)| made.elapsed() < SAME);
        if let Some((_, link)) = table.get(&whose) {
            return link.clone();
        }
        let link = make(whose.clone());
        if table.len() < MANY {
            table.insert(whose, (Instant::now(), link.clone()));
        }
        link
    }

    /// Whoever asks gets another link to sign in to this server.
    pub(super) fn forget(&self, server: &ServerKey) {
        self.0.lock().retain(|whose, _| whose.server() != *server);
    }
}

/// A link that was not used yet.
pub(super) struct Link {
    /// The part of the address that says what it is for.
    id: String,
    whose: Whose,
    pub(super) credential: Arc<Credential>,
}

impl Link {
    /// The caller who asked for the sign-in.
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

/// A link's text.
fn offer(tickets: &Tickets, whose: Whose) -> String {
    let until = store::now().timestamp() + LINK.as_secs() as i64;
    let text = serde_json::to_string(&Offer { whose, until });
    tickets.seal(&text.expect("it has no maps"))
}

/// What a link is for, while it is good.
fn offered(tickets: &Tickets, id: &str) -> Option<Whose> {
    let offer: Offer = serde_json::from_str(&tickets.open(id)?).ok()?;
    (offer.until > store::now().timestamp()).then_some(offer.whose)
}

/// Where a redirect comes from.
pub(super) enum Bringer<'a> {
    Browser(Vec<&'a str>),
    Caller(&'a str),
}

impl Logins {
    /// Begins a sign-in for somebody who asks over the API.
    ///
    /// # Errors
    /// What the issuer or the server has against it.
    pub(crate) async fn begin(
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
                "nobody signs in to this server: it has neither a `url` nor `${login:…}` in its `env`, or its entry says `\"login\": \"none\"`",
            );
        };
        if !credential.place.login.grant.needs_person() {
            return refuse(
                "nobody signs in to this server: Toolwharf does, by the `grant` of its entry",
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

    /// A link for somebody who asks.
    pub(super) fn offer(&self, credential: &Credential, principal: &Arc<str>) -> Option<String> {
        let at = self.listening.get()?;
        let whose = Whose::of(credential, principal);
        let link = self.offers.get(whose, |whose| offer(&at.tickets, whose));
        Some(format!("{}/login/{link}", at.base))
    }

    /// A link that was not used yet. Its server's project has to be known.
    ///
    /// # Errors
    /// Those of the database.
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

    /// The project whose server a link is for.
    pub(super) fn project_of(&self, id: &str) -> Option<ProjectId> {
        offered(self.tickets().ok()?, id)?.project
    }

    fn sought(&self, whose: &Whose) -> Option<Arc<Credential>> {
        let fleet = self.gateway.get()?.fleet();
        let server = fleet.get(&whose.server())?;
        self.of(&server.spec, &whose.principal)
    }

    /// Begins the sign-in of a link in a browser: where it goes, and the cookie that it has from now on.
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
                what: "this link was used already".to_owned(),
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
        let (http, login) = (self.http(credential), &credential.place.login);
        let challenge = self.challenge(credential).await;
        let discovery = discover(&http, &credential.place, &challenge).await?;
        self.bind(&credential.id.server, &credential.place, &discovery)
            .await?;
        let identity = self.identity().ok_or_else(no_way_back)?;
        let client = self.client(&http, &discovery, login, &identity).await?;
        Ok((discovery, client))
    }

    /// What the server says when it refuses to go without a token: as it said it last, to whomever, or else asked for now.
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
        match oauth::Http::send(&self.http(credential), request).await {
            Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                let said = answer.headers().get(WWW_AUTHENTICATE);
                let said = said.and_then(|value| value.to_str().ok());
                Challenge::parse(said.unwrap_or_default())
            }
            _ => Challenge::default(),
        }
    }

    fn http(&self, credential: &Credential) -> Http<'_> {
        Http {
            connector: &self.connector,
            public_only: credential.place.public_only,
        }
    }

    /// Takes the sign-in that a redirect answers, if it is this browser's (`cookies` are what it sent), or brought by whoever asked.
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

    /// Ends a sign-in with the redirect that somebody brings; the name of the server. `projects` has its project known.
    pub(super) async fn arrive(
        self: &Arc<Self>,
        callback: Callback,
        whose: Bringer<'_>,
        projects: &Projects,
    ) -> Result<String, oauth::Error> {
        let state = callback.state.clone().unwrap_or_default();
        let Some(Away { whose, attempt }) = self.back(&state, &whose).await? else {
            let what = "this redirect belongs to no sign-in of yours: it was used already, is older than ten minutes, or was begun in another browser";
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
                "the server `{}` is gone, or nobody signs in to it any more",
                whose.server
            );
            return Err(oauth::Error {
                code: Code::Unsupported,
                what,
            });
        };
        let (discovery, client) = (attempt.discovery.clone(), attempt.client.clone());
        let http = self.http(&credential);
        let tokens = attempt
            .finish(&http, callback, &credential.place.login)
            .await?;
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

    /// Ends a sign-in with the redirect that the one who asked has pasted.
    ///
    /// # Errors
    /// What is wrong with it, or what the issuer has against it.
    pub(crate) async fn finish(
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

    /// Keeps what somebody who signed in has brought, and has the server know.
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
                // The old one may be renewed at this moment; the new one is what counts.
                match kept.as_ref().map_err(anyhow::Error::downcast_ref) {
                    Err(Some(store::Error::Conflict { .. })) if attempts < MAX_ATTEMPTS => {}
                    _ => return kept,
                }
            }
        };
        kept.await.map_err(|error| {
            tracing::error!(server = %id.server, "a sign-in is not kept: {error:#}");
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

    /// Has a server that waited for a sign-in start, and waits until it has.
    async fn up(&self, server: &ServerKey) {
        let Some(gateway) = self.gateway.get() else {
            return;
        };
        if let Some(server) = gateway.fleet().get(server).cloned()
            && server.status().needs_login
        {
            server.command(Order::Start).await;
        }
    }

    /// Begins a sign-in with a code that is typed elsewhere, and follows it.
    async fn device(
        self: &Arc<Self>,
        credential: &Arc<Credential>,
    ) -> Result<LoginBegun, oauth::Error> {
        let (discovery, client) = self.introduce(credential).await?;
        let login: &Login = &credential.place.login;
        let device = Device::begin(&self.http(credential), &discovery, &client, login).await?;
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
                tracing::warn!(server = %credential.id.server, "a sign-in by a code came to nothing: {error}");
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
                let what = "nobody typed the code in time".to_owned();
                return Err(oauth::Error {
                    code: Code::Denied,
                    what,
                });
            }
            let http = self.http(credential);
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

/// What somebody is told when the database fails.
fn unkept<E>(_: E) -> oauth::Error {
    let what = "the sign-in cannot be kept: the database does not take it; see the log".to_owned();
    oauth::Error {
        code: Code::Unreachable,
        what,
    }
}

fn no_way_back() -> oauth::Error {
    let what = "no browser can come back: start `toolwharf serve`".to_owned();
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
        tokio::time::advance(SAME).await;
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
