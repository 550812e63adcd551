//! The least value that still does, by binary search.
//!
//! ```text
//!   low ────────────────── high        high does? ── no ──► none
//!          no      middle  yes         low does?  ── yes ─► low
//!          ▲ the border moves until it is one step wide
//! ```

use ramekin_base::Result;

/// The least of `low`, `low + step`, … up to `high` for which `does` holds. It is taken to hold for all above the least.
pub fn least(low: u64, high: u64, step: u64, mut does: impl FnMut(u64) -> Result<bool>) -> Result<Option<u64>> {
    let steps = (high.saturating_sub(low)).div_ceil(step.max(1));
    let value = |at: u64| (low + at * step).min(high);
    if !does(high)? {
        return Ok(None);
    }
    if steps == 0 || does(low)? {
        return Ok(Some(low.min(high)));
    }
    let (mut no, mut yes) = (0, steps);
    while yes - no > 1 {
        let middle = no + (yes - no) / 2;
        if does(value(middle))? {
            yes = middle;
        } else {
            no = middle;
        }
    }
    Ok(Some(value(yes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Error;

    #[test]
    fn it_agrees_with_a_plain_search() {
        for (low, high, step) in [(0, 0, 1), (1, 10, 1), (3, 50, 7), (16, 128, 4), (5, 6, 100)] {
            let mut all: Vec<u64> = (low..high).step_by(step as usize).collect();
            all.push(high);
            for border in 0..=high + 2 {
                let mut asked = 0;
                let found = least(low, high, step, |value| {
                    asked += 1;
                    assert!(value >= low && value <= high);
                    Ok(value >= border)
                });
                let plain = all.iter().find(|value| **value >= border).copied();
                assert_eq!(found.unwrap(), plain, "{low} to {high} by {step}, border {border}");
                assert!(asked <= 2 + 64 - (all.len() as u64).leading_zeros(), "{asked} of {}", all.len());
            }
        }
    }

    #[test]
    fn an_error_ends_it() {
        assert!(least(1, 9, 1, |_| Err(Error::io("gone"))).is_err());
    }
}
