//! Packages for Debian and for Red Hat's family, with the tools of these systems.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use super::{Arch, Release, filled, tree::give_time, write};
use crate::workspace::files;

const CONTROL: &str = include_str!("../../../deploy/packages/deb/control");
const SPEC: &str = include_str!("../../../deploy/packages/rpm/toolwharf.spec");
/// Scripts that dpkg runs.
const SCRIPTS: [(&str, &str); 3] = [
    (
        "postinst",
        include_str!("../../../deploy/packages/deb/postinst"),
    ),
    ("prerm", include_str!("../../../deploy/packages/deb/prerm")),
    (
        "postrm",
        include_str!("../../../deploy/packages/deb/postrm"),
    ),
];
/// Files that dpkg keeps as they are when they were changed.
const CONFFILES: &str = "/etc/toolwharf/mcp.json\n/etc/toolwharf/toolwharf.toml\n";

pub(super) fn deb(release: &Release, arch: Arch, tree: &Path) -> Result<()> {
    let all = files(tree)?;
    let control = tree.join("DEBIAN");
    let mut bytes = 0;
    let mut sums = release.cmd("md5sum").dir(tree);
    for file in &all {
        bytes += fs::metadata(file)?.len();
        let path = file.strip_prefix(tree)?;
        if !path.starts_with("etc") {
            sums = sums.arg(path);
        }
    }
    write(&control.join("md5sums"), sums.output()?, 0o644)?;
    // A version such as 1.0.0-rc.1 is older than 1.0.0.
    let version = release.version.replace('-', "~");
    let text = filled(
        CONTROL,
        &[
            ("VERSION", &version),
            ("ARCH", arch.debian()),
            ("SIZE", &bytes.div_ceil(1024).to_string()),
        ],
    );
    write(&control.join("control"), text, 0o644)?;
    write(&control.join("conffiles"), CONFFILES, 0o644)?;
    for (name, script) in SCRIPTS {
        write(&control.join(name), script, 0o755)?;
    }
    give_time(release, tree)?;
    let file = release
        .out
        .join(format!("toolwharf_{version}_{}.deb", arch.debian()));
    let compression = match release.is_for_tests {
        true => ["-Zgzip", "-z1"],
        false => ["-Zxz", "-z6"],
    };
    let build = release
        .cmd("dpkg-deb")
        .arg("--root-owner-group")
        .args(compression);
    build.arg("--build").arg(tree).arg(file).run()?;
    fs::remove_dir_all(control).context("cannot remove the files for dpkg")
}

pub(super) fn rpm(release: &Release, arch: Arch, tree: &Path) -> Result<()> {
    let work = release.work.join(format!("rpm-{}", arch.name()));
    let spec = work.join("toolwharf.spec");
    let version = release.version.replace('-', "~");
    let text = filled(
        SPEC,
        &[("VERSION", &version), ("TREE", &tree.display().to_string())],
    );
    write(&spec, text, 0o644)?;
    let target = format!("--target={}-linux", arch.name());
    let mut build = release.cmd("rpmbuild").args(["-bb", "--quiet", &target]);
    let level = format!("_binary_payload w{}.gzdio", release.level());
    for define in [
        format!("_topdir {}", work.display()),
        format!("_rpmdir {}", release.out.display()),
        "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm".to_owned(),
        level,
        "_buildhost toolwharf".to_owned(),
        "use_source_date_epoch_as_buildtime 1".to_owned(),
        "clamp_mtime_to_source_date_epoch 1".to_owned(),
    ] {
        build = build.arg("--define").arg(define);
    }
    build.arg(&spec).run()
}
