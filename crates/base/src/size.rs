//! Sizes in bytes as people write them: `256MiB`, `1.5GiB`, `64MB`, `4096`.
//!
//! `KiB MiB GiB TiB` (and the bare `K M G T`) are powers of 1024; `KB MB GB TB` are powers of 1000.

use crate::{Error, Result, excerpt};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

/// What is longer is no size, and is repeated to this length, bytes.
const TEXT_MOST: usize = 80;

impl Size {
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            let text = excerpt(text, TEXT_MOST);
            Error::invalid(format!("'{text}' is not a size; write a number with a unit, such as 256MiB"))
        };
        if text.len() > TEXT_MOST {
            return Err(wrong());
        }
        let lower = text.trim().to_ascii_lowercase();
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| lower.strip_suffix(name).map(|number| (number.trim(), *unit)))
            .unwrap_or((lower.as_str(), 1));
        let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let value: f64 = number.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
        let bytes = value * unit as f64;
        if bytes < (1u64 << 60) as f64 { Ok(Self(bytes as u64)) } else { Err(wrong()) }
    }
}

impl std::str::FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            bytes if bytes < 1 << 10 => return f.pad(&format!("{bytes} B")),
            bytes if bytes < 1 << 20 => (bytes as f64 / 1024.0, "KiB"),
            bytes if bytes < 1 << 30 => (bytes as f64 / 1_048_576.0, "MiB"),
            bytes => (bytes as f64 / 1_073_741_824.0, "GiB"),
        };
        f.pad(&format!("{value:.1} {unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("256MiB", 256 << 20),
            ("1.5 GiB", 3 << 29),
            ("64MB", 64_000_000),
            ("4096", 4096),
            ("12k", 12_288),
            ("7b", 7),
        ] {
            assert_eq!(Size::parse(text).unwrap().0, bytes, "{text}");
        }
        for text in ["", "MiB", "-1", "1e9", "nan", "9999999TiB", "12 parsecs"] {
            assert!(Size::parse(text).is_err(), "{text}");
        }
        let long = Size::parse(&"1".repeat(1 << 20)).unwrap_err();
        assert!(long.message().len() < 200, "{}", long.message().len());
        assert_eq!(Size(134_217_728).to_string(), "128.0 MiB");
    }
}
