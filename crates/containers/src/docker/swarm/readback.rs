//! Verifies which limits hold, from the node's daemon and the gate's report.

use bollard::models::{ContainerInspectResponse, EndpointSettings, HostConfig};
use model::{Network, Sandbox};

use super::gate::Report;
use super::nodes::Node;
use super::{Options, spec};
use crate::docker::readback::Seen;
use crate::docker::spec::CPU_PERIOD_MICROS;
use runtime::unit::{Enforced, Error};

/// One processor in nano-CPUs.
const NANO_CPUS_PER_CORE: i64 = 1_000_000_000;

/// Returns the enforcement status of a container in which a gate waits.
///
/// # Errors
///
/// [`Error::Unavailable`] if its kernel is not the requested one.
pub(super) async fn rows(
    options: &Options,
    sandbox: &Sandbox,
    node: &Node,
    container: &str,
    report: &Report,
) -> Result<Vec<Enforced>, Error> {
    let container = node.client.inspect(container).await?;
    let container = container
        .ok_or_else(|| Error::Failed("another program removed the container".to_owned()))?;
    let empty = HostConfig::default();
    let config = container.host_config.as_ref().unwrap_or(&empty);
    let seen = Seen::look(&container);
    let row = |what, holds, how| Enforced { what, holds, how };

    let nanos = config.nano_cpus.unwrap_or(0);
    let quota = nanos / (NANO_CPUS_PER_CORE / CPU_PERIOD_MICROS);
    let [cpu, memory, pids] = node.able;
    let (holds, how) = seen.limit("cpu", ["cpu.cfs_quota_us", "cpu.max"], quota, cpu);
    let cores = nanos as f64 / NANO_CPUS_PER_CORE as f64;
    let cpu = row("cpu", holds && nanos > 0, format!("{cores} cores: {how}"));

    let asked = config.memory.unwrap_or(0);
    let files = ["memory.limit_in_bytes", "memory.max"];
    let (holds, how) = seen.limit("memory", files, asked, memory);
    let memory = row("memory", holds && asked > 0, how);

    let most = config.pids_limit.unwrap_or(0);
    let (holds, how) = seen.limit("pids", ["pids.max", "pids.max"], most, pids);
    let pids = match spec::pids(options, sandbox.limits.pids) == sandbox.limits.pids {
        true => row("pids", holds && most > 0, how),
        false => row(
            "pids",
            false,
            format!("{how}: gVisor needs that many for itself"),
        ),
    };

    let read_only = config.readonly_rootfs == Some(true);
    let how = format!("ReadonlyRootfs = {read_only}");
    Ok(vec![
        cpu,
        memory,
        disk(options, sandbox, &container),
        pids,
        row("filesystem", read_only, how),
        network(sandbox, &container, report),
        privileges(report),
        kernel(options, report)?,
    ])
}

fn disk(options: &Options, sandbox: &Sandbox, container: &ContainerInspectResponse) -> Enforced {
    let row = |holds, how| Enforced {
        what: "disk",
        holds,
        how,
    };
    let unknown = container.mounts.iter().flatten().find(|mount| {
        let inside = mount.destination.as_deref().unwrap_or_default();
        mount.typ.as_deref() == Some("volume") && !sandbox.volumes.iter().any(|own| own == inside)
    });
    if let Some(mount) = unknown {
        let inside = mount.destination.as_deref().unwrap_or_default();
        return row(false, format!("the image's volume `{inside}` has no limit"));
    }
    if sandbox.volumes.is_empty() {
        return row(true, "the server stores nothing on disk".to_owned());
    }
    match &options.volume_driver {
        Some(driver) => row(
            false,
            format!("it is not known whether volumes of the driver `{driver}` have a limit"),
        ),
        None => row(false, "volumes of a node's daemon have no limit".to_owned()),
    }
}

/// The networks that a container is connected to.
pub(super) fn networks(
    container: &ContainerInspectResponse,
) -> impl Iterator<Item = (&String, &EndpointSettings)> {
    let settings = container.network_settings.as_ref();
    let networks = settings.and_then(|settings| settings.networks.as_ref());
    // On a node without a bridge network, its entry has a name but no id.
    let is_in = |endpoint: &EndpointSettings| {
        let id = endpoint.network_id.as_ref();
        id.is_some_and(|id| !id.is_empty())
    };
    let networks = networks.into_iter().flatten();
    networks.filter(move |(_, endpoint)| is_in(endpoint))
}

fn network(sandbox: &Sandbox, container: &ContainerInspectResponse, report: &Report) -> Enforced {
    let row = |holds, how| {
        let what = "network";
        Enforced { what, holds, how }
    };
    let names: Vec<&String> = networks(container).map(|(name, _)| name).collect();
    if sandbox.network == Network::Open {
        return row(true, format!("open: {names:?}"));
    }
    let is_other = |device: &&String| device.as_str() != "lo";
    let others: Vec<&str> = report
        .devices
        .iter()
        .filter(is_other)
        .map(String::as_str)
        .collect();
    // Even an unused network namespace has a loopback device, so a report without one proves nothing.
    let is_told = others.len() < report.devices.len();
    let is_alone = is_told && !report.up.iter().any(|device| is_other(&device));
    match (names.is_empty(), is_alone) {
        (true, true) if others.is_empty() => {
            row(true, "the container has a loopback device only".to_owned())
        }
        // Kernel modules, such as those for tunnels, add devices to each new network namespace. Without capabilities,
        // no process in the container can bring them up.
        (true, true) => row(
            true,
            format!(
                "only the loopback device of the container is up; these are down: {}",
                others.join(", ")
            ),
        ),
        // gVisor's kernel still shows the device that the node has removed.
        (true, false) if is_gvisor(report) => row(
            true,
            "the container is in no network, according to the daemon".to_owned(),
        ),
        _ => row(
            false,
            match is_told {
                true => format!(
                    "the container is in the networks {names:?}, with the devices {}",
                    report.devices.join(", ")
                ),
                false => {
                    format!("the container is in the networks {names:?}; devices not reported")
                }
            },
        ),
    }
}

fn is_gvisor(report: &Report) -> bool {
    report.log.contains("gVisor")
}

fn privileges(report: &Report) -> Enforced {
    let none = |name| {
        let all = report.status(name);
        all.is_some_and(|all| all.bytes().all(|byte| byte == b'0'))
    };
    let capabilities = !(none("CapEff") && none("CapBnd") && none("CapPrm"));
    // gVisor's kernel does not report `NoNewPrivs`. It cannot grant privileges without inheritable capabilities.
    let no_new = report.status("NoNewPrivs").unwrap_or("not reported");
    Enforced {
        what: "privileges",
        holds: !capabilities && no_new != "0",
        how: format!(
            "capabilities = {capabilities}, no new privileges = {no_new}, according to the container's kernel"
        ),
    }
}

fn kernel(options: &Options, report: &Report) -> Result<Enforced, Error> {
    let is_gvisor = is_gvisor(report);
    if options.gvisor && !is_gvisor {
        return Err(Error::Unavailable(
            "the kernel of a node's containers is not gVisor's: make `runsc` the `default-runtime` of the nodes' daemons, \
             or set `[swarm] gvisor = false`"
                .to_owned(),
        ));
    }
    let how = match is_gvisor {
        true => "gVisor, according to the kernel log",
        false => "the container shares the kernel of its node",
    };
    Ok(Enforced {
        what: "kernel",
        holds: is_gvisor,
        how: how.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_network_has_no_device_that_is_up_but_loopback() {
        let check = |devices: &[&str], up: &[&str], log: &str, expected: (bool, &str)| {
            let texts = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect();
            let report = Report {
                devices: texts(devices),
                up: texts(up),
                log: log.to_owned(),
                ..Report::default()
            };
            let container = ContainerInspectResponse::default();
            let row = network(&Sandbox::new("h1"), &container, &report);
            let (holds, how) = expected;
            assert!(row.holds == holds && row.how.contains(how), "{row:?}");
        };
        check(&["lo"], &["lo"], "", (true, "loopback device only"));
        let down = (true, "down: tunl0, sit0");
        check(&["lo", "tunl0", "sit0"], &["lo"], "", down);
        let all = ["lo", "tunl0", "eth0"];
        check(&all, &["lo", "eth0"], "", (false, "eth0"));
        // An empty report does not prove the absence of devices.
        check(&[], &[], "", (false, "not reported"));
        check(&["eth0"], &[], "", (false, "not reported"));
        let (both, told) = (["lo", "eth0"], (true, "according to the daemon"));
        check(&both, &both, "gVisor", told);
    }
}
