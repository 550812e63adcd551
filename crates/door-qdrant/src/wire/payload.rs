//! A payload's text, in which each key of an object stands once.
//!
//! ```text
//!   {"a":1,"b":{"c":2,"c":3},"a":4}   ─►   {"b":{"c":3},"a":4}      of a key that stands twice the last value counts
//! ```
//!
//! Filters see the last value of such a key, so nothing else is stored. A text without one is kept as it came.

use super::json::{DecodeError, Decoded, Reader};
use ramekin_base::{Error, Kind, limits};
use ramekin_memory::{BookedVec, SharedReservation};
use std::hash::{DefaultHasher, Hasher};

/// Reads a payload: the text of an object, which is booked.
pub fn read(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<Box<str>> {
    if reader.peek()? != b'{' {
        return Err(reader.expected("an object"));
    }
    let mut again = reader.clone();
    let has_twins = has_twins(reader, room)?;
    let text = reader.slice(again.at());
    if text.len() > limits::PAYLOAD_MAX {
        let most = limits::PAYLOAD_MAX;
        return Err(DecodeError::new(Kind::TooLarge, format_args!("a payload of more than {most} bytes")));
    }
    room.text(text.len())?;
    if !has_twins {
        return Ok(text.into());
    }
    let mut out = BookedVec::new(room);
    out.reserve(text.len())?;
    rewrite(&mut again, &mut out, room)?;
    let rewritten = std::str::from_utf8(&out).map_err(|_| Error::bug("a rewritten payload is no text"))?;
    Ok(rewritten.into())
}

/// A key by its hash, which nobody finds two keys for.
fn hash(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key.as_bytes());
    hasher.finish()
}

/// Passes over a value. True if a key stands twice in one object of it.
fn has_twins(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<bool> {
    let mut found = false;
    match reader.peek()? {
        b'{' => {
            let mut keys = BookedVec::new(room);
            reader.object(|reader, key| {
                keys.push(hash(key))?;
                found |= has_twins(reader, room)?;
                Ok(())
            })?;
            keys.sort_unstable();
            found |= keys.windows(2).any(|pair| pair[0] == pair[1]);
        }
        b'[' => {
            reader.array(|reader, _| {
                found |= has_twins(reader, room)?;
                Ok(())
            })?;
        }
        _ => reader.skip()?,
    }
    Ok(found)
}

/// Writes a value without the fields that a later one of the same object replaces.
fn rewrite(reader: &mut Reader<'_>, out: &mut BookedVec<u8>, room: &mut SharedReservation) -> Decoded<()> {
    match reader.peek()? {
        b'{' => {
            let replaced = replaced(&mut reader.clone(), room)?;
            // The text of a field begins behind the sign before it, and its key ends with the colon.
            let (mut from, mut place, mut sign) = (reader.at() + 1, 0, "{");
            reader.object(|reader, _| {
                let key = reader.slice(from).trim_start_matches(|sign: char| sign == ',' || sign.is_ascii_whitespace());
                if replaced[place] {
                    reader.skip()?;
                } else {
                    write(sign, out)?;
                    write(key, out)?;
                    rewrite(reader, out, room)?;
                    sign = ",";
                }
                (from, place) = (reader.at(), place + 1);
                Ok(())
            })?;
            // An empty one has not begun yet.
            write(if place == 0 { "{}" } else { "}" }, out)
        }
        b'[' => {
            write("[", out)?;
            reader.array(|reader, index| {
                write(if index > 0 { "," } else { "" }, out)?;
                rewrite(reader, out, room)
            })?;
            write("]", out)
        }
        _ => write(reader.raw()?, out),
    }
}

fn write(text: &str, out: &mut BookedVec<u8>) -> Decoded<()> {
    text.bytes().try_for_each(|byte| Ok(out.push(byte)?))
}

/// Of each field of an object, whether a later one has the same key.
fn replaced(reader: &mut Reader<'_>, room: &mut SharedReservation) -> Decoded<BookedVec<bool>> {
    let mut keys = BookedVec::new(room);
    let mut replaced = BookedVec::new(room);
    reader.object(|reader, key| {
        keys.push((hash(key), keys.len()))?;
        replaced.push(false)?;
        reader.skip()
    })?;
    keys.sort_unstable();
    keys.windows(2).filter(|pair| pair[0].0 == pair[1].0).for_each(|pair| replaced[pair[0].1] = true);
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Box<str> {
        let mut reader = Reader::new(text.as_bytes()).unwrap();
        let read = super::read(&mut reader, &mut SharedReservation::endless()).unwrap();
        reader.finish().unwrap();
        read
    }

    #[test]
    fn of_a_key_that_stands_twice_the_last_value_is_kept() {
        for (text, kept) in [
            (r#"{ "a": 1, "b" : [ {"a": 2} ] }"#, r#"{ "a": 1, "b" : [ {"a": 2} ] }"#),
            (r#"{"d":1,"d":2}"#, r#"{"d":2}"#),
            (r#"{"a":1,"b":{"c":2, "c":3},"a":4}"#, r#"{"b":{"c":3},"a":4}"#),
            (r#"{"a":[{"x":1,"x":{"y":1,"y":[]}},1.50e3]}"#, r#"{"a":[{"x":{"y":[]}},1.50e3]}"#),
            (r#"{"\u0061":1,"a":"\u0062"}"#, r#"{"a":"\u0062"}"#),
            (r#"{"a\"":1,"a\"":2}"#, r#"{"a\"":2}"#),
            ("{}", "{}"),
        ] {
            assert_eq!(&*read(text), kept, "{text}");
        }
    }

    proptest! {
        /// What is kept means what serde_json reads of the text: it takes the last value, too.
        #[test]
        fn the_meaning_stays(pairs in prop::collection::vec(("[ab]{1,2}", "[ab]{0,1}", 0..9u32), 0..8)) {
            let fields = pairs.iter().map(|(key, inner, value)| {
                format!(r#""{key}":{{"{inner}":{value},"b":[{value}, {{}}]}}"#)
            });
            let text = format!("{{{}}}", fields.collect::<Vec<_>>().join(","));
            let kept = read(&text);
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            prop_assert_eq!(value(&kept), value(&text));
            prop_assert_eq!(&*read(&kept), &*kept);
        }
    }
}
