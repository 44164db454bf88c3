//! Fair sharing of a limited resource.

/// Returns whether a user with `held` of `most` items may have one more, if `total` items are in use.
///
/// A user who holds at least four times as many items as are free gets no more. One user alone can have 4/5 of the
/// items, two can have 4/9 each, and some items always remain for the next user.
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
        // With so few items, one user can have them all.
        assert!(fair_share(2, 2, 3) && !fair_share(3, 3, 3) && !fair_share(0, 4, 3));
    }
}
