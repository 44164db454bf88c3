//! Every way in which npm and uv can be made to run code of a package.

use std::process::Command;
use std::thread;

use crate::ground::{Ground, How, files};

/// Older versions of npm have no option against dependencies outside of a registry.
const PLAIN_NPM: &str = "#!/bin/sh\nexec /usr/bin/npm \"$@\"\n";

/// Installs each package and compares the result, a few at a time.
fn check(ground: &Ground, by: &str, how: How<'_>, attacks: &[(&str, &str)]) {
    for some in attacks.chunks(4) {
        thread::scope(|scope| {
            for &(package, expected) in some {
                scope.spawn(move || {
                    let found = ground.install(&format!("{package}-to"), &[by, package], how);
                    assert!(found.contains(expected), "{package}: {found}");
                    let is_error = found.starts_with("error ");
                    assert_eq!(found.contains(&format!("`{package}`")), is_error, "{found}");
                    assert!(!ground.marked(), "{package} ran something outside");
                    let folder = ground.path(&format!("{package}-to/packages"));
                    let ran = files(&folder)
                        .into_iter()
                        .find(|file| file.ends_with("ran"));
                    assert_eq!(ran, None, "{package} ran something");
                    // No incomplete installation is left.
                    let left = files(&folder).len();
                    assert!(!is_error || left <= 3, "{package}: {:?}", files(&folder));
                });
            }
        });
    }
}

const HARMLESS: [(&str, &str); 8] = [
    ("plain", "installed 1.0.0"),
    ("scripts", "installed 1.0.0"),
    ("aliased", "installed 1.0.0"),
    ("npmrc", "installed 1.0.0"),
    ("bundled", "installed 1.0.0"),
    ("gyp", "installed 1.0.0"),
    ("large", "installed 1.0.0"),
    ("unhashed", "error command: `unhashed` cannot be installed"),
];

#[test]
fn u03_npm_runs_nothing_of_a_package() {
    check(&Ground::new(), "npx", How::default(), &HARMLESS);
}

#[test]
fn u03_npm_runs_nothing_of_a_package_as_an_ordinary_user() {
    let how = How {
        rootless: true,
        ..How::default()
    };
    check(&Ground::new(), "npx", how, &HARMLESS[..4]);
    let refused = [("git-http", "error "), ("folder", "error ")];
    check(&Ground::new(), "npx", how, &refused);
}

/// The refused packages, each with the text by which npm or Toolwharf refuses it.
const REFUSED: [(&str, &str); 12] = [
    ("git-http", "EALLOWGIT"),
    ("git-deep", "EALLOWGIT"),
    ("git-file", "EALLOWGIT"),
    ("git-ssh", "EALLOWGIT"),
    ("git-peer", "EALLOWGIT"),
    (
        "tarball",
        "dependency `elsewhere` comes from `http://127.0.0.1:",
    ),
    (
        "tarball-other",
        "which is not among the configured registries",
    ),
    ("folder", "EALLOWDIRECTORY"),
    ("folder-up", "EALLOWDIRECTORY"),
    ("folder-tarball", "EALLOWFILE"),
    ("nested", "error "),
    ("shrinkwrap", "error "),
];

#[test]
fn u03_npm_takes_packages_of_registries_only() {
    check(&Ground::new(), "npx", How::default(), &REFUSED);
}

#[test]
fn u03_a_version_of_npm_without_such_options_runs_nothing_either() {
    let how = How {
        npm: Some(PLAIN_NPM),
        ..How::default()
    };
    // An npm without these options reports other errors.
    let refused = REFUSED.map(|(package, why)| match why.starts_with("EALLOW") {
        true => (package, "error "),
        false => (package, why),
    });
    let ground = Ground::new();
    check(&ground, "npx", how, &[("scripts", "installed 1.0.0")]);
    check(&ground, "npx", how, &refused);
}

/// Shows that the attack is real: without a sandbox, npm runs code of a package like these.
#[test]
fn u03_the_attack_by_a_repository_is_one() {
    let ground = Ground::new();
    let folder = ground.path("alone");
    std::fs::create_dir(&folder).unwrap();
    let output = Command::new("npm")
        .args([
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "git-http",
        ])
        .arg(format!("--registry=http://127.0.0.1:{}/npm/", ground.port))
        .arg(format!("--prefix={}", folder.display()))
        .current_dir(&folder)
        .env("HOME", ground.path("home"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(ground.marked(), "it is no attack: {said}");
}

#[test]
fn u03_uv_runs_nothing_of_a_package() {
    check(
        &Ground::new(),
        "uvx",
        How::default(),
        &[
            ("pyplain", "installed 1.0"),
            ("pth", "installed 1.0"),
            ("setup", "error "),
            ("backend", "error "),
            ("deep", "error "),
            ("direct", "error "),
            ("directother", "error "),
            ("directgit", "error "),
            ("directfile", "error "),
        ],
    );
}
