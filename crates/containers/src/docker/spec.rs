//! The request for a container: a pure function of the unit and the host.

use crate::docker::images::Image;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountTmpfsOptions, MountType,
    PortBinding, RestartPolicy, RestartPolicyNameEnum,
};
use model::{Network, Program, Provider};

use super::Options;
use super::engine::{LABEL_FENCE, LABEL_FENCE_OF, LABEL_HOSTING, LABEL_INSTALL, LABEL_RUN};
use super::relay;
use super::volumes::Volumes;
use crate::common::{check_env, refused};
use crate::docker::net::Net;
use runtime::egress::variables;
use runtime::unit::{Confined, Error, Fence};

pub(super) const PROGRAM: &str = "/holder";

/// Minimum process limit for gVisor to start, because the threads of its kernel count as well.
const GVISOR_PIDS: u32 = 256;
/// Period of the CPU limit, in microseconds.
pub(super) const CPU_PERIOD_MICROS: i64 = 100_000;
const MAX_RUN_BYTES: u64 = 16 << 20;
/// Suffix of the server id in names of holders. Server ids contain no dot.
const HOLDER_SUFFIX: &str = ".net";

/// The properties of the daemon.
pub(super) struct Host {
    /// The runtime's program, if the daemon names one that exists on this host.
    pub(super) runtime_path: Option<PathBuf>,
    pub(super) runtime_args: Vec<String>,
    pub(super) cores: Option<u32>,
    /// True if the daemon can limit this resource.
    pub(super) memory: bool,
    pub(super) cpu: bool,
    pub(super) pids: bool,
}

/// The container name. The name is the same for each launch of a server, so two of its containers can never run.
/// Neither part contains a dot.
pub(super) fn name(id: &str, install: &str) -> String {
    format!("toolwharf-{id}.{install}")
}

/// The name of the container that holds the network of another one.
pub(super) fn pause_name(id: &str, install: &str) -> String {
    name(&format!("{id}{HOLDER_SUFFIX}"), install)
}

/// Returns whether a container name is the name of a holder.
pub(super) fn is_pause(name: &str, install: &str) -> bool {
    is_name(name, install) && name.ends_with(&format!("{HOLDER_SUFFIX}.{install}"))
}

/// Checks an image name. It becomes part of a URL without being encoded.
pub(super) fn check_image(image: &str) -> Result<(), Error> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    if (1..=512).contains(&image.len()) && image.bytes().all(sound) && !image.contains("..") {
        return Ok(());
    }
    let image = image.escape_debug();
    let why =
        format!("`{image}` must consist of 1 to 512 letters, digits and `._-/:@`, without `..`");
    refused("image", why)
}

/// Returns whether a container name belongs to this installation.
pub(super) fn is_name(name: &str, install: &str) -> bool {
    let name = name.trim_start_matches('/');
    let rest = name.strip_prefix("toolwharf-");
    let rest = rest.and_then(|rest| rest.strip_suffix(install));
    rest.is_some_and(|rest| rest.ends_with('.'))
}

/// Returns the process limit of the container.
pub(super) fn pids(provider: Provider, asked: u32) -> u32 {
    match provider {
        Provider::Gvisor => asked.max(GVISOR_PIDS),
        _ => asked,
    }
}

pub(super) fn body(
    options: &Options,
    host: &Host,
    unit: Confined<'_>,
    volumes: &Volumes,
    image: &Image,
    net: &Net,
) -> Result<ContainerCreateBody, Error> {
    let (launch, sandbox) = (unit.launch, unit.sandbox);
    let limits = sandbox.limits;
    let Program::Image {
        image: name,
        command,
    } = &launch.program
    else {
        unreachable!("launch refuses commands");
    };
    check_env(&launch.env)?;
    let mut config = locked_down(options);
    config.memory = Some(signed(limits.memory));
    // This value is the sum of memory and swap, so there is no swap.
    config.memory_swap = Some(signed(limits.memory));
    let most = host
        .cores
        .map_or(u32::MAX, |cores| cores.saturating_mul(1000));
    config.cpu_period = Some(CPU_PERIOD_MICROS);
    config.cpu_quota = Some(i64::from(limits.cpu_millis.min(most)) * CPU_PERIOD_MICROS / 1000);
    config.pids_limit = Some(pids(options.provider, limits.pids).into());
    let tmp = limits.disk.min(limits.memory / 2);
    config.shm_size = Some(signed(tmp));
    let mut mounts = volumes.mounts();
    for mount in &sandbox.mounts {
        let Some(source) = mount.host.to_str() else {
            let why = format!("{} is not UTF-8", mount.host.display());
            return refused("mounts", why);
        };
        mounts.push(Mount {
            target: Some(mount.inside.clone()),
            source: Some(source.to_owned()),
            typ: Some(MountType::BIND),
            read_only: Some(mount.read_only),
            bind_options: Some(MountBindOptions {
                propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
                ..MountBindOptions::default()
            }),
            ..Mount::default()
        });
    }
    if let Some((file, _)) = &net.relay {
        mounts.push(Mount {
            target: Some(relay::PATH_INSIDE.to_owned()),
            source: Some(file.to_string_lossy().into_owned()),
            typ: Some(MountType::BIND),
            read_only: Some(true),
            ..Mount::default()
        });
    }
    add_scratch(&mut mounts, &["/tmp", "/run"], &image.volumes, tmp);
    config.mounts = Some(mounts);
    let is_open = sandbox.network == Network::Open;
    if is_open {
        config.network_mode = Some(options.network.clone());
        let published = net.addresses.iter().map(|(inside, host)| {
            let binding = PortBinding {
                host_ip: Some(host.ip().to_string()),
                host_port: Some(host.port().to_string()),
            };
            (format!("{inside}/tcp"), Some(vec![binding]))
        });
        config.port_bindings = Some(published.collect());
    }
    let held = net.held.as_ref().map(|(_, held)| held);
    if let Some(held) = held {
        config.network_mode = Some(format!("container:{}", held.id));
    }
    let exposed = net.addresses.keys().map(|inside| format!("{inside}/tcp"));
    let exposed = is_open.then_some(exposed);
    let mut env: BTreeMap<&str, Cow<'_, str>> = BTreeMap::new();
    for (name, value) in &launch.env {
        env.insert(name, Cow::Borrowed(value));
    }
    for (name, value) in held.into_iter().flat_map(|held| variables(held.address)) {
        env.insert(name, Cow::Owned(value));
    }
    let env = env.iter().map(|(name, value)| format!("{name}={value}"));
    Ok(ContainerCreateBody {
        image: Some(name.clone()),
        cmd: (!command.is_empty()).then(|| command.clone()),
        env: Some(env.collect()),
        exposed_ports: exposed.map(Iterator::collect),
        attach_stdin: Some(unit.has_streams()),
        open_stdin: Some(unit.has_streams()),
        stdin_once: Some(unit.has_streams()),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        labels: Some(labels(options, &sandbox.id, unit.fence)),
        host_config: Some(config),
        ..unhealthy()
    })
}

/// Adds directories in memory, at these paths and at those that the image declares as volumes, unless something else is
/// mounted there.
pub(super) fn add_scratch(mounts: &mut Vec<Mount>, own: &[&str], declared: &[String], size: u64) {
    let declared = declared.iter().map(|path| path.trim_end_matches('/'));
    let declared = declared.filter(|path| !path.is_empty());
    let all: BTreeSet<&str> = own.iter().copied().chain(declared).collect();
    let taken: BTreeSet<String> = mounts.iter().filter_map(|it| it.target.clone()).collect();
    let free = all.into_iter().filter(|&path| !taken.contains(path));
    mounts.extend(free.map(|path| match path {
        "/run" => scratch(path, size.min(MAX_RUN_BYTES)),
        _ => scratch(path, size),
    }));
}

/// An in-memory directory that every user in the container may write to.
fn scratch(path: &str, size: u64) -> Mount {
    Mount {
        target: Some(path.to_owned()),
        typ: Some(MountType::TMPFS),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: Some(signed(size)),
            mode: Some(0o1777),
            options: None,
        }),
        ..Mount::default()
    }
}

/// A container that runs only the daemon's own init.
pub(super) fn probe(options: &Options, image: &str, init: &str) -> ContainerCreateBody {
    let mut config = locked_down(options);
    config.memory = Some(256 << 20);
    ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![init.to_owned()]),
        cmd: Some(vec!["--version".to_owned()]),
        labels: Some(labels(options, "", None)),
        host_config: Some(config),
        ..unhealthy()
    }
}

/// A container that only holds a network. It always runs under runc, whatever the server uses, because it runs
/// Toolwharf's own program and needs a namespace of the host kernel.
pub(super) fn pause(options: &Options, image: &str, unit: Confined<'_>) -> ContainerCreateBody {
    let mut config = locked_down(options);
    config.runtime = Some("runc".to_owned());
    config.memory = Some(16 << 20);
    config.pids_limit = Some(16);
    ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![PROGRAM.to_owned()]),
        labels: Some(labels(options, unit.sandbox.id.as_str(), unit.fence)),
        host_config: Some(config),
        ..unhealthy()
    }
}

/// Restrictions for all containers, whatever they request and whatever their image declares.
fn locked_down(options: &Options) -> HostConfig {
    HostConfig {
        runtime: Some(options.runtime.clone()),
        init: Some(true),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        // Toolwharf restarts servers, not the daemon.
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        // Disable logging. Otherwise every byte of the streams would be stored in a file.
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: None,
        }),
        ..HostConfig::default()
    }
}

/// A request without the image's health check, which would run in the container every few seconds.
fn unhealthy() -> ContainerCreateBody {
    ContainerCreateBody {
        tty: Some(false),
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

fn labels(options: &Options, server: &str, fence: Option<&Fence>) -> HashMap<String, String> {
    let pairs = [
        (LABEL_INSTALL, options.install.as_str()),
        (LABEL_RUN, &options.run),
        (LABEL_HOSTING, server),
    ];
    let mut labels = HashMap::from(pairs.map(|(name, value)| (name.into(), value.into())));
    if let Some(fence) = fence {
        labels.insert(LABEL_FENCE_OF.into(), fence.installation.to_string());
        labels.insert(LABEL_FENCE.into(), fence.number.to_string());
    }
    labels
}

pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::check_id;

    #[test]
    fn images_are_names() {
        for sound in [
            "busybox",
            "registry:5000/team/image_1.x:tag-2",
            "a@sha256:0123",
        ] {
            assert!(check_image(sound).is_ok(), "{sound}");
        }
        let too_long = "x".repeat(513);
        for bad in [
            "",
            "a b",
            "a?all=1",
            "../containers",
            "a%2f",
            "a\n",
            &too_long,
        ] {
            assert!(check_image(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_parts_of_names() {
        assert!(check_id("0198-ab").is_ok());
        for bad in ["", "..", "a/b", "A", "a.b", "a_b"] {
            assert!(check_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_names_of_the_installation_are_its_own() {
        assert!(is_name(&name("h1", "one"), "one"));
        assert!(is_name("/toolwharf-h1.one", "one"));
        for other in [
            "toolwharf-h1.one",
            "/toolwharf-h1.two",
            "one",
            "toolwharf-one",
            "",
        ] {
            assert!(!is_name(other, "two-one"), "{other}");
        }
        assert!(!is_name("toolwharf-h1.two-one", "one"));
        let pause = pause_name("h1", "one");
        assert!(is_name(&pause, "one") && is_pause(&pause, "one"));
        assert!(!is_pause(&name("h1", "one"), "one") && !is_pause(&pause, "two"));
    }
}
