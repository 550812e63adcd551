//! What may be said of an index of texts.
//!
//! ```text
//!   "tokenizer": "word"      "lowercase": true      "min_token_len": 2
//!   "stopwords": "english"                             or {"languages": ["english"], "custom": ["ok"]}
//!   "stemmer": {"type": "snowball", "language": "english"}            or {"type": "none"}
//! ```

use crate::decoders::sections::{Section, word};
use crate::wire::json::{DecodeError, Decoded, Reader};
use ramekin_fields::{Language, Stem, Tokenizer, TokenizerKind};
use serde_json::{Value, json};

/// Stop words of a client's own in one index, the bytes of each, and of all, at most: each segment's entry in the manifest
/// has them.
const CUSTOM_MAX: usize = 1000;
const CUSTOM_BYTES_MAX: usize = 128;
const CUSTOM_BYTES_TOTAL: usize = 4 << 10;

/// The tokenizer of a section that was read by its table.
pub fn tokenizer(section: &Section) -> Decoded<Tokenizer> {
    let default = Tokenizer::default();
    let said = |field: &str, default: bool| section.get(field).and_then(Value::as_bool).unwrap_or(default);
    let count = |field: &str| section.get(field).and_then(Value::as_u64).map(|count| count as usize);
    let kind = match section.get("tokenizer").and_then(Value::as_str) {
        Some("whitespace") => TokenizerKind::Whitespace,
        Some("prefix") => TokenizerKind::Prefix,
        Some("multilingual") => TokenizerKind::Multilingual,
        _ => TokenizerKind::Word,
    };
    let (min_len, max_len) = (count("min_token_len"), count("max_token_len"));
    if let (Some(least), Some(most)) = (min_len, max_len)
        && least > most
    {
        return Err(DecodeError::invalid(format!("min_token_len {least} is above max_token_len {most}")));
    }
    let tokenizer = Tokenizer {
        kind,
        lowercase: said("lowercase", default.lowercase),
        min_len,
        max_len,
        phrases: said("phrase_matching", default.phrases),
        folding: said("ascii_folding", default.folding),
        stem: section.get("stemmer").and_then(|stemmer| Stem::named(stemmer.get("language")?.as_str()?)),
        ..default
    };
    let stop_words = section.get("stopwords").unwrap_or(&Value::Null);
    let texts = |list: &Value| -> Box<[Box<str>]> {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
    };
    let names = stop_words.as_str().map_or_else(|| texts(&stop_words["languages"]), |name| [name.into()].into());
    let languages = names.iter().filter_map(|name| Language::named(name)).collect();
    Ok(tokenizer.without(languages, texts(&stop_words["custom"])))
}

/// Reads `stopwords`: a language, or lists of languages and words.
pub fn stop_words(reader: &mut Reader<'_>) -> Decoded<Value> {
    if reader.peek()? == b'"' {
        return language(reader).map(Value::from);
    }
    let (mut languages, mut custom, mut total) = (Vec::new(), Vec::new(), 0);
    reader.object(|reader, key| {
        match key {
            "languages" | "custom" if reader.null()? => {}
            "languages" => {
                reader.array(|reader, at| {
                    if at >= Language::COUNT {
                        return Err(DecodeError::invalid(format!("at most {} languages are allowed", Language::COUNT)));
                    }
                    languages.push(language(reader)?);
                    Ok(())
                })?;
            }
            "custom" => {
                reader.array(|reader, at| {
                    let word = reader.string()?;
                    total += word.len();
                    if at >= CUSTOM_MAX || word.len() > CUSTOM_BYTES_MAX || total > CUSTOM_BYTES_TOTAL {
                        return Err(DecodeError::invalid(format!(
                            "at most {CUSTOM_MAX} words of {CUSTOM_BYTES_MAX} bytes are allowed, and {CUSTOM_BYTES_TOTAL} bytes in all"
                        )));
                    }
                    custom.push(word.into_owned());
                    Ok(())
                })?;
            }
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    Ok(json!({ "languages": languages, "custom": custom }))
}

fn language(reader: &mut Reader<'_>) -> Decoded<&'static str> {
    word(reader, &Language::NAMES)
}

/// Reads a `stemmer`: one of Snowball's, or none.
pub fn stemmer(reader: &mut Reader<'_>) -> Decoded<Value> {
    let (mut kind, mut language) = (None, None);
    reader.object(|reader, key| {
        match key {
            "type" => kind = Some(word(reader, &["snowball", "none"])?),
            "language" if reader.null()? => {}
            "language" => language = Some(word(reader, &Stem::NAMES)?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    match (kind, language) {
        (None, _) => Err(DecodeError::missing("type")),
        (Some("snowball"), None) => Err(DecodeError::missing("language")),
        (Some("snowball"), language) => Ok(json!({ "type": "snowball", "language": language })),
        (Some(_), _) => Ok(json!({ "type": "none" })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoders::sections::{self, FIELD};
    use ramekin_base::{Error, Kind};

    fn decoded(parameters: &str) -> Result<Tokenizer, Error> {
        let text = format!(r#"{{"type":"text",{parameters}}}"#);
        let mut reader = Reader::new(text.as_bytes())?;
        Ok(tokenizer(&sections::read(&mut reader, FIELD)?)?)
    }

    #[test]
    fn parameters() {
        let default = Tokenizer::default();
        let prefix = Tokenizer { kind: TokenizerKind::Prefix, lowercase: false, min_len: Some(2), ..default.clone() };
        let said = r#""tokenizer":"prefix","min_token_len":2,"lowercase":false,"phrase_matching":true,"stemmer":null"#;
        assert_eq!(decoded(said).unwrap(), Tokenizer { phrases: true, ..prefix });
        let stem = Some(Stem::German);
        let said =
            r#""tokenizer":"multilingual","ascii_folding":true,"stemmer":{"type":"snowball","language":"german"}"#;
        let multilingual = Tokenizer { kind: TokenizerKind::Multilingual, folding: true, stem, ..default.clone() };
        assert_eq!(decoded(said).unwrap(), multilingual);
        assert_eq!(decoded(r#""stemmer":{"type":"none"}"#).unwrap(), default);
        for language in Stem::NAMES {
            let stem = decoded(&format!(r#""stemmer":{{"type":"snowball","language":"{language}"}}"#)).unwrap().stem;
            assert_eq!(stem, Stem::named(language));
        }
        let english = default.clone().without([Language::English].into(), Box::default());
        assert_eq!(decoded(r#""stopwords":"english""#).unwrap(), english);
        let both = default.without([Language::English, Language::Hinglish].into(), ["ok".into()].into());
        let said = r#""stopwords":{"languages":["hinglish","english"],"custom":["OK"]}"#;
        assert_eq!(decoded(said).unwrap(), both);
    }

    #[test]
    fn refusals() {
        let many = format!(r#""stopwords":{{"custom":[{}"x"]}}"#, r#""x","#.repeat(CUSTOM_MAX));
        let long = format!(r#""stopwords":{{"custom":[{}"x"]}}"#, format!(r#""{}","#, "x".repeat(100)).repeat(60));
        for (said, kind, message) in [
            (r#""stopwords":"klingon""#, Kind::Malformed, "stopwords: unknown variant `klingon`"),
            (&*many, Kind::Invalid, "stopwords.custom[1000]: at most 1000 words"),
            (&*long, Kind::Invalid, "stopwords.custom[40]: at most 1000 words"),
            (r#""stemmer":{"language":"english"}"#, Kind::Malformed, "missing field `type`"),
            (r#""stemmer":{"type":"snowball"}"#, Kind::Malformed, "missing field `language`"),
            (r#""stemmer":{"type":"snowball","language":"klingon"}"#, Kind::Malformed, "stemmer.language"),
            (r#""min_token_len":5,"max_token_len":2"#, Kind::Invalid, "above"),
        ] {
            let error = decoded(said).unwrap_err();
            assert_eq!(error.kind(), kind, "{said}: {error}");
            assert!(error.message().contains(message), "{said}: {error}");
        }
    }
}
