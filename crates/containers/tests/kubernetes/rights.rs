//! The permissions in `examples/kubernetes/rbac.yaml` are sufficient, and without any one of them something fails.

use containers::kubernetes::Kubernetes;
use model::{Port, Reach};
use runtime::Runtime as _;
use serde_json::{Value, json};
use testkit::{in_time, wait_for};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::server::Server;
use crate::support::{Namespace, TEST_TIMEOUT, echo, sh};

const EXAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/kubernetes/rbac.yaml"
);
/// Permissions that this cluster checks under another verb, or that are not essential: without `watch`, pods are polled
/// every five seconds, and without `events`, the reason why a pod does not start is unknown. Missing permissions are
/// reported at the start.
const NOT_MISSED: [&str; 5] = [
    "create pods/attach",
    "create pods/exec",
    "create pods/portforward",
    "list events",
    "watch pods",
];

/// The rules of the role in the example.
fn rules(namespace: &Namespace) -> Vec<Value> {
    let objects = namespace.kubectl(&[
        "create",
        "--dry-run=client",
        "--output=json",
        "--filename",
        EXAMPLE,
    ]);
    // The output contains one object after another.
    let mut objects = serde_json::Deserializer::from_str(&objects).into_iter::<Value>();
    let role = objects.find_map(|object| object.ok().filter(|object| object["kind"] == "Role"));
    let role = role.expect("the example has a role");
    role["rules"].as_array().expect("rules").clone()
}

/// Every permission as verb and resource, with the rules that remain without it.
fn each_less(rules: &[Value]) -> Vec<(String, Vec<Value>)> {
    let mut all = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        for resource in rule["resources"].as_array().expect("resources") {
            for verb in rule["verbs"].as_array().expect("verbs") {
                let (verb_text, resource_text) = (verb.as_str(), resource.as_str());
                let right = format!(
                    "{} {}",
                    verb_text.expect("a verb"),
                    resource_text.expect("a resource")
                );
                let mut less = rules.to_vec();
                let without = |key: &str, value: &Value| {
                    let kept = rule[key].as_array().expect("a list").iter();
                    kept.filter(|one| *one != value)
                        .cloned()
                        .collect::<Vec<_>>()
                };
                less[at]["resources"] = without("resources", resource).into();
                let verbs = without("verbs", verb);
                less.retain(|rule| rule["resources"] != json!([]));
                if !verbs.is_empty() {
                    let groups = rule["apiGroups"].clone();
                    less.push(
                        json!({"apiGroups": groups, "resources": [resource], "verbs": verbs}),
                    );
                }
                all.push((right, less));
            }
        }
    }
    all
}

/// Uses every operation on a cluster, with two servers. Returns what fails.
async fn life(namespace: &Namespace, first: &Kubernetes, next: &Kubernetes) -> Result<(), String> {
    let told = |error: runtime::Error| error.to_string();
    let launch = async |runtime: &Kubernetes, server: Server| {
        let launched = timeout(TEST_TIMEOUT, runtime.launch(server.unit())).await;
        launched.map_or_else(
            |_| Err("it does not start".to_owned()),
            |it| it.map_err(told),
        )
    };
    let mut server = sh("one", "echo early >&2; exec cat");
    server.env.insert("A".to_owned(), "b".to_owned());
    server.sandbox.volumes = vec!["/data".to_owned()];
    let mut instance = launch(first, server.clone()).await?;
    if echo(&mut instance, "hello").await.as_deref() != Some("hello") {
        return Err("it does not respond".to_owned());
    }
    if !instance.handle.stderr_tail().contains("early") {
        return Err("what it wrote first is lost".to_owned());
    }
    if instance.handle.usage().await.is_none() {
        return Err("its resource usage is unknown".to_owned());
    }
    instance.handle.kill_now();
    in_time(TEST_TIMEOUT, instance.handle.exited()).await;

    let script = "echo hello > /tmp/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp";
    let mut listening = sh("two", script);
    let path = "/mcp".to_owned();
    listening.reach = Reach::Port { path };
    listening.sandbox.ports = vec![Port {
        inside: 8080,
        host: None,
    }];
    let instance = launch(first, listening).await?;
    let address = instance.ports[&8080];
    let mut said = String::new();
    let reached = timeout(TEST_TIMEOUT / 4, async {
        // The server may not be listening yet.
        while !said.contains("hello") {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
            let _ = stream.read_to_string(&mut said).await;
        }
        std::io::Result::Ok(())
    });
    if !matches!(reached.await, Ok(Ok(()))) {
        return Err("its port cannot be reached".to_owned());
    }
    // The next run sweeps what a run leaves behind.
    let swept = next.sweep().await.map_err(told)?;
    if swept != 1 {
        return Err(format!("{swept} were swept instead of 1"));
    }
    in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    next.volumes_remove("one", None).await.map_err(told)?;
    let left = namespace.count("pods,secrets,persistentvolumeclaims");
    match left {
        0 => Ok(()),
        _ => Err(format!("{left} objects are left")),
    }
}

#[tokio::test]
async fn d07_kubernetes_the_rights_of_the_example_are_enough_and_each_is_needed() {
    let namespace = Namespace::new("rights").await;
    namespace.kubectl(&["apply", "--filename", EXAMPLE]);
    let rules = rules(&namespace);
    let account = namespace.account("toolwharf").await;
    let runtimes = |round: usize| {
        let run = |name: &str| namespace.runtime(Some(account.clone()), &format!("{name}-{round}"));
        (run("first"), run("next"))
    };
    let (first, next) = runtimes(0);
    first.probe().await.expect("all that is needed");
    life(&namespace, &first, &next).await.expect("a life");
    // Dependent objects are deleted some time later.
    let nothing = async || {
        wait_for("nothing left", TEST_TIMEOUT, async || {
            let all = "pods,secrets,networkpolicies,persistentvolumeclaims";
            namespace.count(all) == 0
        })
        .await;
    };
    nothing().await;

    let mut needless = Vec::new();
    for (round, (right, less)) in each_less(&rules).into_iter().enumerate() {
        let role = |rules: &[Value]| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": {"name": "toolwharf"}, "rules": rules,
            })
        };
        namespace.apply(&role(&less));
        let (first, next) = runtimes(round + 1);
        // The authorizer applies the change some time later.
        let mut why = String::new();
        wait_for("a right to be gone", TEST_TIMEOUT, async || {
            match first.probe().await {
                Ok(_) => false,
                Err(error) => {
                    why = error.to_string();
                    true
                }
            }
        })
        .await;
        assert!(
            why.contains(&format!("not permitted to {right} in")),
            "{right}: {why}"
        );
        let lived = life(&namespace, &first, &next).await;
        println!("without `{right}`: {lived:?}");
        if lived.is_ok() && !NOT_MISSED.contains(&right.as_str()) {
            needless.push(right);
        }
        // With all permissions again, everything can be removed.
        namespace.apply(&role(&rules));
        wait_for("the right to be back", TEST_TIMEOUT, async || {
            first.probe().await.is_ok()
        })
        .await;
        drop(first);
        wait_for("an end", TEST_TIMEOUT, async || {
            let swept = timeout(TEST_TIMEOUT / 4, runtimes(999).0.sweep()).await;
            matches!(swept, Ok(Ok(0)))
        })
        .await;
        let kinds = "pods,secrets,persistentvolumeclaims";
        let selector = "--selector=app.kubernetes.io/managed-by=toolwharf";
        namespace.kubectl(&["delete", kinds, selector, "--grace-period=1", "--wait=true"]);
        nothing().await;
    }
    assert!(needless.is_empty(), "nothing fails without {needless:?}");
}
