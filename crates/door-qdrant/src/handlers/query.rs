//! Searches: `points/query`, `points/query/batch`, and the older `points/search` with its batch.
//!
//! ```text
//!   one search  ─► one job on the reader pool, or here where searches are quick (pace.rs)
//!   a batch     ─► cut into as many runs as there are cores, each a job; their texts are joined in order
//! ```

use crate::body::decoding::Reserved;
use crate::decoders::search::{self, Search};
use crate::errors::Outcome;
use crate::lanes;
use crate::request::call::Call;
use crate::request::inline_policy;
use crate::request::state::DoorInner;
use crate::response::{BookedResponse, ResponseWriter};
use ramekin_base::{Error, Kind, Lane, Result, nonblocking};
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
fn run(door: &DoorInner, collection: &str, search: &Search, form: Form, text: &mut ResponseWriter) -> Result<()> {
    let from = door.now();
    let (held, profile) = door.host.store.query(collection, &search.query)?;
    inline_policy::saw(door.inline_policy.slot(collection, search), &profile, door.now().saturating_sub(from));
    if let Form::List = form {
        return text.list(&held.value, ResponseWriter::scored);
    }
    text.push(r#"{"points":"#)?;
    text.list(&held.value, ResponseWriter::scored)?;
    if search.profile {
        text.push(r#","profile":"#)?;
        text.value(&profile, 1024)?;
    }
    text.push("}")
}

async fn one(call: Call, search: Reserved<Search>, form: Form) -> Outcome<BookedResponse> {
    let Call { door, started, options, .. } = &call;
    let (name, started) = (call.name().to_owned(), *started);
    let lane = lanes::of_search(&search);
    let runs_inline = inline_policy::runs_inline(door.inline_policy.slot(&name, &search));
    let answer = move |door: &DoorInner| {
        search.within(|search| door.answer(started, |_, text| run(door, &name, search, form, text)))
    };
    if runs_inline {
        match nonblocking::scope(|| answer(door)) {
            Err(error) if error.kind() == Kind::Busy => {}
            done => return Ok(done?),
        }
    }
    Ok(door.run(lane, options.until, answer).await?)
}

/// A part of a batch; it ends with the request that it is a part of.
struct SpawnedSearch(tokio::task::JoinHandle<Result<ResponseWriter>>);

impl Drop for SpawnedSearch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn several(call: Call, searches: Reserved<Vec<Search>>, form: Form) -> Outcome<BookedResponse> {
    let name: Arc<str> = call.name().into();
    let searches = Arc::new(searches);
    let each = searches.len().div_ceil(cores()).max(1);
    let runs: Vec<_> = (0..searches.len().div_ceil(each))
        .map(|number| {
            let (door, searches, name) = (call.door.clone(), searches.clone(), name.clone());
            let until = call.options.until;
            SpawnedSearch(tokio::spawn(async move {
                let job = move |door: &DoorInner| {
                    searches.within(|searches| {
                        let mut text = ResponseWriter::new(door.answers.clone());
                        for (index, search) in searches.iter().enumerate().skip(number * each).take(each) {
                            text.push(if index > 0 { "," } else { "" })?;
                            run(door, &name, search, form, &mut text)
                                .map_err(|error| error.at(format!("searches[{index}]")))?;
                        }
                        Ok(text)
                    })
                };
                door.run(Lane::Reads, until, job).await
            }))
        })
        .collect();
    let mut text = ResponseWriter::answer(call.door.answers.clone())?;
    text.push("[")?;
    for mut run in runs {
        text.append((&mut run.0).await.map_err(|_| Error::bug("a search of the batch ended without an answer"))??)?;
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
pub async fn query(mut call: Call) -> Outcome<BookedResponse> {
    let search = call.decode(search::query).await?;
    one(call, search, Form::Points).await
}

/// `POST points/query/batch`
pub async fn query_batch(mut call: Call) -> Outcome<BookedResponse> {
    let searches = call.decode(search::query_batch).await?;
    several(call, searches, Form::Points).await
}

/// `POST points/search`
pub async fn search(mut call: Call) -> Outcome<BookedResponse> {
    let search = call.decode(search::search).await?;
    one(call, search, Form::List).await
}

/// `POST points/search/batch`
pub async fn search_batch(mut call: Call) -> Outcome<BookedResponse> {
    let searches = call.decode(search::search_batch).await?;
    several(call, searches, Form::List).await
}
