//! Collections: list, show, make, change, remove.

use crate::decoders::collection_body;
use crate::errors::Outcome;
use crate::handlers::collection_info;
use crate::request::call::{Call, checked_collection_name};
use crate::request::state::DoorInner;
use crate::response::BookedResponse;
use ramekin_base::{Error, Kind, Lane};
use serde_json::json;

/// `GET collections`
pub async fn list(call: Call) -> Outcome<BookedResponse> {
    let read = call.door.read(Lane::Short, call.options.until, call.started, |store, text| {
        text.push(r#"{"collections":"#)?;
        text.list(store.collections().iter(), |text, name| {
            text.push(r#"{"name":"#)?;
            text.string(name)?;
            text.push("}")
        })?;
        text.push("}")
    });
    read.await
}

/// `GET collections/{name}`
pub async fn get(call: Call) -> Outcome<BookedResponse> {
    let name = call.name().to_owned();
    let info = call.door.run(Lane::Short, call.options.until, move |door| door.host.store.info(&name)).await?;
    BookedResponse::result(&collection_info::shown(&info), call.took())
}

/// `GET collections/{name}/exists`
pub async fn exists(call: Call) -> Outcome<BookedResponse> {
    let exists = match call.door.host.store.config(call.name()) {
        Ok(_) => true,
        Err(error) if error.kind() == Kind::NotFound => false,
        Err(error) => return Err(error.into()),
    };
    BookedResponse::result(&json!({ "exists": exists }), call.took())
}

/// `PUT collections/{name}`
pub async fn create(mut call: Call) -> Outcome<BookedResponse> {
    let config = call.decode(collection_body::create).await?;
    checked_collection_name(call.name())?;
    let name = call.name().to_owned();
    let until = call.options.until;
    let create =
        move |door: &DoorInner| config.within(|config| door.host.store.create_collection(&name, config.clone()));
    call.door.run(Lane::Writes, until, create).await?;
    BookedResponse::result(&true, call.took())
}

/// `PATCH collections/{name}`
pub async fn change(mut call: Call) -> Outcome<BookedResponse> {
    let change = call.decode(collection_body::change).await?;
    let name = call.name().to_owned();
    let changed = call.door.run(Lane::Writes, call.options.until, move |door| {
        // Whoever waits holds no thread meanwhile.
        let Some(_alone) = door.change.try_lock() else {
            return Err(Error::busy("another change of a collection is under way"));
        };
        let config = door.host.store.config(&name)?;
        change.within(|change| door.host.store.patch_collection(&name, change.clone().against(&config)?))
    });
    changed.await?;
    BookedResponse::result(&true, call.took())
}

/// `DELETE collections/{name}`
pub async fn delete(call: Call) -> Outcome<BookedResponse> {
    let name = call.name().to_owned();
    let gone =
        call.door.run(Lane::Writes, call.options.until, move |door| door.host.store.drop_collection(&name)).await?;
    BookedResponse::result(&gone, call.took())
}
