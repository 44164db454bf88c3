//! A process's farewell to almost all system calls, before it interprets code that it does not trust.
//!
//! A sandbox has to allow what a program needs to start: executing, opening files, mapping libraries. A program that
//! only computes and talks over descriptors that are open already needs none of this afterwards. With [`lock_down`] it
//! keeps reading and writing, memory, time and exit.
//!
//! # Invariants
//!
//! - Afterwards the process cannot open, create or execute anything, create processes, send signals to others, or make
//!   memory executable. This cannot be undone, and holds for all of its threads.
//! - It gets no more than its [`Allowance`] of memory and processor time, whatever control groups enforce.

use std::fs;
use std::io;
use std::time::Duration;

use linux_raw_sys::general as nr;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;

use super::seccomp::{Filter, IS_SUPPORTED};

/// The resources that a locked process may still use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Memory in addition to what the process has already, in bytes.
    pub memory: u64,
    /// Processor time in addition to what it has used already. The kernel counts whole seconds, and then kills.
    pub cpu: Duration,
}

/// The system calls that stay allowed.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const KEPT: &[u32] = &[
    nr::__NR_brk,
    nr::__NR_clock_getres,
    nr::__NR_clock_gettime,
    nr::__NR_clock_nanosleep,
    nr::__NR_close,
    nr::__NR_exit,
    nr::__NR_exit_group,
    nr::__NR_futex,
    nr::__NR_getpid,
    nr::__NR_getrandom,
    nr::__NR_getrusage,
    nr::__NR_gettid,
    nr::__NR_gettimeofday,
    nr::__NR_madvise,
    nr::__NR_mremap,
    nr::__NR_munmap,
    nr::__NR_ppoll,
    nr::__NR_read,
    nr::__NR_readv,
    nr::__NR_restart_syscall,
    nr::__NR_rt_sigaction,
    nr::__NR_rt_sigprocmask,
    nr::__NR_rt_sigreturn,
    nr::__NR_sched_yield,
    nr::__NR_sigaltstack,
    nr::__NR_write,
    nr::__NR_writev,
    #[cfg(target_arch = "x86_64")]
    nr::__NR_poll,
    #[cfg(target_arch = "x86_64")]
    nr::__NR_time,
];
/// Those that are allowed for memory that is not executable.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const KEPT_FOR_DATA: &[u32] = &[nr::__NR_mmap, nr::__NR_mprotect];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const KEPT: &[u32] = &[];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const KEPT_FOR_DATA: &[u32] = &[];

/// Gives up everything that is not needed to compute, for good.
///
/// # Errors
/// The kernel did not accept a part of it, or no filter exists for this processor. The process must not continue then.
pub fn lock_down(allowance: Allowance) -> io::Result<()> {
    if !IS_SUPPORTED {
        let why = "there is no system call filter for this processor";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let used = u64::try_from(used.tv_sec).unwrap_or_default();
    let whole = allowance.cpu.as_secs() + u64::from(allowance.cpu.subsec_nanos() > 0);
    // One more second for what was used of the current one.
    let seconds = used.saturating_add(whole).saturating_add(1);
    // At the first limit the kernel sends SIGXCPU, which ends the process and tells why.
    let cpu = Rlimit {
        current: Some(seconds),
        maximum: Some(seconds.saturating_add(1)),
    };
    setrlimit(Resource::Cpu, cpu)?;
    for (resource, limit) in [
        (
            Resource::Data,
            data_bytes()?.saturating_add(allowance.memory),
        ),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        // The standard streams. With less, the kernel refuses to poll them.
        (Resource::Nofile, 3),
    ] {
        let both = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        setrlimit(resource, both)?;
    }
    install(&Filter::compute_only(KEPT, KEPT_FOR_DATA))
}

/// The private writable memory of this process, as counted by `RLIMIT_DATA`.
fn data_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = status
        .lines()
        .find_map(|line| line.strip_prefix("VmData:")?.trim().strip_suffix(" kB"));
    let number = field.and_then(|text| text.parse::<u64>().ok());
    let unknown = || io::Error::other("`/proc/self/status` does not say how much memory is used");
    Ok(number.ok_or_else(unknown)? << 10)
}

#[expect(unsafe_code, reason = "rustix lacks this call")]
fn install(filter: &Filter) -> io::Result<()> {
    let instructions = filter.instructions();
    let length = u16::try_from(instructions.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog {
        len: length,
        // The kernel only reads it, although the field is not const.
        filter: instructions.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads a structure and the instructions that it points to. Both outlive the call. The call
    // changes nothing in the memory of this process.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    match result {
        0 => Ok(()),
        // With this flag, a positive result is a thread that could not be included.
        1.. => Err(io::Error::other("a thread cannot be locked down")),
        _ => Err(io::Error::last_os_error()),
    }
}
