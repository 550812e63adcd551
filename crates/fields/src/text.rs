//! The words that a text condition asks for, taken apart once for all the texts that are asked.
//!
//! ```text
//!   asked text ─► words as keys ─► one piece of bytes, and where each different word stands in it, ascending
//!   stored text ─► word by word ─► looked up by halves ─► one of them, all of them, or all in a row
//! ```
//!
//! A stored text costs its words, times the logarithm of those that are asked for; none of its words is kept.

use crate::key;
use crate::tokens::{Kind as TokenizerKind, Tokenizer};
use ramekin_base::{Result, cancel};
use ramekin_memory::{BookedVec, SharedReservation};
use std::ops::Range;

/// Words between two looks whether the answer is still wanted.
const CHECK_WORDS: u32 = 1024;
/// Bytes that a word may take, while it is made ready to be compared, for each byte as it was written.
const READY_BYTES: u64 = 4;

/// Words that are looked for at once in a text that must have all.
const SEEN_MAX: usize = 512;

/// What of some words a text must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Having {
    All,
    Any,
    /// All, one after the other.
    Phrase,
}

/// Words that are asked for. No words: no text has them.
#[derive(Debug, Clone, PartialEq)]
pub struct Words {
    having: Having,
    /// Their keys, one behind the other as they were asked.
    bytes: Box<[u8]>,
    /// Where each different one begins and ends; ascending by its bytes.
    spans: Box<[(u32, u32)]>,
    /// Of a phrase, word by word: which of `spans` it is, and with how many words that end here the phrase begins again.
    phrase: Box<[(u32, u32)]>,
}

impl Words {
    /// Takes a text apart; `room` holds what is kept, and for a while what that takes.
    pub(crate) fn new(tokenizer: &Tokenizer, text: &str, having: Having, room: &SharedReservation) -> Result<Self> {
        let longest = text.split(|letter: char| !tokenizer.is_of_word(letter)).map(str::len).max().unwrap_or(0);
        let ready = longest as u64 * READY_BYTES;
        room.take(ready)?;
        let (mut count, mut len) = (0, 0);
        tokenizer.asked(text, &mut |word| (count, len) = (count + 1, len + word.len().min(key::KEY_MAX)));
        let (mut bytes, mut spans) = (BookedVec::new(room), BookedVec::new(room));
        bytes.reserve(len)?;
        spans.reserve(count)?;
        let mut grown = Ok(());
        tokenizer.asked(text, &mut |word| {
            let from = bytes.len() as u32;
            // There is room: it fails where the text was another one before.
            let added = bytes.extend(&key::of_word(word)).and_then(|()| spans.push((from, bytes.len() as u32)));
            if added.is_err() {
                grown = added;
            }
        });
        grown?;
        room.give(ready);
        let in_order = BookedVec::copied(if having == Having::Phrase { &spans } else { &[] }, room)?;
        cancel::check()?;
        spans.sort_unstable_by(|one, other| of(&bytes, *one).cmp(of(&bytes, *other)));
        spans.dedup_by(|one, other| of(&bytes, *one) == of(&bytes, *other));
        let (bytes, spans, phrase) = (bytes.boxed()?, spans.boxed()?, in_order.boxed()?);
        let mut words = Self { having, bytes, spans, phrase };
        words.link()?;
        Ok(words)
    }

    /// Bytes of a copy of it, beside itself.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.bytes.len() + size_of_val(&*self.spans) + size_of_val(&*self.phrase)) as u64
    }

    /// Turns the places of a phrase's words into what a text is compared with (Knuth, Morris, Pratt).
    fn link(&mut self) -> Result<()> {
        let mut matched = 0;
        for at in 0..self.phrase.len() {
            if at % CHECK_WORDS as usize == 0 {
                cancel::check()?;
            }
            let word = of(&self.bytes, self.phrase[at]);
            let own = self.spans.partition_point(|span| of(&self.bytes, *span) < word) as u32;
            self.phrase[at] = (own, 0);
            if at > 0 {
                matched = self.step(matched, own);
                self.phrase[at].1 = matched;
            }
        }
        Ok(())
    }

    /// How many words of the phrase stand at a text's end, once one more comes after so many.
    fn step(&self, mut matched: u32, word: u32) -> u32 {
        while matched > 0 && self.phrase[matched as usize].0 != word {
            matched = self.phrase[matched as usize - 1].1;
        }
        matched + u32::from(self.phrase[matched as usize].0 == word)
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        self.spans.binary_search_by(|span| of(&self.bytes, *span).cmp(key)).ok()
    }

    pub(crate) fn having(&self) -> Having {
        self.having
    }

    /// Whether words must follow each other.
    pub(crate) fn is_in_a_row(&self) -> bool {
        self.phrase.len() > 1
    }

    /// Different words.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The keys of the different words, ascending.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.spans.iter().map(|span| of(&self.bytes, *span))
    }

    /// Whether a text has them.
    pub(crate) fn are_in(&self, tokenizer: &Tokenizer, text: &str) -> bool {
        match self.having {
            // Of more than are seen at once, one part after the other.
            Having::All if self.len() > SEEN_MAX => {
                let parts = (0..self.len()).step_by(SEEN_MAX);
                parts
                    .map(|from| from..self.len().min(from + SEEN_MAX))
                    .all(|part| self.some_are_in(part, tokenizer, text))
            }
            _ => self.some_are_in(0..self.len(), tokenizer, text),
        }
    }

    /// Whether a text has those at some places, all of them where they are asked in a row.
    fn some_are_in(&self, places: Range<usize>, tokenizer: &Tokenizer, text: &str) -> bool {
        let mut seen = Seen::new(self, places);
        match (tokenizer.kind, self.having) {
            // Word by word, and not by their beginnings: only the last one may be one.
            (TokenizerKind::Prefix, Having::Phrase) => tokenizer.asked(text, &mut |word| {
                seen.show_last(word);
                seen.show(&key::of_word(word));
            }),
            _ => tokenizer.stored(text, &mut |word| seen.show(&key::of_word(word))),
        }
        seen.is_enough()
    }
}

fn of(bytes: &[u8], (from, to): (u32, u32)) -> &[u8] {
    &bytes[from as usize..to as usize]
}

/// What was seen of a text.
struct Seen<'w> {
    words: &'w Words,
    /// Which of the words it looks for, where all must be seen.
    places: Range<usize>,
    /// A bit for each of these that was seen.
    bits: [u64; SEEN_MAX / 64],
    /// Words that were seen of all, or those of the phrase that stand at the end.
    matched: u32,
    is_enough: bool,
    /// Words until the next look whether the answer is still wanted; 0: it is not, and what is shown does not matter.
    left: u32,
}

impl<'w> Seen<'w> {
    fn new(words: &'w Words, places: Range<usize>) -> Self {
        Self { words, places, bits: [0; SEEN_MAX / 64], matched: 0, is_enough: false, left: CHECK_WORDS }
    }

    /// Shows the key of the next word.
    fn show(&mut self, key: &[u8]) {
        if self.is_enough || self.left == 0 || self.words.spans.is_empty() {
            return;
        }
        self.left -= 1;
        if self.left == 0 && cancel::check().is_ok() {
            self.left = CHECK_WORDS;
        }
        let place = self.words.place(key);
        match (self.words.having, place) {
            (Having::Any, place) => self.is_enough = place.is_some(),
            (Having::All, Some(place)) if self.places.contains(&place) => self.see(place - self.places.start),
            (Having::All, _) => {}
            (Having::Phrase, None) => self.matched = 0,
            (Having::Phrase, Some(place)) => {
                self.matched = self.words.step(self.matched, place as u32);
                self.is_enough = self.matched as usize == self.words.phrase.len();
            }
        }
    }

    /// Shows a word that may begin with the last one of a phrase, where those before it stand before it.
    fn show_last(&mut self, word: &str) {
        let phrase = &self.words.phrase;
        let last = phrase.last().filter(|_| self.matched as usize + 1 == phrase.len());
        let begins =
            |(own, _): &(u32, u32)| word.as_bytes().starts_with(of(&self.words.bytes, self.words.spans[*own as usize]));
        self.is_enough |= last.is_some_and(begins);
    }

    fn see(&mut self, place: usize) {
        let (word, bit) = (place / 64, 1 << (place % 64));
        self.matched += u32::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
        self.is_enough = self.matched as usize == self.places.len();
    }

    /// Whether what was shown has the words. Of a job that was cancelled meanwhile it says nothing.
    fn is_enough(&self) -> bool {
        self.is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ramekin_base::Kind;
    use ramekin_memory::Budget;

    fn has(having: Having, text: &str, asked: &str) -> bool {
        let budget = Budget::new(1 << 20);
        let room = SharedReservation::new(0, budget.root().child("queries", ""), None);
        let words = Words::new(&Tokenizer::default(), asked, having, &room).unwrap();
        assert!(room.used() >= words.held_bytes());
        words.are_in(&Tokenizer::default(), text)
    }

    #[test]
    fn words_are_found_whole_and_in_any_case() {
        let text = "The quick, brown FOX-trot";
        let has_all = |asked| has(Having::All, text, asked);
        assert!(has_all("fox quick") && has_all("Quick.") && !has_all("qui") && !has_all(" "));
        let has_any = |asked| has(Having::Any, text, asked);
        assert!(has_any("zebra FOX") && !has_any("zebra") && !has_any(""));
        let has_phrase = |asked| has(Having::Phrase, text, asked);
        assert!(has_phrase("quick  brown") && has_phrase("fox trot") && !has_phrase("brown quick"));
        assert!(!has_phrase("") && !has(Having::Phrase, "", "x") && !has_phrase("trot trot"));
    }

    #[test]
    fn all_of_very_many_words_are_looked_for_part_by_part() {
        let words: Vec<String> = (0..2 * SEEN_MAX + 1).map(|number| format!("w{number}")).collect();
        let asked = words.join(" ");
        assert!(has(Having::All, &asked, &asked));
        for missing in [0, SEEN_MAX, 2 * SEEN_MAX] {
            let text = [&words[..missing], &words[missing + 1..]].concat().join(" ");
            assert!(!has(Having::All, &text, &asked) && has(Having::Any, &text, &asked));
        }
    }

    #[test]
    fn a_phrase_of_beginnings_ends_with_one() {
        let budget = Budget::new(1 << 20);
        let room = SharedReservation::new(0, budget.root().child("queries", ""), None);
        let has = |most, asked| {
            let tokenizer = Tokenizer { kind: TokenizerKind::Prefix, max_len: most, ..Tokenizer::default() };
            let words = Words::new(&tokenizer, asked, Having::Phrase, &room).unwrap();
            words.are_in(&tokenizer, "Quick brown fox")
        };
        assert!(has(None, "quick brown") && has(None, "quick bro") && has(None, "brown f") && has(None, "bro"));
        assert!(!has(None, "qui brown") && !has(None, "q qu") && !has(None, "quick fox"));
        assert!(has(Some(3), "qui bro") && has(Some(3), "brow fox") && !has(Some(3), "quick fox"));
    }

    #[test]
    fn words_that_find_no_memory_are_refused() {
        let budget = Budget::new(1 << 20);
        let room = SharedReservation::new(0, budget.root().child("queries", ""), None);
        for asked in ["a b ".repeat(100_000), "x".repeat(1 << 20)] {
            let refused = Words::new(&Tokenizer::default(), &asked, Having::Any, &room).unwrap_err();
            assert!(refused.kind().is_memory(), "{refused}");
        }
    }

    #[test]
    fn a_long_text_is_left_when_nobody_waits_for_the_answer() {
        let budget = Budget::new(1 << 20);
        let room = SharedReservation::new(0, budget.root().child("queries", ""), None);
        let words = Words::new(&Tokenizer::default(), "last", Having::Any, &room).unwrap();
        let text = format!("{}last", "a ".repeat(CHECK_WORDS as usize));
        assert!(words.are_in(&Tokenizer::default(), &text));
        let token = cancel::Token::new();
        token.cancel();
        cancel::scope(&token, || {
            assert!(!words.are_in(&Tokenizer::default(), &text));
            assert_eq!(cancel::check().unwrap_err().kind(), Kind::Cancelled);
        });
    }

    proptest! {
        #[test]
        fn words_are_those_of_lists(text in "[ab .]{0,24}", asked in "[abc .]{0,10}") {
            let list = |text: &str| -> Vec<String> { text.split([' ', '.']).filter(|word| !word.is_empty()).map(str::to_owned).collect() };
            let (own, wanted) = (list(&text), list(&asked));
            prop_assert_eq!(has(Having::Any, &text, &asked), wanted.iter().any(|word| own.contains(word)));
            prop_assert_eq!(has(Having::All, &text, &asked), !wanted.is_empty() && wanted.iter().all(|word| own.contains(word)));
            let in_a_row = !wanted.is_empty() && own.windows(wanted.len()).any(|run| run == wanted);
            prop_assert_eq!(has(Having::Phrase, &text, &asked), in_a_row);
        }
    }
}
