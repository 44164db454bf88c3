//! The network: an encoder with attention (BERT), and the mean over all tokens.

use discovery::Vector;

use crate::{
    attention::{self, attend},
    matrix::{Linear, Rounded},
};

/// Brings numbers to mean 0 and variance 1, then multiplies and adds.
pub(crate) struct Norm {
    pub(crate) factor: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

pub(crate) struct Layer {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) attended: Linear,
    pub(crate) attended_norm: Norm,
    pub(crate) inner: Linear,
    pub(crate) output: Linear,
    pub(crate) output_norm: Norm,
}

/// Rows of bytes, each with its scale.
pub(crate) struct Rows {
    pub(crate) bytes: Vec<i8>,
    pub(crate) scales: Vec<f32>,
}

/// Invariant: all matrices have the sizes that `width` and the number of tokens and positions require.
pub(crate) struct Network {
    pub(crate) width: usize,
    /// Parts of a row that attend to other tokens separately. Divides `width`.
    pub(crate) heads: usize,
    /// The vector of each token.
    pub(crate) words: Rows,
    /// The vector of each position.
    pub(crate) positions: Vec<f32>,
    pub(crate) norm: Norm,
    pub(crate) layers: Vec<Layer>,
}

impl Norm {
    fn apply(&self, rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(self.bias.len()) {
            let length = row.len() as f32;
            let mean = sum(row, row, |x, _| x) / length;
            let variance = sum(row, row, |x, _| (x - mean) * (x - mean)) / length;
            let factor = (variance + 1e-12).sqrt().recip();
            for ((x, scale), bias) in row.iter_mut().zip(&self.factor).zip(&self.bias) {
                *x = (*x - mean) * factor * scale + bias;
            }
        }
    }
}

/// Sums of this many numbers are computed at once. A single sum would have to wait for each addition.
const LANES: usize = 8;

/// The sum of `value` over pairs of numbers.
fn sum(a: &[f32], b: &[f32], value: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += value(*a, *b);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| value(*a, *b)).sum();
    sums.iter().sum::<f32>() + rest
}

fn add(to: &mut [f32], numbers: &[f32]) {
    for (to, number) in to.iter_mut().zip(numbers) {
        *to += number;
    }
}

/// The error function, exact to 3e-7 (Abramowitz and Stegun 7.1.28). It has no branch and no exponential function, so
/// several numbers are computed at once.
fn erf(x: f32) -> f32 {
    let size = x.abs();
    let mut sum = 0.000_043_063_8 * size + 0.000_276_567_2;
    for factor in [
        0.000_152_014_3,
        0.009_270_527,
        0.042_282_01,
        0.070_523_08,
        1.0,
    ] {
        sum = sum * size + factor;
    }
    let power = sum * sum;
    let power = power * power;
    let power = power * power;
    let power = power * power;
    (1.0 - power.recip()).copysign(x)
}

impl Network {
    /// The number of tokens that the network reads.
    pub(crate) fn positions(&self) -> usize {
        self.positions.len() / self.width
    }

    /// The last layer, with a row for each token. Unknown tokens, and those after the last position, are left out.
    pub(crate) fn rows(&self, tokens: &[u32]) -> Vec<f32> {
        let mut x = Vec::with_capacity(tokens.len() * self.width);
        for (token, position) in tokens.iter().zip(self.positions.chunks_exact(self.width)) {
            let start = *token as usize * self.width;
            let (Some(word), Some(scale)) = (
                self.words.bytes.get(start..start + self.width),
                self.words.scales.get(*token as usize),
            ) else {
                continue;
            };
            x.extend(
                word.iter()
                    .zip(position)
                    .map(|(byte, place)| f32::from(*byte) * scale + place),
            );
        }
        let count = x.len() / self.width;
        if count > 0 {
            self.norm.apply(&mut x);
            let mut scratch = Scratch::default();
            for layer in &self.layers {
                layer.apply(&mut x, count, self.heads, &mut scratch);
            }
        }
        x
    }

    /// The direction of the mean of some rows.
    pub(crate) fn mean(&self, rows: &[f32]) -> Vector {
        let mut sum = vec![0.0; self.width];
        for row in rows.chunks_exact(self.width) {
            add(&mut sum, row);
        }
        Vector::new(&sum)
    }
}

/// Memory that is reused for each layer.
#[derive(Default)]
struct Scratch {
    rounded: Rounded,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    seen: Vec<f32>,
    inner: Vec<f32>,
    change: Vec<f32>,
    attention: attention::Scratch,
}

impl Layer {
    fn apply(&self, x: &mut [f32], count: usize, heads: usize, scratch: &mut Scratch) {
        let Scratch {
            rounded,
            query,
            key,
            value,
            seen,
            inner,
            change,
            attention,
        } = scratch;
        let width = x.len() / count;
        rounded.set(x, width);
        self.query.apply(rounded, query);
        self.key.apply(rounded, key);
        self.value.apply(rounded, value);
        attend([query, key, value], count, heads, attention, seen);
        rounded.set(seen, width);
        self.attended.apply(rounded, change);
        add(x, change);
        self.attended_norm.apply(x);
        rounded.set(x, width);
        self.inner.apply(rounded, inner);
        activate(inner);
        rounded.set(inner, inner.len() / count);
        self.output.apply(rounded, change);
        add(x, change);
        self.output_norm.apply(x);
    }
}

/// The function GELU.
fn activate(numbers: &mut [f32]) {
    for x in numbers {
        *x *= 0.5 * (1.0 + erf(*x * std::f32::consts::FRAC_1_SQRT_2));
    }
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn the_error_function_is_exact_enough() {
        for (x, expect) in [
            (0.0, 0.0),
            (0.1, 0.112_462_9),
            (0.5, 0.520_499_9),
            (1.0, 0.842_700_8),
            (2.0, 0.995_322_3),
            (9.0, 1.0),
            (1e30, 1.0),
        ] {
            assert!((erf(x) - expect).abs() < 1e-6, "{x}: {}", erf(x));
            assert!((erf(-x) + expect).abs() < 1e-6, "{x}");
        }
    }
}
