//! Times as clients write them.
//!
//! RFC 3339, and what people write besides: a space for the `T`, no zone (then UTC), no seconds, a date alone.

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Utc};
use std::str::FromStr;

/// With a zone, where RFC 3339 does not read it.
const ZONED: [&str; 2] = ["%Y-%m-%dT%H:%M:%S%#z", "%Y-%m-%d %H:%M:%S%#z"];
/// Without one.
const PLAIN: [&str; 4] = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"];

/// Microseconds since 1970, or `None` if it is no time.
pub fn micros(text: &str) -> Option<i64> {
    let zoned = DateTime::parse_from_rfc3339(text).map(|time| time.with_timezone(&Utc)).ok();
    let zoned = zoned.or_else(|| DateTime::<Utc>::from_str(text).ok());
    let zoned = zoned.or_else(|| {
        ZONED.iter().find_map(|format| Some(DateTime::parse_from_str(text, format).ok()?.with_timezone(&Utc)))
    });
    let plain = || PLAIN.iter().find_map(|format| NaiveDateTime::parse_from_str(text, format).ok());
    let date = || Some(NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?.and_time(NaiveTime::MIN));
    let time = zoned.or_else(|| Some(plain().or_else(date)?.and_utc()))?;
    Some(time.timestamp_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_all_their_forms() {
        let midnight = 1_577_836_800_000_000;
        for text in [
            "2020-01-01",
            "2020-1-1",
            " 2020-01-01",
            "2020-01-01T00:00:00Z",
            "2020-01-01t00:00:00z",
            "2020-01-01 00:00:00Z",
            "2020-01-01T00:00:00",
            "2020-01-01 00:00:00",
            "2020-01-01T00:00",
            "2020-01-01 00:00",
            "2020-01-01T01:00:00+01:00",
            "2020-01-01T0:0:0Z",
        ] {
            assert_eq!(micros(text), Some(midnight), "{text}");
        }
        for text in ["2020-01-01T00:00:00+01", "2020-01-01T00:00:00+0100", "2020-01-01 00:00:00+01:00"] {
            assert_eq!(micros(text), Some(midnight - 3_600_000_000), "{text}");
        }
        assert_eq!(micros("2020-01-01T00:00:00.123456789Z"), Some(midnight + 123_456));
        assert_eq!(micros("2020-01-01 00:00:00.5"), Some(midnight + 500_000));
        for text in
            ["", "2020", "20200101", "2020-13-01", "2020-01-01T24:00:00Z", "2020-01-01T00:00Z", "12020-01-01", "x"]
        {
            assert_eq!(micros(text), None, "{text}");
        }
    }
}
