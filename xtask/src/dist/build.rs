//! The release binaries: for each architecture one that needs only glibc 2.28, and its debug information.
//!
//! Zig is the C compiler and the linker, since it can link against any version of glibc, for any processor. It comes from
//! PyPI, with `cargo-zigbuild`, which makes cargo use it. The compiler for the machine's own architecture is the one of
//! this checkout. Rustup's toolchain here has no standard library for another one, so the other compiler is the one that
//! Debian builds its browsers with (`rust-arm64.sh`).
//!
//! Paths of this machine are replaced, in Rust and in C, so that the folder of the checkout changes nothing.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::{Arch, Release, root};
use crate::{
    python,
    shell::{Cmd, heading, is_executable, which},
    workspace::{FEATURES, Stamp, Workspace, caches},
};

/// The newest version of glibc that the binaries may need, as zig expects it: that of Debian 10 and of RHEL 8.
pub(super) const GLIBC: (u32, u32) = (2, 28);
const ZIG: &str = include_str!("../../deps/zig.txt");
const RUST_FOR_ARM: &str = include_str!("rust-arm64.sh");
/// The parts of glibc, which is all that the binaries may be linked to.
const LIBRARIES: [&str; 8] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// A program that was built for a release.
pub(crate) struct Built {
    pub(super) arch: Arch,
    /// Without symbols.
    pub(super) program: PathBuf,
    pub(super) debug: Option<PathBuf>,
    /// What `rustc --version` prints.
    pub(super) compiler: String,
}

impl Built {
    /// Any program for this machine.
    pub(super) fn from_program(release: &Release, arch: Arch, file: &Path) -> Result<Self> {
        let program = release.work.join("toolwharf");
        let strip = Cmd::new("strip").args(["--strip-all", "-o"]);
        strip.arg(&program).arg(file).run()?;
        Ok(Self {
            arch,
            program,
            debug: None,
            compiler: String::new(),
        })
    }

    /// Runs the program with these arguments: with an emulator, if it is for another architecture.
    pub(super) fn cmd(&self, workspace: &Workspace) -> Result<Cmd> {
        if self.arch == Arch::of_host()? {
            return Ok(Cmd::new(&self.program));
        }
        let root = root::foreign(workspace, self.arch)?;
        Ok(Cmd::new(emulator(self.arch)?)
            .arg("-L")
            .arg(root)
            .arg(&self.program))
    }
}

/// The program that runs programs for another architecture.
pub(super) fn emulator(arch: Arch) -> Result<PathBuf> {
    let name = format!("qemu-{}-static", arch.name());
    which(&name)
        .with_context(|| format!("{name} is missing: run `apt-get install qemu-user-static`"))
}

/// Builds the program for an architecture.
pub(super) fn run(release: &Release, arch: Arch) -> Result<Built> {
    heading(&format!(
        "release build for {} (half an hour on two cores)",
        arch.name()
    ));
    let workspace = &release.workspace;
    let (major, minor) = GLIBC;
    let zig = zig(workspace)?;
    let sysroot = Cmd::new("rustc")
        .args(["--print", "sysroot"])
        .dir(workspace.root())
        .output()?;
    let sysroot = PathBuf::from(sysroot.trim());
    let compiler = match arch == Arch::of_host()? {
        true => PathBuf::from("rustc"),
        false => rust_for(arch, workspace)?,
    };
    let target = workspace.target()?.join("dist-build");
    let home = env::var_os("HOME").context("HOME is not set")?;
    let cargo =
        env::var_os("CARGO_HOME").map_or_else(|| Path::new(&home).join(".cargo"), Into::into);
    // The last one that fits is used.
    let places = [
        (workspace.root(), "/toolwharf"),
        (cargo.as_path(), "/cargo"),
        (sysroot.as_path(), "/rust"),
        (target.as_path(), "/target"),
    ];
    let rust = places.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    let c = places.map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display()));
    let triple = arch.triple();
    let path = env::var("PATH").unwrap_or_default();
    release
        .cmd("cargo-zigbuild")
        .args([
            "zigbuild",
            "--release",
            "--locked",
            "--package=toolwharf",
            "--bin=toolwharf",
        ])
        .arg(FEATURES)
        .arg(format!("--target={triple}.{major}.{minor}"))
        .dir(workspace.root())
        .env("PATH", format!("{}:{path}", zig.join("bin").display()))
        .env("RUSTC", &compiler)
        .env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}"))
        .env(&format!("CFLAGS_{}", triple.replace('-', "_")), c.join(" "))
        .env("TOOLWHARF_RELAY_LINKER", tool(&sysroot, "rust-lld")?)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only")
        .env("CARGO_PROFILE_RELEASE_STRIP", "none")
        .env("ZIG_GLOBAL_CACHE_DIR", workspace.work().join("zig-cache"))
        .run()?;
    let whole = target.join(&triple).join("release/toolwharf");
    check(&whole)?;
    let folder = release.work.join(arch.name());
    fs::create_dir_all(&folder)?;
    let (program, debug) = split(&whole, &folder, &sysroot)?;
    let version = Cmd::new(&compiler).arg("--version").output()?;
    let built = Built {
        arch,
        program,
        debug: Some(debug),
        compiler: version.trim().to_owned(),
    };
    built.cmd(workspace)?.arg("--version").run()?;
    Ok(built)
}

/// A tool of LLVM that comes with rustc. These tools work for any processor.
fn tool(sysroot: &Path, name: &str) -> Result<PathBuf> {
    let host = Arch::of_host()?.triple();
    let tool = sysroot
        .join("lib/rustlib")
        .join(host)
        .join("bin")
        .join(name);
    ensure!(
        is_executable(&tool),
        "{} is missing: use a Rust toolchain of rustup",
        tool.display()
    );
    Ok(tool)
}

/// Separates the debug information. A debugger finds it as `toolwharf.debug`, next to the program.
fn split(whole: &Path, folder: &Path, sysroot: &Path) -> Result<(PathBuf, PathBuf)> {
    let objcopy = tool(sysroot, "rust-objcopy")?;
    let objcopy = || Cmd::new(&objcopy).shown_as("rust-objcopy");
    let (program, debug) = (folder.join("toolwharf"), folder.join("toolwharf.debug"));
    objcopy()
        .arg("--only-keep-debug")
        .arg(whole)
        .arg(&debug)
        .run()?;
    let link = format!("--add-gnu-debuglink={}", debug.display());
    objcopy()
        .args(["--strip-all", &link])
        .arg(whole)
        .arg(&program)
        .run()?;
    Ok((program, debug))
}

/// Checks that a program needs nothing but glibc, in a version that is old enough.
fn check(program: &Path) -> Result<()> {
    let read = |option: &str| {
        let read = Cmd::new("readelf").args(["--wide", option]).arg(program);
        read.env("LC_ALL", "C").output()
    };
    let newest = newest_glibc(&read("--version-info")?);
    ensure!(
        newest <= GLIBC,
        "{} needs glibc {}.{}, but {}.{} is the newest that it may need",
        program.display(),
        newest.0,
        newest.1,
        GLIBC.0,
        GLIBC.1
    );
    let dynamic = read("--dynamic")?;
    let other: Vec<&str> = libraries(&dynamic)
        .filter(|name| !LIBRARIES.contains(name))
        .collect();
    ensure!(
        other.is_empty(),
        "{} needs libraries that not every system has: {}",
        program.display(),
        other.join(", ")
    );
    Ok(())
}

/// The newest version of glibc among the symbols that `readelf --version-info` lists.
fn newest_glibc(listed: &str) -> (u32, u32) {
    let versions: BTreeSet<(u32, u32)> = listed
        .split_whitespace()
        .filter_map(|word| {
            let mut parts = word.strip_prefix("GLIBC_")?.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        })
        .collect();
    versions.last().copied().unwrap_or_default()
}

/// The libraries in the output of `readelf --dynamic`.
fn libraries(listed: &str) -> impl Iterator<Item = &str> {
    let needed = listed.lines().filter(|line| line.contains("(NEEDED)"));
    needed.filter_map(|line| line.split_once('[')?.1.strip_suffix(']'))
}

/// Returns a Python environment with zig, which is installed at the first use.
fn zig(workspace: &Workspace) -> Result<PathBuf> {
    let place = workspace.work().join("zig");
    let stamp = Stamp::new(workspace.work().join("zig.stamp"), ZIG.to_owned());
    if stamp.holds() && is_executable(&place.join("bin/cargo-zigbuild")) {
        return Ok(place);
    }
    heading("installing zig and cargo-zigbuild from PyPI");
    stamp.remove()?;
    fs::create_dir_all(workspace.work())?;
    let python = python::find().context("python3 is missing: run `cargo xtask setup`")?;
    Cmd::new(python)
        .args(["-m", "venv", "--clear"])
        .arg(&place)
        .run()?;
    let pins = ZIG.lines().filter(|line| !line.starts_with('#'));
    Cmd::new(place.join("bin/python"))
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ])
        .args(pins)
        .run()?;
    stamp.write()?;
    Ok(place)
}

/// Returns a compiler with the standard library for another architecture.
fn rust_for(arch: Arch, workspace: &Workspace) -> Result<PathBuf> {
    if arch != Arch::Arm {
        bail!(
            "this machine has no standard library of Rust for {}: build the release on x86_64, or only this architecture, with `--arch`",
            arch.name()
        );
    }
    let cache = caches()?.join("rust-arm64");
    let stamp = Stamp::new(cache.join("script"), RUST_FOR_ARM.to_owned());
    let compiler = cache.join("rustc");
    if stamp.holds() && is_executable(&compiler) {
        return Ok(compiler);
    }
    heading("a Rust compiler with the standard library for aarch64, from Debian");
    Cmd::new("bash")
        .arg("xtask/src/dist/rust-arm64.sh")
        .arg(&cache)
        .dir(workspace.root())
        .run()?;
    stamp.write()?;
    Ok(compiler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_glibc_is_found() {
        let listed = "  0x0010:   Name: GLIBC_2.4  Flags: none  Version: 2\n  0x0020:   Name: GLIBC_2.28  Flags: none\n \
                      0x0030:   Name: GLIBC_2.2.5  Flags: none\n 0: 3 (GLIBC_PRIVATE)";
        assert_eq!(newest_glibc(listed), (2, 28));
    }

    #[test]
    fn the_needed_libraries_are_found() {
        let listed = " 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n \
                      0x000000000000000c (INIT)               0x1000\n \
                      0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]";
        let all: Vec<&str> = libraries(listed).collect();
        assert_eq!(all, ["libc.so.6", "libgcc_s.so.1"]);
    }

    #[test]
    fn zig_is_pinned() {
        let pins: Vec<&str> = ZIG.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(pins.iter().all(|pin| pin.contains("==")), "{pins:?}");
    }
}
