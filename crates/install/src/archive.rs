//! Limits of an MCPB file, checked on its raw records before the zip parser allocates anything.
//!
//! The parser allocates a few hundred bytes per entry of the central directory, so a file of 128 MiB with two million
//! entries needs most of a gigabyte. This module reads only the end records and then walks the directory in place.
//!
//! Invariant: an accepted file has one directory, which ends where the end records begin and has as many entries as
//! they declare. So the parser uses the same directory, and does not search for another one.

pub(super) const MAX_FILES: usize = 50_000;

/// Maximum bytes of an entry's name.
const MAX_NAME_BYTES: usize = 1024;
/// Maximum bytes of an entry's extra fields, and of its comment.
const MAX_EXTRA_BYTES: usize = 4096;
/// Maximum bytes of the central directory.
const MAX_DIRECTORY_BYTES: u64 = 16 << 20;
/// Size of the part at the end of the file in which the parser searches for the end record.
const END_SEARCH_BYTES: usize = (1 << 16) + 22 + 4;

const END: [u8; 4] = *b"PK\x05\x06";
const END_BYTES: usize = 22;
const LOCATOR: [u8; 4] = *b"PK\x06\x07";
const LOCATOR_BYTES: usize = 20;
const END64: [u8; 4] = *b"PK\x06\x06";
const END64_BYTES: usize = 56;
const HEADER: [u8; 4] = *b"PK\x01\x02";
const HEADER_BYTES: usize = 46;
const LOCAL_BYTES: u64 = 30;

/// The directory as declared by the end records.
struct Directory {
    count: u64,
    bytes: u64,
    offset: u64,
    /// Offset of the end records.
    end: usize,
}

/// Checks the directory of an archive whose files may have `most` bytes in total.
///
/// # Errors
/// The limit that is exceeded, or the record that is inconsistent.
pub(super) fn check(file: &[u8], most: u64) -> Result<(), String> {
    let bad = |what: &str| format!("the MCPB file is not a valid zip archive: {what}");
    let directory = directory(file).map_err(bad)?;
    if directory.count > MAX_FILES as u64 {
        return Err(format!(
            "the MCPB file contains {} files; the maximum is {MAX_FILES}",
            directory.count
        ));
    }
    if directory.bytes > MAX_DIRECTORY_BYTES {
        return Err(format!(
            "the file list of the MCPB file has {} bytes; the maximum is {MAX_DIRECTORY_BYTES}",
            directory.bytes
        ));
    }
    let start = usize::try_from(directory.bytes).ok();
    let start = start.and_then(|bytes| directory.end.checked_sub(bytes));
    let start = start.ok_or_else(|| bad("its file list is larger than the archive"))?;
    // Data before the archive shifts all offsets.
    let shift = (start as u64).checked_sub(directory.offset);
    let shift = shift.ok_or_else(|| bad("its file list is not at the recorded position"))?;
    let mut at = start;
    let mut left = most;
    let mut data = Vec::new();
    for _ in 0..directory.count {
        let header = file[..directory.end].get(at..at + HEADER_BYTES);
        let header = header
            .filter(|header| header.starts_with(&HEADER))
            .ok_or_else(|| bad("its file list has fewer entries than it declares"))?;
        let size = |at| usize::from(u16_at(header, at));
        let (name, extra, comment) = (size(28), size(30), size(32));
        for (what, bytes, most) in [
            ("name", name, MAX_NAME_BYTES),
            ("extra field", extra, MAX_EXTRA_BYTES),
            ("comment", comment, MAX_EXTRA_BYTES),
        ] {
            if bytes > most {
                let why = format!("the {what} of a file has {bytes} bytes; the maximum is {most}");
                return Err(bad(&why));
            }
        }
        left = left
            .checked_sub(u32_at(header, 24).into())
            .ok_or_else(|| format!("the MCPB file unpacks to more than {} MiB", most >> 20))?;
        let begin = shift + u64::from(u32_at(header, 42));
        data.push((begin, begin + LOCAL_BYTES + u64::from(u32_at(header, 20))));
        at += HEADER_BYTES + name + extra + comment;
    }
    if at != directory.end {
        return Err(bad(
            "its file list has more entries than the file declares, or another size",
        ));
    }
    data.sort_unstable();
    let is_inside = data.iter().all(|(_, end)| *end <= start as u64);
    let is_apart = data.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    match is_inside && is_apart {
        true => Ok(()),
        false => Err(bad("its files overlap each other or the file list")),
    }
}

/// Reads the last end record, and the zip64 end record before it.
fn directory(file: &[u8]) -> Result<Directory, &'static str> {
    let tail = file.len().saturating_sub(END_SEARCH_BYTES);
    let fits = |at: &usize| {
        let record = &file[*at..];
        record.starts_with(&END)
            && record.len() >= END_BYTES
            && record.len() - END_BYTES >= u16_at(record, 20).into()
    };
    let end = (tail..file.len()).rev().find(fits);
    let end = end.ok_or("its end is missing, or it is another kind of file")?;
    let record = &file[end..];
    if (u16_at(record, 4), u16_at(record, 6)) != (0, 0) || u16_at(record, 8) != u16_at(record, 10) {
        return Err("it is one part of a split archive");
    }
    let plain = Directory {
        count: u16_at(record, 10).into(),
        bytes: u32_at(record, 12).into(),
        offset: u32_at(record, 16).into(),
        end,
    };
    let locator = end.checked_sub(LOCATOR_BYTES);
    let Some(at) = locator.filter(|at| file[*at..].starts_with(&LOCATOR)) else {
        return Ok(plain);
    };
    let wrong = "its zip64 record is not at the recorded position";
    let begin = usize::try_from(u64_at(file, at + 8)).map_err(|_| wrong)?;
    let record = file[..at].get(begin..).filter(|record| {
        record.len() >= END64_BYTES
            && record.starts_with(&END64)
            && u64_at(record, 4) == record.len() as u64 - 12
    });
    let record = record.ok_or(wrong)?;
    let wide = Directory {
        count: u64_at(record, 32),
        bytes: u64_at(record, 40),
        offset: u64_at(record, 48),
        end: begin,
    };
    let agrees = |narrow: u64, max: u64, wide: u64| narrow == max || narrow == wide;
    let max = u32::MAX.into();
    let agree = agrees(plain.count, u16::MAX.into(), wide.count)
        && agrees(plain.bytes, max, wide.bytes)
        && agrees(plain.offset, max, wide.offset)
        && u64_at(record, 24) == wide.count;
    match agree {
        true => Ok(wide),
        false => Err("its zip and zip64 records contradict each other"),
    }
}

fn bytes_at<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&from[at..at + N]);
    bytes
}

fn u16_at(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(from, at))
}

fn u32_at(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(from, at))
}

fn u64_at(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(from, at))
}
