//! A text as an index of words takes it apart.
//!
//! ```text
//!   text ─► lower case ─► folded to ASCII ─► words ─► not too short, not too long ─► tokens
//!           (if asked)    (if asked)         runs of letters and digits ("word"), or of what is no space ("whitespace")
//!                                            and all their beginnings ("prefix")
//! ```

use crate::key;
use serde::{Deserialize, Serialize};

/// Bytes of a beginning at most.
const PREFIX_MAX: usize = key::KEPT;

/// How texts are taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokenizer {
    pub kind: Kind,
    pub lowercase: bool,
    /// Characters of a token.
    pub min_len: Option<usize>,
    pub max_len: Option<usize>,
    /// Whether phrases can be asked for.
    pub phrases: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Word,
    Whitespace,
    /// Words, and all their beginnings.
    Prefix,
}

impl Default for Tokenizer {
    fn default() -> Self {
        Self { kind: Kind::Word, lowercase: true, min_len: None, max_len: None, phrases: false }
    }
}

impl Tokenizer {
    /// Shows the tokens of a text that is stored.
    pub(crate) fn stored(&self, text: &str, each: &mut dyn FnMut(&str)) {
        self.words(text, &mut |word| match self.kind {
            Kind::Prefix => {
                let (least, most) = (self.min_len.unwrap_or(1), self.max_len.unwrap_or(usize::MAX));
                let ends = word.char_indices().map(|(at, letter)| at + letter.len_utf8());
                ends.enumerate()
                    .skip(least.saturating_sub(1))
                    .take_while(|(before, end)| *before < most && *end <= PREFIX_MAX)
                    .for_each(|(_, end)| each(&word[..end]));
            }
            _ if self.fits(word) => each(word),
            _ => {}
        });
    }

    /// Shows the tokens that a text asks for.
    pub(crate) fn asked(&self, text: &str, each: &mut dyn FnMut(&str)) {
        self.words(text, &mut |word| match (self.kind, self.max_len) {
            (Kind::Prefix, Some(most)) => {
                let end = word.char_indices().nth(most).map_or(word.len(), |(at, _)| at);
                each(&word[..end]);
            }
            (Kind::Prefix, None) => each(word),
            _ if self.fits(word) => each(word),
            _ => {}
        });
    }

    fn fits(&self, word: &str) -> bool {
        let len = word.chars().count();
        self.min_len.is_none_or(|least| len >= least) && self.max_len.is_none_or(|most| len <= most)
    }

    fn words(&self, text: &str, each: &mut dyn FnMut(&str)) {
        let mut one = |word: &str| {
            if self.lowercase {
                each(&word.to_lowercase());
            } else {
                each(word);
            }
        };
        match self.kind {
            Kind::Whitespace => text.split_whitespace().for_each(&mut one),
            Kind::Word | Kind::Prefix => {
                text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).for_each(&mut one);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
        let mut tokens = Vec::new();
        tokenizer.stored(text, &mut |token| tokens.push(token.to_owned()));
        tokens
    }

    #[test]
    fn tokens_of_each_kind() {
        let word = Tokenizer::default();
        assert_eq!(stored(&word, "The quick-brown  Föx!"), ["the", "quick", "brown", "föx"]);
        let whitespace = Tokenizer { kind: Kind::Whitespace, lowercase: false, ..word.clone() };
        assert_eq!(stored(&whitespace, "The quick-brown  Föx!"), ["The", "quick-brown", "Föx!"]);
        let short = Tokenizer { min_len: Some(4), max_len: Some(4), ..word.clone() };
        assert_eq!(stored(&short, "The four föxe lengths"), ["four", "föxe"]);
        let prefix = Tokenizer { kind: Kind::Prefix, min_len: Some(2), max_len: Some(3), ..word };
        assert_eq!(stored(&prefix, "Föxes a"), ["fö", "föx"]);
        let mut asked = Vec::new();
        prefix.asked("Föxes", &mut |token| asked.push(token.to_owned()));
        assert_eq!(asked, ["föx"]);
    }
}
