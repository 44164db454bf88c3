//! Attention: each token gets a weighted mean of the values of all tokens. The weights depend on its query and their keys.

/// Numbers that are computed at the same time. Rows are filled up to a multiple of it.
const LANES: usize = 16;

/// Adding this to a float rounds it to an integer, which is then in its lowest bits.
const ROUNDING: f32 = 12_582_912.0;

/// Memory that is reused for each head and layer.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The keys of one head: one row per dimension, with a column for each token.
    keys: Vec<f32>,
    /// The values of one head: one row per token.
    values: Vec<f32>,
    shares: Vec<f32>,
    sums: Vec<f32>,
}

/// Sets `seen` to the weighted sum of the values of all tokens, for each token. All matrices have `count` rows, which
/// are divided among the heads.
pub(crate) fn attend(
    [query, key, value]: [&[f32]; 3],
    count: usize,
    heads: usize,
    scratch: &mut Scratch,
    seen: &mut Vec<f32>,
) {
    let width = query.len() / count;
    let part = width / heads;
    let columns = count.next_multiple_of(LANES);
    let filled = part.next_multiple_of(LANES);
    for (numbers, length) in [
        (&mut scratch.keys, part * columns),
        (&mut scratch.values, count * filled),
        (&mut scratch.shares, columns),
        (&mut scratch.sums, filled),
        (seen, count * width),
    ] {
        numbers.clear();
        numbers.resize(length, 0.0);
    }
    for first in (0..width).step_by(part) {
        let head = Head { first, part, width };
        head.attend([query, key, value], count, scratch, seen);
    }
}

/// The columns of one head.
struct Head {
    first: usize,
    part: usize,
    width: usize,
}

impl Head {
    /// The head's part of each row.
    fn rows<'m>(&self, matrix: &'m [f32]) -> impl Iterator<Item = &'m [f32]> {
        let (first, end) = (self.first, self.first + self.part);
        matrix
            .chunks_exact(self.width)
            .map(move |row| &row[first..end])
    }

    fn attend(
        &self,
        [query, key, value]: [&[f32]; 3],
        count: usize,
        scratch: &mut Scratch,
        seen: &mut [f32],
    ) {
        let Scratch {
            keys,
            values,
            shares,
            sums,
        } = scratch;
        for (token, row) in self.rows(key).enumerate() {
            for (column, number) in keys.chunks_exact_mut(shares.len()).zip(row) {
                column[token] = *number;
            }
        }
        for (to, row) in values.chunks_exact_mut(sums.len()).zip(self.rows(value)) {
            to[..self.part].copy_from_slice(row);
        }
        let scale = (self.part as f32).sqrt().recip();
        let seen = seen.chunks_exact_mut(self.width);
        for (query, seen) in self.rows(query).zip(seen) {
            weigh(query, keys, shares);
            let total = share_out(shares, scale, count);
            weigh(&shares[..count], values, sums);
            for (seen, sum) in seen[self.first..].iter_mut().zip(&sums[..self.part]) {
                *seen = sum / total;
            }
        }
    }
}

/// Sets `sums` to the sum of all rows, each multiplied by its factor.
fn weigh(factors: &[f32], rows: &[f32], sums: &mut [f32]) {
    let columns = sums.len();
    for (start, sums) in (0..columns)
        .step_by(LANES)
        .zip(sums.as_chunks_mut::<LANES>().0)
    {
        let mut total = [0.0; LANES];
        for (factor, row) in factors.iter().zip(rows.chunks_exact(columns)) {
            let Some(row) = row[start..].first_chunk::<LANES>() else {
                break;
            };
            for (total, number) in total.iter_mut().zip(row) {
                *total += factor * number;
            }
        }
        *sums = total;
    }
}

/// Replaces similarities by shares, of which the first `count` count. Returns their total.
fn share_out(similarities: &mut [f32], scale: f32, count: usize) -> f32 {
    similarities[count..].fill(f32::MIN);
    let chunks = similarities.as_chunks_mut::<LANES>().0;
    let mut most = [f32::MIN; LANES];
    for chunk in &*chunks {
        for (most, number) in most.iter_mut().zip(chunk) {
            *most = if *number > *most { *number } else { *most };
        }
    }
    let most = most.into_iter().fold(f32::MIN, f32::max);
    let mut totals = [0.0; LANES];
    for chunk in chunks {
        for (total, number) in totals.iter_mut().zip(chunk) {
            *number = exp((*number - most) * scale);
            *total += *number;
        }
    }
    totals.iter().sum()
}

/// The exponential function for numbers up to 0, exact to 3e-7. It has no branch, so several numbers are computed at
/// once.
fn exp(x: f32) -> f32 {
    let power = (x * std::f32::consts::LOG2_E).max(-126.0);
    let rounded = power + ROUNDING;
    let rest = (power - (rounded - ROUNDING)) * std::f32::consts::LN_2;
    let mut sum = 1.0 / 720.0;
    for factor in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * rest + factor;
    }
    // The integer in the lowest bits of `rounded`, moved to the exponent.
    sum * f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0_f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::{Scratch, attend, exp};

    #[test]
    fn the_exponential_function_is_exact_enough() {
        for x in [0.0, -1e-6, -0.1, -0.346, -0.347, -1.0, -5.5, -40.0, -80.0] {
            let expect = f32::exp(x);
            assert!((exp(x) - expect).abs() < 1e-6 * expect, "{x}: {}", exp(x));
        }
        assert!(exp(-1e30) < 1e-37);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn tokens_get_the_values_of_similar_ones() {
        // Two heads of one dimension each, and two tokens.
        let query = [0.0, 50.0, 0.0, -50.0];
        let key = [1.0, 1.0, 2.0, -1.0];
        let value = [1.0, 10.0, 3.0, 20.0];
        let mut seen = Vec::new();
        attend(
            [&query, &key, &value],
            2,
            2,
            &mut Scratch::default(),
            &mut seen,
        );
        for (seen, expect) in seen.iter().zip([2.0, 10.0, 2.0, 20.0]) {
            assert!((seen - expect).abs() < 1e-5, "{seen} instead of {expect}");
        }
        assert_eq!(seen.len(), 4);
    }
}
