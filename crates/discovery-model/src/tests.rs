//! The tokenizer and the network, compared with the reference implementation in `recipe/`, and damaged files.

use std::path::Path;

use serde_json::Value;

use crate::{Error, Model, file};

/// A random model and its results. `recipe/make.py --tiny tests` makes both.
const TINY: &[u8] = include_bytes!("../tests/tiny.model");
const RESULTS: &str = include_str!("../tests/tiny.json");

/// The position of the first number of the header.
const HEADER: usize = 16;

fn tiny() -> Model {
    file::parse(TINY).expect("a model file")
}

#[test]
fn tokens_and_vectors_are_those_of_the_reference() {
    let model = tiny();
    let results: Vec<Value> = serde_json::from_str(RESULTS).expect("JSON");
    assert!(results.len() >= 8);
    for result in results {
        let text = result["text"].as_str().expect("a text");
        let tokens = model.tokenizer.tokens(text, model.network.positions());
        assert_eq!(Value::from(tokens.clone()), result["tokens"], "{text}");
        let rows = model.network.rows(&tokens);
        let width = model.network.width;
        let mut vector = vec![0.0_f32; width];
        for row in rows.chunks_exact(width) {
            vector.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        let expect = result["vector"].as_array().expect("a list");
        assert_eq!(vector.len(), expect.len());
        for (x, expect) in vector.iter().zip(expect) {
            let difference = f64::from(x / length) - expect.as_f64().expect("a number");
            assert!(difference.abs() < 1e-3, "{text}: {difference}");
        }
    }
}

#[test]
fn any_text_has_a_vector() {
    let model = tiny();
    let long = [
        "word ".repeat(1 << 18),
        "x".repeat(1 << 20),
        "天".repeat(1 << 18),
        "\0".repeat(1 << 20),
    ];
    for text in ["", " ", "\u{300}", "\u{10ffff}"]
        .into_iter()
        .chain(long.iter().map(String::as_str))
    {
        let vector = model.embed(text);
        assert!((vector.cosine(&vector) - 1.0).abs() < 0.01);
    }
}

#[test]
fn a_task_has_a_vector_for_each_clause() {
    let model = tiny();
    for (task, count) in [
        ("", 1),
        ("send a mail", 1),
        ("send a mail.", 1),
        ("send a mail to a person and then, word", 1),
        ("send a mail, and word a person", 3),
        ("send a mail. word a person. person un word", 4),
        (&"send a mail. ".repeat(1 << 12), 5),
    ] {
        let vectors = model.embed_task(task);
        assert_eq!(vectors.len(), count, "{task:.40}");
        // The beginning of a long task is shorter than that of a text.
        let is_whole = task.len() < 100;
        assert_eq!(vectors[0] == model.embed(task), is_whole, "{task:.40}");
    }
}

#[test]
fn damaged_files_are_rejected() {
    for length in (0..200).chain([TINY.len() / 2, TINY.len() - 1]) {
        assert!(file::parse(&TINY[..length]).is_err(), "{length}");
    }
    assert!(file::parse(&[TINY, b"\0"].concat()).is_err());
    // Each number of the header, too small and too large.
    for number in 0..7 {
        for value in [0, 1 << 30, u32::MAX] {
            let mut damaged = TINY.to_vec();
            damaged[HEADER + 4 * number..][..4].copy_from_slice(&value.to_le_bytes());
            assert!(file::parse(&damaged).is_err(), "number {number}: {value}");
        }
    }
    let mut damaged = TINY.to_vec();
    let last = damaged.len() - 4;
    damaged[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(matches!(
        file::parse(&damaged),
        Err(Error::Format("a number is not finite"))
    ));
}

#[test]
fn a_missing_file_is_an_error() {
    assert!(matches!(
        Model::load(Path::new("/nonexistent/file")),
        Err(Error::Read(_))
    ));
}
