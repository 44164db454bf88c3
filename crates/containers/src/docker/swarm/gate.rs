//! The gateway's side of the protocol with a gate, described in `relay/gate.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use bollard::container::{AttachContainerResults, LogOutput};
use bytes::{Buf as _, BytesMut};
use futures_util::StreamExt as _;
use tokio::io::AsyncWriteExt as _;

use crate::common::{check_env, late, refused};
use crate::docker::relay::frame::{MAX_ORDER_BYTES, MAX_SECTION_BYTES, SECTION_COUNT};
use runtime::unit::Error;

const REPORT_TIMEOUT: Duration = Duration::from_secs(20);
const REPORT_ACTION: &str = "read the report of the gate program";

/// A gate's report about its container.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// The content of `/proc/self/status`.
    pub(super) status: String,
    /// The network devices of the container.
    pub(super) devices: Vec<String>,
    /// The network devices that are up. Only these can carry traffic.
    pub(super) up: Vec<String>,
    /// The readable part of the kernel's log.
    pub(super) log: String,
    /// True if the server's program exists in the container.
    pub(super) has_program: bool,
}

impl Report {
    /// Returns a line of the status by name, such as `CapBnd`.
    pub(super) fn status(&self, name: &str) -> Option<&str> {
        let mut lines = self.status.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }
}

/// Encodes the order to a gate: the command line and the variables of the program that it becomes.
///
/// # Errors
///
/// [`Error::Refused`] for arguments and variables that cannot be passed on.
pub(super) fn order(args: &[String], env: &BTreeMap<String, String>) -> Result<Vec<u8>, Error> {
    let count = u32::try_from(args.len()).unwrap_or(u32::MAX);
    let mut body = count.to_le_bytes().to_vec();
    for arg in args {
        if arg.contains('\0') {
            return refused("args", format!("`{}` contains a NUL", arg.escape_debug()));
        }
        body.extend_from_slice(arg.as_bytes());
        body.push(0);
    }
    check_env(env)?;
    for (name, value) in env {
        body.extend_from_slice(name.as_bytes());
        body.push(b'=');
        body.extend_from_slice(value.as_bytes());
        body.push(0);
    }
    if body.len() > MAX_ORDER_BYTES {
        let why = format!(
            "arguments and variables have {} bytes in total; the limit is {MAX_ORDER_BYTES}",
            body.len()
        );
        return refused("environment", why);
    }
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut order = length.to_le_bytes().to_vec();
    order.append(&mut body);
    Ok(order)
}

/// Sends the order to a gate and receives its report.
pub(super) async fn tell(
    attached: &mut AttachContainerResults,
    order: &[u8],
) -> Result<Report, Error> {
    let telling = async {
        attached.input.write_all(order).await.map_err(broken)?;
        attached.input.flush().await.map_err(broken)?;
        let mut heard = BytesMut::new();
        let mut sections = Vec::new();
        while sections.len() < SECTION_COUNT {
            match attached.output.next().await {
                Some(Ok(LogOutput::StdOut { message })) => heard.extend_from_slice(&message),
                Some(Ok(other)) => return Err(strange(&other.to_string())),
                Some(Err(error)) => return Err(broken(error)),
                None => return Err(broken("it ended")),
            }
            while sections.len() < SECTION_COUNT
                && let Some(section) = section(&mut heard)?
            {
                sections.push(section);
            }
        }
        if !heard.is_empty() {
            return Err(strange("too much data"));
        }
        Ok(report(&sections))
    };
    late(REPORT_TIMEOUT, REPORT_ACTION, telling).await
}

/// Lets the gate become the server.
pub(super) async fn open(attached: &mut AttachContainerResults) -> Result<(), Error> {
    attached.input.write_all(b"!").await.map_err(broken)?;
    attached.input.flush().await.map_err(broken)
}

fn section(heard: &mut BytesMut) -> Result<Option<String>, Error> {
    let Some(length) = heard.first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_SECTION_BYTES {
        return Err(strange(&format!(
            "a section has {length} bytes; the limit is {MAX_SECTION_BYTES}"
        )));
    }
    if heard.len() < 4 + length {
        return Ok(None);
    }
    heard.advance(4);
    let section = heard.split_to(length);
    Ok(Some(String::from_utf8_lossy(&section).into_owned()))
}

fn report(sections: &[String]) -> Report {
    let [status, devices, up, log, missing] = sections else {
        return Report::default();
    };
    // Skip the two heading lines. The other lines look like `lo: 0 0 …`.
    let devices = devices.lines().skip(2);
    let devices = devices.filter_map(|line| line.split_once(':'));
    Report {
        status: status.clone(),
        devices: devices.map(|(name, _)| name.trim().to_owned()).collect(),
        up: up.lines().map(str::to_owned).collect(),
        log: log.clone(),
        has_program: missing.is_empty(),
    }
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::Failed(format!(
        "the gate program in the container does not respond: {why}"
    ))
}

fn strange(what: &str) -> Error {
    let what: String = what.chars().take(300).collect();
    Error::Failed(format!(
        "the gate program in the container sent an invalid report: {what}"
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write as _};
    use std::process::{Child, Command, Stdio};

    use crate::docker::relay::place;

    use super::*;

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|&text| text.to_owned()).collect()
    }

    fn started(gate: &mut Command) -> Child {
        let gate = gate.stdin(Stdio::piped()).stdout(Stdio::piped());
        gate.spawn().expect("it starts")
    }

    fn heard_from(output: &mut impl Read) -> Report {
        let mut heard = BytesMut::new();
        let mut sections = Vec::new();
        while sections.len() < SECTION_COUNT {
            let mut byte = [0];
            output.read_exact(&mut byte).unwrap();
            heard.extend_from_slice(&byte);
            sections.extend(section(&mut heard).unwrap());
        }
        report(&sections)
    }

    /// A new network namespace has a loopback device, which is down, and any devices that kernel modules add.
    #[test]
    fn a_device_that_is_down_is_told_as_there_and_not_as_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = place(dir.path(), "test").expect("there is a relay for this processor");
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--net"]);
        let mut gate = started(unshare.arg(file).arg("gate"));
        let (mut input, mut output) = (gate.stdin.take().unwrap(), gate.stdout.take().unwrap());
        let order = order(&texts(&["true"]), &BTreeMap::new()).expect("it fits");
        input.write_all(&order).unwrap();
        let report = heard_from(&mut output);
        assert!(report.devices.iter().any(|name| name == "lo"), "{report:?}");
        assert!(report.up.is_empty(), "{report:?}");
        input.write_all(b"!").unwrap();
        assert!(gate.wait().unwrap().success());
    }

    /// Runs the real program, without a container.
    #[test]
    fn a_gate_becomes_what_it_is_told_when_it_is_told_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = place(dir.path(), "test").expect("there is a relay for this processor");
        let mut gate = Command::new(file);
        gate.env_clear();
        gate.envs([("PATH", "/usr/bin:/bin"), ("A", "old"), ("B", "kept")]);
        let mut gate = started(gate.arg("gate"));
        let (mut input, mut output) = (gate.stdin.take().unwrap(), gate.stdout.take().unwrap());
        let env = BTreeMap::from([("A".to_owned(), "new=1".to_owned())]);
        let script = "echo $A $B$1; grep NoNewPrivs: /proc/self/status; cat";
        let order = order(&texts(&["sh", "-c", script, "", "."]), &env).expect("it fits");
        input.write_all(&order).unwrap();
        let report = heard_from(&mut output);
        assert!(report.has_program, "{report:?}");
        assert_eq!(report.status("NoNewPrivs"), Some("1"));
        for told in [&report.devices, &report.up] {
            assert!(told.iter().any(|name| name == "lo"), "{report:?}");
        }
        input.write_all(b"!what the server is told\n").unwrap();
        drop(input);
        let mut said = String::new();
        output.read_to_string(&mut said).unwrap();
        assert_eq!(
            said,
            "new=1 kept.\nNoNewPrivs:\t1\nwhat the server is told\n"
        );
        assert!(gate.wait().unwrap().success());
    }

    #[test]
    fn what_cannot_be_passed_on_is_refused_by_its_field() {
        let check = |args: &[&str], name: &str, value: &str, expected| {
            let env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            match order(&texts(args), &env) {
                Err(Error::Refused { field, .. }) => assert_eq!(field, expected),
                other => panic!("{other:?}"),
            }
        };
        check(&["a\0b"], "A", "", "args");
        check(&["a"], "A=B", "", "environment");
        check(&["a"], "A", "\0", "environment");
        check(&["a"], "A", &"x".repeat(MAX_ORDER_BYTES), "environment");
    }

    #[test]
    fn a_gate_that_says_too_much_is_none() {
        let mut heard = BytesMut::from(&[0, 0, 1, 0][..]);
        assert!(section(&mut heard).is_err());
    }
}
