//! The command line.
//!
//! Invariants:
//! - Data goes to stdout, messages for people to stderr.
//! - Exit codes are 0 (success), 1 (failure), 2 (wrong usage) and 130 (Ctrl-C ended a chat turn).
//! - No secret is printed.
//! - Commands that show or change servers use the REST API of a running gateway. Without one, those that only need the
//!   files work on the files, with the same code.

/// Prints a message for people to standard error. Its commands repeat the gateway that the user named ([`advice`]).
macro_rules! eprintln {
    () => {
        ::std::eprintln!()
    };
    ($($text:tt)*) => {
        ::std::eprintln!("{}", $crate::cli::advice::complete(&::std::format!($($text)*)))
    };
}

mod add;
mod advice;
mod approvals;
mod arguments;
mod attention;
mod backup;
mod call;
mod calls;
mod chat;
mod clashes;
mod clients;
mod conversations;
mod doctor;
mod files;
mod health;
mod help;
mod here;
mod http;
mod import;
mod init;
mod install;
mod keys;
mod kubernetes;
mod login;
mod logs;
mod manual;
mod names;
mod open;
mod overview;
mod pages;
mod print;
mod products;
mod projects;
mod prompt;
mod reach;
mod replicas;
mod request;
mod runs;
mod screen;
mod search;
mod secrets;
mod servers;
mod service;
mod shown;
mod suggest;
mod tool_lookup;
mod tool_settings;
mod tools;
mod top;
mod update;
mod upgrade;
mod values;

use std::{io::IsTerminal as _, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand, ValueEnum};

use self::reach::Reach;
use crate::{serve, stdio};

/// One endpoint for many MCP servers.
#[derive(Parser)]
#[command(name = "toolwharf", version, about)]
struct Cli {
    /// Server files (mcp.json) and settings (.toml). May be given several times.
    #[arg(long, short, global = true, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// The format of data on standard output.
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
    // Without a command, a terminal shows what is on this machine.
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway over HTTP.
    Serve(serve::Args),
    /// Run MCP on standard input and output, for clients that start commands. Connects to the running gateway, if any.
    Stdio(stdio::Args),
    /// Hand everything over from the running gateway to another version, without dropping connections.
    Upgrade(upgrade::Args),
    /// Create the first configuration: import servers, choose whether they run in a sandbox, start the gateway.
    Init(init::Args),
    /// Run the gateway as a systemd service of this user.
    #[command(subcommand)]
    Service(service::Command),
    /// Add a server: `add NAME -- COMMAND ARGS…` or `add NAME URL`.
    Add(Box<add::Args>),
    /// Add the servers of another file, or of a client such as `cursor`.
    Import(import::Args),
    /// Search for servers in registries.
    Search(search::Args),
    /// Install a server from a registry: try it in a sandbox, show its tools, and enable it.
    Install(Box<install::Args>),
    /// Connect an MCP client on this machine, such as `cursor`, or list the connected clients.
    Connect(Box<clients::ConnectArgs>),
    /// Undo `connect` and restore the client's file.
    Disconnect(clients::DisconnectArgs),
    /// List the servers and their states.
    #[command(alias = "list")]
    Ls(servers::ListArgs),
    /// Show one server.
    #[command(alias = "show")]
    Get(servers::NameArgs),
    /// Show one server, like `get`, or list all servers, like `ls`.
    Status(servers::StatusArgs),
    /// Remove a server.
    #[command(alias = "remove")]
    Rm(servers::RemoveArgs),
    /// Enable a server, or one of its tools (NAME/TOOL).
    Enable(servers::SwitchArgs),
    /// Disable a server, or one of its tools (NAME/TOOL).
    Disable(servers::SwitchArgs),
    /// Start a server that is stopped or waits for its next attempt.
    Start(servers::NameArgs),
    /// Stop a server until it is started again.
    Stop(servers::NameArgs),
    /// Restart a server.
    Restart(servers::NameArgs),
    /// Show what a server writes to standard error.
    Logs(logs::Args),
    /// Show the events of a server, newest first.
    Events(servers::EventsArgs),
    /// Send one request to a server, with native names: `call NAME tools/list`.
    Call(request::Args),
    /// Update servers to newer versions of their packages.
    Update(update::Args),
    /// Sign in to a server, or show the sign-ins.
    Login(login::Args),
    /// Sign out of a server.
    Logout(login::OutArgs),
    /// List and call tools.
    #[command(subcommand)]
    #[command(alias = "tool")]
    Tools(tools::Command),
    /// List the tools that wait for approval.
    #[command(subcommand)]
    Approvals(approvals::Command),
    /// Add, show and remove projects.
    #[command(subcommand)]
    #[command(alias = "projects")]
    Project(projects::Command),
    /// Set, list and remove secrets, for the servers of mcp.json or of a project.
    #[command(subcommand)]
    #[command(alias = "secrets")]
    Secret(secrets::Command),
    /// Install products into projects and remove them.
    #[command(subcommand)]
    #[command(alias = "products")]
    Product(products::Command),
    /// Create, list and revoke keys.
    #[command(subcommand)]
    #[command(alias = "keys")]
    Key(keys::Command),
    /// Sign a browser in to the running gateway and open it.
    Open(open::Args),
    /// Chat with the agent.
    Chat(chat::Args),
    /// List, show and remove conversations with the agent.
    #[command(subcommand)]
    #[command(alias = "conversations")]
    Conversation(conversations::Command),
    /// Show the records of tool calls, with caller and outcome.
    #[command(subcommand)]
    Calls(calls::Command),
    /// Show the records of agent runs, with outcome, tokens and calls.
    #[command(subcommand)]
    Runs(runs::Command),
    /// List the gateways that share the database.
    #[command(subcommand)]
    Replicas(replicas::Command),
    /// Print the definition of the Kubernetes resource `MCPServer`, or convert ToolHive's resources.
    #[command(subcommand)]
    Kubernetes(kubernetes::Command),
    /// Write the database and the configuration to one file, while the gateway runs or without one.
    Backup(backup::BackupArgs),
    /// Restore a file that `backup` wrote. The gateway must be stopped.
    Restore(backup::RestoreArgs),
    /// Check the configuration, this machine and the running gateway.
    Doctor,
    /// Check that the running gateway is ready, for the health checks of containers.
    Health,
    /// Print a completion script for a shell.
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages to a folder.
    Man {
        /// The folder. It is created if it does not exist.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Wait. Kubernetes runs this before it stops a pod, whose image has no `sleep`.
    #[command(hide = true)]
    Sleep {
        #[arg(value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=600))]
        seconds: u64,
    },
}

/// The state that all commands share.
struct Context {
    config: Vec<PathBuf>,
    output: Output,
    reach: Reach,
}

/// Wrong usage: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// A negative answer, such as an unhealthy `doctor`: exit code 1, without a message.
#[derive(Debug, thiserror::Error)]
#[error("the answer is no")]
struct No;

/// Ended by Ctrl-C: exit code 130, as in shells.
#[derive(Debug, thiserror::Error)]
#[error("cancelled")]
struct Cancelled;

pub(crate) fn main() -> ExitCode {
    names::complete();
    let words = std::env::args_os().collect();
    let is_terminal = std::io::stdout().is_terminal();
    let cli = add::parse(
        words,
        || help::command(is_terminal),
        |cli: &Cli| match &cli.command {
            Some(Command::Add(args)) => Some(args),
            _ => None,
        },
    );
    let cli = cli.unwrap_or_else(|error| error.exit());
    advice::remember(&cli.reach);
    if let Some(Command::Completions { shell }) = cli.command {
        let script = names::script(shell).and_then(|script| print::data(&script));
        return ended(script, cli.output);
    }
    if let Some(Command::Man { folder }) = &cli.command {
        return ended(manual::write(folder), cli.output);
    }
    let is_server = matches!(cli.command, Some(Command::Serve(_) | Command::Stdio(_)));
    let mut builder = if is_server {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let output = cli.output;
    let outcome = runtime.block_on(run(cli));
    // A blocking read of standard input must not keep the process alive.
    runtime.shutdown_background();
    ended(outcome, output)
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let context = Context {
        config: cli.config,
        output: cli.output,
        reach: cli.reach,
    };
    let done = match cli.command {
        Some(command) => dispatch(&context, command).await,
        None => overview::run(&context).await,
    };
    match done {
        Ok(()) => Ok(()),
        Err(error) => Err(suggest::completed(&context, error).await),
    }
}

async fn dispatch(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(mut args) => {
            args.overrides.data_dir.clone_from(&context.reach.data_dir);
            serve::serve(&context.config, args).await
        }
        Command::Stdio(mut args) => {
            args.overrides.data_dir.clone_from(&context.reach.data_dir);
            stdio::run(&context.config, args).await
        }
        Command::Upgrade(args) => upgrade::run(context, args).await,
        Command::Init(args) => init::run(context, args).await,
        Command::Service(command) => service::run(context, command).await,
        Command::Add(args) => add::run(context, *args).await,
        Command::Import(args) => import::run(context, args).await,
        Command::Search(args) => search::run(context, args).await,
        Command::Install(args) => install::run(context, *args).await,
        Command::Connect(args) => clients::connect(context, *args).await,
        Command::Disconnect(args) => clients::disconnect(context, args).await,
        Command::Ls(args) => servers::list(context, args).await,
        Command::Get(args) => servers::show(context, args).await,
        Command::Status(args) => servers::status(context, args).await,
        Command::Rm(args) => servers::remove(context, args).await,
        Command::Enable(args) => servers::switch(context, args, true).await,
        Command::Disable(args) => servers::switch(context, args, false).await,
        Command::Start(args) => servers::order(context, args, "start", "started").await,
        Command::Stop(args) => servers::order(context, args, "stop", "stopped").await,
        Command::Restart(args) => servers::order(context, args, "restart", "restarted").await,
        Command::Logs(args) => logs::run(context, args).await,
        Command::Events(args) => servers::events(context, args).await,
        Command::Call(args) => request::run(context, args).await,
        Command::Update(args) => update::run(context, args).await,
        Command::Login(args) => login::run(context, args).await,
        Command::Logout(args) => login::out(context, args).await,
        Command::Tools(command) => tools::run(context, command).await,
        Command::Approvals(command) => approvals::run(context, command).await,
        Command::Project(command) => projects::run(context, command).await,
        Command::Secret(command) => secrets::run(context, command).await,
        Command::Product(command) => products::run(context, command).await,
        Command::Key(command) => keys::run(context, command).await,
        Command::Open(args) => open::run(context, args).await,
        Command::Chat(args) => chat::run(context, args).await,
        Command::Conversation(command) => conversations::run(context, command).await,
        Command::Calls(command) => calls::run(context, command).await,
        Command::Runs(command) => runs::run(context, command).await,
        Command::Replicas(command) => replicas::run(context, command).await,
        Command::Kubernetes(command) => kubernetes::run(context, command),
        Command::Backup(args) => backup::back_up(context, args).await,
        Command::Restore(args) => backup::put_back(context, args).await,
        Command::Doctor => doctor::run(context).await,
        Command::Health => health::run(context).await,
        Command::Sleep { seconds } => {
            tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
            Ok(())
        }
        Command::Completions { .. } | Command::Man { .. } => Ok(()),
    }
}

fn ended(outcome: anyhow::Result<()>, output: Output) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    if error.is::<Cancelled>() {
        return ExitCode::from(130);
    }
    let text = model::with_causes(error.as_ref());
    match output {
        _ if error.is::<No>() => {}
        Output::Table => eprintln!("error: {}", print::printable(&text)),
        Output::Json => {
            let refused = error.downcast_ref::<http::Refused>();
            let status = refused.map(|refused| refused.status);
            let wrong = refused.map(|refused| refused.wrong.as_slice());
            let said = serde_json::json!({
                "error": advice::complete(&text), "status": status, "errors": wrong.unwrap_or_default(),
            });
            ::std::eprintln!("{said}");
        }
    }
    if error.is::<Usage>() {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }
}
