//! The recall curve: what a search must do to find a given share of the true ten nearest.
//!
//! ```text
//!   recall   nprobe  slack  bound   candidates kept after 1 bit | 3 bits | 6 bits
//!    .90       14     1.1    1.4               61                16       12       each measured at build time
//!    .95       31     1.5    1.8               98                19       13       on held-out points of the segment
//!    .98       80     1.9    2.2              180                24       14
//! ```
//!
//! Between two steps values are interpolated over the logarithm of what is missed, so more recall never costs less.

use serde::{Deserialize, Serialize};

/// Shares of the true ten nearest that the curve has a step for.
pub(crate) const RECALLS: [f32; 15] =
    [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.998];

/// The answers that recall is measured on.
pub(crate) const NEAREST: usize = 10;

/// Of what may be missed at a step, the parts that go to lists not probed, to codes not refined (where there are one-bit
/// codes only: to candidates let go by their bound), and to candidates not rescored.
pub(crate) const MISSED_LISTS: f32 = 0.7;
pub(crate) const MISSED_SLACK: f32 = 0.15;
pub(crate) const MISSED_CANDIDATES: f32 = 0.15;

/// One measured step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The share of the ten nearest that these settings find.
    pub recall: f32,
    /// Lists scanned, nearest first.
    #[serde(rename = "probes")]
    pub nprobe: f32,
    /// Lists scanned to find the same share of the hundred nearest.
    #[serde(rename = "probes_hundred")]
    pub nprobe_hundred: f32,
    /// A one-bit code is refined if its estimate plus this many standard errors passes what is known already.
    pub slack: f32,
    /// Where only one-bit codes are at hand: a candidate is rescored if its estimate plus this many standard errors
    /// passes the k-th best that was rescored before it.
    #[serde(default = "Step::bound_unmeasured")]
    pub bound: f32,
    /// Candidates rescored where only one-bit codes are at hand.
    pub narrow: f32,
    /// Candidates rescored after refining with 3 and with 6 bits (Manhattan: both of 8).
    pub wide: [f32; 2],
}

/// All steps, from least recall to most.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub steps: Vec<Step>,
    /// Held-out points that it was measured on.
    pub points: usize,
}

/// What one search does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchEffort {
    pub nprobe: usize,
    pub slack: f32,
    pub bound: f32,
    pub narrow: usize,
    pub wide: [usize; 2],
}

impl Curve {
    /// The setting that finds the share `recall` of the `k` nearest.
    pub fn at(&self, recall: f32, k: usize) -> SearchEffort {
        let step = self.step(recall);
        // Measured for 10 and for 100, and between them along the power of k that joins them. Fewer than 10 are found
        // as ten are. Beyond 100, where points of other heaps come next, as k grows.
        let tens = (k.clamp(NEAREST, 100) as f32 / NEAREST as f32).log10();
        let beyond = k.max(100) as f32 / 100.0;
        let nprobe = step.nprobe * (step.nprobe_hundred / step.nprobe.max(1.0)).max(1.0).powf(tens) * beyond;
        // Candidates past the k that are wanted make up for the codes' error near the k-th: as many vectors as lie
        // there, which grow as k does.
        let more = |candidates: f32| {
            let past = (candidates - NEAREST as f32).max(1.0);
            (k as f32 + past * (k as f32 / NEAREST as f32).max(0.5)).ceil() as usize
        };
        SearchEffort {
            nprobe: (nprobe - 1e-3).ceil().max(1.0) as usize,
            slack: step.slack,
            bound: step.bound,
            narrow: more(step.narrow),
            wide: step.wide.map(more),
        }
    }

    /// The same where only one-bit codes are at hand. Each candidate costs a read then, and a list little beside it if codes
    /// are in memory: of what may be missed, more goes to candidates than to lists. `paged`: a list costs a read as well.
    pub fn at_narrow(&self, recall: f32, k: usize, paged: bool) -> SearchEffort {
        let lists = if paged { 0.5 } else { 0.4 };
        let share = |part: f32, of: f32| 1.0 - (1.0 - recall) * part / of;
        let candidates = self.at(share(1.0 - lists, MISSED_SLACK + MISSED_CANDIDATES), k);
        SearchEffort { nprobe: self.at(share(lists, MISSED_LISTS), k).nprobe, ..candidates }
    }

    fn step(&self, recall: f32) -> Step {
        let (Some(first), Some(last)) = (self.steps.first(), self.steps.last()) else {
            return Step { recall, ..Step::UNMEASURED };
        };
        if recall <= first.recall {
            return *first;
        }
        let Some(pair) = self.steps.windows(2).find(|pair| recall <= pair[1].recall) else {
            // Beyond what was measured: nprobe grows with what is missed less.
            let times = ((1.0 - last.recall) / (1.0 - recall).max(1e-4)).max(1.0).sqrt();
            return Step { recall, nprobe: last.nprobe * times, nprobe_hundred: last.nprobe_hundred * times, ..*last };
        };
        let missed = |recall: f32| (1.0 - recall).max(1e-6).ln();
        let way = (missed(recall) - missed(pair[0].recall)) / (missed(pair[1].recall) - missed(pair[0].recall));
        let mix = |a: f32, b: f32| a + (b - a) * way.clamp(0.0, 1.0);
        Step {
            recall,
            nprobe: mix(pair[0].nprobe, pair[1].nprobe),
            nprobe_hundred: mix(pair[0].nprobe_hundred, pair[1].nprobe_hundred),
            slack: mix(pair[0].slack, pair[1].slack),
            bound: mix(pair[0].bound, pair[1].bound),
            narrow: mix(pair[0].narrow, pair[1].narrow),
            wide: [0, 1].map(|at| mix(pair[0].wide[at], pair[1].wide[at])),
        }
    }

    /// Each value at least that of the step before: what noise made fall is lifted.
    pub(crate) fn make_monotone(&mut self) {
        for at in 1..self.steps.len() {
            let (before, rest) = self.steps.split_at_mut(at);
            let (before, step) = (&before[at - 1], &mut rest[0]);
            step.nprobe = step.nprobe.max(before.nprobe);
            step.nprobe_hundred = step.nprobe_hundred.max(before.nprobe_hundred).max(step.nprobe);
            step.slack = step.slack.max(before.slack);
            step.bound = step.bound.max(before.bound);
            step.narrow = step.narrow.max(before.narrow);
            step.wide = [0, 1].map(|width| step.wide[width].max(before.wide[width]));
        }
    }
}

impl Step {
    /// For an index too small to be measured.
    const UNMEASURED: Self = Self {
        recall: 0.0,
        nprobe: 1e9,
        nprobe_hundred: 1e9,
        slack: 3.0,
        bound: 3.0,
        narrow: 300.0,
        wide: [40.0, 20.0],
    };

    /// For a curve that was measured without it.
    fn bound_unmeasured() -> f32 {
        Self::UNMEASURED.bound
    }
}

/// The recall that a client asks for by `ef`: what a graph (HNSW, M = 16) finds with it on text vectors of a hundred
/// dimensions, about.
pub fn recall_of_ef(ef: usize) -> f32 {
    (1.0 - 0.04 * 64.0 / ef.max(1) as f32).clamp(0.3, 0.9995)
}

/// What is aimed at so that the wished recall is kept on other points than those measured.
pub fn with_safety_margin(target_recall: f32) -> f32 {
    with_margin(target_recall, SAFETY_MARGIN)
}

fn with_margin(target_recall: f32, safety: f32) -> f32 {
    1.0 - (1.0 - target_recall.clamp(0.3, 0.9999)) * (1.0 - safety)
}

/// Of what may be missed, the part that is kept back.
const SAFETY_MARGIN: f32 = 0.2;

impl Curve {
    /// Like [`aim`], with a margin of one and a half standard errors of this curve: for searches in which a little recall costs
    /// many reads, or lists alone make up for what codes miss. What is missed twice over is counted twice, which is a safety of its own.
    pub(crate) fn with_measured_margin(&self, target_recall: f32) -> f32 {
        let points = self.points.max(1) as f32;
        with_margin(target_recall, (MEASURED_MARGIN * (MANY_POINTS / points).sqrt()).min(0.5))
    }
}

/// The safety of a curve that was measured on [`MANY_POINTS`]: one and a half standard errors of its recall, as a part of what
/// is missed at .95. The error grows as the root of the points falls.
const MEASURED_MARGIN: f32 = 0.13;
const MANY_POINTS: f32 = 320.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> Curve {
        let steps = RECALLS.iter().enumerate().map(|(at, recall)| {
            let at = at as f32;
            Step {
                recall: *recall,
                nprobe: 2.0 + at * at,
                nprobe_hundred: 4.0 + at * at * 1.5,
                slack: 0.5 + at * 0.1,
                bound: 0.8 + at * 0.1,
                narrow: 40.0 + at * 10.0,
                wide: [15.0 + at, 11.0 + at / 4.0],
            }
        });
        Curve { steps: steps.collect(), points: 300 }
    }

    #[test]
    fn more_ef_and_more_hits_never_do_less() {
        let curve = curve();
        for k in [1, 10, 50, 100, 1000] {
            let mut before = curve.at(recall_of_ef(1), k);
            for ef in 2..3000 {
                let effort = curve.at(recall_of_ef(ef), k);
                assert!(effort.nprobe >= before.nprobe && effort.slack >= before.slack, "ef {ef} k {k}");
                assert!(effort.narrow >= before.narrow && effort.wide[1] >= before.wide[1]);
                assert!(effort.wide.iter().all(|candidates| *candidates >= k));
                before = effort;
            }
        }
        for ef in [1, 64, 1000] {
            let mut before = curve.at(recall_of_ef(ef), 1);
            for k in 2..200 {
                let effort = curve.at(recall_of_ef(ef), k);
                assert!(effort.nprobe >= before.nprobe && effort.wide[0] >= before.wide[0]);
                before = effort;
            }
        }
    }

    #[test]
    fn a_higher_wish_never_does_less_where_only_narrow_codes_are_at_hand() {
        for (points, paged) in [(20, false), (20, true), (320, false), (320, true)] {
            let curve = Curve { points, ..curve() };
            let at = |target_recall: f32| curve.at_narrow(curve.with_measured_margin(target_recall), 10, paged);
            let mut before = at(0.5);
            for target_recall in (501..999).map(|target_recall| target_recall as f32 / 1000.0) {
                assert!(curve.with_measured_margin(target_recall) >= target_recall);
                let effort = at(target_recall);
                assert!(
                    effort.nprobe >= before.nprobe && effort.narrow >= before.narrow && effort.bound >= before.bound
                );
                before = effort;
            }
        }
    }

    #[test]
    fn steps_are_met_exactly() {
        let curve = curve();
        for step in &curve.steps {
            assert_eq!(curve.at(step.recall, 10).nprobe, step.nprobe.ceil() as usize);
        }
        assert!(Curve::default().at(0.9, 10).nprobe > 1_000_000);
    }
}
