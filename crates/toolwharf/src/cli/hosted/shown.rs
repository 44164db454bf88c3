//! What is shown of hosted servers, for people.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::print;

/// What is shown of a server; JSON shows all of it, as the API has it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Hosted {
    pub(super) id: String,
    pub(super) name: String,
    project: Option<String>,
    status: String,
    reason: Option<String>,
    image: Option<String>,
    command: Option<String>,
    stdio_bridge: bool,
    restart_policy: String,
    provider: Option<String>,
    provider_reason: Option<String>,
    enforced: Vec<Enforced>,
    uptime_seconds: Option<u64>,
    restart_count: u64,
    last_crash: Option<Crash>,
    next_attempt_ms: Option<u64>,
    warnings: u64,
    usage: Option<Used>,
    resource_limits: Limits,
    ports: Vec<Port>,
    volumes: Vec<String>,
    environment: Vec<String>,
    network: Value,
    in_flight: usize,
    waiting: usize,
    calls: u64,
    errors: u64,
    tools: usize,
}

#[derive(Deserialize)]
struct Enforced {
    what: String,
    holds: bool,
    how: String,
}

#[derive(Deserialize)]
struct Crash {
    at: store::Time,
    cause: String,
}

#[derive(Deserialize)]
struct Used {
    cpu: Option<f64>,
    memory: u64,
    memory_peak: u64,
    pids: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Limits {
    cpu: f64,
    memory: u64,
    disk: u64,
    pids: u32,
}

#[derive(Deserialize)]
struct Port {
    port: u16,
    address: Option<String>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Event {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) detail: Value,
    pub(super) at: store::Time,
}

/// How a server is, in words for people.
pub(super) fn said(server: &Hosted) {
    let mut line = match server.status.as_str() {
        "backoff" => "it is in backoff".to_owned(),
        status => format!("it is {status}"),
    };
    if let (Some(provider), "running") = (&server.provider, server.status.as_str()) {
        line.push_str(&format!(" under {provider}, with {} tools", server.tools));
    }
    if let Some(reason) = &server.reason {
        line.push_str(&format!(": {reason}"));
    }
    if let Some(ms) = server.next_attempt_ms {
        line.push_str(&format!("; next attempt in {}", print::duration(ms)));
    }
    eprintln!("{}", print::printable(&line));
    if matches!(server.status.as_str(), "backoff" | "failed" | "restarting") {
        eprintln!(
            "`toolwharf host logs {}` shows what it wrote, `toolwharf host events {0}` what happened",
            server.name
        );
    }
    let broken = server.enforced.iter().filter(|one| !one.holds);
    for one in broken.filter(|_| server.status == "running") {
        let line = format!("does not hold: {}: {}", one.what, one.how);
        eprintln!("{}", print::printable(&line));
    }
}

pub(super) fn cells(server: &Hosted) -> [String; 9] {
    let up = server.uptime_seconds.map(|up| print::duration(up * 1000));
    let memory = server.usage.as_ref().map(|used| size(used.memory));
    [
        server.name.clone(),
        server.project.clone().unwrap_or_default(),
        server.status.clone(),
        server.provider.clone().unwrap_or_default(),
        up.unwrap_or_default(),
        server.restart_count.to_string(),
        server.calls.to_string(),
        memory.unwrap_or_default(),
        print::short(server.reason.as_deref().unwrap_or_default(), 80),
    ]
}

pub(super) fn fields(server: &Hosted) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let crash = server.last_crash.as_ref().map(|crash| {
        let ago = (store::now() - crash.at).num_milliseconds();
        let ago = print::duration(u64::try_from(ago).unwrap_or_default());
        format!("{ago} ago: {}", crash.cause)
    });
    let used = server.usage.as_ref().map(|used| {
        let cpu = used.cpu.map(|cpu| format!("{cpu:.2} cores, "));
        format!(
            "{}{} (at most {} so far), {} processes and threads",
            cpu.unwrap_or_default(),
            size(used.memory),
            size(used.memory_peak),
            used.pids
        )
    });
    let limits = &server.resource_limits;
    let port = |port: &Port| match &port.address {
        Some(address) => format!("{} at {address}", port.port),
        None => port.port.to_string(),
    };
    let ports: Vec<String> = server.ports.iter().map(port).collect();
    let network = match server.network["allow"].as_array() {
        Some(hosts) => {
            let hosts: Vec<&str> = hosts.iter().filter_map(Value::as_str).collect();
            format!("only {}", hosts.join(", "))
        }
        None => server.network.as_str().unwrap_or_default().to_owned(),
    };
    let next = server.next_attempt_ms;
    let up = server.uptime_seconds;
    let spoken = if server.stdio_bridge {
        "its standard streams"
    } else {
        "HTTP"
    };
    let mut out = print::fields(&[
        ("name", server.name.clone()),
        ("id", server.id.clone()),
        ("project", text(&server.project)),
        ("status", server.status.clone()),
        ("reason", text(&server.reason)),
        (
            "next attempt in",
            next.map(print::duration).unwrap_or_default(),
        ),
        (
            "up for",
            up.map(|up| print::duration(up * 1000)).unwrap_or_default(),
        ),
        (
            "restarts",
            format!("{}, policy {}", server.restart_count, server.restart_policy),
        ),
        ("last crash", crash.unwrap_or_default()),
        ("warnings", server.warnings.to_string()),
        ("image", text(&server.image)),
        ("command", text(&server.command)),
        ("spoken to over", spoken.to_owned()),
        ("provider", text(&server.provider)),
        ("because", text(&server.provider_reason)),
        ("uses", used.unwrap_or_default()),
        (
            "limits",
            format!(
                "{} cores, {} of memory, {} of disk, {} processes and threads",
                limits.cpu,
                size(limits.memory),
                size(limits.disk),
                limits.pids
            ),
        ),
        ("ports", ports.join(", ")),
        ("volumes", server.volumes.join(", ")),
        ("environment", server.environment.join(", ")),
        ("network", network),
        (
            "calls",
            format!(
                "{}, {} errors; {} at work, {} waiting",
                server.calls, server.errors, server.in_flight, server.waiting
            ),
        ),
        ("tools", server.tools.to_string()),
    ]);
    for one in &server.enforced {
        let holds = if one.holds { "holds" } else { "does not hold" };
        let line = format!("{} {holds}: {}", one.what, one.how);
        out.push_str(&print::fields(&[("enforced", line)]));
    }
    out
}

/// Bytes in the largest unit that leaves a number before the point.
fn size(bytes: u64) -> String {
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

/// An event in a line; JSON has all of it.
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
}
