//! Files that hold the file system of a volume, on loop devices.

use std::path::Path;

use rustix::fs::{FsWord, statfs};

/// `statfs(2)`: ext2, ext3 and ext4; XFS.
const TAKE_IT: [FsWord; 2] = [0xEF53, 0x5846_5342];

/// Whether a loop device on this file may have direct I/O: what is written to it goes to the disk past the cache of the
/// host's file system, for it stands in the cache of its own already. To copy it once more would be the kernel's work,
/// which no limit of a server's holds, and its neighbours would wait for it.
///
/// Other file systems of the host either cannot, or keep checksums (Btrfs), which come out wrong where the page of a
/// direct write changes while it is written.
pub(crate) fn takes_direct_io(file: &Path) -> bool {
    statfs(file).is_ok_and(|host| TAKE_IT.contains(&host.f_type))
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
