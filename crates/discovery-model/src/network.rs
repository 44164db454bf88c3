//! The network: an encoder with attention (BERT), and the mean over all tokens.

use crate::matrix::multiply_transposed;

/// A linear function: `output` rows of `input` weights, and `output` numbers to add.
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
        multiply_transposed(
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
            let mean = row.iter().sum::<f32>() / length;
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / length;
            let factor = (variance + 1e-12).sqrt().recip();
            for ((x, scale), bias) in row.iter_mut().zip(&self.factor).zip(&self.bias) {
                *x = (*x - mean) * factor * scale + bias;
            }
        }
    }
}

fn add(to: &mut [f32], numbers: &[f32]) {
    for (to, number) in to.iter_mut().zip(numbers) {
        *to += number;
    }
}

/// The error function, exact to 1.5e-7 (Abramowitz and Stegun 7.1.26).
fn erf(x: f32) -> f32 {
    let size = x.abs();
    let t = (1.0 + 0.327_591_1 * size).recip();
    let sum = ((((1.061_405_4 * t - 1.453_152_1) * t + 1.421_413_8) * t - 0.284_496_72) * t
        + 0.254_829_6)
        * t;
    (1.0 - sum * (-size * size).exp()).copysign(x)
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

    /// Attention: for each token, the weighted sum of the values of all tokens.
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
                    *share = scale
                        * query
                            .iter()
                            .zip(&key[of(other)])
                            .map(|(a, b)| a * b)
                            .sum::<f32>();
                }
                let most = shares.iter().copied().fold(f32::MIN, f32::max);
                let mut sum = 0.0;
                for share in &mut shares {
                    *share = (*share - most).exp();
                    sum += *share;
                }
                let seen = &mut seen[of(token)];
                for (other, share) in shares.iter().enumerate() {
                    for (seen, value) in seen.iter_mut().zip(&value[of(other)]) {
                        *seen += share / sum * value;
                    }
                }
            }
        }
        seen
    }
}
