//! Verifies what runs and which limits hold, from the pod as the cluster created it.

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, Pod};
use model::{Network, Sandbox};

use super::Options;
use super::spec::SERVER_CONTAINER;
use runtime::unit::{Enforced, Error};

pub(super) fn state<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerState> {
    status(pod, container)?.state.as_ref()
}

fn status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == container)
}

/// Returns whether it is certain that a pod's server no longer runs.
///
/// Kubelets of Kubernetes 1.20 may remove a container before they record how it ended. For a pod that is being deleted,
/// they then report `waiting` as the container's state and `terminated` as its last state. The kubelet starts no
/// container of such a pod again.
pub(super) fn has_ended(pod: &Pod) -> bool {
    let Some(server) = status(pod, SERVER_CONTAINER) else {
        return false;
    };
    let terminated = |state: &ContainerState| state.terminated.is_some();
    let state = server.state.as_ref();
    let is_lost = pod.metadata.deletion_timestamp.is_some()
        && state.is_some_and(|state| state.waiting.is_some())
        && server.last_state.as_ref().is_some_and(terminated);
    is_lost || state.is_some_and(terminated)
}

/// Returns the enforcement status of a pod. `kernel`: the report of its kernel, if it was checked.
///
/// # Errors
///
/// [`Error::Unavailable`] if its kernel is not of the requested class.
pub(super) fn rows(
    options: &Options,
    sandbox: &Sandbox,
    pod: &Pod,
    kernel: Option<&str>,
) -> Result<Vec<Enforced>, Error> {
    let spec = pod.spec.as_ref();
    let empty = Container::default();
    let mut containers = spec.iter().flat_map(|spec| &spec.containers);
    let server = containers.find(|container| container.name == SERVER_CONTAINER);
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
            format!("limits.{what} = {limit}, according to the cluster"),
        ),
        None => row(
            what,
            false,
            "the pod has no limit for this resource".to_owned(),
        ),
    };
    let context = server.security_context.as_ref();
    let read_only = context.and_then(|it| it.read_only_root_filesystem) == Some(true);
    let dropped = context.and_then(|it| it.capabilities.as_ref()?.drop.as_ref());
    let dropped = dropped.is_some_and(|all| all.iter().any(|one| one == "ALL"));
    let no_new = context.and_then(|it| it.allow_privilege_escalation) == Some(false);
    let user = spec.and_then(|spec| spec.security_context.as_ref()?.run_as_user);
    let user = user.map_or_else(
        || "the user of its image".to_owned(),
        |user| user.to_string(),
    );
    let token = spec.and_then(|spec| spec.automount_service_account_token) == Some(false);
    let disk = match sandbox.volumes.is_empty() {
        true => row("disk", true, "the server stores nothing on disk".to_owned()),
        false => row(
            "disk",
            false,
            format!(
                "each volume was requested with {} bytes; it is not known whether its storage class enforces that",
                sandbox.limits.disk
            ),
        ),
    };
    let policed = |out: &str| {
        let how = format!(
            "a NetworkPolicy allows {out}; it is not known whether the cluster's network enforces policies"
        );
        row("network", false, how)
    };
    let network = match &sandbox.network {
        Network::Open => row("network", true, "open".to_owned()),
        Network::Allow(entries) => policed(&format!("egress only to {}", entries.join(", "))),
        Network::None => policed("no egress"),
    };
    Ok(vec![
        limited("cpu"),
        limited("memory"),
        disk,
        row(
            "pids",
            false,
            "Kubernetes limits processes per node (`podPidsLimit`), not per pod".to_owned(),
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
                "no capabilities = {dropped}, no new privileges = {no_new}, no service account token = {token}, user = {user}"
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
        return row(false, "the pod shares the kernel of its node".to_owned());
    };
    let Some(said) = kernel else {
        return row(
            false,
            format!(
                "RuntimeClass = {class}, according to the cluster; set `[kubernetes] probe_image` to check the kernel"
            ),
        );
    };
    let first = said.lines().next().unwrap_or_default();
    if said.contains("gVisor") {
        return row(
            true,
            format!("RuntimeClass = {class}, and its kernel reports gVisor"),
        );
    }
    if options.promises_gvisor() {
        return Err(Error::Unavailable(format!(
            "the pod has the RuntimeClass `{class}`, but its kernel is `{first}`, not gVisor's: it does not isolate as \
             requested"
        )));
    }
    row(
        false,
        format!("RuntimeClass = {class}, with the kernel `{first}`"),
    )
}

impl Options {
    /// Returns whether the kernel must be gVisor.
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
                    "name": SERVER_CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0,
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
        // The container may still be started.
        check(false, &waiting, &terminated, false);
        check(true, &waiting, &none, false);
        check(true, &running, &none, false);
        check(true, &running, &terminated, false);
        assert!(!has_ended(&Pod::default()));
    }
}
