//! Joins two rankings by ranks, since their scores have different scales (reciprocal rank fusion).

/// The rank at which a tool has half the score of the first one. Higher values make the order at the top less decisive.
const HALF_RANK: f32 = 30.0;

/// Tools with a lower cosine are not similar to the query. Unrelated texts have about 0.1.
const LEAST_COSINE: f32 = 0.2;

/// The joined score of each tool: 0 for those that neither ranking has.
///
/// `scores` are those by words, 0 for tools without any. `cosines` compare meanings; `None` for hidden tools and for those
/// without a vector. Equal scores rank in the order of tools.
pub(crate) fn fuse(scores: &[f32], cosines: &[Option<f32>]) -> Vec<f32> {
    let mut fused = vec![0.0; scores.len()];
    let by_words = scores.iter().map(|score| (*score > 0.0).then_some(*score));
    let by_meaning = cosines
        .iter()
        .map(|cosine| cosine.filter(|cosine| *cosine >= LEAST_COSINE));
    add_ranks(by_words, &mut fused);
    add_ranks(by_meaning, &mut fused);
    fused
}

fn add_ranks(scores: impl Iterator<Item = Option<f32>>, fused: &mut [f32]) {
    let mut ranked: Vec<(f32, usize)> = scores
        .enumerate()
        .filter_map(|(tool, score)| Some((score?, tool)))
        .collect();
    ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut rank = 0.0;
    for (_, tool) in ranked {
        if let Some(fused) = fused.get_mut(tool) {
            *fused += HALF_RANK / (HALF_RANK + rank);
        }
        rank += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::fuse;

    #[test]
    fn tools_that_are_good_in_both_rankings_win() {
        let fused = fuse(
            &[3.0, 2.0, 1.0, 0.0],
            &[None, Some(0.9), Some(0.3), Some(0.5)],
        );
        let mut order: Vec<usize> = (0..4).collect();
        order.sort_by(|a, b| fused[*b].total_cmp(&fused[*a]));
        assert_eq!(order, [1, 2, 0, 3]);
    }

    #[test]
    fn tools_without_anything_in_common_have_no_score() {
        let fused = fuse(&[0.0, 0.0, 0.0], &[None, Some(0.1), Some(-0.9)]);
        assert_eq!(fused, [0.0; 3]);
        assert_eq!(fuse(&[], &[]), [0.0; 0]);
    }
}
