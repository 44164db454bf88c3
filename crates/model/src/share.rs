//! How much one may have of what all have together.

/// Whether somebody who holds `held` of `most` may have one more, `total` of them being taken.
///
/// Whoever holds four times as much as is free gets no more: one alone may have four fifths, two have four ninths each,
/// and something is always left for whoever comes next.
#[must_use]
pub fn fair_share(held: usize, total: usize, most: usize) -> bool {
    held < most.saturating_sub(total).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_left_for_whoever_comes_next() {
        let take = |held: &mut usize, others: usize| {
            while fair_share(*held, *held + others, 1000) {
                *held += 1;
            }
        };
        let (mut one, mut two, mut three) = (0, 0, 0);
        take(&mut one, 0);
        assert_eq!(one, 800);
        take(&mut two, one);
        take(&mut three, one + two);
        assert_eq!((two, three), (160, 32));
        // A few are not shared out.
        assert!(fair_share(2, 2, 3) && !fair_share(3, 3, 3) && !fair_share(0, 4, 3));
    }
}
