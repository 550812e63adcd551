//! Aliases: second names of collections. All actions of a request happen together or not at all.

use crate::errors::Outcome;
use crate::request::call::Call;
use crate::response::{BookedResponse, ResponseWriter};
use crate::wire::json::{DecodeError, Decoded, Reader};
use ramekin_base::{Lane, Result, limits};
use ramekin_memory::{BookedVec, SharedReservation};
use ramekin_vectors::{AliasAction, Store, check_name};

/// Decodes the body of `POST collections/aliases`.
pub fn actions(body: &[u8], room: &mut SharedReservation) -> Result<Vec<AliasAction>> {
    let mut reader = Reader::new(body)?;
    let mut actions = None;
    reader.object(|reader, key| match key {
        "actions" => {
            let mut list = BookedVec::new(room);
            reader.array(|reader, index| {
                if index >= limits::QUERIES_PER_BATCH_MAX {
                    return Err(DecodeError::invalid(format!(
                        "at most {} actions are allowed",
                        limits::QUERIES_PER_BATCH_MAX
                    )));
                }
                // Two names, once more when they are done.
                room.take(4 * limits::NAME_MAX as u64)?;
                list.push(action(reader)?)?;
                Ok(())
            })?;
            actions = Some(list.finish());
            Ok(())
        }
        _ => reader.skip(),
    })?;
    reader.finish()?;
    Ok(actions.ok_or_else(|| DecodeError::missing("actions"))?)
}

fn action(reader: &mut Reader<'_>) -> Decoded<AliasAction> {
    let mut action = None;
    reader.object(|reader, key| {
        let read = match key {
            "create_alias" => fields(reader, ["alias_name", "collection_name"]).and_then(|[alias, collection]| {
                check_name(&alias)?;
                Ok(AliasAction::Create { alias, collection })
            }),
            "delete_alias" => fields(reader, ["alias_name"]).map(|[alias]| AliasAction::Delete { alias }),
            "rename_alias" => fields(reader, ["old_alias_name", "new_alias_name"]).and_then(|[from, to]| {
                check_name(&to)?;
                Ok(AliasAction::Rename { from, to })
            }),
            _ => return reader.skip(),
        };
        if action.replace(read?).is_some() {
            return Err(DecodeError::malformed("one action an object is allowed"));
        }
        Ok(())
    })?;
    action.ok_or_else(|| DecodeError::malformed("expected one of `create_alias`, `delete_alias`, `rename_alias`"))
}

/// Reads an object with these fields, all of them strings.
fn fields<const N: usize>(reader: &mut Reader<'_>, names: [&str; N]) -> Decoded<[String; N]> {
    let mut values = [const { None }; N];
    reader.object(|reader, key| match names.iter().position(|name| *name == key) {
        Some(index) => {
            let text = reader.string()?;
            if text.len() > limits::NAME_MAX {
                return Err(DecodeError::invalid(format!("a name of more than {} bytes", limits::NAME_MAX)));
            }
            values[index] = Some(text.into_owned());
            Ok(())
        }
        None => reader.skip(),
    })?;
    if let Some(missing) = values.iter().position(Option::is_none) {
        return Err(DecodeError::missing(names[missing]));
    }
    Ok(values.map(Option::unwrap_or_default))
}

/// `POST collections/aliases`
pub async fn change(mut call: Call) -> Outcome<BookedResponse> {
    let actions = call.decode(actions).await?;
    call.door
        .run(Lane::Writes, call.options.until, move |door| {
            actions.within(|actions| door.host.store.change_aliases(actions.clone()))
        })
        .await?;
    BookedResponse::result(&true, call.took())
}

/// Writes aliases with their collections: those of one, or all.
fn show(text: &mut ResponseWriter, store: &Store, of: Option<&str>) -> Result<()> {
    text.push(r#"{"aliases":["#)?;
    let mut separator = "";
    store.each_alias(&mut |alias, collection| {
        if of.is_some_and(|of| of != collection) {
            return Ok(());
        }
        text.push(std::mem::replace(&mut separator, ","))?;
        text.push(r#"{"alias_name":"#)?;
        text.string(alias)?;
        text.push(r#","collection_name":"#)?;
        text.string(collection)?;
        text.push("}")
    })?;
    text.push("]}")
}

/// `GET aliases`
pub async fn list(call: Call) -> Outcome<BookedResponse> {
    let read = call.door.read(Lane::Short, call.options.until, call.started, |store, text| show(text, store, None));
    read.await
}

/// `GET collections/{name}/aliases`
pub async fn of_collection(call: Call) -> Outcome<BookedResponse> {
    let name = call.name().to_owned();
    let read = call.door.read(Lane::Short, call.options.until, call.started, move |store, text| {
        store.config(&name)?;
        show(text, store, Some(&name))
    });
    read.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_actions() {
        let body = br#"{"actions":[{"create_alias":{"collection_name":"c","alias_name":"a"}},
            {"rename_alias":{"old_alias_name":"a","new_alias_name":"b"}},{"delete_alias":{"alias_name":"b"}}]}"#;
        let expected = [
            AliasAction::Create { alias: "a".into(), collection: "c".into() },
            AliasAction::Rename { from: "a".into(), to: "b".into() },
            AliasAction::Delete { alias: "b".into() },
        ];
        assert_eq!(actions(body, &mut SharedReservation::endless()).unwrap(), expected);
    }

    #[test]
    fn refusals_name_the_field() {
        for (body, message) in [
            (r#"{}"#, "missing field `actions`"),
            (r#"{"actions":[{}]}"#, "actions[0]: expected one of `create_alias`"),
            (
                r#"{"actions":[{"create_alias":{"alias_name":"a"}}]}"#,
                "actions[0].create_alias: missing field `collection_name`",
            ),
            (
                r#"{"actions":[{"delete_alias":{"alias_name":1}}]}"#,
                "actions[0].delete_alias.alias_name: expected a string",
            ),
        ] {
            let error = actions(body.as_bytes(), &mut SharedReservation::endless()).unwrap_err();
            assert!(error.message().contains(message), "{error}");
        }
    }
}
