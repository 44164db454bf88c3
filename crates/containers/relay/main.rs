//! The programs that Toolwharf runs in containers, in one static executable that `build.rs` builds.
//!
//! - Without an argument it is the relay. For `docker::relay`, it connects to the loopback of its container, which is
//!   not reachable from outside. It receives frames (`frame.rs`) on standard input, opens the requested connections,
//!   and replies on standard output. It exits at the end of its input.
//! - `gate` and `watch`: see `gate.rs`.
//!
//! # Invariants
//!
//! - The executable needs nothing from the container: no library, no file, no thread.
//! - It never allocates memory. The relay never blocks except on its output, which the gateway always reads.
//!
//! # Deliberately absent
//!
//! The standard library, because it needs a libc, which a container may not have. Hence the direct system calls.

#![no_std]
#![no_main]
// Otherwise the compiler would turn the body of `memcpy` into a call of `memcpy`.
#![no_builtins]

mod frame;
mod gate;

use core::arch::{asm, global_asm};

use frame::{
    CLOSED, CREDIT, DATA, END, HEAD_BYTES, MAX_BODY_BYTES, MAX_CONNECTIONS, OPEN, RESET,
    WINDOW_BYTES, head,
};

const STDIN: i32 = 0;
const STDOUT: i32 = 1;

const EINTR: isize = -4;
const EAGAIN: isize = -11;
const EINPROGRESS: isize = -115;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOCK_STREAM: usize = 1;
const SOCK_NONBLOCK: usize = 0o4000;
const SOL_SOCKET: usize = 1;
const SO_ERROR: usize = 4;
const SHUT_WR: usize = 1;
const MSG_NOSIGNAL: usize = 0x4000;

const POLLIN: i16 = 1;
const POLLOUT: i16 = 4;
/// Input, an error or the end of the stream. The last two are always reported.
const READ_EVENTS: i16 = !POLLOUT;

/// One connection. All zeros if this slot is free.
#[derive(Clone, Copy)]
struct Connection {
    /// Zero if it has no socket: descriptor 0 is the standard input.
    socket: i32,
    port: u16,
    /// The address family that was tried last. Zero once connected.
    connecting: u16,
    /// Ring buffer of data that the server has not accepted yet.
    ring: [u8; WINDOW_BYTES],
    at: usize,
    length: usize,
    /// Bytes that the gateway currently accepts.
    credit: usize,
    /// The gateway has no more data.
    heard_end: bool,
    /// The end of the gateway's data was passed on to the server, or the server accepts no more data.
    told_end: bool,
    /// The server has no more data, and the gateway was notified.
    ended: bool,
}

const NONE: Connection = Connection {
    socket: 0,
    port: 0,
    connecting: 0,
    ring: [0; WINDOW_BYTES],
    at: 0,
    length: 0,
    credit: 0,
    heard_end: false,
    told_end: false,
    ended: false,
};

#[repr(C)]
#[derive(Clone, Copy)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

struct Relay {
    connections: [Connection; MAX_CONNECTIONS],
    input: [u8; 2 * (HEAD_BYTES + MAX_BODY_BYTES)],
    filled: usize,
    output: [u8; HEAD_BYTES + MAX_BODY_BYTES],
    polled: [PollFd; MAX_CONNECTIONS + 1],
}

/// All zeros, so that it takes no memory before its first use.
static mut RELAY: Relay = Relay {
    connections: [NONE; MAX_CONNECTIONS],
    input: [0; 2 * (HEAD_BYTES + MAX_BODY_BYTES)],
    filled: 0,
    output: [0; HEAD_BYTES + MAX_BODY_BYTES],
    polled: [PollFd {
        fd: 0,
        events: 0,
        revents: 0,
    }; MAX_CONNECTIONS + 1],
};

/// `stack`: the initial stack from the kernel, which starts with the number of arguments and their addresses.
#[unsafe(no_mangle)]
extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: `stack` comes from the kernel.
    match unsafe { gate::argument(stack, 1) } {
        Some(b"gate") => gate::gate(stack),
        Some(b"watch") => gate::watch(),
        _ => relay(),
    }
}

fn relay() -> ! {
    // SAFETY: there is one thread, and only this function uses it.
    let relay = unsafe { &mut *(&raw mut RELAY) };
    loop {
        relay.wait();
        if relay.polled[MAX_CONNECTIONS].revents != 0 {
            relay.hear();
        }
        for number in 0..MAX_CONNECTIONS {
            let ready = relay.polled[number].revents;
            relay.serve(number, ready);
        }
    }
}

impl Relay {
    /// Waits until there is something to do.
    fn wait(&mut self) {
        for (connection, polled) in self.connections.iter().zip(&mut self.polled) {
            let mut events = 0;
            if connection.connecting != 0 || connection.length > 0 {
                events |= POLLOUT;
            }
            if connection.connecting == 0 && !connection.ended && connection.credit > 0 {
                events |= POLLIN;
            }
            let wanted = connection.socket != 0 && events != 0;
            *polled = PollFd {
                fd: if wanted { connection.socket } else { -1 },
                events,
                revents: 0,
            };
        }
        self.polled[MAX_CONNECTIONS] = PollFd {
            fd: STDIN,
            events: POLLIN,
            revents: 0,
        };
        poll(&mut self.polled, None);
    }

    /// Handles frames from the gateway.
    fn hear(&mut self) {
        let rest = &mut self.input[self.filled..];
        match read(STDIN, rest) {
            EAGAIN | EINTR => return,
            count if count > 0 => self.filled += count as usize,
            // Exit at the end of the input.
            _ => exit(0),
        }
        let mut at = 0;
        while self.filled - at >= HEAD_BYTES {
            let kind = self.input[at];
            let number = usize::from(self.input[at + 1]);
            let value = u16::from_le_bytes([self.input[at + 2], self.input[at + 3]]);
            let length = if kind == DATA { usize::from(value) } else { 0 };
            if length > MAX_BODY_BYTES || number >= MAX_CONNECTIONS {
                exit(1);
            }
            if self.filled - at < HEAD_BYTES + length {
                break;
            }
            let body = at + HEAD_BYTES;
            let connection = &mut self.connections[number];
            match kind {
                OPEN => connection.open(value),
                // The gateway sent this frame before it learned that the connection had ended.
                _ if connection.socket == 0 => {}
                DATA => connection.take(&self.input[body..body + length]),
                CREDIT => connection.credit += usize::from(value),
                END => connection.heard_end = true,
                RESET => connection.close(),
                _ => exit(1),
            }
            if connection.socket == 0 && (kind == OPEN || kind == RESET) {
                say(&head(CLOSED, number as u8, 0));
            }
            // The polled events may belong to an earlier connection.
            self.polled[number].revents = 0;
            at = body + length;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
    }

    fn serve(&mut self, number: usize, ready: i16) {
        let connection = &mut self.connections[number];
        if connection.socket == 0 {
            return;
        }
        let mut over = false;
        if connection.connecting != 0 {
            if ready != 0 {
                over = !connection.connected();
            }
        } else {
            if ready & POLLOUT != 0 && connection.length > 0 {
                let passed = connection.pass();
                if passed > 0 {
                    say(&head(CREDIT, number as u8, passed));
                }
            }
            if ready & READ_EVENTS != 0 && !connection.ended && connection.credit > 0 {
                let most = connection.credit.min(MAX_BODY_BYTES);
                match read(
                    connection.socket,
                    &mut self.output[HEAD_BYTES..HEAD_BYTES + most],
                ) {
                    EAGAIN | EINTR => {}
                    0 => {
                        connection.ended = true;
                        say(&head(END, number as u8, 0));
                    }
                    count if count > 0 => {
                        let count = count as usize;
                        connection.credit -= count;
                        self.output[..HEAD_BYTES].copy_from_slice(&head(
                            DATA,
                            number as u8,
                            count as u16,
                        ));
                        say(&self.output[..HEAD_BYTES + count]);
                    }
                    _ => over = true,
                }
            }
            if connection.heard_end && connection.length == 0 && !connection.told_end {
                connection.told_end = true;
                call(SHUTDOWN, [connection.socket as usize, SHUT_WR, 0, 0, 0, 0]);
            }
        }
        if over || connection.ended && connection.told_end {
            connection.close();
            say(&head(CLOSED, number as u8, 0));
        }
    }
}

impl Connection {
    fn open(&mut self, port: u16) {
        self.close();
        (self.port, self.credit) = (port, WINDOW_BYTES);
        if !self.connect(AF_INET) && !self.connect(AF_INET6) {
            self.close();
        }
    }

    /// Starts to connect to a loopback address. Returns whether that can succeed.
    fn connect(&mut self, family: u16) -> bool {
        if self.socket != 0 {
            call(CLOSE, [self.socket as usize, 0, 0, 0, 0, 0]);
            self.socket = 0;
        }
        let kind = SOCK_STREAM | SOCK_NONBLOCK;
        let socket = call(SOCKET, [usize::from(family), kind, 0, 0, 0, 0]);
        if socket <= 0 {
            return false;
        }
        (self.socket, self.connecting) = (socket as i32, family);
        let mut address = [0; 28];
        address[..2].copy_from_slice(&family.to_ne_bytes());
        address[2..4].copy_from_slice(&self.port.to_be_bytes());
        let length = if family == AF_INET {
            address[4..8].copy_from_slice(&[127, 0, 0, 1]);
            16
        } else {
            address[23] = 1;
            28
        };
        let at = address.as_ptr() as usize;
        let begun = call(CONNECT, [socket as usize, at, length, 0, 0, 0]);
        begun == 0 || begun == EINPROGRESS
    }

    /// Checks the result of connecting. Returns true if it succeeded or another address is being tried.
    fn connected(&mut self) -> bool {
        let (mut error, mut length) = (0_i32, 4_u32);
        let at = (&raw mut error as usize, &raw mut length as usize);
        let socket = self.socket as usize;
        let told = call(GETSOCKOPT, [socket, SOL_SOCKET, SO_ERROR, at.0, at.1, 0]);
        if told == 0 && error == 0 {
            self.connecting = 0;
            return true;
        }
        self.connecting == AF_INET && self.connect(AF_INET6)
    }

    /// Buffers data for the server.
    fn take(&mut self, data: &[u8]) {
        if self.told_end {
            return;
        }
        if self.length + data.len() > WINDOW_BYTES {
            exit(1);
        }
        let end = (self.at + self.length) % WINDOW_BYTES;
        let (first, second) = data.split_at(data.len().min(WINDOW_BYTES - end));
        self.ring[end..end + first.len()].copy_from_slice(first);
        self.ring[..second.len()].copy_from_slice(second);
        self.length += data.len();
    }

    /// Passes data to the server. Returns the number of bytes accepted.
    fn pass(&mut self) -> u16 {
        let count = self.length.min(WINDOW_BYTES - self.at).min(MAX_BODY_BYTES);
        let data = &self.ring[self.at..self.at + count];
        let at = data.as_ptr() as usize;
        match call(
            SENDTO,
            [self.socket as usize, at, count, MSG_NOSIGNAL, 0, 0],
        ) {
            EAGAIN | EINTR => 0,
            count if count > 0 => {
                self.at = (self.at + count as usize) % WINDOW_BYTES;
                self.length -= count as usize;
                count as u16
            }
            // The server accepts no more, but may still send data.
            _ => {
                (self.length, self.heard_end, self.told_end) = (0, true, true);
                0
            }
        }
    }

    fn close(&mut self) {
        if self.socket != 0 {
            call(CLOSE, [self.socket as usize, 0, 0, 0, 0, 0]);
        }
        (self.socket, self.connecting, self.at, self.length) = (0, 0, 0, 0);
        (self.heard_end, self.told_end, self.ended) = (false, false, false);
    }
}

fn say(mut text: &[u8]) {
    while !text.is_empty() {
        let at = text.as_ptr() as usize;
        match call(WRITE, [STDOUT as usize, at, text.len(), 0, 0, 0]) {
            EINTR => {}
            EAGAIN => {
                let polled = PollFd {
                    fd: STDOUT,
                    events: POLLOUT,
                    revents: 0,
                };
                poll(&mut [polled], None);
            }
            count if count > 0 => text = &text[count as usize..],
            _ => exit(1),
        }
    }
}

fn read(file: i32, place: &mut [u8]) -> isize {
    let at = place.as_mut_ptr() as usize;
    call(READ, [file as usize, at, place.len(), 0, 0, 0])
}

/// Waits for events for at most this many seconds. Returns the number of ready descriptors.
fn poll(polled: &mut [PollFd], seconds: Option<usize>) -> isize {
    let time = [seconds.unwrap_or(0), 0];
    let limit = match seconds {
        Some(_) => time.as_ptr() as usize,
        None => 0,
    };
    let at = polled.as_mut_ptr() as usize;
    call(PPOLL, [at, polled.len(), limit, 0, 0, 0])
}

fn exit(code: usize) -> ! {
    loop {
        call(EXIT_GROUP, [code, 0, 0, 0, 0, 0]);
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(2)
}

#[cfg(target_arch = "x86_64")]
mod numbers {
    pub(crate) const READ: usize = 0;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const SIGPROCMASK: usize = 14;
    pub(crate) const IOCTL: usize = 16;
    pub(crate) const SOCKET: usize = 41;
    pub(crate) const CONNECT: usize = 42;
    pub(crate) const SENDTO: usize = 44;
    pub(crate) const SHUTDOWN: usize = 48;
    pub(crate) const GETSOCKOPT: usize = 55;
    pub(crate) const EXECVE: usize = 59;
    pub(crate) const KILL: usize = 62;
    pub(crate) const SYSLOG: usize = 103;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const FACCESSAT: usize = 269;
    pub(crate) const PPOLL: usize = 271;
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    pub(crate) const IOCTL: usize = 29;
    pub(crate) const FACCESSAT: usize = 48;
    pub(crate) const OPENAT: usize = 56;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const READ: usize = 63;
    pub(crate) const WRITE: usize = 64;
    pub(crate) const PPOLL: usize = 73;
    pub(crate) const EXIT_GROUP: usize = 94;
    pub(crate) const SYSLOG: usize = 116;
    pub(crate) const KILL: usize = 129;
    pub(crate) const SIGPROCMASK: usize = 135;
    pub(crate) const PRCTL: usize = 167;
    pub(crate) const SOCKET: usize = 198;
    pub(crate) const CONNECT: usize = 203;
    pub(crate) const SENDTO: usize = 206;
    pub(crate) const GETSOCKOPT: usize = 209;
    pub(crate) const SHUTDOWN: usize = 210;
    pub(crate) const EXECVE: usize = 221;
}

use numbers::*;

/// A system call. Memory whose address is an argument must live until it returns.
#[cfg(target_arch = "x86_64")]
fn call(number: usize, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel writes only to memory named by the arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// A system call. Memory whose address is an argument must live until it returns.
#[cfg(target_arch = "aarch64")]
fn call(number: usize, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel writes only to memory named by the arguments.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    result
}

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl _start",
    "_start:",
    "mov rdi, rsp",
    "and rsp, -16",
    "call begin"
);

#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x0, sp", "bl begin");

/// Referenced by unwinding code, which is never executed here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

// Functions that the compiler expects. Only `memmove` may get overlapping regions.

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: guaranteed by the caller.
        unsafe { *to.add(at) = *from.add(at) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize) <= from as usize {
        // SAFETY: guaranteed by the caller. Nothing is overwritten before it is read.
        return unsafe { memcpy(to, from, count) };
    }
    for at in (0..count).rev() {
        // SAFETY: guaranteed by the caller.
        unsafe { *to.add(at) = *from.add(at) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: guaranteed by the caller.
        unsafe { *to.add(at) = byte as u8 };
    }
    to
}
