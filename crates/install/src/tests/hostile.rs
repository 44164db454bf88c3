//! Hostile entries: each is refused as a whole, with the place.

use serde_json::{Value, json};

use super::{entry, filled, npm};

/// The place is among the reported ones.
fn refused(entry: &Value, values: Value, place: &str) {
    let wrong = filled(entry, values).expect_err(place);
    let places: Vec<&str> = wrong.iter().map(|wrong| wrong.pointer.as_str()).collect();
    assert!(places.contains(&place), "{place} is not in {wrong:?}");
}

#[test]
fn c07_a_hostile_entry_is_refused_with_the_field_named() {
    let package = |more: Value| entry(npm(more));
    let argument = |argument: Value| package(json!({"packageArguments": [argument]}));
    let option = |option: Value| package(json!({"runtimeArguments": [option]}));
    let of = |kind: &str, more: Value| {
        let mut package = npm(more);
        package["registryType"] = kind.into();
        entry(package)
    };
    let named = |name: &str| {
        let mut entry = package(json!({}));
        entry["name"] = name.into();
        entry
    };
    let deep = (0..40).fold(json!("x"), |inner, _| json!([inner]));
    let table: Vec<(Value, &str)> = vec![
        // Names.
        (named("../../etc/passwd"), "/name"),
        (named("com.example/.."), "/name"),
        (named("com.example/a\nb"), "/name"),
        (named("com.example/\u{202e}rehtaew"), "/name"),
        (named("--help/me"), "/name"),
        // Names that npm, uv or Docker do not read as packages.
        (
            package(json!({"identifier": "--call=touch /tmp/x"})),
            "/packages/0/identifier",
        ),
        (
            package(json!({"identifier": "../evil"})),
            "/packages/0/identifier",
        ),
        (
            package(json!({"identifier": "git+https://evil.example.com/x.git"})),
            "/packages/0/identifier",
        ),
        (
            package(json!({"identifier": "@example/weather@npm:evil"})),
            "/packages/0/identifier",
        ),
        (
            package(json!({"identifier": "evil.tgz"})),
            "/packages/0/identifier",
        ),
        (
            package(json!({"identifier": "weather\u{200b}"})),
            "/packages/0/identifier",
        ),
        (package(json!({"version": "latest"})), "/packages/0/version"),
        (package(json!({"version": "^1.2"})), "/packages/0/version"),
        (package(json!({"version": "1.x"})), "/packages/0/version"),
        (
            package(json!({"version": "1.2.3 --registry=https://evil.example.com"})),
            "/packages/0/version",
        ),
        (
            package(json!({"registryBaseUrl": "https://evil.example.com"})),
            "/packages/0/registryBaseUrl",
        ),
        (
            package(json!({"runtimeHint": "/tmp/evil"})),
            "/packages/0/runtimeHint",
        ),
        (
            package(json!({"runtimeHint": "bash"})),
            "/packages/0/runtimeHint",
        ),
        (
            package(json!({"fileSha256": "00"})),
            "/packages/0/fileSha256",
        ),
        (
            of(
                "pypi",
                json!({"identifier": "weather @ https://evil.example.com"}),
            ),
            "/packages/0/identifier",
        ),
        (
            of("oci", json!({"identifier": "--privileged", "version": "1"})),
            "/packages/0/identifier",
        ),
        (
            of("oci", json!({"identifier": "example/weather:latest"})),
            "/packages/0/identifier",
        ),
        (
            of("oci", json!({"identifier": "example/../weather:1"})),
            "/packages/0/identifier",
        ),
        (
            of("nuget", json!({"identifier": "Example.Weather"})),
            "/packages/0/registryType",
        ),
        (of("cargo", json!({})), "/packages/0/registryType"),
        (
            of("mcpb", json!({"identifier": "https://example.com/a.mcpb"})),
            "/packages/0/fileSha256",
        ),
        (
            of(
                "mcpb",
                json!({"identifier": "file:///etc/passwd", "fileSha256": "a".repeat(64)}),
            ),
            "/packages/0/identifier",
        ),
        // Runtime options.
        (
            option(
                json!({"type": "named", "name": "--registry", "value": "https://evil.example.com"}),
            ),
            "/packages/0/runtimeArguments/0",
        ),
        (
            option(json!({"type": "named", "name": "-c", "value": "touch /tmp/x"})),
            "/packages/0/runtimeArguments/0",
        ),
        (
            option(json!({"type": "positional", "value": "evil"})),
            "/packages/0/runtimeArguments/0",
        ),
        (
            of(
                "pypi",
                json!({"identifier": "weather", "runtimeArguments": [{"type": "named", "name": "--with", "value": "evil"}]}),
            ),
            "/packages/0/runtimeArguments/0",
        ),
        (
            of(
                "oci",
                json!({"identifier": "e/w:1", "runtimeArguments": [{"type": "named", "name": "--privileged"}]}),
            ),
            "/packages/0/runtimeArguments/0",
        ),
        (
            of(
                "oci",
                json!({"identifier": "e/w:1", "runtimeArguments": [{"type": "named", "name": "-v", "value": "/:/host"}]}),
            ),
            "/packages/0/runtimeArguments/0",
        ),
        (
            of(
                "oci",
                json!({"identifier": "e/w:1", "runtimeArguments": [{"type": "named", "name": "--mount", "value": "type=bind,src=/,dst=/host"}]}),
            ),
            "/packages/0/runtimeArguments/0",
        ),
        // Host paths that the sandbox would expose.
        (
            argument(json!({"type": "positional", "value": "/root/.ssh"})),
            "/packages/0/packageArguments/0",
        ),
        (
            argument(json!({"type": "named", "name": "-f", "value": "/etc/shadow"})),
            "/packages/0/packageArguments/0",
        ),
        (
            argument(json!({"type": "named", "name": "port\u{7}", "value": "1"})),
            "/packages/0/packageArguments/0/name",
        ),
        (
            argument(json!({"type": "named", "name": "not an option"})),
            "/packages/0/packageArguments/0/name",
        ),
        (
            argument(json!({"type": "shell", "value": "x"})),
            "/packages/0/packageArguments/0/type",
        ),
        // Variables that change how programs are found or loaded.
        (
            package(
                json!({"environmentVariables": [{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]}),
            ),
            "/packages/0/environmentVariables/0/name",
        ),
        (
            package(
                json!({"environmentVariables": [{"name": "npm_config_registry", "value": "x"}]}),
            ),
            "/packages/0/environmentVariables/0/name",
        ),
        (
            package(json!({"environmentVariables": [{"name": "A=B", "value": "x"}]})),
            "/packages/0/environmentVariables/0/name",
        ),
        (
            package(json!({"transport": {"type": "sse", "url": "http://127.0.0.1:1"}})),
            "/packages/0/transport/type",
        ),
        (
            package(
                json!({"transport": {"type": "streamable-http", "url": "http://evil.example.com:80/mcp"}}),
            ),
            "/packages/transport/url",
        ),
        // Exceeded limits.
        (
            package(json!({"identifier": "a".repeat(5000)})),
            "/packages/0/identifier",
        ),
        (
            package(
                json!({"packageArguments": vec![json!({"type": "positional", "value": "x"}); 100]}),
            ),
            "/packages/0/packageArguments",
        ),
        (
            package(json!({"packageArguments": "x"})),
            "/packages/0/packageArguments",
        ),
    ];
    for (entry, place) in table {
        refused(&entry, json!({}), place);
    }
    let mut nested = package(json!({}));
    nested["icons"] = deep;
    let wrong = filled(&nested, json!({})).unwrap_err();
    assert!(wrong[0].detail.contains("too deeply"), "{wrong:?}");
}

#[test]
fn c07_a_hostile_remote_is_refused_with_the_field_named() {
    for (url, place) in [
        ("http://example.com/mcp", "/remotes/url"),
        ("https://127.0.0.1/mcp", "/remotes/url"),
        ("https://localhost/mcp", "/remotes/url"),
        ("https://169.254.169.254/latest", "/remotes/url"),
        ("https://user:pass@example.com/mcp", "/remotes/url"),
        ("file:///etc/passwd", "/remotes/url"),
    ] {
        let entry = json!({
            "name": "com.example/weather", "version": "1.0.0", "remotes": [{"type": "streamable-http", "url": url}],
        });
        refused(&entry, json!({}), place);
    }
    let with = |headers: Value| {
        json!({
            "name": "com.example/weather", "version": "1.0.0",
            "remotes": [{"type": "streamable-http", "url": "https://{host}.example.com/mcp", "headers": headers,
                "variables": {"host": {"isRequired": true}}}],
        })
    };
    refused(
        &with(json!([])),
        json!({"host": "evil.com/?"}),
        "/values/host",
    );
    refused(
        &with(json!([{"name": "Host", "value": "x"}])),
        json!({"host": "a"}),
        "/remotes/0/headers/0/name",
    );
    refused(
        &with(json!([{"name": "A\r\nB", "value": "x"}])),
        json!({"host": "a"}),
        "/remotes/0/headers/0/name",
    );
}

/// A value is one argument, whatever its contents.
#[test]
fn c07_a_value_cannot_inject_arguments() {
    let entry = entry(npm(json!({"packageArguments": [
        {"type": "positional", "valueHint": "city"},
        {"type": "named", "name": "--unit", "value": "unit={unit}", "variables": {"unit": {"default": "C"}}},
        {"type": "named", "name": "--key"},
        {"type": "named", "name": "-p", "valueHint": "port"},
        {"type": "positional", "valueHint": "kind", "choices": ["now", "week"]},
        {"type": "positional", "valueHint": "days", "format": "number"},
    ]})));
    for (value, place) in [
        (json!({"city": "--call=rm"}), "/values/city"),
        (json!({"city": "Oslo\u{0}"}), "/values/city"),
        (json!({"city": "Oslo\n--evil"}), "/values/city"),
        (json!({"city": "/etc/passwd"}), "/values/city"),
        (json!({"city": "x".repeat(20_000)}), "/values/city"),
        (json!({"city": {"a": 1}}), "/values/city"),
        (json!({"city": ["a", "b"]}), "/values/city"),
        (json!({"port": "-1"}), "/values/p"),
        (json!({"kind": "--now"}), "/values/kind"),
        (json!({"days": "3; rm"}), "/values/days"),
        (json!({"nothing": "x"}), "/values/nothing"),
    ] {
        let value = match value.get("port") {
            Some(port) => json!({"p": port}),
            None => value,
        };
        refused(&entry, value, place);
    }
    let values =
        json!({"city": "New York; touch /tmp/x $(id) `id`", "unit": "F --evil {city}", "p": 80});
    let filled = filled(&entry, values).unwrap();
    assert_eq!(
        filled.entry["args"],
        json!([
            "-y",
            "@example/weather@1.2.3",
            "New York; touch /tmp/x $(id) `id`",
            "--unit=unit=F --evil {city}",
            "-p",
            "80",
        ])
    );
}

/// `mcp.json` expands `${…}` from the gateway's environment. A registry must not be able to use that.
#[test]
fn c07_no_text_of_an_entry_is_a_variable_of_the_gateway() {
    let entry = entry(npm(json!({
        "packageArguments": [{"type": "positional", "value": "x${HOME}${env:AWS_SECRET_ACCESS_KEY}"}, {"type": "positional", "valueHint": "v"}],
        "environmentVariables": [{"name": "A", "value": "$${TOKEN}"}],
    })));
    let filled = filled(&entry, json!({"v": "${HOME}"})).unwrap();
    let text = filled.entry.to_string();
    assert_eq!(text.matches("${").count(), 4, "{text}");
    let name = model::ServerName::parse("x").unwrap();
    let secret = |_: &str| Some("hunter2".to_owned());
    let (spec, _) =
        config::check_entry(std::path::Path::new("/x"), &name, &filled.entry, &secret).unwrap();
    let launch = spec.launch().unwrap();
    assert_eq!(
        launch.program.args()[2..],
        ["x${HOME}${env:AWS_SECRET_ACCESS_KEY}", "${HOME}"]
    );
    assert_eq!(launch.env["A"], "$${TOKEN}");
}
