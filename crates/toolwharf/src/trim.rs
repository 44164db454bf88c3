//! Gives back what only the start needed.
//!
//! A start runs through most of the program once: the command line, migrations, the description of the API. The kernel
//! leaves all of that text mapped while there is memory, in pieces of 64 KiB and more around each function, and counts it
//! as ours: half of what an idle gateway seems to use. What is needed again comes back from the page cache by itself.

#![expect(unsafe_code, reason = "there is no safe way to ask for it")]

use std::{fs, time::Duration};

use rustix::mm::{Advice, madvise};

/// From being ready to the end of what a start does: first connections, first lists.
const STARTED: Duration = Duration::from_secs(1);

/// Does so when the start is over, and is never done.
pub(crate) async fn after_the_start() {
    tokio::time::sleep(STARTED).await;
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if let Some((start, end)) = own_text(&maps, after_the_start as *const () as usize) {
        // SAFETY: the pages are executable and cannot be written, so they are what the file says, and the file of a
        // program that runs cannot be changed: who needs one of them again finds the same.
        let done = unsafe { madvise(start as *mut _, end - start, Advice::LinuxDontNeed) };
        if let Err(error) = done {
            tracing::debug!("the text of the start stays mapped: {error}");
        }
    }
    std::future::pending().await
}

/// Where the text is mapped that an address lies in, if it is nothing else than text.
fn own_text(maps: &str, address: usize) -> Option<(usize, usize)> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        ((start..end).contains(&address) && rest.starts_with("r-xp ")).then_some((start, end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_is_given_back() {
        let maps = "1000-2000 r--p 00000000 fe:00 7 /bin/x\n2000-5000 r-xp 00001000 fe:00 7 /bin/x\n\
                    5000-6000 rwxp 00000000 00:00 0\n";
        assert_eq!(own_text(maps, 0x2fff), Some((0x2000, 0x5000)));
        for other in [0x1000, 0x5000, 0x6000] {
            assert_eq!(own_text(maps, other), None);
        }
        let own = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(own_text(&own, only_text_is_given_back as *const () as usize).is_some());
    }
}
