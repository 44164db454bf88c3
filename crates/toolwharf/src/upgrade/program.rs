//! The program of an upgrade: which file it is, and whether this machine can run it.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// The end of the link to a program whose file was removed or replaced.
const REMOVED: &str = " (deleted)";
/// Bytes of an ELF header up to the end of the processor.
const HEADER_BYTES: usize = 20;
const MAGIC: &[u8] = b"\x7fELF";

/// The file of the running program. `None`: it cannot be found.
pub(crate) fn own_program() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?;
    let text = path.to_str().unwrap_or_default();
    Some(match text.strip_suffix(REMOVED) {
        Some(path) => path.into(),
        None => path,
    })
}

/// Checks that a file is not a program for another processor. The kernel checks everything else when it starts it.
///
/// # Errors
/// The file cannot be read, or is for another processor.
pub(super) fn check(program: &Path) -> anyhow::Result<()> {
    let header = header(program).with_context(|| format!("cannot read {}", program.display()))?;
    let own = header_of_this_process()?;
    if header.starts_with(MAGIC) && machine(&header) != machine(&own) {
        anyhow::bail!(
            "{} is a program for another processor ({}): get the one for {}",
            program.display(),
            named(&header),
            named(&own)
        );
    }
    Ok(())
}

fn header_of_this_process() -> anyhow::Result<Vec<u8>> {
    header(Path::new("/proc/self/exe")).context("cannot read the running program")
}

fn header(program: &Path) -> std::io::Result<Vec<u8>> {
    let mut header = Vec::new();
    let mut begin = File::open(program)?.take(HEADER_BYTES as u64);
    begin.read_to_end(&mut header)?;
    Ok(header)
}

/// The parts of an ELF header that name the processor: word size, byte order and machine.
fn machine(header: &[u8]) -> (Option<&[u8]>, Option<&[u8]>) {
    (header.get(4..6), header.get(18..20))
}

fn named(header: &[u8]) -> String {
    match header.get(18..20) {
        Some([0x3e, 0]) => "x86_64".to_owned(),
        Some([0xb7, 0]) => "aarch64".to_owned(),
        Some([0x28, 0]) => "arm".to_owned(),
        Some([0xf3, 0]) => "riscv64".to_owned(),
        Some([low, high]) => format!("ELF machine {}", u16::from_le_bytes([*low, *high])),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_for_another_processor_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        let written = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            check(&file)
        };
        let own = header_of_this_process().unwrap();
        written(&own).unwrap();
        written(b"#!/bin/sh\n").unwrap();
        written(b"").unwrap();
        let mut other = own.clone();
        other[18..20].copy_from_slice(&[0xf3, 0]);
        let refused = written(&other).unwrap_err().to_string();
        assert!(refused.contains("another processor (riscv64)"), "{refused}");
        written(&own[..19]).unwrap_err();
        std::fs::remove_file(&file).unwrap();
        check(&file).unwrap_err();
    }
}
