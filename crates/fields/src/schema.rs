//! What an index of a field holds: the kind of its values, and what is asked of them.
//!
//! ```text
//!   keyword   strings                         bool      true, false
//!   integer   integers                        geo       places: {"lon": .., "lat": ..}
//!   float     numbers                         text      the words of strings
//!   datetime  times                           uuid      UUIDs, whatever their form
//! ```

use crate::tokens::Tokenizer;
use serde::{Deserialize, Serialize};

/// An index of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schema {
    Keyword,
    /// With `lookup` it answers matches, with `range` ranges.
    Integer {
        lookup: bool,
        range: bool,
    },
    Float,
    Bool,
    Datetime,
    Uuid,
    Geo,
    Text(Tokenizer),
}

impl Schema {
    /// As clients name it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Keyword => "keyword",
            Self::Integer { .. } => "integer",
            Self::Float => "float",
            Self::Bool => "bool",
            Self::Datetime => "datetime",
            Self::Uuid => "uuid",
            Self::Geo => "geo",
            Self::Text(_) => "text",
        }
    }

    /// Of a text, which version of the tokenizer makes its words now.
    pub fn tokens(&self) -> Option<Box<str>> {
        if let Self::Text(tokenizer) = self { Some(tokenizer.version()) } else { None }
    }

    /// Whether an index that was built with this version of the tokenizer has the words that texts have now.
    pub fn has_tokens_of(&self, version: Option<&str>) -> bool {
        if let Self::Text(tokenizer) = self { tokenizer.is_of(version) } else { true }
    }

    /// The kind of this name, with nothing else said.
    pub fn named(name: &str) -> Option<Self> {
        let plain = [Self::Keyword, Self::Float, Self::Bool, Self::Datetime, Self::Uuid, Self::Geo];
        let said = [Self::Integer { lookup: true, range: true }, Self::Text(Tokenizer::default())];
        plain.into_iter().chain(said).find(|schema| schema.name() == name)
    }
}
