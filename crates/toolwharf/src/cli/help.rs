//! The help texts: commands in groups, and an example for each command.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};

use super::Cli;

/// Commands that belong together.
struct Group {
    title: &'static str,
    commands: &'static [&'static str],
    /// An example of one of them.
    example: &'static str,
}

/// All commands, in the order of the help text.
const GROUPS: &[Group] = &[
    Group {
        title: "Run Toolwharf",
        commands: &[
            "init", "serve", "service", "stdio", "open", "doctor", "health", "replicas", "upgrade",
            "backup", "restore",
        ],
        example: "toolwharf init",
    },
    Group {
        title: "Add servers",
        commands: &["add", "import", "search", "install", "update"],
        example: "toolwharf add time -- uvx mcp-server-time",
    },
    Group {
        title: "Manage servers",
        commands: &[
            "ls", "get", "status", "rm", "enable", "disable", "start", "stop", "restart", "logs",
            "events", "login", "logout",
        ],
        example: "toolwharf logs -f time",
    },
    Group {
        title: "Use tools",
        commands: &["tools", "approvals", "call", "chat", "conversation"],
        example: "toolwharf tools call get_current_time timezone=Europe/Berlin",
    },
    Group {
        title: "Connect clients",
        commands: &["connect", "disconnect"],
        example: "toolwharf connect cursor",
    },
    Group {
        title: "Share servers",
        commands: &["project", "secret", "product", "key"],
        example: "toolwharf key create ci --project shop --role call",
    },
    Group {
        title: "Look at records",
        commands: &["calls", "runs"],
        example: "toolwharf calls ls --status error --since 1h",
    },
    Group {
        title: "Integrate",
        commands: &["kubernetes", "completions", "man"],
        example: "toolwharf completions bash > ~/.local/share/bash-completion/completions/toolwharf",
    },
];

/// An example of each command.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "init",
        "toolwharf init\n  toolwharf init --import cursor,vscode --sandbox no --start service",
    ),
    ("serve", "toolwharf serve --listen 127.0.0.1:6280"),
    ("service install", "toolwharf service install"),
    ("service status", "toolwharf service status"),
    ("service uninstall", "toolwharf service uninstall"),
    ("stdio", "toolwharf stdio --project shop"),
    ("open", "toolwharf open"),
    ("doctor", "toolwharf doctor"),
    ("health", "toolwharf health"),
    (
        "upgrade",
        "toolwharf upgrade\n  toolwharf upgrade ./toolwharf-new",
    ),
    (
        "backup",
        "toolwharf backup toolwharf.tar.zst\n  toolwharf backup toolwharf.tar.zst --with-master-key --volumes",
    ),
    ("restore", "toolwharf restore toolwharf.tar.zst"),
    (
        "add",
        "toolwharf add time -- uvx mcp-server-time\n  toolwharf add docs https://example.com/mcp",
    ),
    (
        "import",
        "toolwharf import cursor\n  toolwharf import .vscode/mcp.json",
    ),
    ("search", "toolwharf search time"),
    ("install", "toolwharf install time"),
    ("update", "toolwharf update --check"),
    ("ls", "toolwharf ls"),
    ("get", "toolwharf get time"),
    ("status", "toolwharf status time"),
    ("rm", "toolwharf rm time"),
    (
        "enable",
        "toolwharf enable time\n  toolwharf enable time/convert_time",
    ),
    (
        "disable",
        "toolwharf disable time\n  toolwharf disable time/convert_time",
    ),
    ("start", "toolwharf start time"),
    ("stop", "toolwharf stop time"),
    ("restart", "toolwharf restart time"),
    ("logs", "toolwharf logs -f time"),
    ("events", "toolwharf events time -n 20"),
    ("login", "toolwharf login linear"),
    ("logout", "toolwharf logout linear"),
    ("tools ls", "toolwharf tools ls --server time"),
    ("tools get", "toolwharf tools get get_current_time"),
    ("tools search", "toolwharf tools search open an issue"),
    (
        "tools call",
        "toolwharf tools call get_current_time timezone=Europe/Berlin\n  toolwharf tools call roll '{\"dice\": \"2d6\"}'",
    ),
    ("tools top", "toolwharf tools top --since 7d"),
    ("tools approve", "toolwharf tools approve time"),
    ("tools changes", "toolwharf tools changes time"),
    (
        "tools rename",
        "toolwharf tools rename time/get_current_time now --project shop",
    ),
    (
        "tools describe",
        "toolwharf tools describe time/get_current_time \"Returns the time\" --project shop",
    ),
    ("approvals ls", "toolwharf approvals ls"),
    ("call", "toolwharf call time tools/list"),
    ("chat", "toolwharf chat \"Which time is it in Tokyo?\""),
    ("conversation ls", "toolwharf conversation ls -n 20"),
    ("conversation get", "toolwharf conversation get ID"),
    ("conversation rm", "toolwharf conversation rm ID"),
    ("connect", "toolwharf connect cursor --dry-run"),
    ("disconnect", "toolwharf disconnect cursor"),
    ("project ls", "toolwharf project ls"),
    (
        "project add",
        "toolwharf project add shop --name \"The shop\"",
    ),
    ("project get", "toolwharf project get shop"),
    ("project rm", "toolwharf project rm shop"),
    ("project enable", "toolwharf project enable shop"),
    ("project disable", "toolwharf project disable shop"),
    ("secret set", "toolwharf secret set API_KEY --project shop"),
    ("secret ls", "toolwharf secret ls --project shop"),
    ("secret rm", "toolwharf secret rm API_KEY --project shop"),
    ("secret rotate-master", "toolwharf secret rotate-master"),
    (
        "product install",
        "toolwharf product install search.yaml --project shop",
    ),
    ("product ls", "toolwharf product ls --project shop"),
    ("product rm", "toolwharf product rm search --project shop"),
    (
        "key create",
        "toolwharf key create ci --project shop --role call --expires 90d",
    ),
    ("key ls", "toolwharf key ls"),
    ("key revoke", "toolwharf key revoke ID"),
    ("key recover", "toolwharf key recover"),
    ("calls ls", "toolwharf calls ls --status error --since 1h"),
    ("calls get", "toolwharf calls get ID"),
    ("runs ls", "toolwharf runs ls --status failed"),
    ("runs get", "toolwharf runs get ID"),
    ("replicas ls", "toolwharf replicas ls"),
    (
        "kubernetes crd",
        "toolwharf kubernetes crd | kubectl apply -f -",
    ),
    (
        "kubernetes convert",
        "toolwharf kubernetes convert servers.yaml",
    ),
    (
        "completions",
        "toolwharf completions bash > ~/.local/share/bash-completion/completions/toolwharf",
    ),
    ("man", "toolwharf man ~/.local/share/man/man1"),
];

/// Returns the grammar of the command line, with its help texts. Without a command, it shows the help, except on a
/// terminal.
pub(super) fn command(is_terminal: bool) -> Command {
    let command = with_examples(Cli::command(), "");
    let command = command
        .subcommand_required(!is_terminal)
        .arg_required_else_help(!is_terminal);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{}\nOptions:\n{{options}}\n\n\
         `toolwharf COMMAND --help` explains a command.\n",
        groups(&command)
    );
    command.help_template(template)
}

/// Adds its example to each command below `path`.
fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|one| one.get_name().to_owned())
        .collect();
    let path = path.trim_start();
    let example = EXAMPLES.iter().find(|(name, _)| *name == path);
    let command = match example {
        Some((_, example)) => command.after_help(format!("Example:\n  {example}")),
        None => command,
    };
    names.into_iter().fold(command, |command, name| {
        let below = format!("{path} {name}");
        command.mut_subcommand(name, |one| with_examples(one, &below))
    })
}

fn groups(command: &Command) -> String {
    let width = command
        .get_subcommands()
        .map(|one| one.get_name().len())
        .max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for group in GROUPS {
        let _ = writeln!(text, "\n{}:", group.title);
        for name in group.commands {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            // The first sentence is enough for a list.
            let about = about.split(". ").next().unwrap_or_default();
            let _ = writeln!(text, "  {name:width$}  {about}");
        }
        let _ = writeln!(text, "  {:width$}  Example: {}", "", group.example);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn shown(command: &Command) -> impl Iterator<Item = &Command> {
        let all = command.get_subcommands();
        all.filter(|one| !one.is_hide_set())
    }

    /// The commands that have no subcommands.
    fn leaves(command: &Command, path: &str, found: &mut BTreeSet<String>) {
        for one in shown(command) {
            let below = format!("{path} {}", one.get_name());
            if one.has_subcommands() {
                leaves(one, &below, found);
            } else {
                found.insert(below.trim_start().to_owned());
            }
        }
    }

    #[test]
    fn each_command_is_in_one_group() {
        let command = Cli::command();
        let mut all: Vec<&str> = shown(&command).map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|group| group.commands)
            .copied()
            .collect();
        all.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, all);
    }

    /// An example that cannot be parsed would mislead.
    #[test]
    fn each_command_has_an_example_that_parses() {
        let mut all = BTreeSet::new();
        leaves(&Cli::command(), "", &mut all);
        let known: BTreeSet<String> = EXAMPLES
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect();
        assert_eq!(known, all);
        let lines = EXAMPLES.iter().flat_map(|(_, example)| example.lines());
        for line in lines.chain(GROUPS.iter().map(|group| group.example)) {
            let mut words = Vec::new();
            // A quoted text is one word.
            for (n, part) in line
                .trim()
                .split(['\''])
                .flat_map(|part| part.split('"'))
                .enumerate()
            {
                match n % 2 {
                    0 => words.extend(part.split_whitespace()),
                    _ => words.push(part),
                }
            }
            let end = words.iter().position(|word| matches!(*word, ">" | "|"));
            words.truncate(end.unwrap_or(words.len()));
            let is_json = line.contains('{');
            let parsed = command(false).try_get_matches_from(words);
            assert!(
                parsed.is_ok() || is_json,
                "{line}: {}",
                parsed.err().map_or_else(String::new, |it| it.to_string())
            );
        }
    }

    #[test]
    fn the_help_lists_groups_with_examples() {
        let mut command = command(true);
        let text = command.render_help().to_string();
        for group in GROUPS {
            assert!(
                text.contains(group.title) && text.contains(group.example),
                "{text}"
            );
        }
        assert!(text.contains("--config"), "{text}");
        let long = text.lines().find(|line| line.chars().count() > 120);
        assert_eq!(long, None, "a line is too long");
    }
}
