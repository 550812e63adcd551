//! Searches: `points/query`, `points/query/batch`, and the older `points/search` with its batch.
//!
//! ```text
//!   one search  ─► one job on the reader pool
//!   a batch     ─► cut into as many runs as there are cores, each a job; their texts are joined in order
//! ```

use crate::answer::{Answer, Text};
use crate::call::Call;
use crate::errors::Outcome;
use crate::search::{self, Search};
use ramekin_base::{Error, Result};
use ramekin_vectors::Store;
use std::sync::{Arc, OnceLock};

/// How the results of a search are wrapped.
#[derive(Clone, Copy)]
enum Form {
    /// `{"points":[...]}`, with the profile if it is asked for.
    Points,
    /// `[...]`
    List,
}

/// Searches and writes what was found.
fn run(store: &Store, collection: &str, search: &Search, form: Form, text: &mut Text) -> Result<()> {
    let (held, profile) = store.query(collection, &search.query)?;
    if let Form::List = form {
        return text.list(&held.value, Text::scored);
    }
    text.push(r#"{"points":"#)?;
    text.list(&held.value, Text::scored)?;
    if search.profile {
        text.push(r#","profile":"#)?;
        text.value(&profile, 1024)?;
    }
    text.push("}")
}

async fn one(call: Call, search: Search, form: Form) -> Outcome<Answer> {
    let name = call.name().to_owned();
    let read =
        call.door.read(call.options.until, call.started, move |store, text| run(store, &name, &search, form, text));
    read.await
}

async fn several(call: Call, searches: Vec<Search>, form: Form) -> Outcome<Answer> {
    let name: Arc<str> = call.name().into();
    let searches = Arc::new(searches);
    let each = searches.len().div_ceil(cores()).max(1);
    let runs: Vec<_> = (0..searches.len().div_ceil(each))
        .map(|number| {
            let (door, searches, name) = (call.door.clone(), searches.clone(), name.clone());
            let until = call.options.until;
            tokio::spawn(async move {
                let job = move |door: &crate::door::Shared| {
                    let mut text = Text::new(door.answers.clone());
                    for (index, search) in searches.iter().enumerate().skip(number * each).take(each) {
                        text.push(if index > 0 { "," } else { "" })?;
                        run(&door.host.store, &name, search, form, &mut text)
                            .map_err(|error| error.at(format!("searches[{index}]")))?;
                    }
                    Ok(text)
                };
                door.run(until, job).await
            })
        })
        .collect();
    let mut text = Text::answer(call.door.answers.clone())?;
    text.push("[")?;
    for run in runs {
        text.append(run.await.map_err(|_| Error::bug("a search of the batch ended without an answer"))??)?;
    }
    text.push("]")?;
    Ok(text.finish(call.took())?)
}

/// Cores that we may use; asked once, since the question reads files of the kernel.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// `POST points/query`
pub async fn query(mut call: Call) -> Outcome<Answer> {
    let (search, _cover) = call.decode(search::query).await?;
    one(call, search, Form::Points).await
}

/// `POST points/query/batch`
pub async fn query_batch(mut call: Call) -> Outcome<Answer> {
    let (searches, _cover) = call.decode(search::query_batch).await?;
    several(call, searches, Form::Points).await
}

/// `POST points/search`
pub async fn search(mut call: Call) -> Outcome<Answer> {
    let (search, _cover) = call.decode(search::search).await?;
    one(call, search, Form::List).await
}

/// `POST points/search/batch`
pub async fn search_batch(mut call: Call) -> Outcome<Answer> {
    let (searches, _cover) = call.decode(search::search_batch).await?;
    several(call, searches, Form::List).await
}
