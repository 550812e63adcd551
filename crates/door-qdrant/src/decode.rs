//! Every decoder of outside bytes, as a pure function over them: for fuzzing and for tests.
//!
//! None of them panics, whatever the bytes; what is refused is refused with a kind and a message.

use crate::wire::room::Room;
use ramekin_base::Result;
use ramekin_fields::Path;
use ramekin_memory::Account;
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
        /// Each of them by its name, decoding with what it takes booked on an account, and throwing the value away.
        pub const BOOKED: &[(&str, fn(&[u8], &Account) -> Result<()>)] = &[$((stringify!($name), |body, account| {
            $decode(body, &mut Room::new(0, account.clone(), None)).map(|_| ())
        })),*];

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
    /// `PUT collections/{name}`
    create_collection: CollectionConfig = crate::collection_body::create;
    /// `PATCH collections/{name}`
    change_collection: Change = crate::collection_body::change;
    /// `POST collections/aliases`
    change_aliases: Vec<AliasAction> = crate::aliases::actions;
    /// `POST /memory/plan`
    plan: Wanted = crate::plan::wanted;
}

fn count_operations(body: &[u8], room: &mut Room) -> Result<usize> {
    Ok(crate::writes::operations(body, room)?.len())
}

/// `PUT /memory`
pub fn memory(body: &[u8]) -> Result<Wish> {
    crate::memory::wish(body)
}
