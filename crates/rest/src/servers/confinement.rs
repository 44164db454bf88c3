//! The route that lists the losses of a server if it is put in a sandbox.

use api::{Confinement, Loss};
use axum::{Extension, Json, extract::State};
use model::{Launch, Place, Sandbox};
use runtime::sandbox::{self, LossKind, preview};
use serde_json::{Value, json};

use super::{Source, Target, told::visible};
use crate::{
    AppState, Problem,
    access::{Who, permit},
};
use auth::Role;
use backend::startup;

pub(crate) async fn confinement(
    State(rest): State<AppState>,
    Extension(who): Who,
    target: Target,
) -> Result<Json<Confinement>, Problem> {
    // The response contains parts of the entry, so it needs the same role.
    match &target.home {
        Source::Project(_) => {}
        Source::Registered(_) => permit(&who, Role::Admin, target.key.owner.as_ref())?,
        Source::File => permit(&who, Role::Admin, None)?,
    }
    rest.taken_in(&target).await?;
    let server = target.live(&rest.gateway.fleet());
    let launch = server.and_then(|server| server.spec.launch().cloned());
    let Some(launch) = launch else {
        let name = &target.key.name;
        let why = format!(
            "server `{name}` is not launched by this gateway, so it cannot be put in a sandbox"
        );
        return Err(Problem::new(409, why));
    };
    let settings = rest.gateway.settings();
    let told = rest.live.read(move |sources, _| {
        let own = config::data_dir(&settings, &startup::env)
            .map(|dir| startup::own_files(sources, &dir))
            .unwrap_or_default();
        told(&launch, &own)
    });
    Ok(Json(told.await))
}

fn told(launch: &Launch, own: &sandbox::Own) -> Confinement {
    let losses: Vec<Loss> = sandbox::losses(launch)
        .into_iter()
        .map(|loss| Loss {
            keep: kept(&loss.kind),
            what: loss.what,
            remedy: loss.remedy.map(str::to_owned),
        })
        .collect();
    let mut told = Confinement {
        losses,
        refused: Vec::new(),
        files: Vec::new(),
        files_missing: Vec::new(),
    };
    if told.losses.is_empty() {
        return told;
    }
    let mut confined = launch.clone();
    confined.place = Place::Sandbox(Sandbox::new("preview"));
    confined.cwd = None;
    match preview(&confined, own) {
        Ok(Some(files)) => {
            told.files = files.visible.iter().map(visible).collect();
            let missing = files.missing.iter();
            told.files_missing = missing.map(|path| path.display().to_string()).collect();
        }
        Ok(None) => {}
        Err(error) => told.refused.push(error.to_string()),
    }
    told
}

/// Returns the keys of an entry that restore a loss.
fn kept(kind: &LossKind) -> Option<Value> {
    match kind {
        LossKind::Network => Some(json!({ "network": "open" })),
        // In a sandbox, this is a link to its own /tmp.
        LossKind::Path(path) if path.starts_with("/var/tmp") => None,
        LossKind::Path(path) => {
            let path = path.to_str()?;
            Some(json!({ "mounts": [{ "host": path, "path": path, "read_only": false }] }))
        }
        LossKind::OtherPaths | LossKind::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use model::Program;

    use super::*;

    #[test]
    fn what_a_server_would_lose_is_listed_with_the_keys_that_keep_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let program = Program::Command {
            program: "sh".to_owned(),
            args: vec![path.to_owned()],
        };
        let launch = Launch::new(program, Place::Host);
        let told = told(&launch, &sandbox::Own::default());
        let kept: Vec<_> = told
            .losses
            .iter()
            .map(|loss| (&*loss.what, loss.keep.clone()))
            .collect();
        let mount = json!({ "mounts": [{ "host": path, "path": path, "read_only": false }] });
        let writing = format!("writing to `{path}`");
        let expected = [
            ("the network", Some(json!({ "network": "open" }))),
            ("your home directory", None),
            (writing.as_str(), Some(mount)),
        ];
        assert_eq!(kept, expected);
        assert!(!told.files.is_empty() && told.files_missing.is_empty());
        assert_eq!(told.refused, Vec::<String>::new());
    }

    #[test]
    fn a_server_in_a_sandbox_has_nothing_to_lose() {
        let program = Program::Command {
            program: "sh".to_owned(),
            args: Vec::new(),
        };
        let launch = Launch::new(program, Place::Sandbox(Sandbox::new("one")));
        let told = told(&launch, &sandbox::Own::default());
        assert!(told.losses.is_empty() && told.files.is_empty());
    }
}
