#!/usr/bin/env python3
"""A stand-in for `systemctl --user` and the service manager behind it, for one user.

It reads unit files where systemd does, starts services with `Type=notify` in the environment that systemd gives them,
and waits for READY=1. It keeps what systemd keeps in memory in a folder: the units as of the last `daemon-reload`, and
process ids. `boot` stands for a start of the machine and a login: it starts what is enabled.
"""

import os
import pathlib
import shlex
import shutil
import signal
import socket
import sys
import time

STATE = pathlib.Path("@STATE@")
HOME = pathlib.Path(os.environ["HOME"])
UNITS = pathlib.Path(os.environ.get("XDG_CONFIG_HOME") or HOME / ".config") / "systemd/user"
LOADED = STATE / "loaded"
LIMIT = 30


def fail(why):
    print(why, file=sys.stderr)
    sys.exit(1)


def reload():
    shutil.rmtree(LOADED, ignore_errors=True)
    LOADED.mkdir(parents=True)
    for unit in UNITS.glob("*.service"):
        shutil.copy(unit, LOADED)


def setting(name, key):
    """Returns the values of a key, without comments and continued lines, which these units do not have."""
    unit = LOADED / name
    if not unit.exists():
        fail(f"Unit {name} not found.")
    lines = unit.read_text().splitlines()
    return [line.split("=", 1)[1] for line in lines if line.startswith(key + "=")]


def pid_of(name):
    """Returns the process id of a service that runs."""
    try:
        pid = int((STATE / f"{name}.pid").read_text())
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else pid


def start(name):
    if pid_of(name):
        return
    command = shlex.split(setting(name, "ExecStart")[-1])
    command = [word.replace("%%", "%").replace("$$", "$") for word in command]
    assert setting(name, "Type") == ["notify"], "only Type=notify is known"
    env = {"HOME": str(HOME), "USER": "you", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    for key in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        if key in os.environ:
            env[key] = os.environ[key]
    for line in setting(name, "Environment"):
        for word in shlex.split(line):
            variable, value = word.split("=", 1)
            env[variable] = value.replace("%%", "%")
    address = STATE / "notify"
    address.unlink(missing_ok=True)
    messages = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    messages.bind(str(address))
    messages.settimeout(0.1)
    env["NOTIFY_SOCKET"] = str(address)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        log = os.open(STATE / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(HOME)
        try:
            os.execve(command[0], command, env)
        finally:
            os._exit(203)
    (STATE / f"{name}.pid").write_text(str(pid))
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            (STATE / f"{name}.failed").write_text("")
            fail(f"Job for {name} failed because the control process exited with error code.")
        try:
            if b"READY=1" in messages.recv(4096).split(b"\n"):
                (STATE / f"{name}.failed").unlink(missing_ok=True)
                return
        except TimeoutError:
            pass
    fail(f"Job for {name} failed because a timeout was exceeded.")


def stop(name):
    pid = pid_of(name)
    if pid:
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + LIMIT
        while pid_of(name) and time.monotonic() < until:
            time.sleep(0.02)
        (STATE / f"{name}.pid").unlink(missing_ok=True)


def wants(name):
    folders = [UNITS / f"{target}.wants" for target in setting(name, "WantedBy")]
    return [folder / name for folder in folders]


def enable(name):
    for link in wants(name):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(UNITS / name)


def disable(name):
    if not (UNITS / name).exists():
        fail(f"Failed to disable unit: Unit file {name} does not exist.")
    for link in wants(name):
        link.unlink(missing_ok=True)


def show(name):
    loaded = (LOADED / name).exists()
    pid = pid_of(name)
    enabled = any(UNITS.glob(f"*.wants/{name}"))
    failed = (STATE / f"{name}.failed").exists()
    print("LoadState=" + ("loaded" if loaded else "not-found"))
    print("ActiveState=" + ("active" if pid else "failed" if failed else "inactive"))
    print("UnitFileState=" + ("enabled" if enabled else "disabled" if loaded else ""))
    print(f"MainPID={pid or 0}")
    print("FragmentPath=" + (str(UNITS / name) if loaded else ""))


def boot():
    reload()
    for link in sorted(UNITS.glob("default.target.wants/*")):
        start(link.name)


def main():
    STATE.mkdir(parents=True, exist_ok=True)
    words = [word for word in sys.argv[1:] if word not in ("--user", "--no-pager")]
    verb, options = words[0], [word for word in words[1:] if word.startswith("--")]
    names = [word for word in words[1:] if not word.startswith("--")]
    with open(STATE / "calls", "a") as calls:
        print(*words, file=calls)
    if verb == "daemon-reload":
        reload()
    elif verb == "boot":
        boot()
    elif verb == "show-environment":
        print(f"HOME={HOME}")
    for name in names:
        if verb == "start":
            start(name)
        elif verb == "restart":
            stop(name)
            start(name)
        elif verb == "stop":
            stop(name)
        elif verb == "enable":
            enable(name)
        elif verb == "disable":
            disable(name)
            if "--now" in options:
                stop(name)
        elif verb == "show":
            show(name)
        elif verb == "reset-failed":
            (STATE / f"{name}.failed").unlink(missing_ok=True)


main()
