//! Processes that do not follow the protocol.

use std::time::Duration;

use code::{End, FailureKind, Limits, Outcome, Request, run};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

use crate::ground::{answer, in_time, limits};

/// A run with a process that says `text`, and then reads until its input ends.
async fn against(text: &[u8], limits: &Limits) -> Outcome {
    let (ours, theirs) = duplex(4096);
    let (reader, writer) = tokio::io::split(ours);
    let text = text.to_vec();
    let process = async move {
        let (mut input, mut output) = tokio::io::split(theirs);
        let says = async {
            let _ = output.write_all(&text).await;
            let _ = output.flush().await;
        };
        let reads = async {
            let mut all = Vec::new();
            let _ = input.read_to_end(&mut all).await;
        };
        tokio::join!(says, reads);
    };
    let request = Request {
        code: "return 1".to_owned(),
        ..Request::default()
    };
    let run = run(reader, writer, request, limits, answer);
    let both = async {
        tokio::select! {
            outcome = run => outcome,
            () = process => panic!("the process ends only with its streams"),
        }
    };
    in_time(both).await
}

#[tokio::test]
async fn what_the_protocol_does_not_allow_ends_the_run() {
    let limits = Limits {
        calls: 3,
        calls_in_flight: 2,
        argument_bytes: 100,
        output_bytes: 1000,
        value_bytes: 100,
        ..limits()
    };
    let call = |id: u32, name: &str| {
        format!("{{\"call\":{{\"id\":{id},\"name\":\"{name}\",\"arguments\":{{}}}}}}\n")
    };
    let log = |size: usize| format!("{{\"log\":{{\"text\":\"{}\"}}}}\n", "x".repeat(size));
    let never = "other__never";
    for (text, expected, calls) in [
        ("hello\n".to_owned(), "unknown", 0),
        ("{}\n".to_owned(), "unknown", 0),
        ("{\"run\":{}}\n".to_owned(), "unknown", 0),
        ("{\"exec\":\"x\"}\n".to_owned(), "unknown", 0),
        ("[".repeat(10_000) + "\n", "unknown", 0),
        ("\u{0}\n".to_owned(), "unknown", 0),
        (
            "{\"done\":{\"value\":{\"json\":".to_owned() + "\n",
            "unknown",
            0,
        ),
        ("x".repeat(1 << 20), "too long", 0),
        (call(2, never), "not its turn", 0),
        (call(1, never) + &call(1, never), "not its turn", 1),
        (
            call(1, never) + &call(2, never) + &call(3, never),
            "too many calls",
            2,
        ),
        (call(1, &"x".repeat(5000)), "invalid arguments", 0),
        (
            "{\"call\":{\"id\":1,\"name\":\"x\",\"arguments\":[]}}\n".to_owned(),
            "invalid arguments",
            0,
        ),
        (
            format!(
                "{{\"call\":{{\"id\":1,\"name\":\"x\",\"arguments\":{{\"a\":\"{}\"}}}}}}\n",
                "x".repeat(100)
            ),
            "invalid arguments",
            0,
        ),
        (log(600) + &log(700), "too much output", 0),
        (log(0).repeat(2000), "too much output", 0),
        (
            format!(
                "{{\"done\":{{\"value\":{{\"json\":\"{}\"}}}}}}\n",
                "x".repeat(200)
            ),
            "too large",
            0,
        ),
    ] {
        let outcome = against(text.as_bytes(), &limits).await;
        match &outcome.end {
            End::Broken(why) => assert!(why.contains(expected), "{why}: {text:.200}"),
            other => panic!("{other:?}: {text:.200}"),
        }
        assert_eq!(outcome.calls, calls, "{text:.200}");
        assert!(outcome.output.len() < 2000);
    }
}

#[tokio::test]
async fn a_failure_is_cut() {
    let long = "x".repeat(100_000);
    let text = format!(
        "{{\"failed\":{{\"kind\":\"thrown\",\"message\":\"{long}\",\"line\":1,\"column\":1,\"stack\":\"{long}\"}}}}\n"
    );
    match against(text.as_bytes(), &limits()).await.end {
        End::Failed(failure) => assert!(failure.message.len() + failure.stack.len() < 40_000),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_process_that_says_nothing_is_late() {
    let limits = Limits {
        wall: Duration::from_millis(10),
        ..limits()
    };
    for text in [
        "",
        "{\"call\":",
        "{\"call\":{\"id\":1,\"name\":\"other__never\",\"arguments\":{}}}\n",
    ] {
        match against(text.as_bytes(), &limits).await.end {
            End::Failed(failure) => assert_eq!(failure.kind, FailureKind::Time, "{text}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_process_that_ends_early_breaks_the_run() {
    let (reader, mut writer) = (tokio::io::empty(), tokio::io::sink());
    let request = Request::default();
    let outcome = run(reader, &mut writer, request, &limits(), answer).await;
    assert!(
        matches!(&outcome.end, End::Broken(why) if why.contains("ended early")),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_process_that_does_not_read_cannot_stop_the_gateway() {
    // The duplex holds less than the code, and its other end is not read.
    let (ours, theirs) = duplex(1000);
    let (reader, writer) = tokio::io::split(ours);
    let (_unread, mut output) = tokio::io::split(theirs);
    output
        .write_all(b"{\"done\":{\"value\":\"undefined\"}}\n")
        .await
        .unwrap();
    let request = Request {
        code: " ".repeat(10_000),
        ..Request::default()
    };
    let outcome = in_time(run(reader, writer, request, &limits(), answer)).await;
    assert!(matches!(outcome.end, End::Returned(_)), "{outcome:?}");
}
