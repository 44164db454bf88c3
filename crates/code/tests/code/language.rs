//! The language without tools, and the form in which values and errors are returned.

use code::FailureKind;

use crate::ground::{failure, returned, run_code};

#[tokio::test]
async fn values_come_back_as_json() {
    for (code, expected) in [
        ("return 1 + 1", "2"),
        ("", "undefined"),
        ("return", "undefined"),
        ("return null", "null"),
        ("return NaN", "null"),
        (
            "return await Promise.resolve([1, , 'x'])",
            r#"[1,null,"x"]"#,
        ),
        (
            "const a = {b: 1}; a.a = a; return a",
            r#"{"b":1,"a":"[circular]"}"#,
        ),
        ("const a = {b: 1}; return [a, a]", r#"[{"b":1},{"b":1}]"#),
        (
            "const a = [[]]; a[0].push(a); return a",
            r#"[["[circular]"]]"#,
        ),
        (
            "const m = new Map(); m.set('m', m); return m",
            r#"[["m","[circular]"]]"#,
        ),
        (
            "return {a: 10n ** 20n, s: Symbol('x'), f() {}}",
            r#"{"a":"100000000000000000000","s":"Symbol(x)","f":"[function f]"}"#,
        ),
        ("return 7n", r#""7""#),
        ("return () => 1", r#""[function ]""#),
        ("return new Set([1, 2])", "[1,2]"),
        ("return new Uint8Array([1, 2])", "[1,2]"),
        (
            "return new TypeError('x')",
            r#"{"name":"TypeError","message":"x"}"#,
        ),
        ("return new Date(0)", r#""1970-01-01T00:00:00.000Z""#),
        ("return new Proxy({a: 1}, {})", r#"{"a":1}"#),
        ("return '\\ud800'", r#""\ud800""#),
        ("return 'größe 搜索 \\u0000'", "\"größe 搜索 \\u0000\""),
        (
            "return {then(resolve) { resolve('thenable') }}",
            r#""thenable""#,
        ),
        (
            "return [typeof std, typeof os, typeof require, typeof process, typeof fetch, typeof Deno, typeof scriptArgs]",
            r#"["undefined","undefined","undefined","undefined","undefined","undefined","undefined"]"#,
        ),
        ("return 1 // a comment", "1"),
        (
            "let n = 0; setTimeout(() => { n = 2 }, 5); await new Promise(r => setTimeout(r, 10)); return n",
            "2",
        ),
        (
            "const t = setTimeout(() => console.log('no'), 1); clearTimeout(t); return await new Promise(r => setTimeout(r, 5, 'x'))",
            r#""x""#,
        ),
        ("setTimeout(() => {}, 1e9); return 1", "1"),
        (
            "const x: number = 1; interface A { b: string }\nreturn (x as number) + 1",
            "2",
        ),
        (
            "JSON.parse = JSON.stringify = Array.prototype.push = Promise.prototype.then = null; return await servers.git_hub.echo({a: 1})",
            r#"{"got":{"a":1}}"#,
        ),
    ] {
        assert_eq!(returned(code).await, expected, "{code}");
    }
}

#[tokio::test]
async fn whatever_is_thrown_is_a_failure_with_its_line() {
    for (code, message, line, column) in [
        ("throw new Error('x')", "Error: x", Some(1), Some(11)),
        (
            "\n  throw new RangeError('x')",
            "RangeError: x",
            Some(2),
            Some(13),
        ),
        (
            "\n\nfunction f() {\n  null.x }\nf()",
            "TypeError: ",
            Some(4),
            None,
        ),
        (
            "await null;\n\nundefinedName",
            "ReferenceError: undefinedName",
            Some(3),
            None,
        ),
        ("throw undefined", "not an Error: undefined", None, None),
        ("throw null", "not an Error: null", None, None),
        ("throw 'text'", "not an Error: text", None, None),
        ("throw 7n", "not an Error: 7n", None, None),
        ("throw {a: 1}", r#"not an Error: {"a":1}"#, None, None),
        (
            "throw new Proxy({}, {get() { throw 1 }, getPrototypeOf() { throw 2 }})",
            "cannot be shown",
            None,
            None,
        ),
        (
            "const e = new Error(); Object.defineProperty(e, 'message', {get() { throw 1 }}); throw e",
            "cannot be shown",
            None,
            None,
        ),
        (
            "await Promise.reject(new Error('later'))",
            "Error: later",
            Some(1),
            None,
        ),
        (
            "return {get a() { throw new Error('x') }}",
            "cannot be written as JSON: Error: x",
            None,
            None,
        ),
        (
            "return {toJSON() { throw 1 }}",
            "cannot be written as JSON",
            None,
            None,
        ),
        (
            "let a = []; for (let i = 0; i < 1e5; i++) a = [a]; return a",
            "cannot be written as JSON",
            None,
            None,
        ),
        (
            "const f = () => f(); f()",
            "Maximum call stack size exceeded",
            Some(1),
            None,
        ),
        ("await import('fs')", "", None, None),
        (
            "servers.git_hub.nope()",
            "servers.git_hub.nope does not exist; servers.git_hub has: delete_, echo",
            Some(1),
            None,
        ),
        (
            "servers.nope",
            "servers.nope does not exist; servers has: git_hub, other",
            Some(1),
            None,
        ),
    ] {
        let found = failure(code).await;
        assert_eq!(found.kind, FailureKind::Thrown, "{code}: {found:?}");
        assert!(found.message.contains(message), "{code}: {found:?}");
        if line.is_some() {
            assert_eq!(found.line, line, "{code}: {found:?}");
        }
        if column.is_some() {
            assert_eq!(found.column, column, "{code}: {found:?}");
        }
    }
}

#[tokio::test]
async fn syntax_errors_have_their_line() {
    for (code, message, line) in [
        ("let a = ;", "SyntaxError", 1),
        ("let a = 1;\nlet b = {;", "SyntaxError", 2),
        ("\nimport fs from 'fs'", "cannot import modules", 2),
        ("export const a = 1", "cannot export", 1),
        (
            "const a: string = 1;\nenum B { C }",
            "enum is not supported",
            2,
        ),
        ("return 1\u{0}", "Invalid Character", 1),
    ] {
        let found = failure(code).await;
        assert_eq!(found.kind, FailureKind::Syntax, "{code}: {found:?}");
        assert!(found.message.contains(message), "{code}: {found:?}");
        assert_eq!(found.line.unwrap_or_default(), line, "{code}: {found:?}");
    }
}

#[tokio::test]
async fn a_stack_has_the_lines_of_the_code_only() {
    let code = "function f() {\n  throw new Error('x') }\nasync function g() {\n  await null; f() }\nawait g()";
    let found = failure(code).await;
    let lines: Vec<_> = found.stack.lines().collect();
    assert!(lines[0].starts_with("at f (line 2, column "), "{found:?}");
    assert!(lines[1].starts_with("at g (line 4, column "), "{found:?}");
    assert!(!found.stack.contains("prelude"), "{found:?}");
}

#[tokio::test]
async fn console_output_comes_back_in_lines() {
    let code = "console.log('a', 1, {b: [2]}, null, undefined, 3n, new Error('e'), 'two\\nlines', '\\ud800');
        console.info(); console.warn('w'); console.error(Symbol('s'), () => 1, new Map([[1, 2]]));
        console.log(new Proxy({}, {get() { throw 1 }, ownKeys() { throw 2 }})); const c = {}; c.c = c; console.log(c)";
    let outcome = run_code(code).await;
    assert_eq!(
        outcome.output,
        "a 1 {\"b\":[2]} null undefined 3n Error: e two\nlines \u{fffd}\n\nw\nSymbol(s) [function ] [[1,2]]\n\
         [a value that cannot be shown]\n{\"c\":\"[circular]\"}\n"
    );
}
