//! U03: servers started with `npx` and `uvx`, in a sandbox without network. npm and uv use the registries that this
//! machine is configured for; every other request goes to loopback.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use testkit::{conformance::node_modules, wait_for, wait_for_some, within};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

use crate::support::{Host, LONG_DEADLINE, Platform, Site, enforced, refusal};

/// No process listens there.
pub(crate) const NO_REGISTRY: &str = "http://127.0.0.1:9";
const EVERYTHING: &str = "@modelcontextprotocol/server-everything";
const REQUIREMENTS: &str = include_str!("../../../../xtask/deps/requirements.txt");

/// A product that finds uv and gives up on a registry at once.
pub(crate) async fn site() -> Site {
    let mut site = Site::new(Platform::Process).await;
    let uv = node_modules().with_file_name("venv").join("bin/uv");
    assert!(
        uv.exists(),
        "{} is missing; run: cargo xtask setup",
        uv.display()
    );
    let path = env::var("PATH").unwrap();
    let path = format!("{path}:{}", uv.parent().unwrap().display());
    site.kept.set_env("PATH", Some(&path));
    site.kept.set_env("npm_config_fetch_retries", Some("0"));
    site.kept.set_env("UV_HTTP_RETRIES", Some("0"));
    site
}

pub(crate) fn registries(site: &mut Site, npm: Option<&str>, pypi: Option<&str>) {
    site.kept.set_env("npm_config_registry", npm);
    site.kept.set_env("UV_DEFAULT_INDEX", pypi);
}

fn entry(name: &str, command: &str, args: &[&str]) -> Value {
    json!({
        "name": name,
        "command": command,
        "args": args,
        "environment": {"API_KEY": "hunter2"},
        "resource_limits": {"cpu": 2, "memory": "1G"},
        "start_timeout_ms": 80_000,
    })
}

/// A registry without packages.
async fn empty_registry() -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 8192];
            let _ = stream.read(&mut head).await;
            let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (url, serving)
}

/// The version of server-everything that other tests use.
fn everything() -> String {
    let manifest = node_modules().join(EVERYTHING).join("package.json");
    let manifest = fs::read(&manifest).unwrap_or_else(|why| {
        panic!("{}: {why}; run: cargo xtask setup", manifest.display());
    });
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    manifest["version"].as_str().unwrap().to_owned()
}

/// The version of mcp-server-time that other tests use.
fn time() -> &'static str {
    let mut lines = REQUIREMENTS.lines();
    lines
        .find_map(|line| line.strip_prefix("mcp-server-time=="))
        .unwrap()
}

/// Waits until the server runs. Returns its tool names.
async fn tools(host: &Host, id: &str) -> Vec<String> {
    host.until(id, "running").await;
    let reply = host
        .request(id, json!({"method": "tools/list"}))
        .await
        .unwrap();
    let answer: Value = serde_json::from_str(&reply.text()).unwrap();
    let tools = answer["result"]["tools"].as_array();
    let tools = tools.unwrap_or_else(|| panic!("no tools: {answer}"));
    tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect()
}

fn id(told: &Value) -> String {
    told["id"].as_str().unwrap().to_owned()
}

/// Returns the package directories: `npm/KEY/VERSION` and the like.
pub(crate) fn shelved(site: &Site) -> Vec<String> {
    let packages = site.kept.data("packages");
    let list = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .collect()
    };
    let registries = ["npm", "pypi"].map(|registry| packages.join(registry));
    let shelves = registries.iter().flat_map(|registry| list(registry));
    let versions = shelves.flat_map(|shelf| list(&shelf));
    let shown = versions.map(|version| {
        version
            .strip_prefix(&packages)
            .unwrap()
            .display()
            .to_string()
    });
    let mut shown: Vec<_> = shown.collect();
    shown.sort();
    shown
}

#[tokio::test]
async fn u03_packages_are_installed_once_and_start_without_a_registry() {
    let mut site = site().await;
    let host = site.start().await;
    let node = format!("{EVERYTHING}@{}", everything());
    let python = format!("mcp-server-time@{}", time());
    let from = format!("mcp-server-time=={}", time());
    let (node, python, again) = tokio::join!(
        host.register(entry("everything", "npx", &["-y", &node])),
        host.register(entry(
            "time",
            "uvx",
            &[&python, "--local-timezone", "Europe/Paris"]
        )),
        host.register(entry("again", "uvx", &["--from", &from, "mcp-server-time"])),
    );
    let servers = [
        (id(&node), EVERYTHING, everything(), "get-sum"),
        (
            id(&python),
            "mcp-server-time",
            time().to_owned(),
            "get_current_time",
        ),
        (
            id(&again),
            "mcp-server-time",
            time().to_owned(),
            "convert_time",
        ),
    ];
    for (id, package, version, tool) in &servers {
        let tools = tools(&host, id).await;
        assert!(tools.iter().any(|name| name == tool), "{tools:?}");
        let told = host.status(id).await;
        let (holds, how) = enforced(&told, "package");
        assert!(
            holds && how.starts_with(&format!("{package} {version} of ")),
            "{how}"
        );
        assert!(enforced(&told, "network").0, "{told:#}");
    }
    let shelves = shelved(&site);
    let log = host.stop().await;
    assert_eq!(log.matches("installed a package").count(), 2, "{log}");
    let node = format!("npm/{}@{}", EVERYTHING.replace('/', "%2F"), everything());
    let python = format!("pypi/mcp-server-time=={}", time());
    let expected = [
        format!("{node}/{}", everything()),
        format!("{node}/current"),
        format!("{python}/{}", time()),
        format!("{python}/current"),
    ];
    assert_eq!(shelves, expected);

    registries(&mut site, Some(NO_REGISTRY), Some(NO_REGISTRY));
    let host = site.start().await;
    for (id, _, _, tool) in &servers {
        let tools = tools(&host, id).await;
        assert!(tools.iter().any(|name| name == tool), "{tools:?}");
    }
    let log = host.stop().await;
    assert!(!log.contains("installed a package"), "{log}");
}

#[tokio::test]
async fn u03_what_cannot_be_installed_says_why() {
    let mut site = site().await;
    registries(&mut site, Some(NO_REGISTRY), Some(NO_REGISTRY));
    let host = site.start().await;
    for (name, command, said) in [
        ("node", "npx", "npm says: code E502"),
        ("python", "uvx", "uv says: error: "),
    ] {
        let told = host
            .register(entry(name, command, &["no-such-server"]))
            .await;
        let told = host.until(&id(&told), "backoff").await;
        let told = told.to_string();
        for part in [
            "`no-such-server` was not installed",
            said,
            "cannot connect to `127.0.0.1:9`: Connection refused",
            "the environment of Toolwharf itself",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("hunter2"), "{told}");
    }
    // These options are refused at once, because waiting would not help.
    for (name, command, option) in [("c", "npx", "-c"), ("index", "uvx", "--index-url")] {
        let refused = host
            .ask("POST", "", entry(name, command, &[option, "hunter2"]))
            .await;
        assert_eq!(refusal(&refused), (422, vec!["/command".to_owned()]));
        let words = refused.text();
        assert!(
            words.contains(&format!("`{option}` is not an option of `{command}`")),
            "{words}"
        );
        assert!(!words.contains("hunter2"), "{words}");
    }
    host.stop().await;

    let (registry, _serving) = empty_registry().await;
    registries(&mut site, Some(&registry), Some(&registry));
    let host = site.start().await;
    for (command, said) in [
        ("npx", "npm says: code E404; "),
        ("uvx", "uv says: error: No solution found"),
    ] {
        let refused = host
            .ask("POST", "", entry("none", command, &["no-such-server"]))
            .await;
        assert_eq!(
            refusal(&refused),
            (422, vec!["/command".to_owned()]),
            "{}",
            refused.text()
        );
        let words = refused.text();
        assert!(
            words.contains("`no-such-server` cannot be installed") && words.contains(said),
            "{words}"
        );
    }
    host.stop().await;
    // Without npm and uv. The sandbox uses the system's own tools.
    let nothing = site.kept.dir.path().to_owned();
    site.kept.set_env("PATH", nothing.to_str());
    let host = site.start().await;
    let refused = host.ask("POST", "", entry("missing", "npx", &["x"])).await;
    assert_eq!(refusal(&refused), (422, vec!["/command".to_owned()]));
    assert!(
        refused
            .text()
            .contains("needs `npm`, which is not in the PATH"),
        "{}",
        refused.text()
    );
    host.stop().await;
}

/// A package whose code would run as soon as its environment's Python starts, and create a file.
const BAIT: &str = r#"
import sys, zipfile
folder, mark = sys.argv[1:]
with zipfile.ZipFile(f"{folder}/bait-1.0-py3-none-any.whl", "w") as wheel:
    info = "bait-1.0.dist-info"
    wheel.writestr("bait.py", "def main(): pass")
    wheel.writestr("bait.pth", f"import pathlib; pathlib.Path({mark!r}).touch()")
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: bait\nVersion: 1.0\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nbait = bait:main\n")
    wheel.writestr(f"{info}/RECORD", "\n".join(f"{name},," for name in wheel.namelist() + [f"{info}/RECORD"]))
"#;

#[tokio::test]
async fn u03_no_code_of_a_package_runs_outside_of_the_sandbox() {
    let mut site = site().await;
    let folder = site.kept.dir.path().to_str().unwrap().to_owned();
    let mark = format!("{folder}/mark");
    let made = Command::new("/usr/bin/python3")
        .args(["-c", BAIT, &folder, &mark])
        .status()
        .unwrap();
    assert!(made.success());
    site.kept.set_env("UV_FIND_LINKS", Some(&folder));
    // The user's settings do not weaken this.
    site.kept.set_env("UV_COMPILE_BYTECODE", Some("1"));
    let (registry, _serving) = empty_registry().await;
    registries(&mut site, None, Some(&registry));
    let host = site.start().await;
    host.register(entry("bait", "uvx", &["bait"])).await;
    let log = host.stop().await;
    assert!(log.contains("installed a package"), "{log}");
    assert!(!Path::new(&mark).exists(), "its code ran");
    // Proof that the bait works: Python executes such files.
    let python = site.kept.data("packages/pypi/bait/1.0/venv/bin/python");
    assert!(
        Command::new(python)
            .args(["-c", ""])
            .status()
            .unwrap()
            .success()
    );
    assert!(Path::new(&mark).exists(), "the bait does not work");
}

/// Returns the process that installs something into this product's data, if any.
fn installer(site: &Site) -> Option<PathBuf> {
    let stage = site.kept.data("packages");
    let entries = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let mut stages = entries.filter(|process| {
        fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&stage))
    });
    stages.next()
}

#[tokio::test]
async fn u03_an_installation_that_a_crash_cut_off_leaves_nothing_half_made() {
    let mut site = site().await;
    // A registry that accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    registries(&mut site, Some(&url), Some(&url));
    let host = site.start().await;
    let package = format!("mcp-server-time@{}", time());
    let registering = host.register(entry("time", "uvx", &[&package]));
    let asked = within("a request to the registry", LONG_DEADLINE, silent.accept());
    let _connection = tokio::select! {
        told = registering => panic!("it responded before the registry was asked: {told}"),
        connection = asked => connection.unwrap(),
    };
    let process = wait_for_some("uv at work", LONG_DEADLINE, async || installer(&site)).await;
    let environ = fs::read(process.join("environ")).unwrap();
    let environ = String::from_utf8_lossy(&environ);
    assert!(
        environ.contains("UV_DEFAULT_INDEX=") && !environ.contains("hunter2"),
        "{environ}"
    );
    let Host { running, .. } = host;
    running.kill().await;
    wait_for("the end of uv", LONG_DEADLINE, async || {
        installer(&site).is_none()
    })
    .await;
    let left = shelved(&site);
    assert!(
        left.iter().any(|entry| entry.contains("/.new-")) && left.len() == 1,
        "{left:?}"
    );

    registries(&mut site, None, None);
    let host = site.start().await;
    let all = host.ok("GET", "", Value::Null).await;
    let tools = tools(&host, &id(&all["servers"][0])).await;
    assert_eq!(tools.len(), 2, "{tools:?}");
    assert!(
        !shelved(&site).iter().any(|entry| entry.contains("/.new-")),
        "{:?}",
        shelved(&site)
    );
    host.stop().await;

    // The interpreter is gone, as after a system upgrade: the package is installed again with the same pinned versions.
    let version = site
        .kept
        .data("packages/pypi")
        .join(format!("mcp-server-time=={}", time()))
        .join(time());
    let pins = fs::read_to_string(version.join("requirements.txt")).unwrap();
    fs::remove_file(version.join("python")).unwrap();
    let host = site.start().await;
    assert_eq!(self::tools(&host, &id(&all["servers"][0])).await, tools);
    host.stop().await;
    assert!(pins.contains("--hash=sha256:"), "{pins}");
    assert_eq!(
        fs::read_to_string(version.join("requirements.txt")).unwrap(),
        pins
    );
}
