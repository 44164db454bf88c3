//! `cargo xtask dist`: all files of a release, in `target/dist`.
//!
//! | file | made by |
//! | --- | --- |
//! | `toolwharf-VERSION-ARCH-linux.tar.gz`, `….debug.gz` | [`build`], [`tree`] |
//! | `.deb`, `.rpm` | [`packages`] |
//! | `.tgz` for npm, `.whl` for PyPI | [`registries`] |
//! | `toolwharf-VERSION-image-….tar.gz` | [`images`], on the root file systems of [`root`] |
//! | `toolwharf-VERSION-ARCH.cdx.json` | [`sbom`] |
//! | `NOTES.md`, `build.json`, `SHA256SUMS` | [`summary`] |
//!
//! The binaries and all packages depend only on the commit: a second run, in another folder, makes the same bytes.
//! Images contain the same files, but Docker writes the time of their build into them.
//!
//! Tests install packages that are made in the same way from the development build: see [`for_tests`].

mod build;
pub(crate) mod images;
mod model;
mod packages;
mod registries;
pub(crate) mod root;
mod sbom;
mod summary;
mod tree;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use rustix::{fs::Mode, process::umask};

use self::build::Built;
use crate::{
    daemon, docker,
    shell::{Cmd, heading, which},
    workspace::{Stamp, Workspace, files},
};

/// The environment variable with the folder of packages, for tests.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_PACKAGES";
/// The tag of the small image with the development build, for tests.
const TEST_IMAGE: &str = "toolwharf-test/toolwharf:1";
/// Programs that this command needs, with their Debian packages.
const PROGRAMS: [(&str, &str); 3] = [
    ("dpkg-deb", "dpkg"),
    ("rpmbuild", "rpm"),
    ("readelf", "binutils"),
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only this processor architecture
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// Packs this program, which is for this machine, instead of building any
    #[arg(long, value_name = "FILE", conflicts_with = "arch")]
    binary: Option<PathBuf>,
    /// Without the images, which need root
    #[arg(long)]
    no_images: bool,
}

/// A processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    #[value(name = "x86_64")]
    X86,
    #[value(name = "aarch64")]
    Arm,
}

impl Arch {
    const ALL: [Self; 2] = [Self::X86, Self::Arm];

    /// The architecture of this machine.
    pub(crate) fn of_host() -> Result<Self> {
        let found = Self::ALL
            .into_iter()
            .find(|arch| arch.name() == env::consts::ARCH);
        found.with_context(|| {
            format!(
                "releases are built on x86_64 or aarch64, not on {}",
                env::consts::ARCH
            )
        })
    }

    /// The name that Rust, rpm and the kernel use.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Arm => "aarch64",
        }
    }

    /// The name that Debian, Docker and Go use.
    const fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm => "arm64",
        }
    }

    /// The name that Node.js uses.
    const fn node(self) -> &'static str {
        match self {
            Self::X86 => "x64",
            Self::Arm => "arm64",
        }
    }

    fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }
}

/// The properties that all files of a release share.
pub(crate) struct Release {
    workspace: Workspace,
    version: String,
    commit: String,
    /// The time of the commit in seconds, as `SOURCE_DATE_EPOCH`. All files have it.
    epoch: String,
    /// The output folder.
    out: PathBuf,
    /// Intermediate files.
    work: PathBuf,
    is_for_tests: bool,
}

impl Release {
    /// Begins a release in an empty folder.
    fn begin(workspace: &Workspace, name: &str, is_for_tests: bool) -> Result<Self> {
        for (program, package) in PROGRAMS {
            ensure!(
                which(program).is_some(),
                "{program} is missing: run `apt-get install {package}`"
            );
        }
        let target = workspace.target()?;
        let (out, work) = (target.join(name), target.join(format!("{name}-work")));
        for folder in [&out, &work] {
            if folder.exists() {
                fs::remove_dir_all(folder)
                    .with_context(|| format!("cannot empty {}", folder.display()))?;
            }
            fs::create_dir_all(folder)?;
        }
        let git = |args: &[&str]| -> Result<String> {
            let output = Cmd::new("git").args(args).dir(workspace.root()).output()?;
            Ok(output.trim().to_owned())
        };
        Ok(Self {
            version: version(workspace)?,
            commit: git(&["rev-parse", "HEAD"])?,
            epoch: git(&["log", "-1", "--format=%ct"])?,
            workspace: workspace.clone(),
            out,
            work,
            is_for_tests,
        })
    }

    /// The level of compression: packages for tests are made quickly.
    const fn level(&self) -> &'static str {
        match self.is_for_tests {
            true => "1",
            false => "9",
        }
    }

    /// A program that makes the same output at any time.
    fn cmd(&self, program: &str) -> Cmd {
        Cmd::new(program)
            .env("SOURCE_DATE_EPOCH", &self.epoch)
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
    }

    /// Packs the contents of a folder, always into the same bytes. Files belong to root, unless `keeps_owners`.
    fn pack(&self, folder: &Path, file: &Path, keeps_owners: bool) -> Result<()> {
        let owners: &[&str] = match keeps_owners {
            true => &[],
            false => &["--owner=0", "--group=0"],
        };
        let cmd = self
            .cmd("tar")
            .args(["--create", "--format=gnu", "--sort=name"]);
        let cmd = cmd
            .arg(format!("--mtime=@{}", self.epoch))
            .arg("--numeric-owner");
        let cmd = cmd.args(owners).arg("--file").arg(file);
        let is_compressed = file.extension().is_some_and(|end| end != "tar");
        let gzip = format!("--use-compress-program=gzip -n -{}", self.level());
        let cmd = cmd.args(is_compressed.then_some(gzip));
        let top: Vec<_> = names_in(folder)?;
        cmd.arg("-C").arg(folder).arg("--").args(top).run()
    }

    /// Compresses a file in place, into `FILE.gz`.
    fn gzip(&self, file: &Path) -> Result<()> {
        let cmd = self.cmd("gzip").args(["-n", "-f"]);
        cmd.arg(format!("-{}", self.level())).arg(file).run()
    }
}

/// Makes a release.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    // The permissions of files must not depend on who makes them.
    umask(Mode::from_raw_mode(0o022));
    let release = Release::begin(workspace, "dist", false)?;
    if workspace.has_changes()? {
        eprintln!(
            "    warning: there are changes that are not committed, so nobody can build these files again"
        );
    }
    let host = Arch::of_host()?;
    let archs = match (&options.binary, options.arch) {
        (Some(_), _) => vec![host],
        (None, Some(arch)) => vec![arch],
        (None, None) => Arch::ALL.to_vec(),
    };
    // Missing tools are reported before the long builds.
    for arch in archs.iter().filter(|arch| **arch != host) {
        build::emulator(*arch)?;
        root::foreign(workspace, *arch)?;
    }
    if !options.no_images {
        root::full(workspace)?;
        docker::ensure_installed(&["dockerd", "docker", "containerd", "runc"])?;
    }
    let build = |arch| match &options.binary {
        Some(file) => Built::from_program(&release, arch, file),
        None => build::run(&release, arch),
    };
    let all: Vec<Built> = archs.into_iter().map(build).collect::<Result<_>>()?;
    for built in &all {
        pack(&release, built)?;
    }
    registries::main_package(&release)?;
    summary::chart(&release)?;
    if !options.no_images {
        heading("images");
        let interrupted = daemon::interruption()?;
        let docker = docker::Daemon::bare(&interrupted)?;
        for built in &all {
            images::small(&release, built, &docker)?;
            // The packages of the full image are installed by programs of its architecture.
            if built.arch == host {
                images::full(&release, built, &docker)?;
            }
        }
    }
    summary::write(&release, &all)?;
    eprintln!("    the release is in {}", release.out.display());
    Ok(())
}

/// Makes all packages of one program.
fn pack(release: &Release, built: &Built) -> Result<()> {
    heading(&format!("packages for {}", built.arch.name()));
    let tree = tree::stage(release, built)?;
    tree::archive(release, built, &tree)?;
    packages::deb(release, built.arch, &tree)?;
    packages::rpm(release, built.arch, &tree)?;
    registries::platform_package(release, built)?;
    registries::wheel(release, built)?;
    if let Some(debug) = &built.debug {
        let name = format!(
            "toolwharf-{}-{}-linux.debug",
            release.version,
            built.arch.name()
        );
        let file = release.out.join(name);
        fs::copy(debug, &file).with_context(|| format!("cannot write {}", file.display()))?;
        release.gzip(&file)?;
    }
    sbom::write(release, built.arch, None).map(drop)
}

/// The inputs of the package tests.
pub(crate) struct ForTests {
    /// The folder of the packages.
    pub(crate) packages: PathBuf,
    /// A root file system on which nothing of Toolwharf is installed.
    pub(crate) root: PathBuf,
}

/// Packs the development build, and builds the small image with it. A release build would take too long for each test run.
/// The folder in the environment, if any, is used instead: `TOOLWHARF_TEST_PACKAGES=target/dist` tests a release.
pub(crate) fn for_tests(workspace: &Workspace, docker: &docker::Daemon) -> Result<ForTests> {
    let host = Arch::of_host()?;
    let root = root::full(workspace)?;
    let program = workspace.target()?.join("debug/toolwharf");
    if let Some(given) = env::var_os(VARIABLE).filter(|given| !given.is_empty()) {
        let packages = fs::canonicalize(&given)
            .with_context(|| format!("{VARIABLE} names no folder: {}", given.display()))?;
        images::load(docker, &packages, host, TEST_IMAGE)?;
        return Ok(ForTests { packages, root });
    }
    heading("packages for tests");
    let packages = workspace.target()?.join("dist-test");
    let stamp = Stamp::new(packages.join("made-of"), inputs(workspace, &program)?);
    if !stamp.holds() {
        let release = Release::begin(workspace, "dist-test", true)?;
        let built = Built::from_program(&release, host, &program)?;
        pack(&release, &built)?;
        registries::main_package(&release)?;
        images::context(&release, &built)?;
        stamp.write()?;
    }
    images::build_for_tests(workspace, docker, TEST_IMAGE)?;
    Ok(ForTests { packages, root })
}

/// Describes what the packages for tests are made of.
fn inputs(workspace: &Workspace, program: &Path) -> Result<String> {
    let mut all = vec![program.to_owned()];
    for folder in ["deploy", "xtask/src/dist"] {
        all.extend(files(&workspace.root().join(folder))?);
    }
    let mut text = String::new();
    for file in all {
        let meta = fs::metadata(&file)
            .with_context(|| format!("{} is missing: build the workspace", file.display()))?;
        text.push_str(&format!("{} {:?}\n", file.display(), meta.modified()?));
    }
    Ok(text)
}

/// The version of the workspace.
fn version(workspace: &Workspace) -> Result<String> {
    let metadata = workspace.metadata(&["--no-deps"])?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let own = packages
        .iter()
        .find(|package| package["name"] == "toolwharf");
    let version = own.and_then(|own| own["version"].as_str());
    Ok(version.context("no package `toolwharf`")?.to_owned())
}

/// The names in a folder, sorted.
fn names_in(folder: &Path) -> Result<Vec<std::ffi::OsString>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Writes a file with these permissions, and the folders above it.
fn write(file: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    let make = || -> std::io::Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(file, content)?;
        fs::set_permissions(file, fs::Permissions::from_mode(mode))
    };
    make().with_context(|| format!("cannot write {}", file.display()))
}

/// Copies a file, with these permissions.
fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    write(to, content, mode)
}

/// Gives the program another path. It is large, so it is not copied.
fn link(program: &Path, to: &Path) -> Result<()> {
    let make = || -> std::io::Result<()> {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::set_permissions(program, fs::Permissions::from_mode(0o755))?;
        // Another file system has no links to it.
        fs::hard_link(program, to).or_else(|_| fs::copy(program, to).map(drop))
    };
    make().with_context(|| format!("cannot link {}", to.display()))
}

/// Fills in a template: `@NAME@` stands for a value.
fn filled(template: &str, values: &[(&str, &str)]) -> String {
    let filled =
        |text: String, (name, value): &(&str, &str)| text.replace(&format!("@{name}@"), value);
    values.iter().fold(template.to_owned(), filled)
}
