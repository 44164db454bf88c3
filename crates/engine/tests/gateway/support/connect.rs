//! Replaces the launcher: connects to instances of [`Scripted`] servers instead of processes, containers and URLs.
//!
//! The conversation is real: [`mcp::client::Connector`] runs it over byte streams. Like `engine::launch`, this refuses
//! unusable specs, and waits after a failure for the exit that explains it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use engine::{
    Connect, Connection, Hindrance, Launched, Placement, Refused, RemoteReplica, StartError,
};
use futures_util::future::BoxFuture;
use mcp::client::{Ambient, Connector, Identity, Options, Target};
use model::{EraPolicy, Origin, Provider, ServerKey, ServerSpec};
use runtime::{Instance, Remote, Runtime, Unit};
use tokio_util::task::TaskTracker;

use super::server::Scripted;

/// Buffer size in each direction, in bytes.
const PIPE_BYTES: usize = 1 << 20;

/// A runtime that runs nothing. [`Scene`] is used instead.
pub(crate) struct Nothing;

impl Runtime for Nothing {
    fn probe(&self) -> BoxFuture<'_, Result<String, runtime::Error>> {
        Box::pin(async { Err(runtime::Error::Failed("nothing is run".to_owned())) })
    }

    fn launch(&self, _unit: Unit) -> BoxFuture<'_, Result<Instance, runtime::Error>> {
        Box::pin(async { Err(runtime::Error::Failed("nothing is run".to_owned())) })
    }
}

pub(crate) struct Scene {
    connector: Connector,
    identity: Identity,
    stop_grace: Duration,
    /// By server, and by the value of the header `X-Tenant`.
    servers: Mutex<HashMap<(ServerKey, Option<String>), Scripted>>,
    running: TaskTracker,
}

impl Scene {
    pub(crate) fn new(identity: Identity, stop_grace: Duration) -> Self {
        Self {
            connector: Connector::new(),
            identity,
            stop_grace,
            servers: Mutex::default(),
            running: TaskTracker::new(),
        }
    }

    /// Returns the scripted server with this key, which replaces the real one.
    pub(crate) fn server(&self, key: &ServerKey) -> Scripted {
        self.server_for(key, None)
    }

    /// Like [`Scene::server`], for requests with this value of the header `X-Tenant`.
    pub(crate) fn server_for(&self, key: &ServerKey, tenant: Option<&str>) -> Scripted {
        let mut servers = self.servers.lock().unwrap();
        let key = (key.clone(), tenant.map(str::to_owned));
        let server = servers.entry(key).or_insert_with(Scripted::new);
        server.clone()
    }

    async fn start(
        &self,
        spec: &ServerSpec,
        capabilities: &str,
        launched: &Launched,
    ) -> Result<(Connection, Ambient), StartError> {
        let tenant = match &spec.origin {
            Origin::Remote(remote) => remote.headers.get("X-Tenant"),
            Origin::Launch(_) => None,
        };
        let server = self.server_for(&spec.key(), tenant.map(String::as_str));
        let refuses = server.attempted();
        if let Some(why) = &spec.unusable {
            return Err(StartError::new(why.as_str()));
        }
        if let Some(why) = server.refused() {
            let refused = Refused {
                pointer: "/command",
                why: why.as_str().into(),
            };
            return Err(StartError {
                refused: Some(refused),
                ..StartError::new(why)
            });
        }
        if server.needs_sign_in() {
            return Err(StartError {
                hindrance: Some(Hindrance::Login),
                ..StartError::new("it needs a sign-in (nobody has signed in)")
            });
        }
        if refuses {
            return Err(StartError::new("connection refused"));
        }
        let (writer, input) = tokio::io::duplex(PIPE_BYTES);
        let (output, reader) = tokio::io::duplex(PIPE_BYTES);
        let (handle, remote) = Remote::new(spec.name.as_str());
        launched.put(&handle);
        self.running.spawn(server.run(remote, input, output));
        let target = Target::Stream {
            reader: Box::new(reader),
            writer: Box::new(writer),
            stray: None,
            exit: Some(exit_text(&handle)),
        };
        let options = Options {
            label: spec.name.as_str().into(),
            identity: self.identity.clone(),
            capabilities: capabilities.to_owned(),
            era: match spec.era {
                EraPolicy::Auto => None,
                EraPolicy::Legacy => Some(mcp::Era::Legacy),
                EraPolicy::Modern => Some(mcp::Era::Modern),
            },
            max_message: 1 << 20,
            max_depth: 64,
            timeout: spec.start_timeout,
            public_only: false,
            authorize: None,
            sign: None,
        };
        match self.connector.connect(target, &options).await {
            Ok((client, ambient)) => {
                let hosted = spec.sandbox().map(|_| {
                    Arc::new(Placement {
                        provider: Provider::Process,
                        why: "there is no other".into(),
                        enforced: Arc::default(),
                        files: None,
                        ports: Vec::new(),
                    })
                });
                // Nobody holds the handle of a server at a URL. The server ends when its streams end.
                let handle = if let Origin::Remote(_) = spec.origin {
                    self.running.spawn(async move {
                        handle.exited().await;
                    });
                    None
                } else {
                    Some(handle)
                };
                Ok((Connection::new(client, handle, hosted), ambient))
            }
            Err(error) => {
                let exited = tokio::time::timeout(Duration::from_millis(500), handle.exited());
                let exit = exited.await.ok();
                let reason = match exit {
                    Some(exit) => format!("it ended with {exit} before it answered the handshake"),
                    None => error.to_string(),
                };
                handle.stop(self.stop_grace).await;
                Err(StartError {
                    stderr: Some(handle.stderr()),
                    exit,
                    ..StartError::new(reason)
                })
            }
        }
    }
}

fn exit_text(handle: &runtime::Handle) -> BoxFuture<'static, String> {
    let exited = handle.exited();
    Box::pin(async { format!("it ended with {}", exited.await) })
}

impl Connect for Scene {
    fn connect<'a>(
        &'a self,
        spec: &'a ServerSpec,
        _: Option<&'a Arc<str>>,
        capabilities: &'a str,
        launched: &'a Launched,
    ) -> BoxFuture<'a, Result<(Connection, Ambient), StartError>> {
        Box::pin(self.start(spec, capabilities, launched))
    }

    /// The other gateway is played by the scripted server itself.
    fn reach<'a>(
        &'a self,
        spec: &'a ServerSpec,
        _: &'a RemoteReplica,
        capabilities: &'a str,
    ) -> BoxFuture<'a, Result<(Connection, Ambient), StartError>> {
        Box::pin(async move { self.start(spec, capabilities, &Launched::default()).await })
    }
}
