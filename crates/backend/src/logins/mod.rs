//! Signing in to servers: the tokens that requests carry, their storage, and the sign-in process.
//!
//! A *credential* is the sign-in of one caller, or of all callers, to one server. It is a database row, encrypted with
//! a key that only the master key opens, and bound to its server, principal and version. [`credential`] renews
//! credentials, [`links`] handles sign-ins in progress, and [`page`] serves their web pages.
//!
//! Invariants: no log, error, argument, record or response contains a token. A refresh token is stored durably before
//! the access token issued with it is used, even if the request that needed it is dropped. A credential of one caller
//! is never used for another caller's call. Deliberately absent: the protocol spoken with issuers (`oauth`).

mod bound;
mod credential;
mod links;
mod page;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use anyhow::Context;
use bytes::Bytes;
use engine::{Command, Gateway, Issued};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_client::{Client as HttpClient, Options};
use mcp::client::{Authorize, SignIn};
use model::{Login, LoginMode, Origin, ServerKey, ServerSpec, Settings};
use oauth::{Challenge, Client, Discovery, Identity, Tokens, token};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use store::{
    LoginClientRow, LoginRow, NewLogin, Store, Time,
    encryption::{DataKey, Sealed},
};
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use self::{
    credential::{Authorizing, Credential},
    links::Offers,
};
pub use self::{
    links::Way,
    page::{Identify, Shown, router},
};
use crate::master::Master;
use auth::tickets::Tickets;

/// Maximum bytes of a document from an issuer.
const MAX_DOCUMENT_BYTES: usize = 256 * 1024;
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum cached credentials. Credentials without a connection are evicted first.
const MAX_CACHED: usize = 4096;
/// Time limit for ending a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The principal of a shared credential.
const EVERYBODY: &str = "";

/// The key of a credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    pub(crate) server: ServerKey,
    /// The owner, or [`EVERYBODY`].
    pub(crate) principal: Arc<str>,
}

/// The parts of a server's configuration that affect sign-ins.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// `None`: the token is passed to the server in an environment variable, and not sent with requests.
    url: Option<String>,
    login: Login,
    public_only: bool,
}

/// The encrypted contents of a credential.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    tokens: Tokens,
    discovery: Discovery,
    client: Client,
}

/// The state of a sign-in.
pub struct Standing {
    pub mode: LoginMode,
    pub row: Option<LoginRow>,
    /// The scopes that the issuer granted.
    pub scopes: Vec<String>,
}

pub struct Logins {
    this: Weak<Self>,
    store: Store,
    master: Arc<Master>,
    http: HttpClient,
    /// The HTTP client for sign-ins to servers whose author is not trusted.
    public_http: HttpClient,
    key: OnceCell<DataKey>,
    gateway: OnceLock<Gateway>,
    /// Unset if no listener is running.
    listening: OnceLock<Listening>,
    credentials: Mutex<HashMap<Id, Arc<Credential>>>,
    offers: Offers,
    tasks: TaskTracker,
    /// The mode of entries that do not set one: a sign-in for each caller if an issuer is configured for callers,
    /// otherwise a shared one.
    usual: LoginMode,
    /// [`Settings::client_metadata_url`]
    metadata_url: Option<String>,
}

/// The address of this gateway for browsers.
struct Listening {
    /// The URL of the gateway.
    base: String,
    tickets: Arc<Tickets>,
}

impl Logins {
    pub(crate) fn new(store: Store, master: Arc<Master>, settings: &Settings) -> Arc<Self> {
        let usual = match settings.oidc.is_empty() {
            true => LoginMode::Shared,
            false => LoginMode::User,
        };
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            store,
            master,
            http: HttpClient::new(Options::guarded(false)),
            public_http: HttpClient::new(Options::guarded(true)),
            key: OnceCell::new(),
            gateway: OnceLock::new(),
            listening: OnceLock::new(),
            credentials: Mutex::default(),
            offers: Offers::default(),
            tasks: TaskTracker::new(),
            usual,
            metadata_url: settings.client_metadata_url.clone(),
        })
    }

    fn http(&self, place: &Place) -> Http<'_> {
        Http(match place.public_only {
            true => &self.public_http,
            false => &self.http,
        })
    }

    /// Sets the gateway. Its servers are restarted when their sign-in changes.
    pub(crate) fn serve(&self, gateway: &Gateway) {
        let _ = self.gateway.set(gateway.clone());
    }

    /// Sets the address for browsers, the URL of the gateway.
    pub fn listen(&self, base: &str, tickets: Arc<Tickets>) {
        let base = base.trim_end_matches('/').to_owned();
        let _ = self.listening.set(Listening { base, tickets });
    }

    fn base(&self) -> Option<&str> {
        self.listening.get().map(|at| &*at.base)
    }

    /// The identity of this gateway towards issuers, if a browser can be redirected back.
    fn identity(&self) -> Option<Identity> {
        let base = self.base()?;
        Some(Identity {
            redirect_uri: format!("{base}/login/callback"),
            metadata_url: self.metadata_url(base),
        })
    }

    /// The URL of the client metadata document. Issuers can read it only over TLS.
    fn metadata_url(&self, base: &str) -> Option<String> {
        let own = || format!("{base}/login/client.json");
        let named = self.metadata_url.clone();
        named.or_else(|| base.starts_with("https://").then(own))
    }

    /// The sign-in settings of a server, if it can have a sign-in.
    fn place(&self, spec: &ServerSpec) -> Option<Place> {
        let (url, login, public_only) = match &spec.origin {
            Origin::Remote(remote) => (Some(&remote.url), &remote.login, remote.public_only),
            Origin::Launch(launch) => (None, launch.login.as_ref()?.login.as_ref()?, false),
        };
        let usual = match login.grant.needs_person() {
            true => self.usual,
            false => LoginMode::Shared,
        };
        let mut login = login.clone();
        login.mode.get_or_insert(usual);
        Some(Place {
            url: url.cloned(),
            login,
            public_only,
        })
    }

    fn credential(&self, id: &Id, place: &Place) -> Arc<Credential> {
        let mut all = self.credentials.lock();
        if let Some(known) = all.get(id)
            && known.place == *place
        {
            return known.clone();
        }
        if all.len() >= MAX_CACHED {
            all.retain(|_, credential| Arc::strong_count(credential) > 1);
        }
        let made = Credential::new(self.this.clone(), id, place);
        all.insert(id.clone(), made.clone());
        made
    }

    /// The cached credentials of one server.
    fn known(&self, server: &ServerKey) -> Vec<Arc<Credential>> {
        let all = self.credentials.lock();
        let of = all
            .values()
            .filter(|credential| credential.id.server == *server);
        of.cloned().collect()
    }

    /// The credential of a caller for a server; `None` if the server has no sign-in.
    fn of(&self, spec: &ServerSpec, principal: &Arc<str>) -> Option<Arc<Credential>> {
        let place = self.place(spec)?;
        let whose = match mode(&place.login) {
            LoginMode::None => return None,
            LoginMode::Shared => EVERYBODY.into(),
            LoginMode::User => principal.clone(),
        };
        let id = Id {
            server: spec.key(),
            principal: whose,
        };
        Some(self.credential(&id, &place))
    }

    async fn key(&self) -> anyhow::Result<&DataKey> {
        self.key.get_or_try_init(|| self.master.login_key()).await
    }

    async fn seal<T: Serialize>(&self, parts: &[&str], value: &T) -> anyhow::Result<Sealed> {
        let text = serde_json::to_string(value)?;
        Ok(self.key().await?.seal_login(parts, &text))
    }

    async fn open<T: DeserializeOwned>(&self, parts: &[&str], sealed: Sealed) -> anyhow::Result<T> {
        let text = self.key().await?.open_login(parts, &sealed)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Stores an issuer's response as this version of the credential.
    async fn keep(
        &self,
        id: &Id,
        version: i64,
        stored: &Stored,
        needs_login: Option<&str>,
    ) -> anyhow::Result<()> {
        let sealed = self.seal(&parts(id, &version.to_string()), stored).await?;
        let login = NewLogin {
            version,
            issuer: &stored.discovery.metadata.issuer,
            needs_login,
            nonce: &sealed.nonce,
            sealed: &sealed.sealed,
            expires_at: stored
                .tokens
                .expires_at
                .and_then(|at| Time::from_timestamp(at, 0)),
        };
        Ok(self
            .store
            .login_put(&id.server, &id.principal, login)
            .await?)
    }

    /// The client that the issuer knows this gateway as. Registers it if necessary, and again if the issuer has
    /// forgotten it: a browser that is sent there with an unknown client ends on an error page of the issuer. `check`:
    /// whether to find that out with a request.
    async fn client(
        &self,
        http: &dyn oauth::Http,
        discovery: &Discovery,
        login: &Login,
        identity: &Identity,
        check: bool,
    ) -> Result<Client, oauth::Error> {
        let issuer = &discovery.metadata.issuer;
        let parts = ["client", issuer, &identity.redirect_uri];
        let row = self
            .store
            .login_client_get(issuer, &identity.redirect_uri)
            .await;
        let known = match row {
            Ok(Some(row)) => {
                let (nonce, sealed) = (row.nonce, row.sealed);
                self.open::<Client>(&parts, Sealed { nonce, sealed })
                    .await
                    .ok()
            }
            _ => None,
        };
        let known = match known {
            Some(client)
                if check
                    && login.client_id.is_none()
                    && token::is_forgotten(http, discovery, &client, login).await =>
            {
                tracing::info!(issuer, "the issuer has forgotten the client registration");
                None
            }
            known => known,
        };
        let client = oauth::identify(http, discovery, login, identity, known.clone()).await?;
        if client.redirect_uri.is_some() && known.as_ref() != Some(&client) {
            let kept = async {
                let Sealed { nonce, sealed } = self.seal(&parts, &client).await?;
                let row = LoginClientRow { nonce, sealed };
                self.store
                    .login_client_put(issuer, &identity.redirect_uri, &row)
                    .await?;
                anyhow::Ok(())
            };
            if let Err(error) = kept.await {
                tracing::warn!("cannot save the client registration at {issuer}: {error:#}");
            }
        }
        Ok(client)
    }

    /// The sign-in mode of a server.
    pub fn mode(&self, spec: &ServerSpec) -> LoginMode {
        self.place(spec)
            .map_or(LoginMode::None, |place| mode(&place.login))
    }

    /// The state of a caller's sign-in to a server; `None` if the server has no sign-in.
    pub async fn standing(
        &self,
        spec: &ServerSpec,
        principal: &Arc<str>,
    ) -> store::Result<Option<Standing>> {
        let Some(credential) = self.of(spec, principal) else {
            return Ok(None);
        };
        let Id { server, principal } = &credential.id;
        let row = self.store.login_get(server, principal).await?;
        let stored = match row.clone() {
            // A sign-in that cannot be decrypted is also reported, so that it can be ended.
            Some(row) => opened(self, &credential.id, row).await.ok(),
            None => None,
        };
        Ok(Some(Standing {
            mode: self.mode(spec),
            row,
            scopes: stored.map_or_else(Vec::new, |stored| stored.tokens.scopes),
        }))
    }

    /// Why a caller has to sign in again to a server with separate sign-ins. `None` if the sign-in works, if the caller
    /// has never signed in, or if the server has a shared sign-in or none.
    ///
    /// # Errors
    /// Database errors.
    pub async fn expired(
        &self,
        spec: &ServerSpec,
        principal: &Arc<str>,
    ) -> store::Result<Option<String>> {
        if self.mode(spec) != LoginMode::User {
            return Ok(None);
        }
        let row = self.store.login_get(&spec.key(), principal).await?;
        Ok(row.and_then(|row| row.needs_login))
    }

    /// Signs a caller out. Revokes the tokens at the issuer if possible.
    ///
    /// # Errors
    /// If the caller is not signed in; database errors.
    pub async fn end(&self, spec: &ServerSpec, principal: &Arc<str>) -> store::Result<()> {
        let Some(credential) = self.of(spec, principal) else {
            return Ok(());
        };
        let id = &credential.id;
        let row = self.store.login_get(&id.server, &id.principal).await?;
        if *id.principal == *EVERYBODY {
            self.store.login_issuer_forget(&id.server).await?;
        }
        self.store.login_delete(&id.server, &id.principal).await?;
        for known in self.known(&id.server) {
            known.forget();
        }
        self.part(id).await;
        self.wake(&id.server, Command::Restart);
        let Some(row) = row else { return Ok(()) };
        let taken_back = async {
            let Stored {
                tokens,
                discovery,
                client,
            } = opened(self, id, row).await?;
            let http = self.http(&credential.place);
            let login = &credential.place.login;
            token::revoke(&http, &discovery, &client, login, &tokens).await?;
            anyhow::Ok(())
        };
        if let Err(error) = taken_back.await {
            tracing::warn!(server = %id.server, "cannot revoke the tokens of a sign-out at the issuer: {error:#}");
        }
        Ok(())
    }

    /// Loads sign-ins and sign-outs that happened at other replicas.
    ///
    /// # Errors
    /// Database errors.
    pub async fn take_in(&self) -> store::Result<()> {
        let known: Vec<_> = self.credentials.lock().values().cloned().collect();
        for credential in known {
            let Id { server, principal } = &credential.id;
            let row = self.store.login_get(server, principal).await?;
            let is_in = row.is_some_and(|row| row.needs_login.is_none());
            match (is_in, credential.is_held()) {
                (true, false) => {
                    self.offers.forget(server);
                    credential.forget();
                    let Some(logins) = self.this.upgrade() else {
                        return Ok(());
                    };
                    let credential = credential.clone();
                    // Calls that wait for the sign-in continue when the server runs.
                    self.tasks.spawn(async move {
                        logins.up(&credential.id.server).await;
                        credential.begun_elsewhere();
                    });
                }
                (false, true) => {
                    credential.forget();
                    self.part(&credential.id).await;
                    self.wake(server, Command::Restart);
                }
                (true, true) | (false, false) => {}
            }
        }
        Ok(())
    }

    /// Ends a caller's connection to a server. The next one uses the current sign-in.
    async fn part(&self, id: &Id) {
        let Some(gateway) = self.gateway.get() else {
            return;
        };
        if let Some(server) = gateway.fleet().get(&id.server).cloned() {
            let whose = Some(&id.principal).filter(|whose| ***whose != *EVERYBODY);
            server.part_with(whose, CLOSE_TIMEOUT).await;
        }
    }

    /// Reports that a caller's sign-in has expired.
    fn report_expired(&self, server: &ServerKey, why: &str) {
        if let Some(gateway) = self.gateway.get() {
            gateway.report_expired_sign_in(server, why);
        }
    }

    /// Restarts a server after a sign-in or sign-out.
    fn wake(&self, server: &ServerKey, order: Command) {
        let Some(gateway) = self.gateway.get().cloned() else {
            return;
        };
        let server = server.clone();
        self.tasks.spawn(async move {
            if let Some(server) = gateway.fleet().get(&server).cloned() {
                // Waits until calls that fail for lack of a sign-in have returned that error. Otherwise they would
                // report that the server has stopped.
                server.idle(CLOSE_TIMEOUT).await;
                server.command(order).await;
            }
        });
    }
}

impl engine::Logins for Logins {
    fn authorize(&self, spec: &ServerSpec, whose: Option<&Arc<str>>) -> Option<Arc<dyn Authorize>> {
        let everybody: Arc<str> = EVERYBODY.into();
        let credential = self.of(spec, whose.unwrap_or(&everybody))?;
        Some(Arc::new(Authorizing(credential)))
    }

    fn issue(
        &self,
        spec: &ServerSpec,
        whose: Option<&Arc<str>>,
    ) -> Option<BoxFuture<'static, Result<Issued, SignIn>>> {
        spec.launch()?;
        let everybody: Arc<str> = EVERYBODY.into();
        let credential = self.of(spec, whose.unwrap_or(&everybody))?;
        Some(Box::pin(credential.issued()))
    }

    fn is_personal(&self, spec: &ServerSpec) -> bool {
        self.mode(spec) == LoginMode::User
    }

    fn link(&self, spec: &ServerSpec, principal: &Arc<str>) -> Option<String> {
        let credential = self.of(spec, principal)?;
        if !credential.place.login.grant.needs_person() {
            return None;
        }
        self.offer(&credential, principal)
    }

    fn signed_in(&self, spec: &ServerSpec, principal: &Arc<str>) -> BoxFuture<'static, ()> {
        match self.of(spec, principal) {
            Some(credential) => credential.signed_in(),
            None => Box::pin(std::future::pending()),
        }
    }
}

/// The HTTP client for requests to issuers, and for a server's metadata.
struct Http<'a>(&'a HttpClient);

impl oauth::Http for Http<'_> {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        Box::pin(self.0.fetch(request, MAX_DOCUMENT_BYTES, FETCH_TIMEOUT))
    }
}

/// Finds the issuer of a server.
async fn discover(
    http: &Http<'_>,
    place: &Place,
    challenge: &Challenge,
) -> Result<Discovery, oauth::Error> {
    match &place.url {
        Some(url) => oauth::discover(http, url, &place.login, challenge).await,
        None => oauth::discover_issuer(http, &place.login).await,
    }
}

fn mode(login: &Login) -> LoginMode {
    login.mode.unwrap_or_default()
}

/// The place that a credential's encryption is bound to.
fn parts<'a>(id: &'a Id, version: &'a str) -> [&'a str; 5] {
    let owner = id.server.owner.as_ref().map_or("", |owner| owner.as_str());
    [
        "credential",
        owner,
        id.server.name.as_str(),
        &id.principal,
        version,
    ]
}

/// Decrypts a stored credential.
async fn opened(logins: &Logins, id: &Id, row: LoginRow) -> anyhow::Result<Stored> {
    let (nonce, sealed) = (row.nonce, row.sealed);
    let version = row.version.to_string();
    let stored = logins
        .open(&parts(id, &version), Sealed { nonce, sealed })
        .await;
    stored.with_context(|| format!("the sign-in to `{}` cannot be decrypted", id.server))
}
