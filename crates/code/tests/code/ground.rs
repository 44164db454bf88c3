//! Runs code in a process without a sandbox, and makes its calls.

use std::process::Stdio;
use std::time::Duration;

use code::{
    Call, Clock, Declared, End, Failure, Limits, Outcome, Request, ToolName, Value, identifiers,
    run,
};
use serde_json::value::RawValue;
use tokio::process::Command;

pub(crate) const VICTIM: &str = env!("CARGO_BIN_EXE_code-victim");
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Fails the test if the future takes too long.
pub(crate) async fn in_time<F: Future>(future: F) -> F::Output {
    let late = "something that should be quick took too long";
    tokio::time::timeout(TEST_TIMEOUT, future)
        .await
        .expect(late)
}

/// The tools of every test. `answer` says what they do.
pub(crate) fn tools() -> Vec<Declared> {
    let names = [
        ("git-hub", "echo"),
        ("git-hub", "fail"),
        ("git-hub", "text"),
        ("git-hub", "image"),
        ("git-hub", "slow"),
        ("git-hub", "delete"),
        ("other", "never"),
    ];
    let names = names.map(|(server, native)| ToolName {
        server: server.to_owned(),
        native: native.to_owned(),
        exposed: format!("{server}__{native}"),
    });
    identifiers(&names)
}

pub(crate) fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

/// What the tools do.
pub(crate) async fn answer(call: Call) -> Result<Box<RawValue>, String> {
    let arguments = call.arguments.get().to_owned();
    let text = |text: &str| {
        let text = serde_json::to_string(text).unwrap();
        raw(&format!(
            r#"{{"content":[{{"type":"text","text":{text}}}]}}"#
        ))
    };
    match call.name.as_str() {
        "git-hub__echo" => Ok(raw(&format!(
            "{{\"content\":[],\n\"structuredContent\":{{\"got\":{arguments}}}}}"
        ))),
        "git-hub__delete" => Ok(raw(r#"{"content":[],"structuredContent":"deleted"}"#)),
        "git-hub__fail" => Ok(raw(
            r#"{"content":[{"type":"text","text":"no such repository"}],"isError":true}"#,
        )),
        "git-hub__text" => Ok(text("one\ntwo")),
        "git-hub__image" => Ok(raw(r#"{"content":[{"type":"image","data":"AA=="}]}"#)),
        "git-hub__slow" => {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(text("done"))
        }
        "other__never" => std::future::pending().await,
        name => Err(format!("unknown tool `{name}`")),
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        wall: Duration::from_secs(30),
        cpu: Duration::from_secs(10),
        ..Limits::default()
    }
}

/// Runs code with these limits.
pub(crate) async fn run_within(code: &str, limits: &Limits) -> Outcome {
    run_with(code, limits, Clock::default(), answer).await
}

/// Runs code with this clock, and makes its calls with `call`.
pub(crate) async fn run_with<F>(
    code: &str,
    limits: &Limits,
    clock: Clock,
    call: impl FnMut(Call) -> F,
) -> Outcome
where
    F: Future<Output = Result<Box<RawValue>, String>>,
{
    let mut child = Command::new(VICTIM)
        .arg(code::child::ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let request = Request {
        code: code.to_owned(),
        tools: tools(),
        clock,
    };
    let outcome = in_time(run(stdout, stdin, request, limits, call)).await;
    if !matches!(outcome.end, End::Broken(_)) {
        let _ = child.kill().await;
    }
    outcome
}

pub(crate) async fn run_code(code: &str) -> Outcome {
    run_within(code, &limits()).await
}

/// The JSON text of the value that the code returned.
pub(crate) async fn returned(code: &str) -> String {
    value(run_code(code).await, code)
}

pub(crate) fn value(outcome: Outcome, code: &str) -> String {
    match outcome.end {
        End::Returned(Value::Json(json)) => json.get().to_owned(),
        End::Returned(Value::Undefined) => "undefined".to_owned(),
        other => panic!("{other:?} of {code}"),
    }
}

pub(crate) async fn failure(code: &str) -> Failure {
    failure_within(code, &limits()).await
}

pub(crate) async fn failure_within(code: &str, limits: &Limits) -> Failure {
    match run_within(code, limits).await.end {
        End::Failed(failure) => failure,
        other => panic!("{other:?} of {code}"),
    }
}
