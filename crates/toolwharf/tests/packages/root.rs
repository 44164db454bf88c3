//! A machine on which nothing of Toolwharf is installed: Debian's required packages with Node.js, npm, Python and uv, in a
//! mount namespace. The files that a test writes are in a separate folder, above the shared ones. Needs root, as the tests
//! of sandboxes do.

use std::{env, fs, path::PathBuf, time::Duration};

use serde_json::json;
use tempfile::TempDir;
use testkit::{Bin, DEADLINE, StdioClient, within};
use tokio::{process::Command, time::Instant};

use crate::common::{
    self,
    rpc::{greet, message},
};

/// Mounts the root at `$FOLDER/root`, and the packages in it at `/mnt`, and runs the command line. It sees the root only as
/// `/`, unless it is run outside.
const ENTER: &str = r#"
set -e
root=$FOLDER/root
mount -t overlay -o "lowerdir=$LOWER,upperdir=$FOLDER/upper,workdir=$FOLDER/work" overlay "$root"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$PACKAGES" "$root/mnt"
mount --bind "$SERVER" "$root/srv/scripted"
enter="chroot $root"
if [ "$1" = --outside ]; then
    enter="" && shift
    export ROOT=$root
fi
exec $enter env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C ROOT="$ROOT" \
    DEBIAN_FRONTEND=noninteractive "$@"
"#;
/// From an empty machine to the first answer of a tool.
const FIRST_ANSWER: Duration = Duration::from_secs(60);

/// The folder of the packages.
pub(crate) fn packages() -> PathBuf {
    given("TOOLWHARF_TEST_PACKAGES")
}

fn given(variable: &str) -> PathBuf {
    let given = env::var_os(variable).filter(|given| !given.is_empty());
    let given = given.unwrap_or_else(|| panic!("{variable} is not set; run: cargo xtask test"));
    given.into()
}

pub(crate) struct Root {
    folder: TempDir,
    began: Instant,
}

impl Root {
    /// A new machine with one server in the configuration of its user.
    pub(crate) fn new() -> Self {
        let folder = common::folder();
        for name in ["root", "upper", "work"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let root = Self {
            folder,
            began: Instant::now(),
        };
        root.write("srv/scripted", "");
        let server = json!({"command": "/srv/scripted", "args": ["--name", "one"]});
        let servers = json!({ "mcpServers": { "one": server } });
        root.write("root/.config/toolwharf/mcp.json", &servers.to_string());
        root
    }

    /// The file of a package, as this machine sees it.
    pub(crate) fn package(end: &str) -> String {
        let entries = fs::read_dir(packages()).expect("the packages");
        let names = entries.map(|entry| entry.expect("a package").file_name());
        let mut names = names.map(|name| name.to_string_lossy().into_owned());
        let found = names.find(|name| name.ends_with(end));
        format!("/mnt/{}", found.unwrap_or_else(|| panic!("no …{end}")))
    }

    /// The architecture of this machine, as Debian names it.
    pub(crate) fn debian_arch() -> &'static str {
        match env::consts::ARCH {
            "aarch64" => "arm64",
            _ => "amd64",
        }
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.folder.path().join("upper").join(path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, text).expect("a file");
    }

    /// A command on this machine. With `--outside`, it sees the machine's files in `$ROOT`.
    pub(crate) fn command<S: AsRef<str>>(&self, words: &[S]) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "bash", "-c", ENTER, "bash"])
            .args(words.iter().map(S::as_ref))
            .env("FOLDER", self.folder.path())
            .env("LOWER", given("TOOLWHARF_TEST_ROOT"))
            .env("PACKAGES", packages())
            .env("SERVER", Bin::path("testkit-scripted"));
        command
    }

    /// Runs a script, which must succeed. Returns what it prints.
    pub(crate) async fn run(&self, script: &str) -> String {
        self.run_in(&["sh", "-ec", script]).await
    }

    /// Like [`Root::run`], with the programs of the machine that runs the tests. The machine's files are in `$ROOT`.
    pub(crate) async fn run_outside(&self, script: &str) -> String {
        self.run_in(&["--outside", "sh", "-ec", script]).await
    }

    async fn run_in(&self, words: &[&str]) -> String {
        let mut command = self.command(words);
        command.stdin(std::process::Stdio::null());
        let output = within(&format!("{words:?}"), DEADLINE * 2, command.output()).await;
        let output = output.expect("unshare");
        let [out, err] =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        assert!(output.status.success(), "{words:?}: {out}{err}");
        out
    }

    /// Starts an MCP server, calls its tool, and ends it. It must answer within a minute after this machine began.
    pub(crate) async fn answers<S: AsRef<str>>(&self, words: &[S]) {
        let mut client = StdioClient::spawn(self.command(words));
        greet(&mut client).await;
        let params = json!({"name": "echo", "arguments": {"n": 1}});
        let answer = client.ask(message("call", "tools/call", params)).await;
        assert_eq!(answer["result"]["structuredContent"]["n"], 1, "{answer}");
        let took = self.began.elapsed();
        assert!(took <= FIRST_ANSWER, "the first answer took {took:?}");
        let status = client.finish(DEADLINE).await;
        assert!(status.success(), "{status}");
    }

    /// Everything on this machine whose name contains `toolwharf`, except in the home directory.
    pub(crate) async fn remains(&self) -> String {
        self.run("find / -xdev -path /root -prune -o -name '*toolwharf*' -print; ! grep toolwharf /etc/passwd /etc/group")
            .await
    }
}
