//! What really runs, and what holds of it: read back from the pod that the cluster made.

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, Pod};
use model::{Network, Sandbox};

use super::Options;
use super::spec::SERVER;
use crate::unit::{Enforced, Error};

/// The state of one of a pod's containers.
pub(super) fn state<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerState> {
    status(pod, container)?.state.as_ref()
}

fn status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == container)
}

/// Whether the server of a pod is known to run no more.
///
/// Kubelets of Kubernetes 1.20 may have removed a container before they look at how it ended. Of a pod that is being
/// deleted they say then that the container waits, and that it has terminated before; they start none of it again.
pub(super) fn has_ended(pod: &Pod) -> bool {
    let Some(server) = status(pod, SERVER) else {
        return false;
    };
    let terminated = |state: &ContainerState| state.terminated.is_some();
    let state = server.state.as_ref();
    let is_lost = pod.metadata.deletion_timestamp.is_some()
        && state.is_some_and(|state| state.waiting.is_some())
        && server.last_state.as_ref().is_some_and(terminated);
    is_lost || state.is_some_and(terminated)
}

/// What holds for a pod. `kernel`: what its kernel says of itself, if it was asked.
///
/// # Errors
///
/// [`Error::Unavailable`] if its kernel is not of the class that was asked for.
pub(super) fn rows(
    options: &Options,
    sandbox: &Sandbox,
    pod: &Pod,
    kernel: Option<&str>,
) -> Result<Vec<Enforced>, Error> {
    let spec = pod.spec.as_ref();
    let empty = Container::default();
    let mut containers = spec.iter().flat_map(|spec| &spec.containers);
    let server = containers.find(|container| container.name == SERVER);
    let server = server.unwrap_or(&empty);
    let row = |what, holds, how| Enforced { what, holds, how };
    let limit = |what: &'static str| {
        let limits = server.resources.as_ref()?.limits.as_ref()?;
        Some(limits.get(what)?.0.clone())
    };
    let limited = |what: &'static str| match limit(what) {
        Some(limit) => row(
            what,
            true,
            format!("limits.{what} = {limit}, by the cluster's word"),
        ),
        None => row(what, false, "the pod has no such limit".to_owned()),
    };
    let context = server.security_context.as_ref();
    let read_only = context.and_then(|it| it.read_only_root_filesystem) == Some(true);
    let dropped = context.and_then(|it| it.capabilities.as_ref()?.drop.as_ref());
    let dropped = dropped.is_some_and(|all| all.iter().any(|one| one == "ALL"));
    let no_new = context.and_then(|it| it.allow_privilege_escalation) == Some(false);
    let user = spec.and_then(|spec| spec.security_context.as_ref()?.run_as_user);
    let user = user.map_or_else(|| "its image's".to_owned(), |user| user.to_string());
    let token = spec.and_then(|spec| spec.automount_service_account_token) == Some(false);
    let disk = match sandbox.volumes.is_empty() {
        true => row("disk", true, "nothing of it is on disk".to_owned()),
        false => row(
            "disk",
            false,
            format!(
                "each volume was asked for with {} bytes; whether its storage class keeps to that is not known",
                sandbox.limits.disk
            ),
        ),
    };
    let policed = |out: &str| {
        let how = format!(
            "a NetworkPolicy lets {out} out; whether the cluster's network enforces policies is not known"
        );
        row("network", false, how)
    };
    let network = match &sandbox.network {
        Network::Open => row("network", true, "open".to_owned()),
        Network::Allow(entries) => policed(&format!("what goes to {}", entries.join(", "))),
        Network::None => policed("nothing"),
    };
    Ok(vec![
        limited("cpu"),
        limited("memory"),
        disk,
        row(
            "pids",
            false,
            "Kubernetes limits processes of a node (`podPidsLimit`), and not of one pod".to_owned(),
        ),
        row(
            "filesystem",
            read_only,
            format!("readOnlyRootFilesystem = {read_only}"),
        ),
        network,
        row(
            "privileges",
            dropped && no_new && token,
            format!(
                "no capabilities = {dropped}, no new privileges = {no_new}, no token = {token}, user = {user}"
            ),
        ),
        kernel_row(options, pod, kernel)?,
    ])
}

fn kernel_row(options: &Options, pod: &Pod, kernel: Option<&str>) -> Result<Enforced, Error> {
    let row = |holds, how| {
        let what = "kernel";
        Ok(Enforced { what, holds, how })
    };
    let class = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.runtime_class_name.as_deref());
    let Some(class) = class else {
        return row(false, "it shares the kernel of its node".to_owned());
    };
    let Some(said) = kernel else {
        return row(
            false,
            format!(
                "RuntimeClass = {class}, by the cluster's word; `[kubernetes] probe_image` looks at it"
            ),
        );
    };
    let first = said.lines().next().unwrap_or_default();
    if said.contains("gVisor") {
        return row(
            true,
            format!("RuntimeClass = {class}, and its kernel says that it is gVisor"),
        );
    }
    if options.promises_gvisor() {
        return Err(Error::Unavailable(format!(
            "the pod has the RuntimeClass `{class}` and its kernel is not gVisor's but `{first}`: it does not isolate as it was \
             asked to"
        )));
    }
    row(
        false,
        format!("RuntimeClass = {class}, with the kernel `{first}`"),
    )
}

impl Options {
    /// Whether what runs has to be gVisor.
    pub(super) fn promises_gvisor(&self) -> bool {
        let class = self.runtime_class.as_deref().unwrap_or_default();
        class.contains("gvisor") || class.contains("runsc")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_has_ended_is_known_where_its_node_has_lost_it() {
        let running = json!({"running": {}});
        let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
        let terminated =
            json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
        let check = |is_leaving: bool, state: &Value, before: &Value, expected: bool| {
            let deleted = is_leaving.then_some("2026-11-25T13:09:05Z");
            let pod = json!({
                "metadata": {"name": "x", "deletionTimestamp": deleted},
                "status": {"phase": "Failed", "containerStatuses": [{
                    "name": SERVER, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": state, "lastState": before,
                }]},
            });
            let read: Pod = serde_json::from_value(pod.clone()).expect("a pod");
            assert_eq!(has_ended(&read), expected, "{pod}");
        };
        let none = json!({});
        check(false, &terminated, &none, true);
        check(true, &terminated, &none, true);
        check(true, &waiting, &terminated, true);
        // It may be started yet.
        check(false, &waiting, &terminated, false);
        check(true, &waiting, &none, false);
        check(true, &running, &none, false);
        check(true, &running, &terminated, false);
        assert!(!has_ended(&Pod::default()));
    }
}
