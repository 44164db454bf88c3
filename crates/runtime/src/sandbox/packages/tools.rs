//! The programs that installations run, and the host files that these programs consist of.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::sandbox::confine::is_system;
use crate::search::{is_executable, own_path};

/// Options of newer npm versions that reject dependencies which are not registry packages. They are a second line of
/// defence. They are used only if npm knows them, because npm would reject an unknown option. `--allow-remote` is not
/// used: npm 11.19 would then reject every package with bundled dependencies.
const FLAGS: [(&str, &str); 3] = [
    ("'allow-git'", "--allow-git=none"),
    ("'allow-file'", "--allow-file=none"),
    ("'allow-directory'", "--allow-directory=none"),
];
/// The file in npm's folder that defines its options.
const DEFINITIONS_FILE: &str = "node_modules/@npmcli/config/lib/definitions/definitions.js";

/// The host programs that are visible to an installation.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Read-only paths, in addition to the system folders.
    pub(super) shown: Vec<PathBuf>,
    /// The `PATH` of an installation: the system folders in the `PATH` of this process, and the real folders of Node.js
    /// and the Pythons.
    pub(super) path: OsString,
}

impl Tools {
    /// Returns what `program`, Node.js and the Pythons on the `PATH` need.
    pub(super) fn find(program: &Path) -> Self {
        let mut shown = whole(program);
        let mut folders: Vec<PathBuf> = Vec::new();
        let mut add = |folder: &Path| {
            if !folders.iter().any(|known| known == folder) {
                folders.push(folder.to_owned());
            }
        };
        for folder in env::split_paths(&own_path()).filter(|folder| folder.is_absolute()) {
            if is_system(&folder) {
                add(&folder);
                continue;
            }
            for program in programs(&folder) {
                shown.extend(whole(&program));
                program.parent().into_iter().for_each(&mut add);
            }
        }
        Self {
            shown,
            path: env::join_paths(folders).unwrap_or_default(),
        }
    }
}

/// Node.js and the Pythons in a folder, as regular files that are not scripts.
fn programs(folder: &Path) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let version = name
            .strip_prefix("python")
            .or_else(|| name.strip_prefix("pypy"));
        let is_python = version.is_some_and(|rest| {
            rest.bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
        });
        if is_python || name == "node" {
            found.extend(entry.path().canonicalize());
        }
    }
    let (binaries, scripts): (Vec<_>, Vec<_>) = found
        .into_iter()
        .filter(|path| is_executable(path))
        .partition(|path| !is_script(path));
    match scripts.is_empty() {
        true => binaries,
        false => binaries.into_iter().chain(pyenv(folder)).collect(),
    }
}

fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && &start == b"#!"
}

/// The Pythons behind the shims of pyenv in this folder, the selected one first.
fn pyenv(shims: &Path) -> Vec<PathBuf> {
    let Some(root) = shims.parent().filter(|_| shims.ends_with("shims")) else {
        return Vec::new();
    };
    let chosen = fs::read_to_string(root.join("version")).unwrap_or_default();
    let mut names: Vec<_> = chosen
        .split_whitespace()
        .filter(|name| !name.contains('/'))
        .map(OsString::from)
        .collect();
    let all = fs::read_dir(root.join("versions"));
    let all = all.into_iter().flatten().flatten();
    let mut rest: Vec<_> = all.map(|entry| entry.file_name()).collect();
    rest.sort();
    // Newest first, judging by name.
    names.extend(rest.into_iter().rev());
    let programs = names.into_iter().filter_map(|name| {
        let python = root.join("versions").join(name).join("bin/python");
        python.canonicalize().ok()
    });
    programs.filter(|path| is_executable(path)).collect()
}

/// Returns what a program needs: its installation prefix, the npm package, or only its file.
fn whole(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent().filter(|_| !is_system(program)) else {
        return Vec::new();
    };
    let prefix = folder.parent().filter(|_| folder.ends_with("bin"));
    let Some(prefix) = prefix else {
        return vec![program.to_owned()];
    };
    let home = env::var_os("HOME").map(PathBuf::from);
    let is_wide = prefix.components().count() <= 2
        || home.as_deref() == Some(prefix)
        || prefix.ends_with(".local");
    if is_wide {
        let lib = fs::read_dir(prefix.join("lib"))
            .into_iter()
            .flatten()
            .flatten();
        let python =
            lib.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"python"));
        let mut shown: Vec<_> = python.map(|entry| entry.path()).collect();
        shown.push(program.to_owned());
        return shown;
    }
    let is_installation = prefix.join("lib").is_dir() && !prefix.join("pyvenv.cfg").exists();
    if is_installation || prefix.join("package.json").exists() {
        vec![prefix.to_owned()]
    } else {
        vec![program.to_owned()]
    }
}

/// The [`FLAGS`] that this npm knows.
pub(super) fn known_flags(npm: &Path) -> Vec<&'static str> {
    let folder = npm.parent().and_then(Path::parent);
    let definitions =
        folder.and_then(|folder| fs::read_to_string(folder.join(DEFINITIONS_FILE)).ok());
    let definitions = definitions.unwrap_or_default();
    let known = FLAGS.iter().filter(|(name, _)| definitions.contains(name));
    known.map(|(_, flag)| *flag).collect()
}
