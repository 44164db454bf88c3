//! Sums of products of integers for a few rows and outputs at once, so that each number that is read is used several
//! times.

/// Numbers that are multiplied at once. The length of all rows is a multiple of it.
pub(crate) const LANES: usize = 16;

pub(crate) const ROWS: usize = 4;
pub(crate) const OUTPUTS: usize = 2;

/// For each output, the sum for each row.
pub(crate) type Sums = [[i32; ROWS]; OUTPUTS];

/// The sums of the products of each row with the weights of each output. All of them have `length` numbers.
#[inline(always)]
pub(crate) fn portable(rows: &[i16], weights: &[i8], length: usize) -> Sums {
    let rows: [&[i16]; ROWS] = std::array::from_fn(|row| &rows[row * length..][..length]);
    let weights: [&[i8]; OUTPUTS] = std::array::from_fn(|out| &weights[out * length..][..length]);
    let mut sums = [[0_i32; ROWS]; OUTPUTS];
    for at in 0..length {
        for (sums, weights) in sums.iter_mut().zip(weights) {
            for (sum, row) in sums.iter_mut().zip(rows) {
                let product = i32::from(row[at]) * i32::from(weights[at]);
                *sum = sum.wrapping_add(product);
            }
        }
    }
    sums
}

/// Defines [`portable`] with instructions that compilers do not choose by themselves, for processors with some features.
#[cfg(target_arch = "x86_64")]
macro_rules! sums {
    ($name:ident, $features:literal) => {
        #[target_feature(enable = $features)]
        pub(crate) fn $name(rows: &[i16], weights: &[i8], length: usize) -> Sums {
            use std::arch::x86_64::{
                _mm_add_epi32, _mm_extract_epi32, _mm256_add_epi32, _mm256_castsi256_si128,
                _mm256_cvtepi8_epi16, _mm256_extracti128_si256, _mm256_hadd_epi32,
                _mm256_madd_epi16, _mm256_setzero_si256,
            };

            // Closures would not be compiled for these instructions where the standard library calls them.
            let count = length / LANES;
            let mut row_chunks: [&[[i16; LANES]]; ROWS] = [&[]; ROWS];
            for (chunks, row) in row_chunks.iter_mut().zip(rows.chunks_exact(length)) {
                *chunks = &row.as_chunks().0[..count];
            }
            let mut weight_chunks: [&[[i8; LANES]]; OUTPUTS] = [&[]; OUTPUTS];
            for (chunks, weights) in weight_chunks.iter_mut().zip(weights.chunks_exact(length)) {
                *chunks = &weights.as_chunks().0[..count];
            }
            let mut sums = [[_mm256_setzero_si256(); ROWS]; OUTPUTS];
            for at in 0..count {
                let mut weights = [_mm256_setzero_si256(); OUTPUTS];
                for (weights, chunks) in weights.iter_mut().zip(weight_chunks) {
                    *weights = _mm256_cvtepi8_epi16(load_bytes(&chunks[at]));
                }
                for (row, chunks) in row_chunks.iter().enumerate() {
                    let numbers = load(&chunks[at]);
                    for (sums, weights) in sums.iter_mut().zip(weights) {
                        sums[row] =
                            _mm256_add_epi32(sums[row], _mm256_madd_epi16(numbers, weights));
                    }
                }
            }
            let mut totals = [[0; ROWS]; OUTPUTS];
            for (totals, [a, b, c, d]) in totals.iter_mut().zip(sums) {
                let halves = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
                let low = _mm256_castsi256_si128(halves);
                let sums = _mm_add_epi32(low, _mm256_extracti128_si256::<1>(halves));
                *totals = [
                    _mm_extract_epi32::<0>(sums),
                    _mm_extract_epi32::<1>(sums),
                    _mm_extract_epi32::<2>(sums),
                    _mm_extract_epi32::<3>(sums),
                ];
            }
            totals
        }
    };
}

#[cfg(target_arch = "x86_64")]
sums!(avx2, "avx2");

/// Returns whether the processor has the instructions for [`avx512`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

// One instruction multiplies and adds.
#[cfg(target_arch = "x86_64")]
sums!(avx512, "avx2,avx512vl,avx512vnni");

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn load(numbers: &[i16; LANES]) -> std::arch::x86_64::__m256i {
    #[expect(unsafe_code, reason = "there is no safe function for this")]
    // SAFETY: the array has the 32 bytes that are read.
    unsafe {
        std::arch::x86_64::_mm256_loadu_si256(numbers.as_ptr().cast())
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn load_bytes(bytes: &[i8; LANES]) -> std::arch::x86_64::__m128i {
    #[expect(unsafe_code, reason = "there is no safe function for this")]
    // SAFETY: the array has the 16 bytes that are read.
    unsafe {
        std::arch::x86_64::_mm_loadu_si128(bytes.as_ptr().cast())
    }
}

#[cfg(test)]
mod tests {
    use super::{LANES, OUTPUTS, ROWS, portable};

    #[test]
    fn sums_are_those_of_the_portable_function() {
        for length in [LANES, 3 * LANES, 96 * LANES] {
            let number = |at: usize| i32::try_from(at * 7919 % 65_521).expect("a small number");
            let rows: Vec<i16> = (0..ROWS * length)
                .map(|at| (number(at) % 20_000 - 10_000) as i16)
                .collect();
            let weights: Vec<i8> = (0..OUTPUTS * length)
                .map(|at| (number(at + 99) % 256 - 128) as i8)
                .collect();
            let expect: i32 = rows[length..2 * length]
                .iter()
                .zip(&weights[length..])
                .map(|(row, weight)| i32::from(*row) * i32::from(*weight))
                .sum();
            let sums = portable(&rows, &weights, length);
            assert_eq!(sums[1][1], expect);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                #[expect(unsafe_code, reason = "a function for instructions of some processors")]
                // SAFETY: the processor has the instructions.
                let fast = unsafe { super::avx2(&rows, &weights, length) };
                assert_eq!(fast, sums);
            }
            #[cfg(target_arch = "x86_64")]
            if super::has_avx512() {
                #[expect(unsafe_code, reason = "a function for instructions of some processors")]
                // SAFETY: the processor has the instructions.
                let fast = unsafe { super::avx512(&rows, &weights, length) };
                assert_eq!(fast, sums);
            }
        }
    }
}
