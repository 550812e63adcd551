//! A text as an index of words takes it apart.
//!
//! ```text
//!   text ─► words ─► lower case ─► folded to ASCII ─► no stop word ─► stem ─► not too short, not too long ─► tokens
//!           runs of letters and digits ("word"), of what is no space ("whitespace"), with all their beginnings ("prefix"),
//!           without accents and with each letter of scripts that know no spaces by itself ("multilingual")
//! ```

use crate::key;
use crate::words::{Language, STEMS_VERSION, Stem, StopWords, folded, is_spaceless, pieces, plain};
use ramekin_base::message;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

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
    /// Whether accents and the like are taken off.
    #[serde(default)]
    pub folding: bool,
    #[serde(default)]
    pub stop_words: StopWords,
    #[serde(default)]
    pub stem: Option<Stem>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Word,
    Whitespace,
    /// Words, and all their beginnings.
    Prefix,
    /// Words of any script.
    Multilingual,
}

impl Default for Tokenizer {
    fn default() -> Self {
        let (folding, stop_words, stem) = (false, StopWords::default(), None);
        Self {
            kind: Kind::Word,
            lowercase: true,
            min_len: None,
            max_len: None,
            phrases: false,
            folding,
            stop_words,
            stem,
        }
    }
}

/// How texts are taken apart by this code; it changes when the tokens of some text do.
const TOKENS_VERSION: u32 = 1;

impl Tokenizer {
    /// What the tokens of an index follow from, beside what it was told: with another version they may be others.
    pub(crate) fn version(&self) -> Box<str> {
        let (major, minor, micro) = char::UNICODE_VERSION;
        let [and, stems] = if self.stem.is_some() { [", ", STEMS_VERSION] } else { [""; 2] };
        message(format_args!("tokens {TOKENS_VERSION}, unicode {major}.{minor}.{micro}{and}{stems}")).into()
    }

    /// The version of indexes that do not say it; those that have stems are of no version that is known.
    const UNSAID: &'static str = "tokens 1, unicode 17.0.0";

    /// Whether an index of this version has the tokens that texts have now.
    pub(crate) fn is_of(&self, version: Option<&str>) -> bool {
        *self.version() == *version.unwrap_or(Self::UNSAID)
    }

    /// Shows the tokens of a text that is stored.
    pub(crate) fn stored(&self, text: &str, each: &mut dyn FnMut(&str)) {
        self.words(text, true, &mut |word| match self.kind {
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

    /// Shows the tokens that a text asks for: as a beginning a stop word counts, since other words begin so.
    pub(crate) fn asked(&self, text: &str, each: &mut dyn FnMut(&str)) {
        self.words(text, self.kind != Kind::Prefix, &mut |word| match (self.kind, self.max_len) {
            (Kind::Prefix, _) if self.min_len.is_some_and(|least| word.chars().count() < least) => {}
            (Kind::Prefix, Some(most)) => {
                let end = word.char_indices().nth(most).map_or(word.len(), |(at, _)| at);
                each(&word[..end]);
            }
            (Kind::Prefix, None) => each(word),
            _ if self.fits(word) => each(word),
            _ => {}
        });
    }

    /// Whether a letter stands in words, before anything is done with them.
    pub(crate) fn is_of_word(&self, letter: char) -> bool {
        match self.kind {
            Kind::Whitespace => !letter.is_whitespace(),
            _ => letter.is_alphanumeric(),
        }
    }

    fn fits(&self, word: &str) -> bool {
        let len = word.chars().count();
        self.min_len.is_none_or(|least| len >= least) && self.max_len.is_none_or(|most| len <= most)
    }

    /// Shows the words that count, each as it is compared, those that do not too where `stops` is false.
    fn words(&self, text: &str, stops: bool, each: &mut dyn FnMut(&str)) {
        let mut one = |word: &str| {
            let mut word = Cow::Borrowed(word);
            if self.lowercase && !word.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
                word = word.to_lowercase().into();
            }
            if self.folding {
                word = Cow::Owned(folded(&word).into());
            }
            if stops && self.stop_words.holds(&word) {
                return;
            }
            match self.stem {
                Some(stem) => each(&stem.of(&word)),
                None => each(&word),
            }
        };
        let is_apart = |letter: char| !letter.is_alphanumeric();
        match self.kind {
            Kind::Whitespace => text.split_whitespace().for_each(&mut one),
            Kind::Word | Kind::Prefix => text.split(is_apart).filter(|word| !word.is_empty()).for_each(&mut one),
            Kind::Multilingual => {
                for piece in pieces(text) {
                    plain(piece).split(is_apart).for_each(|run| each_apart(run, &mut one));
                }
            }
        }
    }
}

/// Shows a run of letters, but for those of scripts that know no spaces: each of these is shown by itself.
fn each_apart(run: &str, each: &mut dyn FnMut(&str)) {
    let mut left = run;
    while let Some(first) = left.chars().next() {
        let end = match is_spaceless(first) {
            true => first.len_utf8(),
            false => left.find(is_spaceless).unwrap_or(left.len()),
        };
        let (word, rest) = left.split_at(end);
        each(word);
        left = rest;
    }
}

impl Tokenizer {
    /// The same without the words of these languages, and without these words.
    pub fn without(mut self, languages: Box<[Language]>, words: Box<[Box<str>]>) -> Self {
        self.stop_words = StopWords::new(languages, words, self.lowercase);
        self
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
        let multilingual = Tokenizer { kind: Kind::Multilingual, ..Tokenizer::default() };
        assert_eq!(stored(&multilingual, "Über 東京no-1"), ["uber", "東", "京", "no", "1"]);
        let mut asked = Vec::new();
        prefix.asked("Föxes a", &mut |token| asked.push(token.to_owned()));
        assert_eq!(asked, ["föx"]);
    }

    #[test]
    fn words_that_do_not_count() {
        let english = Tokenizer::default().without([Language::English].into(), ["Fox".into()].into());
        assert_eq!(stored(&english, "The quick fox is not THERE"), ["quick"]);
        let mut asked = Vec::new();
        let beginnings = Tokenizer { kind: Kind::Prefix, ..english.clone() };
        beginnings.asked("Not quick", &mut |token| asked.push(token.to_owned()));
        assert_eq!((asked, stored(&beginnings, "not a")), (vec!["not".to_owned(), "quick".into()], Vec::new()));
        let exact = Tokenizer { lowercase: false, ..Tokenizer::default() };
        let exact = exact.without([Language::English].into(), ["Fox".into()].into());
        assert_eq!(stored(&exact, "The the fox Fox"), ["The", "fox"]);
    }

    #[test]
    fn a_word_is_folded_then_checked_then_stemmed_then_measured() {
        let stem = Some(Stem::English);
        let stems = Tokenizer { stem, min_len: Some(4), ..Tokenizer::default() };
        assert_eq!(stored(&stems, "running foxes"), Vec::<String>::new());
        let stems = Tokenizer { stem, ..Tokenizer::default() }.without(Box::default(), ["run".into()].into());
        assert_eq!(stored(&stems, "run running"), ["run"]);
        let folding =
            Tokenizer { folding: true, ..Tokenizer::default() }.without(Box::default(), ["uber".into()].into());
        assert_eq!(stored(&folding, "Über façade straße Łódź Ærø 東京"), ["facade", "strasse", "lodz", "aero", "東京"]);
    }

    #[test]
    fn an_index_of_another_version_is_not_trusted() {
        let plain = Tokenizer::default();
        let stems = Tokenizer { stem: Some(Stem::Greek), ..Tokenizer::default() };
        for own in [&plain, &stems] {
            assert!(own.is_of(Some(&own.version())) && !own.is_of(Some("tokens 0")));
        }
        assert!(!plain.is_of(Some(&stems.version())));
        // What was written before versions were named: its stems are of another release.
        assert!(!stems.is_of(None));
        assert_eq!(plain.is_of(None), char::UNICODE_VERSION == (17, 0, 0));
    }
}
