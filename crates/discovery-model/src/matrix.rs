//! Matrices of `f32`, row by row.

/// Sets `out` to `a × b`: `a` has `rows` rows of `inner` numbers, `b` has `inner` rows of `columns` numbers, and `out` has
/// `rows` rows of `columns` numbers.
pub(crate) fn multiply(
    (a, rows): (&[f32], usize),
    (b, columns): (&[f32], usize),
    inner: usize,
    out: &mut [f32],
) {
    assert!(a.len() >= rows * inner && b.len() >= columns * inner && out.len() >= rows * columns);
    let step = |numbers: usize| isize::try_from(numbers).expect("fits in memory");
    #[expect(
        unsafe_code,
        reason = "the function has no safe form; the assertion above checks what it reads and writes"
    )]
    // SAFETY: all matrices are as long as their sizes say, and `out` is borrowed exclusively.
    unsafe {
        matrixmultiply::sgemm(
            rows,
            inner,
            columns,
            1.0,
            a.as_ptr(),
            step(inner),
            1,
            b.as_ptr(),
            step(columns),
            1,
            0.0,
            out.as_mut_ptr(),
            step(columns),
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::multiply;

    #[test]
    fn rows_are_multiplied_with_columns() {
        let (a, b) = (
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            [1.0, 0.0, 0.0, 2.0, 1.0, 0.0],
        );
        let mut out = [0.0; 4];
        multiply((&a, 2), (&b, 2), 3, &mut out);
        assert_eq!(out, [4.0, 4.0, 10.0, 10.0]);
    }
}
