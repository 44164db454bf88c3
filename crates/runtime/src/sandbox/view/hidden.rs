//! Finds the personal files to hide in folders that are shown because a command line needs them.
//!
//! Hidden by name: [`SECRET_NAMES`], `.env` and `.env.*` (not `.env.example`). Hidden by content: `*.pem` and `*.key`
//! files with a private key. Sockets, pipes and devices are hidden too, because a host service may listen on them.
//! `node_modules`, virtual environments and hidden folders are not searched.
//!
//! Invariant: a search ends at [`MAX_SEARCHED`] entries. A folder that could not be searched completely is not shown.

use std::collections::BTreeSet;
use std::fs::{self, File, FileType};
use std::io::Read as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use super::needs::is_venv;

/// Names of files and folders that hold secrets.
const SECRET_NAMES: [&str; 14] = [
    ".aws",
    ".envrc",
    ".git",
    ".git-credentials",
    ".gnupg",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".ssh",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "id_rsa",
    ".env",
];
/// Prefix of files with variables.
const ENV_PREFIX: &str = ".env.";
/// A file with this prefix that holds no secrets, and is not hidden.
const ENV_EXAMPLE: &str = ".env.example";
/// Extensions of files that may hold a private key.
const KEY_EXTENSIONS: [&str; 2] = ["key", "pem"];
/// Bytes at the start of a file that are searched for a private key.
const MAX_KEY_BYTES: u64 = 1 << 20;

/// What private keys contain.
const KEY_MARKS: [&[u8]; 2] = [b"PRIVATE KEY", b"PuTTY-User-Key-File"];
/// Larger files are not shown as CA files. The certificates of a system are about 200 KiB.
const MAX_CERTIFICATES_BYTES: u64 = 4 << 20;

/// Limit for the folder entries that one search visits.
pub(super) const MAX_SEARCHED: usize = 100_000;

/// Returns the paths below `folder` to hide. `skip` is not searched, because it is hidden already.
///
/// # Errors
/// Says why the folder could not be searched, and how to avoid that.
pub(super) fn search(
    folder: &Path,
    skip: &BTreeSet<PathBuf>,
    left: &mut usize,
) -> Result<BTreeSet<PathBuf>, String> {
    let mut hidden = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        let entries = match fs::read_dir(&at) {
            Ok(entries) => entries,
            // Unless this process runs it as root, the server's user cannot read the folder either.
            Err(_) => {
                hidden.insert(at);
                continue;
            }
        };
        for entry in entries.flatten() {
            *left = left.checked_sub(1).ok_or_else(|| {
                format!(
                    "`{}` has more than {MAX_SEARCHED} files, too many to search for secrets; list folders that the \
                     server does not need in `\"sandbox\": {{\"hide\": […]}}`",
                    folder.display()
                )
            })?;
            let path = entry.path();
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if skip.contains(&path) {
                continue;
            }
            if is_hidden(&path, kind) {
                hidden.insert(path);
            } else if kind.is_dir() && !path.ends_with("node_modules") && !is_venv(&path) {
                folders.push(path);
            }
        }
    }
    Ok(hidden)
}

fn is_hidden(path: &Path, kind: FileType) -> bool {
    if kind.is_socket() || kind.is_fifo() || kind.is_char_device() || kind.is_block_device() {
        return true;
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.unwrap_or_default();
    if SECRET_NAMES.contains(&name) || name.starts_with(ENV_PREFIX) && name != ENV_EXAMPLE {
        return !(kind.is_dir() && is_venv(path));
    }
    let ending = path.extension().and_then(|ending| ending.to_str());
    let may_be_key =
        ending.is_some_and(|ending| KEY_EXTENSIONS.contains(&ending.to_ascii_lowercase().as_str()));
    // A file that cannot be read may hold a private key.
    may_be_key && kind.is_file() && has_private_key(path).unwrap_or(true)
}

fn has_private_key(path: &Path) -> std::io::Result<bool> {
    let mut text = Vec::new();
    File::open(path)?
        .take(MAX_KEY_BYTES)
        .read_to_end(&mut text)?;
    Ok(KEY_MARKS.iter().any(|mark| contains(&text, mark)))
}

/// Returns whether this is a file with certificates in PEM format, and without a private key.
pub(super) fn holds_certificates(path: &Path) -> bool {
    let read = || {
        // A pipe could block.
        let is_small = fs::metadata(path)
            .is_ok_and(|about| about.is_file() && about.len() <= MAX_CERTIFICATES_BYTES);
        is_small.then(|| fs::read(path).ok()).flatten()
    };
    let is_fit = |text: Vec<u8>| {
        contains(&text, b"CERTIFICATE-----") && !KEY_MARKS.iter().any(|mark| contains(&text, mark))
    };
    path.is_absolute() && read().is_some_and(is_fit)
}

fn contains(text: &[u8], mark: &[u8]) -> bool {
    memchr::memmem::find(text, mark).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_file_holds_certificates_and_no_private_key() {
        let folder = tempfile::tempdir().unwrap();
        let certificate = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN EC PRIVATE KEY-----\nMII\n-----END EC PRIVATE KEY-----\n";
        for (text, expected) in [
            (format!("# ours\n{certificate}{certificate}"), true),
            (format!("{certificate}{key}"), false),
            (key.to_owned(), false),
            ("root:x:0:0".to_owned(), false),
        ] {
            let file = folder.path().join("ca.pem");
            fs::write(&file, &text).unwrap();
            assert_eq!(holds_certificates(&file), expected, "{text}");
        }
        assert!(!holds_certificates(folder.path()));
        assert!(!holds_certificates(Path::new("ca.pem")));
    }

    #[test]
    fn u12_secrets_are_found_by_name_and_content() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path();
        let put = |path: &str, text: &str| {
            let path = base.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let secrets = [
            ".env",
            "a/.env.local",
            "a/b/id_rsa",
            "a/server.key",
            "a/both.pem",
            "sub/.npmrc",
        ];
        for secret in secrets {
            put(secret, "-----BEGIN EC PRIVATE KEY-----");
        }
        put("x/.git/config", "");
        put("worktree/.git", "gitdir: /elsewhere");
        for plain in [
            "a/.env.example",
            "a/.environment",
            "a/certificate.pem",
            "a/table.key",
            "a/id_rsa.pub",
            "node_modules/x/.env",
            ".venv/pyvenv.cfg",
            ".venv/lib/x.pem",
        ] {
            put(plain, "-----BEGIN CERTIFICATE-----");
        }
        put("env/.env/pyvenv.cfg", "");
        let _socket = std::os::unix::net::UnixListener::bind(base.join("a/socket")).unwrap();
        put("skipped/.env", "");
        let skip = BTreeSet::from([base.join("skipped")]);
        let found = search(base, &skip, &mut 1_000).unwrap();
        let more = ["a/socket", "x/.git", "worktree/.git"];
        let expected = secrets.iter().chain(&more).map(|path| base.join(path));
        assert_eq!(found, expected.collect());
        let why = search(base, &skip, &mut 5).unwrap_err();
        assert!(why.contains("`\"sandbox\": {\"hide\": […]}`"), "{why}");
    }
}
