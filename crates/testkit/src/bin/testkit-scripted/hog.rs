//! Tools that exhaust resources (memory, CPU, processes, disk) and tools that access files and the network.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::time::Instant;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Allocates `mib` MiB, touches every page and never frees it.
pub(crate) fn alloc(mib: u64) -> String {
    let mut kept = Vec::new();
    for _ in 0..mib {
        let mut block = vec![0_u8; 1 << 20];
        for page in block.chunks_mut(4096) {
            page[0] = 1;
        }
        kept.push(block);
    }
    let taken = kept.len();
    std::mem::forget(kept);
    format!("{taken} MiB")
}

/// Keeps one CPU busy for `time`.
pub(crate) fn burn(time: Duration) -> String {
    let until = Instant::now() + time;
    let mut rounds = 0_u64;
    while Instant::now() < until {
        rounds = std::hint::black_box(rounds.wrapping_add(1));
    }
    rounds.to_string()
}

/// A command without input and output.
pub(crate) fn silent(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Starts processes until that fails or `most` are running. Returns how many were started, and the error if there was
/// one.
pub(crate) fn forks(most: u64) -> String {
    let mut started = 0;
    while started < most {
        match silent("/proc/self/exe").arg("--sleep").spawn() {
            Ok(_) => started += 1,
            Err(error) => return format!("{started}: {error}"),
        }
    }
    started.to_string()
}

/// Starts fork bombs for `time`, ignoring failures. Each process becomes two.
pub(crate) fn bomb(time: Duration) -> String {
    let until = Instant::now() + time;
    let mut lit = 0;
    while Instant::now() < until {
        let mut child = silent("/bin/sh");
        let child = child.args(["-c", "b() { b | b & }; b"]).spawn();
        lit += u64::from(child.is_ok());
    }
    lit.to_string()
}

/// Appends `mib` MiB to a file, stopping at the first error.
pub(crate) fn fill(path: &str, mib: u64) -> std::io::Result<String> {
    let mut file = fs::File::options().create(true).append(true).open(path)?;
    let block = vec![7_u8; 1 << 20];
    for written in 0..mib {
        if let Err(error) = file.write_all(&block) {
            return Ok(format!("{written}: {error}"));
        }
    }
    file.sync_all()?;
    Ok(mib.to_string())
}

/// Writes to a file for `time`, and continues when the disk is full. If `anew`, the file is truncated after each failed
/// write. Returns how many writes failed.
pub(crate) fn flood(path: &str, time: Duration, anew: bool) -> std::io::Result<String> {
    let until = Instant::now() + time;
    let mut file = fs::File::create(path)?;
    let block = vec![7_u8; 1 << 20];
    let mut full = 0_u64;
    while Instant::now() < until {
        if file.write_all(&block).is_err() {
            full += 1;
            if anew {
                file = fs::File::create(path)?;
            }
        }
    }
    Ok(full.to_string())
}

pub(crate) fn write(path: &str, text: &str) -> std::io::Result<String> {
    if let Some(parent) = Path::new(path).parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = fs::File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok("written".to_owned())
}

/// Appends a line in a single write: a process that is killed has written all of it or nothing.
pub(crate) fn append(path: &str, text: &str) -> std::io::Result<String> {
    let mut file = fs::File::options().create(true).append(true).open(path)?;
    file.write_all(format!("{text}\n").as_bytes())?;
    Ok(text.to_owned())
}

/// Records that SIGTERM was received, and exits if `ends`.
pub(crate) fn note(path: &Path, ends: bool) {
    let file = fs::File::options().create(true).append(true).open(path);
    let noted = file.and_then(|mut file| {
        file.write_all(b"terminated\n")?;
        file.sync_all()
    });
    if let Err(error) = noted {
        eprintln!("cannot write {}: {error}", path.display());
    }
    if ends {
        std::process::exit(0);
    }
}

pub(crate) fn read(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?
        .take(1 << 20)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// Sends a text to an address and returns the start of the response.
pub(crate) fn connect(address: &str, text: &str) -> std::io::Result<String> {
    let none = || std::io::Error::other("no address");
    let address = address.to_socket_addrs()?.next().ok_or_else(none)?;
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    stream.write_all(text.as_bytes())?;
    let mut answer = vec![0; 4096];
    let count = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..count]).into_owned())
}
