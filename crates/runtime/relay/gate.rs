//! What stands before a server in a service of a swarm (`gate`), and what ends it there (`watch`).
//!
//! The *gate* is what the service runs. It does nothing by itself: it waits for its gateway to say what to run. It tells
//! what it finds around it, and becomes the server when the gateway has agreed. So whatever else starts a task of the service
//! (the swarm, or a person) starts nothing but a gate, which ends when nobody has spoken to it for [`PATIENCE`] seconds.
//!
//! 1. From the gateway: a length, and as many bytes: how many arguments there are, the arguments, and the variables. Each text
//!    ends with a zero.
//! 2. To the gateway: [`SECTIONS`] times a length and as many bytes: `/proc/self/status`, `/proc/net/dev`, a line for each of
//!    these devices that is up, the kernel's log, and nothing if the program is there.
//! 3. From the gateway: one byte.
//!
//! Numbers have 32 bits, little endian.
//!
//! The *watch* runs beside the server, over a connection of its own. It answers each byte that it is sent, and ends everything
//! in the container when it has heard nothing for [`SILENCE`] seconds, or its connection is closed: a server that its
//! gateway has lost does not live on. The server has the same user, and may stop the watch. It cannot answer in its place: the
//! watch is given a key before there is a server ([`answer`]), and nobody reads its memory.
//!
//! # Invariants
//!
//! - Nothing that comes after step 3 in the input is read: that is the server's.
//! - Values of variables are in the memory of this process and in its successor's environment, and nowhere else.
//!
//! [`SECTIONS`]: super::frame::SECTIONS

use super::frame::{ANSWER, KEY, ORDER, SECTION, SECTIONS, SILENCE, answer};
use super::{AF_INET, EAGAIN, EINTR, POLLIN, PollFd, STDIN, STDOUT, call, exit, numbers::*, poll, read};

/// Seconds for which a gate waits for its next word.
const PATIENCE: usize = 60;

const AT_FDCWD: usize = -100_isize as usize;
const X_OK: usize = 1;
const EVERYTHING: usize = -1_isize as usize;
const SIGPIPE: u64 = 13;
const SIGKILL: usize = 9;
const SIG_BLOCK: usize = 0;
const PR_SET_DUMPABLE: usize = 4;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const SOCK_DGRAM: usize = 2;
const SIOCGIFFLAGS: usize = 0x8913;
const IFF_UP: u8 = 1;
/// Of a device's name, with a zero.
const IFNAMSIZ: usize = 16;
const SYSLOG_ACTION_READ_ALL: usize = 3;
/// As a shell has it.
const NOT_RUN: usize = 127;
const BROKEN: usize = 125;
/// Arguments, and variables.
const TEXTS: usize = 8192;
const PATH: usize = 4096;

type Text = *const u8;

/// What the order is made ready in.
struct Room {
    order: [u8; ORDER],
    /// Both end with a null.
    args: [Text; TEXTS],
    vars: [Text; TEXTS],
    path: [u8; PATH],
    section: [u8; SECTION],
    up: [u8; SECTION],
}

/// Of zeroes only, so that it takes no memory before it is used.
static mut ROOM: Room = Room {
    order: [0; ORDER],
    args: [core::ptr::null(); TEXTS],
    vars: [core::ptr::null(); TEXTS],
    path: [0; PATH],
    section: [0; SECTION],
    up: [0; SECTION],
};

/// An argument of this program.
///
/// # Safety
/// `stack` is what the kernel gives to a program.
pub(crate) unsafe fn argument(stack: *const usize, number: usize) -> Option<&'static [u8]> {
    // SAFETY: the caller's; there are as many addresses as the number says.
    unsafe { (number < *stack).then(|| text(*stack.add(1 + number) as Text)) }
}

/// # Safety
/// There is a zero.
unsafe fn text(at: Text) -> &'static [u8] {
    let mut length = 0;
    // SAFETY: the caller's.
    unsafe {
        while *at.add(length) != 0 {
            length += 1;
        }
        core::slice::from_raw_parts(at, length)
    }
}

pub(crate) fn gate(stack: *const usize) -> ! {
    // SAFETY: there is one thread, and this is its only function that names it.
    let room = unsafe { &mut *(&raw mut ROOM) };
    let mut length = [0; 4];
    take(&mut length);
    let length = u32::from_le_bytes(length) as usize;
    if length > ORDER || length < 4 {
        exit(BROKEN);
    }
    take(&mut room.order[..length]);
    let (count, rest) = room.order[..length].split_at(4);
    let count = u32::from_le_bytes([count[0], count[1], count[2], count[3]]) as usize;
    let rest = list(rest, count, &mut room.args);
    list(rest, TEXTS, &mut room.vars);
    // SAFETY: the kernel's word is good.
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
    let length = call(SYSLOG, [SYSLOG_ACTION_READ_ALL, at, SECTION, 0, 0, 0]);
    tell(&room.section[..length.max(0) as usize]);
    let program = find(room);
    const _: () = assert!(SECTIONS == 5);
    tell(if program.is_null() { b"absent" } else { b"" });
    take(&mut [0]);

    let (args, vars) = (room.args.as_ptr() as usize, room.vars.as_ptr() as usize);
    call(EXECVE, [program as usize, args, vars, 0, 0, 0]);
    exit(NOT_RUN)
}

/// Reads all of it; the end is ours.
fn take(mut place: &mut [u8]) {
    while !place.is_empty() {
        if !is_spoken_to(PATIENCE) {
            exit(BROKEN);
        }
        match read(STDIN, place) {
            EAGAIN | EINTR => {}
            count if count > 0 => place = &mut place[count as usize..],
            _ => exit(BROKEN),
        }
    }
}

/// Whether there is something to read within so many seconds.
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

/// Notes where so many texts are, or all that there are; what comes after them.
fn list<'a>(mut order: &'a [u8], most: usize, texts: &mut [Text; TEXTS]) -> &'a [u8] {
    let mut count = 0;
    while count < most && !order.is_empty() {
        let mut length = 0;
        while length < order.len() && order[length] != 0 {
            length += 1;
        }
        if length == order.len() || count == TEXTS - 1 {
            exit(BROKEN);
        }
        let (one, rest) = order.split_at(length + 1);
        texts[count] = one.as_ptr();
        (count, order) = (count + 1, rest);
    }
    order
}

/// Adds the variables of this process that are not set anew.
///
/// # Safety
/// `stack` is what the kernel gives to a program, and `vars` are texts.
unsafe fn inherit(stack: *const usize, vars: &mut [Text; TEXTS]) {
    let mut count = 0;
    while !vars[count].is_null() {
        count += 1;
    }
    let given = count;
    // SAFETY: the caller's: after the arguments, and a zero, stand the variables, and a zero.
    unsafe {
        let mut at = stack.add(2 + *stack);
        while *at != 0 && count < TEXTS - 1 {
            let own = *at as Text;
            if !vars[..given].iter().any(|&var| is_same(text(var), text(own))) {
                vars[count] = own;
                count += 1;
            }
            at = at.add(1);
        }
    }
}

/// Whether two variables have one name.
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

/// The path of the program; null if there is none.
fn find(room: &mut Room) -> Text {
    let nowhere = core::ptr::null();
    if room.args[0].is_null() {
        return nowhere;
    }
    // SAFETY: both point to texts.
    let name = unsafe { text(room.args[0]) };
    if name.contains(&b'/') {
        return if runs(room.args[0]) { room.args[0] } else { nowhere };
    }
    let dirs = room.vars.iter().take_while(|var| !var.is_null());
    // SAFETY: as above.
    let dirs = dirs.map(|&var| unsafe { text(var) });
    let mut dirs = dirs.filter_map(|var| var.strip_prefix(b"PATH="));
    let dirs = dirs.next().unwrap_or(b"/usr/local/bin:/usr/bin:/bin");
    for dir in dirs.split(|byte| *byte == b':') {
        let length = dir.len() + 1 + name.len();
        if length >= PATH {
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

/// Whether there is a file that may be executed.
fn runs(path: Text) -> bool {
    call(FACCESSAT, [AT_FDCWD, path as usize, X_OK, 0, 0, 0]) == 0
}

/// Reads the beginning of a file; how much that was.
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

/// The names of the devices that are up, a line each. One whose state is not told counts as up.
fn up(devices: &[u8], place: &mut [u8; SECTION]) -> usize {
    let socket = call(SOCKET, [usize::from(AF_INET), SOCK_DGRAM, 0, 0, 0, 0]);
    let mut length = 0;
    // Two lines of headings; then `  lo: 0 0 …`.
    for line in devices.split(|byte| *byte == b'\n').skip(2) {
        let mut parts = line.split(|byte| *byte == b':');
        let (Some(name), Some(_)) = (parts.next(), parts.next()) else {
            continue;
        };
        let name = name.trim_ascii();
        // `struct ifreq`: the name, and the flags.
        let mut request = [0; IFNAMSIZ + 24];
        let is_told = name.len() < IFNAMSIZ && {
            request[..name.len()].copy_from_slice(name);
            let at = &raw mut request as usize;
            call(IOCTL, [socket as usize, SIOCGIFFLAGS, at, 0, 0, 0]) == 0
        };
        if is_told && request[IFNAMSIZ] & IFF_UP == 0 {
            continue;
        }
        // It is shorter than its line.
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
    // Before there is a server, its memory is closed; under Linux, its open files too.
    call(PRCTL, [PR_SET_DUMPABLE, 0, 0, 0, 0, 0]);
    // Whoever does not listen any more is to end this process in no other way than below.
    let blocked: u64 = 1 << (SIGPIPE - 1);
    let at = &raw const blocked as usize;
    call(SIGPROCMASK, [SIG_BLOCK, at, 0, size_of::<u64>(), 0, 0]);
    let mut key = [0; KEY];
    take(&mut key);
    let mut number = 0;
    let mut heard = [0; 64];
    'speaking: while is_spoken_to(SILENCE) {
        let count = match read(STDIN, &mut heard) {
            EAGAIN | EINTR => continue,
            count if count > 0 => count as usize,
            _ => break,
        };
        for _ in 0..count {
            let answer = answer(&key, number);
            number += 1;
            let at = answer.as_ptr() as usize;
            if call(WRITE, [STDOUT as usize, at, ANSWER, 0, 0, 0]) != ANSWER as isize {
                break 'speaking;
            }
        }
    }
    // All but this process and the first one, which ends with its child.
    call(KILL, [EVERYTHING, SIGKILL, 0, 0, 0, 0]);
    exit(0)
}
