//! What to launch, and the environment it gets.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::Error;
use crate::lineage::MARKER;

/// Variables taken from the host if it has them. Those that the official MCP SDKs pass on
/// (`HOME` … `USER`), and what decides how text, time and temporary files work. None of them
/// holds secrets; proxies are left out because their URLs often do.
const FROM_HOST: [&str; 10] = [
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
];
const LOCALE_PREFIX: &str = "LC_";
/// Most programs run others, so one without a `PATH` helps nobody.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A command to run as an instance.
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    /// Names the instance in errors, logs and its marker. Need not be unique.
    pub label: String,
    /// A path, or a name that is looked up in the `PATH` the child will have.
    pub program: OsString,
    pub args: Vec<String>,
    /// Added to `HOME`, `LANG`, `LANGUAGE`, `LC_*`, `LOGNAME`, `PATH`, `SHELL`, `TERM`,
    /// `TMPDIR`, `TZ` and `USER` of the host, and stronger than those. Nothing else of the
    /// host's environment reaches the child.
    pub env: BTreeMap<String, String>,
    /// The host's own if `None`.
    pub cwd: Option<PathBuf>,
}

/// Without the values of the environment: they may be secrets.
impl std::fmt::Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch")
            .field("label", &self.label)
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .finish()
    }
}

impl Launch {
    pub fn new(label: impl Into<String>, program: impl Into<OsString>) -> Self {
        Self {
            label: label.into(),
            program: program.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
        }
    }

    /// Refuses what the operating system has no way to pass on.
    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |what: String| {
            let label = self.label.clone();
            Err(Error::Invalid { label, what })
        };
        let nul = |text: &OsStr| text.as_encoded_bytes().contains(&0);
        if self.program.is_empty() {
            return invalid("the command is empty".into());
        }
        if nul(&self.program) || self.cwd.as_ref().is_some_and(|cwd| nul(cwd.as_os_str())) {
            return invalid("the command or its directory contains a NUL character".into());
        }
        if let Some(place) = self.args.iter().position(|arg| nul(arg.as_ref())) {
            return invalid(format!("argument {} contains a NUL character", place + 1));
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return invalid(format!("{name:?} cannot be the name of a variable"));
            }
            if nul(value.as_ref()) {
                return invalid(format!("the value of `{name}` contains a NUL character"));
            }
        }
        Ok(())
    }

    /// The whole environment of the child. `marker` wins over everything.
    pub(super) fn environment(
        &self,
        host: impl IntoIterator<Item = (OsString, OsString)>,
        marker: &str,
    ) -> BTreeMap<OsString, OsString> {
        let passed_on = |name: &OsStr| {
            name.to_str()
                .is_some_and(|name| FROM_HOST.contains(&name) || name.starts_with(LOCALE_PREFIX))
        };
        // A value that begins so is an exported shell function: code, not data.
        let function = |value: &OsStr| value.as_encoded_bytes().starts_with(b"()");
        let mut environment = BTreeMap::from([("PATH".into(), DEFAULT_PATH.into())]);
        environment.extend(
            host.into_iter()
                .filter(|(name, value)| passed_on(name) && !function(value)),
        );
        environment.extend(
            self.env
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        environment.insert(MARKER.into(), marker.into());
        environment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &[(&str, &str)], own: &[(&str, &str)], expected: &[(&str, &str)]) {
        let mut launch = Launch::new("x", "x");
        launch.env = own.iter().map(|&(n, v)| (n.into(), v.into())).collect();
        let host = host.iter().map(|&(n, v)| (n.into(), v.into()));
        let found = launch.environment(host, "m");
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
        let refused = |change: fn(&mut Launch)| {
            let mut launch = Launch::new("x", "x");
            change(&mut launch);
            launch.check().unwrap_err().to_string()
        };
        assert!(refused(|l| l.program = "".into()).contains("command is empty"));
        assert!(refused(|l| l.program = "a\0".into()).contains("NUL"));
        assert!(refused(|l| l.args = vec!["a".into(), "\0".into()]).contains("argument 2"));
        let value = refused(|l| drop(l.env.insert("KEY".into(), "secret\0".into())));
        assert!(value.contains("KEY") && !value.contains("secret"));
        assert!(refused(|l| drop(l.env.insert("A=B".into(), "".into()))).contains("A=B"));
    }

    #[test]
    fn debug_does_not_show_values() {
        let mut launch = Launch::new("x", "x");
        launch.env.insert("KEY".into(), "secret".into());
        let text = format!("{launch:?}");
        assert!(text.contains("KEY") && !text.contains("secret"));
    }
}
