//! What describes a release as a whole: notes, sizes, start-up times, checksums. And the Helm chart.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{Arch, Release, build::Built, names_in};

/// How often the start-up is measured.
const STARTS: usize = 5;
const SUMS: &str = "SHA256SUMS";

/// Packs the Helm chart, which must be of the same version.
pub(super) fn chart(release: &Release) -> Result<()> {
    let charts = release.workspace.root().join("deploy/helm");
    let about = charts.join("toolwharf/Chart.yaml");
    let text =
        fs::read_to_string(&about).with_context(|| format!("cannot read {}", about.display()))?;
    for key in ["version", "appVersion"] {
        let line = format!("{key}: {}", release.version);
        ensure!(
            text.lines().any(|found| found == line),
            "{} does not contain `{line}`: see docs/releasing.md",
            about.display()
        );
    }
    let file = format!("toolwharf-chart-{}.tgz", release.version);
    release.pack(&charts, &release.out.join(file), false)
}

/// Writes the notes, the facts about the binaries, and the checksums of all files.
pub(super) fn write(release: &Release, all: &[Built]) -> Result<()> {
    let changes = fs::read_to_string(release.workspace.root().join("CHANGELOG.md"))?;
    let notes = section(&changes, &release.version);
    let notes = match notes {
        Some(notes) => notes,
        None => {
            eprintln!(
                "    warning: CHANGELOG.md has no section `## {}`, so the notes are those of `## Unreleased`",
                release.version
            );
            section(&changes, "Unreleased")
                .context("CHANGELOG.md has no section `## Unreleased`")?
        }
    };
    let notes = format!("# Toolwharf {}\n\n{notes}\n", release.version);
    super::write(&release.out.join("NOTES.md"), notes, 0o644)?;
    let host = Arch::of_host()?;
    let mut binaries = Vec::new();
    for built in all {
        let bytes = fs::metadata(&built.program)?.len();
        // An emulator's times say nothing.
        let start = match built.arch == host {
            true => Some(start_up(release, built)?.as_millis()),
            false => None,
        };
        let shown = start.map_or_else(String::new, |ms| format!(", ready after {ms} ms"));
        eprintln!(
            "    {}: {}.{} MB{shown}",
            built.arch.name(),
            bytes / 1_000_000,
            bytes / 100_000 % 10
        );
        // Times differ from run to run, so they are only printed.
        binaries
            .push(json!({"arch": built.arch.name(), "bytes": bytes, "compiler": built.compiler}));
    }
    let facts = json!({"version": release.version, "commit": release.commit, "binaries": binaries});
    let facts = serde_json::to_string_pretty(&facts)? + "\n";
    super::write(&release.out.join("build.json"), facts, 0o644)?;
    let names = names_in(&release.out)?;
    let sums = release
        .cmd("sha256sum")
        .args(names)
        .dir(&release.out)
        .output()?;
    super::write(&release.out.join(SUMS), sums, 0o644)
}

/// The text of a section of the changelog, without its heading.
fn section(changelog: &str, version: &str) -> Option<String> {
    let mut lines = changelog.lines();
    // `## 1.0.0 (2026-12-01)` and `## Unreleased`.
    lines.find(|line| {
        let title = line.strip_prefix("## ").unwrap_or_default();
        title.split(' ').next() == Some(version)
    })?;
    let text: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    Some(text.join("\n").trim().to_owned())
}

/// The median time from the start of a gateway with existing data to its first connection.
fn start_up(release: &Release, built: &Built) -> Result<Duration> {
    let folder = release.work.join("start-up");
    fs::create_dir_all(&folder)?;
    // The first start creates the database.
    one_start(built, release, &folder)?;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        times.push(one_start(built, release, &folder)?);
    }
    times.sort();
    Ok(times[STARTS / 2])
}

fn one_start(built: &Built, release: &Release, folder: &Path) -> Result<Duration> {
    let servers = folder.join("mcp.json");
    super::write(&servers, "{\"mcpServers\": {}}", 0o600)?;
    let cmd = built.cmd(&release.workspace)?.arg("--config").arg(&servers);
    let cmd = cmd.arg("--data-dir").arg(folder.join("data"));
    let mut command = cmd
        .args(["serve", "--listen", "127.0.0.1:0"])
        .into_command();
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let began = SystemTime::now();
    let mut child = command.spawn().context("cannot start the binary")?;
    let output = child.stderr.take().context("its output is piped")?;
    let mut ready = None;
    let mut said = String::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line.starts_with("toolwharf is at ") {
            ready = Some(began.elapsed()?);
            break;
        }
        said.push_str(&line);
        said.push('\n');
    }
    child.kill()?;
    child.wait()?;
    ready.with_context(|| format!("the binary does not start:\n{said}"))
}

#[cfg(test)]
mod tests {
    use super::section;

    #[test]
    fn the_notes_are_the_section_of_the_version() {
        let text = "# Changes\n\n## Unreleased\n\n- new\n\n## 1.2.0 (2026-12-01)\n\n### Added\n\n- one\n\n## 1.1.0\n\n- old\n";
        assert_eq!(
            section(text, "1.2.0").as_deref(),
            Some("### Added\n\n- one")
        );
        assert_eq!(section(text, "1.1.0").as_deref(), Some("- old"));
        assert_eq!(section(text, "Unreleased").as_deref(), Some("- new"));
        assert_eq!(section(text, "1.2"), None);
    }
}
