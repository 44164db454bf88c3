//! Inputs of entries, and the use of their values.

use serde_json::{Value, json};

use super::{entry, filled, filled_for, npm, of, plan};
use crate::fill::Place;

#[test]
fn c07_inputs_are_a_schema_and_values_an_entry() {
    let publisher = json!({"io.github.stacklok": {"@example/weather": {
        "permissions": {"network": {"outbound": {"allow_host": [".example.com", "api.test"], "allow_port": [443]}}},
    }}});
    let mut entry = entry(npm(json!({
        "runtimeHint": "npx",
        "runtimeArguments": [{"type": "named", "name": "-y"}],
        "packageArguments": [
            {"type": "positional", "value": "serve"},
            {"type": "named", "name": "--cities", "isRepeated": true, "default": "Oslo"},
            {"type": "named", "name": "--verbose", "format": "boolean"},
            {"type": "positional", "valueHint": "folder", "format": "filepath", "default": "/root", "isRequired": true},
        ],
        "environmentVariables": [
            {"name": "API_KEY", "description": "From the site", "isRequired": true, "isSecret": true},
            {"name": "AUTH", "value": "Bearer {token}", "variables": {"token": {"isSecret": true}}},
            {"name": "UNIT", "choices": ["C", "F"], "default": "C"},
            {"name": "MODE", "value": "fixed"},
            {"name": "NONE", "placeholder": "anything"},
        ],
    })));
    entry["_meta"] = json!({"io.modelcontextprotocol.registry/publisher-provided": publisher});
    let told = plan(&entry).unwrap().to_api();
    assert_eq!(
        told.inputs,
        json!({
            "type": "object",
            "properties": {
                "cities": {"type": "array", "items": {"type": "string"}, "default": ["Oslo"]},
                "verbose": {"type": "boolean"},
                "folder": {"type": "string", "format": "path"},
                "API_KEY": {"type": "string", "format": "password", "writeOnly": true, "description": "From the site"},
                "token": {"type": "string", "format": "password", "writeOnly": true},
                "UNIT": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "NONE": {"type": "string", "examples": ["anything"]},
            },
            "required": ["folder", "API_KEY"],
            "additionalProperties": false,
        })
    );
    let values = json!({
        "cities": ["Oslo", "Rome"], "verbose": true, "folder": "/srv/weather", "API_KEY": "hunter2", "token": "hunter3", "UNIT": "",
    });
    let plan = plan(&entry).unwrap();
    let done = filled_for(
        &plan,
        values.clone(),
        &["folder".to_owned()],
        &Place::Project,
    )
    .unwrap();
    assert_eq!(
        done.entry,
        json!({
            "command": "npx",
            "args": ["-y", "@example/weather@1.2.3", "serve", "--cities=Oslo", "--cities=Rome", "--verbose", "/srv/weather"],
            "env": {"API_KEY": "${WEATHER_API_KEY}", "AUTH": "Bearer ${WEATHER_TOKEN}", "MODE": "fixed"},
            "toolwharf": {
                "sandbox": true,
                "network": ["example.com:443", "*.example.com:443", "api.test:443"],
                "mounts": ["/srv/weather:/srv/weather:rw"],
            },
        })
    );
    assert_eq!(done.secrets["WEATHER_API_KEY"], "hunter2");
    assert!(!done.entry.to_string().contains("hunter"));

    // All missing values are reported at once. A fixed value cannot be edited.
    let wrong = filled_for(&plan, json!({"MODE": "other"}), &[], &Place::Project).unwrap_err();
    let places: Vec<&str> = wrong.iter().map(|wrong| wrong.pointer.as_str()).collect();
    assert_eq!(
        places,
        ["/values/MODE", "/values/folder", "/values/API_KEY"]
    );
    // In mcp.json, secrets are those of the configuration file. A name with another value gets a prefix.
    let current = |name: &str| (name == "API_KEY").then(|| "other".to_owned());
    let done = filled_for(&plan, values, &[], &Place::File(&current)).unwrap();
    assert_eq!(done.entry["env"]["API_KEY"], "${WEATHER_API_KEY}");
    assert_eq!(done.secrets["WEATHER_API_KEY"], "hunter2");
    assert!(
        done.secrets.contains_key("TOKEN"),
        "{:?}",
        done.secrets.keys()
    );
    assert_eq!(plan.already_set(&|name| name == "API_KEY"), ["API_KEY"]);
    let done = filled_for(
        &plan,
        json!({"folder": "/srv/weather"}),
        &[],
        &Place::File(&current),
    )
    .unwrap();
    assert!(done.secrets.is_empty());
    assert_eq!(
        done.entry["env"],
        json!({"API_KEY": "${API_KEY}", "UNIT": "C", "MODE": "fixed"})
    );
    assert_eq!(done.mounts, ["/srv/weather:/srv/weather:ro"]);
}

#[test]
fn c07_packages_of_pypi_images_and_remote_servers() {
    let check = |entry: &Value, values: Value, expected: Value| {
        assert_eq!(filled(entry, values).unwrap().entry, expected);
    };
    let python = json!({
        "identifier": "weather-mcp", "runtimeHint": "uvx", "registryBaseUrl": "https://pypi.org",
        "runtimeArguments": [{"type": "named", "name": "--python", "value": "3.12"}],
    });
    let sandbox = json!({"sandbox": true});
    let args = ["--python", "3.12", "weather-mcp==1.2.3"];
    check(
        &of("pypi", python),
        json!({}),
        json!({"command": "uvx", "args": args, "toolwharf": sandbox}),
    );
    let image = json!({
        "identifier": "docker.io/example/weather", "version": "1.2.3",
        "runtimeArguments": [
            {"type": "named", "name": "--rm"},
            {"type": "named", "name": "-e", "value": "UNIT={unit}", "variables": {"unit": {"choices": ["C", "F"]}}},
            {"type": "named", "name": "--mount", "value": "type=bind,src={from},dst={to}",
                "variables": {"from": {"isRequired": true, "default": "/root"}, "to": {"default": "/data"}}},
        ],
        "packageArguments": [{"type": "positional", "value": "/data"}],
        "transport": {"type": "streamable-http", "url": "http://localhost:{port}/mcp", "variables": {"port": {"default": "8080"}}},
    });
    check(
        &of("oci", image),
        json!({"unit": "F", "from": "/srv/weather"}),
        json!({
            "image": "docker.io/example/weather:1.2.3",
            "args": ["/data"],
            "env": {"UNIT": "F"},
            "toolwharf": {"sandbox": true, "mounts": ["/srv/weather:/data:ro"], "port": 8080, "path": "/mcp"},
        }),
    );
    let remote = json!({
        "name": "com.example/weather", "version": "1.0.0",
        "remotes": [{
            "type": "sse", "url": "https://{region}.example.com/sse",
            "variables": {"region": {"default": "eu", "choices": ["eu", "us"]}},
            "headers": [{"name": "Authorization", "value": "Bearer {key}", "variables": {"key": {"isSecret": true, "isRequired": true}}}],
        }],
    });
    let done = filled(&remote, json!({"key": "hunter2"})).unwrap();
    let expected = json!({
        "type": "sse", "url": "https://eu.example.com/sse", "headers": {"Authorization": "Bearer ${WEATHER_KEY}"},
    });
    assert_eq!(
        (&done.entry, &done.secrets["WEATHER_KEY"]),
        (&expected, &"hunter2".to_owned())
    );
}
