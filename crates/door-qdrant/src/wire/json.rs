//! A cursor over the JSON text of a request.
//!
//! ```text
//!   {"points":[{"id":7,"vector":[0.1,0.2],"payload":{"a":1}}]}
//!    └ object: key by key      └ numbers.rs      └ raw: checked, kept as text
//! ```
//!
//! Requests are read in one pass, straight into the columns that the store takes. A value that is small
//! goes to serde through [`Reader::value`]; a vector never does. The grammar is RFC 8259 to the letter:
//! what passes here passes every other parser too, so a payload can be kept as it came. Nothing
//! here trusts a byte: no panic, no recursion deeper than `NESTING_MAX`.

use ramekin_base::{Error, Kind, limits};
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt::Display;

/// What is wrong with a request, and where: `points[3].vector[7]: expected a number`.
#[derive(Debug)]
pub struct Flaw {
    kind: Kind,
    path: String,
    message: String,
}

pub type Decoded<T> = Result<T, Box<Flaw>>;

impl Flaw {
    pub fn new(kind: Kind, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { kind, path: String::new(), message: message.into() })
    }

    pub fn malformed(message: impl Into<String>) -> Box<Self> {
        Self::new(Kind::Malformed, message)
    }

    /// A field that must be there and is not.
    pub fn missing(field: &str) -> Box<Self> {
        Self::malformed(format!("missing field `{field}`"))
    }

    /// A value out of its range.
    pub fn invalid(message: impl Into<String>) -> Box<Self> {
        Self::new(Kind::Invalid, message)
    }

    /// In Qdrant's API, but not built here.
    pub fn unbuilt(message: impl Display) -> Box<Self> {
        Self::new(Kind::Unsupported, format!("{message} is not built yet"))
    }

    /// The same flaw, seen from the object that holds the field.
    #[must_use]
    pub fn in_field(mut self: Box<Self>, field: &str) -> Box<Self> {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{field}{dot}{}", self.path);
        self
    }

    /// The same flaw, seen from the array that holds the element.
    #[must_use]
    pub fn in_element(mut self: Box<Self>, index: usize) -> Box<Self> {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("[{index}]{dot}{}", self.path);
        self
    }
}

impl From<Error> for Box<Flaw> {
    fn from(error: Error) -> Self {
        Flaw::new(error.kind(), error.message())
    }
}

impl From<Box<Flaw>> for Error {
    fn from(flaw: Box<Flaw>) -> Self {
        let Flaw { kind, path, message } = *flaw;
        let colon = if path.is_empty() { "" } else { ": " };
        Error::new(
            kind,
            match kind {
                Kind::Malformed => format!("Format error in JSON body: {path}{colon}{message}"),
                Kind::Invalid => format!("Validation error in JSON body: [{path}{colon}{message}]"),
                Kind::Busy | Kind::NoMemory => message,
                _ => format!("{path}{colon}{message}"),
            },
        )
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
            .map_err(|error| Flaw::malformed(format!("not UTF-8 after byte {}", error.valid_up_to())))?;
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
        self.bytes().get(self.at).copied().ok_or_else(|| Flaw::malformed("the text ends in the middle of a value"))
    }

    /// A flaw that says what was expected, what stands there instead, and at which byte.
    pub fn expected(&mut self, what: &str) -> Box<Flaw> {
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
        Flaw::malformed(format!("expected {what}, found {found} at byte {}", self.at))
    }

    fn enter(&mut self) -> Decoded<()> {
        self.at += 1;
        self.depth += 1;
        if self.depth > limits::NESTING_MAX {
            return Err(Flaw::malformed(format!("nested deeper than {} at byte {}", limits::NESTING_MAX, self.at)));
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
            _ => Err(Flaw::malformed(format!("expected ',' or '{}' at byte {}", close as char, self.at))),
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
            if self.peek()? != b':' {
                return Err(Flaw::malformed(format!("expected ':' at byte {}", self.at)).in_field(&key));
            }
            self.at += 1;
            field(self, &key).map_err(|flaw| flaw.in_field(&key))?;
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

    /// Takes a `null` if one stands here.
    pub fn null(&mut self) -> Decoded<bool> {
        if self.peek()? != b'n' {
            return Ok(false);
        }
        self.literal("null")?;
        Ok(true)
    }

    /// Reads a string.
    pub fn string(&mut self) -> Decoded<Cow<'a, str>> {
        if self.peek()? != b'"' {
            return Err(self.expected("a string"));
        }
        let from = self.at;
        let plain = self.skip_string()?;
        let quoted = self.slice(from);
        if plain {
            return Ok(Cow::Borrowed(&quoted[1..quoted.len() - 1]));
        }
        let text: String = serde_json::from_str(quoted).map_err(|error| Flaw::malformed(error.to_string()))?;
        Ok(Cow::Owned(text))
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
        let at = self.at;
        let text = self.raw()?;
        serde_json::from_str(text).map_err(|error| {
            let message = error.to_string();
            // serde counts lines and columns inside the value; where the value stands helps more.
            let what = message.split(" at line ").next().unwrap_or_default();
            Flaw::malformed(format!("{what} at byte {at}"))
        })
    }

    /// Passes over the next value.
    pub fn skip(&mut self) -> Decoded<()> {
        match self.peek()? {
            b'{' => self.object(|reader, _| reader.skip()),
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
            return Err(Flaw::malformed(format!("the text goes on after its value, at byte {}", self.at)));
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Decoded<()> {
        if !self.bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(Flaw::malformed(format!("expected {word} at byte {}", self.at)));
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
                    return Err(Flaw::malformed(format!("a control character inside a string at byte {}", self.at)));
                }
                Some(_) => self.at += 1,
                None => return Err(Flaw::malformed("the text ends in the middle of a string")),
            }
        }
    }

    fn skip_escape(&mut self) -> Decoded<()> {
        let wrong = |at: usize| Flaw::malformed(format!("an invalid escape at byte {at}"));
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
            prop_assert_eq!(Reader::new(quoted.as_bytes()).unwrap().string().unwrap(), text);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = check(&bytes);
        }
    }
}
