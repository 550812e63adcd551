//! The plain types that pass between a door and the store.
//!
//! ```text
//!   door ──► Write / Query / Scroll ... ──► Store ──► Scored / Record / Info ──► door
//! ```
//!
//! Decoded once at the door, never converted again below it. No wire type stands here, and nothing
//! here knows JSON, but for a payload: it is kept as the JSON text of an object, checked at the door.

pub(crate) mod catalog_cost;
pub(crate) mod check;
pub(crate) mod codec;
pub(crate) mod op;

pub use crate::api::catalog_cost::HeldConfig;
use ramekin_base::PointId;
use ramekin_fields::{Filter, Order, OrderValue, Path, Prepared, Schema};
use ramekin_memory::{Account, Reservation};
use ramekin_vecmath::{Datatype, Metric, normalise};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of the only vector of a collection that has no named ones.
pub const UNNAMED: &str = "";

/// One dense vector of a collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VectorConfig {
    pub dim: usize,
    pub metric: MetricName,
    /// Collections of old do not say it.
    #[serde(default)]
    pub datatype: Datatype,
    /// What the client sent besides (`hnsw_config`, `quantization_config`, `on_disk`, ...): kept and echoed, as JSON text.
    #[serde(rename = "echo")]
    pub client_config: Option<String>,
    /// What of it says where the vector's parts should be.
    #[serde(default)]
    pub placement: Placement,
}

/// Where a part should be as far as the budget goes: a priority, never a promise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryTier {
    /// In memory before anything else.
    Pinned,
    #[default]
    Cached,
    /// On disk, and in memory only when nobody else wants that.
    Cold,
}

/// What a client wishes for the parts of one vector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    pub vectors: MemoryTier,
    /// What finds vectors: centroids and rows.
    pub index: MemoryTier,
    pub codes: MemoryTier,
    /// Bits a dimension that resident codes may take, by the kind of quantisation that was asked for; `None`: any.
    pub code_bits_max: Option<f32>,
    /// `ef_construct`: how carefully the index is to be built.
    #[serde(default)]
    pub ef_construct: Option<usize>,
}

impl VectorConfig {
    /// Of f32, with nothing else said.
    pub fn new(dim: usize, metric: MetricName) -> Self {
        Self { dim, metric, datatype: Datatype::default(), client_config: None, placement: Placement::default() }
    }

    /// Brings the values of a vector to what is kept, returned and scored: of length 1 for Cosine, then rounded to the
    /// datatype. Bytes can hold no vector of length 1, so they stay as they came.
    pub fn keep(&self, values: &mut [f32]) {
        if self.metric == MetricName::Cosine && self.datatype != Datatype::Uint8 {
            normalise(values);
        }
        self.datatype.round(values);
    }

    /// Brings kept values to what a search asks with.
    pub fn ask(&self, values: &mut [f32]) {
        if self.is_normalised_late() {
            normalise(values);
        }
    }

    /// Scores by kept values divide by their length.
    pub(crate) fn is_normalised_late(&self) -> bool {
        self.metric == MetricName::Cosine && self.datatype == Datatype::Uint8
    }
}

/// A metric as it is written to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetricName {
    Dot,
    Cosine,
    Euclid,
    Manhattan,
}

impl MetricName {
    pub fn metric(self) -> Metric {
        match self {
            Self::Dot => Metric::Dot,
            Self::Cosine => Metric::Cosine,
            Self::Euclid => Metric::Euclid,
            Self::Manhattan => Metric::Manhattan,
        }
    }
}

/// What a collection is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectionConfig {
    /// Vector name to its configuration; one entry named [`UNNAMED`] for a collection with a single vector.
    pub vectors: BTreeMap<String, VectorConfig>,
    /// Segments with fewer bytes of vectors than this are scanned, not indexed; KiB.
    pub full_scan_threshold_kib: u64,
    /// Share of deleted points from which a segment is rewritten.
    pub deleted_threshold: f64,
    /// Segments with fewer points than this are not rewritten for their deleted points alone.
    pub vacuum_min_vectors: u64,
    /// Wished recall@10, 0.5 to 0.999.
    pub recall: f32,
    /// What the client sent besides (`hnsw_config`, `optimizers_config`, `wal_config`, ...): section name to JSON text.
    #[serde(rename = "echo")]
    pub client_config: BTreeMap<String, String>,
    /// Of payload fields.
    #[serde(default)]
    pub indexes: BTreeMap<Path, FieldConfig>,
}

/// An index of a payload field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FieldConfig {
    pub schema: Arc<Schema>,
    /// What the client said of it, as JSON text; to be echoed.
    #[serde(rename = "echo")]
    pub client_config: Option<String>,
}

impl CollectionConfig {
    /// With nothing said but its vectors.
    pub fn new(vectors: BTreeMap<String, VectorConfig>) -> Self {
        Self {
            vectors,
            full_scan_threshold_kib: 10_000,
            deleted_threshold: 0.2,
            vacuum_min_vectors: 1000,
            recall: 0.95,
            client_config: BTreeMap::new(),
            indexes: BTreeMap::new(),
        }
    }

    /// A filter, ready to be asked of the collection's points.
    pub(crate) fn resolve<'a>(&self, filter: &'a Filter, account: &Account) -> ramekin_base::Result<Prepared<'a>> {
        let schema = |path: &Path| Some(self.indexes.get(path)?.schema.clone());
        filter.prepare(if self.indexes.is_empty() { None } else { Some(&schema) }, account)
    }
}

/// A change of a collection's configuration; `None` leaves a value as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectionPatch {
    pub full_scan_threshold_kib: Option<u64>,
    pub deleted_threshold: Option<f64>,
    pub vacuum_min_vectors: Option<u64>,
    pub recall: Option<f32>,
    /// Section name to JSON text; replaces the kept text (the door merges old and new).
    #[serde(rename = "echo")]
    pub client_config: BTreeMap<String, String>,
    /// Vector name to the JSON text kept for it.
    #[serde(rename = "vector_echo")]
    pub vector_client_config: BTreeMap<String, String>,
    /// Vector name to where its parts should be.
    #[serde(default)]
    pub placements: BTreeMap<String, Placement>,
}

/// One step of an alias request; all steps of a request happen together or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum AliasAction {
    Create { alias: String, collection: String },
    Delete { alias: String },
    Rename { from: String, to: String },
}

/// The vectors of a batch under one name: `data` is `present.len()` vectors of the collection's dimension, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub name: String,
    pub dim: usize,
    /// Index into the batch's ids for each vector; strictly ascending. A point that is missing has no such vector.
    pub present: Vec<u32>,
    pub data: Vec<f32>,
}

/// Points of an upsert, by column. A later point with the same id in a batch wins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub ids: Vec<PointId>,
    pub columns: Vec<Column>,
    /// JSON text of each point's payload object; empty text: no payload. Empty list: no point has one.
    pub payloads: Vec<Box<str>>,
}

/// Which points a write is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Selection {
    Ids(Vec<PointId>),
    /// All that pass it when the write's turn comes.
    Filter(Filter),
}

/// Which points of a batch are written, beside that those which are there must pass a filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Upsert,
    /// Only points that are not there.
    InsertOnly,
    /// Only points that are there.
    UpdateOnly,
    /// Only vectors, of points that are there.
    Vectors,
}

/// A write to one collection.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// Replaces whole points, or adds them.
    Upsert(Batch),
    /// Writes those points of the batch that may be written by what is there when the write's turn comes.
    Conditional { batch: Batch, mode: Mode, filter: Box<Filter> },
    /// Removes points; unknown ids are no error.
    Delete(Selection),
    /// Replaces the vectors named in the batch, keeps the others and the payload. Unknown ids: `NotFound`.
    UpdateVectors(Batch),
    /// Removes the named vectors of the points.
    DeleteVectors { points: Selection, names: Vec<String> },
    /// Changes the payload of points.
    Payload { points: Selection, change: PayloadChange },
}

#[derive(Debug, Clone, PartialEq)]
pub enum PayloadChange {
    /// Sets the keys of this JSON object and keeps the others, in the payload or in the object at a path of it.
    Merge {
        keys: Box<str>,
        path: Option<Path>,
    },
    /// The payload becomes this JSON object.
    Overwrite(Box<str>),
    /// Removes what these paths end with.
    DeleteKeys(Vec<Path>),
    Clear,
}

/// How long a writer waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until it is durable.
    Durable,
    /// Until it is durable and visible.
    Visible,
}

/// What a write answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Number of the operation in its store, from 1.
    pub operation: u64,
    pub visible: bool,
}

/// Which parts of points to return.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parts {
    pub payload: PayloadParts,
    pub vectors: VectorParts,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub enum PayloadParts {
    #[default]
    None,
    All,
    /// Only these paths; a path names the whole value below it.
    Include(Vec<Path>),
    Exclude(Vec<Path>),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub enum VectorParts {
    #[default]
    None,
    All,
    Names(Vec<String>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    Vector(Vec<f32>),
    /// The vector of this point, which is then left out of the results.
    Point(PointId),
    /// No vector: points in the order of their ids (what a scroll gives), score 1.
    Ids,
    /// No vector: points in the order of a field (what an ordered scroll gives), score 1.
    Order(Order),
}

/// A search for the nearest points.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    pub target: Target,
    pub using: String,
    /// Only points that pass it; an empty one lets all pass.
    pub filter: Filter,
    pub limit: usize,
    pub offset: usize,
    pub score_threshold: Option<f32>,
    pub exact: bool,
    pub ef: Option<usize>,
    pub rescore: bool,
    /// So many candidates are scored by their full vectors, as far as their errors leave them a chance.
    pub candidates: usize,
    /// Reads of the disk at most, those for ids and payloads of results among them; what is needed for any answer is read
    /// in any case.
    pub max_reads: Option<usize>,
    pub indexed_only: bool,
    pub parts: Parts,
}

impl Query {
    /// The `limit` nearest to a target, rescored, by the unnamed vector: ids and scores only.
    pub fn new(target: Target, limit: usize) -> Self {
        Self {
            target,
            using: UNNAMED.to_owned(),
            filter: Filter::default(),
            limit,
            offset: 0,
            score_threshold: None,
            exact: false,
            ef: None,
            rescore: true,
            candidates: 0,
            max_reads: None,
            indexed_only: false,
            parts: Parts::default(),
        }
    }
}

/// A vector as it is returned, under its name.
pub type NamedVectors = Vec<(String, Vec<f32>)>;

/// A point without a score.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub id: PointId,
    /// JSON text of the object; `None` if not asked for; `Some("{}")` if asked for and empty.
    pub payload: Option<String>,
    /// `None` if not asked for.
    pub vectors: Option<NamedVectors>,
    /// The value that it stands at, among points in the order of a field.
    pub order_value: Option<OrderValue>,
}

/// A point with its score, as the metric's users expect it (a distance for Euclid and Manhattan).
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    pub record: Record,
    pub score: f32,
    pub version: u64,
}

/// Answers, with the memory they hold; dropped when the bytes are on the wire.
pub struct Held<T> {
    pub value: T,
    pub memory: Vec<Reservation>,
}

/// What one query did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Profile {
    pub clusters: u64,
    pub codes: u64,
    pub rescored: u64,
    /// Pages asked for, cached or not.
    pub pages: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub cache_hits: u64,
    pub reserved_bytes: u64,
    pub stages_us: Stages,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explain: Option<Explain>,
}

/// A value of a field that points may share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum FacetValue {
    Word(String),
    Integer(i64),
    Bool(bool),
}

/// How the points of segments were found that pass a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Explain {
    /// Points that were expected to pass, at most, before the indexes were read; and those that do by what they say.
    pub estimate: u64,
    pub passing: u64,
    /// Segments of which the indexes' answer was remembered.
    pub remembered: u64,
    /// Points whose payload was asked, since no index knew.
    pub asked: u64,
    /// Segments of which only the passing points were looked at; whose nearest lists were scanned; that were scanned whole.
    pub direct: u64,
    pub lists: u64,
    pub scanned: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stages {
    pub coarse: u64,
    pub scan: u64,
    pub rescore: u64,
    pub payload: u64,
}

/// A page of a scroll: records in id order and where the next page starts.
pub struct Page {
    pub records: Vec<Record>,
    pub next: Option<PointId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Green,
    Yellow,
    Grey,
    Red,
}

/// Work in the background, as progress for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// "flush", "merge" or "vacuum", with the phase: "merge: assign".
    pub what: String,
    pub done: u64,
    pub total: u64,
    pub rate_per_s: f64,
    pub left_s: f64,
}

/// Where the vectors of a name stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VectorCount {
    pub sealed: u64,
    pub new: u64,
}

/// A collection as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Info {
    pub config: Arc<HeldConfig>,
    pub status: Status,
    /// "ok", or the error that turned it red.
    pub optimizer: Result<(), String>,
    pub points: u64,
    /// Of segments; dead rows are among them until a merge.
    pub indexed_vectors: u64,
    /// Of each vector name, those in segments and those that are still in memory.
    pub vectors: BTreeMap<String, VectorCount>,
    pub segments: u64,
    pub progress: Option<Progress>,
    /// Recall@10 of real queries, measured in the background, once there were enough of them.
    pub recall_measured: Option<f64>,
    /// What people should know.
    pub warnings: Vec<String>,
    /// Of each field that has an index, the points of segments that are in it.
    pub indexed_points: BTreeMap<Path, u64>,
    /// And the points in memory that have a value for it.
    pub new_points: BTreeMap<Path, u64>,
    pub bytes_on_disk: u64,
    pub last_operation: u64,
}
