//! What is done with single words: languages and their stop words, stems, letters without accents.

use frostem::{Algorithm, Stemmer};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::OnceLock;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// A language whose stop words are known; the lists are those of NLTK, but for Japanese, of which it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Arabic,
    Azerbaijani,
    Basque,
    Bengali,
    Catalan,
    Chinese,
    Danish,
    Dutch,
    English,
    Finnish,
    French,
    German,
    Greek,
    Hebrew,
    Hinglish,
    Hungarian,
    Indonesian,
    Italian,
    Japanese,
    Kazakh,
    Nepali,
    Norwegian,
    Portuguese,
    Romanian,
    Russian,
    Slovene,
    Spanish,
    Swedish,
    Tajik,
    Turkish,
}

/// Each language with its name and the code of its list.
const LANGUAGES: [(Language, &str, &str); 30] = [
    (Language::Arabic, "arabic", "ar"),
    (Language::Azerbaijani, "azerbaijani", "az"),
    (Language::Basque, "basque", "eu"),
    (Language::Bengali, "bengali", "bn"),
    (Language::Catalan, "catalan", "ca"),
    (Language::Chinese, "chinese", "zh"),
    (Language::Danish, "danish", "da"),
    (Language::Dutch, "dutch", "nl"),
    (Language::English, "english", "en"),
    (Language::Finnish, "finnish", "fi"),
    (Language::French, "french", "fr"),
    (Language::German, "german", "de"),
    (Language::Greek, "greek", "el"),
    (Language::Hebrew, "hebrew", "he"),
    (Language::Hinglish, "hinglish", "hinglish"),
    (Language::Hungarian, "hungarian", "hu"),
    (Language::Indonesian, "indonesian", "id"),
    (Language::Italian, "italian", "it"),
    (Language::Japanese, "japanese", "ja"),
    (Language::Kazakh, "kazakh", "kk"),
    (Language::Nepali, "nepali", "ne"),
    (Language::Norwegian, "norwegian", "no"),
    (Language::Portuguese, "portuguese", "pt"),
    (Language::Romanian, "romanian", "ro"),
    (Language::Russian, "russian", "ru"),
    (Language::Slovene, "slovene", "sl"),
    (Language::Spanish, "spanish", "es"),
    (Language::Swedish, "swedish", "sv"),
    (Language::Tajik, "tajik", "tg"),
    (Language::Turkish, "turkish", "tr"),
];

impl Language {
    pub const COUNT: usize = LANGUAGES.len();
    /// As clients name them.
    pub const NAMES: [&'static str; Self::COUNT] = {
        let mut names = [""; Self::COUNT];
        let mut at = 0;
        while at < names.len() {
            names[at] = LANGUAGES[at].1;
            at += 1;
        }
        names
    };

    pub fn named(name: &str) -> Option<Self> {
        LANGUAGES.iter().find(|(_, own, _)| *own == name).map(|(language, ..)| *language)
    }

    /// Ascending.
    fn stop_words(self) -> &'static [&'static str] {
        static LISTS: [OnceLock<Box<[&'static str]>>; LANGUAGES.len()] = [const { OnceLock::new() }; LANGUAGES.len()];
        LISTS[self as usize].get_or_init(|| {
            let mut words: Box<[_]> = stop_words::lookup(LANGUAGES[self as usize].2).unwrap_or(&JAPANESE).into();
            words.sort_unstable();
            words
        })
    }
}

/// Particles, pronouns and auxiliary verbs.
const JAPANESE: [&str; 44] = [
    "は",
    "が",
    "の",
    "に",
    "を",
    "で",
    "と",
    "も",
    "へ",
    "から",
    "まで",
    "より",
    "や",
    "か",
    "ね",
    "よ",
    "です",
    "ます",
    "でした",
    "ました",
    "だ",
    "である",
    "する",
    "いる",
    "ある",
    "なる",
    "こと",
    "もの",
    "これ",
    "それ",
    "あれ",
    "この",
    "その",
    "あの",
    "ここ",
    "そこ",
    "あそこ",
    "どこ",
    "だれ",
    "なに",
    "私",
    "彼",
    "彼女",
    "しかし",
];

/// Words that do not count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopWords {
    languages: Box<[Language]>,
    /// Ascending.
    words: Box<[Box<str>]>,
}

impl StopWords {
    pub(crate) fn new(languages: Box<[Language]>, words: Box<[Box<str>]>, lowercase: bool) -> Self {
        let (mut languages, mut words) = (languages.into_vec(), words.into_vec());
        languages.sort_unstable();
        languages.dedup();
        if lowercase {
            words.iter_mut().for_each(|word| *word = word.to_lowercase().into());
        }
        words.sort_unstable();
        words.dedup();
        Self { languages: languages.into(), words: words.into() }
    }

    pub(crate) fn holds(&self, word: &str) -> bool {
        self.words.binary_search_by(|own| (**own).cmp(word)).is_ok()
            || self.languages.iter().any(|language| language.stop_words().binary_search(&word).is_ok())
    }
}

/// A language whose words have stems: the algorithms of Snowball (M. F. Porter, 2001).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    Arabic,
    Armenian,
    Danish,
    Dutch,
    English,
    Finnish,
    French,
    German,
    Greek,
    Hungarian,
    Italian,
    Norwegian,
    Portuguese,
    Romanian,
    Russian,
    Spanish,
    Swedish,
    Tamil,
    Turkish,
}

/// Which stems words have: another release of the algorithms may give other ones. An index names what its stems are of.
pub(crate) const STEMS_VERSION: &str = "snowball 2026-10-16";

/// Bytes of a word that has a stem at most.
const STEMMED_MAX: usize = 256;

/// Each of them with its name and its algorithm.
const STEMS: [(Stem, &str, Algorithm); 19] = [
    (Stem::Arabic, "arabic", Algorithm::Arabic),
    (Stem::Armenian, "armenian", Algorithm::Armenian),
    (Stem::Danish, "danish", Algorithm::Danish),
    // Qdrant's, which Snowball has under this name today.
    (Stem::Dutch, "dutch", Algorithm::DutchPorter),
    (Stem::English, "english", Algorithm::English),
    (Stem::Finnish, "finnish", Algorithm::Finnish),
    (Stem::French, "french", Algorithm::French),
    (Stem::German, "german", Algorithm::German),
    (Stem::Greek, "greek", Algorithm::Greek),
    (Stem::Hungarian, "hungarian", Algorithm::Hungarian),
    (Stem::Italian, "italian", Algorithm::Italian),
    (Stem::Norwegian, "norwegian", Algorithm::Norwegian),
    (Stem::Portuguese, "portuguese", Algorithm::Portuguese),
    (Stem::Romanian, "romanian", Algorithm::Romanian),
    (Stem::Russian, "russian", Algorithm::Russian),
    (Stem::Spanish, "spanish", Algorithm::Spanish),
    (Stem::Swedish, "swedish", Algorithm::Swedish),
    (Stem::Tamil, "tamil", Algorithm::Tamil),
    (Stem::Turkish, "turkish", Algorithm::Turkish),
];

impl Stem {
    pub const COUNT: usize = STEMS.len();
    /// As clients name them.
    pub const NAMES: [&'static str; Self::COUNT] = {
        let mut names = [""; Self::COUNT];
        let mut at = 0;
        while at < names.len() {
            names[at] = STEMS[at].1;
            at += 1;
        }
        names
    };

    pub fn named(name: &str) -> Option<Self> {
        STEMS.iter().find(|(_, own, _)| *own == name).map(|(stem, ..)| *stem)
    }

    /// The stem of a word; a very long one is its own, since stemming takes the square of its length.
    pub fn of(self, word: &str) -> Cow<'_, str> {
        match word.len() <= STEMMED_MAX {
            true => Stemmer::new(STEMS[self as usize].2).stem(word),
            false => Cow::Borrowed(word),
        }
    }
}

/// Latin letters that are no letter with a mark, as ASCII writes them.
const FOLDED: [(char, &str); 38] = [
    ('ß', "ss"),
    ('ẞ', "SS"),
    ('æ', "ae"),
    ('Æ', "AE"),
    ('œ', "oe"),
    ('Œ', "OE"),
    ('ø', "o"),
    ('Ø', "O"),
    ('đ', "d"),
    ('Đ', "D"),
    ('ð', "d"),
    ('Ð', "D"),
    ('þ', "th"),
    ('Þ', "TH"),
    ('ł', "l"),
    ('Ł', "L"),
    ('ħ', "h"),
    ('Ħ', "H"),
    ('ı', "i"),
    ('ĸ', "q"),
    ('ŋ', "n"),
    ('Ŋ', "N"),
    ('ŧ', "t"),
    ('Ŧ', "T"),
    ('ſ', "s"),
    ('ƀ', "b"),
    ('ɓ', "b"),
    ('ɖ', "d"),
    ('ɗ', "d"),
    ('ə', "a"),
    ('ƒ', "f"),
    ('ɠ', "g"),
    ('ɨ', "i"),
    ('ƙ', "k"),
    ('ɲ', "n"),
    ('ɔ', "o"),
    ('ʉ', "u"),
    ('ƴ', "y"),
];

/// A word with Latin letters as ASCII writes them; others stay.
pub(crate) fn folded(word: &str) -> Box<str> {
    let letters = word.nfc().flat_map(|letter| {
        let is_same = letter.is_ascii() || !is_latin(letter);
        let plain = FOLDED.iter().find(|(own, _)| *own == letter).map_or("", |(_, plain)| plain);
        let marked = (!is_same && plain.is_empty()).then_some(letter);
        let bare = marked.into_iter().nfkd().filter(|letter| !is_combining_mark(*letter));
        is_same.then_some(letter).into_iter().chain(plain.chars()).chain(bare)
    });
    text_of(word.len(), letters)
}

/// Letters one after the other, of about so many bytes.
fn text_of(expected: usize, letters: impl Iterator<Item = char>) -> Box<str> {
    let mut text = String::with_capacity(expected);
    text.extend(letters);
    text.into()
}

fn is_latin(letter: char) -> bool {
    matches!(letter, '\u{aa}'..='\u{24f}' | '\u{250}'..='\u{2af}' | '\u{1e00}'..='\u{1eff}' | '\u{fb00}'..='\u{fb06}' | '\u{ff10}'..='\u{ff5a}')
}

/// A text in pieces that end with a word, as far as words are not endless: what is made of a piece is small.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut left = text;
    std::iter::from_fn(move || {
        let most = (0..=PIECE_BYTES).rev().find(|at| left.is_char_boundary(*at)).unwrap_or(left.len());
        let end = match left.len() <= PIECE_BYTES {
            true => left.len(),
            false => left[..most].rfind(char::is_whitespace).filter(|at| *at > 0).unwrap_or(most),
        };
        let (piece, rest) = left.split_at(end);
        left = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Bytes of a piece at most.
const PIECE_BYTES: usize = 4 << 10;

/// A text in small letters without accents, whatever their script, and with one form of letters that have several.
pub(crate) fn plain(text: &str) -> Box<str> {
    text_of(text.len(), text.nfkd().filter(|letter| !is_combining_mark(*letter)).flat_map(char::to_lowercase).nfc())
}

/// Whether a letter is of a script that puts no spaces between words.
pub(crate) fn is_spaceless(letter: char) -> bool {
    matches!(letter,
        // Thai, Lao, Myanmar, Khmer.
        '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        // Hiragana and Katakana, then the Chinese characters.
        | '\u{3040}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '\u{3005}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_stand_in_the_order_of_their_kinds() {
        for (at, (language, name, _)) in LANGUAGES.into_iter().enumerate() {
            assert_eq!(language as usize, at);
            assert_eq!(serde_json::to_value(language).unwrap(), name);
            assert!(language.stop_words().len() > 10, "{name}");
        }
        for (at, (stem, name, _)) in STEMS.into_iter().enumerate() {
            assert_eq!(stem as usize, at);
            assert_eq!(serde_json::to_value(stem).unwrap(), name);
        }
    }

    #[test]
    fn stems_of_some_languages() {
        assert_eq!(Stem::English.of("running"), "run");
        assert_eq!(Stem::Greek.of("καλημερα"), "καλημερ");
        assert_eq!(Stem::German.of("häuser"), "haus");
        assert_eq!(Stem::named("klingon"), None);
    }

    #[test]
    fn pieces_are_small_and_whole() {
        let text = format!("{} {}ü", "word ".repeat(3000), "x".repeat(10_000));
        assert!(pieces(&text).all(|piece| piece.len() <= PIECE_BYTES));
        assert_eq!(pieces(&text).collect::<String>(), text);
        assert_eq!(pieces(&text).flat_map(str::split_whitespace).filter(|word| *word == "word").count(), 3000);
        assert_eq!(pieces("").count(), 0);
        assert_eq!(Stem::English.of(&"ay".repeat(100_000)).len(), 200_000);
    }

    #[test]
    fn plain_letters() {
        assert_eq!(&*plain("Über naïve ＡＢＣ Ω"), "uber naive abc ω");
        // Syllables of Hangul stay whole.
        assert_eq!(&*plain("한국"), "한국");
        assert_eq!(&*folded("Œuvre ﬁn ДА"), "OEuvre fin ДА");
    }

    /// Of each language the letters and endings that its stems are made by, one line each.
    const ENDINGS: &str = include_str!("words/suffixes.txt");

    #[test]
    fn words_that_have_ended_processes_have_stems() {
        for word in ["ισαισαν", "ισαισε", "σκωφελετε", "αβρευθετε"] {
            assert!(!Stem::Greek.of(word).is_empty(), "{word}");
        }
    }

    #[test]
    fn no_word_made_of_endings_panics_any_stemmer() {
        let mut rng = ramekin_base::Rng::new(0x57E4);
        for line in ENDINGS.lines() {
            let mut pieces = line.split(' ');
            let stem = Stem::named(pieces.next().unwrap()).unwrap();
            let endings: Vec<&str> = pieces.collect();
            let letters: Vec<char> = endings.iter().flat_map(|ending| ending.chars()).collect();
            let mut of = |count: usize| rng.below(count as u64) as usize;
            for _ in 0..20_000 {
                let mut word = String::new();
                for _ in 0..=of(4) {
                    match of(4) {
                        0 => word.extend((0..of(4)).map(|_| letters[of(letters.len())])),
                        1 => word.push(['a', '1', 'ß', '\u{301}', '東', '\u{1f600}'][of(6)]),
                        _ => word.push_str(endings[of(endings.len())]),
                    }
                }
                assert!(stem.of(&word).len() <= word.len() + 16, "{word}");
            }
        }
    }
}
