//! Which segments are merged, and when.
//!
//! ```text
//!   while data pours in      eight segments of one size class (a factor of 8) become one
//!   when a moment is quiet   what is small beside the biggest, but together not negligible, joins it
//!   any time                 a segment with many dead rows is rewritten alone
//! ```
//!
//! The first rule writes each point about log8(n) times. The second leaves few segments to search,
//! and rewrites the big ones only for at least an eighth of their size.

/// What the policy looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Bytes of vectors of live points.
    pub(crate) bytes: u64,
    pub(crate) points: u64,
    pub(crate) dead: u64,
}

/// The collection's own settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) deleted_threshold: f64,
    pub(crate) vacuum_min_vectors: u64,
    /// Bytes of a freshly sealed segment.
    pub(crate) unit_bytes: u64,
}

const FAN_IN: usize = 8;
/// Small segments together must be this share of the one they join.
const JOIN_SHARE: u64 = 8;
/// Streams of one merge are bounded, and so are its inputs.
const INPUTS_MAX: usize = 32;

/// Places of the segments to merge now, or `None`.
pub(crate) fn choose(sizes: &[Size], rules: Rules, quiet: bool) -> Option<Vec<usize>> {
    vacuum(sizes, rules).or_else(|| by_class(sizes, rules)).or_else(|| if quiet { join(sizes) } else { None })
}

fn vacuum(sizes: &[Size], rules: Rules) -> Option<Vec<usize>> {
    let wasteful = |size: &Size| {
        size.points == size.dead
            || size.points >= rules.vacuum_min_vectors
                && size.dead as f64 > rules.deleted_threshold * size.points as f64
    };
    sizes.iter().position(wasteful).map(|at| vec![at])
}

fn by_class(sizes: &[Size], rules: Rules) -> Option<Vec<usize>> {
    let class = |size: &Size| (size.bytes / rules.unit_bytes.max(1)).checked_ilog(FAN_IN as u64).unwrap_or(0);
    let top = sizes.iter().map(class).max()?;
    (0..=top).find_map(|wanted| {
        let alike: Vec<usize> = (0..sizes.len()).filter(|at| class(&sizes[*at]) == wanted).take(INPUTS_MAX).collect();
        (alike.len() >= FAN_IN).then_some(alike)
    })
}

fn join(sizes: &[Size]) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|at| sizes[*at].bytes);
    order.truncate(INPUTS_MAX);
    let (mut below, mut take) = (0, 0);
    for (place, at) in order.iter().enumerate() {
        if place > 0 && below * JOIN_SHARE >= sizes[*at].bytes {
            take = place + 1;
        }
        below += sizes[*at].bytes;
    }
    (take >= 2).then(|| order[..take].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Rng;

    const RULES: Rules = Rules { deleted_threshold: 0.2, vacuum_min_vectors: 1000, unit_bytes: 100 };

    fn of(bytes: u64) -> Size {
        Size { bytes, points: bytes, dead: 0 }
    }

    #[test]
    fn a_class_merges_at_eight() {
        let seven = vec![of(100); 7];
        assert_eq!(choose(&seven, RULES, false), None);
        assert_eq!(choose(&[of(100); 8], RULES, false).map(|merged| merged.len()), Some(8));
        assert_eq!(choose(&seven, RULES, true).map(|merged| merged.len()), Some(7));
    }

    #[test]
    fn small_ones_join_a_big_one_only_when_it_pays() {
        assert_eq!(choose(&[of(8000), of(100), of(300)], RULES, true), Some(vec![1, 2]));
        assert_eq!(choose(&[of(8000), of(1200)], RULES, true), Some(vec![1, 0]));
        assert_eq!(choose(&[of(8000), of(400)], RULES, true), None);
    }

    #[test]
    fn dead_rows_ask_for_a_rewrite() {
        let wasteful = Size { bytes: 800, points: 2000, dead: 500 };
        assert_eq!(choose(&[of(100), wasteful], RULES, false), Some(vec![1]));
        assert_eq!(choose(&[Size { points: 900, ..wasteful }], RULES, false), None);
    }

    /// Whatever comes in, merging ends and leaves few segments.
    #[test]
    fn merging_always_ends() {
        let mut rng = Rng::new(3);
        let (mut sizes, mut written, mut total) = (Vec::new(), 0, 0);
        for _ in 0..500 {
            let size = of(50 + rng.below(100));
            total += size.bytes;
            sizes.push(size);
            let mut rounds = 0;
            while let Some(mut chosen) = choose(&sizes, RULES, rng.chance(0.1)) {
                chosen.sort_unstable_by(|a, b| b.cmp(a));
                let merged: u64 = chosen.iter().map(|at| sizes.swap_remove(*at).bytes).sum();
                written += merged;
                sizes.push(of(merged));
                rounds += 1;
                assert!(rounds < 50);
            }
        }
        assert!(sizes.len() < 3 * FAN_IN, "{} segments", sizes.len());
        assert!(written < total * 12, "each byte was written {} times", written / total);
    }
}
