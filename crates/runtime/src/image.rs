//! Image files: each contains a volume's file system and is mounted through a loop device.

use std::path::Path;

use rustix::fs::{FsWord, statfs};

/// Magic numbers of `statfs(2)`: ext2, ext3 and ext4; XFS.
const DIRECT_IO_FILE_SYSTEMS: [FsWord; 2] = [0xEF53, 0x5846_5342];

/// Returns whether a loop device on this file supports direct I/O. Writes then bypass the host's page cache, since the
/// volume's own file system caches them already. Caching them twice would be kernel work that no limit of the server
/// covers, and that delays other servers.
///
/// Other host file systems do not support it, or keep checksums (Btrfs), which become wrong if a page changes during a
/// direct write.
pub fn takes_direct_io(file: &Path) -> bool {
    statfs(file).is_ok_and(|host| DIRECT_IO_FILE_SYSTEMS.contains(&host.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_memory_and_of_the_kernel_do_not() {
        assert!(!takes_direct_io(Path::new("/proc/self/stat")));
        assert!(!takes_direct_io(Path::new("/sys/fs")));
        assert!(!takes_direct_io(Path::new("/no/such/file")));
    }
}
