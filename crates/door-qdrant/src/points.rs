//! Reads of points: one, several, a page of all, how many.

use crate::answer::{Answer, Text};
use crate::call::Call;
use crate::errors::Outcome;
use crate::listing::{self, Scroll};
use ramekin_base::{Error, Lane, PointId};
use ramekin_vectors::{FacetValue, Parts, PayloadParts, VectorParts};
use serde_json::json;

/// `GET points/{id}`
pub async fn get(call: Call) -> Outcome<Answer> {
    let name = call.name().to_owned();
    let text = call.params.get(1).map(String::as_str).unwrap_or_default();
    let id = PointId::parse(text).map_err(|error| error.at("Format error in path: id"))?;
    let parts = Parts { payload: PayloadParts::All, vectors: VectorParts::All };
    let read = call.door.read(call.options.until, call.started, move |store, text| {
        let held = store.get(&name, &[id], &parts)?;
        let record = held.value.first();
        text.record(record.ok_or_else(|| Error::not_found(format!("Point with id {id} does not exists!")))?)
    });
    read.await
}

/// `POST points`
pub async fn retrieve(mut call: Call) -> Outcome<Answer> {
    let wanted = call.decode(listing::retrieve).await?;
    let name = call.name().to_owned();
    let read = call.door.read(call.options.until, call.started, move |store, text| {
        wanted.within(|wanted| text.list(&store.get(&name, &wanted.ids, &wanted.parts)?.value, Text::record))
    });
    read.await
}

/// `POST points/scroll`
pub async fn scroll(mut call: Call) -> Outcome<Answer> {
    let wanted = call.decode(listing::scroll).await?;
    let name = call.name().to_owned();
    let read = call.door.read(call.options.until, call.started, move |store, text| {
        wanted.within(|Scroll { from, limit, filter, parts, order }| {
            if let Some(order) = order {
                let found = store.scroll_ordered(&name, order, *limit, filter, parts)?;
                text.push(r#"{"points":"#)?;
                text.list(&found.value, Text::record)?;
                return text.push(r#","next_page_offset":null}"#);
            }
            let page = store.scroll(&name, *from, *limit, filter, parts)?;
            text.push(r#"{"points":"#)?;
            text.list(&page.value.records, Text::record)?;
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
pub async fn facet(mut call: Call) -> Outcome<Answer> {
    let wanted = call.decode(listing::facet).await?;
    let name = call.name().to_owned();
    let read = call.door.read(call.options.until, call.started, move |store, text| {
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
pub async fn count(mut call: Call) -> Outcome<Answer> {
    let wanted = call.decode(listing::count).await?;
    let name = call.name().to_owned();
    let count = move |door: &crate::door::Shared| {
        wanted.within(|wanted| door.host.store.count(&name, &wanted.filter, wanted.exact))
    };
    let count = call.door.run(Lane::Reads, call.options.until, count).await?;
    Answer::result(&json!({ "count": count }), call.took())
}
