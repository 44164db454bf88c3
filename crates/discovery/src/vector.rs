//! Vectors of texts, from a sentence model.

use std::sync::Arc;

/// The meaning of a text: a direction in a space with a fixed number of dimensions. It takes one byte per dimension. Clones
/// share them.
#[derive(Debug, Clone, PartialEq)]
pub struct Vector {
    bytes: Arc<[i8]>,
    /// The reciprocal of the length of `bytes`. 0 for a vector without a direction.
    factor: f32,
}

impl Vector {
    /// Only the direction of `numbers` counts. Numbers that are not finite count as 0.
    pub fn new(numbers: &[f32]) -> Self {
        let finite = |number: &f32| if number.is_finite() { *number } else { 0.0 };
        let most = numbers
            .iter()
            .map(finite)
            .fold(0.0, |most: f32, number| most.max(number.abs()));
        // Divided first, so that no product is infinite.
        let bytes: Arc<[i8]> = numbers
            .iter()
            .map(|number| (finite(number) / most * 127.0).round() as i8)
            .collect();
        let square = dot(&bytes, &bytes);
        let factor = if square > 0 {
            (square as f32).sqrt().recip()
        } else {
            0.0
        };
        Self { bytes, factor }
    }

    /// The number of dimensions.
    pub fn dimensions(&self) -> usize {
        self.bytes.len()
    }

    /// The cosine of the angle between two vectors: 1 for the same direction. 0 if they have different numbers of
    /// dimensions, or no direction.
    pub fn cosine(&self, other: &Self) -> f32 {
        if self.bytes.len() != other.bytes.len() {
            return 0.0;
        }
        let dot = dot(&self.bytes, &other.bytes) as f32;
        dot * self.factor * other.factor
    }
}

fn dot(a: &[i8], b: &[i8]) -> i32 {
    // Products of integers of 16 bits, which processors add in pairs.
    let product = |(a, b): (&i8, &i8)| i32::from(i16::from(*a)) * i32::from(i16::from(*b));
    a.iter().zip(b).map(product).fold(0, i32::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::Vector;

    #[track_caller]
    fn check(a: &[f32], b: &[f32], expect: f32) {
        let cosine = Vector::new(a).cosine(&Vector::new(b));
        assert!((cosine - expect).abs() < 0.01, "{a:?} {b:?}: {cosine}");
    }

    #[test]
    fn only_directions_count() {
        check(&[1.0, 2.0], &[10.0, 20.0], 1.0);
        check(&[1.0, 0.0], &[0.0, 3.0], 0.0);
        check(&[1.0, 1.0], &[-2.0, -2.0], -1.0);
        check(&[1e-30, 0.0], &[1e30, 1e30], 0.707);
        let long: Vec<f32> = (0..100_000).map(|number| (number % 7) as f32).collect();
        check(&long, &long, 1.0);
    }

    #[test]
    fn vectors_without_a_direction_are_like_nothing() {
        check(&[], &[], 0.0);
        check(&[0.0, 0.0], &[1.0, 0.0], 0.0);
        check(&[f32::NAN, f32::INFINITY], &[1.0, 0.0], 0.0);
        check(&[f32::NAN, 1.0], &[0.0, 1.0], 1.0);
        check(&[1.0], &[1.0, 0.0], 0.0);
    }
}
