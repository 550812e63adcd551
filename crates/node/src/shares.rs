//! Who gets how much of the budget, where several stores share it: numbers in, numbers out.
//!
//! ```text
//!   total ─► each its least ─► the rest: half equally, half by use, to those in use, none more than it can use
//!                                └─► what is left then, or all where nobody is in use, to the first
//! ```
//!
//! The first store is that of vectors: it has a use for all that there is, so what it is given is the budget less what the
//! others have, and it computes its sizes from that as it would from a budget.

/// What a store says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// What it holds in any case, also where nobody writes to it.
    pub idle: u64,
    /// With less it cannot do what it does now.
    pub least: u64,
    /// What it must be able to have for the largest that it may be asked to do: the least budget has that.
    pub needed: u64,
    /// More it would not use.
    pub most: u64,
    /// Requests since it was opened.
    pub requests: u64,
}

/// What is known of a store when shares are planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// Requests of late; 0: it is not in use.
    pub(crate) recent: u64,
}

/// Shares are whole multiples of this, but for the first.
const STEP: u64 = 64 << 10;
/// A plan is not worth the moves if it moves no share by more than one part in so many of the total, nor by half of it.
const WORTH: u64 = 16;

/// The shares of all stores. Their sum is `total`, unless all of them want less, and none is below its least, unless there is not
/// enough for all: then who comes first is served first.
pub(crate) fn plan(total: u64, claims: &[Claim]) -> Vec<u64> {
    let mut left = total;
    let mut shares: Vec<u64> = Vec::with_capacity(claims.len());
    for claim in claims {
        shares.push(claim.least.min(left));
        left -= shares[shares.len() - 1];
    }
    // Who can use no more leaves the others more in the next round.
    for _ in 0..claims.len() {
        let open = |at: &usize| claims[*at].recent > 0 && shares[*at] + STEP <= claims[*at].most;
        let open: Vec<usize> = (0..claims.len()).filter(open).collect();
        let recent: u64 = open.iter().map(|at| claims[*at].recent).sum();
        let rest = left;
        for at in &open {
            let (equally, by_use) = (rest / 2 / open.len() as u64, portion(rest / 2, claims[*at].recent, recent));
            let more = (equally + by_use).min(claims[*at].most - shares[*at]).min(left) / STEP * STEP;
            shares[*at] += more;
            left -= more;
        }
    }
    if let (Some(first), Some(claim)) = (shares.first_mut(), claims.first()) {
        *first += left.min(claim.most.saturating_sub(*first));
    }
    shares
}

fn portion(of: u64, part: u64, all: u64) -> u64 {
    (u128::from(of) * u128::from(part) / u128::from(all.max(1))) as u64
}

/// Whether shares as they are serve as well as those that were planned: so that they do not come and go with each breath.
pub(crate) fn is_near(total: u64, now: &[u64], planned: &[u64], claims: &[Claim]) -> bool {
    let fits = now.iter().sum::<u64>() <= total;
    let near = |(now, planned): (&u64, &u64)| now.abs_diff(*planned) <= (total / WORTH).min(now / 2);
    let served = |(now, claim): (&u64, &Claim)| *now >= claim.least;
    fits && now.iter().zip(planned).all(near) && now.iter().zip(claims).all(served)
}

/// How much a store is asked of late: halves with each look.
#[derive(Debug, Default)]
pub(crate) struct Use {
    seen: u64,
    recent: u64,
    quiet: u32,
}

/// Looks without a request after which a store is not in use.
const QUIET_LOOKS: u32 = 3;

impl Use {
    /// Requests of late; 0: it is not in use.
    pub(crate) fn recent(&self) -> u64 {
        self.recent
    }

    /// `requests` since it was opened; returns those of late.
    pub(crate) fn look(&mut self, requests: u64) -> u64 {
        let new = requests.saturating_sub(self.seen);
        self.seen = requests;
        self.quiet = if new > 0 { 0 } else { self.quiet.saturating_add(1) };
        self.recent = if self.quiet >= QUIET_LOOKS { 0 } else { (self.recent / 2 + new).max(1) };
        self.recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Rng;

    const MIB: u64 = 1 << 20;

    fn draw(rng: &mut Rng) -> (u64, Vec<Claim>) {
        let total = rng.below(128 * MIB);
        let claims = (0..1 + rng.below(4)).map(|at| {
            let least = rng.below(8 * MIB);
            let most = if at == 0 { u64::MAX } else { least + rng.below(64 * MIB) };
            Claim { least, most, recent: if rng.chance(0.3) { 0 } else { 1 + rng.below(100_000) } }
        });
        (total, claims.collect())
    }

    #[test]
    fn shares_add_up_and_none_is_below_its_least() {
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let (total, claims) = draw(&mut rng);
            let shares = plan(total, &claims);
            assert_eq!(shares.iter().sum::<u64>(), total, "the first takes what is left: {claims:?}");
            let mut left = total;
            for (share, claim) in shares.iter().zip(&claims) {
                assert!(*share >= claim.least.min(left) && *share <= claim.most.max(claim.least), "{total} {claims:?}");
                left = left.saturating_sub(claim.least);
            }
            for (share, claim) in shares.iter().zip(&claims).skip(1) {
                assert!(claim.recent > 0 || *share <= claim.least, "who is not in use has its least: {claims:?}");
            }
        }
    }

    #[test]
    fn who_is_used_more_has_no_less() {
        let mut rng = Rng::new(2);
        for _ in 0..20_000 {
            let (total, mut claims) = draw(&mut rng);
            let at = rng.below(claims.len() as u64) as usize;
            let before = plan(total, &claims)[at];
            claims[at].recent += rng.below(1_000_000);
            let after = plan(total, &claims)[at];
            // But for what is rounded in each round.
            let rounded = STEP * (claims.len() * claims.len()) as u64;
            assert!(after + rounded >= before, "{before} became {after}: {total} {claims:?}");
        }
    }

    #[test]
    fn idle_stores_leave_the_rest_to_the_first_and_a_busy_one_does_not_starve_it() {
        let first = |recent| Claim { least: 19 * MIB, most: u64::MAX, recent };
        let other = |recent| Claim { least: MIB / 2, most: 40 * MIB, recent };
        assert_eq!(plan(64 * MIB, &[first(100), other(0), other(0)]), [63 * MIB, MIB / 2, MIB / 2]);
        assert_eq!(plan(64 * MIB, &[first(0), other(0), other(0)]), [63 * MIB, MIB / 2, MIB / 2]);
        let shares = plan(64 * MIB, &[first(10), other(1_000_000), other(0)]);
        assert!(shares[0] >= 29 * MIB && shares[1] >= 32 * MIB && shares[2] == MIB / 2, "{shares:?}");
        assert_eq!(plan(64 * MIB, &[first(0), other(5), other(0)]), [64 * MIB - 41 * MIB + MIB / 2, 40 * MIB, MIB / 2]);
        assert_eq!(plan(20 * MIB, &[first(1), other(1), other(1)]).iter().sum::<u64>(), 20 * MIB);
    }

    #[test]
    fn small_differences_move_nothing_and_large_ones_do() {
        let claims = [Claim { least: MIB, most: u64::MAX, recent: 1 }, Claim { least: MIB, most: u64::MAX, recent: 1 }];
        let near = |now: [u64; 2], planned: [u64; 2]| is_near(64 * MIB, &now, &planned, &claims);
        assert!(near([32 * MIB, 32 * MIB], [35 * MIB, 29 * MIB]));
        assert!(!near([32 * MIB, 32 * MIB], [40 * MIB, 24 * MIB]));
        assert!(!near([33 * MIB, 32 * MIB], [32 * MIB, 32 * MIB]), "the sum is too much");
        assert!(!near([64 * MIB, 0], [63 * MIB, MIB]), "one has less than its least");
        assert!(!near([60 * MIB, 4 * MIB], [63 * MIB, MIB]), "one has four times of what it should");
    }

    #[test]
    fn use_is_of_late() {
        let mut used = Use::default();
        assert_eq!([used.look(1000), used.look(1000), used.look(1000), used.look(1000)], [1000, 500, 250, 0]);
        assert_eq!([used.look(1001), used.look(3001)], [1, 2000]);
    }
}
