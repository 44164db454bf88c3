//! Helper program for the tests of this crate: a sentinel, a shim, or the process of a run. Not part of the product.
//!
//! `code-victim escape` tries attacks that a process with a compromised interpreter could make, before and after it is
//! locked down. It prints a JSON object for each time: attempt → result.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use runtime::sandbox::{Allowance, lock_down};
use rustix::process::{Pid, Resource, Rlimit, Signal};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|first| first.to_str()) {
        Some("sentinel") => runtime::sentinel::main(),
        Some("shim") => runtime::sandbox::shim_main(&args[1..]),
        Some("escape") => escape(),
        Some(code::child::ARGUMENT) => code::child::main(),
        _ => ExitCode::from(64),
    }
}

fn escape() -> ExitCode {
    // The number of a process of the host, and a port on which it listens.
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).is_err() {
        return ExitCode::FAILURE;
    }
    let numbers = line.trim().split_once(' ');
    let numbers = numbers.map(|(pid, port)| (pid.parse(), port.parse()));
    let Some((Ok(pid), Ok(port))) = numbers else {
        return ExitCode::FAILURE;
    };
    print(&tried(pid, port));
    let allowance = Allowance {
        memory: 64 << 20,
        cpu: Duration::from_secs(5),
    };
    if let Err(error) = lock_down(allowance) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    print(&tried(pid, port));
    ExitCode::SUCCESS
}

fn print(tried: &BTreeMap<&str, String>) {
    let text = serde_json::to_string(tried).unwrap_or_default();
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn tried(pid: i32, port: u16) -> BTreeMap<&'static str, String> {
    fn told<T: std::fmt::Debug>(result: std::io::Result<T>) -> String {
        result.map_or_else(
            |error| error.to_string(),
            |value| format!("worked: {value:?}"),
        )
    }
    let host = Pid::from_raw(pid);
    let host = || host.ok_or(std::io::Error::other("no number"));
    let variables: Vec<_> = std::env::vars().map(|(name, _)| name).collect();
    BTreeMap::from([
        (
            "read a file",
            told(fs::read("/etc/passwd").map(|text| text.len())),
        ),
        (
            "read the program of the host",
            told(fs::read(format!("/proc/{pid}/environ"))),
        ),
        ("list processes", told(processes())),
        ("list files", told(files(Path::new("/")))),
        (
            "write a file",
            told(fs::write("/tmp/x", "x").or_else(|_| fs::write("/run/x", "x"))),
        ),
        (
            "connect to the host",
            told(TcpStream::connect(("127.0.0.1", port))),
        ),
        (
            "connect to the internet",
            told(TcpStream::connect(("1.1.1.1", 443))),
        ),
        (
            "send a datagram",
            told(UdpSocket::bind("0.0.0.0:0").and_then(|one| one.send_to(b"x", "1.1.1.1:53"))),
        ),
        ("listen", told(TcpListener::bind("127.0.0.1:0"))),
        ("make sockets", told(UnixStream::pair())),
        (
            "run the shell",
            told(Command::new("/bin/sh").arg("-c").arg("echo").status()),
        ),
        (
            "run itself",
            told(Command::new("/proc/self/exe").arg("x").status()),
        ),
        (
            "signal the host's process",
            told(host().and_then(|pid| Ok(rustix::process::kill_process(pid, Signal::KILL)?))),
        ),
        (
            "create a thread",
            // Joined: a thread that had not begun when the process is locked down would end the process.
            told(
                std::thread::Builder::new()
                    .spawn(|| ())
                    .map(|thread| drop(thread.join())),
            ),
        ),
        (
            "raise a limit",
            told(
                rustix::process::setrlimit(
                    Resource::Nofile,
                    Rlimit {
                        current: Some(9),
                        maximum: Some(9),
                    },
                )
                .map_err(Into::into),
            ),
        ),
        ("variables", format!("{variables:?}")),
    ])
}

fn processes() -> std::io::Result<usize> {
    let entries = fs::read_dir("/proc")?.flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    Ok(entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_process))
        .count())
}

/// The files outside of `/proc`.
fn files(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        match entry.file_type() {
            _ if path == Path::new("/proc") => {}
            Ok(kind) if kind.is_dir() => found.extend(files(&path)?),
            _ => found.push(path.display().to_string()),
        }
    }
    Ok(found)
}
