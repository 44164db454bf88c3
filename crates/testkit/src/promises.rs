//! The promises of sandboxes.

/// The guarantees that a sandbox gives every server, by the names of their rows in `enforced`.
pub const PROMISES: [&str; 7] = [
    "cpu",
    "memory",
    "disk",
    "pids",
    "filesystem",
    "network",
    "privileges",
];
