//! Random changes to inputs.

use crate::{random::Random, target::MAX_INPUT_BYTES};

/// Words that many formats give a meaning to.
const WORDS: [&str; 24] = [
    "\0",
    "\n",
    "\r\n",
    "\t",
    "\"",
    "\\",
    "\\u0000",
    "\\ud83d",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "/",
    "%00",
    "${",
    "0",
    "-1",
    "1e999",
    "18446744073709551616",
    "\u{feff}",
    "\u{202e}",
    "\n--\n",
];
/// Maximum number of changes to one input.
const MAX_CHANGES: usize = 8;
/// Maximum bytes that are repeated or removed at once.
const MAX_RANGE: usize = 64;

/// One of `inputs`, with a few changes. `words` are inserted like those of every format.
pub(crate) fn mutated(inputs: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut input = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(MAX_CHANGES) {
        change(&mut input, inputs, words, random);
    }
    input.truncate(MAX_INPUT_BYTES);
    input
}

fn change(input: &mut Vec<u8>, inputs: &[Vec<u8>], words: &[&str], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let range = at..input.len().min(at + 1 + random.below(MAX_RANGE));
    match random.below(10) {
        0 => flip(input, at, random),
        1 => drop(input.splice(range.start..range.start, [random.next().to_le_bytes()[0]])),
        2 => drop(input.drain(range)),
        3 => {
            let copy = input[range].to_vec();
            let to = random.below(input.len() + 1);
            let copies = copy.iter().cycle().take(copy.len() * (1 + random.below(4)));
            drop(input.splice(to..to, copies.copied().collect::<Vec<u8>>()));
        }
        4 => input.truncate(at),
        5 => {
            let other = &inputs[random.below(inputs.len())];
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        6 => {
            let other = &inputs[random.below(inputs.len())];
            let from = random.below(other.len() + 1);
            let part = &other[from..other.len().min(from + MAX_RANGE)];
            drop(input.splice(range, part.iter().copied()));
        }
        other => {
            let word = match other {
                7 if !words.is_empty() => random.pick(words),
                _ => random.pick(&WORDS),
            };
            let end = if random.below(2) == 0 { range.end } else { at };
            drop(input.splice(at..end, word.bytes()));
        }
    }
}

fn flip(input: &mut [u8], at: usize, random: &mut Random) {
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}
