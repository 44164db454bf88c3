//! Builds `fuzz-target` with coverage instrumentation and runs it.
//!
//! The stable compiler can do that: LLVM's pass inserts counters, and libFuzzer reads them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use fuzz::{MAX_INPUT_BYTES, Target};
use serde_json::Value;

/// Time for each target, in seconds.
const SECONDS: u64 = 60;
/// Maximum seconds for one input.
const MAX_INPUT_SECONDS: u64 = 10;
/// Maximum memory of the whole process, in MiB: libFuzzer's own tables are most of it.
const MAX_MEMORY_MIB: u64 = 1024;

/// Counters for each edge of the code, and hooks for each comparison.
const INSTRUMENTATION: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Runs libFuzzer on a target.
///
/// # Panics
/// If it finds a fault. Its output names the file with the input.
pub(crate) fn run(target: &Target) {
    let program = build();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("fuzz")
        .join(target.name);
    // Inputs that reached new code in earlier runs stay here.
    let found = folder.join("found");
    fs::create_dir_all(&found).expect("a folder");
    let words = folder.join("words");
    fs::write(&words, dictionary(target.words)).expect("a file");
    let mut fuzzer = Command::new(program);
    fuzzer
        .args([&found, &fuzz::folder(target)])
        .arg(format!("-dict={}", words.display()))
        .arg(format!("-artifact_prefix={}/", folder.display()))
        .arg(format!("-max_total_time={SECONDS}"))
        .arg(format!("-timeout={MAX_INPUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={MAX_MEMORY_MIB}"))
        .arg(format!("-max_len={MAX_INPUT_BYTES}"))
        .args(["-print_final_stats=1", "-verbosity=1"])
        .env("FUZZ_TARGET", target.name);
    let done = fuzzer.output().expect("the fuzzer");
    let said = String::from_utf8_lossy(&done.stderr);
    let stats = said
        .lines()
        .filter(|line| line.starts_with("stat::") || line.contains(" DONE "));
    let stats: Vec<&str> = stats.collect();
    println!(
        "fuzz {}: {SECONDS} s with coverage\n{}",
        target.name,
        stats.join("\n")
    );
    let lines: Vec<&str> = said.lines().collect();
    let end = &lines[lines.len().saturating_sub(60)..];
    assert!(
        done.status.success(),
        "{}: {}\n{}",
        target.name,
        done.status,
        end.join("\n")
    );
    assert!(
        said.contains("inline 8-bit counters"),
        "no coverage: {said}"
    );
}

/// Builds the program and returns its path.
fn build() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // With `--target`, build scripts and macros are not instrumented.
    let built = Command::new(cargo)
        .args([
            "build",
            "--profile=fuzz",
            "--target=host-tuple",
            "--message-format=json",
        ])
        .args([
            "--package=fuzz",
            "--features=libfuzzer",
            "--bin=fuzz-target",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_ENCODED_RUSTFLAGS", INSTRUMENTATION.join("\u{1f}"))
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo");
    assert!(built.status.success(), "the build failed: {}", built.status);
    let said = String::from_utf8_lossy(&built.stdout);
    let messages = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs =
        messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next_back().expect("a program")
}

/// The words as a dictionary of libFuzzer: one quoted word per line.
fn dictionary(words: &[&str]) -> String {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02X}"),
    };
    let quoted = |word: &&str| format!("\"{}\"\n", word.bytes().map(escaped).collect::<String>());
    words.iter().map(quoted).collect()
}
