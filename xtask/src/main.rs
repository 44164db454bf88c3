//! `cargo xtask`: all development tasks of this repository, as commands.
//!
//! The README mentions `demo`, `test`, `recipes`, `bench` and `chaos`, docs/releasing.md `dist`, docs/reliability.md
//! `soak`, and docs/performance.md `bench peers`; the other commands are parts of these. Each command prints the programs
//! that it runs. This crate and the others do not depend on each other: it runs `cargo` and the binaries. Downloads use
//! only the clients of package registries. Outside the checkout, only `apt-get`, `cargo install` and the build of
//! Kubernetes write files.

mod before;
mod checks;
mod daemon;
mod demo;
mod dist;
mod docker;
mod gateway;
mod graph;
mod kubernetes;
mod lengths;
mod modules;
mod peers;
mod postgres;
mod python;
mod recipes;
mod setup;
mod shell;
mod soak;
mod swarm;
mod undeclared;
mod web;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{shell::Cmd, workspace::Workspace};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Works on the Toolwharf repository"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Installs what the tests and the demo need: system packages (as root), MCP servers from npm and PyPI (into .work),
    /// cargo's helpers, and Kubernetes' API server
    Setup,
    /// Sets up, checks, builds and tests everything
    Test {
        /// Arguments for `cargo nextest run`, after `--`
        #[arg(last = true)]
        nextest: Vec<String>,
    },
    /// Runs the test suite with full-length loops (tests read TOOLWHARF_SOAK=1), or the tests of one figure of
    /// docs/reliability.md (as root)
    Soak {
        /// Only the tests of this figure or part, which print the figure and its bound
        #[arg(value_parser = soak::names())]
        name: Option<String>,
        /// Arguments for `cargo nextest run`, after `--`
        #[arg(last = true)]
        nextest: Vec<String>,
    },
    /// Checks formatting, lints, the dependency graph, file lengths, licences, sources and the REST API document (needs
    /// the npm packages that `setup` installs)
    Check,
    /// Checks that crates depend on each other only as docs/architecture.md says, that no Rust file is too long, and
    /// that there are no cycles between modules
    Graph,
    /// Builds the console (web/) into web/dist, which is committed
    Web {
        /// Only checks that web/dist matches web/
        #[arg(long)]
        check: bool,
    },
    /// Runs a command with a private Postgres, whose URL is in TOOLWHARF_TEST_POSTGRES
    Postgres {
        /// The command with its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Runs a command with a private Docker daemon with runc and gVisor, whose address is in TOOLWHARF_TEST_DOCKER (as
    /// root)
    Docker {
        /// The command with its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Runs a command with the binary of the previous version, built from its commit, in TOOLWHARF_TEST_BEFORE
    Before {
        /// The command with its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Runs a command with a private single-node Kubernetes cluster with gVisor, whose kubeconfig is in
    /// TOOLWHARF_TEST_KUBERNETES and KUBECONFIG (as root). The first run builds Kubernetes, which takes several minutes
    Kubernetes {
        /// Only the API server, which needs no root and may run next to other clusters; its kubeconfig is in
        /// TOOLWHARF_TEST_KUBERNETES_API and KUBECONFIG
        #[arg(long)]
        control_plane: bool,
        /// The command with its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Runs a command with a private Docker Swarm of four nodes, one of them with gVisor, whose directory is in
    /// TOOLWHARF_TEST_SWARM (as root)
    Swarm {
        /// The command with its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Builds Toolwharf and serves two MCP servers with it: the dice example, and a third-party server through uvx or
    /// npx
    Demo(demo::Options),
    /// Builds and runs the recipe vault (examples/recipe-vault): a chat page, an agent and its tools
    Recipes(recipes::Options),
    /// Makes all files of a release in target/dist: binaries, packages and images, with checksums (as root)
    Dist(dist::Options),
    /// Builds the release binaries and runs the benchmarks; `bench peers` also installs other proxies and measures them
    Bench {
        /// Arguments for the `bench` binary, for instance `run --quick` or `peers --quick`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Builds the release binaries, then kills, hangs and starves hosted servers at random for ten minutes while
    /// clients call them (as root)
    Chaos {
        /// Arguments for `bench chaos`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        // The error is printed without the backtrace of `RUST_BACKTRACE`, which would hide the remedy.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    let workspace = Workspace::locate()?;
    match command {
        Command::Test { nextest } => return checks::test(&workspace, &nextest),
        Command::Soak { name, nextest } => {
            return match name.as_deref() {
                None => checks::soak(&workspace, &nextest),
                Some("swarm") => checks::soak_swarm(&workspace),
                Some("kubernetes") => checks::soak_kubernetes(&workspace),
                Some(figure) => soak::run(&workspace, figure, &nextest),
            };
        }
        Command::Postgres { command } => return postgres::run(Cmd::of(&command)),
        Command::Docker { command } => return docker::run(&workspace, Cmd::of(&command)),
        Command::Kubernetes {
            control_plane,
            command,
        } => {
            let parts = match control_plane {
                true => kubernetes::Parts::ControlPlane,
                false => kubernetes::Parts::All,
            };
            return kubernetes::run(&workspace, parts, Cmd::of(&command));
        }
        Command::Swarm { command } => return swarm::run(&workspace, Cmd::of(&command)),
        Command::Before { command } => before::run(&workspace, Cmd::of(&command)),
        Command::Setup => setup::run(&workspace),
        Command::Check => checks::check(&workspace),
        Command::Graph => checks::structure(&workspace),
        Command::Web { check: false } => web::build(&workspace),
        Command::Web { check: true } => web::check(&workspace),
        Command::Demo(options) => demo::run(&workspace, &options),
        Command::Recipes(options) => recipes::run(&workspace, options),
        Command::Dist(options) => dist::run(&workspace, &options),
        Command::Bench { args } => match args.split_first() {
            Some((first, rest)) if first == "peers" => peers::run(&workspace, rest),
            _ => checks::bench(&workspace, &args),
        },
        Command::Chaos { args } => checks::chaos(&workspace, &args),
    }?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
