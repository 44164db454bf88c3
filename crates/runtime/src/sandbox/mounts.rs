//! Seals the mounts of a prepared sandbox: detaches them from the host's and makes them read-only.
//!
//! Bubblewrap leaves its mounts as slaves of the host mounts. Anything mounted later below a shown folder (a USB stick,
//! a container layer) would appear inside, and writable. Mounts that bubblewrap could not access also stay writable. So
//! before the server runs, a helper process enters the sandbox's mount namespace, makes all mounts private, and makes
//! all of them read-only except those that the server may write to.
//!
//! Invariant: the helper runs no server code. It enters no process namespace and executes nothing.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::{CWD, Mode, OFlags, open, openat};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::volume;
use crate::process::SentinelCommand;

/// The first argument of the helper. The paths that stay writable follow.
pub(super) const SEAL: &str = "seal";

/// `NS_GET_USERNS` (linux/nsfs.h): the user namespace that owns a namespace.
const NS_GET_USERNS: libc::c_ulong = 0xb701;
const AT_RECURSIVE: libc::c_int = 0x8000;
const MOUNT_ATTR_RDONLY: u64 = 1;

/// One line of `mountinfo`.
pub(super) struct Mounted {
    /// `major:minor` of its file system.
    pub(super) device: String,
    /// The folder of that file system that is mounted.
    pub(super) root: PathBuf,
    pub(super) at: PathBuf,
    pub(super) read_only: bool,
    /// True if mounts and unmounts in other namespaces propagate to this mount.
    pub(super) is_attached: bool,
}

/// Parses the text of a `mountinfo` file (proc_pid_mountinfo(5)).
///
/// # Errors
/// The text has another format.
pub(super) fn parse(text: &str) -> Result<Vec<Mounted>, String> {
    let one = |line: &str| {
        let mut fields = line.split(' ');
        let device = fields.nth(2)?.to_owned();
        let root = PathBuf::from(unescape(fields.next()?));
        let at = PathBuf::from(unescape(fields.next()?));
        let options = fields.next()?;
        let optional = fields.take_while(|field| *field != "-");
        let mut attached =
            optional.filter(|field| field.starts_with("shared:") || field.starts_with("master:"));
        Some(Mounted {
            device,
            root,
            at,
            read_only: options.split(',').any(|option| option == "ro"),
            is_attached: attached.next().is_some(),
        })
    };
    let all: Option<Vec<_>> = text.lines().map(one).collect();
    all.ok_or_else(|| "the list of mounts (`mountinfo`) cannot be parsed".to_owned())
}

/// Decodes the octal escapes of blanks, line ends and backslashes.
fn unescape(text: &str) -> String {
    let octal = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    octal.iter().fold(text.to_owned(), |text, (code, char)| {
        text.replace(code, char)
    })
}

/// Runs a helper that seals the mounts of process `pid`. `writable` paths, and mounts below them, stay as they are.
///
/// # Errors
/// Says why the mounts could not be sealed.
pub(super) fn seal(helper: &SentinelCommand, pid: Pid, writable: &[PathBuf]) -> Result<(), String> {
    let namespace = File::open(format!("/proc/{}/ns/mnt", pid.as_raw_pid()));
    let namespace = namespace
        .map_err(|error| format!("the sandbox's mount namespace cannot be opened: {error}"))?;
    let mut arguments: Vec<OsString> = helper.args.clone();
    arguments.push(SEAL.into());
    arguments.extend(writable.iter().map(Into::into));
    let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
    volume::run_with(&helper.program, &arguments, Stdio::from(namespace))
        .map(drop)
        .map_err(|why| format!("the sandbox's mounts cannot be made private and read-only: {why}"))
}

/// The helper's main function. Standard input is a descriptor of the sandbox's mount namespace.
pub(super) fn seal_main(writable: &[OsString]) -> io::Result<()> {
    let namespace = io::stdin();
    let namespace = namespace.as_fd();
    // Opened before entering, because the sandbox's own `/proc` has no entry for this process.
    let processes = open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if !rustix::process::geteuid().is_root() {
        let users = owner(namespace)?;
        move_into_link_name_space(users.as_fd(), Some(LinkNameSpaceType::User))?;
    }
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))?;
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags)?;
    let mounts = openat(
        &processes,
        "self/mountinfo",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut text = String::new();
    File::from(mounts).read_to_string(&mut text)?;
    let mounts = parse(&text).map_err(io::Error::other)?;
    match set_attributes(Path::new("/"), AT_RECURSIVE, MOUNT_ATTR_RDONLY, 0) {
        // Linux before 5.12 lacks this call. The later check finds what bubblewrap left writable.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return Ok(()),
        done => done?,
    }
    let stays = |mount: &&Mounted| {
        let is_below = |writable: &OsString| mount.at.starts_with(writable);
        !mount.read_only && writable.iter().any(is_below)
    };
    for mount in mounts.iter().filter(stays) {
        match set_attributes(&mount.at, 0, 0, MOUNT_ATTR_RDONLY) {
            // No process in the sandbox can access it either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            done => done?,
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "rustix lacks this request")]
fn owner(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument and returns a new descriptor that nothing else owns, or a negative number.
    unsafe {
        match libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) {
            failed if failed < 0 => Err(io::Error::last_os_error()),
            number => Ok(OwnedFd::from_raw_fd(number)),
        }
    }
}

/// `mount_setattr(2)`.
#[expect(unsafe_code, reason = "rustix lacks this call")]
fn set_attributes(path: &Path, flags: libc::c_int, set: u64, clear: u64) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        users: u64,
    }
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let attributes = Attributes {
        set,
        clear,
        propagation: 0,
        users: 0,
    };
    // SAFETY: the kernel reads a NUL-terminated path and a structure of the given size. Both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            CWD.as_raw_fd(),
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let text = "36 35 98:0 /mnt\\0401 /a\\134b rw,noatime master:1 - ext3 /dev/root rw\n\
                    37 36 0:5 / /c ro shared:2 propagate_from:3 - tmpfs none rw\n\
                    38 36 0:6 / /d rw - tmpfs none rw\n";
        let found = parse(text).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|one| {
                (
                    one.device.as_str(),
                    one.root.to_str(),
                    one.at.to_str(),
                    one.read_only,
                    one.is_attached,
                )
            })
            .collect();
        let expected = [
            ("98:0", Some("/mnt 1"), Some("/a\\b"), false, true),
            ("0:5", Some("/"), Some("/c"), true, true),
            ("0:6", Some("/"), Some("/d"), false, false),
        ];
        assert_eq!(found, expected);
        assert!(parse("36 35").is_err());
    }
}
