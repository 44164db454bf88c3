//! `cargo xtask`: everything that one does to this repository, as commands.
//!
//! The README names two of them (`demo` and `test`); the rest are their parts. Each says what it
//! runs, so that nothing here needs to be known by heart. It knows the workspace only from
//! outside, by `cargo` and by the binaries: it depends on no crate of ours and none depends on it.
//! Nothing is downloaded but by a package registry's own client, and nothing is put outside the
//! checkout but what `apt-get` and `cargo install` put there, and the build of Kubernetes.

mod before;
mod checks;
mod demo;
mod docker;
mod gateway;
mod graph;
mod http;
mod kubernetes;
mod lengths;
mod modules;
mod postgres;
mod python;
mod recipes;
mod setup;
mod shell;
mod swarm;
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
    /// Installs what the tests and the demo need: system packages (as root) and, into .work,
    /// MCP servers from npm and PyPI
    Setup,
    /// Sets up, checks, builds and tests everything
    Test {
        /// Arguments for `cargo nextest run`, after `--`
        #[arg(last = true)]
        nextest: Vec<String>,
    },
    /// Runs the test suite with its heavy loops at full length (tests read TOOLWHARF_SOAK=1)
    Soak {
        /// Only hosting on Kubernetes, or on a Docker Swarm, on a cluster of its own (as root)
        #[arg(value_parser = ["kubernetes", "swarm"])]
        part: Option<String>,
        /// Arguments for `cargo nextest run`, after `--`
        #[arg(last = true)]
        nextest: Vec<String>,
    },
    /// Checks formatting, lints, the dependency graph, lengths of files, licences and sources, and the document of the REST
    /// API (with what `setup` installs from npm)
    Check,
    /// Checks that crates depend on each other only as docs/architecture.md says, that no Rust file is too long, and that
    /// modules use each other in no circle
    Graph,
    /// Builds the console (web/) into web/dist, which is committed
    Web {
        /// Only checks that web/dist is what web/ gives
        #[arg(long)]
        check: bool,
    },
    /// Runs a command with a private Postgres, whose URL is in TOOLWHARF_TEST_POSTGRES
    Postgres {
        /// The command with its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Runs a command with a private Docker daemon that has runc and gVisor, whose address is in
    /// TOOLWHARF_TEST_DOCKER (as root)
    Docker {
        /// The command with its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Runs a command with the binary of the version before, built from its commit, in TOOLWHARF_TEST_BEFORE
    Before {
        /// The command with its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Runs a command with a private Kubernetes cluster of one node, with gVisor, whose kubeconfig is in
    /// TOOLWHARF_TEST_KUBERNETES and KUBECONFIG (as root). The first run builds Kubernetes, which takes some minutes
    Kubernetes {
        /// Only the API server, which needs no root: beside other clusters, in TOOLWHARF_TEST_KUBERNETES_API and KUBECONFIG
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
    /// Builds Toolwharf and serves two MCP servers with it: ours that rolls dice, and a
    /// third party's through uvx or npx
    Demo {
        /// Call a tool of each server, print the answers and stop
        #[arg(long)]
        exit_after_check: bool,
        /// Where to listen
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6280")]
        listen: std::net::SocketAddr,
    },
    /// Builds and runs the recipe vault (examples/recipe-vault): a chat page, an agent and the tools that it uses
    Recipes {
        /// Build for speed and small size, which takes some minutes more
        #[arg(long)]
        release: bool,
        /// Where to listen
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6280")]
        listen: std::net::SocketAddr,
        /// A copy of `examples/recipe-vault` instead, with files of your own
        #[arg(long, value_name = "DIR")]
        example: Option<std::path::PathBuf>,
    },
    /// Builds the release binaries and runs the benchmarks
    Bench {
        /// Arguments for the `bench` binary
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Builds the release binaries, and kills, hangs and starves hosted servers at random for ten
    /// minutes while clients call them (as root)
    Chaos {
        /// Arguments for `bench chaos`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        // Without the backtrace that `RUST_BACKTRACE` would add: it would hide what to do.
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
        Command::Soak {
            part: Some(part), ..
        } if part == "swarm" => return checks::soak_swarm(&workspace),
        Command::Soak { part: Some(_), .. } => return checks::soak_kubernetes(&workspace),
        Command::Soak { nextest, .. } => return checks::soak(&workspace, &nextest),
        Command::Postgres { command } => {
            let (program, args) = command.split_first().expect("clap requires one");
            return postgres::run(Cmd::new(program).args(args));
        }
        Command::Docker { command } => {
            let (program, args) = command.split_first().expect("clap requires one");
            return docker::run(&workspace, Cmd::new(program).args(args));
        }
        Command::Kubernetes {
            control_plane,
            command,
        } => {
            let (program, args) = command.split_first().expect("clap requires one");
            let parts = match control_plane {
                true => kubernetes::Parts::ControlPlane,
                false => kubernetes::Parts::All,
            };
            return kubernetes::run(&workspace, parts, Cmd::new(program).args(args));
        }
        Command::Swarm { command } => {
            let (program, args) = command.split_first().expect("clap requires one");
            return swarm::run(&workspace, Cmd::new(program).args(args));
        }
        Command::Before { command } => {
            let (program, args) = command.split_first().expect("clap requires one");
            before::run(&workspace, Cmd::new(program).args(args))
        }
        Command::Setup => setup::run(&workspace),
        Command::Check => checks::check(&workspace),
        Command::Graph => checks::structure(&workspace),
        Command::Web { check: false } => web::build(&workspace),
        Command::Web { check: true } => web::check(&workspace),
        Command::Demo {
            exit_after_check,
            listen,
        } => demo::run(
            &workspace,
            &demo::Options {
                exit_after_check,
                listen,
            },
        ),
        Command::Recipes {
            release,
            listen,
            example,
        } => recipes::run(&workspace, release, listen, example),
        Command::Bench { args } => checks::bench(&workspace, &args),
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
