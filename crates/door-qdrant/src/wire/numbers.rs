//! Numbers of a request: the hot part of an upload.
//!
//! ```text
//!   -0.0123456789e-3   ─►  sign, up to 19 digits as one u64 (eight at a time), power of ten
//!                      ─►  one multiplication or division in f64, rounded to f32
//! ```
//!
//! That is exact unless the f64 lies beside the middle of two f32 (about one number in ten million), the
//! digits do not fit, or the result is tiny or huge; then the standard library reads the text again
//! (Clinger, "How to read floating point numbers accurately", PLDI 1990). So the result is always the
//! nearest f32, whichever way it took.

use super::json::{DecodeError, Decoded, Reader};

/// Powers of ten that an f64 holds exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// A number cut into its parts; the value is `digits x 10^power`.
struct Parts {
    negative: bool,
    digits: u64,
    /// False if there were more digits than a u64 holds.
    whole: bool,
    power: i32,
}

/// Eight ASCII digits as a number, if they are digits (Lemire, "Quickly parsing eight digits", 2018).
fn eight(bytes: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let high = word & 0xF0F0_F0F0_F0F0_F0F0;
    let carried = word.wrapping_add(0x0606_0606_0606_0606) & 0xF0F0_F0F0_F0F0_F0F0;
    if high != 0x3030_3030_3030_3030 || carried != 0x3030_3030_3030_3030 {
        return None;
    }
    let word = word - 0x3030_3030_3030_3030;
    let pairs = word.wrapping_mul(10).wrapping_add(word >> 8);
    let low = (pairs & 0x0000_00FF_0000_00FF).wrapping_mul(0x000F_4240_0000_0064);
    let up = ((pairs >> 16) & 0x0000_00FF_0000_00FF).wrapping_mul(0x0000_2710_0000_0001);
    Some((low.wrapping_add(up) >> 32) & 0xFFFF_FFFF)
}

impl Reader<'_> {
    /// Reads digits into `digits`; returns how many there were.
    fn digits(&mut self, digits: &mut u64) -> usize {
        let bytes = self.bytes();
        let from = self.at;
        while let Some(value) = eight(&bytes[self.at..]) {
            *digits = digits.wrapping_mul(100_000_000).wrapping_add(value);
            self.at += 8;
        }
        while let Some(digit @ b'0'..=b'9') = bytes.get(self.at) {
            *digits = digits.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            self.at += 1;
        }
        self.at - from
    }

    fn parts(&mut self) -> Decoded<Parts> {
        let bytes = self.bytes();
        let wrong = |at: usize| DecodeError::malformed(format_args!("not a number at byte {at}"));
        let negative = bytes.get(self.at) == Some(&b'-');
        self.at += usize::from(negative);
        let mut digits = 0;
        let mut count = match bytes.get(self.at) {
            Some(b'0') => {
                self.at += 1;
                if let Some(b'0'..=b'9') = bytes.get(self.at) {
                    return Err(wrong(self.at));
                }
                0
            }
            Some(b'1'..=b'9') => self.digits(&mut digits),
            _ => return Err(wrong(self.at)),
        };
        let mut power = 0i32;
        if bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            let from = self.at;
            // Zeros in front are no digits that a u64 must hold.
            if count == 0 {
                while bytes.get(self.at) == Some(&b'0') {
                    self.at += 1;
                }
            }
            count += self.digits(&mut digits);
            if self.at == from {
                return Err(wrong(self.at));
            }
            power = -i32::try_from(self.at - from).unwrap_or(i32::MAX);
        }
        if let Some(b'e' | b'E') = bytes.get(self.at) {
            self.at += 1;
            let minus = bytes.get(self.at) == Some(&b'-');
            self.at += usize::from(minus || bytes.get(self.at) == Some(&b'+'));
            let mut exponent = 0;
            match self.digits(&mut exponent) {
                0 => return Err(wrong(self.at)),
                1..=8 => {}
                _ => exponent = 99_999_999,
            }
            let exponent = exponent as i32;
            power = power.saturating_add(if minus { -exponent } else { exponent });
        }
        Ok(Parts { negative, digits, whole: count <= 19, power })
    }

    /// Passes over a number; one that is too large for an f64 is refused, as every JSON reader would.
    pub(super) fn skip_number(&mut self) -> Decoded<()> {
        let from = self.at;
        let parts = self.parts()?;
        if (!parts.whole || parts.power > 280) && !self.slice(from).parse::<f64>().is_ok_and(f64::is_finite) {
            return Err(DecodeError::malformed(format_args!("a number out of range at byte {from}")));
        }
        Ok(())
    }

    /// Reads a number as the nearest f32.
    pub fn float(&mut self) -> Decoded<f32> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => {}
            _ => return Err(self.expected("a number")),
        }
        let from = self.at;
        let parts = self.parts()?;
        if let Some(value) = nearest(&parts) {
            return Ok(value);
        }
        match self.slice(from).parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err(DecodeError::malformed(format_args!("a number that no f32 holds at byte {from}"))),
        }
    }
}

/// The f32 nearest to the number, where one step in f64 is sure to find it.
fn nearest(parts: &Parts) -> Option<f32> {
    if !parts.whole {
        return None;
    }
    let value = match parts.power {
        _ if parts.digits == 0 => 0.0,
        power @ 0..=22 => parts.digits as f64 * POWERS[power as usize],
        power @ -22..=-1 => parts.digits as f64 / POWERS[-power as usize],
        _ => return None,
    };
    // Two roundings may be off by two units of the f64; only beside a middle of two f32 does that matter.
    let middle = (value.to_bits() & 0x1FFF_FFFF).abs_diff(0x1000_0000);
    if value != 0.0 && (middle <= 4 || !(1.2e-38..3.4e38).contains(&value)) {
        return None;
    }
    let value = value as f32;
    Some(if parts.negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Option<f32> {
        let mut reader = Reader::new(text.as_bytes()).unwrap();
        let value = reader.float().ok()?;
        reader.finish().ok().map(|()| value)
    }

    /// The middle of two neighbouring f32, digit by digit, and its neighbours: the worst case.
    #[test]
    fn middles_are_rounded_as_the_standard_library_does() {
        let mut rng = ramekin_base::Rng::new(3);
        for _ in 0..20_000 {
            let low = f32::from_bits((rng.next_u64() as u32 & 0x7FFF_FFFF).min(0x7F7F_FFFE));
            let high = f32::from_bits(low.to_bits() + 1);
            let middle = (f64::from(low) + f64::from(high)) / 2.0;
            for value in [middle.next_down(), middle, middle.next_up()] {
                for text in [format!("{value:?}"), format!("{value:.17e}"), format!("{value:.25}")] {
                    assert_eq!(read(&text).map(f32::to_bits), text.parse::<f32>().ok().map(f32::to_bits), "{text}");
                }
            }
        }
    }

    #[test]
    fn edges() {
        for text in [
            "0",
            "-0",
            "-0.0",
            "0e0",
            "1e-45",
            "1e-46",
            "1e-400",
            "3.4028235e38",
            "1.1754944e-38",
            "1e22",
            "1e23",
            "123456789012345678901234567890",
            "0.000000000000000000000000000000000000000001",
            "16777217",
            "1E+2",
        ] {
            assert_eq!(read(text).map(f32::to_bits), text.parse::<f32>().ok().map(f32::to_bits), "{text}");
        }
        for text in ["1e39", "-1e400", "3.5e38", "00", "01.5", "1.", "-", "1e", "0x1", "1_0"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_f32_comes_back(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            for text in [format!("{value:?}"), format!("{:?}", f64::from(value)), format!("{value:e}")] {
                prop_assert_eq!(read(&text).map(f32::to_bits), Some(value.to_bits()), "{}", text);
            }
        }

        #[test]
        fn any_decimal_is_the_nearest_f32(text in "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?") {
            let theirs = text.parse::<f32>().ok().filter(|value| value.is_finite());
            prop_assert_eq!(read(&text).map(f32::to_bits), theirs.map(f32::to_bits), "{}", text);
        }
    }
}
