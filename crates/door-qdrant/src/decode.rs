//! Every decoder of outside bytes, as a pure function over them: for fuzzing and for tests.
//!
//! None of them panics, whatever the bytes; what is refused is refused with a kind and a message.

use crate::wire::room::Room;
use ramekin_base::Result;
use ramekin_fields::Path;
use ramekin_vectors::{AliasAction, CollectionConfig, FieldConfig, Write};

pub use crate::collection_body::Change;
pub use crate::listing::{Count, Facet, Retrieve, Scroll};
pub use crate::memory::Wish;
pub use crate::options::Options;
use crate::plan::Wanted;
pub use crate::search::Search;
pub use crate::wire::json::Reader;

macro_rules! endless {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $decode:path;)*) => {
        $($(#[doc = $doc])+
        pub fn $name(body: &[u8]) -> Result<$kind> {
            $decode(body, &mut Room::endless())
        })*
    };
}

endless! {
    /// `PUT points`
    upsert: Write = crate::batch::upsert;
    /// `PUT points/vectors`
    update_vectors: Write = crate::batch::update_vectors;
    /// `POST points/delete`
    delete: Write = crate::selection::delete;
    /// `POST points/vectors/delete`
    delete_vectors: Write = crate::selection::delete_vectors;
    /// `POST points/payload`
    set_payload: Write = crate::selection::set_payload;
    /// `PUT points/payload`
    overwrite_payload: Write = crate::selection::overwrite_payload;
    /// `POST points/payload/delete`
    delete_payload: Write = crate::selection::delete_payload;
    /// `POST points/payload/clear`
    clear_payload: Write = crate::selection::clear_payload;
    /// `POST points`
    retrieve: Retrieve = crate::listing::retrieve;
    /// `POST points/query`
    query: Search = crate::search::query;
    /// `POST points/query/batch`
    query_batch: Vec<Search> = crate::search::query_batch;
    /// `POST points/search`
    search: Search = crate::search::search;
    /// `POST points/search/batch`
    search_batch: Vec<Search> = crate::search::search_batch;
    /// `POST points/scroll`
    scroll: Scroll = crate::listing::scroll;
    /// `POST points/count`
    count: Count = crate::listing::count;
    /// `POST facet`
    facet: Facet = crate::listing::facet;
    /// `PUT index`
    index: (Path, FieldConfig) = crate::indexes::decode;
    /// `POST points/batch`: how many operations it has.
    operations: usize = count_operations;
    /// `POST /memory/plan`
    plan: Wanted = crate::plan::wanted;
}

fn count_operations(body: &[u8], room: &mut Room) -> Result<usize> {
    Ok(crate::writes::operations(body, room)?.len())
}

/// `PUT collections/{name}`
pub fn create_collection(body: &[u8]) -> Result<CollectionConfig> {
    crate::collection_body::create(body)
}

/// `PATCH collections/{name}`
pub fn change_collection(body: &[u8]) -> Result<Change> {
    crate::collection_body::change(body)
}

/// `POST collections/aliases`
pub fn change_aliases(body: &[u8]) -> Result<Vec<AliasAction>> {
    crate::aliases::actions(body)
}

/// `PUT /memory`
pub fn memory(body: &[u8]) -> Result<Wish> {
    crate::memory::wish(body)
}
