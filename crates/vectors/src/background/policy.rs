//! Which segments are merged, and when.
//!
//! ```text
//!   at once                  a segment whose rows are all dead goes
//!   while data pours in      eight segments of one size class (a factor of 8) become one; of the larger
//!                            classes twelve
//!   between those            the segment with the largest share of dead rows is rewritten alone, if more of
//!                            the disk is dead than alive
//!   on a full disk           a segment whose rows are all dead goes; else the one with the most dead bytes is rewritten, of
//!                            those for which there is room
//!   when a moment is quiet   what is small beside the biggest, but together not negligible, joins it; and a segment
//!                            that has many dead rows alone is rewritten
//! ```
//!
//! Sizes are those of live rows, so what is mostly dead counts as small, and goes with its like: where points are
//! written again and again, rewriting alone what will be dead soon would leave no time for the merges. For the same
//! reason dead rows wait for a quiet moment, as long as the disk does not hold more of them than of live ones.
//!
//! The rule of classes writes each point about log8(n) times. The quiet moment leaves few segments to search,
//! and rewrites the big ones only for at least an eighth of their size; after a great upload all is written once more, so
//! large classes wait a little longer, and small ones are not merged by themselves before it. What waits for the rule of
//! classes is a debt, for which searches pay: writes are slowed down by it.

use crate::background::merge::STREAM_BYTES;

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
    /// Bytes of a freshly flushed segment.
    pub(crate) unit_bytes: u64,
    /// Segments that a merge has memory to read at one time.
    pub(crate) inputs_max: usize,
}

/// Segments of one class that become one.
const FAN_IN: usize = 8;
/// The same of larger segments than a flush writes.
const FAN_IN_ABOVE: usize = 12;
/// Small segments together must be this share of the one they join.
const JOIN_SHARE: u64 = 8;
/// Segments of one merge, with little memory and with much.
const INPUTS: (usize, usize) = (FAN_IN, 32);

/// Segments that a merge with so much memory reads at one time: an eighth of it is for their streams, some three each.
pub(crate) fn inputs_max(merge_bytes: u64) -> usize {
    ((merge_bytes / 8) as usize / STREAM_BYTES).clamp(INPUTS.0, INPUTS.1)
}

/// Places of the segments to merge now, or `None`.
pub(crate) fn choose(sizes: &[Size], rules: Rules, quiet: bool) -> Option<Vec<usize>> {
    all_dead(sizes)
        .or_else(|| if quiet { join(sizes, rules) } else { by_class(sizes, rules) })
        .or_else(|| if quiet || mostly_dead(sizes, rules) { vacuum(sizes, rules) } else { None })
}

/// A build keeps about as much beside its file while it works, and this much at least.
const BUILD_COPIES: u64 = 2;
const BUILD_LEAST: u64 = 128 << 10;
/// On a full disk this share of dead rows is enough, whatever the collection wants in better times.
const DEAD_SHARE_WHEN_FULL: f64 = 0.2;

/// The place of the segment to drop or to rewrite where the disk is full, with `room` to do it. `on_disk`: bytes of each.
pub(crate) fn when_full(sizes: &[Size], on_disk: &[u64], rules: Rules, room: u64) -> Option<usize> {
    let least = rules.deleted_threshold.min(DEAD_SHARE_WHEN_FULL);
    let dead = |at: &usize| on_disk[*at] / sizes[*at].points.max(1) * sizes[*at].dead;
    let needed = |at: &usize| (on_disk[*at] - dead(at).min(on_disk[*at])) * BUILD_COPIES + BUILD_LEAST;
    let is_wasteful = |at: &usize| sizes[*at].dead as f64 > sizes[*at].points as f64 * least;
    let fits = |at: &usize| is_wasteful(at) && needed(at) <= room;
    all_dead(sizes).map(|chosen| chosen[0]).or_else(|| (0..sizes.len()).filter(fits).max_by_key(dead))
}

fn all_dead(sizes: &[Size]) -> Option<Vec<usize>> {
    sizes.iter().position(|size| size.points == size.dead).map(|at| vec![at])
}

/// More of the disk is dead than alive, by more than what the next merge takes with it.
fn mostly_dead(sizes: &[Size], rules: Rules) -> bool {
    let dead_bytes = |size: &Size| size.bytes / (size.points - size.dead).max(1) * size.dead;
    let (alive, dead) = sizes.iter().fold((0, 0), |(alive, dead), size| (alive + size.bytes, dead + dead_bytes(size)));
    dead > alive + FAN_IN as u64 * rules.unit_bytes
}

fn vacuum(sizes: &[Size], rules: Rules) -> Option<Vec<usize>> {
    let share = |at: &usize| sizes[*at].dead as f64 / sizes[*at].points.max(1) as f64;
    let is_wasteful = |at: &usize| sizes[*at].points >= rules.vacuum_min_vectors && share(at) > rules.deleted_threshold;
    let most = (0..sizes.len()).filter(is_wasteful).max_by(|a, b| share(a).total_cmp(&share(b)));
    most.map(|at| vec![at])
}

/// A factor of eight in size makes a class.
fn class(size: &Size, rules: Rules) -> u32 {
    (size.bytes / rules.unit_bytes.max(1)).checked_ilog(FAN_IN as u64).unwrap_or(0)
}

fn fan_in(class: u32) -> usize {
    if class == 0 { FAN_IN } else { FAN_IN_ABOVE }
}

fn by_class(sizes: &[Size], rules: Rules) -> Option<Vec<usize>> {
    let top = sizes.iter().map(|size| class(size, rules)).max()?;
    (0..=top).find_map(|wanted| {
        let alike = (0..sizes.len()).filter(|at| class(&sizes[*at], rules) == wanted);
        let alike: Vec<usize> = alike.take(rules.inputs_max.max(fan_in(wanted))).collect();
        (alike.len() >= fan_in(wanted)).then_some(alike)
    })
}

/// Segments that wait to be merged, beyond those of one merge.
pub(crate) fn compaction_debt(sizes: &[Size], rules: Rules) -> usize {
    let mut alike = [0usize; u64::BITS as usize];
    sizes.iter().for_each(|size| alike[class(size, rules) as usize] += 1);
    let waiting = |(class, count): (u32, &usize)| count.saturating_sub(fan_in(class) - 1);
    let waiting: usize = (0..).zip(&alike).map(waiting).sum();
    waiting.saturating_sub(FAN_IN)
}

fn join(sizes: &[Size], rules: Rules) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|at| sizes[*at].bytes);
    order.truncate(rules.inputs_max);
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

    const RULES: Rules = Rules { deleted_threshold: 0.2, vacuum_min_vectors: 1000, unit_bytes: 100, inputs_max: 32 };

    fn of(bytes: u64) -> Size {
        Size { bytes, points: bytes, dead: 0 }
    }

    #[test]
    fn a_class_merges_at_eight() {
        let seven = vec![of(100); 7];
        assert_eq!(choose(&seven, RULES, false), None);
        assert_eq!(choose(&[of(100); 8], RULES, false).map(|merged| merged.len()), Some(8));
        assert_eq!(choose(&seven, RULES, true).map(|merged| merged.len()), Some(7));
        assert_eq!(choose(&[of(900); 11], RULES, false), None);
        assert_eq!(choose(&[of(900); 12], RULES, false).map(|merged| merged.len()), Some(12));
    }

    #[test]
    fn what_one_merge_takes_is_no_debt() {
        assert_eq!(compaction_debt(&[], RULES), 0);
        assert_eq!(compaction_debt(&vec![of(100); 15], RULES), 0);
        assert_eq!(compaction_debt(&vec![of(100); 20], RULES), 5);
        let two_classes: Vec<Size> = [of(100), of(900)].into_iter().cycle().take(40).collect();
        assert_eq!(compaction_debt(&two_classes, RULES), 14);
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
        assert_eq!(choose(&[of(90), wasteful], RULES, true), Some(vec![1]));
        assert_eq!(choose(&[of(100), wasteful], RULES, true), Some(vec![0, 1]), "both at one time");
        let worse = Size { dead: 1500, bytes: 90, ..wasteful };
        assert_eq!(choose(&[wasteful, worse], RULES, true), Some(vec![1]));
        assert_eq!(choose(&[wasteful, worse], RULES, false), None, "more will die soon");
        let worst = Size { dead: 1900, bytes: 100, ..wasteful };
        assert_eq!(choose(&[worst, wasteful], RULES, false), Some(vec![0]));
        let mut alike = vec![of(100); 8];
        alike.push(worse);
        assert_eq!(choose(&alike, RULES, false).map(|merged| merged.len()), Some(9), "what is mostly dead is small");
        alike.push(Size { points: 700, dead: 700, bytes: 0 });
        assert_eq!(choose(&alike, RULES, false), Some(vec![9]));
        assert_eq!(choose(&[Size { points: 900, ..wasteful }], RULES, true), None);
    }

    #[test]
    fn a_full_disk_is_given_back_what_is_dead_as_far_as_there_is_room() {
        let of = |points: u64, dead: u64| Size { bytes: points - dead, points, dead };
        let on_disk = [1 << 20, 8 << 20, 4 << 20];
        let sizes = [of(1000, 500), of(8000, 4000), of(4000, 100)];
        assert_eq!(when_full(&sizes, &on_disk, RULES, 64 << 20), Some(1), "the most");
        assert_eq!(when_full(&sizes, &on_disk, RULES, 4 << 20), Some(0), "for which there is room");
        assert_eq!(when_full(&sizes, &on_disk, RULES, 1 << 20), None);
        let never = Rules { deleted_threshold: 1.0, ..RULES };
        assert_eq!(when_full(&sizes[..1], &on_disk, never, 64 << 20), Some(0));
        assert_eq!(when_full(&[sizes[0], of(9, 9)], &on_disk, RULES, 0), Some(1), "it takes no room to drop one");
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
