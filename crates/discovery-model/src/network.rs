//! The network: an encoder with attention (BERT), and the mean over all tokens.

use crate::matrix::multiply;

/// A linear function: for each input, the weights of all outputs, and for each output a number to add.
pub(crate) struct Linear {
    pub(crate) weights: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

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

impl Linear {
    /// `input` has one row per token.
    fn apply(&self, input: &[f32], tokens: usize) -> Vec<f32> {
        let columns = self.bias.len();
        let mut out = vec![0.0; tokens * columns];
        multiply(
            (input, tokens),
            (&self.weights, columns),
            input.len() / tokens,
            &mut out,
        );
        for row in out.chunks_exact_mut(columns) {
            add(row, &self.bias);
        }
        out
    }
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

    /// The mean of the last layer over all tokens. Unknown tokens, and those after the last position, are left out.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Vec<f32> {
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
        let mut mean = vec![0.0; self.width];
        if count == 0 {
            return mean;
        }
        self.norm.apply(&mut x);
        for layer in &self.layers {
            x = layer.apply(x, count, self.heads);
        }
        for row in x.chunks_exact(self.width) {
            add(&mut mean, row);
        }
        mean
    }
}

impl Layer {
    fn apply(&self, mut x: Vec<f32>, count: usize, heads: usize) -> Vec<f32> {
        let seen = self.attend(&x, count, heads);
        add(&mut x, &self.attended.apply(&seen, count));
        self.attended_norm.apply(&mut x);
        let mut inner = self.inner.apply(&x, count);
        for x in &mut inner {
            *x *= 0.5 * (1.0 + erf(*x * std::f32::consts::FRAC_1_SQRT_2));
        }
        add(&mut x, &self.output.apply(&inner, count));
        self.output_norm.apply(&mut x);
        x
    }

    /// The weighted sum of the values of all tokens, for each token.
    fn attend(&self, x: &[f32], count: usize, heads: usize) -> Vec<f32> {
        let width = x.len() / count;
        let part = width / heads;
        let [query, key, value] =
            [&self.query, &self.key, &self.value].map(|linear| linear.apply(x, count));
        let scale = (part as f32).sqrt().recip();
        let mut seen = vec![0.0; count * width];
        let mut shares = vec![0.0_f32; count];
        for head in 0..heads {
            let of = |token: usize| token * width + head * part..token * width + (head + 1) * part;
            for token in 0..count {
                let query = &query[of(token)];
                for (other, share) in shares.iter_mut().enumerate() {
                    *share = scale * sum(query, &key[of(other)], |a, b| a * b);
                }
                let most = shares.iter().copied().fold(f32::MIN, f32::max);
                let mut total = 0.0;
                for share in &mut shares {
                    *share = (*share - most).exp();
                    total += *share;
                }
                let seen = &mut seen[of(token)];
                for (other, share) in shares.iter().enumerate() {
                    let share = share / total;
                    for (seen, value) in seen.iter_mut().zip(&value[of(other)]) {
                        *seen += share * value;
                    }
                }
            }
        }
        seen
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
