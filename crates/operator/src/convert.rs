//! Converts ToolHive's resource `MCPServer` to Toolwharf's.
//!
//! Invariant: each setting that is not converted produces a warning that says what to do about it. Deliberately absent:
//! resources that another resource refers to.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::definition::{KIND, SECRET_ENV, api_version};
use backend::hosting;

const THEIRS: &str = "toolhive.stacklok.dev/";
/// The annotation in which `kubectl apply` stores the applied resource.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// ToolHive's default port of a server.
const DEFAULT_PORT: u64 = 8080;

/// Fields of ToolHive's spec that are not converted, and what to do instead.
const NOT_CONVERTED: [(&str, &str); 18] = [
    (
        "podTemplateSpec",
        "Toolwharf creates the pods: set their runtime class and storage class under `[kubernetes]`",
    ),
    ("resourceOverrides", "Toolwharf creates and labels the pods"),
    ("serviceAccount", "pods have no service account token"),
    (
        "oidcConfig",
        "name the issuer of callers' tokens under `[auth.oidc.NAME]` in the gateway's settings",
    ),
    (
        "oidcConfigRef",
        "name the issuer of callers' tokens under `[auth.oidc.NAME]` in the gateway's settings",
    ),
    (
        "authzConfig",
        "put the server into a `project`, and give callers keys of that project",
    ),
    (
        "externalAuthConfigRef",
        "define a sign-in under `[logins.NAME]` in the gateway's settings, and use its token in a variable: `${login:NAME}`",
    ),
    (
        "authServerRef",
        "name the issuer at which callers sign in under `[auth.oidc.NAME]` in the gateway's settings",
    ),
    ("audit", "every call is recorded (settings: `[audit]`)"),
    ("telemetry", "scrape the gateway's `/metrics`"),
    ("telemetryConfigRef", "scrape the gateway's `/metrics`"),
    ("toolConfigRef", "list the tools to hide in `disabledTools`"),
    ("tools", "list these tools in `enabledTools`"),
    ("groupRef", "give the servers of a group the same `project`"),
    ("replicas", "set `replicas` in the gateway's Helm chart"),
    (
        "backendReplicas",
        "a server has one instance; only servers of `mcp.json` can have one per session (`\"sharing\": \"session\"`)",
    ),
    ("sessionStorage", "sessions are kept by the gateway"),
    ("rateLimiting", "`maxConcurrency` limits concurrent calls"),
];
/// Fields of ToolHive's spec that are not needed, because Toolwharf has one endpoint for all servers.
const NOT_NEEDED: [&str; 6] = [
    "proxyMode",
    "proxyPort",
    "trustProxyHeaders",
    "endpointPrefix",
    "sessionAffinity",
    "port",
];

/// Converts ToolHive's resources among the objects and drops all others. Also returns warnings about what was not
/// converted.
pub fn convert(objects: Vec<Value>) -> (Vec<Value>, Vec<String>) {
    let mut warnings = Vec::new();
    let mut made = Vec::new();
    let mut rest: Vec<Value> = objects.into_iter().rev().collect();
    while let Some(mut object) = rest.pop() {
        if object.is_null() {
            continue;
        }
        if object["kind"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("List"))
            && let Some(Value::Array(items)) = object.get_mut("items").map(Value::take)
        {
            rest.extend(items.into_iter().rev());
            continue;
        }
        let (kind, version) = (text(&object["kind"]), text(&object["apiVersion"]));
        let name = text(&object["metadata"]["name"]).to_owned();
        let known = ["v1alpha1", "v1beta1"];
        let version_of_theirs = version.strip_prefix(THEIRS);
        if kind != KIND || version_of_theirs.is_none() {
            let kind = match kind {
                "" => "an object without `kind`",
                kind => kind,
            };
            let version = match version {
                "" => "no `apiVersion`",
                version => version,
            };
            warnings.push(format!(
                "{kind} `{name}` ({version}) is left out: only ToolHive's {KIND} is converted"
            ));
            continue;
        }
        let mut one = One {
            name: &name,
            warnings: &mut warnings,
        };
        if version_of_theirs.is_some_and(|version| !known.contains(&version)) {
            one.warn(
                "apiVersion",
                &format!(
                    "this command does not know {version}, only {}: check the result",
                    known.join(" and ")
                ),
            );
        }
        made.push(one.convert(&object));
    }
    let namespaces: BTreeSet<&str> = made
        .iter()
        .map(|one| text(&one["metadata"]["namespace"]))
        .collect();
    if namespaces.len() > 1 {
        let namespaces = Vec::from_iter(namespaces).join("`, `");
        warnings.push(format!(
            "the resources are in several namespaces (`{namespaces}`), but a gateway watches only one, `[kubernetes] watch_namespace`: \
             change `namespace` to that one, and move their Secrets there as well"
        ));
    }
    (made, warnings)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The port at which ToolHive reaches a server.
fn port(theirs: &Value) -> u64 {
    let ports = ["mcpPort", "targetPort", "port", "proxyPort"];
    let port = ports.iter().find_map(|key| theirs[key].as_u64());
    port.unwrap_or(DEFAULT_PORT)
}

struct One<'a> {
    name: &'a str,
    warnings: &'a mut Vec<String>,
}

impl One<'_> {
    fn warn(&mut self, at: &str, why: &str) {
        let name = match self.name {
            "" => "a server without a name",
            name => name,
        };
        self.warnings.push(format!("{name}: `{at}`: {why}"));
    }

    fn convert(&mut self, theirs: &Value) -> Value {
        let mut metadata = Map::new();
        for key in ["name", "namespace", "labels", "annotations"] {
            if let Some(value) = theirs["metadata"].get(key) {
                metadata.insert(key.to_owned(), value.clone());
            }
        }
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove(LAST_APPLIED);
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
        let spec = self.spec(&theirs["spec"]);
        let mut body = spec.clone();
        body.remove(SECRET_ENV);
        body.insert("name".to_owned(), self.name.into());
        if let Err(wrong) = hosting::Entry::read(body.into(), None) {
            for wrong in wrong {
                let at = format!("spec{}", wrong.pointer.replace('/', "."));
                self.warn(&at, &format!("is invalid: {}", wrong.detail));
            }
        }
        json!({"apiVersion": api_version(), "kind": KIND, "metadata": metadata, "spec": spec})
    }

    fn spec(&mut self, theirs: &Value) -> Map<String, Value> {
        let mut spec = Map::new();
        for (key, value) in theirs.as_object().into_iter().flatten() {
            let at = format!("spec.{key}");
            match key.as_str() {
                "image" | "args" => drop(spec.insert(key.clone(), value.clone())),
                "transport" => self.transport(theirs, &mut spec),
                "mcpPort" | "targetPort" => {}
                "env" => self.env(value, &mut spec),
                "secrets" => Self::secrets(value, &mut spec),
                "resources" => self.resources(value, &mut spec),
                "volumes" => self.volumes(value, &mut spec),
                "permissionProfile" => self.permissions(value, &mut spec),
                key if NOT_NEEDED.contains(&key) => {
                    self.warn(
                        &at,
                        "is not needed: all servers share the gateway's address",
                    );
                }
                key => {
                    let known = NOT_CONVERTED.iter().find(|(known, _)| *known == key);
                    let what = known.map_or("Toolwharf has no equivalent", |(_, what)| what);
                    self.warn(&at, &format!("is not converted: {what}"));
                }
            }
        }
        Self::to_api(theirs, &mut spec);
        if theirs.get("permissionProfile").is_none() {
            self.warn("spec.permissionProfile", "without a permission profile, ToolHive gives a server network access, but Toolwharf does not: set `network: open` to allow it");
        }
        spec
    }

    fn transport(&mut self, theirs: &Value, spec: &mut Map<String, Value>) {
        let transport = text(&theirs["transport"]);
        if transport == "stdio" {
            return;
        }
        spec.insert("stdioBridge".to_owned(), false.into());
        spec.insert("ports".to_owned(), json!([port(theirs)]));
        if transport == "sse" {
            spec.insert("path".to_owned(), "/sse".into());
            self.warn(
                "spec.transport",
                "`sse` is an old transport: check that `path` is the server's endpoint",
            );
        }
    }

    fn env(&mut self, theirs: &Value, spec: &mut Map<String, Value>) {
        let mut env = Map::new();
        for one in items(theirs) {
            match &one["value"] {
                Value::String(value) => {
                    drop(env.insert(text(&one["name"]).to_owned(), value.as_str().into()))
                }
                _ => self.warn(
                    &format!("spec.env.{}", text(&one["name"])),
                    "has no literal value and is left out: use `secretEnv`",
                ),
            }
        }
        if !env.is_empty() {
            spec.insert("env".to_owned(), env.into());
        }
    }

    /// Adds the variables with which ToolHive tells a server its transport and port.
    fn to_api(theirs: &Value, spec: &mut Map<String, Value>) {
        let transport = text(&theirs["transport"]);
        if transport.is_empty() {
            return;
        }
        let port = (transport != "stdio").then(|| port(theirs).to_string());
        let env = spec.entry("env").or_insert_with(|| json!({}));
        for (name, value) in [
            ("MCP_TRANSPORT", Some(transport)),
            ("MCP_PORT", port.as_deref()),
            ("FASTMCP_PORT", port.as_deref()),
        ] {
            if let (Some(value), Some(env)) = (value, env.as_object_mut()) {
                env.entry(name).or_insert_with(|| value.into());
            }
        }
    }

    fn secrets(theirs: &Value, spec: &mut Map<String, Value>) {
        let one = |one: &Value| {
            let variable = one["targetEnvName"]
                .as_str()
                .filter(|name| !name.is_empty());
            let variable = variable.unwrap_or(text(&one["key"])).to_owned();
            (
                variable,
                json!({"secretKeyRef": {"name": one["name"], "key": one["key"]}}),
            )
        };
        let secrets: Map<String, Value> = items(theirs).map(one).collect();
        if !secrets.is_empty() {
            spec.insert(SECRET_ENV.to_owned(), secrets.into());
        }
    }

    fn resources(&mut self, theirs: &Value, spec: &mut Map<String, Value>) {
        if theirs.get("requests").is_some() {
            self.warn(
                "spec.resources.requests",
                "is not converted: only `spec.resources.limits` is",
            );
        }
        let limits: Map<String, Value> = ["cpu", "memory"]
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), theirs["limits"].get(key)?.clone())))
            .collect();
        if !limits.is_empty() {
            spec.insert("sandbox".to_owned(), limits.into());
        }
    }

    fn volumes(&mut self, theirs: &Value, spec: &mut Map<String, Value>) {
        let mount = |one: &Value| json!({"host": one["hostPath"], "path": one["mountPath"], "readOnly": one["readOnly"].as_bool().unwrap_or_default()});
        spec.insert("mounts".to_owned(), items(theirs).map(mount).collect());
        self.warn(
            "spec.volumes",
            "host paths become `mounts`, which the setting `[hosting] mounts` must allow and the provider `kubernetes` does not support; \
             use `volumes` for data that the server keeps",
        );
    }

    fn permissions(&mut self, theirs: &Value, spec: &mut Map<String, Value>) {
        match (text(&theirs["type"]), text(&theirs["name"])) {
            ("builtin", "none") => drop(spec.insert("network".to_owned(), "none".into())),
            ("builtin", "network") => drop(spec.insert("network".to_owned(), "open".into())),
            (_, name) => self.warn(
                "spec.permissionProfile",
                &format!("profile `{name}` is not converted: list the hosts that the server may reach, `network: [HOST, …]`"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: Value, ours: Value, warned: &[&str]) {
        let theirs = json!({
            "apiVersion": "toolhive.stacklok.dev/v1alpha1", "kind": "MCPServer",
            "metadata": {"name": "s", "namespace": "n", "uid": "1", "annotations": {LAST_APPLIED: "{}"}}, "spec": spec,
        });
        let (made, warnings) = convert(vec![theirs]);
        let expected = json!({
            "apiVersion": "toolwharf.dev/v1alpha1", "kind": "MCPServer", "metadata": {"name": "s", "namespace": "n"}, "spec": ours,
        });
        assert_eq!(made, [expected]);
        let places: Vec<&str> = warnings
            .iter()
            .filter_map(|warning| warning.split('`').nth(1))
            .collect();
        assert_eq!(places, warned, "{warnings:#?}");
    }

    #[test]
    fn d08_a_server_of_toolhive_becomes_one_of_ours() {
        check(
            json!({
                "image": "ghcr.io/x/fetch:1", "transport": "streamable-http", "mcpPort": 3000, "proxyPort": 8080, "args": ["-v"],
                "env": [{"name": "LOG", "value": "debug"}, {"name": "FROM", "valueFrom": {}}, {"name": "MCP_PORT", "value": "9"}],
                "secrets": [{"name": "github", "key": "token", "targetEnvName": "TOKEN"}, {"name": "other", "key": "KEY"}],
                "resources": {"limits": {"cpu": "100m", "memory": "128Mi"}, "requests": {"cpu": "50m"}},
                "permissionProfile": {"type": "builtin", "name": "network"},
                "podTemplateSpec": {}, "somethingNew": true,
            }),
            json!({
                "image": "ghcr.io/x/fetch:1", "args": ["-v"], "stdioBridge": false, "ports": [3000], "network": "open",
                "env": {"LOG": "debug", "MCP_TRANSPORT": "streamable-http", "MCP_PORT": "9", "FASTMCP_PORT": "3000"}, "sandbox": {"cpu": "100m", "memory": "128Mi"},
                "secretEnv": {
                    "TOKEN": {"secretKeyRef": {"name": "github", "key": "token"}},
                    "KEY": {"secretKeyRef": {"name": "other", "key": "KEY"}},
                },
            }),
            &[
                "spec.proxyPort",
                "spec.env.FROM",
                "spec.resources.requests",
                "spec.podTemplateSpec",
                "spec.somethingNew",
            ],
        );
        check(
            json!({"image": "i", "transport": "stdio", "volumes": [{"name": "v", "hostPath": "/a", "mountPath": "/b", "readOnly": true}],
                "permissionProfile": {"type": "configmap", "name": "own"}}),
            json!({"image": "i", "mounts": [{"host": "/a", "path": "/b", "readOnly": true}], "env": {"MCP_TRANSPORT": "stdio"}}),
            &["spec.volumes", "spec.permissionProfile"],
        );
        check(
            json!({"image": "i"}),
            json!({"image": "i"}),
            &["spec.permissionProfile"],
        );
        check(
            json!({"transport": "sse"}),
            json!({"stdioBridge": false, "ports": [8080], "path": "/sse",
                "env": {"MCP_TRANSPORT": "sse", "MCP_PORT": "8080", "FASTMCP_PORT": "8080"}}),
            &["spec.transport", "spec.permissionProfile", "spec.image"],
        );
    }

    #[test]
    fn d08_resources_of_several_namespaces_are_told() {
        let theirs = |namespace: &str| json!({"apiVersion": "toolhive.stacklok.dev/v1beta1", "kind": "MCPServer", "metadata": {"name": "s", "namespace": namespace}, "spec": {"image": "i", "permissionProfile": {"type": "builtin", "name": "none"}}});
        let warned =
            |namespaces: &[&str]| convert(namespaces.iter().map(|one| theirs(one)).collect()).1;
        assert_eq!(warned(&["a", "a"]), [""; 0]);
        let warnings = warned(&["b", "a", "b"]);
        assert!(warnings[0].contains("(`a`, `b`)"), "{warnings:?}");
    }

    #[test]
    fn d08_other_objects_are_left_out_and_lists_are_taken_apart() {
        let theirs = |version: &str| json!({"apiVersion": format!("toolhive.stacklok.dev/{version}"), "kind": "MCPServer", "metadata": {"name": version}, "spec": {"image": "i", "permissionProfile": {"type": "builtin", "name": "none"}}});
        let list = json!({"kind": "List", "apiVersion": "v1", "items": [theirs("v1alpha1"), {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}]});
        let (made, warnings) = convert(vec![Value::Null, list, theirs("v1beta1"), theirs("v2")]);
        let names: Vec<&str> = made
            .iter()
            .map(|one| text(&one["metadata"]["name"]))
            .collect();
        assert_eq!(names, ["v1alpha1", "v1beta1", "v2"]);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(
            warnings[0].contains("Secret `x`") && warnings[1].contains("does not know"),
            "{warnings:?}"
        );
    }
}
