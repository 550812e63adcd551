//! What one value of a stored vector is, and its way there and back.
//!
//! ```text
//!   f32 ──round──► the nearest value that the datatype has ──pack──► bytes ──unpack──► the same f32
//!
//!   float32   4 bytes   as it is
//!   float16   2 bytes   nearest, ties to even; from 65,520 on there is none: infinite
//!   uint8     1 byte    the fraction cut off, below 0 is 0, above 255 is 255
//! ```
//!
//! A value is rounded once, when it comes in; packing what was rounded loses nothing.

use crate::kernels::kernels;
use serde::{Deserialize, Serialize};

/// How the values of a vector are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Datatype {
    #[default]
    Float32,
    Float16,
    Uint8,
}

impl Datatype {
    pub const ALL: [Datatype; 3] = [Self::Float32, Self::Float16, Self::Uint8];

    /// Its name in the API and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Uint8 => "uint8",
        }
    }

    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Float16 => 2,
            Self::Uint8 => 1,
        }
    }

    /// Brings each value to one that the datatype has.
    pub fn round(self, values: &mut [f32]) {
        match self {
            Self::Float32 => {}
            Self::Float16 => values.iter_mut().for_each(|x| *x = of_half(half(*x))),
            Self::Uint8 => values.iter_mut().for_each(|x| *x = f32::from(*x as u8)),
        }
    }

    /// Writes values, which it rounds, as bytes: [`Datatype::bytes`] each.
    pub fn pack(self, values: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), values.len() * self.bytes(), "values packed into another number of bytes");
        match self {
            Self::Float32 => {
                values.iter().zip(out.as_chunks_mut().0).for_each(|(x, bytes)| *bytes = x.to_le_bytes());
            }
            Self::Float16 => {
                values.iter().zip(out.as_chunks_mut().0).for_each(|(x, bytes)| *bytes = half(*x).to_le_bytes());
            }
            Self::Uint8 => values.iter().zip(out).for_each(|(x, byte)| *byte = *x as u8),
        }
    }

    /// Reads what [`Datatype::pack`] wrote.
    #[inline]
    pub fn unpack(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.bytes(), "values of another number of bytes");
        match self {
            Self::Float32 => {
                bytes.as_chunks().0.iter().zip(out).for_each(|(bytes, x)| *x = f32::from_le_bytes(*bytes));
            }
            // SAFETY: the lengths fit.
            Self::Float16 => unsafe { (kernels().unpack_halves)(bytes, out) },
            // SAFETY: the lengths fit.
            Self::Uint8 => unsafe { (kernels().unpack_bytes)(bytes, out) },
        }
    }
}

/// Bits of 2^112 as an f32: it moves an exponent from the bias of a half to that of a float.
const REBIAS: u32 = (127 + 112) << 23;
/// Bits of infinity.
const INFINITE: u32 = 0x7F80_0000;

/// The value of a half.
#[inline(always)]
pub(crate) fn of_half(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7FFF) << 13;
    // A half below its normal range is one below that of floats here; the product is exact for it too.
    let value = f32::from_bits(magnitude) * f32::from_bits(REBIAS);
    let beyond = if half & 0x7C00 == 0x7C00 { INFINITE } else { 0 };
    f32::from_bits(value.to_bits() | beyond | u32::from(half & 0x8000) << 16)
}

/// The half nearest to a value, the even one of two.
#[inline(always)]
fn half(value: f32) -> u16 {
    /// The least normal half, and the least float that is too large for any.
    const NORMAL: u32 = (127 - 14) << 23;
    const TOO_LARGE: u32 = (127 + 16) << 23;
    /// A float whose last bit is worth as much as that of a half below the normal range.
    const ALIGNED: u32 = (127 - 1) << 23;
    let magnitude = value.to_bits() & 0x7FFF_FFFF;
    let half = if magnitude < NORMAL {
        // The addition rounds as the processor does: to the nearest, ties to even.
        (f32::from_bits(magnitude) + f32::from_bits(ALIGNED)).to_bits() - ALIGNED
    } else if magnitude < TOO_LARGE {
        // A little less than half of the last place, and the missing bit only where the place is odd. What is carried
        // out of the largest half is infinite.
        (magnitude - ((127 - 15) << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13
    } else if magnitude <= INFINITE {
        0x7C00
    } else {
        0x7E00
    };
    half as u16 | (value.to_bits() >> 16 & 0x8000) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Rng;

    /// All finite halves that are not negative, ascending: their bits count up.
    fn halves() -> Vec<f32> {
        (0..0x7C00).map(of_half).collect()
    }

    #[test]
    fn every_half_comes_back() {
        for bits in 0..=u16::MAX {
            let value = of_half(bits);
            let nan = bits & 0x7FFF > 0x7C00;
            assert!(if nan { value.is_nan() } else { half(value) == bits }, "{bits:x} {value}");
        }
        let known = [1.0, 0.5, -2.0, 65504.0, 6.103_515_6e-5, 5.960_464_5e-8, f32::INFINITY];
        let bits = [0x3C00, 0x3800, 0xC000, 0x7BFF, 0x0400, 0x0001, 0x7C00];
        assert_eq!((known.map(half), bits.map(of_half)), (bits, known));
        assert_eq!([65_519.0, 65_520.0, -1e30].map(half), [0x7BFF, 0x7C00, 0xFC00]);
    }

    #[test]
    fn the_nearest_half_is_taken_and_the_even_one_of_two() {
        let (halves, mut rng) = (halves(), Rng::new(4));
        assert!(halves.windows(2).all(|pair| pair[0] < pair[1]));
        for at in 0..halves.len() - 1 {
            let (low, high) = (halves[at], halves[at + 1]);
            // Exact: a float has 13 more places.
            let middle = low + (high - low) / 2.0;
            let even = if at % 2 == 0 { low } else { high };
            for (value, wanted) in [(middle, even), (middle.next_down(), low), (middle.next_up(), high)] {
                assert_eq!(of_half(half(value)), wanted, "{value:e}");
                assert_eq!(of_half(half(-value)), -wanted, "-{value:e}");
            }
            let share = rng.below(1000) as f32 / 1000.0;
            let value = low + (high - low) * share;
            let wanted = if value - low < high - value { low } else { high };
            assert!(value == middle || of_half(half(value)) == wanted, "{value:e}");
        }
    }

    #[test]
    fn what_was_rounded_is_packed_without_loss() {
        let mut rng = Rng::new(5);
        for datatype in Datatype::ALL {
            for count in [0, 1, 3, 8, 31, 100, 1001] {
                let mut values: Vec<f32> = (0..count).map(|_| rng.normal() * 200.0).collect();
                datatype.round(&mut values);
                let again = values.clone();
                datatype.round(&mut values);
                assert_eq!(values, again);
                let (mut bytes, mut back) = (vec![1; count * datatype.bytes()], vec![9.0; count]);
                datatype.pack(&values, &mut bytes);
                datatype.unpack(&bytes, &mut back);
                assert_eq!(back, values);
            }
        }
        let mut values = [-3.0, -0.2, 0.99, 2.999, 254.5, 255.9, 300.0, 1e30];
        Datatype::Uint8.round(&mut values);
        assert_eq!(values, [0.0, 0.0, 0.0, 2.0, 254.0, 255.0, 255.0, 255.0]);
    }

    #[test]
    fn its_name_is_the_one_in_files() {
        for datatype in Datatype::ALL {
            let read = Datatype::deserialize(serde::de::value::StrDeserializer::<serde::de::value::Error>::new(
                datatype.name(),
            ));
            assert_eq!(read, Ok(datatype));
        }
    }
}
