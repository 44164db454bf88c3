//! TypeScript in the code: types are replaced by blanks, so that all other code keeps its place.
//!
//! Only code that is not JavaScript comes here. Syntax that has an effect at run time (`enum`, `namespace`, parameter
//! properties, decorators) is an error.

mod blank;

use oxc_allocator::Allocator;
use oxc_ast_visit::Visit as _;
use oxc_parser::{ParseOptions, Parser};
use oxc_span::SourceType;

use self::blank::Blanker;
use crate::outcome::{Failure, FailureKind};

/// Replaces the types in the body of an async function.
///
/// # Errors
/// The code is no TypeScript either, or cannot run without a compiler.
pub(super) fn strip(code: &str) -> Result<String, Failure> {
    let allocator = Allocator::default();
    let options = ParseOptions {
        allow_return_outside_function: true,
        ..ParseOptions::default()
    };
    let parsed = Parser::new(&allocator, code, SourceType::ts())
        .with_options(options)
        .parse();
    if let Some(error) = parsed.diagnostics.first() {
        let at = error.labels.first().map_or(0, |label| label.offset());
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        return Err(failure(
            code,
            at,
            &format!("SyntaxError: {}", error.message),
        ));
    }
    let mut blanker = Blanker::new(code);
    blanker.visit_program(&parsed.program);
    match blanker.finish() {
        Ok(stripped) => Ok(stripped),
        Err((at, what)) => Err(failure(code, at, &what)),
    }
}

fn failure(code: &str, at: usize, message: &str) -> Failure {
    let before = &code[..code.floor_char_boundary(at)];
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    Failure {
        line: u32::try_from(line).ok(),
        column: u32::try_from(column).ok(),
        ..Failure::new(FailureKind::Syntax, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_become_blanks() {
        for (code, expected) in [
            ("let x: string = 1", "let x         = 1"),
            ("let x!: A<B>;", "let x       ;"),
            ("f<string>(x)", "f        (x)"),
            ("new Map<string, number>()", "new Map                ()"),
            ("x as any", "x       "),
            ("(x as A | B).y", "(x         ).y"),
            ("x satisfies A", "x            "),
            ("x!.y!", "x .y "),
            ("const y = <any>x", "const y =      x"),
            (
                "function f<T>(a?: T, ...b: T[]): a is T {}",
                "function f   (a    , ...b     )         {}",
            ),
            (
                "function f(this: A, b: B) {}",
                "function f(         b   ) {}",
            ),
            (
                "function f(a: A): B;\nfunction f(a) {}",
                ";                   \nfunction f(a) {}",
            ),
            (
                "const f = async <T,>(x: T): Promise<T> => x",
                "const f = async     (x   )             => x",
            ),
            (
                "const f = (x): {\n a: string\n} => x",
                "const f = (x    \n          \n) => x",
            ),
            ("interface A { b: C }\nf()", ";                   \nf()"),
            ("type A = B | {\n c: D }", ";             \n       "),
            ("declare const a: string;\nb", ";                       \nb"),
            (
                "import type { A } from 'a'\nb",
                ";                         \nb",
            ),
            (
                "try {} catch (e: unknown) {}",
                "try {} catch (e         ) {}",
            ),
            ("const a = b as C\n(d)", "const a = b ;   \n(d)"),
            ("const a = b as C\n;(d)", "const a = b     \n;(d)"),
            (
                "for (const a of b as C[]) {}",
                "for (const a of b       ) {}",
            ),
            (
                "abstract class A<T> extends B<T> implements C, D<T> {\n  private readonly x?: T = 1\n  abstract y(): void\n  \
                 public static async z<U>(): Promise<U> {}\n  [k: string]: any\n  declare w: T\n}",
                "         class A    extends B                       {\n  ;                x     = 1\n  ;                 \n  \
                 ;      static async z   ()             {}\n  ;               \n  ;           \n}",
            ),
            ("`${x as string}`", "`${x          }`"),
            ("const { a }: { a: A } = b", "const { a }           = b"),
            ("return x as A", "return x     "),
        ] {
            let stripped = strip(code).unwrap();
            assert_eq!(stripped, expected, "{code}");
            assert_eq!(stripped.len(), code.len());
        }
    }

    #[test]
    fn what_needs_a_compiler_is_an_error() {
        for (code, what, line) in [
            ("enum A { B }", "enum", 1),
            ("\nnamespace A { export const b = 1 }", "namespace", 2),
            ("class A { constructor(private b: C) {} }", "parameter", 1),
            ("class A { @b c() {} }", "decorator", 1),
            ("import { a } from 'b'", "import", 1),
            ("\n\nexport const a: B = 1", "export", 3),
            ("let x: = 1", "SyntaxError", 1),
            ("", "", 0),
        ] {
            match strip(code) {
                Ok(text) => assert_eq!((text.as_str(), line), ("", 0)),
                Err(failure) => {
                    assert!(failure.message.contains(what), "{failure:?}");
                    assert_eq!(failure.line, Some(line), "{code}");
                }
            }
        }
    }
}
