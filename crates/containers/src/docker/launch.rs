//! Launches a container for a unit.

use crate::docker::engine::start;
use crate::docker::net::Net;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bollard::{
    models::{ContainerSummary, SystemInfo},
    query_parameters::InspectNetworkOptions,
};
use futures_util::StreamExt as _;
use model::{Network, Provider, Sandbox};
use tokio::process::Command;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Inner,
    engine::{
        CHANGE_TIMEOUT, Call, Client, LABEL_FENCE, LABEL_FENCE_OF, LABEL_HOSTING, LABEL_INSTALL,
        LABEL_RUN, call, found, within,
    },
    images::{import, inspect_image, pull},
    pause::{self},
    readback::{self, Meter},
    reaper::{Egress, GivenUp, Reaper},
    relay::{self, Relay},
    spec::{self, Host},
    stdio,
    volumes::Volumes,
};
use crate::common::{self, refused};
use crate::docker::images::Image;
use runtime::{
    egress::{self, Allowed},
    ports::Listeners,
    unit::{Confined, Error, Fence, Fences, Instance, Unit, remove_each},
};

const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum attempts to create a container. A new attempt is made if another program took the port before the daemon
/// listened there.
const MAX_PORT_ATTEMPTS: usize = 5;

/// An empty image. The probe runs the daemon's own init in it.
const PROBE_IMAGE: (&str, &str) = ("toolwharf/probe", "empty");
const INIT_PROGRAM: &str = "/sbin/docker-init";

/// The end of a tar archive: two empty blocks.
const EMPTY_TAR: [u8; 1024] = [0; 1024];

impl Inner {
    pub(super) async fn probe(&self) -> Result<String, Error> {
        let client = self.engine.connect().await?;
        let host = self.host(&client).await?;
        self.probe_start(&client).await?;
        let what = match self.options.provider {
            Provider::Gvisor => "gVisor",
            Provider::Firecracker => "a virtual machine",
            _ => "namespaces",
        };
        let version = match &host.runtime_path {
            Some(path) => version(path).await,
            None => None,
        };
        let version = version
            .map(|version| format!(" {version}"))
            .unwrap_or_default();
        Ok(format!(
            "{} ({what}){version} on Docker {}",
            self.options.runtime, client.version
        ))
    }

    /// Reads the capabilities of the daemon.
    async fn host(&self, client: &Client) -> Result<Host, Error> {
        let info: SystemInfo = within(
            "read the configuration of the Docker daemon",
            CHANGE_TIMEOUT,
            client.docker.info(),
        )
        .await?;
        let name = &self.options.runtime;
        let runtimes = info.runtimes.unwrap_or_default();
        let Some(runtime) = runtimes.get(name) else {
            let mut known: Vec<&str> = runtimes.keys().map(String::as_str).collect();
            known.sort_unstable();
            let remedy = match self.options.provider {
                Provider::Gvisor => {
                    "; install it (`apt-get install runsc`), register it (`runsc install`) and restart the daemon"
                }
                Provider::Firecracker => {
                    "; install Kata Containers, register it in /etc/docker/daemon.json and restart the daemon"
                }
                _ => "",
            };
            return Err(Error::Unavailable(format!(
                "the Docker daemon {} has no runtime `{name}` (it has {}){remedy}",
                client.version,
                known.join(", ")
            )));
        };
        Ok(Host {
            runtime_path: runtime.path.as_deref().and_then(readback::locate),
            runtime_args: runtime.runtime_args.clone().unwrap_or_default(),
            cores: info.ncpu.and_then(|cores| u32::try_from(cores).ok()),
            memory: info.memory_limit.unwrap_or(false),
            cpu: info.cpu_cfs_quota.unwrap_or(false),
            pids: info.pids_limit.unwrap_or(false),
        })
    }

    /// Starts a container that runs only the daemon's init.
    async fn probe_start(&self, client: &Client) -> Result<(), Error> {
        let image = format!("{}:{}", PROBE_IMAGE.0, PROBE_IMAGE.1);
        if inspect_image(client, &image).await?.is_none() {
            let what = "import an image for the probe";
            import(client, what, PROBE_IMAGE, EMPTY_TAR.to_vec()).await?;
        }
        let unavailable = |why: String| {
            Error::Unavailable(format!(
                "the runtime `{}` of the Docker daemon {} does not work: {why}",
                self.options.runtime, client.version
            ))
        };
        let body = spec::probe(&self.options, &image, INIT_PROGRAM);
        let id = client.create(&self.probe_name(), body).await?;
        let tried = async {
            match start(client, &id).await {
                Ok(()) => {}
                Err(Call::Daemon(_, why)) => return Err(unavailable(why)),
                Err(Call::Other(error)) => return Err(unavailable(error.to_string())),
            }
            let code = within("wait for a container", CHANGE_TIMEOUT, async {
                let mut wait = client.docker.wait_container(&id, None);
                Ok(match wait.next().await {
                    Some(Ok(end)) => Some(end.status_code),
                    Some(Err(bollard::errors::Error::DockerContainerWaitError {
                        code, ..
                    })) => Some(code),
                    Some(Err(error)) => return Err(error),
                    None => None,
                })
            })
            .await?;
            let runtime = client
                .inspect(&id)
                .await?
                .and_then(|container| container.host_config.and_then(|config| config.runtime));
            match (code, runtime) {
                (Some(0), Some(runtime)) if runtime == self.options.runtime => Ok(()),
                (Some(0), runtime) => Err(unavailable(format!(
                    "the daemon runs `{}` instead",
                    runtime.unwrap_or_default()
                ))),
                (Some(code), _) => Err(unavailable(format!(
                    "the probe container exited with code {code}"
                ))),
                (None, _) => Err(unavailable(
                    "the probe container's exit code is unknown".to_owned(),
                )),
            }
        }
        .await;
        // If this fails, the next sweep removes the probe.
        let removed = client.remove(&id).await;
        tried?;
        removed
    }

    /// Unique per probe, because probes may run at the same time.
    fn probe_name(&self) -> String {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let id = format!("probe.{}.{serial}", std::process::id());
        spec::name(&id, &self.options.install)
    }

    /// Launches an instance. `unwanted` completes when no caller waits for the instance any longer.
    pub(super) async fn launch(
        self: &Arc<Self>,
        unit: &Unit,
        unwanted: impl Future<Output = ()>,
    ) -> Result<Instance, Error> {
        let unit = unit.confined()?;
        let sandbox = unit.sandbox;
        let (image, _) = common::image_of(unit, "a container needs an `image` that contains it")?;
        common::check_id(&sandbox.id)?;
        spec::check_image(image)?;
        let _turn = self.keyed_lock.turn(&sandbox.id).await?;
        let client = self.engine.connect().await?;
        let host = self.host(&client).await?;
        let allowed = self.network(&client, &host, sandbox).await?;
        let there = match inspect_image(&client, image).await? {
            Some(there) => there,
            None => tokio::select! {
                pulled = pull(&client, image) => pulled?,
                () = unwanted => return Err(Error::Failed("the launch was cancelled".to_owned())),
            },
        };
        let name = spec::name(&sandbox.id, &self.options.install);
        self.make_room(&client, &name).await?;
        if let Some(fence) = unit.fence {
            self.fence_off(&client, &sandbox.id, fence).await?;
        }
        let (addresses, relay) = self.ports(unit).await?;
        let volumes = self.volumes(&client, sandbox).await?;
        let held = match &allowed {
            Some(_) => match self.hold(&client, unit).await {
                Ok(held) => Some(held),
                Err(error) => {
                    volumes.release().await;
                    return Err(error);
                }
            },
            None => None,
        };
        let pause = held.as_ref().map(|held| held.id.clone());
        let net = Net {
            held: allowed.zip(held),
            addresses,
            relay,
        };
        let mut launched = self
            .create(&client, &host, unit, &volumes, &there, net)
            .await;
        for _ in 1..MAX_PORT_ATTEMPTS {
            if !lost_its_port(sandbox, &launched) {
                break;
            }
            launched = match self.ports(unit).await {
                Ok((addresses, relay)) => {
                    let net = Net {
                        held: None,
                        addresses,
                        relay,
                    };
                    self.create(&client, &host, unit, &volumes, &there, net)
                        .await
                }
                Err(error) => Err(error),
            };
        }
        volumes.release().await;
        if launched.is_err()
            && let Some(id) = pause
        {
            client.remove_or_warn(unit.label, &id).await;
        }
        launched
    }

    async fn create(
        self: &Arc<Self>,
        client: &Client,
        host: &Host,
        unit: Confined<'_>,
        volumes: &Volumes,
        image: &Image,
        net: Net,
    ) -> Result<Instance, Error> {
        let name = spec::name(&unit.sandbox.id, &self.options.install);
        let body = spec::body(&self.options, host, unit, volumes, image, &net)?;
        let id = match client.create(&name, body).await {
            Ok(id) => id,
            Err(error) => {
                if let Call::Other(Error::Timeout { .. }) = error {
                    // The daemon may still create the container after the timeout.
                    self.make_room(client, &name).await?;
                }
                return Err(refusal(error));
            }
        };
        let launched = self.start(client, host, unit, &id, volumes, net).await;
        if launched.is_err() {
            client.remove_or_warn(unit.label, &id).await;
        }
        launched
    }

    async fn start(
        self: &Arc<Self>,
        client: &Client,
        host: &Host,
        unit: Confined<'_>,
        id: &str,
        volumes: &Volumes,
        net: Net,
    ) -> Result<Instance, Error> {
        let Confined { label, sandbox, .. } = unit;
        let attached = client.attach(id, unit.has_streams()).await?;
        start(client, id).await.map_err(refusal)?;
        let container = client
            .inspect(id)
            .await?
            .ok_or_else(|| Error::Failed("another program removed the container".into()))?;
        let space = net.held.as_ref().map(|(_, held)| held.space);
        let enforced = readback::rows(&self.options, host, sandbox, volumes, &container, space)?;
        let wanted = |what: &str| what != "kernel" || self.options.provider != Provider::Runc;
        common::check_strict(sandbox, &enforced, wanted)?;
        let guest = readback::guest(&container);
        let guest = guest.map(|(pid, started)| self.options.guests.add(pid, started));
        let meter = Meter::new(client.clone(), id.to_owned());
        let (exit, shared) = common::state(label, Some(Box::new(meter)));
        let (stdio, pump) = stdio::streams(unit.has_streams(), attached, true);
        let egress = net.held.map(|(allowed, held)| {
            let label = label.to_owned();
            let proxy = self.tasks.spawn(async move {
                let served = egress::run(held.listener, Arc::new(allowed), label.clone()).await;
                if let Err(error) = served {
                    tracing::error!(server = label, %error, "the egress proxy cannot listen");
                }
            });
            Egress {
                proxy: AbortOnDropHandle::new(proxy),
                pause: held.id,
            }
        });
        let relay = net.relay.map(|(_, listeners)| Relay {
            client: client.clone(),
            container: id.to_owned(),
            listeners,
            shared: Arc::clone(&shared),
        });
        let relay = relay.map(|relay| AbortOnDropHandle::new(self.tasks.spawn(relay.run())));
        let killed = CancellationToken::new();
        let pump = pump.run(Arc::clone(&shared), killed.clone());
        let pump = self.tasks.spawn(pump);
        let reaper = Reaper {
            engine: Arc::clone(&self.engine),
            client: client.clone(),
            id: id.to_owned(),
            shared: Arc::clone(&shared),
            pump,
            killed,
            bridged: unit.has_streams(),
            given_up: GivenUp::Ended,
            egress,
            relay,
            _guest: guest,
            exit,
        };
        self.tasks.spawn(reaper.run());
        let ports = net.addresses;
        Ok(common::instance(shared, stdio, ports, enforced))
    }

    /// Opens listeners for the server's ports, unless the daemon publishes them.
    async fn ports(
        &self,
        unit: Confined<'_>,
    ) -> Result<(BTreeMap<u16, SocketAddr>, Option<(PathBuf, Listeners)>), Error> {
        let (listeners, addresses) = common::listen(&self.options.ports, unit).await?;
        if listeners.is_empty() || unit.sandbox.network == Network::Open {
            // From this point, the daemon binds these ports.
            return Ok((addresses, None));
        }
        let (dir, name) = (self.options.dir.clone(), self.options.runtime.clone());
        let placed = tokio::task::spawn_blocking(move || relay::place(&dir, &name)).await;
        let file = placed.map_err(|error| {
            Error::Failed(format!(
                "cannot install the relay for the server's ports: {error}"
            ))
        })??;
        Ok((addresses, Some((file, listeners))))
    }

    /// Returns the allow-list of the network, if it has one. Fails if the network cannot be enforced or provided.
    async fn network(
        &self,
        client: &Client,
        host: &Host,
        sandbox: &Sandbox,
    ) -> Result<Option<Allowed>, Error> {
        let name = &self.options.network;
        match &sandbox.network {
            Network::None => Ok(None),
            Network::Allow(entries) => match pause::refusal(&self.options, host) {
                Some(why) => refused("network", why),
                None => match Allowed::parse(entries) {
                    Ok(allowed) => Ok(Some(allowed)),
                    Err(why) => refused("network", why),
                },
            },
            Network::Open if host.runtime_args.iter().any(|arg| arg == "--network=none") => {
                refused(
                    "network",
                    format!(
                        "the daemon's runtime `{}` is registered with --network=none; remove that option, or set `network` to `none`",
                        self.options.runtime
                    ),
                )
            }
            Network::Open if ["host", "none"].contains(&name.as_str()) => refused(
                "network",
                format!(
                    "`[hosting] docker_network` may not be `{name}`; name another network, or remove the setting"
                ),
            ),
            Network::Open => {
                let options = None::<InspectNetworkOptions>;
                let network = call(
                    "inspect a network",
                    CHANGE_TIMEOUT,
                    client.docker.inspect_network(name, options),
                );
                if found(network.await)?.is_none() {
                    return refused(
                        "network",
                        format!(
                            "the Docker daemon has no network `{name}`; `docker network create {name}` creates it"
                        ),
                    );
                }
                Ok(None)
            }
        }
    }

    /// Removes the container with this name. It belongs to an instance of an earlier run, or to one that was killed but
    /// whose exit is unknown.
    pub(super) async fn make_room(&self, client: &Client, name: &str) -> Result<(), Error> {
        let Some(old) = client.inspect(name).await? else {
            return Ok(());
        };
        let labels = old.config.and_then(|config| config.labels);
        let owner = labels.and_then(|labels| labels.get(LABEL_INSTALL).cloned());
        if owner.as_deref() != Some(&self.options.install) {
            let why =
                format!("a container `{name}` of another program exists; remove or rename it");
            return refused("id", why);
        }
        match old.id {
            Some(id) => client.remove(&id).await,
            None => Ok(()),
        }
    }

    /// Removes the containers that another gateway of the same database left for this server on this daemon.
    async fn fence_off(&self, client: &Client, id: &str, fence: &Fence) -> Result<(), Error> {
        let mine = [(LABEL_FENCE_OF, &*fence.installation), (LABEL_HOSTING, id)];
        for container in client.list(&mine).await? {
            let Some(number) = fence_of(&container) else {
                continue;
            };
            if number > fence.number {
                return Err(common::superseded(number, fence));
            }
            tracing::warn!(
                server = id,
                fence = number,
                "removing a container of a lost gateway"
            );
            client.remove(&container.id.unwrap_or_default()).await?;
        }
        Ok(())
    }

    pub(super) async fn fences(&self, installation: &str) -> Result<BTreeSet<i64>, Error> {
        let client = self.engine.connect().await?;
        let all = client.list(&[(LABEL_FENCE_OF, installation)]).await?;
        Ok(all.iter().filter_map(fence_of).collect())
    }

    pub(super) async fn sweep_fenced(&self, lost: &Fences) -> Result<usize, Error> {
        let client = self.engine.connect().await?;
        let of = (LABEL_FENCE_OF, &*lost.installation);
        let mut all = client.list(&[of]).await?;
        all.retain(|container| {
            fence_of(container).is_some_and(|number| lost.numbers.contains(&number))
        });
        let client = &client;
        remove_each(all, |container| async move {
            client.remove(&container.id.unwrap_or_default()).await?;
            Ok(1)
        })
        .await
    }

    pub(super) async fn sweep(&self) -> Result<usize, Error> {
        let client = self.engine.connect().await?;
        let (client, install) = (&client, &self.options.install);
        let mut all = client.list(&[(LABEL_INSTALL, install)]).await?;
        all.retain(|container| {
            let labels = container.labels.as_ref();
            let run = labels.and_then(|labels| labels.get(LABEL_RUN));
            // A container's labels include those of its image, which anyone can set. So the name is checked as well.
            let mut names = container.names.iter().flatten();
            run != Some(&self.options.run) && names.any(|name| spec::is_name(name, install))
        });
        remove_each(all, |container| async move {
            client.remove(&container.id.unwrap_or_default()).await?;
            // Count an instance and its holder as one: leave out holders.
            let mut names = container.names.iter().flatten();
            let is_pause = names.any(|name| spec::is_pause(name, install));
            Ok(usize::from(!is_pause))
        })
        .await
    }
}

/// Returns the fencing token of the launch that created the container. Labels also come from images, so they are
/// trusted only on a container with a name like Toolwharf's.
fn fence_of(container: &ContainerSummary) -> Option<i64> {
    let names = container.names.iter().flatten();
    let is_ours = names.clone().any(|name| name.starts_with("/toolwharf-"));
    let labels = container.labels.as_ref().filter(|_| is_ours)?;
    labels.get(LABEL_FENCE)?.parse().ok()
}

/// Returns whether another program took a chosen port between the check that it is free and the daemon's bind.
fn lost_its_port(sandbox: &Sandbox, launched: &Result<Instance, Error>) -> bool {
    sandbox.network == Network::Open
        && sandbox.ports.iter().any(|port| port.host.is_none())
        && matches!(launched, Err(Error::Refused { field: "ports", .. }))
}

/// Finds the invalid field of the request from the daemon's error text.
fn refusal(error: Call) -> Error {
    let Call::Daemon(status, why) = error else {
        return error.into();
    };
    let field = if why.contains(&format!("/{}", relay::FILE_NAME)) {
        Some("ports")
    } else if why.contains("bind source path") || why.contains("mount path") {
        Some("mounts")
    } else if why.contains("invalid mount") || why.contains("destination can't be") {
        Some("volumes")
    } else if why.contains("port is already allocated") || why.contains("address already in use") {
        Some("ports")
    } else if why.contains("executable file not found") || why.contains("no such file or directory")
    {
        Some("command")
    } else if why.contains("emory limit") {
        Some("memory")
    } else if status == 404 && why.contains("image") {
        Some("image")
    } else {
        None
    };
    match field {
        Some(field) => Error::Refused { field, why },
        None => Call::Daemon(status, why).into(),
    }
}

/// Reads the first line of a program's `--version` output.
async fn version(program: &std::path::Path) -> Option<String> {
    let output = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(VERSION_TIMEOUT, output)
        .await
        .ok()?
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?;
    // For example "runsc version release-20221121.0" or "runc version 1.1.5".
    let version = line.rsplit(' ').next()?;
    Some(version.to_owned()).filter(|version| !version.is_empty())
}
