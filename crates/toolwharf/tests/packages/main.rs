//! Packages and the image, each on a machine without Toolwharf and Rust (O01, O03).
//!
//! `cargo xtask test` packs the development build. `TOOLWHARF_TEST_PACKAGES=target/dist` tests the files of a release.

#[path = "../common/mod.rs"]
mod common;
mod container;
mod registry;
mod root;

use std::{fs, path::Path, process::Command};

use common::holds;
use container::Container;
use registry::Registry;
use root::{Root, packages};
use serde_json::json;
use testkit::{DEADLINE, Process, wait_for};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(WORKSPACE).join(path)).expect(path)
}

#[tokio::test]
async fn o01_apt_installs_it_keeps_its_configuration_and_purges_all() {
    let root = Root::new();
    let file = Root::package(&format!("_{}.deb", Root::debian_arch()));
    root.run(&format!(
        "apt-get install --yes --no-install-recommends {file}"
    ))
    .await;
    root.answers(&["toolwharf", "stdio"]).await;
    let modes = root
        .run("stat --format='%a %U:%G' /etc/toolwharf /etc/toolwharf/*")
        .await;
    assert_eq!(
        modes,
        "770 root:toolwharf\n660 root:toolwharf\n640 root:toolwharf\n"
    );
    root.run(
        "for file in man/man1/toolwharf.1.gz man/man1/toolwharf-tools-call.1.gz bash-completion/completions/toolwharf \
             zsh/vendor-completions/_toolwharf fish/vendor_completions.d/toolwharf.fish doc/toolwharf/copyright \
             doc/toolwharf/minilm.copyright toolwharf/minilm.model; do \
             test -s /usr/share/$file; done; test -s /usr/lib/systemd/system/toolwharf.socket; dpkg --verify toolwharf",
    )
    .await;

    // A new version keeps what was changed, and its permissions.
    root.run(&format!(
        "echo '{{\"mcpServers\": {{\"mine\": {{\"command\": \"mine\"}}}}}}' > /etc/toolwharf/mcp.json; \
         chmod 600 /etc/toolwharf/toolwharf.toml; mkdir /var/lib/toolwharf; \
         dpkg --install {file}; grep mine /etc/toolwharf/mcp.json; test $(stat --format=%a /etc/toolwharf/toolwharf.toml) = 600"
    ))
    .await;
    root.run("apt-get purge --yes toolwharf").await;
    assert_eq!(root.remains().await, "");
}

/// Without systemd, nothing restarts the gateway. It keeps using the old program, whose file is deleted.
#[tokio::test]
async fn o01_a_package_upgrade_leaves_a_running_gateway_alone() {
    let root = Root::new();
    let file = Root::package(&format!("_{}.deb", Root::debian_arch()));
    let said = root
        .run(&format!(
            "dpkg --install {file}; toolwharf serve --listen 127.0.0.1:0 & \
             until toolwharf health > /dev/null 2>&1; do sleep 0.1; done; dpkg --install {file}; \
             toolwharf restart one; toolwharf tools call echo '{{\"n\": 1}}'; kill $!; wait $!"
        ))
        .await;
    holds(&said, &["\"n\""]);
}

#[tokio::test]
async fn o01_rpm_installs_it() {
    let root = Root::new();
    let file = Root::package(&format!(".{}.rpm", std::env::consts::ARCH));
    let file = file.replace("/mnt", "$ROOT/mnt");
    // The database of packages is Debian's, so the dependencies are not in it.
    let rpm = "rpm --root $ROOT --force-debian --nodeps";
    root.run_outside(&format!(
        "rpm --root $ROOT --initdb; {rpm} --install {file}"
    ))
    .await;
    root.answers(&["toolwharf", "stdio"]).await;
    let modes = root
        .run("stat --format='%a %U:%G' /etc/toolwharf /etc/toolwharf/*")
        .await;
    assert_eq!(
        modes,
        "770 root:toolwharf\n660 root:toolwharf\n640 root:toolwharf\n"
    );
    let files = root
        .run_outside("rpm --root $ROOT --query --configfiles toolwharf")
        .await;
    assert_eq!(
        files,
        "/etc/toolwharf/mcp.json\n/etc/toolwharf/toolwharf.toml\n"
    );
    let needed = root
        .run_outside(&format!("rpm --query --requires --package {file}"))
        .await;
    holds(&needed, &["glibc >= 2.28"]);
    root.run_outside(&format!("{rpm} --erase toolwharf")).await;
    root.run("! test -e /usr/bin/toolwharf && ! test -e /usr/lib/systemd/system/toolwharf.service")
        .await;
}

#[tokio::test]
async fn o01_npx_runs_it() {
    let root = Root::new();
    let registry = Registry::new(&packages()).await;
    let registry = format!("npm_config_registry={}", registry.url);
    let quiet = "npm_config_update_notifier=false";
    root.answers(&["env", &registry, quiet, "npx", "-y", "toolwharf", "stdio"])
        .await;
    // Installed once, with the exit code of the program.
    let install =
        format!("env {registry} {quiet} npm install --global --no-audit --no-fund toolwharf");
    root.run(&format!(
        "{install}; toolwharf --version; set +e; toolwharf nonsense; test $? = 2 || exit 1; npm uninstall --global toolwharf"
    ))
    .await;
}

#[tokio::test]
async fn o01_uvx_and_pip_run_it() {
    let root = Root::new();
    let file = Root::package(&format!("_{}.whl", std::env::consts::ARCH));
    let uvx = [
        "env",
        "UV_PYTHON_DOWNLOADS=never",
        "uvx",
        "--offline",
        "--from",
    ];
    root.answers(&[&uvx[..], &[file.as_str(), "toolwharf", "stdio"]].concat())
        .await;
    let version = root
        .run(&format!(
            "python3 -m venv /opt/venv; /opt/venv/bin/pip install --quiet --no-index {file}; /opt/venv/bin/toolwharf --version"
        ))
        .await;
    assert_eq!(version, format!("toolwharf {VERSION}\n"));
}

#[tokio::test]
async fn o01_the_archive_contains_a_program_that_runs() {
    let root = Root::new();
    let file = Root::package(&format!("-{}-linux.tar.gz", std::env::consts::ARCH));
    root.run(&format!(
        "mkdir /opt/it; tar -xzf {file} -C /opt/it --strip-components=1"
    ))
    .await;
    root.answers(&["/opt/it/toolwharf", "stdio"]).await;
    root.run("cd /opt/it; test -s LICENSE; test -s man/toolwharf.1.gz; test -s completions/bash; test -s systemd/toolwharf.service")
        .await;
}

#[tokio::test]
async fn o01_the_small_image_serves_without_a_shell_root_or_a_writable_system() {
    let mut server = Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let url = server.url().await;
    // The C library in the image asks a name server for it.
    let url = url.replace("127.0.0.1", "upstream.test");
    let container = Container::run(&json!({ "mcpServers": { "far": { "url": url } } })).await;
    wait_for("the health check to succeed", DEADLINE, async || {
        container.inspect("{{.State.Health.Status}}") == "healthy"
    })
    .await;
    let said = container.exec(&["toolwharf", "tools", "call", "echo", r#"{"n": 1}"#]);
    holds(&said.unwrap_or_else(|why| panic!("{why}")), &["\"n\""]);
    // Kubernetes runs this before it stops a pod.
    container
        .exec(&["toolwharf", "sleep", "0"])
        .expect("a wait");
    container
        .exec(&["sh", "-c", "true"])
        .expect_err("there is no shell");
    assert_eq!(container.inspect("{{.Config.User}}"), "65532:65532");
    let title = r#"{{index .Config.Labels "org.opencontainers.image.title"}}"#;
    assert_eq!(container.inspect(title), "toolwharf");
    let sbom = container.read("/usr/share/doc/toolwharf/sbom.cdx.json");
    holds(
        &sbom,
        &[
            "\"CycloneDX\"",
            "pkg:cargo/rustls@",
            "pkg:deb/debian/libc6@",
        ],
    );
    assert_eq!(container.stop(), "0");
}

#[test]
fn o03_compose_is_valid() {
    let run = |version: Option<&str>| {
        let mut command = Command::new("docker-compose");
        let file = Path::new(WORKSPACE).join("deploy/compose/compose.yaml");
        command.arg("--file").arg(file).arg("config");
        command.env_remove("TOOLWHARF_VERSION");
        command.envs(version.map(|version| ("TOOLWHARF_VERSION", version)));
        let output = command.output();
        output.expect("docker-compose is missing; run: cargo xtask setup")
    };
    let output = run(None);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let image = format!("image: toolwharf:{VERSION}-full");
    holds(
        &said,
        &[
            &image,
            "condition: service_healthy",
            "read_only: true",
            "internal: true",
        ],
    );
    // The gateway and the database are the only services, and only the gateway has a port.
    assert_eq!(said.matches("image: ").count(), 2, "{said}");
    assert_eq!(said.matches("ports:").count(), 1, "{said}");
    let other = run(Some("9.9.9"));
    holds(
        &String::from_utf8_lossy(&other.stdout),
        &["image: toolwharf:9.9.9-full"],
    );
}

#[test]
fn o03_the_chart_and_kustomize_use_the_images_of_this_version() {
    let chart = text("deploy/helm/toolwharf/Chart.yaml");
    holds(
        &chart,
        &[
            &format!("\nversion: {VERSION}\n"),
            &format!("\nappVersion: {VERSION}\n"),
        ],
    );
    let base = text("deploy/kustomize/base/kustomization.yaml");
    holds(
        &base,
        &[&format!("- name: toolwharf\n  newTag: {VERSION}\n")],
    );
    for file in [
        "deploy/helm/toolwharf/templates/deployment.yaml",
        "deploy/kustomize/base/deployment.yaml",
    ] {
        holds(&text(file), &["command: [toolwharf, sleep, \"5\"]"]);
    }
}
