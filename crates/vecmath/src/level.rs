//! Which instructions to use: found out once, then one load.

use crate::kernels;

/// A set of kernels. Each level contains the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Plain Rust: what every other level is tested against.
    Plain = 1,
    /// x86-64 with AVX2, FMA, F16C, BMI and POPCNT.
    Avx2 = 2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512 = 3,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}

impl std::str::FromStr for Level {
    type Err = ramekin_base::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "plain" => Ok(Self::Plain),
            "avx2" => Ok(Self::Avx2),
            "avx512" => Ok(Self::Avx512),
            _ => Err(ramekin_base::Error::invalid(format!("SIMD level {text:?} is none of plain, avx2, avx512"))),
        }
    }
}

/// The level in use.
pub fn level() -> Level {
    kernels::kernels().level
}

/// The highest level that this processor offers.
pub fn detected() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        if avx512 {
            return Level::Avx512;
        }
        if avx2 {
            return Level::Avx2;
        }
    }
    Level::Plain
}

/// Uses `wanted` from now on, or the highest level there is below it; returns what is used. For tests and examples:
/// the choice holds for the whole process.
pub fn force_level(wanted: Level) -> Level {
    kernels::activate(wanted).level
}
