//! Sign-ins under way.
//!
//! Somebody asks, and gets a link. Whoever opens it shows that they are the one who asked ([`super::page`]), and goes to the issuer with
//! their browser, which has a cookie from then on; what the issuer sends back counts in that browser only, and once. Or the one who asked
//! goes to the issuer by themselves, and brings the redirect (*paste*) or types a code there (*device*).
//!
//! Links are in memory, and good for ten minutes. There is an end to how many there are: the oldest goes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::LoginBegun;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use engine::Order;
use http::{
    StatusCode,
    header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use model::Login;
use oauth::{Attempt, Callback, Challenge, Client, Code, Device, Discovery, Polled, Tokens};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{Http, Logins, Stored, credential::Credential, discover};

/// How long a link is good for.
pub(super) const LIFE: Duration = Duration::from_secs(600);
/// A request that any server refuses without a token, if it wants one.
const PING: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#;
/// Attempts to keep a sign-in in the place of one that changes.
const MAX_ATTEMPTS: u32 = 5;
/// Links at a time.
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

#[derive(Default)]
pub(super) struct Links(Mutex<HashMap<String, Link>>);

/// A sign-in under way.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) credential: Arc<Credential>,
    /// Who asked.
    pub(super) principal: Arc<str>,
    made: Instant,
    stage: Stage,
}

#[derive(Clone)]
enum Stage {
    Offered,
    /// At the issuer, with the browser that has this cookie; `None`: whoever asked brings the redirect.
    Away {
        attempt: Box<Attempt>,
        cookie: Option<String>,
    },
}

impl Links {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Link>> {
        let mut table = self.0.lock();
        table.retain(|_, link| link.made.elapsed() < LIFE);
        table
    }

    /// The link of somebody who asks: the one that they have not used yet, or a new one.
    pub(super) fn offer(&self, credential: &Arc<Credential>, principal: &Arc<str>) -> String {
        let mut table = self.table();
        let is_theirs = |link: &Link| {
            matches!(link.stage, Stage::Offered)
                && Arc::ptr_eq(&link.credential, credential)
                && link.principal == *principal
                && link.made.elapsed() < LIFE / 2
        };
        if let Some((id, _)) = table.iter().find(|(_, link)| is_theirs(link)) {
            return id.clone();
        }
        let id = random();
        insert(
            &mut table,
            id.clone(),
            Link::new(credential, principal, Stage::Offered),
        );
        id
    }

    /// A link that was not used yet.
    pub(super) fn offered(&self, id: &str) -> Option<Link> {
        let table = self.table();
        table
            .get(id)
            .filter(|link| matches!(link.stage, Stage::Offered))
            .cloned()
    }

    fn away(&self, id: String, link: Link) {
        insert(&mut self.table(), id, link);
    }

    /// Takes the attempt that a redirect answers, if it is this browser's (`cookies` are what it sent), or brought by whoever asked.
    fn take(&self, state: &str, whose: &Bringer<'_>) -> Option<(Link, Attempt)> {
        let mut table = self.table();
        let id = table.iter().find_map(|(id, link)| match &link.stage {
            Stage::Away { attempt, cookie } if attempt.state() == state => {
                let fits = match (whose, cookie) {
                    (Bringer::Browser(cookies), Some(cookie)) => cookies.contains(&cookie.as_str()),
                    (Bringer::Caller(principal), None) => **principal == *link.principal,
                    _ => false,
                };
                fits.then(|| id.clone())
            }
            _ => None,
        });
        let link = table.remove(&id?)?;
        match link.stage.clone() {
            Stage::Away { attempt, .. } => Some((link, *attempt)),
            Stage::Offered => None,
        }
    }
}

/// Who brings a redirect.
pub(super) enum Bringer<'a> {
    Browser(Vec<&'a str>),
    Caller(&'a str),
}

impl Link {
    fn new(credential: &Arc<Credential>, principal: &Arc<str>, stage: Stage) -> Self {
        Self {
            credential: credential.clone(),
            principal: principal.clone(),
            made: Instant::now(),
            stage,
        }
    }
}

fn insert(table: &mut HashMap<String, Link>, id: String, link: Link) {
    if table.len() >= MANY
        && let Some(oldest) = table.iter().min_by_key(|(_, link)| link.made)
    {
        let oldest = oldest.0.clone();
        table.remove(&oldest);
    }
    table.insert(id, link);
}

fn random() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 24]>())
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
        let expires_in = LIFE.as_secs();
        match way {
            Way::Browser => {
                let Some(base) = self.base.get() else {
                    return refuse("no browser can come back: start `toolwharf serve`");
                };
                let link = format!("{base}/login/{}", self.links.offer(&credential, principal));
                Ok(LoginBegun {
                    link: Some(link),
                    expires_in,
                    ..LoginBegun::default()
                })
            }
            Way::Paste => {
                let (attempt, url) = self.depart(&credential).await?;
                let stage = Stage::Away {
                    attempt: Box::new(attempt),
                    cookie: None,
                };
                self.links
                    .away(random(), Link::new(&credential, principal, stage));
                Ok(LoginBegun {
                    authorize_url: Some(url),
                    expires_in,
                    ..LoginBegun::default()
                })
            }
            Way::Device => self.device(&credential).await,
        }
    }

    /// Begins the sign-in of a link in a browser: where it goes, and the cookie that it has from now on.
    pub(super) async fn follow(
        self: &Arc<Self>,
        id: &str,
        link: &Link,
    ) -> Result<(String, String), oauth::Error> {
        let (attempt, url) = self.depart(&link.credential).await?;
        let cookie = random();
        let stage = Stage::Away {
            attempt: Box::new(attempt),
            cookie: Some(cookie.clone()),
        };
        self.links.away(
            id.to_owned(),
            Link::new(&link.credential, &link.principal, stage),
        );
        Ok((url, cookie))
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

    /// Ends a sign-in with the redirect that somebody brings; the name of the server.
    pub(super) async fn arrive(
        self: &Arc<Self>,
        callback: Callback,
        whose: Bringer<'_>,
    ) -> Result<String, oauth::Error> {
        let state = callback.state.clone().unwrap_or_default();
        let Some((link, attempt)) = self.links.take(&state, &whose) else {
            let what = "this redirect belongs to no sign-in of yours: it was used already, is older than ten minutes, or was begun in another browser";
            return Err(oauth::Error {
                code: Code::WrongRedirect,
                what: what.to_owned(),
            });
        };
        let credential = &link.credential;
        let (discovery, client) = (attempt.discovery.clone(), attempt.client.clone());
        let http = self.http(credential);
        let tokens = attempt
            .finish(&http, callback, &credential.place.login)
            .await?;
        self.arrived(
            credential,
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
    ) -> Result<(), oauth::Error> {
        let query = redirect
            .trim()
            .split_once('?')
            .map_or("", |(_, query)| query);
        let callback = Callback::parse(query.split('#').next().unwrap_or_default());
        self.arrive(callback, Bringer::Caller(principal))
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
            let what =
                "the sign-in cannot be kept: the database does not take it; see the log".to_owned();
            oauth::Error {
                code: Code::Unreachable,
                what,
            }
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
    async fn up(&self, server: &model::ServerKey) {
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

fn no_way_back() -> oauth::Error {
    let what = "no browser can come back: start `toolwharf serve`".to_owned();
    oauth::Error {
        code: Code::Unsupported,
        what,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use model::ServerKey;

    use super::{
        super::{Id, Place},
        *,
    };

    fn credential(server: &str) -> Arc<Credential> {
        let id = Id {
            server: ServerKey {
                owner: None,
                name: server.parse().unwrap(),
            },
            principal: "".into(),
        };
        let place = Place {
            url: None,
            login: Login::default(),
            public_only: false,
        };
        Credential::new(Weak::new(), &id, &place)
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_is_good_for_ten_minutes() {
        let (links, credential, ann) = (Links::default(), credential("files"), "ann".into());
        let link = links.offer(&credential, &ann);
        tokio::time::advance(LIFE - Duration::from_secs(1)).await;
        assert!(links.offered(&link).is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(links.offered(&link).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_is_of_one_caller_and_one_server() {
        let (links, files) = (Links::default(), credential("files"));
        let of = |credential: &Arc<Credential>, who: &str| links.offer(credential, &who.into());
        let first = of(&files, "ann");
        assert_eq!(of(&files, "ann"), first);
        assert_ne!(of(&files, "ben"), first);
        assert_ne!(of(&credential("other"), "ann"), first);
        // One that is soon over is not given out again.
        tokio::time::advance(LIFE / 2).await;
        assert_ne!(of(&files, "ann"), first);
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_an_end_to_links() {
        let (links, files) = (Links::default(), credential("files"));
        let first = links.offer(&files, &"first".into());
        for at in 0..MANY {
            tokio::time::advance(Duration::from_millis(1)).await;
            links.offer(&files, &at.to_string().into());
        }
        assert!(links.offered(&first).is_none());
        assert_eq!(links.table().len(), MANY);
    }
}
