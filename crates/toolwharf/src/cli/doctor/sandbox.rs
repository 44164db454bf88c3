//! Findings about sandboxes: the access that servers without a sandbox would lose, with the settings that restore it,
//! and the files that sandboxed servers can see.

use std::net::Ipv4Addr;

use model::{Launch, Network, ServerSpec};
use runtime::{
    Access, Visible, VisibleFiles,
    sandbox::{self, Loss, LossKind, Own, SYSTEM_PATHS, preview},
};

use super::{Finding, Level, finding};

/// Maximum number of paths shown for a server.
const MAX_PATHS: usize = 3;

/// Returns what a server would lose in a sandbox. `None` if it has a sandbox, is disabled, or is not launched here.
pub(super) fn losses(spec: &ServerSpec) -> Option<Finding> {
    let all = sandbox::losses(spec.launch().filter(|_| spec.enabled)?);
    if all.is_empty() {
        return None;
    }
    let is_path = |loss: &Loss| matches!(loss.kind, LossKind::Path(_) | LossKind::OtherPaths);
    let (paths, mut lost): (Vec<_>, Vec<_>) = all.into_iter().partition(is_path);
    let more = paths.len().saturating_sub(MAX_PATHS);
    lost.extend(paths.into_iter().take(MAX_PATHS));
    let mut lost: Vec<String> = lost
        .into_iter()
        .map(|Loss { what, remedy, .. }| match remedy {
            Some(remedy) => format!("{what} ({remedy})"),
            None => what,
        })
        .collect();
    if more > 0 {
        lost.push(format!("{more} more (`mounts`)"));
    }
    let what = format!(
        "server `{}` has no sandbox; a sandbox would take away: {}",
        spec.name,
        lost.join(", ")
    );
    let help = "`\"sandbox\": true` adds a sandbox, and the keys in parentheses restore what the server needs";
    Some(finding(Level::Ok, what, help))
}

/// Returns what a server in a sandbox can see, or which files of its entry it cannot see. `None` if it has no sandbox
/// or is started from a package.
pub(super) fn view(spec: &ServerSpec, own: &Own) -> Option<Finding> {
    let launch = spec.launch().filter(|_| spec.enabled)?;
    let (what, help) = match preview(launch, own) {
        Ok(files) => {
            let files = files?;
            let missing: Vec<_> = files
                .missing
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            if missing.is_empty() {
                return Some(Finding {
                    level: Level::Ok,
                    what: format!("server `{}` {}", spec.name, seen(&files)),
                    help: None,
                });
            }
            not_shown(&format!("`{}`", spec.name), &missing)
        }
        // Another check reports a missing program.
        Err(runtime::Error::Refused {
            field: "command",
            why,
        }) if why.contains("not found") => {
            return None;
        }
        Err(error) => (
            format!("server `{}` cannot run in its sandbox: {error}", spec.name),
            "correct the server's entry".to_owned(),
        ),
    };
    Some(finding(Level::Warning, what, help))
}

/// Returns the files that a sandbox makes visible, except those that every sandbox has.
fn seen(files: &VisibleFiles) -> String {
    let is_usual = |one: &&Visible| {
        let path = one.host.as_ref().unwrap_or(&one.path);
        // The sandbox has its own scratch directories. Paths in the host's scratch directories are a user's files.
        let is_scratch = path.starts_with("/tmp") || path.starts_with("/run");
        let is_system = SYSTEM_PATHS.iter().any(|system| path.starts_with(system));
        is_system && !(is_scratch && one.host.is_some())
    };
    let of = |access: Access| {
        let all = files
            .visible
            .iter()
            .filter(|one| one.access == access && !is_usual(one));
        let words = all.map(|one| {
            let hidden = one
                .hidden
                .iter()
                .map(|path| format!("`{}`", path.display()));
            let hidden: Vec<_> = hidden.collect();
            match hidden.is_empty() {
                true => format!("`{}`", one.path.display()),
                false => format!("`{}` without {}", one.path.display(), hidden.join(" and ")),
            }
        });
        words.collect::<Vec<_>>().join(", ")
    };
    match (of(Access::Read), of(Access::Write)) {
        (read, write) if read.is_empty() && write.is_empty() => {
            "sees none of your files in its sandbox".to_owned()
        }
        (read, write) if write.is_empty() => format!("can read {read} in its sandbox"),
        (read, write) if read.is_empty() => format!("can write {write} in its sandbox"),
        (read, write) => format!("can read {read} and write {write} in its sandbox"),
    }
}

/// Returns the message for paths that a sandbox does not make visible, and the advice.
pub(super) fn not_shown(server: &str, paths: &[String]) -> (String, String) {
    let shown: Vec<_> = paths
        .iter()
        .take(MAX_PATHS)
        .map(|path| format!("`{path}`"))
        .collect();
    let more = match paths.len().saturating_sub(MAX_PATHS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!(
        "server {server} names {}{more}, which its sandbox does not show",
        shown.join(", ")
    );
    let help = "if the server needs them, add `\"sandbox\": {\"show\": [\"PATH\"]}` (read-only) or `mounts`; \
                `toolwharf get NAME` lists the visible files";
    (what, help.to_owned())
}

/// Returns warnings for ports that the entry publishes on this host, where browsers send them the console's cookies.
pub(super) fn given_ports(spec: &ServerSpec) -> Vec<Finding> {
    let sandbox = spec.launch().and_then(Launch::sandbox);
    let sandbox = sandbox.filter(|sandbox| spec.enabled && sandbox.network != Network::Open);
    let ports = sandbox.iter().flat_map(|sandbox| &sandbox.ports);
    let given = ports.filter_map(|port| {
        let address = (Ipv4Addr::LOCALHOST, port.host?).into();
        let (what, help) = runtime::port_notice(address)?.split_once(". ")?;
        let what = format!("port {} of server `{}`: {what}", port.inside, spec.name);
        Some(finding(Level::Warning, what, help))
    });
    given.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{Origin, Packages, Place, Program, Sandbox, ServerName};

    use super::*;

    fn said(line: &str, change: impl FnOnce(&mut Launch)) -> Option<String> {
        let mut words = line.split(' ').map(str::to_owned);
        let program = words.next().unwrap();
        let args = words.collect();
        let mut launch = Launch::new(Program::Command { program, args }, Place::Host);
        change(&mut launch);
        let name = ServerName::parse("one").unwrap();
        let spec = ServerSpec::new(name, Origin::Launch(Arc::new(launch)));
        losses(&spec).map(|finding| finding.what)
    }

    #[test]
    fn what_a_server_would_lose_is_named_with_what_gives_it_back() {
        // This path exists on every machine, but in no sandbox.
        let here = "/var";
        let plain = "server `one` has no sandbox; a sandbox would take away: the network (`network`), your home directory \
                     (`volumes`, `mounts`)";
        let check = |line: &str, more: &str| {
            assert_eq!(said(line, |_| ()).unwrap(), format!("{plain}{more}"));
        };
        check("server --quiet /usr/share", "");
        let writes = format!(", writing to `{here}` (`mounts`)");
        check(&format!("server {here}"), &writes);
        let reads = format!(", `{here}` (`mounts`)");
        check(&format!("server --root={here}"), &reads);
        let daemon = ", docker's daemon (`image` runs a container in its own sandbox)";
        check("docker run x", daemon);
        let newest = ", the newest version at each start (`toolwharf update`)";
        check("npx x", newest);
        let pinned = said("uvx x", |launch| launch.packages = Packages::Pinned);
        assert_eq!(pinned.unwrap(), plain);
        let text = said("npx -c x", |_| ()).unwrap();
        assert!(
            text.contains("its start command: `-c` is not an option of `npx`"),
            "{text}"
        );
        let text = said("server", |launch| {
            launch.cwd = Some(here.into());
            launch.env.insert("ROOT".to_owned(), here.to_owned());
        });
        let text = text.unwrap();
        assert!(
            text.contains("its `cwd` (`mounts`), the files of the variable `ROOT`"),
            "{text}"
        );
        let confined = |launch: &mut Launch| launch.place = Place::Sandbox(Sandbox::new("one"));
        assert_eq!(said("server", confined), None);
    }

    #[test]
    fn u12_what_a_sandbox_will_not_show_is_named_beforehand() {
        // The directory is not under /tmp, because a sandbox has its own /tmp.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let folder = directory.path().canonicalize().unwrap().join("a/b");
        std::fs::create_dir_all(&folder).unwrap();
        let notes = folder.join("notes.txt");
        std::fs::write(&notes, "").unwrap();
        let check = |show: bool| {
            let mut sandbox = Sandbox::new("one");
            sandbox.show.extend(show.then(|| notes.clone()));
            let program = Program::Command {
                program: "sh".to_owned(),
                args: vec!["-c".to_owned(), format!("cat {}", notes.display())],
            };
            let launch = Launch::new(program, Place::Sandbox(sandbox));
            let name = ServerName::parse("one").unwrap();
            let spec = ServerSpec::new(name, Origin::Launch(Arc::new(launch)));
            view(&spec, &Own::default()).map(|finding| finding.what)
        };
        let file = notes.display();
        let hidden = format!("server `one` names `{file}`, which its sandbox does not show");
        assert_eq!(check(false).unwrap(), hidden);
        let shown = format!("server `one` can read `{file}` in its sandbox");
        assert_eq!(check(true).unwrap(), shown);
    }
}
