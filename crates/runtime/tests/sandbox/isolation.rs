//! Checks what a server sees of the host, and what it can do to it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use model::{Mount, Program};
use runtime::{Error, Runtime as _};

use crate::ground::{Ground, line, python, read, row, running, sh};
use crate::server::Server;
use crate::support::numbers;

#[tokio::test]
async fn it_says_what_it_is() {
    let text = Ground::new().sandbox.probe().await.unwrap();
    assert!(text.starts_with("bubblewrap "), "{text}");
    assert!(text.contains("cgroup v"), "{text}");
}

#[tokio::test]
async fn h03_variables_are_in_that_process_only() {
    let ground = Ground::new();
    let value = format!("secret-of-{}", ground.install);
    let mut first = sh("env; echo up; read line");
    first.sandbox.id = "first".into();
    first.env = BTreeMap::from([("API_KEY".into(), value.clone())]);
    // A program outside the sandbox would not even start with this variable.
    first.env.insert("LD_PRELOAD".into(), String::new());
    let mut first = ground.launch(first).await.unwrap();
    let mut seen = Vec::new();
    loop {
        match line(&mut first).await.as_str() {
            "up" => break,
            line => seen.push(line.to_owned()),
        }
    }
    assert!(seen.contains(&format!("API_KEY={value}")), "{seen:?}");
    let known = [
        "API_KEY",
        "GOMEMLIMIT",
        "HOME",
        "LANG",
        "LD_PRELOAD",
        "NODE_OPTIONS",
        "OLDPWD",
        "PATH",
        "PWD",
        "TMPDIR",
        "TOOLWHARF_INSTANCE",
        "USER",
    ];
    for variable in &seen {
        let (name, _) = variable.split_once('=').unwrap();
        assert!(known.contains(&name), "{name} must not reach a server");
    }
    let (other, _) = ground.run(sh("env")).await;
    assert!(!other.contains("API_KEY"), "{other}");
    let me = std::process::id();
    let holders: Vec<u32> = numbers()
        .filter(|&pid| pid != me)
        .filter(|pid| {
            ["environ", "cmdline"].iter().any(|file| {
                let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                bytes
                    .windows(value.len())
                    .any(|part| part == value.as_bytes())
            })
        })
        .collect();
    assert_eq!(holders.len(), 1, "only the server itself");
    assert_ne!(Some(holders[0]), first.handle.pid(), "not what wraps it");
}

#[tokio::test]
async fn the_hosts_files_are_not_there() {
    let ground = Ground::new();
    let secret = ground.directory.path().join("secret");
    fs::write(&secret, "the host's own").unwrap();
    let script = format!(
        "ls -A /; cat {} /etc/shadow /root/.bashrc; ls /home /root /work; ls {}; ls /proc | grep -c '^[0-9]'",
        secret.display(),
        ground.directory.path().join("state").display(),
    );
    let (text, instance) = ground.run(sh(&script)).await;
    let mut lines: Vec<_> = text.lines().collect();
    let processes: usize = lines.pop().unwrap().parse().unwrap();
    assert!(processes <= 5, "it sees {processes} processes");
    for name in lines {
        let known = [
            "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nix", "proc", "run", "sbin",
            "sys", "tmp", "usr", "var",
        ];
        assert!(known.contains(&name), "{name} is there");
    }
    let complaints = instance.handle.stderr_tail();
    assert_eq!(complaints.lines().count(), 7, "{complaints}");
}

#[tokio::test]
async fn it_has_no_privileges_and_can_write_nowhere_else() {
    let ground = Ground::new();
    let script = r#"
import os, socket
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
print([status["Cap" + s].strip("0") for s in ("Inh", "Prm", "Eff", "Bnd", "Amb")], status["NoNewPrivs"], status["Groups"].strip() == "")
print(os.getuid() >= 1900000000, os.getuid() == os.geteuid() == os.getgid(), os.path.expanduser("~"), os.getcwd())
wrong = []
for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/run/toolwharf/shim", "/var/x"):
    try: open(path, "a"); wrong.append(path)
    except OSError: pass
for path in ("/tmp/x", "/var/tmp/y", "/run/x", "/dev/shm/x", "/tmp/home/x"):
    try: open(path, "w")
    except OSError as e: wrong.append((path, str(e)))
fds = []
for fd in range(3, 1000):
    try: os.fstat(fd); fds.append(fd)
    except OSError: pass
for name in ("setuid", "setgid"):
    try: getattr(os, name)(0); wrong.append(name)
    except OSError: pass
try: os.kill(1, 9); wrong.append("kill 1")
except OSError: pass
try: open("/dev/tty"); wrong.append("tty")
except OSError: pass
print(wrong, fds, socket.gethostname())
"#;
    let (text, instance) = ground.run(python(script)).await;
    let expected = "['', '', '', '', ''] 1 True\nTrue True /tmp/home /tmp/home\n[] [] sandbox\n";
    assert_eq!(text, expected, "{}", instance.handle.stderr_tail());
    for what in ["filesystem", "network", "privileges"] {
        assert!(row(&instance, what).holds);
    }
}

/// System calls through which kernels were attacked are not available. Calls that programs need are available.
#[tokio::test]
async fn system_calls_are_filtered() {
    let ground = Ground::new();
    let script = r#"
import ctypes, errno, os, platform, socket, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (425, 250, 321, 323, 101, 310, 272), "aarch64": (425, 219, 280, 282, 117, 270, 97)}
names = ("io_uring_setup", "keyctl", "bpf", "userfaultfd", "ptrace", "process_vm_readv", "unshare")
for name, number in zip(names, numbers[platform.machine()]):
    ctypes.set_errno(0)
    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    print(name, errno.errorcode.get(ctypes.get_errno(), "none") if result == -1 else "allowed")
for family in (40, 38, 17, socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
    try: socket.socket(family, socket.SOCK_DGRAM).close(); print(int(family), "allowed")
    except OSError as e: print(int(family), errno.errorcode[e.errno])
done = []
thread = threading.Thread(target=lambda: done.append("thread")); thread.start(); thread.join()
print(done, subprocess.run(["sh", "-c", "echo child | cat"], capture_output=True, text=True).stdout.strip())
print(open("/proc/self/status").read().split("Seccomp:")[1].split()[0], subprocess.run(["grep", "^Seccomp:", "/proc/self/status"], capture_output=True, text=True).stdout.split()[1])
"#;
    let (text, instance) = ground.run(python(script)).await;
    let expected = "io_uring_setup EPERM\nkeyctl EPERM\nbpf EPERM\nuserfaultfd EPERM\nptrace EPERM\n\
                    process_vm_readv EPERM\nunshare EPERM\n40 EAFNOSUPPORT\n38 EAFNOSUPPORT\n17 EAFNOSUPPORT\n\
                    2 allowed\n10 allowed\n1 allowed\n['thread'] child\n2 2\n";
    assert_eq!(text, expected, "{}", instance.handle.stderr_tail());
    let row = row(&instance, "system calls");
    assert!(row.holds && row.how.contains("io_uring"), "{row:?}");
}

#[tokio::test]
async fn what_the_command_names_is_there() {
    let ground = Ground::new();
    let project = ground.directory.path().join("project");
    fs::create_dir_all(project.join("node_modules/server/dist")).unwrap();
    fs::write(project.join("package.json"), r#"{"type": "commonjs"}"#).unwrap();
    fs::write(
        project.join("node_modules/other.js"),
        "module.exports = 'other'",
    )
    .unwrap();
    let main = project.join("node_modules/server/dist/main.js");
    fs::write(
        &main,
        "console.log(require('../../other.js'), require('fs').readdirSync('/').includes('root'))",
    )
    .unwrap();
    let (text, instance) = ground.run(running("node", &[main.to_str().unwrap()])).await;
    assert_eq!(text, "other false\n", "{}", instance.handle.stderr_tail());

    let tool = project.join("tool");
    fs::write(&tool, "#!/usr/bin/env python3\nprint('from a script')").unwrap();
    fs::set_permissions(&tool, Permissions::from_mode(0o755)).unwrap();
    let link = ground.directory.path().join("link");
    std::os::unix::fs::symlink(&tool, &link).unwrap();
    // `python3` may come from the system, or from a version manager in a home directory.
    let (text, instance) = ground.run(running(link.to_str().unwrap(), &[])).await;
    assert_eq!(text, "from a script\n", "{}", instance.handle.stderr_tail());
}

#[tokio::test]
async fn what_it_is_shown_never_holds_the_data_of_others() {
    let ground = Ground::new();
    // The test's folder looks like a project, but it also contains the volumes of all servers.
    let directory = ground.directory.path();
    let main = directory.join("node_modules/main.js");
    fs::create_dir(main.parent().unwrap()).unwrap();
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    let state = directory.join("state");
    let program = format!(
        "const fs = require('fs');
        console.log(fs.readdirSync('{}'));
        try {{ console.log(fs.readdirSync('{}')) }} catch (e) {{ console.log(e.code) }}",
        directory.display(),
        state.display(),
    );
    fs::write(&main, program).unwrap();
    let (text, instance) = ground.run(running("node", &[main.to_str().unwrap()])).await;
    let expected = "[ 'node_modules', 'state' ]\nEACCES\n";
    assert_eq!(text, expected, "{}", instance.handle.stderr_tail());
}

#[tokio::test]
async fn mounts_are_as_they_were_permitted() {
    let ground = Ground::new();
    let shared = ground.directory.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("file"), "shown").unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    for read_only in [true, false] {
        let mut server = sh("cat /shared/file; touch /shared/new");
        server.sandbox.mounts = vec![Mount {
            host: shared.clone(),
            inside: "/shared".into(),
            read_only,
        }];
        let (text, instance) = ground.run(server).await;
        assert_eq!(text, "shown");
        assert_eq!(
            shared.join("new").exists(),
            !read_only,
            "{:?}",
            instance.enforced
        );
    }
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_leaves_nothing() {
    let ground = Ground::new();
    let check = async |expected: &str, text: &str, server: Server| {
        match ground.launch(server).await.unwrap_err() {
            Error::Refused { field, why } => {
                assert_eq!(field, expected, "{why}");
                assert!(why.contains(text), "{why}");
            }
            other => panic!("{other}"),
        }
        assert_eq!(ground.left(), [] as [PathBuf; 0]);
    };
    let program = |program: &str| running(program, &[]);
    let image = Program::Image {
        image: "x".into(),
        command: Vec::new(),
    };
    check("image", "Docker", Server::new("server", image)).await;
    check("command", "not found", program("no-such-program")).await;
    check("command", "not executable", program("/etc/passwd")).await;
    let volumes = |all: &[&str]| {
        let mut server = sh("true");
        server.sandbox.volumes = all.iter().map(|&one| one.to_owned()).collect();
        server
    };
    check("volumes", "..", volumes(&["/a/../etc"])).await;
    check("volumes", "twice", volumes(&["/a", "/a/"])).await;
    check("volumes", "system", volumes(&["/usr/share"])).await;
    let mut other = sh("true");
    other.sandbox.id = "../x".into();
    check("id", "a-z", other).await;
    let mut other = sh("true");
    other.env.insert("A".into(), "\0secret".into());
    check("environment", "NUL", other).await;
    let mut other = sh("true");
    other.sandbox.network = model::Network::Allow(vec!["a/b".into()]);
    check("network", "a/b", other).await;
    // The file is found and may be executed, but it is not a program.
    let broken = ground.directory.path().join("broken");
    fs::write(&broken, "#!/no/interpreter\n").unwrap();
    fs::set_permissions(&broken, Permissions::from_mode(0o755)).unwrap();
    let broken = program(broken.to_str().unwrap());
    check("command", "cannot run", broken).await;
}

#[tokio::test]
async fn bytes_go_through_untouched() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let ground = Ground::new();
    let mut instance = ground.launch(running("cat", &[])).await.unwrap();
    let mut stdio = instance.stdio.take().unwrap();
    let sent: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut received = Vec::new();
    let writing = async {
        stdio.stdin.write_all(&sent).await.unwrap();
        drop(stdio.stdin);
    };
    let reading = stdio.stdout.read_to_end(&mut received);
    let ((), read) = tokio::join!(writing, reading);
    read.unwrap();
    assert!(received == sent);
    assert!(instance.handle.exited().await.success());
}

#[tokio::test]
async fn an_exit_code_is_the_servers() {
    let ground = Ground::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 139)] {
        let mut instance = ground.launch(sh(script)).await.unwrap();
        read(&mut instance).await;
        let exit = instance.handle.exited().await;
        assert_eq!(exit.code, Some(code), "{script}");
        assert!(!exit.out_of_memory);
    }
}
