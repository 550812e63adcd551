//! Indexes of payload fields: made and dropped on a live collection.
//!
//! ```text
//!   {"field_name": "a.b[]", "field_schema": "keyword"}
//!   {"field_name": "a.b[]", "field_schema": {"type": "text", "tokenizer": "word", ...}}
//! ```
//!
//! An index is durable when the answer comes; it is built in the background. `wait=true` waits until it is built, as long
//! as the request may take: `status` says which.

use crate::body::decoding::Reserved;
use crate::decoders::sections::{self, Section};
use crate::decoders::text_index;
use crate::errors::Outcome;
use crate::request::call::Call;
use crate::request::state::DoorInner;
use crate::response::BookedResponse;
use crate::wire::filter::read_path;
use crate::wire::json::{DecodeError, Decoded, Reader};
use ramekin_base::{Error, Lane, Result};
use ramekin_fields::{Path, Schema};
use ramekin_memory::SharedReservation;
use ramekin_vectors::{FieldConfig, Wait};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks whether an index is built.
const LOOK: Duration = Duration::from_millis(20);

/// `PUT collections/{name}/index`
pub async fn create(mut call: Call) -> Outcome<BookedResponse> {
    let wanted = call.decode(|body, room| decode(body, room).map(|(path, index)| (path, Some(index)))).await?;
    set(call, wanted).await
}

/// `DELETE collections/{name}/index/{field}`
pub async fn delete(call: Call) -> Outcome<BookedResponse> {
    let path = Path::parse(call.params.get(1).map(String::as_str).unwrap_or_default())?;
    set(call, Reserved::small((path, None))).await
}

async fn set(call: Call, wanted: Reserved<(Path, Option<FieldConfig>)>) -> Outcome<BookedResponse> {
    let (name, until, started) = (call.name().to_owned(), call.options.until, call.started);
    // What is dropped is gone at once.
    let (door, waits) = (call.door, call.options.wait == Wait::Visible);
    let wanted = Arc::new(wanted);
    let (of, asked) = (name.clone(), wanted.clone());
    let set = move |door: &DoorInner| {
        asked.within(|(path, index)| door.host.store.set_index(&of, path.clone(), index.clone()))
    };
    let operation = door.run(Lane::Writes, until, set).await?;
    let mut lacks = door.host.store.lacks_index(&name, &wanted.0)?;
    while waits && lacks && tokio::time::Instant::now() + LOOK < until {
        tokio::time::sleep(LOOK).await;
        lacks = door.host.store.lacks_index(&name, &wanted.0)?;
    }
    let status = if waits && !lacks { "completed" } else { "acknowledged" };
    BookedResponse::result(&json!({ "operation_id": operation, "status": status }), door.now().saturating_sub(started))
}

/// Decodes the body of `PUT collections/{name}/index`.
pub fn decode(body: &[u8], room: &mut SharedReservation) -> Result<(Path, FieldConfig)> {
    let (mut path, mut index) = (None, None);
    let mut reader = Reader::new(body)?;
    reader.object(|reader, key| {
        match key {
            "field_name" => path = Some(read_path(reader, room)?),
            "field_schema" | "field_type" if reader.null()? => {}
            "field_schema" | "field_type" => index = Some(read(reader)?),
            _ => reader.skip()?,
        }
        Ok(())
    })?;
    reader.finish()?;
    let path = path.ok_or_else(|| DecodeError::missing("field_name"))?;
    let unknown = "Bad request: Can't auto-detect field type, please specify `field_schema` in the request";
    Ok((path, index.ok_or_else(|| Error::malformed(unknown))?))
}

/// Reads the kind of an index, by its name or with its parameters.
pub fn read(reader: &mut Reader<'_>) -> Decoded<FieldConfig> {
    if reader.peek()? == b'"' {
        let name = reader.string()?;
        let schema = Schema::named(&name).ok_or_else(|| {
            let kinds = sections::FIELD_KINDS.join("`, `");
            DecodeError::malformed(format!(
                "unknown variant `{}`, expected one of `{kinds}`",
                name.chars().take(80).collect::<String>()
            ))
        })?;
        return Ok(FieldConfig { schema: Arc::new(schema), client_config: None });
    }
    let section = sections::read(reader, sections::FIELD)?;
    let schema = schema(&section)?;
    Ok(FieldConfig { schema: Arc::new(schema), client_config: Some(sections::text(&section)) })
}

fn schema(section: &Section) -> Decoded<Schema> {
    let named = section.get("type").and_then(Value::as_str).and_then(Schema::named);
    let said = |field: &str, default: bool| section.get(field).and_then(Value::as_bool).unwrap_or(default);
    match named {
        Some(Schema::Integer { .. }) => {
            let (lookup, range) = (said("lookup", true), said("range", true));
            if !lookup && !range {
                return Err(DecodeError::invalid("the 'lookup' and 'range' capabilities can't be both disabled"));
            }
            Ok(Schema::Integer { lookup, range })
        }
        Some(Schema::Text(_)) => text_index::tokenizer(section).map(Schema::Text),
        Some(schema) => Ok(schema),
        None => Err(DecodeError::missing("type")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Kind;

    fn decoded(body: &str) -> Result<(Path, FieldConfig)> {
        decode(body.as_bytes(), &mut SharedReservation::endless())
    }

    #[test]
    fn a_kind_by_its_name_or_with_parameters() {
        let (path, index) = decoded(r#"{"field_name":"a.b[]","field_schema":"keyword"}"#).unwrap();
        assert_eq!((path.to_string(), &*index.schema, index.client_config), ("a.b[]".into(), &Schema::Keyword, None));
        let schema = |text: &str| {
            (*decoded(&format!(r#"{{"field_name":"a","field_schema":{text}}}"#)).unwrap().1.schema).clone()
        };
        assert_eq!(schema(r#"{"type":"integer","range":false}"#), Schema::Integer { lookup: true, range: false });
        let (_, index) =
            decoded(r#"{"field_name":"a","field_schema":{"type":"uuid","is_tenant":true,"on_disk":null}}"#).unwrap();
        assert_eq!(index.client_config.as_deref(), Some(r#"{"is_tenant":true,"type":"uuid"}"#));
    }

    #[test]
    fn refusals() {
        for (body, kind, message) in [
            (r#"{"field_schema":"keyword"}"#, Kind::Malformed, "missing field `field_name`"),
            (r#"{"field_name":"a"}"#, Kind::Malformed, "please specify `field_schema`"),
            (r#"{"field_name":"a..b","field_schema":"keyword"}"#, Kind::Malformed, "Invalid json path"),
            (r#"{"field_name":"a","field_schema":"number"}"#, Kind::Malformed, "unknown variant `number`"),
            (r#"{"field_name":"a","field_schema":{"tokenizer":"word"}}"#, Kind::Malformed, "missing field `type`"),
            (
                r#"{"field_name":"a","field_schema":{"type":"integer","lookup":false,"range":false}}"#,
                Kind::Invalid,
                "the 'lookup' and 'range' capabilities can't be both disabled",
            ),
        ] {
            let error = decoded(body).unwrap_err();
            assert_eq!(error.kind(), kind, "{body}: {error}");
            assert!(error.message().contains(message), "{body}: {error}");
        }
    }
}
