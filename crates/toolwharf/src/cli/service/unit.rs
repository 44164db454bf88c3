//! The unit file of the service.
//!
//! Its first line contains a checksum of the rest, which shows whether Toolwharf wrote the file and whether it was edited
//! since.

use std::{collections::BTreeMap, path::Path};

use super::Failed;

/// The name of the unit.
pub(super) const NAME: &str = "toolwharf.service";

const MARK: &str = "# Written by `toolwharf service install`. Checksum of the rest: ";

/// The author of a unit file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    Toolwharf,
    /// Toolwharf wrote it, and it was edited since.
    Edited,
    SomebodyElse,
}

/// Returns the text of the unit that runs `program serve` with these arguments and variables.
///
/// # Errors
/// A word contains a control character.
pub(super) fn text(
    program: &str,
    arguments: &[String],
    variables: &BTreeMap<String, String>,
) -> Result<String, Failed> {
    let words = [program, "serve"].into_iter();
    let words = words.chain(arguments.iter().map(String::as_str));
    let mut words = words.chain(variables.values().map(String::as_str));
    if let Some(word) = words.find(|word| word.contains(char::is_control)) {
        return Err(Failed::Unwritable(word.escape_debug().to_string()));
    }
    let arguments = arguments.iter().map(|word| {
        // `$` begins a variable only in arguments.
        format!(" {}", quoted(word).replace('$', "$$"))
    });
    let variables = variables.iter().map(|(name, value)| {
        let variable = always_quoted(&format!("{name}={value}"));
        format!("Environment={variable}\n")
    });
    let body = format!(
        "[Unit]
Description=Toolwharf, one endpoint for MCP servers

[Service]
Type=notify
ExecStart={} serve{}
# From the shell that installed the service: where npx and uvx are, and how the network is reached.
{}# Starts the installed version and hands all connections over to it.
ExecReload=/bin/kill -USR2 $MAINPID
Restart=on-failure
RestartSec=1
WatchdogSec=30
# systemd keeps the listener during a restart, so that no connection is refused.
FileDescriptorStoreMax=1
# Only the gateway gets SIGTERM. It finishes calls and then stops its servers, within half a minute.
KillMode=mixed
TimeoutStopSec=45
# Control groups for the limits of sandboxed servers.
Delegate=yes

[Install]
WantedBy=default.target
",
        quoted(program),
        arguments.collect::<String>(),
        variables.collect::<String>(),
    );
    Ok(format!("{MARK}{}\n{body}", model::sha256_hex(&body)))
}

/// Returns who wrote a unit file with this text.
pub(super) fn author(text: &str) -> Author {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    match first.strip_prefix(MARK) {
        Some(checksum) if checksum == model::sha256_hex(rest) => Author::Toolwharf,
        Some(_) => Author::Edited,
        None => Author::SomebodyElse,
    }
}

/// Returns the absolute folders of a search path, without repetitions.
pub(super) fn search_path(path: &str) -> String {
    let mut folders: Vec<&str> = Vec::new();
    for folder in path.split(':') {
        if Path::new(folder).is_absolute() && !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders.join(":")
}

/// Quotes a word, if that is necessary (systemd.service(5), "Command lines").
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@+=,~".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => always_quoted(word),
    }
}

fn always_quoted(word: &str) -> String {
    // `%` begins a specifier.
    let escaped = word.replace('\\', r"\\").replace('"', "\\\"");
    format!("\"{}\"", escaped.replace('%', "%%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("PATH".to_owned(), path.to_owned())])
    }

    fn lines(program: &str, arguments: &[&str], path: &str) -> (String, String) {
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let text = text(program, &arguments, &of(path)).expect("a unit");
        assert_eq!(author(&text), Author::Toolwharf);
        let line = |begin: &str| {
            let line = text.lines().find(|line| line.starts_with(begin));
            line.unwrap_or_default().to_owned()
        };
        (line("ExecStart="), line("Environment="))
    }

    #[test]
    fn words_are_quoted_for_systemd() {
        let plain = lines("/usr/bin/toolwharf", &[], "/usr/bin:/bin");
        assert_eq!(plain.0, "ExecStart=/usr/bin/toolwharf serve");
        assert_eq!(plain.1, "Environment=\"PATH=/usr/bin:/bin\"");
        let (command, path) = lines(
            "/home/a b/100%/$x/toolwharf",
            &["--data-dir", "/srv/a\"b\\c$HOME"],
            "/a b:/50%",
        );
        assert_eq!(
            command,
            r#"ExecStart="/home/a b/100%%/$x/toolwharf" serve --data-dir "/srv/a\"b\\c$$HOME""#
        );
        assert_eq!(path, "Environment=\"PATH=/a b:/50%%\"");
    }

    #[test]
    fn control_characters_are_refused() {
        let bad = "/a\nExecStart=/b";
        let in_argument = text("/t", &["--data-dir".into(), bad.into()], &of("/bin"));
        for refused in [in_argument, text("/t", &[], &of(bad))] {
            let why = refused.expect_err("a line break").to_string();
            assert!(why.contains(r"/a\nExecStart=/b"), "{why}");
        }
    }

    #[test]
    fn an_edited_unit_is_recognised() {
        let unit = text("/t", &[], &of("/bin")).expect("a unit");
        for (text, expect) in [
            (unit.clone(), Author::Toolwharf),
            (unit.replace("RestartSec=1", "RestartSec=5"), Author::Edited),
            (unit.clone() + "\n", Author::Edited),
            (
                unit.replacen("# Written", "# Once written", 1),
                Author::SomebodyElse,
            ),
            ("[Service]\nExecStart=/t\n".to_owned(), Author::SomebodyElse),
            (String::new(), Author::SomebodyElse),
        ] {
            assert_eq!(author(&text), expect, "{text}");
        }
    }

    #[test]
    fn relative_folders_are_left_out_of_the_search_path() {
        for (path, expect) in [
            ("/usr/bin:/bin", "/usr/bin:/bin"),
            ("bin:/a::/b:.:/a", "/a:/b"),
            ("", ""),
        ] {
            assert_eq!(search_path(path), expect);
        }
    }
}
