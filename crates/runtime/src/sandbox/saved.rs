//! Volumes of hosted servers in files, as a backup finds them and a restore makes them.
//!
//! An image that no server uses is copied as it is. The image of a running server changes while it is copied, so a
//! backup copies the files of its mounted file system instead, and a restore makes an image of them.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use super::volume::run_within;

/// Timeout for filling a file system with its files.
const FILL_TIMEOUT: Duration = Duration::from_secs(3600);
const LOOP_DEVICES: &str = "/sys/block";
const MOUNTS: &str = "/proc/self/mountinfo";
/// Directories of a mounted image that are not data: `/tmp` of an instance, and what ext4 creates.
pub const NOT_DATA: [&str; 2] = ["scratch", "lost+found"];

/// The current use of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// It can be copied as it is.
    Free,
    /// Its file system is mounted here.
    Mounted(PathBuf),
    /// It is in use, but its file system is not mounted where this process sees it.
    Hidden,
}

/// Returns whether a server uses this image now.
///
/// # Errors
/// The file does not exist, or the kernel does not list its loop devices.
pub fn image_use(image: &Path) -> io::Result<Use> {
    let image = fs::canonicalize(image)?;
    let devices = match fs::read_dir(LOOP_DEVICES) {
        Ok(devices) => devices,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Use::Free),
        Err(error) => return Err(error),
    };
    let mut found = Use::Free;
    for device in devices {
        let device = device?.path();
        let Ok(file) = fs::read_to_string(device.join("loop/backing_file")) else {
            continue;
        };
        if Path::new(file.trim_end_matches('\n')) != image {
            continue;
        }
        let number = fs::read_to_string(device.join("dev"))?;
        let mounts = fs::read_to_string(MOUNTS)?;
        match mount_point(&mounts, number.trim()) {
            Some(at) => return Ok(Use::Mounted(at)),
            None => found = Use::Hidden,
        }
    }
    Ok(found)
}

/// The place where a device (`major:minor`) is mounted as a whole, according to `/proc/self/mountinfo` (proc(5)).
fn mount_point(mounts: &str, device: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let is_it = fields.next() == Some(device) && fields.next() == Some("/");
        fields.next().filter(|_| is_it).map(unescaped)
    })
}

/// Undoes the octal escapes of white space and `\`.
fn unescaped(text: &str) -> PathBuf {
    let mut out = text.to_owned();
    for (escape, character) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        out = out.replace(escape, character);
    }
    PathBuf::from(out)
}

/// Makes an image of `bytes` bytes with the files of a directory, and their owners and modes. Blocks.
///
/// # Errors
/// If the image cannot be made, for example because `mkfs.ext4` is not installed. The unfinished image is removed.
pub fn make_image(image: &Path, files: &Path, bytes: u64) -> Result<(), String> {
    let new = image.with_extension("new");
    let made = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|file| file.set_len(bytes))
        .map_err(|error| format!("cannot create `{}`: {error}", new.display()));
    let options = [
        "-q",
        "-F",
        "-m",
        "0",
        "-E",
        "nodiscard,lazy_itable_init=1",
        "-d",
    ];
    let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    arguments.extend([files.as_os_str(), new.as_os_str()]);
    let made = made
        .and_then(|()| {
            run_within(
                "mkfs.ext4".as_ref(),
                &arguments,
                Stdio::null(),
                FILL_TIMEOUT,
            )
        })
        .and_then(|_| root_mode(&new, files))
        .and_then(|()| fs::rename(&new, image).map_err(|error| error.to_string()));
    if made.is_err() {
        let _ = fs::remove_file(&new);
    }
    made
}

/// Gives the root of a file system the mode of the directory that it was made of, which not every `mkfs.ext4` does.
fn root_mode(image: &Path, files: &Path) -> Result<(), String> {
    let meta = fs::metadata(files).map_err(|error| error.to_string())?;
    let mode = 0o040_000 | (meta.permissions().mode() & 0o7777);
    let request = format!("set_inode_field / mode 0{mode:o}");
    let arguments = ["-w", "-R", &request].map(OsStr::new);
    let arguments: Vec<&OsStr> = arguments.into_iter().chain([image.as_os_str()]).collect();
    run_within("debugfs".as_ref(), &arguments, Stdio::null(), FILL_TIMEOUT).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_device_is_found() {
        let mounts = "36 35 7:3 / /data/a\\040b rw - ext4 /dev/loop3 rw\n\
                      37 35 7:4 /sub /else rw - ext4 /dev/loop4 rw\n";
        assert_eq!(mount_point(mounts, "7:3"), Some("/data/a b".into()));
        assert_eq!(mount_point(mounts, "7:4"), None);
        assert_eq!(mount_point(mounts, "7:30"), None);
    }

    #[test]
    fn an_ordinary_file_is_not_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk.ext4");
        fs::write(&file, "x").unwrap();
        assert_eq!(image_use(&file).unwrap(), Use::Free);
        assert!(image_use(&dir.path().join("none")).is_err());
    }

    /// The files are read back with `debugfs`, which needs no mount.
    #[test]
    fn an_image_is_made_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("files");
        fs::create_dir_all(files.join("volumes/a")).unwrap();
        fs::write(files.join("volumes/a/note"), "hello").unwrap();
        let image = dir.path().join("disk.ext4");
        make_image(&image, &files, 4 << 20).unwrap();
        assert_eq!(fs::metadata(&image).unwrap().len(), 4 << 20);
        let arguments = ["-R", "cat /volumes/a/note"].map(OsStr::new);
        let arguments: Vec<&OsStr> = arguments.into_iter().chain([image.as_os_str()]).collect();
        let text = run_within("debugfs".as_ref(), &arguments, Stdio::null(), FILL_TIMEOUT);
        assert_eq!(text.unwrap(), "hello");
        let error = make_image(&image, &dir.path().join("none"), 4 << 20);
        assert!(error.is_err());
        assert!(!dir.path().join("disk.new").exists());
    }
}
