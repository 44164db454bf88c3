//! Joins the scores by words with the similarities of meanings.
//!
//! Both are compared with the best of this search, since they have different scales. Their ranks would hide how far the
//! tools are apart.

/// The share of the meaning in the joined score.
const MEANING: f32 = 0.4;

/// Tools with a lower cosine are not similar to the query. Unrelated texts have about 0.1.
const LEAST_COSINE: f32 = 0.2;

/// The joined score of each tool, from 0 to 1: 0 for those that have neither words nor a similar meaning.
///
/// `scores` are those by words, 0 for tools without any. `cosines` compare meanings; `None` for hidden tools and for those
/// without a vector.
pub(crate) fn fuse(scores: &[f32], cosines: &[Option<f32>]) -> Vec<f32> {
    let similar = |cosine: &Option<f32>| cosine.filter(|cosine| *cosine >= LEAST_COSINE);
    let best_score = scores.iter().copied().fold(0.0, f32::max);
    let best_cosine = cosines.iter().filter_map(similar).fold(0.0, f32::max);
    let share = |value: f32, best: f32| if best > 0.0 { value / best } else { 0.0 };
    scores
        .iter()
        .zip(cosines)
        .map(|(score, cosine)| {
            let cosine = similar(cosine).unwrap_or(0.0);
            (1.0 - MEANING) * share(*score, best_score) + MEANING * share(cosine, best_cosine)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::fuse;

    #[test]
    fn tools_that_are_good_by_both_win() {
        let fused = fuse(
            &[3.0, 2.9, 1.0, 0.0],
            &[None, Some(0.9), Some(0.3), Some(0.5)],
        );
        let mut order: Vec<usize> = (0..4).collect();
        order.sort_by(|a, b| fused[*b].total_cmp(&fused[*a]));
        assert_eq!(order, [1, 0, 2, 3]);
        assert!(fused.iter().all(|score| (0.0..=1.0).contains(score)));
    }

    #[test]
    fn tools_without_anything_in_common_have_no_score() {
        let fused = fuse(&[0.0, 0.0, 0.0], &[None, Some(0.1), Some(-0.9)]);
        assert_eq!(fused, [0.0; 3]);
        assert_eq!(fuse(&[], &[]), [0.0; 0]);
    }
}
