//! The report: a table for each kind of server, programs that failed, and wrong responses.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::measure::Figures;
use super::programs::{self, Kind, Program};
use crate::run::calls::Transport;
use crate::run::load::Round;
use crate::run::report::{median, number};
use crate::tables::Table;

/// The rounds of a program in front of one kind of server.
#[derive(Debug)]
pub(super) struct Measured {
    program: &'static Program,
    title: String,
    transport: Transport,
    rounds: Vec<Figures>,
}

/// A program that could not be measured.
#[derive(Debug)]
struct Failure {
    program: &'static Program,
    title: String,
    /// `None`: it is not installed.
    transport: Option<Transport>,
    reason: String,
}

#[derive(Debug, Default)]
pub(super) struct Report {
    measured: Vec<Measured>,
    failures: Vec<Failure>,
}

impl Measured {
    /// The median of a figure.
    fn figure(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }

    fn cpu_of_one(&self) -> f64 {
        self.figure(|round| round.one.cpu_per_call())
    }

    fn cpu_of_many(&self) -> f64 {
        self.figure(|round| round.many.cpu_per_call())
    }

    /// Quantiles of the latency, in ms.
    fn latency(&self, of: fn(&Figures) -> &Round, share: f64) -> f64 {
        self.figure(|round| of(round).latency(share) / 1e3)
    }

    fn each(&self) -> impl Iterator<Item = &Round> {
        let rounds = self.rounds.iter();
        rounds.flat_map(|round| [&round.one, &round.many])
    }

    fn wrong(&self) -> u64 {
        self.each().map(|round| round.wrong).sum()
    }

    fn cells(&self, floor: &Self) -> Vec<String> {
        let cpu = |of: fn(&Self) -> f64| {
            let ratio = of(self) / of(floor);
            format!("{} (×{})", number(of(self)), number(ratio))
        };
        let latency = |of: fn(&Figures) -> &Round| {
            let [half, most] = [0.5, 0.99].map(|share| number(self.latency(of, share)));
            format!("{half} / {most}")
        };
        let title = match self.wrong() {
            0 => self.title.clone(),
            wrong => format!("{}, **{wrong} wrong responses**", self.title),
        };
        vec![
            title,
            cpu(Self::cpu_of_one),
            cpu(Self::cpu_of_many),
            latency(|round| &round.one),
            latency(|round| &round.many),
            number(self.figure(|round| round.many.calls_per_second())),
            number(self.figure(|round| round.peak)),
            number(self.figure(|round| round.start)),
        ]
    }

    fn json(&self) -> Value {
        let round = |round: &Round| {
            json!({
                "calls": round.calls,
                "wrong": round.wrong,
                "cpuPerCallUs": round.cpu_per_call(),
                "callsPerSecond": round.calls_per_second(),
                "p50Us": round.latency(0.5),
                "p99Us": round.latency(0.99),
            })
        };
        let rounds = self.rounds.iter().map(|figures| {
            json!({
                "startSeconds": figures.start,
                "peakMiB": figures.peak,
                "serverProcesses": figures.servers,
                "oneClient": round(&figures.one),
                "clients32": round(&figures.many),
            })
        });
        json!({
            "name": self.program.name,
            "title": self.title,
            "server": transport_name(self.transport),
            "rounds": rounds.collect::<Vec<_>>(),
        })
    }
}

impl Report {
    pub(super) fn add(
        &mut self,
        program: &'static Program,
        title: &str,
        transport: Transport,
        figures: Figures,
    ) {
        let same =
            |it: &&mut Measured| it.program.name == program.name && it.transport == transport;
        if let Some(known) = self.measured.iter_mut().find(same) {
            known.rounds.push(figures);
            return;
        }
        self.measured.push(Measured {
            program,
            title: title.to_owned(),
            transport,
            rounds: vec![figures],
        });
    }

    pub(super) fn fail(
        &mut self,
        program: &'static Program,
        title: &str,
        transport: Option<Transport>,
        reason: String,
    ) {
        self.failures.push(Failure {
            program,
            title: title.to_owned(),
            transport,
            reason,
        });
    }

    pub(super) fn has_failed(&self, program: &Program, transport: Transport) -> bool {
        let mut failures = self.failures.iter();
        failures.any(|it| it.program.name == program.name && it.transport == Some(transport))
    }

    /// The programs that were measured in every round, those with the least CPU time per call first.
    ///
    /// # Errors
    ///
    /// The baseline was not measured.
    pub(super) fn table(&self, transport: Transport) -> anyhow::Result<Table> {
        let mut all: Vec<_> = (self.measured.iter())
            .filter(|it| it.transport == transport && !self.has_failed(it.program, transport))
            .collect();
        all.sort_by(|a, b| a.cpu_of_many().total_cmp(&b.cpu_of_many()));
        let floor = all.iter().find(|it| it.program.kind == Kind::Floor);
        let floor = floor.with_context(|| {
            let failed = self
                .failures
                .iter()
                .find(|it| it.program.kind == Kind::Floor);
            let reason = failed.map_or("", |it| it.reason.as_str());
            format!("the baseline was not measured: {reason}")
        })?;
        let title = format!("In front of {}", programs::server_name(transport));
        let mut table = Table::of("peers", transport_name(transport), &title, &HEAD);
        for measured in &all {
            table.add(measured.cells(floor));
        }
        Ok(table)
    }

    /// The number of responses, programs that start several servers, wrong responses, and programs that failed.
    pub(super) fn remarks(&self) -> Vec<String> {
        let all = self.measured.iter().flat_map(Measured::each);
        let mut lines = vec![format!(
            "{} responses of the measured calls were checked",
            all.map(|round| round.calls + round.wrong).sum::<u64>()
        )];
        for measured in &self.measured {
            let servers = measured.rounds.iter().map(|it| it.servers).max();
            if let Some(servers @ 2..) = servers {
                lines.push(format!(
                    "{}: up to {servers} server processes",
                    measured.title
                ));
            }
        }
        for measured in self.measured.iter().filter(|it| it.wrong() > 0) {
            let complaint = measured.each().find_map(|round| round.complaint.as_deref());
            lines.push(format!(
                "{}, {}: {} wrong responses; one of them: {}",
                measured.title,
                programs::server_name(measured.transport),
                measured.wrong(),
                complaint.unwrap_or_default()
            ));
        }
        for failure in &self.failures {
            let server = failure.transport.map(programs::server_name);
            let server = server.map_or_else(String::new, |server| format!(", {server}"));
            let Failure { title, reason, .. } = failure;
            lines.push(format!("{title}{server}: not measured: {reason}"));
        }
        lines
    }

    /// Returns whether one of these programs failed or gave a wrong response.
    pub(super) fn has_faults(&self, wanted: impl Fn(&Program) -> bool) -> bool {
        let is_wrong = |it: &Measured| it.wrong() > 0 && wanted(it.program);
        self.failures.iter().any(|it| wanted(it.program)) || self.measured.iter().any(is_wrong)
    }

    pub(super) fn json(&self, effort: &str) -> Value {
        let failure = |it: &Failure| {
            json!({
                "name": it.program.name,
                "server": it.transport.map(transport_name),
                "reason": it.reason,
            })
        };
        json!({
            "effort": effort,
            "machine": machine(),
            "programs": self.measured.iter().map(Measured::json).collect::<Vec<_>>(),
            "failed": self.failures.iter().map(failure).collect::<Vec<_>>(),
        })
    }
}

const HEAD: [&str; 8] = [
    "program",
    "CPU per call, 1 client [µs]",
    "CPU per call, 32 clients [µs]",
    "latency p50 / p99, 1 client [ms]",
    "latency p50 / p99, 32 clients [ms]",
    "calls per second, 32 clients",
    "peak memory [MiB]",
    "first response [s]",
];

fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Stdio => "stdio",
        Transport::Http => "http",
    }
}

/// The processors, the kernel and the present load of this machine.
pub(super) fn machine() -> Vec<String> {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown", |it| it.trim_start_matches(['\t', ' ', ':']));
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    vec![
        format!("processors: {count} × {model}"),
        format!(
            "kernel: Linux {}",
            read("/proc/sys/kernel/osrelease").trim()
        ),
        format!("load average: {}", read("/proc/loadavg").trim()),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::peers::programs::PROGRAMS;

    fn program(name: &str) -> &'static Program {
        PROGRAMS.iter().find(|it| it.name == name).unwrap()
    }

    /// A round of 100 calls with this CPU time in µs for each.
    fn round(cpu: u64, wrong: u64) -> Round {
        Round {
            calls: 100,
            wall: Duration::from_millis(500),
            cpu: cpu * 100_000,
            latencies: (1..=100).map(|n| n * 10_000).collect(),
            wrong,
            complaint: (wrong > 0).then(|| "the id is not 7".to_owned()),
        }
    }

    fn figures(cpu: u64, wrong: u64) -> Figures {
        Figures {
            start: 0.5,
            one: round(cpu, 0),
            many: round(2 * cpu, wrong),
            peak: 64.0,
            servers: 1 + wrong as usize,
        }
    }

    #[test]
    fn a_row_has_medians_and_ratios() {
        let mut report = Report::default();
        for cpu in [90, 30, 60] {
            report.add(program("mcpo"), "mcpo 1", Transport::Stdio, figures(cpu, 0));
        }
        for cpu in [10, 20, 40] {
            report.add(program("floor"), "floor", Transport::Stdio, figures(cpu, 0));
        }
        let table = report.table(Transport::Stdio).unwrap().markdown();
        let rows: Vec<_> = table.lines().filter(|it| it.starts_with("| ")).collect();
        let latency = "0.51 / 0.99";
        let want = |title, one, many| {
            format!("| {title} | {one} | {many} | {latency} | {latency} | 200 | 64.0 | 0.50 |")
        };
        assert_eq!(rows[2], want("floor", "20.0 (×1.00)", "40.0 (×1.00)"));
        assert_eq!(rows[3], want("mcpo 1", "60.0 (×3.00)", "120 (×3.00)"));
        assert!(report.table(Transport::Http).is_err());
        assert!(!report.has_faults(|_| true));
        assert_eq!(
            report.json("full")["programs"][0]["rounds"]
                .as_array()
                .unwrap()
                .len(),
            3
        );
    }

    #[test]
    fn faults_are_named_and_count_only_if_they_were_asked_for() {
        let mut report = Report::default();
        let (mcpo, hub) = (program("mcpo"), program("mcp-hub"));
        report.add(program("floor"), "floor", Transport::Http, figures(10, 0));
        report.add(mcpo, "mcpo 1", Transport::Http, figures(10, 3));
        report.add(hub, "mcp-hub 1", Transport::Http, figures(10, 0));
        report.fail(
            hub,
            "mcp-hub 1",
            Some(Transport::Http),
            "it ended".to_owned(),
        );
        report.fail(program("fastmcp"), "fastmcp", None, "no Python".to_owned());
        let table = report.table(Transport::Http).unwrap().markdown();
        assert!(table.contains("mcpo 1, **3 wrong responses**"), "{table}");
        assert!(!table.contains("mcp-hub"), "{table}");
        assert_eq!(
            report.remarks(),
            [
                "603 responses of the measured calls were checked",
                "mcpo 1: up to 4 server processes",
                "mcpo 1, an HTTP server: 3 wrong responses; one of them: the id is not 7",
                "mcp-hub 1, an HTTP server: not measured: it ended",
                "fastmcp: not measured: no Python",
            ]
        );
        for (name, is_fault) in [
            ("mcpo", true),
            ("mcp-hub", true),
            ("fastmcp", true),
            ("floor", false),
        ] {
            assert_eq!(report.has_faults(|it| it.name == name), is_fault, "{name}");
        }
    }
}
