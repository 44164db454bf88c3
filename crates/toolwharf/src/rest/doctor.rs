//! Findings of `toolwharf doctor` for people who are not at a terminal: this binary is run once more, as it would be there.

use std::{process::Stdio, time::Duration};

use api::Report;
use axum::{Json, extract::State};
use tokio::process::Command;

use super::{AppState, Problem};

/// It asks what servers run on, each of which may take some seconds to say that it is not there.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn examine(State(rest): State<AppState>) -> Result<Json<Report>, Problem> {
    let Ok(_one) = rest.examining.try_acquire() else {
        return Err(Problem::new(
            503,
            "somebody is having this examined already; try again",
        ));
    };
    let failed =
        |why: String| Problem::new(500, format!("`toolwharf doctor` came to nothing: {why}"));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut doctor = Command::new(program);
    doctor
        .args(["doctor", "--output", "json"])
        .args(rest.live.arguments())
        // It is to find this gateway, by the data directory.
        .env_remove("TOOLWHARF_URL")
        .env_remove("TOOLWHARF_TOKEN")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, doctor.output()).await;
    let output = match output {
        Ok(output) => output.map_err(|error| failed(error.to_string()))?,
        Err(_) => {
            return Err(failed(format!(
                "it took longer than {} s",
                PATIENCE.as_secs()
            )));
        }
    };
    serde_json::from_slice(&output.stdout)
        .map(Json)
        .map_err(|_| failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
