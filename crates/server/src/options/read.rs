//! The values of a command's options, each read as what it is to be.

use clap::ArgMatches;
use ramekin_base::{Error, Result, Size};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::str::FromStr;

/// A flag's value, read as what it is to be; an error names the flag.
pub struct Read<'a>(pub &'a ArgMatches);

impl Read<'_> {
    pub fn text(&self, name: &str) -> Option<String> {
        self.0.get_one::<String>(name).cloned()
    }

    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    pub fn read<T>(&self, name: &str, read: impl Fn(&str) -> Result<T>) -> Result<Option<T>> {
        self.text(name).map(|text| read(&text).map_err(|error| error.at(format!("--{name}")))).transpose()
    }

    pub fn number<T: FromStr>(&self, name: &str, what: &str) -> Result<Option<T>> {
        let wrong = |text: &str| Error::invalid(format!("'{text}' is not {what}"));
        self.read(name, |text| text.parse().map_err(|_| wrong(text)))
    }

    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        self.number(name, "a whole number")
    }

    /// Above or equal to 0, and finite.
    pub fn real(&self, name: &str) -> Result<Option<f64>> {
        let number = self.number::<f64>(name, "a number")?;
        match number {
            Some(number) if !(0.0..=1e9).contains(&number) => {
                Err(Error::invalid(format!("--{name}: {number} is not from 0 to 10^9")))
            }
            number => Ok(number),
        }
    }

    pub fn size(&self, name: &str) -> Result<Option<u64>> {
        self.read(name, |text| Size::parse(text).map(|size| size.0))
    }

    pub fn object(&self, name: &str) -> Result<Option<Map<String, Value>>> {
        self.read(name, |text| match serde_json::from_str(text) {
            Ok(Value::Object(object)) => Ok(object),
            _ => Err(Error::invalid(format!("'{text}' is no JSON object"))),
        })
    }
}
