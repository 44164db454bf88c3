//! Finds programs, and follows their links and `#!` lines.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use crate::search::{find, is_executable};
use crate::unit::Error;

/// Limit for the links and `#!` lines that are followed.
const MAX_HOPS: usize = 16;

/// Returns the program's path on this host.
pub(in crate::sandbox) fn resolve(program: &str, search: &OsStr) -> Result<PathBuf, Error> {
    let refused = |why: String| Error::Refused {
        field: "command",
        why,
    };
    let found = if program.contains('/') {
        let path = PathBuf::from(program);
        if !path.is_absolute() {
            return Err(refused(format!(
                "`{program}` is neither a name nor an absolute path; give its full path"
            )));
        }
        path.exists().then_some(path)
    } else {
        find(program, search)
    };
    let found = found.ok_or_else(|| match program.split_once(char::is_whitespace) {
        Some((command, _)) => refused(format!(
            "`{program}` not found; give `{command}` as the command and the rest as arguments"
        )),
        None => refused(format!(
            "`{program}` not found; install it or give its full path"
        )),
    })?;
    if is_executable(&found) {
        Ok(found)
    } else {
        Err(refused(format!(
            "`{}` is not executable; `chmod +x` it",
            found.display()
        )))
    }
}

/// The program and what it depends on: link targets and script interpreters.
pub(super) fn chain(program: &Path, search: &OsStr) -> BTreeSet<PathBuf> {
    let mut chain = BTreeSet::new();
    let mut next = Some(program.to_owned());
    for _ in 0..MAX_HOPS {
        let Some(path) = next.take() else { break };
        next = match fs::read_link(&path) {
            Ok(target) => path.parent().map(|parent| normal(&parent.join(target))),
            Err(_) => interpreter(&path, search),
        };
        chain.extend(path.canonicalize());
        chain.insert(path);
    }
    chain
}

/// Resolves `..` lexically, as needed for a link's target.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// Returns whether a file begins with `#!`.
pub(super) fn starts_with_interpreter(path: &Path) -> bool {
    path.is_file() && start(path).is_some_and(|start| start.starts_with(b"#!"))
}

/// The first bytes of a file.
fn start(path: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    let file = File::open(path).ok()?;
    file.take(256).read_to_end(&mut start).ok()?;
    Some(start)
}

fn interpreter(path: &Path, search: &OsStr) -> Option<PathBuf> {
    let start = start(path)?;
    let line = start
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let first = words.next()?;
    if !first.ends_with("/env") {
        return Some(first.into());
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    find(name, search)
}

/// Returns whether a folder holds too much to be shown for one file in it: a home directory, or a folder that holds
/// homes or system data.
pub(super) fn is_narrow(directory: &Path) -> bool {
    let own = env::var_os("HOME").is_some_and(|home| directory == Path::new(&home));
    let depth = directory.components().count();
    own || depth <= 2
        || depth == 3 && (directory.starts_with("/home") || directory.starts_with("/var"))
}

/// The installation prefix of a version manager or unpacked distribution, which has `bin` next to `lib`.
pub(super) fn prefix(directory: &Path) -> Option<PathBuf> {
    let name = directory.file_name()?.to_str()?;
    let prefix = directory.parent()?;
    let whole = ["lib", "libexec"]
        .iter()
        .any(|beside| prefix.join(beside).is_dir());
    // `~/.local` is a prefix too, but holds the user's data.
    let local = prefix.file_name() == Some(OsStr::new(".local"));
    (["bin", "sbin", "shims", "libexec"].contains(&name) && whole && !local && !is_narrow(prefix))
        .then(|| prefix.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::PATH;
    use super::*;

    #[test]
    fn a_script_leads_to_its_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        fs::write(&script, "#!/usr/bin/env -S A=b sh\n").unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("script", &link).unwrap();
        let chain = chain(&link, OsStr::new("/usr/bin:/bin"));
        for expected in [&link, &script, Path::new("/usr/bin/sh")] {
            assert!(
                chain.contains(expected),
                "{}: {chain:?}",
                expected.display()
            );
        }
    }

    #[test]
    fn what_is_not_there_is_refused_with_a_way_out() {
        let refused = |program| resolve(program, OsStr::new(PATH)).unwrap_err().to_string();
        assert!(refused("no-such-program").contains("install it"));
        assert!(refused("sh -c").contains("give `sh` as the command"));
        assert!(refused("./sh").contains("absolute"));
        assert!(refused("/etc/passwd").contains("chmod"));
    }
}
