//! Toolwharf itself on Kubernetes: the files in `deploy/` are accepted by Kubernetes and match the code.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command, sync::LazyLock};

use serde_json::{Value, json};
use testkit::{DEADLINE, RawClient, postgres::Database};

use crate::{
    api::Api,
    common::{Setup, checks},
    support::{define, definition, kubectl, list_of, try_kubectl},
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn root(path: &str) -> PathBuf {
    PathBuf::from(ROOT).join(path)
}

/// The output of `render.py`: the files, and the rendered overlays.
static RENDERED: LazyLock<Value> = LazyLock::new(|| {
    let venv = std::env::var("TOOLWHARF_VENV").unwrap_or_else(|_| format!("{ROOT}/.work/venv"));
    let python = PathBuf::from(venv).join("bin/python");
    let shown = python.display();
    assert!(
        python.exists(),
        "{shown} is missing; run: cargo xtask setup"
    );
    let dir = tempfile::tempdir().unwrap();
    let overlays = ["sqlite", "postgres"].map(|overlay| {
        let file = dir.path().join(format!("{overlay}.yaml"));
        let of = root("deploy/kustomize/overlays").join(overlay);
        fs::write(&file, kubectl(&["kustomize", of.to_str().unwrap()], "")).unwrap();
        file
    });
    let mut render = Command::new(python);
    let script = root("crates/toolwharf/tests/scenarios_kubernetes/render.py");
    let rights = ["rbac.yaml", "resources.yaml"];
    let rights = rights.map(|file| root("examples/kubernetes").join(file));
    render.arg(script).arg(root("deploy/helm/toolwharf"));
    let output = render.args(&overlays).args(rights).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{why}");
    serde_json::from_slice(&output.stdout).unwrap()
});

fn rendered(values: &str) -> &'static [Value] {
    RENDERED["rendered"][values].as_array().unwrap()
}

/// Returns the objects of the file whose path ends with `name`.
fn given(name: &str) -> &'static [Value] {
    let mut files = RENDERED["given"].as_object().unwrap().iter();
    let (_, objects) = files.find(|(file, _)| file.ends_with(name)).unwrap();
    objects.as_array().unwrap()
}

/// Returns the objects of each way to run a gateway with the Kubernetes provider.
fn with_provider() -> [&'static [Value]; 4] {
    [
        rendered("default"),
        rendered("replicas"),
        given("sqlite.yaml"),
        given("postgres.yaml"),
    ]
}

/// Returns the objects of each way to run a gateway.
fn all() -> impl Iterator<Item = &'static [Value]> {
    with_provider().into_iter().chain([rendered("alone")])
}

/// Returns whether even the oldest API server knows objects of this kind: `policy/v1` came with Kubernetes 1.21.
fn is_old(object: &&Value) -> bool {
    object["kind"] != "PodDisruptionBudget"
}

/// Returns the pod of the gateway.
fn pod(objects: &[Value]) -> &Value {
    &find(objects, "Deployment")["spec"]["template"]["spec"]
}

/// Returns the rules of all roles among the objects, each with the role's kind.
fn rules(objects: &[Value]) -> Vec<(String, Value)> {
    let roles = objects.iter().filter(|object| object["rules"].is_array());
    let mut all: Vec<(String, Value)> = roles
        .map(|role| (role["kind"].to_string(), role["rules"].clone()))
        .collect();
    all.sort_by_key(|(kind, rules)| (kind.clone(), rules.to_string()));
    all
}

fn find<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}

/// Returns the gateway's container.
fn container(objects: &[Value]) -> &Value {
    &pod(objects)["containers"][0]
}

#[tokio::test]
async fn d08_the_chart_and_kustomize_are_valid_today_and_on_the_oldest_api_server() {
    let findings = RENDERED["lint"]["messages"].as_array().unwrap();
    let severities = findings.iter().map(|one| one["severity"].as_u64());
    let worst = severities.flatten().max().unwrap_or_default();
    assert!(worst < 2, "{findings:?}");
    let why = "more than one replica needs Postgres";
    checks::string(&RENDERED["refused"], &[why]);
    // Namespaces must exist before a dry run in them.
    define().await;
    for name in ["gateway", "servers", "toolwharf"] {
        try_kubectl(&["create", "namespace", name], "");
    }
    for objects in all() {
        let objects = objects.iter().filter(is_old);
        let list = list_of(objects.clone());
        let applied = kubectl(&["apply", "--dry-run=server", "--filename=-"], &list);
        assert_eq!(applied.lines().count(), objects.count(), "{applied}");
    }
}

#[tokio::test]
async fn d08_definitions_and_rights_are_the_same_everywhere() {
    let printed = definition();
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
    for objects in with_provider() {
        assert_eq!(rules(objects), rules(&ours));
    }
    assert_eq!(rules(rendered("alone")), []);
    let account = &pod(rendered("alone"))["automountServiceAccountToken"];
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
        for key in ["replicas", "strategy"] {
            assert_eq!(ours[key], theirs[key], "{key}");
        }
        let (ours, theirs) = (pod(rendered(chart)), pod(given(overlay)));
        for key in [
            "securityContext",
            "terminationGracePeriodSeconds",
            "enableServiceLinks",
        ] {
            assert_eq!(ours[key], theirs[key], "{key}");
        }
        // At most half a minute for the gateway to stop (H11), plus the time during which it still gets requests.
        let grace = ours["terminationGracePeriodSeconds"].as_u64();
        assert!(grace >= Some(5 + 30), "{grace:?}");
    }
}

/// The rules of the Pod Security Standard `restricted` that apply to these pods.
#[tokio::test]
async fn d08_the_gateway_is_let_into_restricted_namespaces() {
    for objects in with_provider() {
        let pod = pod(objects);
        let context = &pod["securityContext"];
        let profile = json!({"type": "RuntimeDefault"});
        let expected = json!({"runAsNonRoot": true, "seccompProfile": profile});
        checks::members(context, expected);
        assert_ne!(context["runAsUser"], 0);
        assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
        let context = &container(objects)["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
        let kinds = ["configMap", "emptyDir", "persistentVolumeClaim"];
        for volume in pod["volumes"].as_array().unwrap() {
            let is_one = kinds.iter().any(|kind| volume.get(kind).is_some());
            assert!(is_one, "{volume}");
        }
        for field in ["hostNetwork", "hostPID", "hostIPC", "initContainers"] {
            assert!(pod.get(field).is_none(), "{field}");
        }
    }
    let namespace = find(given("sqlite.yaml"), "Namespace");
    let enforced = &namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
    assert_eq!(enforced, "restricted");
}

#[test]
fn d08_the_chart_adds_variables_and_volumes_of_its_values() {
    let deployment = find(rendered("proxied"), "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let named = |list: &Value, name: &str| {
        let mut found = list.as_array().unwrap().iter();
        let found = found.find(|item| item["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {list}")).clone()
    };
    let proxy = named(&container["env"], "HTTPS_PROXY");
    assert_eq!(proxy["value"], "http://proxy.example:3128");
    assert_eq!(named(&pod["volumes"], "ca")["configMap"]["name"], "ca");
    let mount = named(&container["volumeMounts"], "ca");
    assert_eq!(mount["mountPath"], "/etc/ca");
    // Its own ones are still there.
    named(&container["env"], "HOME");
    named(&pod["volumes"], "data");
}

#[tokio::test]
async fn d08_the_settings_of_the_chart_and_of_kustomize_are_usable() {
    for objects in all() {
        let settings = &find(objects, "ConfigMap")["data"]["toolwharf.toml"];
        let setup = Setup::new().settings(settings.as_str().unwrap());
        // The cluster does not exist, but the gateway starts nevertheless.
        let gateway = setup.env("KUBECONFIG", "/nowhere").serve().await;
        assert_eq!(gateway.at("/healthz").get(&[]).await.status, 200);
    }
}

#[tokio::test]
async fn d08_replicas_have_the_administrator_of_a_variable() {
    let database = Database::create().await;
    let token = format!("twh_{}", "5b".repeat(24));
    let setup = |token: &str| {
        let setup = Setup::new().of_replica(database.url(), None);
        setup.env("TOOLWHARF_ADMIN_TOKEN", token)
    };
    let (first, second) = tokio::join!(setup(&token).serve(), setup(&token).serve());
    for gateway in [&first, &second] {
        assert_eq!(gateway.token(), token);
        let all = Api::admin(gateway).get("/replicas").await;
        assert_eq!(all["replicas"].as_array().unwrap().len(), 2);
        checks::lacks(gateway.process.stderr(), &[&token]);
    }
    let refused = setup("short").refused().await;
    checks::contains(&refused, &["TOOLWHARF_ADMIN_TOKEN is not a valid token"]);
    // If the database has administrators, an unknown token is refused and not stored, so that a revoked key cannot come
    // back.
    let other = setup(&"x".repeat(40)).refused().await;
    checks::contains(&other, &["the database has administrators"]);
}

/// Selects the pods of the chart.
const OF_CHART: &str = "--selector=app.kubernetes.io/name=toolwharf";

/// Runs `kubectl` in the namespace of the chart's gateway.
fn namespaced(args: &[&str]) -> String {
    kubectl(&[&["--namespace=gateway"], args].concat(), "")
}

/// The gateway of the chart, reached as a client in the cluster reaches it.
struct Inside {
    url: String,
    token: String,
}

impl Inside {
    /// Waits until a pod of the deployment is ready.
    async fn ready() -> Self {
        let deployment = "deployment/toolwharf";
        namespaced(&["rollout", "status", deployment, "--timeout=120s"]);
        let address = "--output=jsonpath={.items[*].status.podIP}";
        let pods = namespaced(&["get", "pods", OF_CHART, address]);
        let file = "/var/lib/toolwharf/admin-token";
        let token = namespaced(&["exec", deployment, "--", "cat", file]);
        Self {
            url: format!("http://{}:6280", pods.trim()),
            token: token.trim().to_owned(),
        }
    }

    async fn ask(&self, method: &str, path: &str, body: Value) -> Value {
        let client = RawClient::new(&format!("{}/api/v1{path}", self.url));
        let bearer = format!("Bearer {}", self.token);
        // The `Host` is the gateway's service name.
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
        checks::contains(told.to_string(), &["hello"]);
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
    // The volume is on disk, like one of a storage class, because Kubernetes ignores `fsGroup` for `hostPath`.
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
    let list = list_of(objects.iter().filter(is_old));
    kubectl(&["apply", "--filename=-"], &list);

    let inside = Inside::ready().await;
    inside.ask("PUT", "/projects/one", json!({})).await;
    let server = "/mcp/servers/kept?project=one";
    let entry = json!({"command": "/testkit-scripted", "args": ["--name", "kept"]});
    inside.ask("PUT", server, entry).await;
    inside.echoes().await;

    // Deletes the pod, with everything outside the volume.
    namespaced(&["delete", "pod", OF_CHART]);
    let again = Inside::ready().await;
    assert_eq!(again.token, inside.token);
    again.echoes().await;
    kubectl(&["delete", "namespace", "gateway"], "");
    kubectl(&["delete", "persistentvolume", "chart"], "");
}
