//! Products of matrices, in integers.
//!
//! Weights have 8 bits, as in the file. The other numbers are rounded to 16 bits with a scale for each row, which is as
//! exact as floats are for this purpose, and takes half the time and a quarter of the memory.
//!
//! Invariant: no sum overflows. [`Rounded`] chooses its scales so.

use crate::tile::{self, LANES, OUTPUTS, ROWS, Sums};

/// Rows that are multiplied with all weights before the next ones, so that they stay in the nearest cache.
const BLOCK_ROWS: usize = 8;

/// Adding this to a small float rounds it to an integer, which is then in its lowest bits. Unlike a conversion, it has no
/// special cases, so several numbers are rounded at once.
const ROUNDING: f32 = 12_582_912.0;

/// Rows of floats, rounded to integers.
#[derive(Default)]
pub(crate) struct Rounded {
    /// Each row is filled up to a multiple of [`LANES`], and their number to a multiple of [`ROWS`].
    numbers: Vec<i16>,
    /// For each row, the float by which its integers are multiplied.
    scales: Vec<f32>,
}

impl Rounded {
    /// Replaces the rows by those of `floats`.
    pub(crate) fn set(&mut self, floats: &[f32], width: usize) {
        let length = width.next_multiple_of(LANES);
        let count = floats.len() / width;
        self.numbers.clear();
        self.numbers
            .resize(count.next_multiple_of(ROWS) * length, 0);
        self.scales.clear();
        self.scales.resize(count, 0.0);
        let largest = largest(length);
        let rows = self.numbers.chunks_exact_mut(length).zip(&mut self.scales);
        for ((numbers, scale), floats) in rows.zip(floats.chunks_exact(width)) {
            let most = most(floats);
            *scale = most / largest;
            let factor = if most > 0.0 { largest / most } else { 0.0 };
            for (number, float) in numbers.iter_mut().zip(floats) {
                let bits = (float * factor + ROUNDING).to_bits();
                // The lowest 16 bits are the integer.
                *number = bits as i16;
            }
        }
    }
}

/// The largest integer with which the sum over a row of `length` weights does not overflow.
fn largest(length: usize) -> f32 {
    let bound = i32::MAX as usize / (128 * length);
    bound.min(i16::MAX as usize) as f32
}

/// The size of the largest number.
fn most(floats: &[f32]) -> f32 {
    let mut sizes = [0.0_f32; LANES];
    let (chunks, rest) = floats.as_chunks::<LANES>();
    for chunk in chunks {
        for (most, float) in sizes.iter_mut().zip(chunk) {
            let size = float.abs();
            *most = if size > *most { size } else { *most };
        }
    }
    rest.iter()
        .chain(&sizes)
        .fold(0.0, |most: f32, float| most.max(float.abs()))
}

/// A linear function: for each output, the weights of all inputs, and a number to add.
pub(crate) struct Linear {
    /// The number of inputs, filled up.
    length: usize,
    /// The weights of each output, and outputs of zeros up to a multiple of [`OUTPUTS`].
    weights: Vec<i8>,
    /// For each output, the float by which its weights are multiplied.
    scales: Vec<f32>,
    bias: Vec<f32>,
}

impl Linear {
    /// `weights` has one row per output, with one number per input. `scales` and `bias` have one number per output.
    pub(crate) fn new(weights: &[i8], scales: Vec<f32>, bias: Vec<f32>) -> Self {
        let outputs = bias.len();
        let inputs = weights.len() / outputs;
        let length = inputs.next_multiple_of(LANES);
        let mut filled = vec![0; outputs.next_multiple_of(OUTPUTS) * length];
        for (filled, row) in filled
            .chunks_exact_mut(length)
            .zip(weights.chunks_exact(inputs))
        {
            filled[..inputs].copy_from_slice(row);
        }
        Self {
            length,
            weights: filled,
            scales,
            bias,
        }
    }

    /// Sets `out` to the outputs for each row of `input`.
    pub(crate) fn apply(&self, input: &Rounded, out: &mut Vec<f32>) {
        out.clear();
        out.resize(input.scales.len() * self.bias.len(), 0.0);
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn avx2(linear: &Linear, input: &Rounded, out: &mut [f32]) {
                linear.multiply(input, out, |rows, weights, length| {
                    tile::avx2(rows, weights, length)
                });
            }

            #[target_feature(enable = "avx2,avx512vl,avx512vnni")]
            fn avx512(linear: &Linear, input: &Rounded, out: &mut [f32]) {
                linear.multiply(input, out, |rows, weights, length| {
                    tile::avx512(rows, weights, length)
                });
            }

            #[expect(unsafe_code, reason = "functions for instructions of some processors")]
            // SAFETY: the processor has the instructions. The functions need nothing else.
            unsafe {
                if tile::has_avx512() {
                    return avx512(self, input, out);
                }
                if is_x86_feature_detected!("avx2") {
                    return avx2(self, input, out);
                }
            }
        }
        self.multiply(input, out, tile::portable);
    }

    #[inline(always)]
    fn multiply(
        &self,
        input: &Rounded,
        out: &mut [f32],
        sums: impl Fn(&[i16], &[i8], usize) -> Sums,
    ) {
        let (length, outputs) = (self.length, self.bias.len());
        let blocks = input.numbers.chunks(BLOCK_ROWS * length);
        let scales = input.scales.chunks(BLOCK_ROWS);
        let out = out.chunks_mut(BLOCK_ROWS * outputs);
        for ((rows, scales), out) in blocks.zip(scales).zip(out) {
            let weights = self.weights.chunks_exact(OUTPUTS * length);
            for (weights, first) in weights.zip((0..).step_by(OUTPUTS)) {
                let rows = rows.chunks_exact(ROWS * length);
                let scales = scales.chunks(ROWS);
                let out = out.chunks_mut(ROWS * outputs);
                for ((rows, scales), out) in rows.zip(scales).zip(out) {
                    let sums = sums(rows, weights, length);
                    self.store(&sums, scales, first, out);
                }
            }
        }
    }

    /// Sets the outputs from `first` on in each row of `out`.
    #[inline(always)]
    fn store(&self, sums: &Sums, scales: &[f32], first: usize, out: &mut [f32]) {
        let rows = out.chunks_exact_mut(self.bias.len()).zip(scales);
        for (row, (out, scale)) in rows.enumerate() {
            let weights = self.scales[first..].iter().zip(&self.bias[first..]);
            for ((out, sums), (weight, bias)) in out[first..].iter_mut().zip(sums).zip(weights) {
                *out = sums[row] as f32 * (scale * weight) + bias;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Linear, Rounded};

    /// Compares with sums of floats.
    #[track_caller]
    fn check(rows: usize, inputs: usize, outputs: usize) {
        let number = |at: usize| ((at * 7919 + 13) % 255) as f32 - 127.0;
        let weights: Vec<i8> = (0..inputs * outputs).map(|at| number(at) as i8).collect();
        let scales: Vec<f32> = (0..outputs).map(|at| 0.01 + at as f32).collect();
        let bias: Vec<f32> = (0..outputs).map(|at| number(at) * 100.0).collect();
        let input: Vec<f32> = (0..rows * inputs).map(|at| number(at * 31) * 0.3).collect();
        let linear = Linear::new(&weights, scales.clone(), bias.clone());
        let (mut rounded, mut out) = (Rounded::default(), Vec::new());
        // The memory is used again.
        rounded.set(&[f32::NAN; 99], 33);
        rounded.set(&input, inputs);
        linear.apply(&rounded, &mut out);
        assert_eq!(out.len(), rows * outputs);
        for (out, input) in out.chunks(outputs).zip(input.chunks(inputs)) {
            for (output, out) in out.iter().enumerate() {
                let weights = weights[output * inputs..].iter();
                let products = weights.zip(input).map(|(a, b)| f32::from(*a) * b);
                let expect = products.sum::<f32>() * scales[output] + bias[output];
                let error = (out - expect).abs() / (scales[output] * inputs as f32);
                assert!(error < 0.1, "{rows} {inputs} {outputs}: {out} {expect}");
            }
        }
    }

    #[test]
    fn rows_are_multiplied_with_weights() {
        for rows in [1, 2, 3, 4, 5, 7, 8, 9, 21] {
            check(rows, 33, 5);
        }
        for (inputs, outputs) in [(1, 1), (8, 12), (16, 2), (17, 3), (1536, 4)] {
            check(3, inputs, outputs);
        }
    }

    #[test]
    fn sums_do_not_overflow() {
        for inputs in [1, 384, 1536, 1 << 14] {
            let linear = Linear::new(&vec![-128; inputs], vec![1.0], vec![0.0]);
            let (mut rounded, mut out) = (Rounded::default(), Vec::new());
            rounded.set(&vec![-1.0; inputs], inputs);
            linear.apply(&rounded, &mut out);
            let expect = 128.0 * inputs as f32;
            assert!((out[0] / expect - 1.0).abs() < 0.001, "{inputs}: {out:?}");
        }
    }

    #[test]
    fn odd_numbers_are_no_panic() {
        let linear = Linear::new(&[1, 2], vec![1.0], vec![0.0]);
        let (mut rounded, mut out) = (Rounded::default(), Vec::new());
        for odd in [
            0.0,
            f32::NAN,
            f32::INFINITY,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-45,
        ] {
            rounded.set(&[odd, 1.0, odd, odd], 2);
            linear.apply(&rounded, &mut out);
            assert_eq!(out.len(), 2);
        }
        rounded.set(&[0.0, 0.0], 2);
        linear.apply(&rounded, &mut out);
        assert_eq!(out, [0.0]);
    }
}
