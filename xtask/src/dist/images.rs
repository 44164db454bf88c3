//! Container images, built by Docker's plain builder from `deploy/images`.
//!
//! Neither Dockerfile runs a command: `root.tar` contains all files. The small image can therefore be built for any
//! architecture, and nothing is downloaded.
//!
//! The small image contains glibc, not a static program: the program is then the one in all packages, and names are
//! resolved as everywhere (`/etc/nsswitch.conf`, DNS, `/etc/hosts`), which a static glibc cannot do alone.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::{Arch, Release, build::Built, copy, link, model, root, sbom, write};
use crate::{
    docker::Daemon,
    shell::{Cmd, is_root},
    workspace::Workspace,
};

/// Uid and gid of Toolwharf in the images.
const USER: u32 = 65532;
/// Folders that belong to it.
const OWN_FOLDERS: [&str; 2] = ["etc/toolwharf", "var/lib/toolwharf"];
/// Libraries in the small image: glibc with what it loads to resolve names, and the one that a development build needs.
const LIBRARIES: [&str; 10] = [
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libnss_dns.so.2",
    "libnss_files.so.2",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libutil.so.1",
];
/// The packages that they and the certificates are from. The copyright files of all others are left out.
const PACKAGES: [&str; 3] = ["ca-certificates", "gcc-12-base", "libc6"];
const USERS: [(&str, &str); 3] = [
    (
        "passwd",
        "root:x:0:0:root:/:/sbin/nologin\ntoolwharf:x:65532:65532::/var/lib/toolwharf:/sbin/nologin\n",
    ),
    ("group", "root:x:0:\ntoolwharf:x:65532:\n"),
    (
        "nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\n",
    ),
];

impl Arch {
    /// The loader of programs: its name, and the folder in which they expect it.
    const fn loader(self) -> (&'static str, &'static str) {
        match self {
            Self::X86 => ("ld-linux-x86-64.so.2", "lib64"),
            Self::Arm => ("ld-linux-aarch64.so.1", "lib"),
        }
    }
}

/// Builds the small image, and saves it in the release.
pub(super) fn small(release: &Release, built: &Built, docker: &Daemon) -> Result<()> {
    let context = context(release, built)?;
    let tag = format!("toolwharf:{}", release.version);
    build(release, built.arch, docker, &context, &tag)?;
    save(release, built.arch, docker, &tag, "image")
}

/// Builds the full image, and saves it in the release.
pub(super) fn full(release: &Release, built: &Built, docker: &Daemon) -> Result<()> {
    let from = root::full(&release.workspace)?;
    let context = release.work.join("image-full");
    let folder = context.join("root");
    fs::create_dir_all(&context)?;
    Cmd::new("cp")
        .args(["--archive", "--reflink=auto"])
        .arg(&from)
        .arg(&folder)
        .run()?;
    link(&built.program, &folder.join("usr/bin/toolwharf"))?;
    for (file, line) in [
        (
            "etc/passwd",
            "toolwharf:x:65532:65532::/var/lib/toolwharf:/usr/sbin/nologin\n",
        ),
        ("etc/group", "toolwharf:x:65532:\n"),
    ] {
        let file = folder.join(file);
        let text = fs::read_to_string(&file)? + line;
        fs::write(&file, text)?;
    }
    own_folders(&folder)?;
    model::add(&release.workspace, &folder)?;
    let packages = sbom::debian(&from, None)?;
    finish(release, built, &context, "full", &packages)?;
    let tag = format!("toolwharf:{}-full", release.version);
    build(release, built.arch, docker, &context, &tag)?;
    for program in ["bwrap", "node", "npx", "python3", "uvx"] {
        let run = docker.client(["run", "--rm", "--entrypoint", program]);
        run.args([tag.as_str(), "--version"]).run()?;
    }
    save(release, built.arch, docker, &tag, "image-full")
}

/// The folder in which the small image of the packages for tests is prepared.
fn context_folder(work: &Path, arch: Arch) -> PathBuf {
    work.join(format!("image-{}", arch.name()))
}

/// Prepares the build of the small image. Returns the folder.
pub(super) fn context(release: &Release, built: &Built) -> Result<PathBuf> {
    let context = context_folder(&release.work, built.arch);
    small_root(
        &release.workspace,
        built.arch,
        &built.program,
        &context.join("root"),
    )?;
    let full = root::full(&release.workspace)?;
    let packages = sbom::debian(&full, Some(&PACKAGES))?;
    finish(release, built, &context, "small", &packages)?;
    Ok(context)
}

/// Fills a folder with the files of the small image. The program may be any for this architecture.
pub(crate) fn small_root(
    workspace: &Workspace,
    arch: Arch,
    program: &Path,
    to: &Path,
) -> Result<()> {
    ensure!(
        is_root()?,
        "images contain files of several users: run this as root, or pass --no-images"
    );
    let full = root::full(workspace)?;
    let from = match arch == Arch::of_host()? {
        true => full.clone(),
        false => root::foreign(workspace, arch)?,
    };
    let libraries = format!("usr/lib/{}-linux-gnu", arch.name());
    for name in LIBRARIES {
        let library = from.join(&libraries).join(name);
        copy(&library, &to.join(&libraries).join(name), 0o755)?;
    }
    let (loader, folder) = arch.loader();
    let loader_file = from.join(&libraries).join(loader);
    copy(&loader_file, &to.join(folder).join(loader), 0o755)?;
    link(program, &to.join("usr/bin/toolwharf"))?;
    for (name, text) in USERS {
        write(&to.join("etc").join(name), text, 0o644)?;
    }
    let certificates = "etc/ssl/certs/ca-certificates.crt";
    copy(&full.join(certificates), &to.join(certificates), 0o644)?;
    for package in PACKAGES {
        let copyright = format!("usr/share/doc/{package}/copyright");
        copy(&full.join(&copyright), &to.join(&copyright), 0o644)?;
    }
    copy(
        &workspace.root().join("LICENSE"),
        &to.join("usr/share/doc/toolwharf/copyright"),
        0o644,
    )?;
    own_folders(to)?;
    fs::create_dir_all(to.join("tmp"))?;
    fs::set_permissions(to.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    Ok(())
}

/// Creates the folders of Toolwharf.
fn own_folders(root: &Path) -> Result<()> {
    for name in OWN_FOLDERS {
        let folder = root.join(name);
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        chown(&folder, Some(USER), Some(USER))
            .with_context(|| format!("cannot give {} another owner", folder.display()))?;
    }
    Ok(())
}

/// Adds the SBOM, and packs the root. `kind`: the Dockerfile.
fn finish(
    release: &Release,
    built: &Built,
    context: &Path,
    kind: &str,
    packages: &[serde_json::Value],
) -> Result<()> {
    let root = context.join("root");
    let sbom = sbom::write(release, built.arch, Some((kind, packages)))?;
    copy(
        &sbom,
        &root.join("usr/share/doc/toolwharf/sbom.cdx.json"),
        0o644,
    )?;
    release.pack(&root, &context.join("root.tar"), true)?;
    let file = format!("{kind}.Dockerfile");
    let from = release.workspace.root().join("deploy/images").join(&file);
    copy(&from, &context.join("Dockerfile"), 0o644)?;
    fs::remove_dir_all(root).context("cannot remove the unpacked root")
}

fn build(release: &Release, arch: Arch, docker: &Daemon, context: &Path, tag: &str) -> Result<()> {
    let created = Cmd::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"]);
    let created = created.arg(format!("--date=@{}", release.epoch)).output()?;
    // Docker 20.10 with its plain builder: neither BuildKit nor the plugin `buildx` is needed.
    docker
        .client(["build", "--quiet", "--tag", tag])
        .arg(format!("--platform=linux/{}", arch.debian()))
        .arg(format!("--build-arg=VERSION={}", release.version))
        .arg(format!("--build-arg=REVISION={}", release.commit))
        .arg(format!("--build-arg=CREATED={}", created.trim()))
        .arg(context)
        .env("DOCKER_BUILDKIT", "0")
        .run_for_effect()
}

/// Saves an image for `docker load`.
fn save(release: &Release, arch: Arch, docker: &Daemon, tag: &str, name: &str) -> Result<()> {
    let file = format!("toolwharf-{}-{name}-{}.tar", release.version, arch.debian());
    let file = release.out.join(file);
    docker
        .client(["save", "--output"])
        .arg(&file)
        .arg(tag)
        .run()?;
    release.gzip(&file)
}

/// Loads the small image of a release, under another name.
pub(super) fn load(docker: &Daemon, packages: &Path, arch: Arch, tag: &str) -> Result<()> {
    let end = format!("-image-{}.tar.gz", arch.debian());
    let names = super::names_in(packages)?;
    let name = names
        .iter()
        .find_map(|name| name.to_str().filter(|name| name.ends_with(&end)));
    let name = name.with_context(|| format!("{} contains no image", packages.display()))?;
    docker
        .client(["load", "--quiet", "--input"])
        .arg(packages.join(name))
        .run_for_effect()?;
    let version = name
        .strip_suffix(&end)
        .and_then(|rest| rest.strip_prefix("toolwharf-"));
    let loaded = format!("toolwharf:{}", version.unwrap_or_default());
    docker.client(["tag", &loaded, tag]).run()
}

/// Builds the small image that [`context`] prepared.
pub(super) fn build_for_tests(workspace: &Workspace, docker: &Daemon, tag: &str) -> Result<()> {
    let work = workspace.target()?.join("dist-test-work");
    let context = context_folder(&work, Arch::of_host()?);
    let build = docker.client(["build", "--quiet", "--tag", tag, "--build-arg=VERSION=test"]);
    build
        .arg(context)
        .env("DOCKER_BUILDKIT", "0")
        .run_for_effect()
}
