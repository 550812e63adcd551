//! A figure with its spread: the median of the repetitions, the least and the most.

use serde_json::{Value, json};

/// Of several values of one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut ordered = values.to_vec();
        ordered.sort_unstable_by(f64::total_cmp);
        let (least, most) = (*ordered.first()?, *ordered.last()?);
        let upper = ordered[ordered.len() / 2];
        let lower = ordered[(ordered.len() - 1) / 2];
        Some(Self { median: (lower + upper) / 2.0, least, most })
    }

    /// `512 (480 to 530)`, or the median alone where all are alike.
    pub fn text(&self, digits: usize) -> String {
        let number = |value: f64| grouped(value, digits);
        let [median, least, most] = [self.median, self.least, self.most].map(number);
        if least == most { median } else { format!("{median} ({least} to {most})") }
    }

    pub fn json(&self) -> Value {
        json!({"median": self.median, "least": self.least, "most": self.most})
    }
}

/// A number with a comma before each three digits.
pub fn grouped(value: f64, digits: usize) -> String {
    let plain = format!("{value:.digits$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let (sign, whole) = whole.split_at(usize::from(whole.starts_with('-')));
    let mut out = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) && whole.bytes().all(|byte| byte.is_ascii_digit()) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

/// The value below which a share `p` of `ordered` lies (nearest rank); NaN of nothing.
pub fn percentile(ordered: &[f32], p: f64) -> f64 {
    let rank = (p * ordered.len() as f64).ceil() as usize;
    ordered.get(rank.saturating_sub(1)).map_or(f64::NAN, |value| f64::from(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_median_least_and_most() {
        assert_eq!(Spread::of(&[]), None);
        let odd = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.least, odd.most), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(odd.text(0), "2 (1 to 3)");
        assert_eq!(Spread::of(&[1234567.25]).unwrap().text(1), "1,234,567.2");
    }

    #[test]
    fn numbers_are_grouped() {
        let cases = [(0.0, 0, "0"), (999.6, 0, "1,000"), (-1234.5, 1, "-1,234.5"), (123.0, 2, "123.00")];
        for (value, digits, text) in cases {
            assert_eq!(grouped(value, digits), text);
        }
        assert_eq!(grouped(f64::NAN, 1), "NaN");
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let ordered: Vec<f32> = (1..=100).map(|n| n as f32).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|p| percentile(&ordered, p)), [50.0, 99.0, 100.0]);
        assert_eq!(percentile(&[7.0], 0.01), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
