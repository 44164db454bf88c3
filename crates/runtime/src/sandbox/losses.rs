//! The losses of a server that runs without a sandbox, if it were put in one.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use model::{Launch, Program};

use crate::sandbox::packages::Packages;

/// Every sandbox has these paths, or its own version of them.
pub const SYSTEM_PATHS: [&str; 10] = [
    "/bin", "/dev", "/etc", "/lib", "/nix", "/proc", "/run", "/sbin", "/tmp", "/usr",
];
const CONTAINER_COMMANDS: [&str; 3] = ["docker", "nerdctl", "podman"];

/// Something that a server could not use in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub what: String,
    /// The keys of the entry that restore it, or another way out.
    pub remedy: Option<&'static str>,
    pub kind: LossKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossKind {
    Network,
    /// Access to a path that an argument names.
    Path(PathBuf),
    /// The paths that a variable names, or the working directory.
    OtherPaths,
    Other,
}

/// Returns what a server would lose: first what applies to the whole server, then paths. Empty if it has a sandbox
/// already, or is not a command.
#[must_use]
pub fn losses(launch: &Launch) -> Vec<Loss> {
    let Program::Command { program, args } = &launch.program else {
        return Vec::new();
    };
    if launch.sandbox().is_some() {
        return Vec::new();
    }
    let loss = |what: &str, remedy| Loss {
        what: what.to_owned(),
        remedy,
        kind: LossKind::Other,
    };
    let mut lost = vec![
        Loss {
            kind: LossKind::Network,
            ..loss("the network", Some("`network`"))
        },
        loss("your home directory", Some("`volumes`, `mounts`")),
    ];
    let command = Path::new(program).file_name().unwrap_or_default();
    if CONTAINER_COMMANDS.iter().any(|name| command == *name) {
        let what = format!("{}'s daemon", command.display());
        lost.push(loss(
            &what,
            Some("`image` runs a container in its own sandbox"),
        ));
    }
    lost.extend(match Packages::refusal(launch) {
        Err(why) => Some(loss(&format!("its start command: {why}"), None)),
        Ok(true) if launch.packages == model::Packages::Newest => Some(loss(
            "the newest version at each start",
            Some("`toolwharf update`"),
        )),
        Ok(_) => None,
    });
    lost.extend(paths(launch, args));
    lost
}

/// Returns the losses of paths, sorted and without duplicates.
fn paths(launch: &Launch, args: &[String]) -> impl Iterator<Item = Loss> {
    let mut found = BTreeMap::new();
    for arg in args {
        let named = |path: &str| LossKind::Path(path.into());
        match arg.split_once('=') {
            _ if is_file(arg) => {
                found.insert(format!("writing to `{arg}`"), named(arg));
            }
            Some((_, path)) if is_file(path) => {
                found.insert(format!("`{path}`"), named(path));
            }
            _ => {}
        }
    }
    // The value of a variable may be a secret.
    for (name, value) in &launch.env {
        if value.split(':').any(is_file) {
            let what = format!("the files of the variable `{name}`");
            found.insert(what, LossKind::OtherPaths);
        }
    }
    if launch.cwd.is_some() {
        found.insert("its `cwd`".to_owned(), LossKind::OtherPaths);
    }
    found.into_iter().map(|(what, kind)| Loss {
        what,
        remedy: Some("`mounts`"),
        kind,
    })
}

/// Returns whether this is a path on the host that is visible in a sandbox only through a mount.
fn is_file(text: &str) -> bool {
    let path = Path::new(text);
    let is_system = || SYSTEM_PATHS.iter().any(|system| path.starts_with(system));
    path.is_absolute() && path.parent().is_some() && !is_system() && path.exists()
}
