//! D08: the permissions in `examples/kubernetes/resources.yaml` are sufficient, and each of them is needed.

use std::fs;

use serde_json::{Value, json};
use testkit::wait_for;

use crate::{
    common::{Gateway, Setup},
    support::{LONG_DEADLINE, Namespace, config, kubectl, scripted},
};

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/kubernetes/resources.yaml"
);

/// Returns the objects of the file, for one namespace.
fn rights(namespace: &str) -> Vec<Value> {
    let told = kubectl(
        &[
            "create",
            "--dry-run=client",
            "--output=json",
            "--namespace",
            namespace,
            "--filename",
            FILE,
        ],
        "",
    );
    let mut list: Vec<Value> = serde_json::Deserializer::from_str(&told)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    if let [one] = list.as_slice()
        && one["kind"] == "List"
    {
        list = one["items"].as_array().unwrap().clone();
    }
    for object in &mut list {
        let is_everywhere = object["kind"].as_str().unwrap().starts_with("Cluster");
        if is_everywhere {
            // Unique to this test.
            let name = format!(
                "{}-{namespace}",
                object["metadata"]["name"].as_str().unwrap()
            );
            object["metadata"]["name"] = name.clone().into();
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("namespace");
            if object["kind"] == "ClusterRoleBinding" {
                object["roleRef"]["name"] = name.into();
                object["subjects"][0]["namespace"] = namespace.into();
            }
        }
    }
    list
}

fn grant(objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    kubectl(&["apply", "--filename=-"], &list);
}

/// A gateway with exactly the permissions of the service account.
async fn gateway(namespace: &Namespace) -> Gateway {
    let text = fs::read_to_string(config()).unwrap();
    let user = format!(
        "as: \"system:serviceaccount:{}:toolwharf\", client-certificate-data:",
        namespace.0
    );
    let mine = text.replace("client-certificate-data:", &user);
    assert_ne!(text, mine);
    let setup = Setup::new();
    let file = setup.folder().join("kubeconfig");
    fs::write(&file, mine).unwrap();
    setup
        .settings(&namespace.settings_with(&file.to_string_lossy()))
        .serve()
        .await
}

#[tokio::test]
async fn d08_the_rights_are_enough_and_each_is_needed() {
    let namespace = Namespace::new("rights").await;
    let objects = rights(&namespace.0);
    grant(&objects);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"token": "value"}});
    namespace.kubectl(&["apply", "--filename=-"], &secret.to_string());
    let spec = |name: &str| {
        scripted(
            name,
            json!({"secretEnv": {"TOKEN": {"secretKeyRef": {"name": "keys", "key": "token"}}}}),
        )
    };
    let all = gateway(&namespace).await;
    namespace.apply("allowed", spec("allowed"));
    namespace.ready("allowed").await;
    wait_for("the events", LONG_DEADLINE, async || {
        namespace
            .events("allowed")
            .iter()
            .any(|event| event[1] == "Ready")
    })
    .await;
    namespace.delete("allowed");
    namespace.gone("allowed").await;
    drop(all);

    for (at, object) in objects.iter().enumerate() {
        for (rule, _) in object["rules"].as_array().into_iter().flatten().enumerate() {
            for verb in object["rules"][rule]["verbs"].as_array().unwrap() {
                let mut fewer = objects.clone();
                let verbs = fewer[at]["rules"][rule]["verbs"].as_array_mut().unwrap();
                verbs.retain(|one| one != verb);
                let lacking = format!("{verb} of {}", object["rules"][rule]["resources"]);
                if verbs.is_empty() {
                    fewer[at]["rules"].as_array_mut().unwrap().remove(rule);
                }
                grant(&fewer);
                let name = format!("less{at}{rule}{}", verb.as_str().unwrap());
                let less = gateway(&namespace).await;
                namespace.apply(&name, spec(&name));
                let line = less.logged("forbidden").await;
                assert!(
                    line.contains("the Kubernetes API server says")
                        || line.contains("the watch on MCPServer resources failed"),
                    "{lacking}: {line}"
                );
                drop(less);
                grant(&objects);
                let patch = r#"{"metadata":{"finalizers":null}}"#;
                namespace.kubectl(
                    &[
                        "patch",
                        "mcpserver",
                        &name,
                        "--type=merge",
                        "--patch",
                        patch,
                    ],
                    "",
                );
                namespace.kubectl(&["delete", "mcpserver", &name], "");
            }
        }
    }
}
