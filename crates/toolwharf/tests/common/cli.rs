//! Runs command lines and captures their output.

use std::process::Stdio;

use serde_json::Value;
use testkit::{Bin, DEADLINE, within};
use tokio::{io::AsyncWriteExt as _, process::Command};

/// The exit code and output of a command.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl std::fmt::Debug for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {:?}\n{}\n{}", self.code, self.out, self.err)
    }
}

impl Said {
    /// Asserts the exit code.
    ///
    /// # Panics
    /// If the exit code is different.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn says(self, part: &str) -> Self {
        assert!(self.err.contains(part), "{part:?} is not in {self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Settings of the user who runs the tests.
pub(crate) const USER_VARIABLES: [&str; 5] = [
    "TOOLWHARF_CONFIG",
    "TOOLWHARF_TOKEN",
    "TOOLWHARF_URL",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
];

/// Returns the command `toolwharf`, without any settings of the user who runs the tests. Dropping the child kills it.
pub(crate) fn toolwharf() -> Command {
    let mut command = Command::new(Bin::path("toolwharf"));
    command.kill_on_drop(true);
    for variable in USER_VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// Runs the command to its end. `input` goes to its stdin.
pub(crate) async fn said(mut command: Command, input: &str) -> Said {
    let what = format!("{:?}", command.as_std());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("toolwharf starts");
    let mut stdin = child.stdin.take().expect("asked for as a pipe");
    // The command may exit without reading its input.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = within(&what, DEADLINE, child.wait_with_output()).await;
    let output = output.expect("waiting for an own child works");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Said {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}
