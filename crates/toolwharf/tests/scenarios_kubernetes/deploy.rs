//! Toolwharf itself on Kubernetes: the files in `deploy/` are accepted by Kubernetes and match the code.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command, sync::LazyLock};

use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, RawClient, postgres::Database};

use crate::{
    api::Api,
    common::Setup,
    support::{define, kubectl, try_kubectl},
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn root(path: &str) -> PathBuf {
    PathBuf::from(ROOT).join(path)
}

/// The output of `render.py`: the files, and the rendered overlays.
static RENDERED: LazyLock<Value> = LazyLock::new(|| {
    let venv = std::env::var("TOOLWHARF_VENV").unwrap_or_else(|_| format!("{ROOT}/.work/venv"));
    let python = PathBuf::from(venv).join("bin/python");
    assert!(
        python.exists(),
        "there is no {}: run `cargo xtask setup`",
        python.display()
    );
    let dir = tempfile::tempdir().unwrap();
    let overlays = ["sqlite", "postgres"].map(|overlay| {
        let file = dir.path().join(format!("{overlay}.yaml"));
        let of = root("deploy/kustomize/overlays").join(overlay);
        fs::write(&file, kubectl(&["kustomize", of.to_str().unwrap()], "")).unwrap();
        file
    });
    let mut render = Command::new(python);
    render.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/scenarios_kubernetes/render.py"
    ));
    render.arg(root("deploy/helm/toolwharf")).args(&overlays);
    let output = render
        .args(["rbac.yaml", "resources.yaml"].map(|file| root("examples/kubernetes").join(file)))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
});

fn rendered(values: &str) -> &'static [Value] {
    RENDERED["rendered"][values].as_array().unwrap()
}

/// Returns the objects of the file whose path ends with `name`.
fn given(name: &str) -> &'static [Value] {
    let mut files = RENDERED["given"].as_object().unwrap().iter();
    files
        .find(|(file, _)| file.ends_with(name))
        .unwrap()
        .1
        .as_array()
        .unwrap()
}

/// Returns the rules of all roles among the objects, each with the role's kind.
fn rules(objects: &[Value]) -> Vec<(String, Value)> {
    let mut all: Vec<(String, Value)> = objects
        .iter()
        .filter(|object| object["rules"].is_array())
        .map(|object| {
            (
                object["kind"].as_str().unwrap().to_owned(),
                object["rules"].clone(),
            )
        })
        .collect();
    all.sort_by_key(|(kind, rules)| (kind.clone(), rules.to_string()));
    all
}

fn find<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap_or_else(|| panic!("no {kind}"))
}

/// Returns the gateway's container.
fn container(objects: &[Value]) -> &Value {
    &find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
}

#[tokio::test]
async fn d08_the_chart_and_kustomize_are_valid_today_and_on_the_oldest_api_server() {
    let findings = RENDERED["lint"]["messages"].as_array().unwrap();
    let worst = findings
        .iter()
        .filter_map(|one| one["severity"].as_u64())
        .max()
        .unwrap_or_default();
    assert!(worst < 2, "{findings:?}");
    assert!(
        RENDERED["refused"]
            .as_str()
            .is_some_and(|why| why.contains("more than one replica needs a Postgres")),
        "{}",
        RENDERED["refused"]
    );
    // Namespaces must exist before a dry run in them.
    define().await;
    for name in ["gateway", "servers", "toolwharf"] {
        try_kubectl(&["create", "namespace", name], "");
    }
    for objects in [
        rendered("default"),
        rendered("alone"),
        rendered("replicas"),
        given("sqlite.yaml"),
        given("postgres.yaml"),
    ] {
        // `policy/v1` came with Kubernetes 1.21.
        let objects: Vec<&Value> = objects
            .iter()
            .filter(|object| object["kind"] != "PodDisruptionBudget")
            .collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let applied = kubectl(&["apply", "--dry-run=server", "--filename=-"], &list);
        assert_eq!(applied.lines().count(), objects.len(), "{applied}");
    }
}

#[tokio::test]
async fn d08_definitions_and_rights_are_the_same_everywhere() {
    let printed = Command::new(Bin::path("toolwharf"))
        .args(["kubernetes", "crd"])
        .output()
        .unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    for file in [
        "deploy/kustomize/base/crd.yaml",
        "deploy/helm/toolwharf/crds/mcpservers.yaml",
    ] {
        let kept = fs::read_to_string(root(file)).unwrap();
        assert!(
            kept == printed,
            "{file} is out of date; run: toolwharf kubernetes crd > {file}"
        );
    }
    let ours = [given("rbac.yaml"), given("resources.yaml")].concat();
    for objects in [
        rendered("default"),
        rendered("replicas"),
        given("sqlite.yaml"),
        given("postgres.yaml"),
    ] {
        assert_eq!(rules(objects), rules(&ours));
    }
    assert_eq!(rules(rendered("alone")), []);
    let account = &find(rendered("alone"), "Deployment")["spec"]["template"]["spec"]["automountServiceAccountToken"];
    assert_eq!(account, false);
}

#[tokio::test]
async fn d08_the_chart_and_kustomize_say_the_same_of_the_gateway() {
    for (chart, overlay) in [("default", "sqlite.yaml"), ("replicas", "postgres.yaml")] {
        let (ours, theirs) = (container(rendered(chart)), container(given(overlay)));
        for key in [
            "args",
            "startupProbe",
            "readinessProbe",
            "livenessProbe",
            "lifecycle",
            "resources",
            "securityContext",
            "volumeMounts",
        ] {
            assert_eq!(ours[key], theirs[key], "{key} of {chart}");
        }
        let variables = |container: &Value| {
            let mut all: Vec<Value> = container["env"].as_array().unwrap().clone();
            all.sort_by_key(Value::to_string);
            all
        };
        assert_eq!(variables(ours), variables(theirs));
        let spec = |objects: &[Value]| find(objects, "Deployment")["spec"].clone();
        let (ours, theirs) = (spec(rendered(chart)), spec(given(overlay)));
        assert_eq!(
            (&ours["replicas"], &ours["strategy"]),
            (&theirs["replicas"], &theirs["strategy"])
        );
        for key in [
            "securityContext",
            "terminationGracePeriodSeconds",
            "enableServiceLinks",
        ] {
            assert_eq!(
                ours["template"]["spec"][key], theirs["template"]["spec"][key],
                "{key}"
            );
        }
        // At most half a minute for the gateway to stop (H11), plus the time during which it still gets requests.
        let grace = ours["template"]["spec"]["terminationGracePeriodSeconds"].as_u64();
        assert!(grace >= Some(5 + 30), "{grace:?}");
    }
}

/// The rules of the Pod Security Standard `restricted` that apply to these pods.
#[tokio::test]
async fn d08_the_gateway_is_let_into_restricted_namespaces() {
    for objects in [
        rendered("default"),
        rendered("replicas"),
        given("sqlite.yaml"),
        given("postgres.yaml"),
    ] {
        let pod = &find(objects, "Deployment")["spec"]["template"]["spec"];
        let context = &pod["securityContext"];
        assert_eq!(context["runAsNonRoot"], true);
        assert_ne!(context["runAsUser"], 0);
        assert_eq!(context["seccompProfile"], json!({"type": "RuntimeDefault"}));
        assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
        let context = &container(objects)["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
        let kinds = ["configMap", "emptyDir", "persistentVolumeClaim"];
        for volume in pod["volumes"].as_array().unwrap() {
            assert!(
                kinds.iter().any(|kind| volume.get(kind).is_some()),
                "{volume}"
            );
        }
        for field in ["hostNetwork", "hostPID", "hostIPC", "initContainers"] {
            assert!(pod.get(field).is_none(), "{field}");
        }
    }
    let namespace = find(given("sqlite.yaml"), "Namespace");
    let enforced = &namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
    assert_eq!(enforced, "restricted");
}

#[tokio::test]
async fn d08_the_settings_of_the_chart_and_of_kustomize_are_usable() {
    let toml = |objects: &[Value]| {
        find(objects, "ConfigMap")["data"]["toolwharf.toml"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for objects in [
        rendered("default"),
        rendered("alone"),
        rendered("replicas"),
        given("sqlite.yaml"),
        given("postgres.yaml"),
    ] {
        // The cluster does not exist, but the gateway starts nevertheless.
        let setup = Setup::new()
            .settings(&toml(objects))
            .env("KUBECONFIG", "/nowhere");
        let gateway = setup.serve().await;
        assert_eq!(gateway.at("/healthz").get(&[]).await.status, 200);
    }
}

#[tokio::test]
async fn d08_replicas_have_the_administrator_of_a_variable() {
    let database = Database::create().await;
    let token = format!("twh_{}", "5b".repeat(24));
    let replica = async || {
        let setup = Setup::new().of_replica(database.url(), None);
        setup.env("TOOLWHARF_ADMIN_TOKEN", &token).serve().await
    };
    let (first, second) = tokio::join!(replica(), replica());
    for gateway in [&first, &second] {
        assert_eq!(gateway.token(), token);
        let all = Api::admin(gateway)
            .ok("GET", "/replicas", Value::Null)
            .await;
        assert_eq!(all["replicas"].as_array().unwrap().len(), 2);
        assert!(
            !gateway.process.stderr().contains(&token),
            "it is in the log"
        );
    }
    let refused = Setup::new()
        .of_replica(database.url(), None)
        .env("TOOLWHARF_ADMIN_TOKEN", "short")
        .refused()
        .await;
    assert!(
        refused.contains("TOOLWHARF_ADMIN_TOKEN is not a token"),
        "{refused}"
    );
    // If the database has administrators, an unknown token is refused and not stored, so that a revoked key cannot come
    // back.
    let other = Setup::new()
        .of_replica(database.url(), None)
        .env("TOOLWHARF_ADMIN_TOKEN", &"x".repeat(40))
        .refused()
        .await;
    assert!(other.contains("the database has administrators"), "{other}");
}

/// The gateway of the chart, reached as a client in the cluster reaches it.
struct Inside {
    url: String,
    token: String,
}

impl Inside {
    /// Waits until a pod of the deployment is ready.
    async fn ready() -> Self {
        let namespaced = |args: &[&str]| kubectl(&[&["--namespace=gateway"], args].concat(), "");
        namespaced(&[
            "rollout",
            "status",
            "deployment/toolwharf",
            "--timeout=120s",
        ]);
        let pods = namespaced(&[
            "get",
            "pods",
            "--selector=app.kubernetes.io/name=toolwharf",
            "--output=jsonpath={.items[*].status.podIP}",
        ]);
        let token = namespaced(&[
            "exec",
            "deployment/toolwharf",
            "--",
            "cat",
            "/var/lib/toolwharf/admin-token",
        ]);
        Self {
            url: format!("http://{}:6280", pods.trim()),
            token: token.trim().to_owned(),
        }
    }

    async fn ask(&self, method: &str, path: &str, body: Value) -> Value {
        let client = RawClient::new(&format!("{}/api/v1{path}", self.url));
        let bearer = format!("Bearer {}", self.token);
        // The service name of the gateway.
        let headers = [("host", "toolwharf"), ("authorization", &bearer)];
        let answer = client.send(method.parse().unwrap(), &headers, body.to_string());
        let reply = answer.await.collect(DEADLINE).await;
        assert!(reply.status.is_success(), "{path}: {}", reply.text());
        serde_json::from_str(&reply.text()).unwrap_or_default()
    }

    /// Calls the server `kept`.
    async fn echoes(&self) {
        let asked = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hello"}}});
        let path = "/mcp/servers/kept/call?project=one";
        let told = self.ask("POST", path, asked).await;
        assert!(told.to_string().contains("hello"), "{told}");
    }
}

/// The chart with SQLite and without the Kubernetes provider: pods of the test cluster cannot reach its API server.
#[tokio::test]
async fn d07_kubernetes_the_chart_starts_a_gateway_that_keeps_what_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    for path in [dir.path(), &data] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    // A volume on disk, like one of a storage class, because Kubernetes ignores `fsGroup` for `hostPath`.
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "chart"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "chart",
            "hostPath": {"path": data},
        },
    });
    try_kubectl(&["create", "namespace", "gateway"], "");
    let mut objects = rendered("started").to_vec();
    objects.push(volume);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects.iter().filter(|object| {
        // `policy/v1` came with Kubernetes 1.21.
        object["kind"] != "PodDisruptionBudget"
    }).collect::<Vec<_>>()});
    kubectl(&["apply", "--filename=-"], &list.to_string());

    let inside = Inside::ready().await;
    inside.ask("PUT", "/projects/one", json!({})).await;
    let server = "/mcp/servers/kept?project=one";
    let entry = json!({"command": "/testkit-scripted", "args": ["--name", "kept"]});
    inside.ask("PUT", server, entry).await;
    inside.echoes().await;

    // Deletes the pod, with everything outside the volume.
    kubectl(
        &[
            "--namespace=gateway",
            "delete",
            "pod",
            "--selector=app.kubernetes.io/name=toolwharf",
        ],
        "",
    );
    let again = Inside::ready().await;
    assert_eq!(again.token, inside.token);
    again.echoes().await;
    kubectl(&["delete", "namespace", "gateway"], "");
    kubectl(&["delete", "persistentvolume", "chart"], "");
}
