//! The system calls that a server may make, as a program for the kernel's filter (seccomp(2), mode 2).
//!
//! Bubblewrap installs the filter in the process that becomes the server, before the shim runs. Child processes inherit
//! it and cannot remove it. [`super::verify`] reads back from the kernel that it is in force.
//!
//! The list is Docker's default profile for a container without capabilities, minus the calls that Docker allows
//! depending on the kernel version or on capabilities. So there is no `ptrace`, no access to the memory of other
//! processes, no creation of namespaces, and no sockets other than of the four families that programs use. io_uring,
//! `bpf`, `keyctl`, `userfaultfd` and the like are not on the list.
//!
//! # Invariants
//!
//! - Calls that are not on the list fail with `EPERM`. Calls newer than the list fail with `ENOSYS`, and so does
//!   `clone3`, whose flags a filter cannot read: libraries then fall back to other calls.
//! - Calls of another architecture (32-bit programs, x32) fail.
//!
//! # Deliberately absent
//!
//! Architectures other than x86-64 and AArch64. On these there is no filter, and the status reports that.

use linux_raw_sys::general as nr;

/// The classic BPF instructions used here.
const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_NOT_LESS: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Offsets in the filter's input (`struct seccomp_data`).
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
/// The lower half of the first argument.
const ARGUMENT_OFFSET: u32 = 16;
/// The lower half of the third argument.
const THIRD_ARGUMENT_OFFSET: u32 = 32;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const EAFNOSUPPORT: u32 = 97;

/// All flags of `clone` that create a namespace.
const NAMESPACE_FLAGS: u32 = 0x7e02_0000;
/// `AF_UNIX`, `AF_INET`, `AF_INET6`, `AF_NETLINK`.
const FAMILIES: [u32; 4] = [1, 2, 10, 16];
/// Linux and its variants, with and without 32-bit addresses, and the value that only queries the personality.
const PERSONALITIES: [u32; 5] = [0, 8, 0x0002_0000, 0x0002_0008, u32::MAX];
/// The protection of memory that may be executed.
const PROT_EXEC: u32 = 4;
/// x32 system call numbers have this bit set.
#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

/// The kernel's name of the architecture (`AUDIT_ARCH_…`). `None`: no list for this architecture.
#[cfg(target_arch = "x86_64")]
const MACHINE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const MACHINE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE: Option<u32> = None;

/// True if there is a filter for this architecture.
pub(super) const IS_SUPPORTED: bool = MACHINE.is_some();

/// The numbers of the named system calls.
macro_rules! numbers {
    ($($name:ident)*) => { &[$(nr::$name),*] };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[rustfmt::skip]
const ALLOWED: &[u32] = numbers![
    __NR_accept __NR_accept4 __NR_adjtimex __NR_bind __NR_brk __NR_cachestat __NR_capget __NR_capset __NR_chdir
    __NR_clock_adjtime __NR_clock_getres __NR_clock_gettime __NR_clock_nanosleep __NR_close __NR_close_range
    __NR_connect __NR_copy_file_range __NR_dup __NR_dup3 __NR_epoll_create1 __NR_epoll_ctl __NR_epoll_pwait
    __NR_epoll_pwait2 __NR_eventfd2 __NR_execve __NR_execveat __NR_exit __NR_exit_group __NR_faccessat __NR_faccessat2
    __NR_fadvise64 __NR_fallocate __NR_fanotify_mark __NR_fchdir __NR_fchmod __NR_fchmodat __NR_fchmodat2 __NR_fchown
    __NR_fchownat __NR_fcntl __NR_fdatasync __NR_fgetxattr __NR_flistxattr __NR_flock __NR_fremovexattr __NR_fsetxattr
    __NR_fstat __NR_fstatfs __NR_fsync __NR_ftruncate __NR_futex __NR_futex_requeue __NR_futex_wait __NR_futex_waitv
    __NR_futex_wake __NR_getcpu __NR_getcwd __NR_getdents64 __NR_getegid __NR_geteuid __NR_getgid __NR_getgroups
    __NR_getitimer __NR_getpeername __NR_getpgid __NR_getpid __NR_getppid __NR_getpriority __NR_getrandom
    __NR_getresgid __NR_getresuid __NR_getrlimit __NR_get_robust_list __NR_getrusage __NR_getsid __NR_getsockname
    __NR_getsockopt __NR_gettid __NR_gettimeofday __NR_getuid __NR_getxattr __NR_getxattrat __NR_inotify_add_watch
    __NR_inotify_init1 __NR_inotify_rm_watch __NR_io_cancel __NR_ioctl __NR_io_destroy __NR_io_getevents
    __NR_io_pgetevents __NR_ioprio_get __NR_ioprio_set __NR_io_setup __NR_io_submit __NR_kill __NR_landlock_add_rule
    __NR_landlock_create_ruleset __NR_landlock_restrict_self __NR_lgetxattr __NR_linkat __NR_listen __NR_listxattr
    __NR_listxattrat __NR_llistxattr __NR_lremovexattr __NR_lseek __NR_lsetxattr __NR_madvise __NR_map_shadow_stack
    __NR_membarrier __NR_memfd_create __NR_mincore __NR_mkdirat __NR_mknodat __NR_mlock __NR_mlock2
    __NR_mlockall __NR_mmap __NR_mprotect __NR_mq_getsetattr __NR_mq_notify __NR_mq_open __NR_mq_timedreceive
    __NR_mq_timedsend __NR_mq_unlink __NR_mremap __NR_mseal __NR_msgctl __NR_msgget __NR_msgrcv __NR_msgsnd __NR_msync
    __NR_munlock __NR_munlockall __NR_munmap __NR_name_to_handle_at __NR_nanosleep __NR_newfstatat __NR_openat
    __NR_openat2 __NR_pidfd_open __NR_pidfd_send_signal __NR_pipe2 __NR_pkey_alloc __NR_pkey_free __NR_pkey_mprotect
    __NR_ppoll __NR_prctl __NR_pread64 __NR_preadv __NR_preadv2 __NR_prlimit64 __NR_process_mrelease __NR_pselect6
    __NR_pwrite64 __NR_pwritev __NR_pwritev2 __NR_read __NR_readahead __NR_readlinkat __NR_readv __NR_recvfrom
    __NR_recvmmsg __NR_recvmsg __NR_remap_file_pages __NR_removexattr __NR_removexattrat __NR_renameat __NR_renameat2
    __NR_restart_syscall __NR_rseq __NR_rt_sigaction __NR_rt_sigpending __NR_rt_sigprocmask __NR_rt_sigqueueinfo
    __NR_rt_sigreturn __NR_rt_sigsuspend __NR_rt_sigtimedwait __NR_rt_tgsigqueueinfo __NR_sched_getaffinity
    __NR_sched_getattr __NR_sched_getparam __NR_sched_get_priority_max __NR_sched_get_priority_min
    __NR_sched_getscheduler __NR_sched_rr_get_interval __NR_sched_setaffinity __NR_sched_setattr __NR_sched_setparam
    __NR_sched_setscheduler __NR_sched_yield __NR_seccomp __NR_semctl __NR_semget __NR_semop __NR_semtimedop
    __NR_sendfile __NR_sendmmsg __NR_sendmsg __NR_sendto __NR_setfsgid __NR_setfsuid __NR_setgid __NR_setgroups
    __NR_setitimer __NR_setpgid __NR_setpriority __NR_setregid __NR_setresgid __NR_setresuid __NR_setreuid
    __NR_setrlimit __NR_set_robust_list __NR_setsid __NR_setsockopt __NR_set_tid_address __NR_setuid __NR_setxattr
    __NR_setxattrat __NR_shmat __NR_shmctl __NR_shmdt __NR_shmget __NR_shutdown __NR_sigaltstack __NR_signalfd4
    __NR_socketpair __NR_splice __NR_statfs __NR_statx __NR_symlinkat __NR_sync __NR_sync_file_range __NR_syncfs
    __NR_sysinfo __NR_tee __NR_tgkill __NR_timer_create __NR_timer_delete __NR_timer_getoverrun __NR_timer_gettime
    __NR_timer_settime __NR_timerfd_create __NR_timerfd_gettime __NR_timerfd_settime __NR_times __NR_tkill
    __NR_truncate __NR_umask __NR_uname __NR_unlinkat __NR_utimensat __NR_vmsplice __NR_wait4 __NR_waitid __NR_write
    __NR_writev
];

/// Calls that only this architecture has: older forms of calls above.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_BESIDES: &[u32] = numbers![
    __NR_access __NR_alarm __NR_chmod __NR_chown __NR_creat __NR_dup2 __NR_epoll_create __NR_epoll_ctl_old
    __NR_epoll_wait __NR_epoll_wait_old __NR_eventfd __NR_fork __NR_futimesat __NR_getdents __NR_getpgrp
    __NR_get_thread_area __NR_inotify_init __NR_lchown __NR_link __NR_lstat __NR_mkdir __NR_mknod __NR_open __NR_pause __NR_pipe __NR_poll __NR_readlink __NR_rename __NR_rmdir __NR_select __NR_set_thread_area
    __NR_signalfd __NR_stat __NR_symlink __NR_time __NR_unlink __NR_uretprobe __NR_utime __NR_utimes __NR_vfork
    __NR_arch_prctl
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_BESIDES: &[u32] = &[];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ALLOWED: &[u32] = &[];

/// One instruction (`struct sock_filter`).
#[derive(Clone, Copy, Debug)]
struct Op {
    code: u16,
    k: u32,
    /// The next instruction if the condition holds, and if not.
    yes: To,
    no: To,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Next,
    Place(Place),
}

/// Jump targets. All of them are after the jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Clone,
    Socket,
    Personality,
    Memory,
    Allow,
    Denied,
    Unknown,
    NoFamily,
}

/// The filter as read by `bwrap --seccomp`. `None`: no filter for this architecture.
pub(super) fn program() -> Option<Vec<u8>> {
    let ops = ops(MACHINE?);
    let mut bytes = Vec::with_capacity(ops.len() * 8);
    for (code, yes, no, k) in assembled(&ops) {
        bytes.extend_from_slice(&code.to_ne_bytes());
        bytes.extend([yes, no]);
        bytes.extend_from_slice(&k.to_ne_bytes());
    }
    Some(bytes)
}

/// A filter that a process sets for itself.
pub(super) struct Filter(Vec<Labelled>);

impl Filter {
    /// Allows `kept`, and `data` for memory that is not executable. Other calls fail.
    pub(super) fn compute_only(kept: &[u32], data: &[u32]) -> Self {
        use Place::{Allow, Denied, Memory};
        use To::{Next, Place as At};
        let jump = |code, k, yes, no| (None, Op { code, k, yes, no });
        let load = |k| jump(LOAD, k, Next, Next);
        let begin = |place, op: Labelled| (Some(place), op.1);
        let mut ops = vec![
            load(ARCHITECTURE_OFFSET),
            jump(JUMP_EQUAL, MACHINE.unwrap_or_default(), Next, At(Denied)),
            load(NUMBER_OFFSET),
        ];
        for (numbers, place) in [(kept, Allow), (data, Memory)] {
            ops.extend(
                numbers
                    .iter()
                    .map(|&one| jump(JUMP_EQUAL, one, At(place), Next)),
            );
        }
        ops.push(begin(Denied, jump(RETURN, ERRNO | EPERM, Next, Next)));
        ops.push(begin(Memory, load(THIRD_ARGUMENT_OFFSET)));
        ops.push(jump(JUMP_ANY_BIT, PROT_EXEC, Next, At(Allow)));
        ops.push(jump(RETURN, ERRNO | EPERM, Next, Next));
        ops.push(begin(Allow, jump(RETURN, ALLOW, Next, Next)));
        Self(ops)
    }

    pub(super) fn instructions(&self) -> Vec<libc::sock_filter> {
        let one = |(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k };
        assembled(&self.0).map(one).collect()
    }
}

/// The number of calls on the list.
pub(super) fn allowed() -> usize {
    ALLOWED.len() + ALLOWED_BESIDES.len() + 3
}

type Labelled = (Option<Place>, Op);

fn ops(machine: u32) -> Vec<Labelled> {
    use Place::{Allow, Clone, Denied, NoFamily, Personality, Socket, Unknown};
    use To::{Next, Place as At};
    let jump = |code, k, yes, no| (None, Op { code, k, yes, no });
    let load = |k| jump(LOAD, k, Next, Next);
    let mut ops = vec![
        load(ARCHITECTURE_OFFSET),
        jump(JUMP_EQUAL, machine, Next, At(Unknown)),
        load(NUMBER_OFFSET),
    ];
    #[cfg(target_arch = "x86_64")]
    ops.push(jump(JUMP_NOT_LESS, X32_BIT, At(Unknown), Next));
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    for (number, place) in [
        (nr::__NR_clone, Clone),
        (nr::__NR_clone3, Unknown),
        (nr::__NR_socket, Socket),
        (nr::__NR_personality, Personality),
    ] {
        ops.push(jump(JUMP_EQUAL, number, At(place), Next));
    }
    for (first, last) in ranges() {
        // The number is in the gap before this range: denied.
        ops.push(jump(JUMP_NOT_LESS, first, Next, At(Denied)));
        ops.push(jump(JUMP_GREATER, last, Next, At(Allow)));
    }
    ops.push(jump(RETURN, ERRNO | ENOSYS, Next, Next));
    let begin = |place, op: Labelled| (Some(place), op.1);
    ops.push(begin(Clone, load(ARGUMENT_OFFSET)));
    ops.push(jump(JUMP_ANY_BIT, NAMESPACE_FLAGS, At(Denied), At(Allow)));
    ops.push(begin(Socket, load(ARGUMENT_OFFSET)));
    ops.extend(FAMILIES.map(|family| jump(JUMP_EQUAL, family, At(Allow), Next)));
    ops.push(begin(
        NoFamily,
        jump(RETURN, ERRNO | EAFNOSUPPORT, Next, Next),
    ));
    ops.push(begin(Personality, load(ARGUMENT_OFFSET)));
    ops.extend(PERSONALITIES.map(|one| jump(JUMP_EQUAL, one, At(Allow), Next)));
    for (place, verdict) in [
        (Denied, ERRNO | EPERM),
        (Allow, ALLOW),
        (Unknown, ERRNO | ENOSYS),
    ] {
        ops.push(begin(place, jump(RETURN, verdict, Next, Next)));
    }
    ops
}

/// The allowed numbers, as ranges of consecutive numbers.
fn ranges() -> Vec<(u32, u32)> {
    let mut numbers: Vec<u32> = [ALLOWED, ALLOWED_BESIDES].concat();
    numbers.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if number <= *last + 1 => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

/// Code, the two jump distances, and the operand of each instruction.
fn assembled(ops: &[Labelled]) -> impl Iterator<Item = (u16, u8, u8, u32)> {
    let distance = |at: usize, to: To| match to {
        To::Next => 0,
        To::Place(place) => {
            let target = ops.iter().position(|(label, _)| *label == Some(place));
            let far = target.expect("every jump target is in the program") - at - 1;
            u8::try_from(far).expect("every jump distance fits into a byte")
        }
    };
    let one = move |(at, (_, op)): (usize, &Labelled)| {
        (op.code, distance(at, op.yes), distance(at, op.no), op.k)
    };
    ops.iter().enumerate().map(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter on a call, as the kernel would.
    fn verdict(machine: u32, number: u32, argument: u32) -> u32 {
        verdict_of(&ops(MACHINE.unwrap()), machine, number, argument)
    }

    /// `argument`: each of its arguments.
    fn verdict_of(ops: &[Labelled], machine: u32, number: u32, argument: u32) -> u32 {
        let program: Vec<_> = assembled(ops).collect();
        let (mut at, mut value) = (0, 0);
        loop {
            let (code, yes, no, k) = program[at];
            let jump = |holds: bool| usize::from(if holds { yes } else { no });
            at += 1 + match code {
                LOAD => {
                    value = match k {
                        NUMBER_OFFSET => number,
                        ARCHITECTURE_OFFSET => machine,
                        ARGUMENT_OFFSET | THIRD_ARGUMENT_OFFSET => argument,
                        other => panic!("it loads {other}"),
                    };
                    0
                }
                JUMP_EQUAL => jump(value == k),
                JUMP_GREATER => jump(value > k),
                JUMP_NOT_LESS => jump(value >= k),
                JUMP_ANY_BIT => jump(value & k != 0),
                RETURN => return k,
                other => panic!("{other:#x} is no instruction"),
            };
        }
    }

    #[test]
    fn exactly_what_is_listed_is_allowed() {
        let ours = MACHINE.unwrap();
        let listed = |number: &u32| ALLOWED.contains(number) || ALLOWED_BESIDES.contains(number);
        let last = *ALLOWED.iter().chain(ALLOWED_BESIDES).max().unwrap();
        for number in 0..last + 100 {
            if [
                nr::__NR_clone,
                nr::__NR_clone3,
                nr::__NR_socket,
                nr::__NR_personality,
            ]
            .contains(&number)
            {
                continue;
            }
            let expected = match number {
                number if listed(&number) => ALLOW,
                number if number > last => ERRNO | ENOSYS,
                _ => ERRNO | EPERM,
            };
            assert_eq!(verdict(ours, number, 0), expected, "{number}");
            assert_eq!(verdict(ours ^ 1, number, 0), ERRNO | ENOSYS, "{number}");
        }
        for forbidden in [
            nr::__NR_ptrace,
            nr::__NR_process_vm_readv,
            nr::__NR_keyctl,
            nr::__NR_add_key,
            nr::__NR_bpf,
            nr::__NR_userfaultfd,
            nr::__NR_io_uring_setup,
            nr::__NR_io_uring_enter,
            nr::__NR_unshare,
            nr::__NR_setns,
            nr::__NR_mount,
            nr::__NR_perf_event_open,
            nr::__NR_kexec_load,
            nr::__NR_pidfd_getfd,
            nr::__NR_open_by_handle_at,
            nr::__NR_memfd_secret,
        ] {
            assert_eq!(verdict(ours, forbidden, 0), ERRNO | EPERM, "{forbidden}");
        }
    }

    #[test]
    fn arguments_are_looked_at() {
        let ours = MACHINE.unwrap();
        for (number, argument, expected) in [
            (nr::__NR_socket, 1, ALLOW),
            (nr::__NR_socket, 10, ALLOW),
            (nr::__NR_socket, 16, ALLOW),
            (nr::__NR_socket, 40, ERRNO | EAFNOSUPPORT),
            (nr::__NR_socket, 38, ERRNO | EAFNOSUPPORT),
            // These flags create a thread, and a user namespace.
            (nr::__NR_clone, 0x003d_0f00, ALLOW),
            (nr::__NR_clone, 0x1000_0011, ERRNO | EPERM),
            (nr::__NR_clone3, 0, ERRNO | ENOSYS),
            (nr::__NR_personality, u32::MAX, ALLOW),
            (nr::__NR_personality, 0x0040_0000, ERRNO | EPERM),
        ] {
            assert_eq!(
                verdict(ours, number, argument),
                expected,
                "{number} {argument}"
            );
        }
        #[cfg(target_arch = "x86_64")]
        {
            assert_eq!(verdict(ours, X32_BIT | nr::__NR_read, 0), ERRNO | ENOSYS);
            assert_eq!(verdict(ours, nr::__NR_modify_ldt, 0), ERRNO | EPERM);
        }
    }

    #[test]
    fn a_process_that_only_computes_keeps_what_is_named() {
        let (ours, kept, data) = (MACHINE.unwrap(), [nr::__NR_read], [nr::__NR_mmap]);
        let Filter(ops) = Filter::compute_only(&kept, &data);
        for (machine, number, argument, expected) in [
            (ours, nr::__NR_read, 7, ALLOW),
            (ours ^ 1, nr::__NR_read, 7, ERRNO | EPERM),
            (ours, nr::__NR_openat, 0, ERRNO | EPERM),
            (ours, nr::__NR_execve, 0, ERRNO | EPERM),
            (ours, nr::__NR_mmap, 3, ALLOW),
            (ours, nr::__NR_mmap, 7, ERRNO | EPERM),
            (ours, nr::__NR_read | 0x4000_0000, 0, ERRNO | EPERM),
        ] {
            let found = verdict_of(&ops, machine, number, argument);
            assert_eq!(found, expected, "{number} {argument}");
        }
    }

    #[test]
    fn a_program_is_whole_instructions() {
        let program = program().unwrap();
        assert_eq!(program.len() % 8, 0);
        // The kernel accepts up to 4,096 instructions.
        assert!(program.len() / 8 < 400);
    }
}
