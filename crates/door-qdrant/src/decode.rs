//! Every decoder of outside bytes, as a pure function over them: for fuzzing and for tests.
//!
//! None of them panics, whatever the bytes; what is refused is refused with a kind and a message.

use ramekin_base::Result;
use ramekin_fields::Path;
use ramekin_memory::{Account, SharedReservation};
use ramekin_vectors::{AliasAction, CollectionConfig, FieldConfig, Write};

pub use crate::decoders::collection_body::Change;
pub use crate::decoders::listing::{Count, Facet, Retrieve, Scroll};
pub use crate::decoders::search::Search;
pub use crate::handlers::memory::BudgetRequest;
use crate::request::host::Wanted;
pub use crate::request::options::Options;
pub use crate::wire::json::Reader;

macro_rules! endless {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $decode:path;)*) => {
        /// Each of them by its name, decoding with what it takes booked on an account, and throwing the value away.
        pub const BOOKED: &[(&str, fn(&[u8], &Account) -> Result<()>)] = &[$((stringify!($name), |body, account| {
            $decode(body, &mut SharedReservation::new(0, account.clone(), None)).map(|_| ())
        })),*];

        $($(#[doc = $doc])+
        pub fn $name(body: &[u8]) -> Result<$kind> {
            $decode(body, &mut SharedReservation::endless())
        })*
    };
}

endless! {
    /// `PUT points`
    upsert: Write = crate::decoders::batch::upsert;
    /// `PUT points/vectors`
    update_vectors: Write = crate::decoders::batch::update_vectors;
    /// `POST points/delete`
    delete: Write = crate::decoders::selection::delete;
    /// `POST points/vectors/delete`
    delete_vectors: Write = crate::decoders::selection::delete_vectors;
    /// `POST points/payload`
    set_payload: Write = crate::decoders::selection::set_payload;
    /// `PUT points/payload`
    overwrite_payload: Write = crate::decoders::selection::overwrite_payload;
    /// `POST points/payload/delete`
    delete_payload: Write = crate::decoders::selection::delete_payload;
    /// `POST points/payload/clear`
    clear_payload: Write = crate::decoders::selection::clear_payload;
    /// `POST points`
    retrieve: Retrieve = crate::decoders::listing::retrieve;
    /// `POST points/query`
    query: Search = crate::decoders::search::query;
    /// `POST points/query/batch`
    query_batch: Vec<Search> = crate::decoders::search::query_batch;
    /// `POST points/search`
    search: Search = crate::decoders::search::search;
    /// `POST points/search/batch`
    search_batch: Vec<Search> = crate::decoders::search::search_batch;
    /// `POST points/scroll`
    scroll: Scroll = crate::decoders::listing::scroll;
    /// `POST points/count`
    count: Count = crate::decoders::listing::count;
    /// `POST facet`
    facet: Facet = crate::decoders::listing::facet;
    /// `PUT index`
    index: (Path, FieldConfig) = crate::handlers::indexes::decode;
    /// `POST points/batch`: how many operations it has.
    operations: usize = count_operations;
    /// `PUT collections/{name}`
    create_collection: CollectionConfig = crate::decoders::collection_body::create;
    /// `PATCH collections/{name}`
    change_collection: Change = crate::decoders::collection_body::change;
    /// `POST collections/aliases`
    change_aliases: Vec<AliasAction> = crate::handlers::aliases::actions;
    /// `POST /memory/plan`
    plan: Wanted = crate::handlers::plan::wanted;
    /// `PUT /memory`
    memory: BudgetRequest = budget_request;
}

fn count_operations(body: &[u8], room: &mut SharedReservation) -> Result<usize> {
    Ok(crate::handlers::writes::operations(body, room)?.len())
}

fn budget_request(body: &[u8], _: &mut SharedReservation) -> Result<BudgetRequest> {
    crate::handlers::memory::budget_request(body)
}
