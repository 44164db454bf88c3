//! Builds the relay (`relay/main.rs`), a separate program that is embedded in this crate's library.
//!
//! The relay is linked against no library, so that it runs in any container. Cargo cannot link a crate's binary that
//! way. For unsupported processors, it is replaced by an empty file.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The variable with an LLD that links the relay directly. Releases set it, since zig, which links everything else in them,
/// refuses a static program for a target with glibc.
const LINKER: &str = "TOOLWHARF_RELAY_LINKER";

fn main() {
    println!("cargo::rerun-if-changed=relay");
    println!("cargo::rerun-if-env-changed={LINKER}");
    let variable = |name| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let relay = PathBuf::from(variable("OUT_DIR")).join("relay");
    let arch = variable("CARGO_CFG_TARGET_ARCH");
    if !["x86_64", "aarch64"].iter().any(|known| arch == *known) {
        fs::write(&relay, []).expect("OUT_DIR is writable");
        return;
    }
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args([
        "--edition=2024",
        "--crate-name=relay",
        "--crate-type=bin",
        "relay/main.rs",
    ]);
    rustc.arg("--target").arg(variable("TARGET"));
    rustc.arg("-o").arg(&relay);
    for option in [
        "opt-level=2",
        "panic=abort",
        "relocation-model=static",
        "strip=symbols",
        "link-arg=-nostdlib",
        "link-arg=-static",
    ] {
        rustc.args(["-C", option]);
    }
    let direct = env::var_os(LINKER);
    match direct {
        Some(_) => rustc.args(["-C", "linker-flavor=ld.lld"]),
        // Only a C compiler adds such files.
        None => rustc.args(["-C", "link-arg=-nostartfiles"]),
    };
    if let Some(linker) = direct.or_else(|| env::var_os("RUSTC_LINKER")) {
        let linker = linker.to_string_lossy();
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    let status = rustc.status().expect("rustc runs");
    assert!(status.success(), "the relay cannot be built: {status}");
}
