//! The requests to the API server: pure functions of the unit.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec,
    ResourceRequirements, SeccompProfile, Secret, SecretKeySelector, SecurityContext, Volume,
    VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use model::{KubernetesSettings, Network, Sandbox};
use sha2::{Digest as _, Sha256};

use super::Options;
use crate::common::{image_of, is_lower, refused};
use runtime::egress::Allowed;
use runtime::unit::{Confined, Error};

/// The id of the installation. Set on all objects created for a server.
pub const LABEL_INSTALL: &str = "toolwharf.dev/installation";
pub(super) const LABEL_RUN: &str = "toolwharf.dev/run";
/// The fencing token of the launch, and the installation (database) that it belongs to.
const LABEL_FENCE: &str = "toolwharf.dev/fence";
pub(super) const LABEL_FENCE_OF: &str = "toolwharf.dev/fence-of";
/// Unique per launch across all gateways. A NetworkPolicy selects its pod by this label.
const LABEL_LAUNCH: &str = "toolwharf.dev/launch";
const LABEL_SERVER: &str = "toolwharf.dev/server";
/// The complete server id. Label values are cut to 63 characters.
const ANNOTATION_SERVER: &str = "toolwharf.dev/server-id";
/// Allows the cluster autoscaler to remove the pod with its node. The server then restarts on another node.
const SAFE_TO_EVICT: [&str; 2] = ["cluster-autoscaler.kubernetes.io/safe-to-evict", "true"];
/// The path at which a volume is mounted.
const ANNOTATION_PATH: &str = "toolwharf.dev/path";
/// The container of the server, and the one that checks the kernel.
pub(super) const SERVER_CONTAINER: &str = "server";
pub(super) const VERIFY_CONTAINER: &str = "verify";
const MAX_RUN_BYTES: u64 = 16 << 20;
/// Default grace period of a pod in seconds, the same as for a manual stop.
const GRACE_SECS: i64 = 10;
/// The command of the checking container between checks: it sleeps for 68 years.
const SLEEP_COMMAND: [&str; 2] = ["sleep", "2147483647"];
/// The label of Toolwharf's own pods, and the label with the name of a namespace.
const GATEWAY_LABEL: (&str, &str) = ("app.kubernetes.io/name", "toolwharf");
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

/// The name of a server's pod and Secret, and the start of its policy's name. All gateways of a database use the same
/// name for a server, so the API server guarantees that two pods never exist.
pub(super) fn name(options: &Options, unit: Confined<'_>) -> String {
    let install = unit.fence.map(|fence| &*fence.installation);
    let install = install.unwrap_or(&options.install).to_ascii_lowercase();
    format!("toolwharf-{install}-{}", unit.sandbox.id)
}

/// The id of the server that an object was created for.
pub(super) fn server_of(meta: &ObjectMeta) -> Option<&str> {
    let annotations = meta.annotations.as_ref()?;
    annotations.get(ANNOTATION_SERVER).map(String::as_str)
}

/// Returns whether a label has this value.
pub(super) fn is_labelled(meta: &ObjectMeta, label: &str, value: &str) -> bool {
    let labels = meta.labels.as_ref();
    labels.is_some_and(|labels| labels.get(label).is_some_and(|it| it == value))
}

/// Returns the fencing token that an object was created with, if the object belongs to this installation.
pub(super) fn fence_of(meta: &ObjectMeta, installation: &str) -> Option<i64> {
    let labels = meta.labels.as_ref()?;
    let is_of = is_labelled(meta, LABEL_FENCE_OF, installation);
    labels.get(LABEL_FENCE)?.parse().ok().filter(|_| is_of)
}

/// Rejects what a pod does not support. Returns the image and its arguments.
pub(super) fn check(unit: Confined<'_>) -> Result<(&str, &[String]), Error> {
    let (launch, sandbox) = (unit.launch, unit.sandbox);
    let (image, command) = image_of(unit, "a pod needs an `image` that contains it")?;
    let id = &sandbox.id;
    if !(1..=100).contains(&id.len()) || !id.bytes().all(is_lower) || id.ends_with('-') {
        return refused(
            "id",
            format!(
                "`{}` must consist of 1 to 100 characters from a-z, 0-9 and `-`, and not end with `-`",
                id.escape_debug()
            ),
        );
    }
    if let Some(mount) = sandbox.mounts.first() {
        return refused(
            "mounts",
            format!(
                "`{}` is a path on this host, but pods run on nodes of the cluster; use a volume, or a \
                 provider on this host",
                mount.host.display()
            ),
        );
    }
    if let Err(why) = reachable(&sandbox.network) {
        return refused("network", why);
    }
    for name in launch.env.keys() {
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let digit = name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_digit());
        if name.is_empty() || digit || !name.bytes().all(sound) {
            return refused(
                "environment",
                format!(
                    "`{}` cannot be passed to a pod: names consist of letters, digits, `_`, `-` and `.`, and do not start with a digit",
                    name.escape_debug()
                ),
            );
        }
    }
    Ok((image, command))
}

fn meta(options: &Options, unit: Confined<'_>, name: String) -> ObjectMeta {
    let id = &unit.sandbox.id;
    let label: String = id.chars().take(63).collect();
    // A label value begins and ends with a letter or a digit.
    let label = label.trim_matches('-').to_owned();
    let labels = [
        ("app.kubernetes.io/managed-by", "toolwharf".to_owned()),
        (LABEL_INSTALL, options.install.clone()),
        (LABEL_RUN, options.run.clone()),
        (LABEL_SERVER, label),
    ];
    let fence = unit.fence.map(|fence| {
        [
            (LABEL_FENCE, fence.number.to_string()),
            (LABEL_FENCE_OF, fence.installation.to_string()),
        ]
    });
    let labels = labels.into_iter().chain(fence.into_iter().flatten());
    ObjectMeta {
        name: Some(name),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).collect()),
        annotations: Some(BTreeMap::from([(
            ANNOTATION_SERVER.to_owned(),
            id.to_owned(),
        )])),
        ..ObjectMeta::default()
    }
}

/// The Secret with the variables. Keys are numbers, because a variable name need not be a valid key. `gateway`: the pod
/// of this process, if it is in the servers' namespace. The Secret is deleted together with that pod.
pub(super) fn secret(
    options: &Options,
    unit: Confined<'_>,
    gateway: Option<&OwnerReference>,
) -> Secret {
    let values = unit.launch.env.values().enumerate();
    let data = values.map(|(n, value)| (n.to_string(), ByteString(value.as_bytes().to_vec())));
    let mut metadata = meta(options, unit, name(options, unit));
    metadata.owner_references = gateway.map(|gateway| vec![gateway.clone()]);
    Secret {
        metadata,
        data: Some(data.collect()),
        ..Secret::default()
    }
}

/// The owner references of an object that Kubernetes is to delete together with the Secret.
pub(super) fn owned_by(secret: &Secret) -> Vec<OwnerReference> {
    vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Secret".to_owned(),
        name: secret.metadata.name.clone().unwrap_or_default(),
        uid: secret.metadata.uid.clone().unwrap_or_default(),
        // `kubectl drain` refuses to remove a pod that has no controller.
        controller: Some(true),
        ..OwnerReference::default()
    }]
}

/// The uid of the Secret created by a launch. It is unique to the launch.
fn launch_of(secret: &Secret) -> (String, String) {
    let uid = secret.metadata.uid.clone().unwrap_or_default();
    (LABEL_LAUNCH.to_owned(), uid)
}

/// Returns the addresses of an allow-list, with their ports.
///
/// # Errors
///
/// The list contains a host name or an invalid entry.
fn reachable(network: &Network) -> Result<Vec<(IpAddr, Option<u16>)>, String> {
    let Network::Allow(entries) = network else {
        return Ok(Vec::new());
    };
    Allowed::parse(entries)?.addresses().map_err(|name| {
        format!(
            "`{name}` is a host name, but the NetworkPolicy of a pod supports addresses only: give its addresses, as in \
             `192.0.2.1:443`, or `\"network\": \"open\"`"
        )
    })
}

fn tcp(port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::Int(port.into())),
        protocol: Some("TCP".to_owned()),
        ..NetworkPolicyPort::default()
    }
}

/// The egress rules. A rule without peers allows all egress. An empty list of rules allows no egress.
fn ways_out(network: &Network) -> Vec<NetworkPolicyEgressRule> {
    if *network == Network::Open {
        return vec![NetworkPolicyEgressRule::default()];
    }
    let addresses = reachable(network).unwrap_or_default().into_iter();
    let rule = |(address, port): (IpAddr, Option<u16>)| NetworkPolicyEgressRule {
        to: Some(vec![NetworkPolicyPeer {
            ip_block: Some(IPBlock {
                cidr: format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 }),
                ..IPBlock::default()
            }),
            ..NetworkPolicyPeer::default()
        }]),
        ports: port.map(|port| vec![tcp(port)]),
    };
    addresses.map(rule).collect()
}

/// The ingress rules: Toolwharf may connect if it is in the cluster. Connections from the pod's own node, as by
/// `port-forward`, are always allowed.
fn ways_in(sandbox: &Sandbox, home: Option<&str>) -> Vec<NetworkPolicyIngressRule> {
    let Some(home) = home.filter(|_| !sandbox.ports.is_empty()) else {
        return Vec::new();
    };
    let labelled = |key: &str, value: &str| {
        Some(LabelSelector {
            match_labels: Some(BTreeMap::from([(key.to_owned(), value.to_owned())])),
            ..LabelSelector::default()
        })
    };
    vec![NetworkPolicyIngressRule {
        from: Some(vec![NetworkPolicyPeer {
            namespace_selector: labelled(NAMESPACE_LABEL, home),
            pod_selector: labelled(GATEWAY_LABEL.0, GATEWAY_LABEL.1),
            ..NetworkPolicyPeer::default()
        }]),
        ports: Some(sandbox.ports.iter().map(|port| tcp(port.inside)).collect()),
    }]
}

/// The network policy of a pod. `home`: the namespace of Toolwharf itself, if it is in the cluster.
pub(super) fn policy(
    options: &Options,
    unit: Confined<'_>,
    owner: &Secret,
    home: Option<&str>,
) -> NetworkPolicy {
    // The name contains the uid of the Secret, because the policy of an earlier pod may still be in deletion. A policy
    // with the same name would be deleted with it.
    let uid: String = owner
        .metadata
        .uid
        .iter()
        .flat_map(|uid| uid.chars())
        .take(8)
        .collect();
    let sandbox = unit.sandbox;
    let name = format!("{}-{uid}", name(options, unit));
    let mut metadata = meta(options, unit, name);
    metadata.owner_references = Some(owned_by(owner));
    let ingress = ways_in(sandbox, home);
    NetworkPolicy {
        metadata,
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector {
                match_labels: Some(BTreeMap::from([launch_of(owner)])),
                ..LabelSelector::default()
            }),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: (!ingress.is_empty()).then_some(ingress),
            egress: Some(ways_out(&sandbox.network)),
        }),
    }
}

/// The name of the claim for a volume.
fn claim_name(options: &Options, unit: Confined<'_>, path: &str) -> String {
    let sum = hex::encode(&Sha256::digest(path)[..6]);
    format!("{}-{sum}", name(options, unit))
}

pub(super) fn claim(options: &Options, unit: Confined<'_>, path: &str) -> PersistentVolumeClaim {
    let mut metadata = meta(options, unit, claim_name(options, unit, path));
    if let Some(annotations) = &mut metadata.annotations {
        annotations.insert(ANNOTATION_PATH.to_owned(), path.to_owned());
    }
    let size = Quantity(unit.sandbox.limits.disk.to_string());
    PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: options.storage_class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size)])),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}

pub(super) fn pod(
    options: &Options,
    unit: Confined<'_>,
    (image, args): (&str, &[String]),
    owner: &Secret,
) -> Pod {
    let (launch, sandbox) = (unit.launch, unit.sandbox);
    let name = name(options, unit);
    let limits = sandbox.limits;
    let user = options.user.map(i64::from);
    let tmp = limits.disk.min(limits.memory / 2);
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    let mut add = |name: String, path: &str, volume: Volume| {
        mounts.push(VolumeMount {
            name: name.clone(),
            mount_path: path.to_owned(),
            ..VolumeMount::default()
        });
        volumes.push(Volume { name, ..volume });
    };
    for (n, path) in sandbox.volumes.iter().enumerate() {
        let claim = PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(options, unit, path),
            ..PersistentVolumeClaimVolumeSource::default()
        };
        let volume = Volume {
            persistent_volume_claim: Some(claim),
            ..Volume::default()
        };
        add(format!("volume-{n}"), path, volume);
    }
    for (name, path, size) in [
        ("tmp", "/tmp", tmp),
        ("run", "/run", tmp.min(MAX_RUN_BYTES)),
    ] {
        if sandbox
            .volumes
            .iter()
            .any(|volume| volume.trim_end_matches('/') == path)
        {
            continue;
        }
        let scratch = EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity(size.to_string())),
        };
        let volume = Volume {
            empty_dir: Some(scratch),
            ..Volume::default()
        };
        add(name.to_owned(), path, volume);
    }
    let env = launch.env.keys().enumerate().map(|(n, variable)| EnvVar {
        name: variable.clone(),
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: name.clone(),
                key: n.to_string(),
                ..SecretKeySelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    });
    // Kubernetes expands `$(NAME)` and turns `$$` into `$`.
    let args: Vec<String> = args.iter().map(|arg| arg.replace('$', "$$")).collect();
    let server = Container {
        name: SERVER_CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        args: (!args.is_empty()).then_some(args),
        env: Some(env.collect()),
        stdin: Some(unit.has_streams()),
        volume_mounts: Some(mounts),
        ..locked_down(limits.cpu_millis, limits.memory)
    };
    let verify = options.probe_image.as_ref().map(|image| {
        let mut verify = locked_down(100, 64 << 20);
        let looker = Some(KubernetesSettings::LOOKER.into());
        if let Some(context) = &mut verify.security_context {
            context.run_as_non_root = Some(true);
            context.run_as_user = looker;
            context.run_as_group = looker;
        }
        Container {
            name: VERIFY_CONTAINER.to_owned(),
            image: Some(image.clone()),
            command: Some(SLEEP_COMMAND.map(str::to_owned).into()),
            ..verify
        }
    });
    let mut metadata = meta(options, unit, name);
    metadata.owner_references = Some(owned_by(owner));
    metadata
        .labels
        .get_or_insert_default()
        .extend([launch_of(owner)]);
    metadata
        .annotations
        .get_or_insert_default()
        .extend([SAFE_TO_EVICT.map(str::to_owned).into()]);
    Pod {
        metadata,
        spec: Some(PodSpec {
            containers: [server].into_iter().chain(verify).collect(),
            volumes: Some(volumes),
            // Toolwharf restarts servers, not the kubelet.
            restart_policy: Some("Never".to_owned()),
            // This grace period applies if another program deletes the pod. Toolwharf's own requests specify a grace
            // period.
            termination_grace_period_seconds: Some(GRACE_SECS),
            runtime_class_name: options.runtime_class.clone(),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            // With a shared process namespace, the server is not PID 1. So SIGTERM also ends a server that does not
            // handle it.
            share_process_namespace: Some(true),
            security_context: Some(PodSecurityContext {
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                run_as_non_root: user.map(|_| true),
                run_as_user: user,
                run_as_group: user,
                fs_group: Some(user.unwrap_or_else(|| KubernetesSettings::USER.into())),
                // This skips the recursive change of the group at each start if the volume has the right group already.
                fs_group_change_policy: Some("OnRootMismatch".to_owned()),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

/// Restrictions for every container, whatever its image declares.
fn locked_down(cpu_millis: u32, memory: u64) -> Container {
    let limits = BTreeMap::from([
        ("cpu".to_owned(), Quantity(format!("{cpu_millis}m"))),
        ("memory".to_owned(), Quantity(memory.to_string())),
    ]);
    // The requests are low, so that idle servers do not fill a node.
    let requests = BTreeMap::from([
        (
            "cpu".to_owned(),
            Quantity(format!("{}m", cpu_millis.min(5))),
        ),
        (
            "memory".to_owned(),
            Quantity(memory.min(32 << 20).to_string()),
        ),
    ]);
    Container {
        image_pull_policy: Some("IfNotPresent".to_owned()),
        resources: Some(ResourceRequirements {
            limits: Some(limits),
            requests: Some(requests),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use model::{Launch, Mount, Place, Port, Program};
    use serde_json::{Value, json};

    use super::*;
    use runtime::ports::Ports;

    const VALUE: &str = "hunter2";
    const PORT: Port = Port {
        inside: 80,
        host: None,
    };

    fn options() -> Options {
        Options {
            kubeconfig: None,
            context: None,
            namespace: None,
            runtime_class: Some("gvisor".to_owned()),
            storage_class: None,
            probe_image: Some("busybox".to_owned()),
            user: Some(65532),
            install: "abc".to_owned(),
            run: "run-1".to_owned(),
            ports: Ports::new(PathBuf::from("/nonexistent/ports.json")),
        }
    }

    fn launch() -> Launch {
        let image = "registry.example/server:1".to_owned();
        let command = vec!["--home=$(HOME)".to_owned()];
        let mut launch = Launch::new(Program::Image { image, command }, Place::Host);
        launch.env.insert("TOKEN".to_owned(), VALUE.to_owned());
        launch
    }

    fn unit<'a>(launch: &'a Launch, sandbox: &'a Sandbox) -> Confined<'a> {
        Confined {
            label: "one",
            launch,
            sandbox,
            fence: None,
        }
    }

    fn objects(change: impl FnOnce(&mut Sandbox)) -> (Value, Value) {
        let (launch, mut sandbox) = (launch(), Sandbox::new("one"));
        change(&mut sandbox);
        let unit = unit(&launch, &sandbox);
        let options = options();
        let mut owner = secret(&options, unit, None);
        owner.metadata.uid = Some("0123456789".to_owned());
        let program = check(unit).expect("the unit is valid");
        let pod = serde_json::to_value(pod(&options, unit, program, &owner));
        let policy = serde_json::to_value(policy(&options, unit, &owner, Some("home")));
        (pod.expect("JSON"), policy.expect("JSON"))
    }

    #[test]
    fn a_pod_has_no_values_no_token_and_nothing_to_gain() {
        let (pod, _) = objects(|_| {});
        assert!(!pod.to_string().contains(VALUE), "{pod}");
        let spec = &pod["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["restartPolicy"], "Never");
        assert_eq!(spec["runtimeClassName"], "gvisor");
        let server = &spec["containers"][0];
        assert_eq!(
            server["securityContext"],
            json!({
                "allowPrivilegeEscalation": false,
                "privileged": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            })
        );
        let from = json!({"secretKeyRef": {"name": "toolwharf-abc-one", "key": "0"}});
        assert_eq!(server["env"], json!([{"name": "TOKEN", "valueFrom": from}]));
        // Kubernetes turns `$$(HOME)` back into `$(HOME)`.
        assert_eq!(server["args"], json!(["--home=$$(HOME)"]));
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["uid"], &owner["controller"]),
            (&json!("0123456789"), &json!(true))
        );
        assert_eq!(pod["metadata"]["labels"][LABEL_LAUNCH], "0123456789");
    }

    /// The rules of the Pod Security Standard `restricted` that apply to these pods.
    #[test]
    fn pods_are_let_into_restricted_namespaces() {
        let (pod, _) = objects(|sandbox| sandbox.volumes = vec!["/data".to_owned()]);
        let spec = &pod["spec"];
        assert_eq!(
            spec["securityContext"],
            json!({
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                "fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            })
        );
        let containers = spec["containers"].as_array().expect("containers");
        assert_eq!(containers.len(), 2);
        for container in containers {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false);
            assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
            assert_ne!(context["runAsUser"], 0);
        }
        // The server must not be able to end the container that checks it.
        assert_eq!(
            containers[1]["securityContext"]["runAsUser"],
            KubernetesSettings::LOOKER
        );
        for volume in spec["volumes"].as_array().expect("volumes") {
            let kinds = ["persistentVolumeClaim", "emptyDir"];
            assert!(
                kinds.iter().any(|kind| volume.get(kind).is_some()),
                "{volume}"
            );
        }
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(spec.get(field).is_none(), "{field}");
        }
    }

    #[test]
    fn policies_let_nothing_in_and_out_only_what_is_open() {
        let (_, none) = objects(|_| {});
        let (_, open) = objects(|sandbox| sandbox.network = Network::Open);
        for policy in [&none, &open] {
            assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
            assert!(policy["spec"].get("ingress").is_none());
            // The selector names this launch, because a policy of an earlier launch may allow more.
            let selected = json!({LABEL_LAUNCH: "0123456789"});
            assert_eq!(policy["spec"]["podSelector"]["matchLabels"], selected);
        }
        assert_eq!(none["spec"]["egress"], json!([]));
        assert_eq!(open["spec"]["egress"], json!([{}]));
        let (_, some) = objects(|sandbox| {
            let entries = ["192.0.2.1:443", "2001:db8::1"];
            sandbox.network = Network::Allow(entries.map(str::to_owned).into());
            sandbox.ports = vec![PORT];
        });
        let tcp = |port: u16| json!([{"port": port, "protocol": "TCP"}]);
        assert_eq!(
            some["spec"]["egress"],
            json!([
                {"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": tcp(443)},
                {"to": [{"ipBlock": {"cidr": "2001:db8::1/128"}}]},
            ])
        );
        // Toolwharf's own pods can reach the server's port.
        let from = json!([{
            "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "home"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "toolwharf"}},
        }]);
        assert_eq!(
            some["spec"]["ingress"],
            json!([{"from": from, "ports": tcp(80)}])
        );
    }

    #[test]
    fn what_a_pod_cannot_do_is_refused_by_its_field() {
        let refusal = |launch: &Launch, sandbox: &Sandbox| match check(unit(launch, sandbox)) {
            Err(Error::Refused { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let mut command = launch();
        let (program, args) = ("cat".to_owned(), Vec::new());
        command.program = Program::Command { program, args };
        assert_eq!(refusal(&command, &Sandbox::new("one")), "command");
        let mut named = launch();
        named.env.insert("A B".to_owned(), String::new());
        assert_eq!(refusal(&named, &Sandbox::new("one")), "environment");
        for id in ["", "A", "a.b", "a-"] {
            assert_eq!(refusal(&launch(), &Sandbox::new(id)), "id", "{id}");
        }
        let check = |field: &str, change: &dyn Fn(&mut Sandbox)| {
            let mut sandbox = Sandbox::new("one");
            change(&mut sandbox);
            assert_eq!(refusal(&launch(), &sandbox), field);
        };
        check("network", &|it| {
            it.network = Network::Allow(vec!["x.example".to_owned()])
        });
        check("mounts", &|it| {
            it.mounts = vec![Mount {
                host: PathBuf::from("/etc"),
                inside: "/mnt".to_owned(),
                read_only: true,
            }]
        });
    }
}
