//! Compares other MCP proxies and gateways with this one (`docs/performance.md`).
//!
//! `cargo xtask bench peers` installs the peers and passes a list of them. Each round starts every program again: in front
//! of an echo server, on a free port of the loopback interface, with an empty home directory. The load generator is that
//! of [`crate::run`], which checks every response. The order of the programs alternates between rounds, and a figure is
//! the median of its rounds.
//!
//! CPU time and memory are those of all processes of a program, apart from its echo servers ([`process`]). [`programs`]
//! has the command line of each program.
//!
//! A peer that cannot be installed or started does not fail the run: it is reported with the reason. Wrong responses are
//! counted and reported, too.

mod measure;
mod process;
mod programs;
mod result;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::run::calls::Transport;
use crate::run::{self, part};
use measure::Effort;
use programs::{Kind, PROGRAMS, Program};
use result::Report;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// File that lists the installed peers; `cargo xtask bench peers` writes it
    #[arg(long, value_name = "FILE")]
    installed: PathBuf,
    /// Measures only this peer, beside Toolwharf and the baseline; may be repeated
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(programs::peers()))]
    only: Vec<String>,
    /// Shorter rounds: five minutes instead of twenty, with less precise figures
    #[arg(long)]
    quick: bool,
    /// Only checks that everything works; the figures are meaningless
    #[arg(long, hide = true, conflicts_with = "quick")]
    smoke: bool,
    /// Also writes the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also writes the tables into this Markdown file, between `<!-- bench peers: NAME -->` and `<!-- end -->`
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// The gateway's binary [default: `toolwharf` next to this program]
    #[arg(long, value_name = "PATH")]
    toolwharf: Option<PathBuf>,
}

/// An entry of the list of installed peers.
#[derive(Clone, Debug, Deserialize)]
struct Installed {
    version: String,
    /// Missing if the peer could not be installed.
    program: Option<PathBuf>,
    /// A folder in front of the `PATH`.
    path: Option<PathBuf>,
    /// Why the peer could not be installed.
    error: Option<String>,
}

/// A program to measure.
#[derive(Debug)]
struct Candidate {
    program: &'static Program,
    /// Name and version.
    title: String,
    file: PathBuf,
    path: Option<PathBuf>,
}

/// Prints the tables. The exit code is 1 if Toolwharf or a peer of `--only` could not be measured or gave a wrong
/// response.
///
/// # Errors
///
/// The list of peers cannot be read, or the baseline could not be measured.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    run::raise_descriptor_limit()?;
    let effort = match (options.quick, options.smoke) {
        (_, true) => measure::SMOKE,
        (true, _) => measure::QUICK,
        _ => measure::FULL,
    };
    let mut report = Report::default();
    let candidates = candidates(&options, &mut report)?;
    for line in result::machine() {
        println!("{line}");
    }
    tokio::select! {
        () = measure_all(&candidates, effort, &mut report) => {}
        // The running program is killed as it is dropped.
        stopped = stop_signal() => stopped?,
    }
    for transport in [Transport::Stdio, Transport::Http] {
        let table = report.table(transport)?;
        println!("\n{}", table.markdown());
        if let Some(file) = &options.into {
            table.write_into(file)?;
        }
    }
    for line in report.remarks() {
        println!("{line}");
    }
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&report.json(effort.name))? + "\n";
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let is_asked = |program: &Program| {
        program.kind != Kind::Peer || options.only.iter().any(|name| name == program.name)
    };
    Ok(ExitCode::from(u8::from(report.has_faults(is_asked))))
}

/// Fails when this process is asked to stop.
async fn stop_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    anyhow::bail!("stopped by a signal")
}

/// The programs to measure. Peers that are not installed go into the report.
fn candidates(options: &Options, report: &mut Report) -> anyhow::Result<Vec<Candidate>> {
    let installed = read(&options.installed)?;
    let toolwharf = part::program(options.toolwharf.clone(), "toolwharf")?;
    let mut candidates = Vec::new();
    for program in PROGRAMS {
        let own = |file: PathBuf| Candidate {
            program,
            title: program.title.to_owned(),
            file,
            path: None,
        };
        match program.kind {
            Kind::Floor => candidates.push(own(part::own_path()?)),
            Kind::Toolwharf => candidates.push(own(toolwharf.clone())),
            Kind::Peer => {
                let name = program.name;
                if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
                    continue;
                }
                match peer(program, installed.get(name)) {
                    Ok(candidate) => candidates.push(candidate),
                    Err(reason) => report.fail(program, program.title, None, reason),
                }
            }
        }
    }
    Ok(candidates)
}

fn read(file: &Path) -> anyhow::Result<BTreeMap<String, Installed>> {
    let failed = || format!("cannot read the list of peers, {}", file.display());
    let text = std::fs::read_to_string(file).with_context(failed)?;
    serde_json::from_str(&text).with_context(failed)
}

fn peer(program: &'static Program, found: Option<&Installed>) -> Result<Candidate, String> {
    let found = found.ok_or("it is not installed")?;
    let file = found.program.clone().ok_or_else(|| {
        let reason = found.error.as_deref().unwrap_or("no reason is known");
        format!("it could not be installed: {reason}")
    })?;
    Ok(Candidate {
        program,
        title: program.with_version(&found.version),
        file,
        path: found.path.clone(),
    })
}

/// Measures all programs in front of both kinds of servers. A program that fails is not started again.
async fn measure_all(candidates: &[Candidate], effort: Effort, report: &mut Report) {
    for round in 0..effort.rounds {
        let mut order: Vec<_> = candidates
            .iter()
            .flat_map(|candidate| {
                candidate
                    .program
                    .reaches
                    .iter()
                    .map(move |it| (candidate, *it))
            })
            .collect();
        // Neither the first program nor the last one always has the same place.
        if round % 2 == 1 {
            order.reverse();
        }
        for (candidate, transport) in order {
            let Candidate { program, title, .. } = candidate;
            if report.has_failed(program, transport) {
                continue;
            }
            let server = programs::server_name(transport);
            eprintln!(
                "round {} of {}: {title}, {server} …",
                round + 1,
                effort.rounds
            );
            match measure::round(candidate, transport, effort).await {
                Ok(figures) => report.add(program, title, transport, figures),
                Err(error) => {
                    let reason = format!("{error:#}");
                    eprintln!("    failed: {reason}");
                    report.fail(program, title, Some(transport), reason);
                }
            }
        }
    }
}
