//! Code that does not want to end, or wants too much.

use std::time::Duration;

use code::{Call, Clock, End, FailureKind, Limits, Value};
use futures_util::future::join_all;

use crate::ground::{answer, failure_within, limits, run_with, run_within, value};

fn short() -> Limits {
    Limits {
        wall: Duration::from_secs(50),
        cpu: Duration::from_millis(300),
        memory: 16 << 20,
        ..limits()
    }
}

#[tokio::test]
async fn loops_are_interrupted_whatever_they_catch() {
    for (code, line) in [
        // QuickJS knows the place before a loop, and the places of calls.
        ("const spin = () => { for (;;) Math.sqrt(2) };\n\nspin()", 3),
        ("while (true);", 0),
        (
            "\n\nfor (;;) { try { for (;;) Math.sqrt(2) } catch {} finally { for (;;) Math.sqrt(2) } }",
            0,
        ),
        (
            "const f = async () => { for (;;) await null }; await f()",
            0,
        ),
        ("await null;\nwhile (true) Math.sqrt(2);", 0),
        (
            "const again = () => { try { while (true); } finally { again() } }; again()",
            0,
        ),
        (
            "Promise.resolve().then(() => { while (true); }).catch(() => { while (true); }); await new Promise(() => {})",
            0,
        ),
        (
            "function* g() { try { yield 1 } finally { while (true); } }; for (const x of g()) break",
            0,
        ),
        ("return {get a() { while (true); }}", 0),
        ("return {toJSON() { while (true); }}", 0),
        ("throw {get a() { while (true); }}", 0),
        ("console.log({get a() { while (true); }})", 0),
        ("/(a+)+$/.test('a'.repeat(40) + 'b')", 0),
        (
            "setTimeout(() => { while (true); }, 1); await new Promise(() => {})",
            0,
        ),
        (
            "Error.prepareStackTrace = () => { while (true); }; while (true);",
            0,
        ),
        (
            "Object.defineProperty(Object.prototype, 'then', {get() { while (true); }}); return {}",
            0,
        ),
    ] {
        let found = failure_within(code, &short()).await;
        assert_eq!(found.kind, FailureKind::Time, "{code}: {found:?}");
        assert!(
            found.message.contains("0.3 s of processor time"),
            "{code}: {found:?}"
        );
        let at = format!("at the code (line {line}, ");
        assert!(line == 0 || found.stack.contains(&at), "{code}: {found:?}");
    }
}

#[tokio::test]
async fn waiting_is_bounded() {
    let limits = Limits {
        wall: Duration::from_millis(200),
        ..limits()
    };
    for code in [
        "await servers.other.never()",
        "await new Promise(r => setTimeout(r, 1e9))",
        "servers.other.never(); return 1",
    ] {
        let found = failure_within(code, &limits).await;
        assert_eq!(found.kind, FailureKind::Time, "{code}: {found:?}");
        assert_eq!(found.message, "the run took longer than 0.2 s", "{code}");
    }
    let found = failure_within("await new Promise(() => {})", &limits).await;
    assert_eq!(found.kind, FailureKind::Stalled, "{found:?}");
}

/// The time in which a call waits for a person does not count, neither in the gateway nor in the process. The time before
/// and after it does, and there is a limit on all of it.
#[tokio::test]
async fn time_in_which_the_clock_stands_still_does_not_count() {
    let limits = Limits {
        wall: Duration::from_millis(1500),
        ..limits()
    };
    let short = Limits {
        total: Duration::from_millis(1800),
        ..limits
    };
    let late = |seconds: &str| Err(format!("the run took longer than {seconds} s"));
    let cases = [
        (
            "await servers.git_hub.slow(); return await servers.git_hub.slow()",
            &limits,
            Ok("\"done\"".to_owned()),
        ),
        (
            "await servers.git_hub.slow(); await servers.other.never()",
            &limits,
            late("1.5"),
        ),
        ("await servers.git_hub.slow()", &short, late("1.8")),
    ];
    let cases = cases.map(async |(code, limits, expected)| {
        let clock = Clock::default();
        let call = |call: Call| {
            let pause = (call.name == "git-hub__slow").then(|| clock.pause());
            async move {
                if pause.is_some() {
                    tokio::time::sleep(Duration::from_millis(2500)).await;
                }
                answer(call).await
            }
        };
        let found = match run_with(code, limits, clock.clone(), call).await.end {
            End::Returned(Value::Json(json)) => Ok(json.get().to_owned()),
            End::Failed(failure) => Err(failure.message),
            other => panic!("{other:?} of {code}"),
        };
        assert_eq!(found, expected, "{code}");
    });
    join_all(cases).await;
}

#[tokio::test]
async fn memory_is_bounded() {
    for code in [
        "const a = []; for (;;) a.push(new Array(1000).fill(0))",
        "let s = 'x'; for (;;) s += s",
        "const a = []; for (;;) a.push({})",
        "const a = []; for (;;) { try { for (;;) a.push(new Uint8Array(1 << 20)) } catch { throw new Error('caught') } }",
        "await null; const a = []; for (;;) a.push('x'.repeat(1000) + a.length)",
        "new Uint8Array(1 << 30)",
    ] {
        let limits = Limits {
            cpu: Duration::from_secs(10),
            ..short()
        };
        let found = run_within(code, &limits).await;
        match found.end {
            End::Failed(failure) => {
                let is_caught = failure.message == "Error: caught"
                    || failure.message.contains("invalid array buffer length")
                    || failure.message.contains("string too long");
                assert!(
                    failure.kind == FailureKind::Memory || is_caught,
                    "{code}: {failure:?}"
                );
            }
            other => panic!("{code}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn ten_thousand_calls_are_too_many() {
    let limits = Limits {
        calls: 100,
        ..limits()
    };
    let code = "let failed = 0, message; for (let n = 0; n < 10000; n++) {
        try { await servers.git_hub.echo({n}) } catch (e) { failed++; message = e.message } }
        return [failed, message]";
    let outcome = run_within(code, &limits).await;
    assert_eq!(outcome.calls, 100);
    assert_eq!(
        value(outcome, code),
        r#"[9900,"a run can make at most 100 calls"]"#
    );
    let code = "return (await Promise.allSettled(Array.from({length: 10000}, (_, n) => servers.git_hub.echo({n}))))
        .filter(one => one.status === 'rejected').length";
    let outcome = run_within(code, &limits).await;
    assert_eq!(outcome.calls, 100);
    assert_eq!(value(outcome, code), "9900");
}

#[tokio::test]
async fn floods_of_output_are_cut_with_a_note() {
    let limits = Limits {
        output_bytes: 1000,
        value_bytes: 100,
        ..limits()
    };
    for code in [
        "for (let n = 0; n < 100000; n++) console.log('line', n)",
        "console.log('ö'.repeat(100000))",
        "for (let n = 0; n < 100000; n++) console.log()",
        "for (let n = 0; n < 2000; n++) console.log('\\u0000')",
    ] {
        let outcome = run_within(code, &limits).await;
        assert!(
            outcome.output.len() < 1100,
            "{code}: {}",
            outcome.output.len()
        );
        assert!(
            outcome
                .output
                .ends_with("\n[the output is longer than 1000 bytes; the rest is cut]\n"),
            "{}",
            outcome.output
        );
        assert_eq!(value(outcome, code), "undefined");
    }
    let outcome = run_within("return 'ö'.repeat(1000)", &limits).await;
    let End::Returned(Value::Cut { text, bytes }) = outcome.end else {
        panic!("{outcome:?}");
    };
    assert_eq!((text.len(), bytes), (99, 2002));
}

#[tokio::test]
async fn code_that_is_too_long_is_not_run() {
    let limits = Limits {
        code_bytes: 100,
        ..limits()
    };
    let found = failure_within(&"x".repeat(101), &limits).await;
    assert_eq!(found.message, "the code is longer than 100 bytes");
}
