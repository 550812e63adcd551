//! Words of a text: runs of letters and digits, in lower case.

/// The words of a text, in their order.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|symbol: char| !symbol.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// Whether all words of `asked` stand in `text`; a text without words asks for what no text has.
pub(crate) fn has_all(text: &str, asked: &str) -> bool {
    let stored: Vec<String> = words(text).collect();
    let mut asked = words(asked).peekable();
    asked.peek().is_some() && asked.all(|word| stored.contains(&word))
}

/// Whether one word of `asked` stands in `text`.
pub(crate) fn has_any(text: &str, asked: &str) -> bool {
    let asked: Vec<String> = words(asked).collect();
    words(text).any(|word| asked.contains(&word))
}

/// Whether the words of `asked` stand in `text` one after the other.
pub(crate) fn has_phrase(text: &str, asked: &str) -> bool {
    let (stored, asked): (Vec<String>, Vec<String>) = (words(text).collect(), words(asked).collect());
    !asked.is_empty() && stored.windows(asked.len()).any(|run| run == asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole_and_in_any_case() {
        let text = "The quick, brown FOX-trot";
        assert!(has_all(text, "fox quick") && has_all(text, "Quick.") && !has_all(text, "qui") && !has_all(text, " "));
        assert!(has_any(text, "zebra FOX") && !has_any(text, "zebra") && !has_any(text, ""));
        assert!(has_phrase(text, "quick  brown") && has_phrase(text, "fox trot") && !has_phrase(text, "brown quick"));
        assert!(!has_phrase(text, "") && !has_phrase("", "x") && !has_phrase(text, "trot trot"));
    }
}
