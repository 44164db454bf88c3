//! `/openapi.json`: the OpenAPI document, generated from [`routes`].

use crate::schemas::Schemas;
use crate::schemas::reference;
use crate::schemas::to_schema;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    access::{Need, word},
    route::{Answer, Body, Kind, PROJECT, Parameter, Route},
    routes, schemas,
};
use auth::Role;

/// A body with the referenced schema and the example of the same name.
fn media(schema: &Value) -> Value {
    let reference = schema["$ref"].as_str().unwrap_or_default();
    let name = reference.rsplit('/').next().unwrap_or_default();
    json!({"schema": schema, "examples": example(name)})
}

fn texts(kinds: &[(&str, &str)]) -> Map<String, Value> {
    let text = |name| json!({"schema": {"type": "string"}, "examples": example(name)});
    let kinds = kinds.iter();
    kinds
        .map(|(kind, name)| ((*kind).to_owned(), text(name)))
        .collect()
}

fn example(name: &str) -> Value {
    json!({"example": {"$ref": format!("#/components/examples/{name}")}})
}

/// The tags, each with a description.
const TAGS: [(&str, &str); 12] = [
    (
        "servers",
        "MCP servers: from the configuration file, a project or a registration.",
    ),
    (
        "tools",
        "Tools: their settings and names, and the approval of changed definitions.",
    ),
    (
        "registry",
        "Search for servers in registries, and install them.",
    ),
    ("calls", "Records of tool calls."),
    (
        "projects",
        "Each project has its own servers, secrets, products and keys.",
    ),
    (
        "secrets",
        "Values for `${VAR}` in the entries of servers, of the configuration file or of a project. They are write-only.",
    ),
    (
        "products",
        "Sets of servers, installed into a project from a manifest.",
    ),
    (
        "keys",
        "API keys for this API and for MCP, each with a role.",
    ),
    (
        "chat",
        "Chats with an agent that uses the tools, and stored conversations.",
    ),
    ("runs", "Records of agent runs."),
    (
        "clients",
        "MCP clients on the gateway's machine. The gateway connects them with an entry in their configuration files.",
    ),
    ("gateway", "The gateway itself."),
];

/// The complete document.
pub(super) fn document() -> Value {
    let mut schemas = schemas::bodies();
    reference::<api::Problem>(&mut schemas);
    let mut paths: Map<String, Value> = Map::new();
    for route in routes::all() {
        let item = paths.entry(route.path()).or_insert_with(|| json!({}));
        item[route.method().to_ascii_lowercase()] = operation(route, &mut schemas);
    }
    let tags = TAGS.map(|(name, about)| json!({"name": name, "description": about}));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Toolwharf",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Manages the projects, servers, tools, secrets, products, calls and keys of a gateway. \
                            Errors are problem details (RFC 9457).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The gateway that serves this document."}],
        "security": [{"key": []}],
        "tags": tags,
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An administrator's key, or a key of a project. The console uses its session instead: the \
                                    browser's cookie together with the header `Toolwharf-Session`.",
                },
            },
            "schemas": schemas,
            "examples": schemas::examples(),
        },
    })
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "operationId": route.id,
        "tags": [tag(route.path())],
        "summary": route.summary,
        "description": format!("{} {}", route.about, needed_key(route)).trim_start(),
        "responses": responses(route, schemas),
    });
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = route.body {
        let (schema, kinds) = match body {
            Body::Json(schema) => (schema(schemas), routes::JSON),
            Body::Written(name, kinds) => (to_schema(name), kinds),
        };
        let content = kinds
            .iter()
            .map(|kind| ((*kind).to_owned(), media(&schema)));
        let content: Map<String, Value> = content.collect();
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    operation
}

/// The tag of the last noun in the path.
fn tag(path: &str) -> &'static str {
    if path.contains("/registry/") {
        return "registry";
    }
    let noun = path.rsplit('/').find_map(|part| match part {
        "approve" | "changes" => Some("tools"),
        "conversations" => Some("chat"),
        "import" => Some("servers"),
        "master-key" => Some("secrets"),
        _ => TAGS
            .map(|(name, _)| name)
            .into_iter()
            .find(|name| *name == part),
    });
    noun.unwrap_or("gateway")
}

fn needed_key(route: &Route) -> String {
    let role = route.need.role();
    if matches!(route.need, Need::Administrator) || role == Role::Admin {
        return "Needs an administrator's key.".to_owned();
    }
    let of_server = route.path().contains("/servers");
    let project = if of_server {
        "the server's project"
    } else {
        "the project"
    };
    let word = word(role);
    let more = if of_server && role == Role::Manage {
        " Only administrators change commands, images, registered servers and servers of the configuration file."
    } else {
        ""
    };
    format!(
        "Needs a key of {project} with the role `{word}` or higher, or an administrator's key.{more}"
    )
}

fn parameters(route: &Route) -> Vec<Value> {
    let mut all = Vec::new();
    let mut before = "";
    for part in route.path().split('/') {
        let noun = std::mem::replace(&mut before, part);
        let Some(name) = part
            .strip_prefix('{')
            .and_then(|part| part.strip_suffix('}'))
        else {
            continue;
        };
        let schema = match name {
            "project" => api::project_id_value(),
            // Native tool names are unrestricted.
            _ => json!({"type": "string", "minLength": 1}),
        };
        let about = match name {
            "id" => "The server's id, or its name if it is unique".to_owned(),
            "tool" => "The native name of the tool".to_owned(),
            "name" => format!("The {}'s name", noun.trim_end_matches('s')),
            _ => format!("The {name}'s id"),
        };
        all.push(json!({"name": name, "in": "path", "required": true, "description": about, "schema": schema}));
    }
    if let Need::Server(_) | Need::Within(_) = route.need {
        all.push(query(&PROJECT));
    }
    all.extend(route.query.iter().map(query));
    if route.tagged {
        let text = json!({"type": "string"});
        if route.method() == "GET" {
            all.push(
                json!({"name": "If-None-Match", "in": "header", "schema": text,
                "description": "Returns 304 if the configuration still has this tag"}),
            );
        } else {
            all.push(json!({"name": "If-Match", "in": "header", "schema": text,
                "description": "Returns 412 unless the configuration has this tag"}));
        }
    }
    if route.method() == "PUT" && route.creates && route.tagged {
        all.push(json!({"name": "If-None-Match", "in": "header",
            "schema": {"type": "string"}, "description": "With `*`, returns 412 if the resource already exists"}));
    }
    all
}

fn query(parameter: &Parameter) -> Value {
    let schema = match parameter.kind {
        Kind::Text => json!({"type": "string"}),
        Kind::Server => {
            json!({"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[^/\\x00-\\x1f\\x7f-\\x9f]+$"})
        }
        Kind::Number => json!({"type": "integer", "minimum": 1, "maximum": 1000}),
        Kind::Lines => json!({"type": "integer", "minimum": 0}),
        Kind::Boolean => json!({"type": "boolean"}),
        Kind::Time => json!({"type": "string", "format": "date-time"}),
        Kind::Status => api::call_status_value(),
        Kind::Format => json!({"type": "string", "enum": ["adk", "anthropic", "openai"]}),
        Kind::Project => api::project_id_value(),
    };
    json!({"name": parameter.name, "in": "query", "description": parameter.about, "schema": schema})
}

fn responses(route: &Route, schemas: &mut Schemas) -> Value {
    let mut all: BTreeMap<u16, Value> = BTreeMap::new();
    let headers = |answer: &mut Value| {
        if route.tagged && route.method() != "DELETE" {
            answer["headers"] = json!({"ETag": {"schema": {"type": "string"},
                "description": "The tag of the configuration"}});
        }
    };
    let mut good = match route.answer {
        Answer::Maybe(schema) => {
            let schema = schema(schemas);
            let told = json!({"description": "Success, with the file that was changed", "content": {"application/json": media(&schema)}});
            all.insert(200, told);
            json!({"description": "Success"})
        }
        Answer::Nothing => json!({"description": "Success"}),
        Answer::Json(schema) => {
            let schema = schema(schemas);
            json!({"description": "Success", "content": {"application/json": media(&schema)}})
        }
        Answer::Text(kinds) => json!({"description": "Success", "content": texts(kinds)}),
        Answer::JsonOr(schema, kinds) => {
            let mut content = texts(kinds);
            content.insert("application/json".to_owned(), media(&schema(schemas)));
            json!({"description": "Success", "content": content})
        }
    };
    headers(&mut good);
    match (&route.answer, route.creates) {
        (Answer::Nothing | Answer::Maybe(_), _) => {
            all.insert(204, good);
        }
        (_, true) => {
            let mut made = good.clone();
            made["description"] = "Created".into();
            all.insert(201, made);
            if route.method() != "POST" {
                all.insert(200, good);
            }
        }
        (_, false) => {
            all.insert(200, good);
        }
    }
    if route.tagged && route.method() == "GET" {
        all.insert(304, json!({"description": "Not modified"}));
    }
    for (status, when) in refusals(route) {
        all.insert(
            status,
            json!({"description": when, "content": {"application/problem+json":
                {"schema": {"$ref": "#/components/schemas/Problem"}}}}),
        );
    }
    let all: Map<String, Value> = all
        .into_iter()
        .map(|(status, answer)| (status.to_string(), answer))
        .collect();
    all.into()
}

/// The error responses of a route.
fn refusals(route: &Route) -> Vec<(u16, &'static str)> {
    let mut all = vec![
        (400, "The request is invalid"),
        (401, "Missing or invalid key"),
        (403, "The role of the key does not permit this"),
        (500, "Internal error"),
        (
            503,
            "The database or a server is not available; `Retry-After` gives the time until the next attempt",
        ),
    ];
    let asks_project = matches!(route.need, Need::Server(_) | Need::Within(_));
    if asks_project || route.path().contains('{') || !route.query.is_empty() {
        all.push((404, "Not found, or outside the scope of the key"));
    }
    if route.method() != "GET" || route.path().contains("/servers/{id}") {
        all.push((
            409,
            "The resource's state does not permit this, or several servers have the name",
        ));
    }
    if route.method() != "GET" {
        all.push((412, "A precondition of the request failed"));
    }
    if route.path().contains("/login") {
        all.push((502, "The issuer did not return a valid response"));
    }
    if route.path().ends_with("/call") {
        all.push((502, "The server returned an error, which is in `mcp`"));
        all.push((504, "The server did not respond in time"));
    }
    if route.body.is_some() {
        all.push((413, "The body is too large"));
    }
    if route.body.is_some() || (route.need == Need::Administrator && route.method() != "GET") {
        all.push((422, "The body or a name is invalid"));
    }
    if matches!(route.body, Some(Body::Written(_, kinds)) if kinds.len() > 1) {
        all.push((415, "The content type is not supported"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            manifest::{Format, Manifest},
            servers::Entry,
        },
        *,
    };
    use backend::hosting;

    #[test]
    fn each_body_and_each_good_answer_has_an_example_that_fits() {
        let document = document();
        let mut unused = schemas::examples();
        let all = |value: &Value| value.as_object().cloned().unwrap_or_default();
        let operations = all(&document["paths"]);
        for operation in operations.values().flat_map(|item| all(item).into_values()) {
            let mut bodies = all(&operation["responses"]);
            bodies.retain(|status, _| status.starts_with('2'));
            bodies.insert("body".to_owned(), operation["requestBody"].clone());
            for (part, body) in bodies {
                for (kind, content) in all(&body["content"]) {
                    let place = format!("{}, {part}, {kind}", operation["operationId"]);
                    let reference = content["examples"]["example"]["$ref"].as_str();
                    let reference = reference.expect(&place).trim_start_matches('#');
                    let example = &document.pointer(reference).expect(&place)["value"];
                    let mut schema = content["schema"].clone();
                    schema["components"] = document["components"].clone();
                    let options = jsonschema::options().should_validate_formats(true);
                    let validator = options.build(&schema).expect(&place);
                    let wrong = validator
                        .iter_errors(example)
                        .map(|error| error.to_string());
                    assert_eq!(wrong.collect::<Vec<_>>(), [""; 0], "{place}");
                    unused.remove(reference.rsplit('/').next().expect(&place));
                }
            }
        }
        assert!(unused.is_empty(), "{:?}", unused.keys());
    }

    #[test]
    fn examples_of_servers_and_products_are_usable() {
        let examples = schemas::examples();
        let value = |name: &str| examples[name]["value"].clone();
        let project = model::ProjectId::parse("shop").expect("an id");
        let name = model::ServerName::parse("notes").expect("a name");
        let entry = Entry::read(&project, &name, value("ServerEntry"), None);
        assert_eq!(entry.err(), None);
        let registration = hosting::Entry::read(value("Registration"), None);
        assert_eq!(registration.err(), None);
        let manifest = value("ProductManifest").to_string();
        let manifest = Manifest::read(&project, "search", manifest.as_bytes(), Format::Json, None);
        assert!(manifest.is_ok(), "{:?}", manifest.err());
    }
}
