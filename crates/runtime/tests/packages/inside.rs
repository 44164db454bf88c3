//! Checks what npm and uv find in their installation sandbox.

use std::fs;
use std::path::Path;

use crate::ground::{Ground, How, files};

/// Replaces npm: runs npm, then stores in the package what it can see and reach in the sandbox.
const PROBE: &str = r#"#!/bin/sh
/usr/bin/npm "$@" || exit 1
[ "$1" = ci ] || exit 0
{
  echo "user $(id -u)"
  grep -E '^(Cap...|NoNewPrivs|Seccomp):' /proc/self/status | tr '\t' ' '
  echo "git $(command -v git)"
  for git in /usr/bin/git /usr/local/bin/git /usr/lib/git-core/git; do
    if "$git" --version; then echo "runs $git"; fi
  done
  for file in @HOME@/.npmrc @HOME@/secret @HOME@ /etc/shadow @OUTSIDE@/registry; do
    if [ -e "$file" ]; then echo "sees $file"; fi
  done
  for folder in /usr /etc / "$(dirname "$PWD")/.." "$(dirname "$0")" @HOME@; do
    mkdir -p "$folder"; touch "$folder/written"
  done
  echo "processes $(ls -d /proc/[0-9]* | wc -l)"
  node -e '
    const net = require("net"), http = require("http"), proxy = new URL(process.env.HTTP_PROXY);
    for (const port of [@OTHER@, @REGISTRY@]) {
      net.connect(port, "127.0.0.1").on("connect", () => console.log("direct", port)).on("error", () => {});
      const path = `http://127.0.0.1:${port}/npm/plain`;
      http.get({host: proxy.hostname, port: proxy.port, path}, (answer) => console.log("proxied", port, answer.statusCode));
    }
    http.get({host: proxy.hostname, port: proxy.port, path: "http://example.com/"}, (answer) => console.log("away", answer.statusCode));
  '
} > node_modules/.probe 2> /dev/null
"#;

fn probe(ground: &Ground, rootless: bool) -> Vec<String> {
    let text = |path: &str| ground.path(path).display().to_string();
    let other = ground.other.local_addr().unwrap().port();
    let script = PROBE
        .replace("@HOME@", &text("home"))
        .replace("@OUTSIDE@", &text(""))
        .replace("@OTHER@", &other.to_string())
        .replace("@REGISTRY@", &ground.port.to_string());
    let how = How {
        rootless,
        npm: Some(&script),
        ..How::default()
    };
    let found = ground.install("probe", &["npx", "plain"], how);
    assert_eq!(found, "installed 1.0.0");
    let found = ground.path("probe/packages/npm/plain/1.0.0/node_modules/.probe");
    let found = fs::read_to_string(found).unwrap();
    let written = files(&ground.path("")).into_iter();
    let written: Vec<_> = written.filter(|file| file.ends_with("written")).collect();
    assert!(written.is_empty(), "{written:?}");
    for system in ["/written", "/usr/written", "/etc/written"] {
        assert!(!Path::new(system).exists(), "{system}");
    }
    let mut found: Vec<_> = found.lines().map(str::to_owned).collect();
    found.sort();
    found
}

fn check(rootless: bool) {
    let ground = Ground::new();
    let mut found = probe(&ground, rootless);
    let user = found.iter().position(|line| line.starts_with("user "));
    let user = found.remove(user.unwrap());
    let user: u32 = user.trim_start_matches("user ").parse().unwrap();
    assert!(rootless || user >= 1_900_000_000, "{user}");
    let processes = found.iter().position(|line| line.starts_with("processes "));
    let processes = found.remove(processes.unwrap());
    let processes: u32 = processes.trim_start_matches("processes ").parse().unwrap();
    assert!(processes < 10, "{processes}");
    let other = ground.other.local_addr().unwrap().port();
    let mut expected = vec![
        "CapAmb: 0000000000000000".to_owned(),
        "CapBnd: 0000000000000000".to_owned(),
        "CapEff: 0000000000000000".to_owned(),
        "CapInh: 0000000000000000".to_owned(),
        "CapPrm: 0000000000000000".to_owned(),
        "NoNewPrivs: 1".to_owned(),
        "Seccomp: 2".to_owned(),
        "away 403".to_owned(),
        "git ".to_owned(),
        format!("proxied {other} 403"),
        format!("proxied {} 200", ground.port),
    ];
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn u03_an_installer_has_no_git_no_home_and_no_way_out() {
    check(false);
}

#[test]
fn u03_an_installer_of_an_ordinary_user_has_none_either() {
    check(true);
}

/// A registry that is reachable only through a proxy, as in a company network.
#[test]
fn u03_installations_go_through_the_proxies_that_are_configured() {
    let ground = Ground::new();
    let proxy = format!("http://127.0.0.1:{}", ground.port);
    let npm = ("npm_config_registry", "http://registry.invalid/npm/");
    let pypi = ("UV_DEFAULT_INDEX", "http://registry.invalid/simple");
    for (by, package, proxied, registry) in [
        ("npx", "plain", "HTTP_PROXY", npm),
        ("npx", "scripts", "npm_config_proxy", npm),
        ("uvx", "pyplain", "http_proxy", pypi),
    ] {
        let how = How {
            env: &[(proxied, &proxy), registry],
            ..How::default()
        };
        let found = ground.install(package, &[by, package], how);
        assert!(found.starts_with("installed 1.0"), "{proxied}: {found}");
    }
    let how = How {
        env: &[("HTTP_PROXY", "socks5://me:hunter2@127.0.0.1:1")],
        ..How::default()
    };
    let found = ground.install("socks", &["npx", "plain"], how);
    assert!(
        found.contains("`socks5://127.0.0.1:1` is not of the form http://host:port"),
        "{found}"
    );
}

#[test]
fn u03_uv_gets_pythons_from_their_configured_source() {
    let ground = Ground::new();
    let mirror = format!("http://127.0.0.1:{}/pythons", ground.port);
    let how = How {
        env: &[
            ("UV_PYTHON_DOWNLOADS", "automatic"),
            ("UV_PYTHON_INSTALL_MIRROR", &mirror),
        ],
        ..How::default()
    };
    let line = ["uvx", "--python", "3.14", "pyplain"];
    let found = ground.install("mirror", &line, how);
    assert!(
        found.starts_with("error ") && found.contains(&mirror),
        "{found}"
    );
}

/// A published package belongs to the user of this process, and contains no copy of a configuration file.
#[test]
fn u03_an_installed_package_has_nothing_of_the_installer() {
    use std::os::unix::fs::MetadataExt as _;
    let ground = Ground::new();
    for (by, package, version) in [("npx", "plain", "1.0.0"), ("uvx", "pyplain", "1.0")] {
        let found = ground.install(package, &[by, package], How::default());
        assert_eq!(found, format!("installed {version}"));
        let registry = if by == "npx" { "npm" } else { "pypi" };
        let folder = ground.path(&format!(
            "{package}/packages/{registry}/{package}/{version}"
        ));
        let all = files(&folder);
        assert!(all.len() > 2, "{all:?}");
        for file in all {
            let about = file.symlink_metadata().unwrap();
            assert_eq!(
                (about.uid(), about.mode() & 0o7000),
                (0, 0),
                "{}",
                file.display()
            );
            let text = fs::read(&file).unwrap_or_default();
            assert!(
                !String::from_utf8_lossy(&text).contains("hunter2"),
                "{}",
                file.display()
            );
        }
    }
}
