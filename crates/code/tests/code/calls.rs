//! Calls of tools.

use std::cell::Cell;

use code::{Clock, End, FailureKind, Limits};

use crate::ground::{answer, failure, limits, returned, run_code, run_with, run_within, value};

#[tokio::test]
async fn tools_are_async_functions() {
    for (code, expected) in [
        (
            "return await servers.git_hub.echo({a: [1, 'x']})",
            r#"{"got":{"a":[1,"x"]}}"#,
        ),
        ("return await servers.git_hub.echo()", r#"{"got":{}}"#),
        (
            "return await call('git-hub__echo', {a: 1})",
            r#"{"got":{"a":1}}"#,
        ),
        ("return await servers['git_hub'].delete_()", r#""deleted""#),
        ("return await servers.git_hub.text()", r#""one\ntwo""#),
        (
            "return await servers.git_hub.image()",
            r#"{"content":[{"type":"image","data":"AA=="}]}"#,
        ),
        (
            "try { await servers.git_hub.fail() } catch (e) { return [e instanceof Error, e.message, e.tool, e.result.isError] }",
            r#"[true,"no such repository","git-hub__fail",true]"#,
        ),
        (
            "try { await call('nope') } catch (e) { return e.message }",
            r#""unknown tool `nope`""#,
        ),
        (
            "return await servers.git_hub.echo([]).catch(e => e.message)",
            r#""git-hub__echo: pass the arguments as one object""#,
        ),
        (
            "return await servers.git_hub.echo({a: 1n}).catch(e => e.message.slice(0, 54))",
            r#""git-hub__echo: the arguments cannot be written as JSON""#,
        ),
        (
            "const a = {}; a.a = a; return await servers.git_hub.echo(a).catch(e => e instanceof Error)",
            "true",
        ),
        (
            "return await servers.git_hub.echo({toJSON() { return 'x' }}).catch(e => e.message)",
            r#""git-hub__echo: pass the arguments as one object""#,
        ),
        (
            "return await call(7).catch(e => e.message)",
            r#""the name of a tool must be a string""#,
        ),
        (
            "return await servers.git_hub.echo({a: '\\ud800'})",
            r#"{"got":{"a":"\ud800"}}"#,
        ),
        (
            "return Object.keys(servers.git_hub)",
            r#"["delete_","echo","fail","image","slow","text"]"#,
        ),
        (
            "return (await Promise.all([1, 2, 3].map(n => servers.git_hub.echo({n})))).map(r => r.got.n)",
            "[1,2,3]",
        ),
        (
            "return [await servers, await servers.git_hub].map(s => typeof s)",
            r#"["object","object"]"#,
        ),
        (
            "const { echo } = servers.git_hub; return (await echo({a: 1})).got.a",
            "1",
        ),
    ] {
        assert_eq!(returned(code).await, expected, "{code}");
    }
}

#[tokio::test]
async fn a_failed_call_has_the_line_of_the_call() {
    let found =
        failure("const a = 1;\nasync function f() {\n  await servers.git_hub.fail() }\nawait f()")
            .await;
    assert_eq!(
        (found.kind, found.line),
        (FailureKind::Thrown, Some(3)),
        "{found:?}"
    );
    assert_eq!(found.message, "Error: no such repository");
}

#[tokio::test]
async fn calls_run_at_the_same_time_within_the_limit() {
    let (now, most) = (Cell::new(0_u32), Cell::new(0));
    let limits = Limits {
        calls_in_flight: 3,
        ..limits()
    };
    let code =
        "await Promise.all(Array.from({length: 10}, () => servers.git_hub.slow())); return 1";
    let outcome = run_with(code, &limits, Clock::default(), |call| {
        let (now, most) = (&now, &most);
        now.set(now.get() + 1);
        most.set(most.get().max(now.get()));
        async move {
            let answer = answer(call).await;
            now.set(now.get() - 1);
            answer
        }
    })
    .await;
    assert_eq!((outcome.calls, most.get()), (10, 3));
    assert_eq!(value(outcome, ""), "1");
}

#[tokio::test]
async fn calls_that_nobody_waits_for_are_finished() {
    let outcome = run_code("servers.git_hub.slow(); servers.git_hub.fail(); return 1").await;
    assert_eq!(
        (outcome.calls, outcome.output.as_str()),
        (2, "not handled: Error: no such repository (line 1)\n")
    );
    assert_eq!(value(outcome, ""), "1");
}

#[tokio::test]
async fn a_rejection_that_is_handled_later_is_not_reported() {
    let outcome = run_code(
        "const p = servers.git_hub.fail(); await servers.git_hub.slow(); return await p.catch(e => e.message)",
    )
    .await;
    assert_eq!(outcome.output, "");
    assert_eq!(value(outcome, ""), r#""no such repository""#);
}

#[tokio::test]
async fn a_failure_ends_the_calls_that_run() {
    let outcome = run_code("servers.other.never(); throw new Error('x')").await;
    assert_eq!(outcome.calls, 1);
    assert!(matches!(outcome.end, End::Failed(_)), "{outcome:?}");
}

#[tokio::test]
async fn large_arguments_and_results_are_errors_in_the_code() {
    let limits = Limits {
        argument_bytes: 1000,
        result_bytes: 1500,
        ..limits()
    };
    for (code, expected) in [
        (
            "return await servers.git_hub.echo({a: 'x'.repeat(900)}).then(r => r.got.a.length)",
            "900",
        ),
        (
            "return await servers.git_hub.echo({a: 'x'.repeat(2000)}).catch(e => e.message)",
            r#""git-hub__echo: the arguments are longer than 1000 bytes""#,
        ),
        (
            "return await servers.git_hub.echo({a: 'ö'.repeat(600)}).catch(e => e.message.includes('too long'))",
            "true",
        ),
        (
            "return await call('x'.repeat(2000)).catch(e => e.message.includes('too long'))",
            "true",
        ),
    ] {
        assert_eq!(
            value(run_within(code, &limits).await, code),
            expected,
            "{code}"
        );
    }
    let limits = Limits {
        result_bytes: 100,
        ..limits
    };
    let code = "return await servers.git_hub.echo({a: 'x'.repeat(200)}).catch(e => e.message.includes('at most 100'))";
    assert_eq!(value(run_within(code, &limits).await, code), "true");
}
