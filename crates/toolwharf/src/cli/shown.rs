//! Human-readable output about servers. JSON output contains everything that the API returns.

use api::{Enforced, FileAccess, Limits, Server, Usage, VisibleFile};
use serde_json::Value;

use super::{print, secrets};

const HEAD: [&str; 10] = [
    "NAME",
    "PROJECT",
    "STATE",
    "TRANSPORT",
    "SANDBOX",
    "TARGET",
    "TOOLS",
    "CALLS",
    "ERRORS",
    "NOTE",
];

/// Maximum number of problems and remarks in a server's note.
const MAX_NOTED: usize = 8;
/// npm writes a line with these words after each error. It says nothing about the error.
const NPM_LAST_WORDS: &str = "A complete log of this run can be found in";
/// Index of the project column.
const PROJECT_COLUMN: usize = 1;

/// Returns a table of servers. The project column is omitted if it is empty.
pub(super) fn table(servers: &[Server]) -> String {
    let mut head = HEAD.to_vec();
    let mut rows: Vec<Vec<String>> = servers.iter().map(cells).collect();
    if servers.iter().all(|server| server.project.is_none()) {
        head.remove(PROJECT_COLUMN);
        for row in &mut rows {
            row.remove(PROJECT_COLUMN);
        }
    }
    print::table_with_notes(&head, &rows)
}

fn cells(server: &Server) -> Vec<String> {
    let mut notes = Vec::new();
    match (&server.reason, server.uptime_seconds) {
        (Some(reason), _) => notes.push(reason.clone()),
        (None, Some(up)) => notes.push(format!("up {}", print::duration(up * 1000))),
        (None, None) => {}
    }
    if !server.enabled && !server.unset.is_empty() {
        notes.push(format!("not set: {}", server.unset.join(", ")));
    }
    if let Some(line) = last_words(server) {
        notes.push(format!("it wrote `{}`", print::short(line, 120)));
    }
    if let Some(ms) = server.next_attempt_ms {
        notes.push(format!("next attempt in {}", print::duration(ms)));
    }
    if server.kept_back > 0 {
        let kept = tools(server.kept_back);
        notes.push(format!("{kept} kept back (`tools ls` shows why)"));
    }
    let lacks = server.problems.iter().chain(&server.remarks);
    notes.extend(lacks.take(MAX_NOTED).map(|one| print::short(one, 120)));
    let more = (server.problems.len() + server.remarks.len()).saturating_sub(MAX_NOTED);
    if more > 0 {
        notes.push(format!("{more} more (`get {}` shows them)", server.name));
    }
    vec![
        server.name.clone(),
        server.project.clone().unwrap_or_else(|| "-".to_owned()),
        server.status.clone(),
        server.transport.clone(),
        server.sandbox.clone().unwrap_or_else(|| "-".to_owned()),
        print::short(&server.target, 64),
        server.tools.to_string(),
        server.calls.to_string(),
        server.errors.to_string(),
        notes.join("; "),
    ]
}

/// Returns the last line of stderr, if the server is down because it crashed or did not start.
fn last_words(server: &Server) -> Option<&str> {
    let is_down = matches!(
        server.status.as_str(),
        "starting" | "restarting" | "backoff" | "unavailable" | "failed"
    );
    let crash = server.last_crash.as_ref();
    let crash = crash.filter(|_| is_down && server.reason.is_some())?;
    let mut lines = crash.stderr.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty() && !line.contains(NPM_LAST_WORDS))
}

/// Returns a number of tools in words.
pub(super) fn tools(count: usize) -> String {
    match count {
        1 => "1 tool".to_owned(),
        count => format!("{count} tools"),
    }
}

/// Returns all details of a server.
pub(super) fn fields(server: &Server) -> String {
    let some = |text: &Option<String>| text.clone().unwrap_or_default();
    let list = |names: &[String]| names.join(", ");
    let duration = |ms: Option<u64>| ms.map(print::duration).unwrap_or_default();
    let crash = server.last_crash.as_ref().map(|crash| {
        let ago = (store::now() - crash.at).num_milliseconds();
        let ago = print::duration(u64::try_from(ago).unwrap_or_default());
        format!("{ago} ago: {}", crash.cause)
    });
    let concurrency = match server.one_session_at_a_time {
        true => format!("{}, one session at a time", server.max_concurrency),
        false => server.max_concurrency.to_string(),
    };
    let restarts = match &server.restart_policy {
        Some(policy) => format!("{}, policy {policy}", server.restart_count),
        None => server.restart_count.to_string(),
    };
    let ports = server.ports.iter().map(|port| match &port.address {
        Some(address) => format!("{} at {address}", port.port),
        None => port.port.to_string(),
    });
    let ports: Vec<String> = ports.collect();
    let mut notices = server.ports.iter();
    let notice =
        notices.find_map(|port| Some(format!("port {}: {}", port.port, port.notice.as_ref()?)));
    let limits = server.resource_limits.as_ref().map(limits);
    let network = match server.network["allow"].as_array() {
        Some(hosts) => {
            let hosts: Vec<&str> = hosts.iter().filter_map(Value::as_str).collect();
            format!("only {}", hosts.join(", "))
        }
        None => server.network.as_str().unwrap_or_default().to_owned(),
    };
    print::fields(&[
        ("name", server.name.clone()),
        ("state", server.status.clone()),
        ("reason", some(&server.reason)),
        ("not set", unset(server)),
        ("next attempt in", duration(server.next_attempt_ms)),
        ("id", server.id.clone()),
        ("label", some(&server.label)),
        ("project", some(&server.project)),
        ("description", server.description.clone()),
        ("product", some(&server.product)),
        ("declared by", some(&server.registered_by)),
        ("transport", server.transport.clone()),
        ("target", server.target.clone()),
        (
            "arguments",
            unless_zero(server.arguments, |count| format!("{count} (not shown)")),
        ),
        ("variables", list(&server.environment)),
        ("headers", list(&server.headers)),
        ("sandbox", some(&server.sandbox)),
        ("because", some(&server.provider_reason)),
        ("enforced", enforced(&server.enforced, true)),
        ("not enforced", enforced(&server.enforced, false)),
        ("can read", files(&server.files, FileAccess::Read)),
        ("can write", files(&server.files, FileAccess::Write)),
        ("not visible", list(&server.files_missing)),
        ("limits", limits.unwrap_or_default()),
        ("uses", server.usage.as_ref().map(uses).unwrap_or_default()),
        ("volumes", list(&server.volumes)),
        ("ports", ports.join(", ")),
        ("notice", notice.unwrap_or_default()),
        ("network", network),
        ("era", some(&server.era)),
        ("protocol", some(&server.protocol_version)),
        (
            "process",
            server.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        ),
        ("up", duration(server.uptime_seconds.map(|up| up * 1000))),
        ("starts", server.starts.to_string()),
        ("restarts", restarts),
        ("last crash", crash.unwrap_or_default()),
        (
            "warnings",
            unless_zero(server.warnings, |count: u64| count.to_string()),
        ),
        ("tools", server.tools.to_string()),
        (
            "enabled tools",
            list(server.enabled_tools.as_deref().unwrap_or_default()),
        ),
        ("disabled tools", list(&server.disabled_tools)),
        ("kept back", unless_zero(server.kept_back, tools)),
        ("problems", server.problems.join("; ")),
        ("remarks", server.remarks.join("; ")),
        (
            "calls",
            format!(
                "{} ({} errors, {} in flight, {} waiting)",
                server.calls, server.errors, server.in_flight, server.waiting
            ),
        ),
        (
            "other requests",
            unless_zero(server.requests, |count: u64| count.to_string()),
        ),
        (
            "refused",
            unless_zero(server.refused, |count: u64| count.to_string()),
        ),
        ("max concurrency", concurrency),
        ("sharing", server.sharing.clone()),
        ("call timeout", format!("{} ms", server.call_timeout_ms)),
        ("start timeout", format!("{} ms", server.start_timeout_ms)),
        ("projects", list(&server.projects)),
    ])
}

/// Returns the variables that the server lacks, each with the command that sets it.
fn unset(server: &Server) -> String {
    let project = server.project.as_deref();
    let names = server.unset.iter();
    let names = names.map(|name| format!("{name} (`{}`)", secrets::command(name, project)));
    names.collect::<Vec<_>>().join(", ")
}

fn unless_zero<T: PartialEq + Default>(count: T, text: impl Fn(T) -> String) -> String {
    match count == T::default() {
        true => String::new(),
        false => text(count),
    }
}

/// Returns the guarantees of a sandbox that are enforced, or those that are not, with the reason.
fn enforced(all: &[Enforced], holds: bool) -> String {
    let all = all.iter().filter(|one| one.holds == holds);
    let words = all.map(|one| match holds {
        true => one.what.clone(),
        false => format!("{} ({})", one.what, one.how),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Returns the files that a server can access. Files with another path on the host include that path.
fn files(all: &[VisibleFile], access: FileAccess) -> String {
    let all = all.iter().filter(|one| one.access == access);
    let words = all.map(|one| {
        let mut word = one.path.clone();
        if let Some(host) = one.host.as_ref().filter(|host| **host != one.path) {
            word.push_str(&format!(" (`{host}` on the host)"));
        }
        if !one.hidden.is_empty() {
            word.push_str(&format!(" without {}", one.hidden.join(" and ")));
        }
        word
    });
    words.collect::<Vec<_>>().join(", ")
}

fn limits(limits: &Limits) -> String {
    format!(
        "{} cores, {} of memory, {} of disk, {} processes and threads",
        limits.cpu,
        size(limits.memory),
        size(limits.disk),
        limits.pids
    )
}

fn uses(used: &Usage) -> String {
    let cpu = used.cpu.map(|cpu| format!("{cpu:.2} cores, "));
    format!(
        "{}{} (peak {}), {} processes and threads",
        cpu.unwrap_or_default(),
        size(used.memory),
        size(used.memory_peak),
        used.pids
    )
}

/// Formats a size in the largest unit that gives at least 1.
pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..units.len() - 1)
        .find(|unit| bytes >> (10 * (unit + 1)) == 0)
        .unwrap_or(units.len() - 1);
    let whole = bytes >> (10 * unit);
    let tenths = match unit {
        0 => 0,
        _ => (bytes >> (10 * (unit - 1)) & 1023) * 10 / 1024,
    };
    match tenths {
        0 => format!("{whole} {}", units[unit]),
        tenths => format!("{whole}.{tenths} {}", units[unit]),
    }
}

/// Returns an event on one line.
pub(super) fn detail(value: &Value) -> String {
    let Some(message) = value["message"].as_str() else {
        return match value {
            Value::Null => String::new(),
            value => value.to_string(),
        };
    };
    let last = value["stderr"]
        .as_str()
        .and_then(|text| text.lines().last());
    match last {
        Some(line) => format!("{message} | {}", print::short(line, 80)),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, expect) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (512 << 20, "512 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(size(bytes), expect);
        }
    }

    /// `npx` of nvm, given by its absolute path, does not find `node`: only its stderr says so.
    #[test]
    fn the_note_of_a_crash_includes_the_last_line_of_stderr() {
        let crash = api::Crash {
            at: store::now(),
            cause: "exit code 127".to_owned(),
            exit_code: Some(127),
            signal: None,
            out_of_memory: false,
            fork_bomb: false,
            stderr: "starting\n/usr/bin/env: 'node': No such file or directory\n \n".to_owned(),
        };
        let mut server = Server {
            status: "backoff".to_owned(),
            reason: Some("it ended with exit code 127".to_owned()),
            last_crash: Some(crash),
            ..Server::default()
        };
        let note = |server: &Server| cells(server).pop().unwrap_or_default();
        assert_eq!(
            note(&server),
            "it ended with exit code 127; it wrote `/usr/bin/env: 'node': No such file or directory`"
        );
        if let Some(crash) = &mut server.last_crash {
            let npm =
                "npm error A complete log of this run can be found in: /root/.npm/_logs/x.log\n";
            crash.stderr.push_str(npm);
        }
        assert!(note(&server).ends_with("`/usr/bin/env: 'node': No such file or directory`"));
        server.next_attempt_ms = Some(61_000);
        assert!(
            note(&server).starts_with("it ended with"),
            "{}",
            note(&server)
        );
        assert!(
            note(&server).ends_with("; next attempt in 1m1s"),
            "{}",
            note(&server)
        );
        server.next_attempt_ms = None;
        // An earlier crash is not why it waits for a sign-in.
        "needs_login".clone_into(&mut server.status);
        assert_eq!(note(&server), "it ended with exit code 127");
        "running".clone_into(&mut server.status);
        server.reason = None;
        assert_eq!(note(&server), "");
    }
}
