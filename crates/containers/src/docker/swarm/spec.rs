//! The requests to the swarm: pure functions of the unit and the options.

use std::collections::HashMap;
use std::env::consts::ARCH;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bollard::models::{
    ConfigSpec, HealthConfig, Limit, Mount, MountType, MountVolumeOptions,
    MountVolumeOptionsDriverConfig, NetworkAttachmentConfig, ResourceObject, ServiceSpec,
    ServiceSpecMode, ServiceSpecModeReplicated, TaskSpec, TaskSpecContainerSpec,
    TaskSpecContainerSpecConfigs, TaskSpecContainerSpecFile1, TaskSpecLogDriver, TaskSpecPlacement,
    TaskSpecResources, TaskSpecRestartPolicy, TaskSpecRestartPolicyConditionEnum,
};
use model::{Network, Program};

use super::Options;
use super::nodes::{Node, Nodes};
use crate::common::{check_id, is_lower, refused};
use crate::docker::engine::{LABEL_FENCE, LABEL_HOSTING, LABEL_INSTALL, LABEL_RUN};
use crate::docker::relay::{PATH_INSIDE, PROGRAM};
use crate::docker::spec::{add_scratch, check_image, signed};
use crate::docker::volumes::slug;
use runtime::unit::{Confined, Error, Fence};

/// Maximum length of a service name. Swarm names become parts of host names, which have this limit.
const MAX_NAME_CHARS: usize = 63;
/// Docker's default network on every node.
const DEFAULT_NETWORK: &str = "bridge";
/// File mode of the gate: readable and executable by everyone.
const GATE_MODE: u32 = 0o555;

/// Checks the installation id, which becomes part of names and labels.
pub(super) fn check_install(install: &str) -> Result<(), Error> {
    if (1..=40).contains(&install.len()) && install.bytes().all(is_lower) {
        return Ok(());
    }
    let why = format!("`{install}` must consist of 1 to 40 lower-case letters, digits and `-`");
    refused("install", why)
}

/// Checks that the unit can run as a service. Returns its image and the arguments that replace the image's own.
pub(super) fn check<'a>(unit: Confined<'a>) -> Result<(&'a str, &'a [String]), Error> {
    let Program::Image { image, command } = &unit.launch.program else {
        return refused(
            "command",
            "a service needs an `image`; the provider `process` runs commands",
        );
    };
    check_id(&unit.sandbox.id)?;
    check_image(image)?;
    if PROGRAM.is_empty() {
        let why = format!("the provider `swarm` does not support the architecture `{ARCH}` yet");
        return refused("provider", why);
    }
    if let Network::Allow(_) = unit.sandbox.network {
        return refused(
            "network",
            "allow-lists are not supported in a swarm; set `network` to `none` or `open`",
        );
    }
    if let Some(mount) = unit.sandbox.mounts.first() {
        return refused(
            "mounts",
            format!(
                "`{}` is a path on this host, but a server in a swarm runs on any node; use a volume",
                mount.host.display()
            ),
        );
    }
    Ok((image, command))
}

/// The installation that a unit belongs to. All gateways of a database are one installation.
pub(super) fn install<'a>(options: &'a Options, fence: Option<&'a Fence>) -> &'a str {
    fence.map_or(&options.install, |fence| &fence.installation)
}

/// The service name. There is one per server and installation, so the swarm guarantees that two never exist.
pub(super) fn name(install: &str, id: &str) -> Result<String, Error> {
    let name = format!("toolwharf-{install}-{id}");
    if name.len() <= MAX_NAME_CHARS {
        return Ok(name);
    }
    let why = format!(
        "`{name}` is too long for a service name; the limit is {MAX_NAME_CHARS} characters"
    );
    refused("id", why)
}

fn labels(options: &Options, unit: Confined<'_>) -> HashMap<String, String> {
    let mut labels = lasting_labels(install(options, unit.fence), &unit.sandbox.id);
    labels.insert(LABEL_RUN.to_owned(), options.run.clone());
    if let Some(fence) = unit.fence {
        labels.insert(LABEL_FENCE.to_owned(), fence.number.to_string());
    }
    labels
}

/// Labels of objects that outlive instances.
pub(super) fn lasting_labels(install: &str, server: &str) -> HashMap<String, String> {
    let pairs = [(LABEL_INSTALL, install), (LABEL_HOSTING, server)];
    pairs
        .map(|(name, value)| (name.into(), value.into()))
        .into()
}

/// The gate's config name in the swarm. A config never changes, so another version of the program has another name.
pub(super) fn gate_name() -> String {
    format!("toolwharf-gate-{:016x}", hash(PROGRAM))
}

/// Returns the FNV-1a hash. The hash need not resist deliberate collisions.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub(super) fn gate() -> ConfigSpec {
    ConfigSpec {
        name: Some(gate_name()),
        data: Some(BASE64_STANDARD.encode(PROGRAM)),
        ..ConfigSpec::default()
    }
}

/// The input for a service in addition to its unit.
pub(super) struct Parts<'a> {
    pub(super) name: &'a str,
    /// The image id, so that no node uses another image with the same name.
    pub(super) image: &'a str,
    /// Paths that the image declares as volumes.
    pub(super) declared: &'a [String],
    /// The gate's config.
    pub(super) gate: &'a str,
    pub(super) volumes: Vec<Mount>,
    /// The nodes on which it may run.
    pub(super) nodes: &'a [&'a Node],
}

pub(super) fn service(
    options: &Options,
    unit: Confined<'_>,
    nodes: &Nodes,
    parts: Parts<'_>,
) -> ServiceSpec {
    let limits = unit.sandbox.limits;
    let labels = labels(options, unit);
    let tmp = limits.disk.min(limits.memory / 2);
    let mut mounts = parts.volumes;
    let own = ["/tmp", "/run", "/dev/shm"];
    add_scratch(&mut mounts, &own, parts.declared, tmp);
    let mut constraints = options.constraints.clone();
    match parts.nodes {
        [one] => constraints.push(format!("node.id == {}", one.id)),
        several => {
            let others = nodes.others(several).into_iter();
            constraints.extend(others.map(|id| format!("node.id != {id}")));
        }
    }
    let container = TaskSpecContainerSpec {
        image: Some(parts.image.to_owned()),
        labels: Some(labels.clone()),
        command: Some(vec![PATH_INSIDE.to_owned(), "gate".to_owned()]),
        open_stdin: Some(true),
        read_only: Some(true),
        mounts: Some(mounts),
        init: Some(true),
        capability_drop: Some(vec!["ALL".to_owned()]),
        // The image's own health check would run in the container every few seconds.
        health_check: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        configs: Some(vec![TaskSpecContainerSpecConfigs {
            config_id: Some(parts.gate.to_owned()),
            config_name: Some(gate_name()),
            file: Some(TaskSpecContainerSpecFile1 {
                name: Some(PATH_INSIDE.to_owned()),
                uid: Some("0".to_owned()),
                gid: Some("0".to_owned()),
                mode: Some(GATE_MODE),
            }),
            ..TaskSpecContainerSpecConfigs::default()
        }]),
        ..TaskSpecContainerSpec::default()
    };
    let reserved = ResourceObject {
        memory_bytes: Some(signed(limits.memory)),
        ..ResourceObject::default()
    };
    let limit = Limit {
        nano_cpus: Some(nano_cpus(
            limits.cpu_millis,
            parts.nodes.iter().map(|node| node.cores),
        )),
        memory_bytes: Some(signed(limits.memory)),
        pids: Some(i64::from(pids(options, limits.pids))),
    };
    // Swarm attaches a service that names no network to the node's bridge. So the network `bridge` is not named.
    let attached = unit.sandbox.network == Network::Open && options.network != DEFAULT_NETWORK;
    let task = TaskSpec {
        container_spec: Some(container),
        resources: Some(TaskSpecResources {
            limits: Some(limit),
            reservations: Some(reserved),
            ..TaskSpecResources::default()
        }),
        // Toolwharf restarts servers, not the swarm.
        restart_policy: Some(TaskSpecRestartPolicy {
            condition: Some(TaskSpecRestartPolicyConditionEnum::NONE),
            ..TaskSpecRestartPolicy::default()
        }),
        placement: Some(TaskSpecPlacement {
            constraints: Some(constraints),
            ..TaskSpecPlacement::default()
        }),
        networks: attached.then(|| {
            vec![NetworkAttachmentConfig {
                target: Some(options.network.clone()),
                ..NetworkAttachmentConfig::default()
            }]
        }),
        // Disable logging. Otherwise every byte of the streams would be stored in a file.
        log_driver: Some(TaskSpecLogDriver {
            name: Some("none".to_owned()),
            options: None,
        }),
        ..TaskSpec::default()
    };
    ServiceSpec {
        name: Some(parts.name.to_owned()),
        labels: Some(labels),
        task_template: Some(task),
        mode: Some(ServiceSpecMode {
            replicated: Some(ServiceSpecModeReplicated { replicas: Some(1) }),
            ..ServiceSpecMode::default()
        }),
        ..ServiceSpec::default()
    }
}

/// The processor limit, at most the number of processors of the smallest node. A daemon rejects a higher limit, and
/// Swarm does not check this when it chooses a node.
fn nano_cpus(asked: u32, cores: impl Iterator<Item = Option<u32>>) -> i64 {
    let least = cores.flatten().min();
    let most = least.map_or(u32::MAX, |cores| cores.saturating_mul(1000));
    i64::from(asked.min(most)) * 1_000_000
}

/// Returns the process limit of the container.
pub(super) fn pids(options: &Options, asked: u32) -> u32 {
    let provider = match options.gvisor {
        true => model::Provider::Gvisor,
        false => model::Provider::Swarm,
    };
    crate::docker::spec::pids(provider, asked)
}

/// The volume name. It differs from names in `docker::volumes`: without `[swarm] daemons` both runtimes use the same
/// daemon, and the volumes of `docker::volumes` refer to loop devices that are later reused.
fn volume_name(install: &str, server: &str, inside: &str) -> String {
    format!("toolwharf-swarm.{install}.{server}.{}", slug(inside))
}

/// A volume mount at the path `inside`.
pub(super) fn volume(install: &str, server: &str, inside: &str, options: &Options) -> Mount {
    let driver = options.volume_driver.as_ref();
    let name = volume_name(install, server, inside);
    let own = |value: &str| value.replace("{name}", &name);
    let given = options.volume_options.iter();
    let filled = given
        .map(|(key, value)| (key.clone(), own(value)))
        .collect();
    Mount {
        target: Some(inside.to_owned()),
        source: Some(name),
        typ: Some(MountType::VOLUME),
        read_only: Some(false),
        volume_options: Some(MountVolumeOptions {
            labels: Some(lasting_labels(install, server)),
            driver_config: driver.map(|driver| MountVolumeOptionsDriverConfig {
                name: Some(driver.clone()),
                options: Some(filled),
            }),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use runtime::ports::Ports;

    #[test]
    fn each_volume_has_a_device_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            daemons: Vec::new(),
            tls: None,
            constraints: Vec::new(),
            gvisor: false,
            network: "bridge".to_owned(),
            volume_driver: Some("local".to_owned()),
            volume_options: BTreeMap::from([("device".to_owned(), ":/v/{name}".to_owned())]),
            install: "here".to_owned(),
            run: "this".into(),
            ports: Ports::new(dir.path().join("ports.json")),
        };
        let device = |server: &str, inside: &str| {
            let mount = volume("here", server, inside, &options);
            let driver = mount.volume_options.unwrap().driver_config.unwrap();
            driver.options.unwrap()["device"].clone()
        };
        let all = [
            device("h1", "/data"),
            device("h1", "/more"),
            device("h2", "/data"),
        ];
        assert!(
            all[0].starts_with(":/v/toolwharf-swarm.here.h1."),
            "{all:?}"
        );
        assert!(all[0] != all[1] && all[0] != all[2], "{all:?}");
    }

    #[test]
    fn a_volume_is_never_one_of_a_runtime_on_the_same_daemon() {
        for inside in ["/data", "/var/lib/x"] {
            let own = volume_name("here", "h1", inside);
            assert_ne!(own, crate::docker::volumes::name("here", "h1", inside));
        }
    }

    #[test]
    fn nobody_gets_more_processors_than_the_smallest_node_has() {
        let check = |asked, cores: &[Option<u32>], expected| {
            assert_eq!(nano_cpus(asked, cores.iter().copied()), expected);
        };
        check(1500, &[Some(4), Some(2)], 1_500_000_000);
        check(8000, &[Some(4), Some(2), None], 2_000_000_000);
        check(8000, &[None], 8_000_000_000);
        check(8000, &[], 8_000_000_000);
        check(u32::MAX, &[Some(u32::MAX)], i64::from(u32::MAX) * 1_000_000);
    }
}
