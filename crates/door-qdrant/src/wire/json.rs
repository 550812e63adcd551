//! A cursor over the JSON text of a request.
//!
//! ```text
//!   {"points":[{"id":7,"vector":[0.1,0.2],"payload":{"a":1}}]}
//!    └ object: key by key      └ numbers.rs      └ raw: checked, kept as text
//! ```
//!
//! Requests are read in one pass, straight into the columns that the store takes. A value that is small
//! goes to serde through [`Reader::value`]; a vector never does, nor does anything long: serde repeats in its messages what
//! it was given. The grammar is RFC 8259 to the letter:
//! what passes here passes every other parser too, so a payload can be kept as it came. Nothing
//! here trusts a byte: no panic, no recursion deeper than `NESTING_MAX`.

use ramekin_base::{Error, Kind, excerpt, limits, message};
use ramekin_memory::SharedReservation;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt::Display;

/// A value that serde reads, and a text with escapes that is copied without being booked, at most, bytes.
const SHORT_MAX: usize = 4 << 10;

/// What a flaw repeats of a key at most, and its whole path, bytes.
const KEY_SHOWN: usize = 200;
const PATH_SHOWN: usize = 512;

/// What is wrong with a request, and where: `points[3].vector[7]: expected a number`. It repeats a little of what the
/// client sent, however much that was.
#[derive(Debug)]
pub struct DecodeError {
    kind: Kind,
    path: String,
    message: String,
}

pub type Decoded<T> = Result<T, Box<DecodeError>>;

impl DecodeError {
    pub fn new(kind: Kind, text: impl Display) -> Box<Self> {
        Box::new(Self { kind, path: String::new(), message: message(text) })
    }

    pub fn malformed(message: impl Display) -> Box<Self> {
        Self::new(Kind::Malformed, message)
    }

    /// A field that must be there and is not.
    pub fn missing(field: &str) -> Box<Self> {
        Self::malformed(format_args!("missing field `{field}`"))
    }

    /// A value out of its range.
    pub fn invalid(message: impl Display) -> Box<Self> {
        Self::new(Kind::Invalid, message)
    }

    /// In Qdrant's API, but not built here.
    pub fn not_implemented(message: impl Display) -> Box<Self> {
        Self::new(Kind::Unsupported, format_args!("{message} is not built yet"))
    }

    /// The same flaw, seen from the object that holds the field.
    #[must_use]
    pub fn in_field(self: Box<Self>, field: &str) -> Box<Self> {
        self.inside(excerpt(field, KEY_SHOWN))
    }

    /// The same flaw, seen from the array that holds the element.
    #[must_use]
    pub fn in_element(self: Box<Self>, index: usize) -> Box<Self> {
        self.inside(&message(format_args!("[{index}]")))
    }

    fn inside(mut self: Box<Self>, step: &str) -> Box<Self> {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        // Of a path that is too long the outer steps are shown: they are found first.
        self.path = message(format_args!("{step}{dot}{}", excerpt(&self.path, PATH_SHOWN)));
        self
    }
}

impl From<Error> for Box<DecodeError> {
    fn from(error: Error) -> Self {
        DecodeError::new(error.kind(), error.message())
    }
}

impl From<Box<DecodeError>> for Error {
    fn from(flaw: Box<DecodeError>) -> Self {
        let DecodeError { kind, path, message: text } = *flaw;
        let colon = if path.is_empty() { "" } else { ": " };
        let text = match kind {
            Kind::Malformed => message(format_args!("Format error in JSON body: {path}{colon}{text}")),
            Kind::Invalid => message(format_args!("Validation error in JSON body: [{path}{colon}{text}]")),
            Kind::Busy | Kind::NoMemory => text,
            _ => message(format_args!("{path}{colon}{text}")),
        };
        Error::new(kind, text)
    }
}

/// The cursor. A clone of it looks ahead.
#[derive(Clone)]
pub struct Reader<'a> {
    text: &'a str,
    pub(super) at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Decoded<Self> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| DecodeError::malformed(format_args!("not UTF-8 after byte {}", error.valid_up_to())))?;
        Ok(Self { text, at: 0, depth: 0 })
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// Bytes read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are still to be read.
    pub fn left(&self) -> usize {
        self.text.len() - self.at
    }

    pub(super) fn slice(&self, from: usize) -> &'a str {
        self.text.get(from..self.at).unwrap_or_default()
    }

    pub(super) fn white(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes().get(self.at) {
            self.at += 1;
        }
    }

    /// The first byte of the next value or sign, past white space.
    pub fn peek(&mut self) -> Decoded<u8> {
        self.white();
        self.bytes()
            .get(self.at)
            .copied()
            .ok_or_else(|| DecodeError::malformed("the text ends in the middle of a value"))
    }

    /// A flaw that says what was expected, what stands there instead, and at which byte.
    pub fn expected(&mut self, what: &str) -> Box<DecodeError> {
        let found = match self.peek() {
            Err(flaw) => return flaw,
            Ok(b'{') => "an object",
            Ok(b'[') => "an array",
            Ok(b'"') => "a string",
            Ok(b't' | b'f') => "a boolean",
            Ok(b'n') => "null",
            Ok(b'-' | b'0'..=b'9') => "a number",
            Ok(_) => "a character that starts no value",
        };
        DecodeError::malformed(format_args!("expected {what}, found {found} at byte {}", self.at))
    }

    fn enter(&mut self) -> Decoded<()> {
        self.at += 1;
        self.depth += 1;
        if self.depth > limits::NESTING_MAX {
            return Err(DecodeError::malformed(format_args!(
                "nested deeper than {} at byte {}",
                limits::NESTING_MAX,
                self.at
            )));
        }
        Ok(())
    }

    /// After an element: true if another follows, false if `close` came.
    fn another(&mut self, close: u8) -> Decoded<bool> {
        match self.peek()? {
            b',' => {
                self.at += 1;
                Ok(true)
            }
            byte if byte == close => {
                self.at += 1;
                self.depth -= 1;
                Ok(false)
            }
            _ => Err(DecodeError::malformed(format_args!("expected ',' or '{}' at byte {}", close as char, self.at))),
        }
    }

    /// Reads an object; `field` reads the value of each key.
    pub fn object(&mut self, mut field: impl FnMut(&mut Self, &str) -> Decoded<()>) -> Decoded<()> {
        if self.peek()? != b'{' {
            return Err(self.expected("an object"));
        }
        self.enter()?;
        if self.peek()? == b'}' {
            return self.another(b'}').map(|_| ());
        }
        loop {
            if self.peek()? != b'"' {
                return Err(self.expected("a key in quotes"));
            }
            let key = self.string()?;
            self.colon(&key)?;
            field(self, &key).map_err(|flaw| flaw.in_field(&key))?;
            if !self.another(b'}')? {
                return Ok(());
            }
        }
    }

    fn colon(&mut self, key: &str) -> Decoded<()> {
        if self.peek()? != b':' {
            return Err(DecodeError::malformed(format_args!("expected ':' at byte {}", self.at)).in_field(key));
        }
        self.at += 1;
        Ok(())
    }

    /// Passes over an object; its keys are not read, however long they are.
    fn skip_object(&mut self) -> Decoded<()> {
        self.enter()?;
        if self.peek()? == b'}' {
            return self.another(b'}').map(|_| ());
        }
        loop {
            let (key, _) = self.quoted("a key in quotes")?;
            self.colon(key)?;
            self.skip().map_err(|flaw| flaw.in_field(key))?;
            if !self.another(b'}')? {
                return Ok(());
            }
        }
    }

    /// Reads an array; `element` reads each value, and is told which one it is. Returns how many there were.
    pub fn array(&mut self, mut element: impl FnMut(&mut Self, usize) -> Decoded<()>) -> Decoded<usize> {
        if self.peek()? != b'[' {
            return Err(self.expected("an array"));
        }
        self.enter()?;
        if self.peek()? == b']' {
            return self.another(b']').map(|_| 0);
        }
        for index in 0.. {
            element(self, index).map_err(|flaw| flaw.in_element(index))?;
            if !self.another(b']')? {
                return Ok(index + 1);
            }
        }
        Ok(0)
    }

    /// How many elements an array has: a list that is counted first is booked once, and does not move while it grows.
    pub fn count(mut self) -> Decoded<usize> {
        self.array(|reader, _| reader.skip())
    }

    /// Takes a `null` if one stands here.
    pub fn null(&mut self) -> Decoded<bool> {
        if self.peek()? != b'n' {
            return Ok(false);
        }
        self.literal("null")?;
        Ok(true)
    }

    /// What stands between the quotes, and whether it holds no escape.
    fn quoted(&mut self, what: &str) -> Decoded<(&'a str, bool)> {
        if self.peek()? != b'"' {
            return Err(self.expected(what));
        }
        let from = self.at;
        let plain = self.skip_string()?;
        let quoted = self.slice(from);
        Ok((&quoted[1..quoted.len() - 1], plain))
    }

    /// Reads a string that is not long: a name, a word, an id, a time.
    pub fn string(&mut self) -> Decoded<Cow<'a, str>> {
        match self.quoted("a string")? {
            (text, true) => Ok(Cow::Borrowed(text)),
            (text, false) if text.len() > SHORT_MAX => {
                let bytes = text.len();
                Err(DecodeError::malformed(format_args!(
                    "a string of {bytes} bytes, where at most {SHORT_MAX} may have escapes"
                )))
            }
            (text, false) => Ok(Cow::Owned(unescaped(text))),
        }
    }

    /// Reads a string of any length; its bytes are booked.
    pub fn text(&mut self, room: &mut SharedReservation) -> Decoded<Box<str>> {
        let (text, plain) = self.quoted("a string")?;
        room.text(text.len())?;
        Ok(if plain { text.into() } else { unescaped(text).into() })
    }

    /// The text of the next value, checked to be JSON.
    pub fn raw(&mut self) -> Decoded<&'a str> {
        self.white();
        let from = self.at;
        self.skip()?;
        Ok(self.slice(from))
    }

    /// The text of the next value, which must be an object.
    pub fn raw_object(&mut self) -> Decoded<&'a str> {
        if self.peek()? != b'{' {
            return Err(self.expected("an object"));
        }
        self.raw()
    }

    /// A small value, read by serde.
    pub fn value<T: DeserializeOwned>(&mut self) -> Decoded<T> {
        self.value_up_to(SHORT_MAX)
    }

    /// A value of at most so many bytes, read by serde.
    pub fn value_up_to<T: DeserializeOwned>(&mut self, most: usize) -> Decoded<T> {
        let at = self.at;
        let text = self.raw()?;
        if text.len() > most {
            let bytes = text.len();
            return Err(DecodeError::malformed(format_args!(
                "a value of {bytes} bytes, at most {most} are allowed, at byte {at}"
            )));
        }
        serde_json::from_str(text).map_err(|error| {
            let told = message(error);
            // serde counts lines and columns inside the value; where the value stands helps more.
            let what = told.split(" at line ").next().unwrap_or_default();
            DecodeError::malformed(format_args!("{what} at byte {at}"))
        })
    }

    /// Passes over the next value.
    pub fn skip(&mut self) -> Decoded<()> {
        match self.peek()? {
            b'{' => self.skip_object(),
            b'[' => self.array(|reader, _| reader.skip()).map(|_| ()),
            b'"' => self.skip_string().map(|_| ()),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            b'-' | b'0'..=b'9' => self.skip_number(),
            _ => Err(self.expected("a value")),
        }
    }

    /// Checks that nothing follows.
    pub fn finish(mut self) -> Decoded<()> {
        self.white();
        if self.left() > 0 {
            return Err(DecodeError::malformed(format_args!("the text goes on after its value, at byte {}", self.at)));
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Decoded<()> {
        if !self.bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(DecodeError::malformed(format_args!("expected {word} at byte {}", self.at)));
        }
        self.at += word.len();
        Ok(())
    }

    /// Passes over a string; true if it holds no escape.
    fn skip_string(&mut self) -> Decoded<bool> {
        let bytes = self.bytes();
        let mut plain = true;
        self.at += 1;
        loop {
            match bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(plain);
                }
                Some(b'\\') => {
                    plain = false;
                    self.skip_escape()?;
                }
                Some(0..0x20) => {
                    return Err(DecodeError::malformed(format_args!(
                        "a control character inside a string at byte {}",
                        self.at
                    )));
                }
                Some(_) => self.at += 1,
                None => return Err(DecodeError::malformed("the text ends in the middle of a string")),
            }
        }
    }

    fn skip_escape(&mut self) -> Decoded<()> {
        let wrong = |at: usize| DecodeError::malformed(format_args!("an invalid escape at byte {at}"));
        let bytes = self.bytes();
        let code = |at: usize| {
            let digits = bytes.get(at + 2..at + 6).filter(|_| bytes[at..].starts_with(b"\\u"))?;
            digits.iter().try_fold(0, |code, digit| Some(code * 16 + (*digit as char).to_digit(16)?))
        };
        match bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            // Half of a surrogate pair alone is no text.
            Some(b'u') => match code(self.at).ok_or_else(|| wrong(self.at))? {
                0xDC00..=0xDFFF => return Err(wrong(self.at)),
                0xD800..=0xDBFF => match code(self.at + 6) {
                    Some(0xDC00..=0xDFFF) => self.at += 12,
                    _ => return Err(wrong(self.at)),
                },
                _ => self.at += 6,
            },
            _ => return Err(wrong(self.at)),
        }
        Ok(())
    }
}

/// The text of a string whose escapes were checked.
fn unescaped(text: &str) -> String {
    // Every escape is longer than what it stands for.
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let code = |from: usize| after.get(from..from + 4).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let (symbol, length) = match after.as_bytes().first() {
            Some(b'b') => ('\u{8}', 1),
            Some(b'f') => ('\u{c}', 1),
            Some(b'n') => ('\n', 1),
            Some(b'r') => ('\r', 1),
            Some(b't') => ('\t', 1),
            Some(b'u') => match (code(1).unwrap_or_default(), code(7).unwrap_or_default()) {
                (high @ 0xD800..=0xDBFF, low) => {
                    (char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + (low & 0x3FF)).unwrap_or_default(), 11)
                }
                (code, _) => (char::from_u32(code).unwrap_or_default(), 5),
            },
            Some(other) => (char::from(*other), 1),
            None => break,
        };
        plain.push(symbol);
        rest = after.get(length..).unwrap_or_default();
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(bytes: &[u8]) -> Decoded<()> {
        let mut reader = Reader::new(bytes)?;
        reader.skip()?;
        reader.finish()
    }

    #[test]
    fn a_flaw_names_its_place() {
        let mut reader = Reader::new(br#"{"points":[{"id":1},{"id":true}]}"#).unwrap();
        let result = reader.object(|reader, _| {
            reader.array(|reader, _| reader.object(|reader, _| reader.value::<u64>().map(|_| ()))).map(|_| ())
        });
        let error = Error::from(result.unwrap_err());
        assert_eq!(
            error.message(),
            "Format error in JSON body: points[1].id: invalid type: boolean `true`, expected u64 at byte 26"
        );
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "+1",
            "-",
            "1e",
            "1e+",
            "tru",
            "nul",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\udc00\"",
            "\"a",
            "\"\n\"",
            "[1]]",
            "1e999",
            "NaN",
        ] {
            assert!(check(text.as_bytes()).is_err(), "{text}");
        }
        assert!(check(&[b'"', 0xFF, b'"']).is_err());
    }

    /// However long a key, a wrong value or a path is, a flaw and the error that it becomes stay small.
    #[test]
    fn a_flaw_repeats_little_of_what_it_was_sent() {
        let long = "\\u0001".repeat(1 << 17);
        let value = format!("\"{long}\"");
        let flaw = Reader::new(value.as_bytes()).unwrap().value::<u64>().unwrap_err();
        assert!(flaw.message.capacity() < 2 * limits::MESSAGE_MAX, "{}", flaw.message.capacity());
        let escaped = format!("{{\"{long}\":1}}");
        assert!(Reader::new(escaped.as_bytes()).unwrap().object(|_, _| Ok(())).is_err());
        let object = format!("{{\"{}\":{{\"{}\":x}}}}", "k".repeat(1 << 20), "l".repeat(1 << 20));
        for read in [Reader::skip, |reader: &mut Reader<'_>| reader.object(|reader, _| reader.skip())] {
            let flaw = read(&mut Reader::new(object.as_bytes()).unwrap()).unwrap_err();
            assert!(flaw.path.starts_with("kkk") && flaw.path.contains(".lll") && flaw.path.capacity() < 2048);
            assert!(Error::from(flaw).message().len() <= limits::MESSAGE_MAX);
        }
        let deep =
            format!("{}x", "{\"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\":".repeat(limits::NESTING_MAX));
        let flaw = check(deep.as_bytes()).unwrap_err();
        assert!(flaw.path.capacity() < 2048);
    }

    #[test]
    fn a_text_is_booked_before_it_is_copied() {
        let budget = ramekin_memory::Budget::new(1 << 20);
        let account = budget.root().child("bodies", "");
        for text in ["x".repeat(2 << 20), "\\n".repeat(1 << 20)] {
            let quoted = format!("\"{text}\"");
            let mut room = SharedReservation::new(0, account.clone(), None);
            assert!(Reader::new(quoted.as_bytes()).unwrap().text(&mut room).is_err());
        }
        assert_eq!(budget.peak(), 0);
    }

    #[test]
    fn nesting_ends() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check(deep(limits::NESTING_MAX).as_bytes()).is_ok());
        assert!(check(deep(limits::NESTING_MAX + 1).as_bytes()).is_err());
        assert!(check("[".repeat(1 << 20).as_bytes()).is_err());
    }

    proptest! {
        /// Bytes that look like JSON: we and serde_json agree on whether they are (up to the nesting we allow).
        #[test]
        fn agrees_with_serde_json(text in r#"[\[\]{}",:0-9eE+.\\ untrfalsbu-]{0,24}"#) {
            prop_assert_eq!(check(text.as_bytes()).is_ok(), serde_json::from_str::<serde_json::Value>(&text).is_ok());
        }

        #[test]
        fn strings_are_as_serde_json_reads_them(text in ".*") {
            let quoted = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(Reader::new(quoted.as_bytes()).unwrap().string().unwrap(), text.as_str());
            let all = text.encode_utf16().fold(String::new(), |all, unit| format!("{all}\\u{unit:04x}"));
            let all = format!("\"{all}\"");
            prop_assert_eq!(&*Reader::new(all.as_bytes()).unwrap().text(&mut SharedReservation::endless()).unwrap(), text);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = check(&bytes);
        }
    }
}
