//! U03: servers started with `npx` and `uvx`, in a sandbox without network. npm and uv use the registries that this
//! machine is configured for; every other request goes to loopback.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{Registry, conformance::node_modules, wait_for, wait_for_some, within};
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

use crate::{
    common::{checks, cli::Said},
    installing::Listed,
    support::{Host, LONG_DEADLINE, Platform, Site, assert_enforced, enforced},
};

/// The URL of a registry at which no process listens.
const NO_REGISTRY: &str = "http://127.0.0.1:9";
const EVERYTHING: &str = "@modelcontextprotocol/server-everything";
const REQUIREMENTS: &str = include_str!("../../../../xtask/deps/requirements.txt");

/// A product that finds uv, and whose npm and uv do not retry requests to a registry.
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

/// Sets the registries of npm and uv. With `None`, this machine's configuration applies.
pub(crate) fn registries(site: &mut Site, npm: Option<&str>, pypi: Option<&str>) {
    site.kept.set_env("npm_config_registry", npm);
    site.kept.set_env("UV_DEFAULT_INDEX", pypi);
}

/// Makes both registries unreachable.
pub(crate) fn no_registries(site: &mut Site) {
    registries(site, Some(NO_REGISTRY), Some(NO_REGISTRY));
}

/// A product that knows only this package registry, or none, with these settings.
pub(crate) async fn site_of(registry: Option<&Registry>, settings: &str) -> Site {
    let mut site = site().await;
    site.kept.settings(&format!(
        "[limits]\nstop_grace = \"2s\"\n[hosting]\nproviders = [\"process\"]\n{settings}"
    ));
    match registry {
        Some(registry) => registries(&mut site, Some(&registry.npm()), Some(&registry.pypi())),
        None => no_registries(&mut site),
    }
    site
}

/// Runs a command of the product's command line on this host. `input` goes to its stdin.
pub(crate) async fn run(
    site: &Site,
    verb: &str,
    args: &[&str],
    input: &str,
    limit: Duration,
) -> Said {
    let mut command = site.kept.command(verb);
    command.args(args).arg("--data-dir").arg(site.kept.data(""));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let what = format!("toolwharf {verb} {args:?}");
    let output = within(&what, limit, child.wait_with_output())
        .await
        .unwrap();
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
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
    host.tools(id).await
}

fn id(told: &Value) -> String {
    told["id"].as_str().unwrap().to_owned()
}

/// Returns the package directories: `npm/KEY/VERSION` and the like.
pub(crate) fn shelved(site: &Site) -> Vec<String> {
    let packages = site.kept.data("packages");
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let registries = ["npm", "pypi"].map(|registry| packages.join(registry));
    let shelves = registries.iter().flat_map(|registry| list(registry));
    let versions = shelves.flat_map(|shelf| list(&shelf));
    let shown = versions.map(|version| {
        let version = version.strip_prefix(&packages).unwrap();
        version.display().to_string()
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
    let in_paris = [python.as_str(), "--local-timezone", "Europe/Paris"];
    let (node, python, again) = tokio::join!(
        host.register(entry("everything", "npx", &["-y", &node])),
        host.register(entry("time", "uvx", &in_paris)),
        host.register(entry("again", "uvx", &["--from", &from, "mcp-server-time"])),
    );
    let of_node = format!("{EVERYTHING} {} of ", everything());
    let of_python = format!("mcp-server-time {} of ", time());
    let servers = [
        (id(&node), &of_node, "get-sum"),
        (id(&python), &of_python, "get_current_time"),
        (id(&again), &of_python, "convert_time"),
    ];
    let have_tools = async |host: &Host| {
        for (id, _, tool) in &servers {
            let tools = tools(host, id).await;
            assert!(tools.iter().any(|name| name == tool), "{tools:?}");
        }
    };
    have_tools(&host).await;
    for (id, package, _) in &servers {
        let told = host.status(id).await;
        let (holds, how) = enforced(&told, "package");
        assert!(holds && how.starts_with(*package), "{how}");
        assert_enforced(&told, "network", true, &[]);
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

    no_registries(&mut site);
    let host = site.start().await;
    have_tools(&host).await;
    checks::lacks(&host.stop().await, &["installed a package"]);
}

#[tokio::test]
async fn u03_what_cannot_be_installed_says_why() {
    let mut site = site().await;
    no_registries(&mut site);
    let host = site.start().await;
    for (name, command, said) in [
        ("node", "npx", "npm says: code E502"),
        ("python", "uvx", "uv says: error: "),
    ] {
        let entry = entry(name, command, &["no-such-server"]);
        let told = host.register(entry).await;
        let told = host.until(&id(&told), "backoff").await.to_string();
        let parts = [
            "`no-such-server` was not installed",
            said,
            "cannot connect to `127.0.0.1:9`: Connection refused",
            "the environment of Toolwharf itself",
        ];
        checks::contains(&told, &parts);
        checks::lacks(&told, &["hunter2"]);
    }
    // These options are refused at once, because waiting would not help.
    for (name, command, option) in [("c", "npx", "-c"), ("index", "uvx", "--index-url")] {
        let entry = entry(name, command, &[option, "hunter2"]);
        let words = host.refused(entry, "/command").await;
        let why = format!("`{option}` is not an option of `{command}`");
        checks::contains(&words, &[&why]);
        checks::lacks(&words, &["hunter2"]);
    }
    host.stop().await;

    let (registry, _serving) = Listed::default().serve().await;
    registries(&mut site, Some(&registry), Some(&registry));
    let host = site.start().await;
    for (command, said) in [
        ("npx", "npm says: code E404; "),
        ("uvx", "uv says: error: No solution found"),
    ] {
        let entry = entry("none", command, &["no-such-server"]);
        let words = host.refused(entry, "/command").await;
        checks::contains(&words, &["`no-such-server` cannot be installed", said]);
    }
    host.stop().await;
    // The `PATH` has neither npm nor uv. The sandbox uses the system's own tools.
    let nothing = site.kept.dir.path().to_owned();
    site.kept.set_env("PATH", nothing.to_str());
    let host = site.start().await;
    let refused = host.refused(entry("missing", "npx", &["x"]), "/command");
    checks::contains(
        &refused.await,
        &["needs `npm`, which is not in Toolwharf's own PATH"],
    );
    host.stop().await;
}

/// A package whose code would run, and create a file, as soon as its environment's Python starts.
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
    // This variable of the user would make uv run the package's Python. It is not passed on.
    site.kept.set_env("UV_COMPILE_BYTECODE", Some("1"));
    let (registry, _serving) = Listed::default().serve().await;
    registries(&mut site, None, Some(&registry));
    let host = site.start().await;
    host.register(entry("bait", "uvx", &["bait"])).await;
    let log = host.stop().await;
    assert!(log.contains("installed a package"), "{log}");
    assert!(!Path::new(&mark).exists(), "the package's code ran");
    // Proof that the bait works: Python executes such files.
    let python = site.kept.data("packages/pypi/bait/1.0/venv/bin/python");
    let started = Command::new(python).args(["-c", ""]).status();
    assert!(started.unwrap().success());
    assert!(Path::new(&mark).exists(), "the bait does not work");
}

/// Returns the process that installs something into this product's data, if any.
fn installer(site: &Site) -> Option<PathBuf> {
    let stage = site.kept.data("packages");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let is_in_stage = |process: &PathBuf| {
        fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&stage))
    };
    entries.map(|entry| entry.path()).find(is_in_stage)
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
    checks::contains(&environ, &["UV_DEFAULT_INDEX="]);
    checks::lacks(&environ, &["hunter2"]);
    host.running.kill().await;
    wait_for("the end of uv", LONG_DEADLINE, async || {
        installer(&site).is_none()
    })
    .await;
    let left = shelved(&site);
    assert_eq!(left.len(), 1, "{left:?}");
    checks::contains(&left[0], &["/.new-"]);

    registries(&mut site, None, None);
    let host = site.start().await;
    let server = id(&host.list().await[0]);
    let tools = tools(&host, &server).await;
    assert_eq!(tools.len(), 2, "{tools:?}");
    checks::lacks(shelved(&site).join(" "), &["/.new-"]);
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
    assert_eq!(self::tools(&host, &server).await, tools);
    host.stop().await;
    checks::contains(&pins, &["--hash=sha256:"]);
    let again = fs::read_to_string(version.join("requirements.txt"));
    assert_eq!(again.unwrap(), pins);
}
