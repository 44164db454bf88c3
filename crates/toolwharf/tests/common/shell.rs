//! Runs command lines against a gateway or in a home directory: [`on`] runs one, [`transcript`] several.
//!
//! Spaces separate words, and `'…'` is one word.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::{
    Gateway,
    cli::{Said, said, toolwharf},
};

impl Said {
    /// Asserts the exit code of `line`, and all of `says` on stderr.
    #[track_caller]
    pub(crate) fn ends(self, line: &str, code: i32, says: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{line}: {self:?}");
        for part in says {
            assert!(self.err.contains(part), "{line}: {part:?}: {self:?}");
        }
        self
    }
}

fn words(line: &str) -> Vec<&str> {
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(n, part)| match n % 2 {
        0 => part.split(' ').filter(|word| !word.is_empty()).collect(),
        _ => vec![part],
    });
    words.collect()
}

/// A command line of a user whose home and working directory is `home`.
fn line_in(home: &Path, words: &[&str]) -> Command {
    let mut command = toolwharf();
    command.args(words).env("HOME", home).current_dir(home);
    command
}

/// A command line that finds this gateway by its data directory.
pub(crate) fn at(gateway: &Gateway, line: &str) -> Command {
    assert!(gateway.folder().join("data/serve.json").exists());
    let mut words = words(line);
    // Options directly follow the verb, because later words may belong to a server's command.
    let nested = [
        "project",
        "secret",
        "product",
        "key",
        "calls",
        "tools",
        "conversation",
        "approvals",
    ];
    let verb = 1 + usize::from(nested.contains(&words[0]));
    drop(words.splice(verb..verb, ["--data-dir", "data"]));
    line_in(gateway.folder(), &words)
}

pub(crate) async fn on(gateway: &Gateway, line: &str) -> Said {
    on_with(gateway, line, "").await
}

/// Like [`on`]. `input` goes to stdin.
pub(crate) async fn on_with(gateway: &Gateway, line: &str, input: &str) -> Said {
    said(at(gateway, line), input).await
}

/// Runs a line that must succeed and print `says` to stderr. Returns stdout.
pub(crate) async fn ok(gateway: &Gateway, line: &str, says: &str) -> String {
    ok_with(gateway, line, "", says).await
}

pub(crate) async fn ok_with(gateway: &Gateway, line: &str, input: &str, says: &str) -> String {
    let said = on_with(gateway, line, input).await;
    said.ends(line, 0, &[says]).out
}

/// Runs a line that must fail with this code and print `says` to stderr.
pub(crate) async fn fails(gateway: &Gateway, line: &str, code: i32, says: &str) {
    on(gateway, line).await.ends(line, code, &[says]);
}

/// Runs a line that must succeed, and returns its output as JSON.
pub(crate) async fn json_of(gateway: &Gateway, line: &str) -> Value {
    let line = format!("{line} -o json");
    on(gateway, &line).await.ends(&line, 0, &[]).json()
}

/// Runs the lines of a transcript, one after another: `2$ key ls # --project` must exit with the code 2 (without a
/// number: 0) and print `--project` to stderr. The lines after it describe its output: `| text` must be on stdout, `#
/// text` on stderr, `! text` on neither, and `= text` is the only line on stdout.
pub(crate) async fn transcript(gateway: &Gateway, text: &str) {
    play(text, async |line| on(gateway, line).await).await;
}

async fn play(text: &str, run: impl AsyncFn(&str) -> Said) {
    let mut last: Option<(&str, Said)> = None;
    for step in text.lines().map(str::trim).filter(|step| !step.is_empty()) {
        let (mark, part) = step.split_once(' ').unwrap_or((step, ""));
        if let ("|" | "#" | "!" | "=", Some((line, said))) = (mark, &last) {
            let holds = match mark {
                "|" => said.out.contains(part),
                "#" => said.err.contains(part),
                "=" => said.out.strip_suffix('\n') == Some(part),
                _ => !said.out.contains(part) && !said.err.contains(part),
            };
            assert!(holds, "{line}: {step}: {said:?}");
            continue;
        }
        let (code, rest) = step.split_once("$ ").expect("`$ ` before each line");
        let (line, says) = rest.split_once(" # ").unwrap_or((rest, ""));
        let code = match code {
            "" => 0,
            code => code.parse().expect("an exit code"),
        };
        last = Some((line, run(line).await.ends(line, code, &[says])));
    }
}

/// A user with a separate home directory, without a gateway.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// The server file that is used by default.
    pub(crate) fn servers(&self) -> PathBuf {
        self.path(".config/toolwharf/mcp.json")
    }

    pub(crate) fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.path(file);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// A command line of this user.
    pub(crate) fn command(&self, line: &str) -> Command {
        line_in(self.0.path(), &words(line))
    }

    pub(crate) async fn run(&self, line: &str) -> Said {
        self.run_with(line, "").await
    }

    /// Like [`Home::run`]. `input` goes to stdin.
    pub(crate) async fn run_with(&self, line: &str, input: &str) -> Said {
        said(self.command(line), input).await
    }

    /// Like [`transcript`].
    pub(crate) async fn transcript(&self, text: &str) {
        play(text, async |line| self.run(line).await).await;
    }
}
