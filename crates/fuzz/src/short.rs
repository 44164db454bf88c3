//! The driver for CI: the inputs in the repository, then random changes of them, the same in every run.

use std::{
    fs,
    path::PathBuf,
    process,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use tokio::time::Instant;

use crate::{Target, corpus, mutate::mutated, random::Random};

/// Ends the run of one target, whichever comes first.
const MAX_TIME: Duration = Duration::from_secs(10);
const MAX_CHANGED_INPUTS: usize = 20_000;
/// An input that takes longer is a hang.
const MAX_INPUT_TIME: Duration = Duration::from_secs(30);
const SEED: u64 = 36;

/// The input that is being checked, with its number.
type Current = Arc<Mutex<(usize, Vec<u8>)>>;

/// Checks a target. Returns the number of inputs.
///
/// # Panics
/// If an input violates a property. The input is written to a file in the temporary folder. A hang ends the process.
#[must_use]
pub fn run(target: &Target) -> usize {
    let inputs = corpus::inputs(target);
    assert!(!inputs.is_empty(), "{} has no inputs", target.name);
    let start = Instant::now();
    let mut random = Random::new(SEED);
    let changed = std::iter::repeat_with(|| mutated(&inputs, target.words, &mut random));
    let changed = changed
        .take(MAX_CHANGED_INPUTS)
        .take_while(|_| start.elapsed() < MAX_TIME);
    let watch = Watch::start(target.name);
    let mut count = 0;
    for input in inputs.iter().cloned().chain(changed) {
        count += 1;
        watch.begins(count, &input);
        let shown = Shown(target.name, &input);
        target.check(&input);
        drop(shown);
    }
    count
}

/// Writes the input to a file if it makes the target panic.
struct Shown<'a>(&'static str, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            report(self.0, self.1);
        }
    }
}

/// Writes an input to a file, and prints where.
fn report(target: &str, input: &[u8]) {
    let file = format!("fuzz-{target}-{}", &model::sha256_hex(input)[..12]);
    let path: PathBuf = std::env::temp_dir().join(file);
    let written = fs::write(&path, input);
    eprintln!(
        "the input is in {} ({written:?}): {}",
        path.display(),
        input.escape_ascii()
    );
}

/// Ends the process if an input takes too long.
struct Watch {
    current: Current,
    /// Dropped at the end, which the thread notices.
    _end: mpsc::Sender<()>,
}

impl Watch {
    fn start(target: &'static str) -> Self {
        let (end, ended) = mpsc::channel();
        let current = Current::default();
        let seen = current.clone();
        thread::spawn(move || {
            let mut last = 0;
            while ended.recv_timeout(MAX_INPUT_TIME) == Err(RecvTimeoutError::Timeout) {
                let (number, input) = &*seen.lock().unwrap_or_else(PoisonError::into_inner);
                if *number == last {
                    eprintln!("a hang in {target}");
                    report(target, input);
                    process::abort();
                }
                last = *number;
            }
        });
        Self { current, _end: end }
    }

    fn begins(&self, number: usize, input: &[u8]) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.0 = number;
        current.1.clear();
        current.1.extend_from_slice(input);
    }
}
