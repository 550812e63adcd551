//! Bytes a key and bytes a version, by least squares over what was measured.
//!
//! ```text
//!   y = c0 + c1 x keys + c2 x versions of all keys          sum of (y - measured) squared is least
//! ```

/// The three numbers, and how far they are off at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    pub fixed: f64,
    pub per_key: f64,
    pub per_version: f64,
    pub off_most: f64,
}

/// Of a point: keys, versions of all keys, bytes.
pub type Measured = (f64, f64, f64);

impl Fit {
    /// `None`: the points do not tell the three apart.
    pub fn of(points: &[Measured]) -> Option<Self> {
        // Counts are scaled, so that what is eliminated is of one size.
        let most = |of: fn(&Measured) -> f64| points.iter().map(of).fold(1.0, f64::max);
        let (keys_most, all_most) = (most(|point| point.0), most(|point| point.1));
        let mut sums = [[0.0; 4]; 3];
        for (keys, all, bytes) in points {
            let row = [1.0, keys / keys_most, all / all_most];
            for (line, factor) in sums.iter_mut().zip(row) {
                for (sum, value) in line.iter_mut().zip([row[0], row[1], row[2], *bytes]) {
                    *sum += factor * value;
                }
            }
        }
        let [fixed, keys, all] = solved(sums)?;
        let (per_key, per_version) = (keys / keys_most, all / all_most);
        let off = |point: &Measured| (fixed + per_key * point.0 + per_version * point.1 - point.2).abs();
        Some(Self { fixed, per_key, per_version, off_most: points.iter().map(off).fold(0.0, f64::max) })
    }

    /// What keys and versions take by it.
    pub fn bytes(&self, keys: u64, all: u64) -> f64 {
        self.per_key * keys as f64 + self.per_version * all as f64
    }
}

/// Gauss, with the largest pivot.
fn solved(mut rows: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for at in 0..3 {
        let best = (at..3).max_by(|a, b| rows[*a][at].abs().total_cmp(&rows[*b][at].abs()))?;
        rows.swap(at, best);
        let pivot = rows[at];
        if pivot[at].abs() < 1e-9 {
            return None;
        }
        for (number, row) in rows.iter_mut().enumerate().filter(|(number, _)| *number != at) {
            let factor = row[at] / pivot[at];
            debug_assert_ne!(number, at);
            row.iter_mut().zip(pivot).for_each(|(value, pivot)| *value -= factor * pivot);
        }
    }
    Some([0, 1, 2].map(|at| rows[at][3] / rows[at][at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_the_plane_is_found_again() {
        let bytes = |keys: f64, all: f64| 9e6 + 120.0 * keys + 30.0 * all;
        let points: Vec<Measured> = [(1e4, 1e4), (1e4, 5e4), (1e6, 1e6), (1e6, 1e7)]
            .into_iter()
            .map(|(keys, all)| (keys, all, bytes(keys, all)))
            .collect();
        let fit = Fit::of(&points).unwrap();
        assert!((fit.per_key - 120.0).abs() < 1e-3 && (fit.per_version - 30.0).abs() < 1e-3, "{fit:?}");
        assert!((fit.fixed - 9e6).abs() < 10.0 && fit.off_most < 10.0, "{fit:?}");
        assert!((fit.bytes(10, 20) - 1800.0).abs() < 0.1);
    }

    #[test]
    fn points_that_do_not_tell_them_apart_are_no_fit() {
        assert_eq!(Fit::of(&[]), None);
        assert_eq!(Fit::of(&[(1.0, 1.0, 5.0), (2.0, 2.0, 6.0), (3.0, 3.0, 9.0)]), None);
    }
}
