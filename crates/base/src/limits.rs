//! Every limit of the system, in one table. `ramekin limits` prints [`TABLE`].
//!
//! A limit that depends on the budget is a function here, so that the rule stands in one place.

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $value:expr;)*) => {
        $($(#[doc = $doc])+ pub const $name: $kind = $value;)*

        /// Name, value and meaning of every fixed limit.
        pub const TABLE: &[(&str, u64, &str)] = &[$((stringify!($name), $name as u64, concat!($($doc),+))),*];
    };
}

limits! {
    /// Smallest budget that a server starts with, bytes.
    BUDGET_MIN: u64 = 22 << 20;
    /// A page of a page file, bytes.
    PAGE: usize = 4096;
    /// Largest request body whatever the budget, bytes.
    BODY_MAX: u64 = 32 << 20;
    /// Open connections of a door whatever the budget.
    CONNECTIONS_MAX: usize = 10_000;
    /// All header lines of a request together, bytes.
    HEADERS_MAX: usize = 16 << 10;
    /// Header lines of a request.
    HEADER_COUNT_MAX: usize = 64;
    /// Depth of nested JSON in a request.
    NESTING_MAX: usize = 64;
    /// Points in one request.
    POINTS_PER_REQUEST_MAX: usize = 1 << 20;
    /// Queries in one batch request.
    QUERIES_PER_BATCH_MAX: usize = 1024;
    /// Operations in one batch of writes.
    OPERATIONS_PER_BATCH_MAX: usize = 1024;
    /// Candidates that one query may wish for, by `hnsw_ef` or oversampling, beyond the results that it asks for.
    CANDIDATES_MAX: usize = 1 << 16;
    /// Dimensions of a dense vector.
    DIM_MAX: usize = 65_536;
    /// Named vectors of a collection.
    VECTOR_NAMES_MAX: usize = 64;
    /// Bytes of a collection's, alias's or vector's name.
    NAME_MAX: usize = 255;
    /// Bytes of an error's message.
    MESSAGE_MAX: usize = 1 << 10;
    /// Collections of a store.
    COLLECTIONS_MAX: usize = 16_384;
    /// Indexed payload fields of a collection.
    FIELD_INDEXES_MAX: usize = 128;
    /// Payload of one point whatever the budget, bytes of JSON.
    PAYLOAD_MAX: usize = 8 << 20;
    /// Bytes of one log record; larger writes are cut into several.
    LOG_RECORD_MAX: usize = 16 << 20;
    /// Seconds that a request waits for memory when it names no timeout of its own.
    TIMEOUT_DEFAULT_S: u64 = 30;
    /// Longest timeout that a request may name, seconds.
    TIMEOUT_MAX_S: u64 = 3600;
    /// Requests that wait for the store at one time; the next one is refused.
    QUEUE_MAX: usize = 1024;
}

/// The largest request body under a budget: the smaller of [`BODY_MAX`] and a quarter of the budget.
pub const fn body_max(budget: u64) -> u64 {
    if budget / 4 < BODY_MAX { budget / 4 } else { BODY_MAX }
}

/// Open connections under a budget: the smaller of [`CONNECTIONS_MAX`] and one for each 64 KiB.
pub const fn connections_max(budget: u64) -> usize {
    let places = budget / (64 << 10);
    if places < CONNECTIONS_MAX as u64 { places as usize } else { CONNECTIONS_MAX }
}

/// The largest payload of one point under a budget: the smaller of [`PAYLOAD_MAX`] and a sixteenth of the budget, so
/// that whoever wrote it can read it, change it and merge it.
pub const fn payload_max(budget: u64) -> usize {
    if budget / 16 < PAYLOAD_MAX as u64 { (budget / 16) as usize } else { PAYLOAD_MAX }
}

const _: () = assert!(PAGE.is_power_of_two());
const _: () = assert!(PAYLOAD_MAX < LOG_RECORD_MAX, "a point's payload must fit a log record");
const _: () = assert!(DIM_MAX * 4 < LOG_RECORD_MAX, "a vector must fit a log record");
const _: () = assert!(TIMEOUT_DEFAULT_S <= TIMEOUT_MAX_S);
