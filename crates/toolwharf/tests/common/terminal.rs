//! Command lines on a terminal, which `script` provides.

use std::{path::Path, process::Stdio};

use testkit::{DEADLINE, within};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
};

use super::cli::{Said, USER_VARIABLES, toolwharf};

/// Runs a line on a terminal, with `home` as home and working directory. `answers`: prompts of the command, each with the
/// text that is then typed. Everything that the terminal shows is in `out`.
pub(crate) async fn typed(
    home: &Path,
    env: &[(&str, &str)],
    line: &str,
    answers: &[(&str, &str)],
) -> Said {
    let toolwharf = toolwharf();
    let program = toolwharf.as_std().get_program().to_str().expect("UTF-8");
    let mut command = Command::new("script");
    command
        // Without `exec`, Ctrl-C would end the shell, too.
        .args(["-qec", &format!("exec {program} {line}"), "/dev/null"])
        .env("HOME", home)
        .env("SHELL", "/bin/sh")
        .current_dir(home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    for variable in USER_VARIABLES {
        command.env_remove(variable);
    }
    let child = command.envs(env.iter().copied()).spawn();
    let mut child = child.expect("`script`, of the package bsdutils, is installed");
    let mut input = child.stdin.take().expect("asked for as a pipe");
    let mut output = child.stdout.take().expect("asked for as a pipe");
    let mut shown = String::new();
    let mut next = answers.iter();
    let mut answer = next.next();
    let mut buffer = [0; 4096];
    let conversation = async {
        loop {
            let read = output.read(&mut buffer).await.expect("readable");
            if read == 0 {
                break;
            }
            shown.push_str(&String::from_utf8_lossy(&buffer[..read]).replace('\r', ""));
            if let Some((prompt, text)) = answer
                && shown.contains(prompt)
            {
                let line = format!("{text}\n");
                input.write_all(line.as_bytes()).await.expect("writable");
                answer = next.next();
            }
        }
    };
    within(line, DEADLINE, conversation).await;
    let status = child.wait().await.expect("an end");
    assert_eq!(answer, None, "{shown}");
    Said {
        code: status.code(),
        out: shown,
        err: String::new(),
    }
}
