//! The shared libraries that a program loads at its start.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::volume;

/// Sizes and offsets in a 64-bit ELF file (elf(5)).
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const MAX_SEGMENTS: u16 = 128;
const MAX_PATH_BYTES: u64 = 4096;
const INTERPRETER_SEGMENT: u32 = 3;

/// The loader of `program` and the libraries that it loads, by the paths at which it looks for them. Empty for a static
/// program. Runs the loader, so use it for trusted programs only. Blocks.
///
/// # Errors
/// Says why they could not be found.
pub(super) fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: io::Error| format!("cannot read `{}`: {error}", program.display());
    let Some(loader) = interpreter(program).map_err(failed)? else {
        return Ok(Vec::new());
    };
    // For the loader, `self` is another process.
    let own = format!("/proc/{}/exe", std::process::id());
    let program = match program == Path::new("/proc/self/exe") {
        true => Path::new(&own),
        false => program,
    };
    let list = volume::run_with(
        &loader,
        &[OsStr::new("--list"), program.as_os_str()],
        std::process::Stdio::null(),
    )?;
    let mut found = vec![loader];
    for path in list.lines().filter_map(listed) {
        if !found.contains(&path) {
            found.push(path);
        }
    }
    Ok(found)
}

/// The path in a line such as `libc.so.6 => /lib/libc.so.6 (0x00007f…)`.
fn listed(line: &str) -> Option<PathBuf> {
    let line = line.trim();
    let path = line.split_once(" => ").map_or(line, |(_, path)| path);
    let path = path.rsplit_once(" (0x").map_or(path, |(path, _)| path);
    path.starts_with('/').then(|| PathBuf::from(path))
}

/// The path of the loader that the ELF file names.
fn interpreter(program: &Path) -> io::Result<Option<PathBuf>> {
    let file = File::open(program)?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "not a 64-bit ELF program");
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    if !header.starts_with(b"\x7fELF\x02") {
        return Err(malformed());
    }
    let first = number::<8>(&header, 32).ok_or_else(malformed)?;
    let count = number::<2>(&header, 56).ok_or_else(malformed)?;
    for index in 0..count.min(MAX_SEGMENTS.into()) {
        let mut segment = [0; SEGMENT_BYTES];
        let at = first.checked_add(index * SEGMENT_BYTES as u64);
        file.read_exact_at(&mut segment, at.ok_or_else(malformed)?)?;
        if number::<4>(&segment, 0) != Some(INTERPRETER_SEGMENT.into()) {
            continue;
        }
        let at = number::<8>(&segment, 8).ok_or_else(malformed)?;
        let size = number::<8>(&segment, 32).filter(|size| *size <= MAX_PATH_BYTES);
        let size = size.and_then(|size| usize::try_from(size).ok());
        let mut path = vec![0; size.ok_or_else(malformed)?];
        file.read_exact_at(&mut path, at)?;
        let path = String::from_utf8(path).map_err(|_| malformed())?;
        return Ok(Some(PathBuf::from(path.trim_end_matches('\0'))));
    }
    Ok(None)
}

/// A number of `N` bytes in the byte order of this machine.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at + N)?;
    let mut whole = [0; 8];
    if cfg!(target_endian = "little") {
        whole[..N].copy_from_slice(part);
    } else {
        whole[8 - N..].copy_from_slice(part);
    }
    Some(u64::from_ne_bytes(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_this_program_are_found() {
        let found = libraries(Path::new("/proc/self/exe")).unwrap();
        assert!(!found.is_empty());
        assert!(found.iter().all(|path| path.exists()), "{found:?}");
    }

    #[test]
    fn lines_of_the_loader() {
        for (line, expected) in [
            ("\tlinux-vdso.so.1 (0x00007ffd)", None),
            (
                "\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)",
                Some("/lib/x/libc.so.6"),
            ),
            ("\t/lib64/ld.so (0x00007f)", Some("/lib64/ld.so")),
            ("\tlibx.so => not found", None),
        ] {
            assert_eq!(listed(line), expected.map(PathBuf::from), "{line}");
        }
    }

    #[test]
    fn a_file_that_is_no_program_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        for content in [&b""[..], &[0; 100], b"\x7fELF\x02"] {
            std::fs::write(&file, content).unwrap();
            assert!(libraries(&file).is_err(), "{content:?}");
        }
    }
}
