//! Sandbox settings of entries, and how servers are kept running.

use std::path::PathBuf;

use model::{
    Heartbeat, Mount, Network, Packages, Port, Program, Provider, Reach, RestartPolicy, ServerSpec,
};
use serde_json::json;

use super::{load, load_both, table};

fn spec(entry: &serde_json::Value) -> ServerSpec {
    let mut config = load(&json!({"mcpServers": {"notes": entry}}).to_string());
    config.servers.remove(0)
}

/// Returns the messages about an entry, without their places.
fn said(entry: &serde_json::Value) -> String {
    super::errors(
        "mcp.json",
        &json!({"mcpServers": {"notes": entry}}).to_string(),
    )
}

#[test]
fn a_sandbox_has_the_defaults_of_a_registration() {
    for ours in [
        json!({"command": "c", "sandbox": true}),
        json!({"command": "c", "toolwharf": {"sandbox": true}}),
        json!({"command": "c", "toolwharf": {"sandbox": {}}}),
        json!({"command": "c", "volumes": []}),
    ] {
        let spec = spec(&ours);
        let sandbox = spec.sandbox().expect("it is confined");
        let mut plain = model::Sandbox::new(sandbox.id.clone());
        plain.id.clone_from(&sandbox.id);
        assert_eq!(*sandbox, plain, "{ours}");
        assert_eq!(spec.heartbeat, Some(Heartbeat::default()), "{ours}");
        assert!(sandbox.id.starts_with("notes-"), "{}", sandbox.id);
    }
    for ours in [
        json!({"command": "c"}),
        json!({"command": "c", "sandbox": false}),
    ] {
        let spec = spec(&ours);
        assert_eq!((spec.sandbox(), spec.heartbeat), (None, None), "{ours}");
    }
}

#[test]
fn defaults_apply_to_entries_that_do_not_override_them() {
    let load = |settings: &str, entry: serde_json::Value| {
        let servers = json!({"mcpServers": {"notes": entry}}).to_string();
        load_both(settings, &servers).map(|mut config| config.servers.remove(0))
    };
    let check = |settings: &str, entry: serde_json::Value, expected: (bool, Packages)| {
        let spec = load(settings, entry.clone()).expect("it is usable");
        let launch = spec.launch().expect("it is launched");
        let found = (launch.sandbox().is_some(), launch.packages);
        assert_eq!(found, expected, "{settings} {entry}");
        assert_eq!(spec.heartbeat.is_some(), found.0, "{settings} {entry}");
    };
    let (all, pinned) = (
        "[defaults]\nsandbox = true\n",
        "[defaults]\npackages = \"pinned\"\n",
    );
    check("", json!({"command": "npx"}), (false, Packages::Newest));
    check(all, json!({"command": "npx"}), (true, Packages::Newest));
    let out = json!({"command": "npx", "sandbox": false});
    check(all, out, (false, Packages::Newest));
    let out = json!({"command": "npx", "cwd": "/srv", "toolwharf": {"sandbox": false}});
    check(all, out, (false, Packages::Newest));
    check(pinned, json!({"command": "npx"}), (false, Packages::Pinned));
    let out = json!({"command": "npx", "packages": "newest"});
    check(pinned, out, (false, Packages::Newest));
    let own = json!({"command": "npx", "toolwharf": {"packages": "pinned"}});
    check("", own, (false, Packages::Pinned));
    // The defaults do not apply to a URL.
    assert!(load(all, json!({"url": "https://h/mcp"})).is_ok());
    let errors = load(all, json!({"command": "npx", "cwd": "/srv"})).unwrap_err();
    let parts =
        "`sandbox` of server `notes` | does not support `cwd` | or write `\"sandbox\": false`";
    for part in parts.split(" | ") {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    let unknown = "[defaults]\npackages = \"new\"\n";
    let errors = load(unknown, json!({"command": "npx"})).unwrap_err();
    assert!(errors.contains("one of `newest`, `pinned`"), "{errors}");
}

#[test]
fn all_options_of_a_sandbox_are_read() {
    let spec = spec(&json!({
        "image": "notes:1", "args": ["--quiet"], "env": {"TOKEN": "${TOKEN}"},
        "toolwharf": {
            "sandbox": {"provider": "gvisor", "cpu": "1.5", "memory": "256M", "disk": "2Gi", "pids": 64, "strict": true},
            "volumes": ["/notes"], "mounts": ["/srv/data:/in", {"host": "/srv/out", "path": "/out", "readOnly": false}],
            "network": ["api.example.com:443"], "port": 9000, "path": "/v1/mcp",
            "start": "demand", "restart": "on-failure", "heartbeat": {"intervalMs": 5000, "misses": 2},
        },
    }));
    let launch = spec.launch().expect("it is launched");
    let image = Program::Image {
        image: "notes:1".to_owned(),
        command: vec!["--quiet".to_owned()],
    };
    assert!(launch.program == image);
    assert_eq!(launch.env["TOKEN"], "hunter2");
    assert_eq!(
        launch.reach,
        Reach::Port {
            path: "/v1/mcp".to_owned()
        }
    );
    let sandbox = spec.sandbox().expect("it is confined");
    assert_eq!(sandbox.provider, Some(Provider::Gvisor));
    let limits = &sandbox.limits;
    let numbers = (limits.cpu_millis, limits.memory, limits.disk, limits.pids);
    assert_eq!(numbers, (1500, 256 << 20, 2 << 30, 64));
    assert!(sandbox.strict);
    assert_eq!(
        (&*sandbox.volumes, &*sandbox.ports),
        (
            &["/notes".to_owned()][..],
            &[Port {
                inside: 9000,
                host: None
            }][..]
        )
    );
    let mount = |host: &str, inside: &str, read_only| Mount {
        host: PathBuf::from(host),
        inside: inside.to_owned(),
        read_only,
    };
    assert_eq!(
        sandbox.mounts,
        [
            mount("/srv/data", "/in", true),
            mount("/srv/out", "/out", false)
        ]
    );
    assert_eq!(
        sandbox.network,
        Network::Allow(vec!["api.example.com:443".to_owned()])
    );
    assert_eq!(
        (spec.lazy, spec.restart),
        (Some(true), Some(RestartPolicy::OnFailure))
    );
    let heartbeat = spec.heartbeat.expect("it is asked");
    assert_eq!((heartbeat.interval.as_secs(), heartbeat.misses), (5, 2));
}

#[test]
fn a_port_has_several_shapes() {
    let ports = |entry: &serde_json::Value| spec(entry).sandbox().map(|own| own.ports.clone());
    let (inside, host) = (9000, Some(8080));
    for (shape, host) in [
        (json!(9000), None),
        (json!("9000"), None),
        (json!("8080:9000"), host),
        (json!({"container": 9000}), None),
        (json!({"host": null, "container": 9000}), None),
        (json!({"host": 8080, "container": 9000}), host),
    ] {
        let expected = Some(vec![Port { inside, host }]);
        let one = json!({"image": "i", "toolwharf": {"port": shape}});
        let several = json!({"image": "i", "ports": [shape]});
        assert_eq!(ports(&one), expected, "{one}");
        assert_eq!(ports(&several), expected, "{several}");
    }
    let wrong = json!([
        0, 65536, -1, 1.5, "", ":", "9000:", ":9000", "0:9000", "8080:0", "+80", "1:2:3", "127.0.0.1:1:2",
        {"host": 8080},
        {"host": "8080", "container": 9000},
        {"host": 8080, "container": 9000, "protocol": "udp"},
        [], true
    ]);
    for shape in wrong.as_array().unwrap() {
        let said = said(&json!({"image": "i", "port": shape}));
        assert!(
            said.contains("`port` of server `notes`") && said.contains("1 to 65535"),
            "{shape}: {said}"
        );
    }
}

#[test]
fn a_server_without_a_sandbox_can_have_supervision_options() {
    let spec = spec(
        &json!({"command": "c", "restart": "no", "toolwharf": {"start": "boot", "heartbeat": true}}),
    );
    assert_eq!((spec.sandbox(), spec.lazy), (None, Some(false)));
    assert_eq!(
        (spec.restart, spec.heartbeat),
        (Some(RestartPolicy::No), Some(Heartbeat::default()))
    );
}

#[test]
fn sandbox_names_are_unique_and_valid_for_containers() {
    let name = |name: &str| {
        let config =
            load(&json!({"mcpServers": {name: {"command": "c", "sandbox": true}}}).to_string());
        config.servers[0]
            .sandbox()
            .expect("it is confined")
            .id
            .clone()
    };
    let long = "x".repeat(64);
    let names = ["notes", "Notes", "no tes", "日本", "-", &long].map(name);
    for (at, one) in names.iter().enumerate() {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(one.chars().all(fits) && one.len() <= 60, "{one}");
        assert!(
            one.starts_with(|c: char| c.is_ascii_alphanumeric()),
            "{one}"
        );
        assert!(!names[..at].contains(one), "{one}");
    }
    assert_eq!(name("notes"), names[0]);
}

#[test]
fn invalid_options_are_reported() {
    let rows = r#"
        {"command": "c", "sandbox": {"memory": "1 potato"}} | `sandbox.memory` of server `notes` | `sandbox.memory` must be a size from 8M
        {"command": "npx", "sandbox": true, "packages": "newest"} | `packages` of server `notes` | "pinned" in a sandbox
        {"command": "c", "sandbox": {"cores": 1}} | `sandbox.cores` | known keys are provider, cpu
        {"command": "c", "sandbox": "yes"} | `sandbox` of server `notes` | an object
        {"command": "c", "volumes": ["etc"]} | `volumes.0` | absolute path
        {"command": "c", "mounts": ["/a"]} | `mounts.0` | HOST:PATH
        {"command": "c", "mounts": ["/a:/in", "/b:/in"]} | must not contain `/in` twice | `/in` twice
        {"command": "c", "network": "some"} | `network` | "none", "open"
        {"command": "c", "port": 0} | `port` | 1 to 65535
        {"command": "c", "ports": [1, "1"]} | `ports` of server | a port twice
        {"command": "c", "ports": ["5:1", "5:2"]} | `ports` of server | a port twice
        {"command": "c", "ports": [1, "x"]} | `ports.1` of server | 1 to 65535
        {"command": "c", "port": 1, "ports": [2]} | `port` of server | combined with `ports`
        {"command": "c", "start": "never"} | `start` | "boot" or "demand"
        {"command": "c", "restart": "maybe"} | `restart` | of server `notes`
        {"command": "c", "sandbox": false, "volumes": ["/v"]} | `volumes` | servers in a sandbox
        {"command": "c", "sandbox": {"provider": "gvisor"}} | `sandbox` | run images
        {"image": "i", "sandbox": {"provider": "process"}} | `sandbox` | run images
        {"image": "i", "sandbox": false} | `image` | servers in a sandbox
        {"command": "c", "cwd": "/tmp", "sandbox": true} | `sandbox` | does not support `cwd`
        {"url": "https://h/mcp", "sandbox": true} | `sandbox` | Toolwharf launches
        {"command": "c", "volumes": ["/v"], "toolwharf": {"sharing": "session"}} | `volumes` | several sessions
        {"command": "c", "toolwharf": {"sandboxx": true}} | did you mean `sandbox`? | `sandbox`?
    "#;
    for [entry, what, why] in table(rows) {
        let said = said(&serde_json::from_str(&entry).unwrap());
        assert!(
            said.contains(&what) && said.contains(&why),
            "{entry}: {said}"
        );
    }
}
