//! Checks what can be executed, and builds its environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use model::{Place, Program, Reach};

use super::Error;
use crate::process_tree::MARKER;
use crate::unit::Unit;

/// Variables copied from the host if set: those that the official MCP SDKs pass on (`HOME` … `USER`), and those for
/// text, time and temporary files. None of them holds secrets. Proxy URLs often do, so they are left out.
const FROM_HOST: [&str; 10] = [
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
];
const LOCALE_PREFIX: &str = "LC_";
/// Used if there is no `PATH`, because most programs run other programs.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Rejects units that are not programs of the host, and text that cannot be passed to a process.
pub(super) fn check(unit: &Unit) -> Result<(), Error> {
    let invalid = |what: String| {
        let label = unit.label.clone();
        Err(Error::Invalid { label, what })
    };
    let launch = &unit.launch;
    let (Program::Command { program, args }, Reach::Streams, Place::Host) =
        (&launch.program, &launch.reach, &launch.place)
    else {
        let what = "only a command with the stdio transport can run on the host itself";
        return invalid(what.to_owned());
    };
    let nul = |text: &OsStr| text.as_encoded_bytes().contains(&0);
    if program.is_empty() {
        return invalid("the command is empty".into());
    }
    if program.contains('\0') {
        return invalid("the command contains a NUL character".into());
    }
    if launch.cwd.as_ref().is_some_and(|cwd| nul(cwd.as_os_str())) {
        return invalid("the working directory contains a NUL character".into());
    }
    if let Some(place) = args.iter().position(|arg| arg.contains('\0')) {
        return invalid(format!("argument {} contains a NUL character", place + 1));
    }
    for (name, value) in &launch.env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return invalid(format!(
                "variable name {name:?} is empty, or contains `=` or NUL"
            ));
        }
        if value.contains('\0') {
            return invalid(format!("the value of `{name}` contains a NUL character"));
        }
    }
    Ok(())
}

/// The complete environment of a child. From the host: `HOME`, `LANG`, `LANGUAGE`, `LC_*`, `LOGNAME`, `PATH`, `SHELL`,
/// `TERM`, `TMPDIR`, `TZ` and `USER` only. The launch's own variables override these, and `marker` overrides
/// everything.
pub(super) fn environment(
    own: &BTreeMap<String, String>,
    host: impl IntoIterator<Item = (OsString, OsString)>,
    marker: &str,
) -> BTreeMap<OsString, OsString> {
    let passed_on = |name: &OsStr| {
        name.to_str()
            .is_some_and(|name| FROM_HOST.contains(&name) || name.starts_with(LOCALE_PREFIX))
    };
    // A value with this prefix is an exported shell function: code, not data.
    let function = |value: &OsStr| value.as_encoded_bytes().starts_with(b"()");
    let mut environment = BTreeMap::from([("PATH".into(), DEFAULT_PATH.into())]);
    environment.extend(
        host.into_iter()
            .filter(|(name, value)| passed_on(name) && !function(value)),
    );
    environment.extend(own.iter().map(|(name, value)| (name.into(), value.into())));
    environment.insert(MARKER.into(), marker.into());
    environment
}

#[cfg(test)]
mod tests {
    use model::Launch;

    use super::*;

    fn check(host: &[(&str, &str)], own: &[(&str, &str)], expected: &[(&str, &str)]) {
        let own = own.iter().map(|&(n, v)| (n.into(), v.into())).collect();
        let host = host.iter().map(|&(n, v)| (n.into(), v.into()));
        let found = environment(&own, host, "m");
        let expected = expected
            .iter()
            .map(|&(n, v)| (n.into(), v.into()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn only_what_is_listed_comes_from_the_host() {
        let marker = ("TOOLWHARF_INSTANCE", "m");
        check(&[], &[], &[("PATH", DEFAULT_PATH), marker]);
        check(
            &[
                ("PATH", "/p"),
                ("HOME", "/h"),
                ("LC_ALL", "C"),
                ("AWS_SECRET_ACCESS_KEY", "s"),
                ("HTTPS_PROXY", "http://user:pass@proxy"),
                ("LD_PRELOAD", "/evil.so"),
                ("TERM", "() { :; }"),
                ("TOOLWHARF_INSTANCE", "outer"),
            ],
            &[
                ("HOME", "/own"),
                ("KEY", "k"),
                ("TOOLWHARF_INSTANCE", "forged"),
            ],
            &[
                ("PATH", "/p"),
                ("HOME", "/own"),
                ("LC_ALL", "C"),
                ("KEY", "k"),
                marker,
            ],
        );
    }

    #[test]
    fn what_cannot_be_passed_on_is_refused() {
        let refused = |program: &str, args: &[&str], change: fn(&mut Launch)| {
            let args = args.iter().map(|&arg| arg.to_owned()).collect();
            let program = program.to_owned();
            let mut launch = Launch::new(Program::Command { program, args }, Place::Host);
            change(&mut launch);
            let unit = Unit::new("x", launch);
            super::check(&unit).unwrap_err().to_string()
        };
        assert!(refused("", &[], |_| {}).contains("command is empty"));
        assert!(refused("a\0", &[], |_| {}).contains("NUL"));
        assert!(refused("x", &["a", "\0"], |_| {}).contains("argument 2"));
        let value = refused("x", &[], |l| {
            drop(l.env.insert("KEY".into(), "secret\0".into()));
        });
        assert!(value.contains("KEY") && !value.contains("secret"));
        let name = refused("x", &[], |l| drop(l.env.insert("A=B".into(), "".into())));
        assert!(name.contains("A=B"));
    }
}
