//! Shell completion of names, from the running gateway or else from the files. On any error, there are no completions.

use std::time::Duration;

use api::{Project, Tools};
use clap_complete::{CompletionCandidate, engine::ArgValueCandidates, env::Shells};
use model::ProjectId;

use super::{
    Cli, Context, Output,
    http::{Api, path},
    pages,
    reach::{Place, Reach},
    values,
};
use crate::cli::reach::all_servers;
use crate::cli::reach::load_config;

/// The variable with which shells request completions.
const COMPLETION_VARIABLE: &str = "TOOLWHARF_COMPLETE";
/// Time limit for completions.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(1);

/// Responds to a shell's completion request and exits. Does nothing otherwise.
pub(super) fn complete() {
    use clap::CommandFactory;
    clap_complete::CompleteEnv::with_factory(Cli::command)
        .var(COMPLETION_VARIABLE)
        .complete();
}

pub(super) fn script(shell: clap_complete::Shell) -> anyhow::Result<String> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string());
    let completer = completer.ok_or_else(|| anyhow::anyhow!("no completion script for {shell}"))?;
    let mut script = Vec::new();
    completer.write_registration(
        COMPLETION_VARIABLE,
        "toolwharf",
        "toolwharf",
        "toolwharf",
        &mut script,
    )?;
    Ok(String::from_utf8(script)?)
}

pub(super) fn servers() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        candidates(async |place| match place {
            Place::Gateway(api) => {
                let all = all_servers(&api, None).await?;
                Ok(all.into_iter().map(|server| server.name).collect())
            }
            Place::Files(sources) => {
                let config = load_config(&sources)?;
                Ok(config
                    .servers
                    .iter()
                    .map(|spec| spec.name.to_string())
                    .collect())
            }
        })
    })
}

pub(super) fn tools() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        candidates(async |place| {
            let tools: Tools = gateway(place)?.get(&path(&["tools"])).await?;
            Ok(tools
                .tools
                .into_iter()
                .filter(|tool| tool.offered)
                .map(|tool| tool.name)
                .collect())
        })
    })
}

pub(super) fn projects() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        candidates(async |place| {
            let api = gateway(place)?;
            let all = pages::all::<Project>(&api, &path(&["projects"]), &()).await?;
            Ok(all.rows.into_iter().map(|project| project.id).collect())
        })
    })
}

fn gateway(place: Place) -> anyhow::Result<Api> {
    match place {
        Place::Gateway(api) => Ok(api),
        Place::Files(_) => anyhow::bail!("no gateway is running"),
    }
}

fn candidates(
    names: impl AsyncFnOnce(Place) -> anyhow::Result<Vec<String>>,
) -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return Vec::new();
    };
    let found = runtime.block_on(async {
        let context = Context {
            config: Vec::new(),
            output: Output::Table,
            reach: Reach {
                url: std::env::var("TOOLWHARF_URL").ok(),
                ..Reach::default()
            },
        };
        let found = async { names(context.place().await?).await };
        tokio::time::timeout(COMPLETION_TIMEOUT, found).await
    });
    let mut found = found.ok().and_then(Result::ok).unwrap_or_default();
    found.sort();
    found.dedup();
    found.into_iter().map(CompletionCandidate::new).collect()
}

/// One element of a list.
#[derive(clap::Args)]
pub(super) struct Named {
    /// The id, as in `ls`.
    #[arg(value_parser = values::name)]
    pub(super) id: String,
    /// The project of the element. Optional for an administrator.
    #[arg(long, add = projects())]
    pub(super) project: Option<ProjectId>,
}
