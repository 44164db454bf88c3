//! Finds the host files that a command line needs, from its program, its arguments and the projects that contain them.
//!
//! Invariants: file contents are not read, except to find a `#!` line. A home directory, or a folder that holds homes
//! or system data, is never needed as a whole. Deliberately absent: which of these files are hidden (`hidden`), and
//! whether they may be shown (`plan`).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use model::{Launch, Program};

use super::SYSTEM;
use super::program::{chain, is_narrow, prefix};
use crate::search::find;

/// Paths that no program and no argument makes visible.
const NEVER_SHOWN: [&str; 7] = ["/proc", "/dev", "/sys", "/etc", "/run", "/boot", "/var/run"];

/// Files at the top of a project.
const MANIFESTS: [&str; 9] = [
    "package.json",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "requirements.txt",
    "deno.json",
    "deno.jsonc",
    "composer.json",
    "Gemfile",
];

/// Usual names of virtual environments in a project.
const VENVS: [&str; 3] = [".venv", "venv", ".env"];

/// Extensions of source files.
const SOURCE_EXTENSIONS: [&str; 24] = [
    "bash", "cjs", "cts", "jar", "js", "jsx", "lua", "mjs", "mts", "node", "php", "pl", "pm", "py",
    "pyc", "pyi", "pyw", "pyz", "rb", "sh", "so", "ts", "tsx", "wasm",
];

/// Programs whose first non-option argument is another program.
const WRAPPERS: [&str; 5] = ["env", "nice", "nohup", "stdbuf", "timeout"];
const SHELLS: [&str; 5] = ["ash", "bash", "dash", "sh", "zsh"];

/// Variables that list folders of source files.
const SOURCE_PATHS: [&str; 2] = ["NODE_PATH", "PYTHONPATH"];

/// Folder entries searched for sources next to a script, or for links to packages of the same workspace.
const MAX_SIBLINGS: usize = 2_000;

/// How a needed path is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    File,
    /// An installed folder without personal secrets: `node_modules`, a virtual environment, an installation prefix.
    Installed,
    /// A folder that is searched for secrets.
    Folder,
    /// Like `Folder`, and the root of a project. Files created at its top level are not visible until the next start.
    Project,
}

/// The files that a command line needs.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Outermost first.
    pub(super) roots: BTreeSet<(PathBuf, Kind)>,
    /// Existing paths that the server entry names, visible or not.
    pub(super) named: BTreeSet<PathBuf>,
}

/// Returns what `program` needs. `interpreter` is set if the program is in an installed package. In that case, links
/// and `#!` lines of the package make nothing else visible.
pub(super) fn needs(
    launch: &Launch,
    program: &Path,
    interpreter: Option<&Path>,
    search: &OsStr,
) -> Needs {
    let mut needs = Needs::default();
    match interpreter {
        Some(interpreter) => needs.program(interpreter, search),
        None => {
            needs.program(program, search);
            needs.named.insert(program.to_owned());
        }
    }
    let args = launch.program.args();
    let name = program.file_name().and_then(OsStr::to_str);
    let name = name.unwrap_or_default();
    if WRAPPERS.contains(&name) {
        let wrapped = args
            .iter()
            .find(|arg| !arg.starts_with('-') && !arg.contains('='));
        if let Some(found) = wrapped.and_then(|wrapped| find(wrapped, search)) {
            needs.program(&found, search);
        }
    }
    let script = SHELLS.contains(&name).then(|| shell_script(args)).flatten();
    for arg in args {
        if Some(arg) == script {
            needs.shell(arg, search);
        } else {
            needs.argument(arg);
        }
    }
    for name in SOURCE_PATHS {
        let folders = launch.env.get(name).into_iter();
        for folder in folders.flat_map(|folders| folders.split(':')) {
            needs.argument(folder);
        }
    }
    needs
}

/// Host paths named anywhere in the entry, even where the program may not need them, such as in variable values.
pub(super) fn mentioned(launch: &Launch) -> BTreeSet<PathBuf> {
    let Program::Command { args, .. } = &launch.program else {
        return BTreeSet::new();
    };
    // A path that contains blanks is a whole argument, or everything after a `=`.
    let whole = args.iter().flat_map(|arg| {
        [
            Some(arg.as_str()),
            arg.split_once('=').map(|(_, value)| value),
        ]
    });
    let words = args
        .iter()
        .flat_map(|arg| arg.split([' ', '=', ';', '"', '\'', '&', '|']));
    let words = words.chain(whole.flatten());
    let values = launch.env.values().flat_map(|value| value.split(':'));
    let paths = words.chain(values).map(PathBuf::from);
    paths
        .filter(|path| path.is_absolute() && path.exists())
        .collect()
}

/// The argument after `-c`.
fn shell_script(args: &[String]) -> Option<&String> {
    let is_option =
        |arg: &String| arg.starts_with('-') && !arg.starts_with("--") && arg.contains('c');
    let at = args.iter().position(is_option)?;
    args.get(at + 1)
}

impl Needs {
    /// Adds a program, the targets of its links and `#!` lines, and the project or installation around each.
    fn program(&mut self, program: &Path, search: &OsStr) {
        for path in chain(program, search) {
            if path.exists() {
                self.around(&path, true);
            }
        }
    }

    /// Adds an argument that is a path or `--flag=PATH`.
    fn argument(&mut self, arg: &str) {
        let value = arg.split_once('=').map(|(_, value)| value);
        for text in [Some(arg), value].into_iter().flatten() {
            let path = Path::new(text);
            if path.is_absolute() && path.exists() {
                self.path(path);
            }
        }
    }

    fn path(&mut self, path: &Path) {
        self.named.insert(path.to_owned());
        self.around(path, is_source(path));
        // The link is useless without its target.
        if let Ok(real) = path.canonicalize()
            && real != path
        {
            self.around(&real, is_source(&real));
        }
    }

    /// Adds what the words of a shell script name: the folder that it changes to, programs, and source files given by
    /// absolute path or relative to that folder.
    fn shell(&mut self, script: &str, search: &OsStr) {
        let mut folder: Option<PathBuf> = None;
        let mut last = "";
        let separators = [
            ' ', '\t', '\n', ';', '&', '|', '(', ')', '<', '>', '"', '\'', '=',
        ];
        for word in script.split(separators).filter(|word| !word.is_empty()) {
            let path = match &folder {
                Some(folder) => folder.join(word),
                None => PathBuf::from(word),
            };
            // Only source files are added. Files that a script merely reads must be listed in `show`.
            if path.is_absolute() && path.is_file() && is_source(&path) {
                self.path(&path);
            } else if last == "cd" && path.is_absolute() && path.is_dir() {
                self.path(&path);
                folder = Some(path);
            } else if !word.contains('/')
                && let Some(program) = find(word, search)
            {
                self.program(&program, search);
            }
            last = word;
        }
    }

    fn add(&mut self, path: &Path, kind: Kind) {
        self.roots.insert((path.to_owned(), kind));
    }

    /// Adds the files around `path` that it needs to work. `is_code`: `path` is executed, not only read.
    fn around(&mut self, path: &Path, is_code: bool) {
        let is_below = |all: &[&str]| all.iter().any(|one| path.starts_with(one));
        if is_below(&NEVER_SHOWN) || is_below(&SYSTEM) || path.parent().is_none() {
            return;
        }
        let outermost = path.ancestors().filter(|at| at.ends_with("node_modules"));
        if let Some(modules) = outermost.last() {
            self.add(modules, Kind::Installed);
            if let Some(project) = modules.parent().filter(|project| !is_narrow(project)) {
                self.project(project);
            }
            return;
        }
        if let Some(venv) = path.ancestors().find(|at| is_venv(at)) {
            self.add(venv, Kind::Installed);
            // A package may be installed as a link to the project.
            let project = venv.parent().filter(|project| !is_narrow(project));
            if let Some(project) = project.filter(|project| has_manifest(project)) {
                self.project(project);
            }
            return;
        }
        if path.is_dir() {
            match is_project(path) {
                _ if is_narrow(path) => {}
                true => self.project(path),
                false => self.add(path, Kind::Folder),
            }
            return;
        }
        let Some(folder) = path.parent() else { return };
        if !is_code {
            return self.add(path, Kind::File);
        }
        if let Some(prefix) = prefix(folder) {
            return self.add(&prefix, Kind::Installed);
        }
        match folder.ancestors().find(|at| is_project(at)) {
            Some(project) if !is_narrow(project) => self.project(project),
            Some(home) => {
                self.add(path, Kind::File);
                self.siblings(path, folder);
                // The home directory itself stays hidden.
                self.parts(home);
            }
            None => {
                self.add(path, Kind::File);
                self.siblings(path, folder);
            }
        }
    }

    /// Adds a project and what it uses from folders above it: npm packages, and other members of its workspace.
    fn project(&mut self, project: &Path) {
        if !self.roots.insert((project.to_owned(), Kind::Project)) {
            return;
        }
        for above in project.ancestors() {
            let modules = above.join("node_modules");
            if !modules.is_dir() || is_shared(above) {
                continue;
            }
            self.add(&modules, Kind::Installed);
            for member in linked(&modules) {
                if member.starts_with(above) && !member.starts_with(project) && !is_narrow(&member)
                {
                    self.add(&member, Kind::Project);
                }
            }
        }
    }

    /// Adds the parts of a project whose folder is not shown.
    fn parts(&mut self, project: &Path) {
        for manifest in MANIFESTS.map(|name| project.join(name)) {
            if manifest.is_file() {
                self.add(&manifest, Kind::File);
            }
        }
        let venvs = VENVS.iter().map(|name| project.join(name));
        let venvs = venvs.filter(|venv| is_venv(venv));
        for installed in venvs.chain([project.join("node_modules")]) {
            if installed.is_dir() {
                self.add(&installed, Kind::Installed);
            }
        }
    }

    /// Adds what a script can import: the source files next to it, and folders of source files.
    fn siblings(&mut self, path: &Path, folder: &Path) {
        if folder.starts_with("/opt") && !is_narrow(folder) {
            return self.add(folder, Kind::Folder);
        }
        let is_hidden = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            name.as_encoded_bytes().starts_with(b".")
        };
        if is_narrow(folder) || is_hidden(folder) {
            return;
        }
        let script = is_source(path);
        for entry in entries(folder) {
            let sibling = entry.path();
            let wanted = match entry.file_type() {
                Ok(kind) if kind.is_dir() => {
                    script
                        && !is_hidden(&sibling)
                        && entries(&sibling).any(|entry| has_source_name(&entry.path()))
                }
                Ok(kind) if kind.is_file() => match script {
                    true => has_source_name(&sibling),
                    false => sibling.to_string_lossy().contains(".so"),
                },
                _ => false,
            };
            if wanted {
                let kind = if sibling.is_dir() {
                    Kind::Folder
                } else {
                    Kind::File
                };
                self.add(&sibling, kind);
            }
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.take(MAX_SIBLINGS)
}

/// Returns the targets of links in `node_modules`, with or without a scope: members of a workspace.
fn linked(modules: &Path) -> Vec<PathBuf> {
    let scoped =
        entries(modules).filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"@"));
    let scoped = scoped.flat_map(|scope| entries(&scope.path()));
    let all = entries(modules).chain(scoped);
    let links = all.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let targets = links.filter_map(|link| link.path().canonicalize().ok());
    targets.filter(|target| target.is_dir()).collect()
}

pub(super) fn is_venv(folder: &Path) -> bool {
    folder.join("pyvenv.cfg").is_file()
}

fn has_manifest(folder: &Path) -> bool {
    MANIFESTS.iter().any(|name| folder.join(name).is_file())
}

fn is_project(folder: &Path) -> bool {
    let has_parts = || {
        has_manifest(folder)
            || folder.join("node_modules").is_dir()
            || VENVS.iter().any(|name| is_venv(&folder.join(name)))
    };
    has_parts() && !is_shared(folder)
}

/// Returns whether every user may create files in a folder and remove only their own, as in `/tmp`. Such a folder is no
/// project, whatever other users have put there.
fn is_shared(folder: &Path) -> bool {
    let metadata = folder.metadata();
    metadata.is_ok_and(|metadata| metadata.mode() & 0o1002 == 0o1002)
}

fn has_source_name(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| SOURCE_EXTENSIONS.contains(&ending))
}

/// Returns whether a file is a script, judging by its name or first line.
fn is_source(path: &Path) -> bool {
    has_source_name(path) || super::program::starts_with_interpreter(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::PATH;
    use super::*;

    /// Creates files below `base`. A path that ends with `/` is a folder.
    fn tree(base: &Path, files: &[&str]) {
        for file in files {
            let path = base.join(file);
            match file.ends_with('/') {
                true => fs::create_dir_all(path).unwrap(),
                false => {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(path, "").unwrap();
                }
            }
        }
    }

    fn check(base: &Path, line: &str, expected: &[(&str, Kind)]) {
        let line = line.replace('@', &format!("{}/", base.display()));
        let mut words = line.split(' ').map(str::to_owned);
        let program = words.next().unwrap();
        let mut args: Vec<_> = words.collect();
        if let Some(at) = args.iter().position(|arg| arg == "-c") {
            let script = args.split_off(at + 1).join(" ");
            args.push(script);
        }
        let launch = Launch::new(
            Program::Command {
                program: program.clone(),
                args,
            },
            model::Place::Host,
        );
        let found = needs(&launch, Path::new(&program), None, OsStr::new(PATH));
        let expected: BTreeSet<_> = expected
            .iter()
            .map(|(path, kind)| (base.join(path), *kind))
            .collect();
        assert_eq!(found.roots, expected, "{line}");
    }

    #[test]
    fn u12_a_projects_own_program_gets_its_project_and_no_more() {
        use Kind::{File, Folder, Installed, Project};
        let directory = tempfile::tempdir().unwrap();
        // Deep enough not to look like a home directory.
        let base = &directory.path().canonicalize().unwrap().join("a/b");
        tree(
            base,
            &[
                "js/package.json",
                "js/dist/index.js",
                "js/dist/package.json",
                "js/node_modules/dep/index.js",
                "py/pyproject.toml",
                "py/src/app/server.py",
                "py/.venv/pyvenv.cfg",
                "py/.venv/bin/server",
                "lone/venv/pyvenv.cfg",
                "lone/venv/bin/server",
                "plain/server.py",
                "plain/helper.py",
                "plain/taxes.pdf",
                "plain/pkg/__init__.py",
                "plain/letters/one.txt",
                "bin/tool",
                "bin/libtool.so.1",
                "bin/other",
                "node-20/lib/x",
                "node-20/bin/node",
                "mono/node_modules/",
                "mono/packages/one/package.json",
                "mono/packages/one/index.js",
                "mono/packages/two/package.json",
                "home/.ssh/id",
                "data/x.json",
                "shared/package.json",
                "shared/node_modules/dep/index.js",
                "shared/mine/index.js",
                "shared/project/package.json",
                "shared/project/index.js",
            ],
        );
        let everyone = fs::Permissions::from_mode(0o1777);
        fs::set_permissions(base.join("shared"), everyone).unwrap();
        std::os::unix::fs::symlink("../packages/two", base.join("mono/node_modules/two")).unwrap();
        let py = [("py/.venv", Installed), ("py", Project)];
        let plain = [
            ("plain/helper.py", File),
            ("plain/pkg", Folder),
            ("plain/server.py", File),
        ];
        for (line, expected) in [
            (
                "/bin/true @js/dist/index.js",
                &[("js/dist", Project), ("js/node_modules", Installed)][..],
            ),
            (
                "/bin/true @js/node_modules/dep/index.js",
                &[("js", Project), ("js/node_modules", Installed)],
            ),
            ("/bin/true @py/src/app/server.py", &py[1..]),
            ("@py/.venv/bin/server", &py),
            ("@lone/venv/bin/server", &[("lone/venv", Installed)]),
            ("/bin/true @plain/server.py", &plain),
            ("/bin/true --script=@plain/server.py", &plain),
            (
                "sh -c cd @plain && exec true server.py",
                &[
                    ("plain", Folder),
                    ("plain/helper.py", File),
                    ("plain/pkg", Folder),
                    ("plain/server.py", File),
                ],
            ),
            (
                "@bin/tool",
                &[("bin/libtool.so.1", File), ("bin/tool", File)],
            ),
            ("@node-20/bin/node", &[("node-20", Installed)]),
            (
                "/bin/true @mono/packages/one/index.js",
                &[
                    ("mono/node_modules", Installed),
                    ("mono/packages/one", Project),
                    ("mono/packages/two", Project),
                ],
            ),
            ("/bin/true @home/.ssh/id", &[("home/.ssh/id", File)]),
            ("/bin/true @data/x.json", &[("data/x.json", File)]),
            ("/bin/true @data", &[("data", Folder)]),
            // Another user may have put a manifest into a shared folder.
            (
                "/bin/true @shared/mine/index.js",
                &[("shared/mine/index.js", File)],
            ),
            (
                "/bin/true @shared/project/index.js",
                &[("shared/project", Project)],
            ),
            (
                "/bin/true /etc/shadow /proc/1/environ /usr/bin/env / /root",
                &[],
            ),
        ] {
            check(base, line, expected);
        }
    }
}
