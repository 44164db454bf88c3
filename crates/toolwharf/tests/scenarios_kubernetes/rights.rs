//! D08: the permissions in `examples/kubernetes/resources.yaml` are sufficient, and each of them is needed.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;
use testkit::wait_for;

use crate::{
    common::Gateway,
    support::{LONG_DEADLINE, NO_FINALIZERS, Namespace, config, kubectl, list_of, token_of},
};

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/kubernetes/resources.yaml"
);

/// Returns the objects of the file, for one namespace.
fn rights(namespace: &str) -> Vec<Value> {
    let options = ["--dry-run=client", "--output=json"];
    let of = ["--namespace", namespace, "--filename", FILE];
    let told = kubectl(&[&["create"][..], &options, &of].concat(), "");
    let objects = serde_json::Deserializer::from_str(&told).into_iter();
    let mut list: Vec<Value> = objects.map(Result::unwrap).collect();
    if let [one] = list.as_slice()
        && one["kind"] == "List"
    {
        list = one["items"].as_array().unwrap().clone();
    }
    for object in &mut list {
        let is_everywhere = object["kind"].as_str().unwrap().starts_with("Cluster");
        if is_everywhere {
            // Objects of the whole cluster get a name that is unique to this test.
            let metadata = object["metadata"].as_object_mut().unwrap();
            let name = format!("{}-{namespace}", metadata["name"].as_str().unwrap());
            metadata.insert("name".to_owned(), name.clone().into());
            metadata.remove("namespace");
            if object["kind"] == "ClusterRoleBinding" {
                object["roleRef"]["name"] = name.into();
                object["subjects"][0]["namespace"] = namespace.into();
            }
        }
    }
    list
}

fn grant(objects: &[Value]) {
    kubectl(&["apply", "--filename=-"], &list_of(objects));
}

/// A gateway with exactly the permissions of the service account.
async fn gateway(namespace: &Namespace) -> (Gateway, TempDir) {
    let text = fs::read_to_string(config()).unwrap();
    let account = format!("system:serviceaccount:{}:toolwharf", namespace.name);
    let user = format!("as: {account:?}, client-certificate-data:");
    let mine = text.replace("client-certificate-data:", &user);
    assert_ne!(text, mine);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    fs::write(&file, mine).unwrap();
    (namespace.gateway_with(file.to_str().unwrap()).await, dir)
}

#[tokio::test]
async fn d08_the_rights_are_enough_and_each_is_needed() {
    let namespace = Namespace::new("rights").await;
    let objects = rights(&namespace.name);
    grant(&objects);
    namespace.apply_token("value");
    let all = gateway(&namespace).await;
    namespace.scripted("allowed", token_of("keys"));
    namespace.ready("allowed").await;
    wait_for("the events", LONG_DEADLINE, async || {
        let events = namespace.events("allowed").await;
        events.iter().any(|event| event[1] == "Ready")
    })
    .await;
    namespace.remove("allowed").await;
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
                namespace.scripted(&name, token_of("keys"));
                let line = less.0.logged("forbidden").await;
                let is_told = line.contains("the Kubernetes API server says")
                    || line.contains("the watch on MCPServer resources failed");
                assert!(is_told, "{lacking}: {line}");
                drop(less);
                grant(&objects);
                namespace.patch(&name, NO_FINALIZERS);
                namespace.kubectl(&["delete", "mcpserver", &name], "");
            }
        }
    }
}
