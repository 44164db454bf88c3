//! The program that starts before a server in a swarm service (`gate`), and the one that ends the server there
//! (`watch`).
//!
//! The *gate* is the command of the service. By itself it only waits for its gateway. It receives the command to run,
//! reports the state of its container, and becomes the server once the gateway agrees. So if anything else (the swarm,
//! or a person) starts a task of the service, only a gate runs. It exits if it receives nothing for
//! [`INPUT_TIMEOUT_SECS`] seconds.
//!
//! 1. From the gateway: a length, then as many bytes: the number of arguments, the arguments, and the variables. Each
//!    text ends with a zero.
//! 2. To the gateway: [`SECTION_COUNT`] sections, each a length and as many bytes: `/proc/self/status`;
//!    `/proc/net/dev`; the devices that are up, one per line; the kernel's log; an empty text if the program exists.
//! 3. From the gateway: one byte.
//!
//! Numbers are 32-bit little endian.
//!
//! The *watch* runs next to the server, over a separate connection. It replies to each byte that it receives. It kills
//! everything in the container if it receives nothing for [`SILENCE_SECS`] seconds or its connection is closed, so a
//! server cannot outlive the connection to its gateway. The server runs as the same user and may stop the watch, but
//! cannot reply in its place: the watch receives a key before the server starts ([`answer`]), and no other process can
//! read its memory.
//!
//! # Invariants
//!
//! - Input after step 3 is not read: it belongs to the server.
//! - Variable values exist only in the memory of this process and in its successor's environment.
//!
//! [`SECTION_COUNT`]: super::frame::SECTION_COUNT

use super::frame::{
    ANSWER_BYTES, KEY_BYTES, MAX_ORDER_BYTES, MAX_SECTION_BYTES, SECTION_COUNT, SILENCE_SECS,
    answer,
};
use super::{
    AF_INET, EAGAIN, EINTR, POLLIN, PollFd, STDIN, STDOUT, call, exit, numbers::*, poll, read,
};

/// Seconds that a gate waits for its next input.
const INPUT_TIMEOUT_SECS: usize = 60;

const AT_FDCWD: usize = -100_isize as usize;
const X_OK: usize = 1;
const ALL_PROCESSES: usize = -1_isize as usize;
const SIGPIPE: u64 = 13;
const SIGKILL: usize = 9;
const SIG_BLOCK: usize = 0;
const PR_SET_DUMPABLE: usize = 4;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const SOCK_DGRAM: usize = 2;
const SIOCGIFFLAGS: usize = 0x8913;
const IFF_UP: u8 = 1;
/// Maximum length of a device name, including the terminating zero.
const IFNAMSIZ: usize = 16;
const SYSLOG_ACTION_READ_ALL: usize = 3;
/// The exit code of a shell for a missing program.
const NOT_RUN_EXIT_CODE: usize = 127;
const BROKEN_EXIT_CODE: usize = 125;
/// Maximum number of arguments, and of variables.
const MAX_TEXTS: usize = 8192;
const MAX_PATH_BYTES: usize = 4096;

type Text = *const u8;

/// Buffers for an order and a report.
struct Room {
    order: [u8; MAX_ORDER_BYTES],
    /// Both `args` and `vars` end with a null.
    args: [Text; MAX_TEXTS],
    vars: [Text; MAX_TEXTS],
    path: [u8; MAX_PATH_BYTES],
    section: [u8; MAX_SECTION_BYTES],
    up: [u8; MAX_SECTION_BYTES],
}

/// All zeros, so that it takes no memory before its first use.
static mut ROOM: Room = Room {
    order: [0; MAX_ORDER_BYTES],
    args: [core::ptr::null(); MAX_TEXTS],
    vars: [core::ptr::null(); MAX_TEXTS],
    path: [0; MAX_PATH_BYTES],
    section: [0; MAX_SECTION_BYTES],
    up: [0; MAX_SECTION_BYTES],
};

/// Returns an argument of this program.
///
/// # Safety
/// `stack` is the initial stack that the kernel gives to a program.
pub(crate) unsafe fn argument(stack: *const usize, number: usize) -> Option<&'static [u8]> {
    // SAFETY: guaranteed by the caller. There are as many addresses as the number says.
    unsafe { (number < *stack).then(|| text(*stack.add(1 + number) as Text)) }
}

/// # Safety
/// The text ends with a zero.
unsafe fn text(at: Text) -> &'static [u8] {
    let mut length = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while *at.add(length) != 0 {
            length += 1;
        }
        core::slice::from_raw_parts(at, length)
    }
}

pub(crate) fn gate(stack: *const usize) -> ! {
    // SAFETY: there is one thread, and only this function uses it.
    let room = unsafe { &mut *(&raw mut ROOM) };
    let mut length = [0; 4];
    take(&mut length);
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_ORDER_BYTES || length < 4 {
        exit(BROKEN_EXIT_CODE);
    }
    take(&mut room.order[..length]);
    let (count, rest) = room.order[..length].split_at(4);
    let count = u32::from_le_bytes([count[0], count[1], count[2], count[3]]) as usize;
    let rest = list(rest, count, &mut room.args);
    list(rest, MAX_TEXTS, &mut room.vars);
    // SAFETY: `stack` comes from the kernel.
    unsafe { inherit(stack, &mut room.vars) };
    call(PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]);

    let mut devices = 0;
    for file in [b"/proc/self/status\0".as_slice(), b"/proc/net/dev\0"] {
        let length = contents(file, &mut room.section);
        tell(&room.section[..length]);
        devices = length;
    }
    let length = up(&room.section[..devices], &mut room.up);
    tell(&room.up[..length]);
    let at = room.section.as_mut_ptr() as usize;
    let length = call(
        SYSLOG,
        [SYSLOG_ACTION_READ_ALL, at, MAX_SECTION_BYTES, 0, 0, 0],
    );
    tell(&room.section[..length.max(0) as usize]);
    let program = find(room);
    const _: () = assert!(SECTION_COUNT == 5);
    tell(if program.is_null() { b"absent" } else { b"" });
    take(&mut [0]);

    let (args, vars) = (room.args.as_ptr() as usize, room.vars.as_ptr() as usize);
    call(EXECVE, [program as usize, args, vars, 0, 0, 0]);
    exit(NOT_RUN_EXIT_CODE)
}

/// Fills `place` from the input. Exits at the end of the input.
fn take(mut place: &mut [u8]) {
    while !place.is_empty() {
        if !is_spoken_to(INPUT_TIMEOUT_SECS) {
            exit(BROKEN_EXIT_CODE);
        }
        match read(STDIN, place) {
            EAGAIN | EINTR => {}
            count if count > 0 => place = &mut place[count as usize..],
            _ => exit(BROKEN_EXIT_CODE),
        }
    }
}

/// Returns whether there is input within this many seconds.
fn is_spoken_to(seconds: usize) -> bool {
    loop {
        let mut polled = [PollFd {
            fd: STDIN,
            events: POLLIN,
            revents: 0,
        }];
        match poll(&mut polled, Some(seconds)) {
            EINTR => {}
            ready => return ready > 0,
        }
    }
}

/// Stores pointers to at most `most` texts of the order. Returns the rest of the order.
fn list<'a>(mut order: &'a [u8], most: usize, texts: &mut [Text; MAX_TEXTS]) -> &'a [u8] {
    let mut count = 0;
    while count < most && !order.is_empty() {
        let mut length = 0;
        while length < order.len() && order[length] != 0 {
            length += 1;
        }
        if length == order.len() || count == MAX_TEXTS - 1 {
            exit(BROKEN_EXIT_CODE);
        }
        let (one, rest) = order.split_at(length + 1);
        texts[count] = one.as_ptr();
        (count, order) = (count + 1, rest);
    }
    order
}

/// Adds variables of this process that the order does not set.
///
/// # Safety
/// `stack` is the initial stack that the kernel gives to a program, and `vars` are texts.
unsafe fn inherit(stack: *const usize, vars: &mut [Text; MAX_TEXTS]) {
    let mut count = 0;
    while !vars[count].is_null() {
        count += 1;
    }
    let given = count;
    // SAFETY: guaranteed by the caller. The arguments and a zero are followed by the variables and a zero.
    unsafe {
        let mut at = stack.add(2 + *stack);
        while *at != 0 && count < MAX_TEXTS - 1 {
            let own = *at as Text;
            if !vars[..given]
                .iter()
                .any(|&var| is_same(text(var), text(own)))
            {
                vars[count] = own;
                count += 1;
            }
            at = at.add(1);
        }
    }
}

/// Returns whether two variables have the same name.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    for (at, byte) in one.iter().enumerate() {
        if other.get(at) != Some(byte) {
            return false;
        }
        if *byte == b'=' {
            return true;
        }
    }
    false
}

/// Returns the path of the program, or null if it does not exist.
fn find(room: &mut Room) -> Text {
    let nowhere = core::ptr::null();
    if room.args[0].is_null() {
        return nowhere;
    }
    // SAFETY: both point to texts.
    let name = unsafe { text(room.args[0]) };
    if name.contains(&b'/') {
        return if runs(room.args[0]) {
            room.args[0]
        } else {
            nowhere
        };
    }
    let dirs = room.vars.iter().take_while(|var| !var.is_null());
    // SAFETY: as above.
    let dirs = dirs.map(|&var| unsafe { text(var) });
    let mut dirs = dirs.filter_map(|var| var.strip_prefix(b"PATH="));
    let dirs = dirs.next().unwrap_or(b"/usr/local/bin:/usr/bin:/bin");
    for dir in dirs.split(|byte| *byte == b':') {
        let length = dir.len() + 1 + name.len();
        if length >= MAX_PATH_BYTES {
            continue;
        }
        room.path[..dir.len()].copy_from_slice(dir);
        room.path[dir.len()] = b'/';
        room.path[dir.len() + 1..length].copy_from_slice(name);
        room.path[length] = 0;
        if runs(room.path.as_ptr()) {
            return room.path.as_ptr();
        }
    }
    nowhere
}

/// Returns whether there is an executable file at this path.
fn runs(path: Text) -> bool {
    call(FACCESSAT, [AT_FDCWD, path as usize, X_OK, 0, 0, 0]) == 0
}

/// Reads the beginning of a file. Returns the number of bytes read.
fn contents(path: &[u8], place: &mut [u8]) -> usize {
    let file = call(OPENAT, [AT_FDCWD, path.as_ptr() as usize, 0, 0, 0, 0]);
    if file < 0 {
        return 0;
    }
    let mut length = 0;
    while length < place.len() {
        match read(file as i32, &mut place[length..]) {
            EINTR => {}
            count if count > 0 => length += count as usize,
            _ => break,
        }
    }
    call(CLOSE, [file as usize, 0, 0, 0, 0, 0]);
    length
}

/// Writes the names of devices that are up, one per line. A device whose state is unknown counts as up.
fn up(devices: &[u8], place: &mut [u8; MAX_SECTION_BYTES]) -> usize {
    let socket = call(SOCKET, [usize::from(AF_INET), SOCK_DGRAM, 0, 0, 0, 0]);
    let mut length = 0;
    // Skip the two heading lines; then ` lo: 0 0 …`.
    for line in devices.split(|byte| *byte == b'\n').skip(2) {
        let mut parts = line.split(|byte| *byte == b':');
        let (Some(name), Some(_)) = (parts.next(), parts.next()) else {
            continue;
        };
        let name = name.trim_ascii();
        // `struct ifreq`: the name and the flags.
        let mut request = [0; IFNAMSIZ + 24];
        let is_told = name.len() < IFNAMSIZ && {
            request[..name.len()].copy_from_slice(name);
            let at = &raw mut request as usize;
            call(IOCTL, [socket as usize, SIOCGIFFLAGS, at, 0, 0, 0]) == 0
        };
        if is_told && request[IFNAMSIZ] & IFF_UP == 0 {
            continue;
        }
        // Fits, because a name is shorter than its line in `devices`.
        place[length..length + name.len()].copy_from_slice(name);
        place[length + name.len()] = b'\n';
        length += name.len() + 1;
    }
    if socket >= 0 {
        call(CLOSE, [socket as usize, 0, 0, 0, 0, 0]);
    }
    length
}

fn tell(section: &[u8]) {
    super::say(&(section.len() as u32).to_le_bytes());
    super::say(section);
}

pub(crate) fn watch() -> ! {
    // Before a server runs, deny access to the memory of this process, and on Linux also to its open files.
    call(PRCTL, [PR_SET_DUMPABLE, 0, 0, 0, 0, 0]);
    // SIGPIPE must not kill this process before it has killed the server (below).
    let blocked: u64 = 1 << (SIGPIPE - 1);
    let at = &raw const blocked as usize;
    call(SIGPROCMASK, [SIG_BLOCK, at, 0, size_of::<u64>(), 0, 0]);
    let mut key = [0; KEY_BYTES];
    take(&mut key);
    let mut number = 0;
    let mut heard = [0; 64];
    'speaking: while is_spoken_to(SILENCE_SECS) {
        let count = match read(STDIN, &mut heard) {
            EAGAIN | EINTR => continue,
            count if count > 0 => count as usize,
            _ => break,
        };
        for _ in 0..count {
            let answer = answer(&key, number);
            number += 1;
            let at = answer.as_ptr() as usize;
            if call(WRITE, [STDOUT as usize, at, ANSWER_BYTES, 0, 0, 0]) != ANSWER_BYTES as isize {
                break 'speaking;
            }
        }
    }
    // Kills all processes but this one and the first one, which exits after its child.
    call(KILL, [ALL_PROCESSES, SIGKILL, 0, 0, 0, 0]);
    exit(0)
}
