//! `toolwharf doctor` over the API. Runs `toolwharf doctor` as a child process, as a user would on a terminal.

use std::{process::Stdio, time::Duration};

use api::Report;
use axum::{Json, extract::State};
use tokio::process::Command;

use super::{AppState, Problem};

/// Time limit of the run. It contacts each sandbox provider, and a missing one may take several seconds to fail.
const DOCTOR_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn examine(State(rest): State<AppState>) -> Result<Json<Report>, Problem> {
    let Ok(_one) = rest.examining.try_acquire() else {
        return Err(Problem::new(
            503,
            "another check is already running; try again",
        ));
    };
    let failed = |why: String| Problem::new(500, format!("`toolwharf doctor` failed: {why}"));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut doctor = Command::new(program);
    doctor
        .args(["doctor", "--output", "json"])
        .args(rest.live.arguments())
        // The command finds this gateway by the data directory.
        .env_remove("TOOLWHARF_URL")
        .env_remove("TOOLWHARF_TOKEN")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = tokio::time::timeout(DOCTOR_TIMEOUT, doctor.output()).await;
    let output = match output {
        Ok(output) => output.map_err(|error| failed(error.to_string()))?,
        Err(_) => {
            return Err(failed(format!(
                "no result within {} s",
                DOCTOR_TIMEOUT.as_secs()
            )));
        }
    };
    serde_json::from_slice(&output.stdout)
        .map(Json)
        .map_err(|_| failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
