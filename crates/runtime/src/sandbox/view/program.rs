//! Which files a program is made of: where it is, what it leads to, and the nearest whole around each.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use super::SYSTEM;
use crate::search::{find, is_executable};
use crate::unit::Error;

/// What no argument makes visible.
const HIDDEN: [&str; 7] = ["/proc", "/dev", "/sys", "/etc", "/run", "/boot", "/var/run"];

/// Links and `#!` lines that lead on.
const HOPS: usize = 16;

/// The program's path on this host.
pub(in crate::sandbox) fn resolve(program: &str, search: &OsStr) -> Result<PathBuf, Error> {
    let refused = |why: String| Error::Refused {
        field: "command",
        why,
    };
    let found = if program.contains('/') {
        let path = PathBuf::from(program);
        if !path.is_absolute() {
            return Err(refused(format!(
                "`{program}` is neither a name nor an absolute path"
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

/// The program and what it leads to: targets of links, interpreters of scripts.
pub(super) fn chain(program: &Path, search: &OsStr) -> BTreeSet<PathBuf> {
    let mut chain = BTreeSet::new();
    let mut next = Some(program.to_owned());
    for _ in 0..HOPS {
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

/// Takes `..` out by the letter, as a link's text needs it.
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

fn interpreter(path: &Path, search: &OsStr) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path)
        .ok()?
        .take(256)
        .read_to_end(&mut start)
        .ok()?;
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

/// What to show so that the file at `path` works; nothing where it is shown already or may not be.
pub(super) fn whole(path: &Path) -> Option<PathBuf> {
    let hidden = |path: &Path| HIDDEN.iter().any(|hidden| path.starts_with(hidden));
    let system = |path: &Path| SYSTEM.iter().any(|system| path.starts_with(system));
    if !path.is_absolute() || hidden(path) || system(path) || path.parent().is_none() {
        return None;
    }
    let outermost = path
        .ancestors()
        .filter(|ancestor| ancestor.file_name() == Some(OsStr::new("node_modules")))
        .last();
    // What is beside of it (package.json, the server's own code) is as much a part of it.
    if let Some(project) = outermost.and_then(Path::parent) {
        return Some(if narrow(project) {
            outermost?.to_owned()
        } else {
            project.to_owned()
        });
    }
    let mut ancestors = path.ancestors().filter(|ancestor| ancestor.is_dir());
    if let Some(venv) = ancestors.find(|ancestor| ancestor.join("pyvenv.cfg").exists()) {
        return Some(venv.to_owned());
    }
    if path.is_dir() {
        return (!narrow(path)).then(|| path.to_owned());
    }
    let directory = path.parent()?;
    if let Some(prefix) = prefix(directory) {
        return Some(prefix);
    }
    let secretive = directory
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    Some(if narrow(directory) || secretive {
        path.to_owned()
    } else {
        directory.to_owned()
    })
}

/// Directories that hold too much to be shown for the sake of one file.
fn narrow(directory: &Path) -> bool {
    let own = env::var_os("HOME").is_some_and(|home| directory == Path::new(&home));
    let depth = directory.components().count();
    own || depth <= 2
        || depth == 3 && (directory.starts_with("/home") || directory.starts_with("/var"))
}

/// Where a version manager or an unpacked distribution has its `bin` beside its `lib`.
fn prefix(directory: &Path) -> Option<PathBuf> {
    let name = directory.file_name()?.to_str()?;
    let prefix = directory.parent()?;
    let whole = ["lib", "libexec"]
        .iter()
        .any(|beside| prefix.join(beside).is_dir());
    // `~/.local` is a prefix too, and has the user's data.
    let local = prefix.file_name() == Some(OsStr::new(".local"));
    (["bin", "sbin", "shims", "libexec"].contains(&name) && whole && !local && !narrow(prefix))
        .then(|| prefix.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::PATH;
    use super::*;

    #[test]
    fn of_a_path_the_nearest_whole_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        // Deep enough to be nobody's home.
        let base = directory.path().canonicalize().unwrap().join("a/b");
        let make = |path: &str| {
            let path = base.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let check = |path: &Path, expected: Option<&str>| {
            assert_eq!(
                whole(path),
                expected.map(|path| base.join(path)),
                "{}",
                path.display()
            );
        };
        check(&make("app/node_modules/x/node_modules/y/z.js"), Some("app"));
        make("venv/pyvenv.cfg");
        check(&make("venv/bin/server"), Some("venv"));
        make("node-20/lib/x");
        check(&make("node-20/bin/node"), Some("node-20"));
        make("home/.local/lib/x");
        check(&make("home/.local/bin/tool"), Some("home/.local/bin"));
        check(&make("plain/server.py"), Some("plain"));
        check(&make("home/.ssh/id"), Some("home/.ssh/id"));
        check(&base.join("plain"), Some("plain"));
        for hidden in [
            "/etc/shadow",
            "/proc/1/environ",
            "/usr/bin/env",
            "/",
            "/root",
        ] {
            assert_eq!(whole(Path::new(hidden)), None, "{hidden}");
        }
        assert_eq!(whole(Path::new("/root/x.py")), Some("/root/x.py".into()));
        // What is installed beside the system is there if it is named.
        assert_eq!(whole(Path::new("/opt/server")), Some("/opt/server".into()));
        assert_eq!(whole(Path::new("/opt/app/server")), Some("/opt/app".into()));
    }

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
