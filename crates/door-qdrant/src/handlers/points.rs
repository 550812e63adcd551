//! Reads of points: one, several, a page of all, how many.

use crate::decoders::listing::{self, Scroll};
use crate::errors::Outcome;
use crate::request::call::Call;
use crate::response::{BookedResponse, ResponseWriter};
use ramekin_base::{Error, Lane, PointId, excerpt};
use ramekin_vectors::{FacetValue, Parts, PayloadParts, VectorParts};
use serde_json::json;

/// `GET points/{id}`
pub async fn get(call: Call) -> Outcome<BookedResponse> {
    let name = call.name().to_owned();
    let text = call.params.get(1).map(String::as_str).unwrap_or_default();
    let unknown = |_| Error::malformed(format!("Can not recognize {:?} as point id", excerpt(text, 80)));
    let id = PointId::parse(text).map_err(unknown)?;
    let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
    let read = call.door.read(Lane::Reads, call.options.until, call.started, move |store, text| {
        let held = store.get(&name, &[id], &parts)?;
        let record = held.value.first();
        text.record(record.ok_or_else(|| Error::not_found(format!("Point with id {id} does not exists!")))?)
    });
    read.await
}

/// `POST points`
pub async fn retrieve(mut call: Call) -> Outcome<BookedResponse> {
    let wanted = call.decode(listing::retrieve).await?;
    let name = call.name().to_owned();
    let read = call.door.read(Lane::Reads, call.options.until, call.started, move |store, text| {
        wanted.within(|wanted| text.list(&store.get(&name, &wanted.ids, &wanted.parts)?.value, ResponseWriter::record))
    });
    read.await
}

/// `POST points/scroll`
pub async fn scroll(mut call: Call) -> Outcome<BookedResponse> {
    let wanted = call.decode(listing::scroll).await?;
    let name = call.name().to_owned();
    let read = call.door.read(Lane::Reads, call.options.until, call.started, move |store, text| {
        wanted.within(|Scroll { from, limit, filter, parts, order }| {
            if let Some(order) = order {
                let found = store.scroll_ordered(&name, order, *limit, filter, parts)?;
                text.push(r#"{"points":"#)?;
                text.list(&found.value, ResponseWriter::record)?;
                return text.push(r#","next_page_offset":null}"#);
            }
            let page = store.scroll(&name, *from, *limit, filter, parts)?;
            text.push(r#"{"points":"#)?;
            text.list(&page.value.records, ResponseWriter::record)?;
            text.push(r#","next_page_offset":"#)?;
            match page.value.next {
                Some(id) => text.id(id)?,
                None => text.push("null")?,
            }
            text.push("}")
        })
    });
    read.await
}

/// `POST facet`
pub async fn facet(mut call: Call) -> Outcome<BookedResponse> {
    let wanted = call.decode(listing::facet).await?;
    let name = call.name().to_owned();
    let read = call.door.read(Lane::Reads, call.options.until, call.started, move |store, text| {
        let hits = wanted.within(|wanted| store.facet(&name, &wanted.path, wanted.limit, &wanted.filter))?;
        text.push(r#"{"hits":"#)?;
        text.list(&hits.value, |text, (value, count)| {
            let most = if let FacetValue::Word(word) = value { word.len() * 6 + 64 } else { 128 };
            text.value(&json!({ "value": value, "count": count }), most)
        })?;
        text.push("}")
    });
    read.await
}

/// `POST points/count`
pub async fn count(mut call: Call) -> Outcome<BookedResponse> {
    let wanted = call.decode(listing::count).await?;
    let name = call.name().to_owned();
    let count = move |door: &crate::request::state::DoorInner| {
        wanted.within(|wanted| door.host.store.count(&name, &wanted.filter, wanted.exact))
    };
    let count = call.door.run(Lane::Reads, call.options.until, count).await?;
    BookedResponse::result(&json!({ "count": count }), call.took())
}
