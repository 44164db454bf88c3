//! Hostile entries: each is refused as a whole, with the place.

use serde_json::{Value, json};

use super::{entry, filled, npm, of};

/// Checks that an entry is refused, and that `place` is among the reported places.
fn refused(entry: &Value, values: Value, place: &str) {
    let wrong = filled(entry, values).expect_err(place);
    let places: Vec<&str> = wrong.iter().map(|wrong| wrong.pointer.as_str()).collect();
    assert!(places.contains(&place), "{place} is not in {wrong:?}");
}

#[test]
fn c07_a_hostile_entry_is_refused_with_the_field_named() {
    let package = |more: Value| entry(npm(more));
    // Each row: the kind of input (a name, an option, an argument, an npm package, or a package of another type), the
    // place and the text.
    let table = r##"
        # Names.
        name /name "../../etc/passwd"
        name /name "com.example/.."
        name /name "com.example/a\nb"
        name /name "com.example/\u202erehtaew"
        name /name "--help/me"
        # Names that npm, uv or Docker do not read as packages.
        package /packages/0/identifier {"identifier": "--call=touch /tmp/x"}
        package /packages/0/identifier {"identifier": "../evil"}
        package /packages/0/identifier {"identifier": "git+https://evil.example.com/x.git"}
        package /packages/0/identifier {"identifier": "@example/weather@npm:evil"}
        package /packages/0/identifier {"identifier": "evil.tgz"}
        package /packages/0/identifier {"identifier": "weather\u200b"}
        package /packages/0/version {"version": "latest"}
        package /packages/0/version {"version": "^1.2"}
        package /packages/0/version {"version": "1.x"}
        package /packages/0/version {"version": "1.2.3 --registry=https://evil.example.com"}
        package /packages/0/registryBaseUrl {"registryBaseUrl": "https://evil.example.com"}
        package /packages/0/runtimeHint {"runtimeHint": "/tmp/evil"}
        package /packages/0/runtimeHint {"runtimeHint": "bash"}
        package /packages/0/fileSha256 {"fileSha256": "00"}
        pypi /packages/0/identifier {"identifier": "weather @ https://evil.example.com"}
        oci /packages/0/identifier {"identifier": "--privileged", "version": "1"}
        oci /packages/0/identifier {"identifier": "example/weather:latest"}
        oci /packages/0/identifier {"identifier": "example/../weather:1"}
        nuget /packages/0/registryType {"identifier": "Example.Weather"}
        cargo /packages/0/registryType {}
        mcpb /packages/0/fileSha256 {"identifier": "https://example.com/a.mcpb"}
        # Runtime options.
        option /packages/0/runtimeArguments/0 {"type": "named", "name": "--registry", "value": "https://evil.example.com"}
        option /packages/0/runtimeArguments/0 {"type": "named", "name": "-c", "value": "touch /tmp/x"}
        option /packages/0/runtimeArguments/0 {"type": "positional", "value": "evil"}
        pypi /packages/0/runtimeArguments/0 {"identifier": "weather", "runtimeArguments": [{"type": "named", "name": "--with", "value": "evil"}]}
        oci /packages/0/runtimeArguments/0 {"identifier": "e/w:1", "runtimeArguments": [{"type": "named", "name": "--privileged"}]}
        oci /packages/0/runtimeArguments/0 {"identifier": "e/w:1", "runtimeArguments": [{"type": "named", "name": "-v", "value": "/:/host"}]}
        oci /packages/0/runtimeArguments/0 {"identifier": "e/w:1", "runtimeArguments": [{"type": "named", "name": "--mount", "value": "type=bind,src=/,dst=/host"}]}
        # Host paths that the sandbox would expose.
        argument /packages/0/packageArguments/0 {"type": "positional", "value": "/root/.ssh"}
        argument /packages/0/packageArguments/0 {"type": "named", "name": "-f", "value": "/etc/shadow"}
        argument /packages/0/packageArguments/0/name {"type": "named", "name": "port\u0007", "value": "1"}
        argument /packages/0/packageArguments/0/name {"type": "named", "name": "not an option"}
        argument /packages/0/packageArguments/0/type {"type": "shell", "value": "x"}
        # Variables that change how programs are found or loaded.
        package /packages/0/environmentVariables/0/name {"environmentVariables": [{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]}
        package /packages/0/environmentVariables/0/name {"environmentVariables": [{"name": "npm_config_registry", "value": "x"}]}
        package /packages/0/environmentVariables/0/name {"environmentVariables": [{"name": "A=B", "value": "x"}]}
        package /packages/0/transport/type {"transport": {"type": "sse", "url": "http://127.0.0.1:1"}}
        package /packages/transport/url {"transport": {"type": "streamable-http", "url": "http://evil.example.com:80/mcp"}}
        # Exceeded limits.
        package /packages/0/packageArguments {"packageArguments": "x"}
    "##;
    let rows = table.lines().map(str::trim);
    for row in rows.filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let mut words = row.splitn(3, ' ');
        let mut word = || words.next().expect(row);
        let (kind, place) = (word(), word());
        let wrong: Value = serde_json::from_str(word()).expect(row);
        let entry = match kind {
            "name" => {
                let mut entry = package(json!({}));
                entry["name"] = wrong;
                entry
            }
            "option" => package(json!({"runtimeArguments": [wrong]})),
            "argument" => package(json!({"packageArguments": [wrong]})),
            "package" => package(wrong),
            kind => of(kind, wrong),
        };
        refused(&entry, json!({}), place);
    }
    let deep = (0..40).fold(json!("x"), |inner, _| json!([inner]));
    // Each of these entries exceeds a limit.
    let file = json!({"identifier": "file:///etc/passwd", "fileSha256": "a".repeat(64)});
    let long = json!({"identifier": "a".repeat(5000)});
    let many = vec![json!({"type": "positional", "value": "x"}); 100];
    let many = json!({"packageArguments": many});
    for (entry, place) in [
        (of("mcpb", file), "/packages/0/identifier"),
        (package(long), "/packages/0/identifier"),
        (package(many), "/packages/0/packageArguments"),
    ] {
        refused(&entry, json!({}), place);
    }
    let mut nested = package(json!({}));
    nested["icons"] = deep;
    let wrong = filled(&nested, json!({})).unwrap_err();
    assert!(wrong[0].detail.contains("more than 24 levels"), "{wrong:?}");
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
    let evil = json!({"host": "evil.com/?"});
    refused(&with(json!([])), evil, "/values/host");
    for name in ["Host", "A\r\nB"] {
        let entry = with(json!([{"name": name, "value": "x"}]));
        refused(&entry, json!({"host": "a"}), "/remotes/0/headers/0/name");
    }
}

/// A value is always one argument, whatever it contains.
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
        (json!({"p": "-1"}), "/values/p"),
        (json!({"kind": "--now"}), "/values/kind"),
        (json!({"days": "3; rm"}), "/values/days"),
        (json!({"nothing": "x"}), "/values/nothing"),
    ] {
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
    let (spec, _) = config::check_entry(
        std::path::Path::new("/x"),
        &name,
        &filled.entry,
        &secret,
        &Default::default(),
    )
    .unwrap();
    let launch = spec.launch().unwrap();
    assert_eq!(
        launch.program.args()[2..],
        ["x${HOME}${env:AWS_SECRET_ACCESS_KEY}", "${HOME}"]
    );
    assert_eq!(launch.env["A"], "$${TOKEN}");
}
