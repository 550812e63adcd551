//! What collections will take, before there is any data: every structure by its formula, inside a budget.
//!
//! ```text
//!   points, vectors, payload ─► sections of one flushed segment ─► who is resident (`choice.rs`) ─► a line a structure:
//!                                                                 in memory settled, on disk, at the peak of a build
//! ```
//!
//! The same formulas and the same choice as in a running server, over counts alone. What is not known is assumed: ids are
//! dense numbers, every point has every vector, all is merged into one segment a collection.

use crate::api::{CollectionConfig, Placement};
use crate::collection::structures::{CODES, FIELDS, IDS, STRUCTURES, structure_of};
use crate::memtable;
use crate::memtable::delete_bitmap::DeleteBitmap;
use crate::residency::choice::{IndexRequest, ResidencyRequest, Taken, choose};
use crate::residency::{beyond, spare};
use crate::state::accounts::{Limits, MANIFEST_MIN_RESERVATION, QUERIES_MIN_RESERVATION};
use ramekin_ann::{Part, expected_sections};
use ramekin_base::Result;
use ramekin_base::limits::PAGE;
use ramekin_fields::expected_bytes;
use ramekin_pages::{LEAST_CACHED, PageFile, RESERVE, resident_cost};

/// A collection that is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    pub name: String,
    pub config: CollectionConfig,
    pub points: u64,
    /// Of each point, as JSON text.
    pub payload_bytes: u64,
}

/// What stands beside collections in the budget.
#[derive(Debug, Clone, Copy, Default)]
pub struct FixedOverhead {
    /// In use whatever is stored: the process itself.
    pub used: u64,
    /// Taken for good by the doors, used or not.
    pub min_reservations: u64,
}

/// One structure.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanLine {
    /// As in the ledger: `products/codes`, or of the whole store.
    pub name: String,
    pub formula: &'static str,
    pub bytes: u64,
    pub disk_bytes: u64,
    /// While points come in and segments are built.
    pub build_bytes: u64,
}

/// How one vector of a collection will be searched.
#[derive(Debug, Clone, PartialEq)]
pub struct Searched {
    pub collection: usize,
    pub vector: String,
    pub lists: usize,
    pub resident: Vec<Part>,
}

/// What a budget gives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CapacityPlan {
    pub lines: Vec<PlanLine>,
    pub searched: Vec<Searched>,
    /// Of the lines, those that are of each collection.
    pub of_collection: Vec<Vec<usize>>,
    /// Memory that cached pages may fill besides, once there were searches enough.
    pub cache_bytes: u64,
    /// Bytes that the budget lacks for what cannot be smaller; 0: it fits.
    pub lacks: u64,
}

/// Memory of the log and of queries in a server that is asked, and what is taken for good beside flush and merge.
const LOG_BYTES: u64 = 512 << 10;
const QUERIES_BYTES: u64 = 512 << 10;
/// What searches under way take of the memory that the cache would fill: eight of them, of usual size.
const SCRATCH_BYTES: u64 = 2_560 << 10;
const MIN_RESERVATIONS: u64 = QUERIES_MIN_RESERVATION + MANIFEST_MIN_RESERVATION + RESERVE;
/// New points come in with less than their share, only slower.
const GROWING_LEAST: u64 = 512 << 10;
/// Sections of a segment's file, and its meta.
const SECTIONS: usize = 16;
const META_BYTES: usize = 6 << 10;
/// Share of the log's bound that is there idle: a file goes as a whole.
const LOG_KEPT: u64 = 2;

impl CapacityPlan {
    pub fn bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.bytes).sum()
    }

    pub fn disk_bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.disk_bytes).sum()
    }

    pub fn build_bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.build_bytes).sum()
    }
}

/// What the collections will take of a budget.
pub fn capacity_plan(budget: u64, overhead: FixedOverhead, expected: &[Expected]) -> Result<CapacityPlan> {
    let limits = Limits::of(budget);
    let shapes = expected.iter().map(|one| Shape::of(one, &limits)).collect::<Result<Vec<_>>>()?;
    let tables: u64 = shapes.iter().map(|shape| shape.tables).sum();
    // Floors of queries and of the cache hold what is used of both.
    let held = overhead.used + overhead.min_reservations + MIN_RESERVATIONS + LOG_BYTES + tables;
    let new_points = expected.iter().map(|one| one.memtable_bytes()).sum::<u64>().min(limits.memtable_bytes);
    let build_held = held + limits.flush_work + limits.merge_work + new_points;
    let requests = || shapes.iter().map(Shape::request).collect::<Vec<_>>();
    let choose =
        |held, is_idle| choose(&requests(), budget.saturating_sub(held + spare(budget, is_idle)), beyond(budget));
    let (settled, building) = (choose(held, true), choose(build_held, false));

    let needed = build_held - new_points + new_points.min(GROWING_LEAST);
    let mut all = CapacityPlan { lacks: needed.saturating_sub(budget), ..CapacityPlan::default() };
    let line = |name: &str, formula, bytes, disk_bytes, build_bytes| PlanLine {
        name: name.to_owned(),
        formula,
        bytes,
        disk_bytes,
        build_bytes,
    };
    for (at, (shape, one)) in shapes.iter().zip(expected).enumerate() {
        let first = all.lines.len();
        for (structure, formula) in STRUCTURES {
            let resident = |taken: &Taken| shape.resident(structure, taken);
            let (bytes, build_bytes) = (resident(&settled[at]), resident(&building[at]));
            let name = format!("{}/{structure}", one.name);
            all.lines.push(line(&name, formula, bytes, shape.on_disk(structure), build_bytes));
        }
        let payload = line(&format!("{}/payload", one.name), "points x (payload + 8)", 0, shape.payload, 0);
        all.lines.extend([
            payload,
            line(&format!("{}/tables", one.name), TABLES, shape.tables, shape.checksums, shape.tables),
        ]);
        all.of_collection.push((first..all.lines.len()).collect());
        for (vector, resident) in shape.vectors.iter().zip(&settled[at].parts) {
            let (lists, resident) = (vector.lists, resident.clone());
            all.searched.push(Searched { collection: at, vector: vector.name.clone(), lists, resident });
        }
    }
    let log_disk = limits.log_bytes.min(expected.iter().map(Expected::log_bytes).sum()) / LOG_KEPT;
    all.lines.extend([
        line(
            "base",
            "code x 0.6 + threads x (stack + kernel) + allocator + libraries",
            overhead.used,
            0,
            overhead.used,
        ),
        line("log", "commit buffer + reads of payloads", LOG_BYTES, log_disk, LOG_BYTES),
        line("queries", "scratches + results", QUERIES_BYTES, 0, QUERIES_BYTES),
        line("growing", "new points, at most an eighth of the budget", 0, 0, new_points),
        line("seal", "buffers and index build of one seal", 0, 0, limits.flush_work),
        line("merge", "buffers and index build of one merge", 0, 0, limits.merge_work),
    ]);
    let free = budget.saturating_sub(held + settled.iter().map(|taken| taken.bytes).sum::<u64>());
    let paged = shapes.iter().zip(&settled).map(|(shape, taken)| shape.paged(taken)).sum::<u64>();
    all.cache_bytes = (free.saturating_sub(SCRATCH_BYTES) + LEAST_CACHED).min(paged);
    Ok(all)
}

const TABLES: &str = "pages x 14 + points / 8 + 8 KiB + fields x 4 KiB";
/// Of an index of a field.
const FIELD_SECTIONS: usize = 9;
const FIELD_META_BYTES: usize = 256;

/// One vector of a collection.
struct Planned {
    name: String,
    lists: usize,
    parts: Vec<(Part, u64)>,
    placement: Placement,
}

/// The sizes of one collection.
struct Shape {
    vectors: Vec<Planned>,
    payload: u64,
    /// Tables of indexes of fields, the smallest first.
    fields: Vec<u64>,
    /// Where payloads end, in memory.
    offsets: Vec<u64>,
    /// Memory of its open file.
    tables: u64,
    checksums: u64,
}

impl Shape {
    fn of(one: &Expected, limits: &Limits) -> Result<Self> {
        let rows = one.points.min(u64::from(u32::MAX)) as usize;
        let mut vectors = Vec::new();
        for (name, vector) in one.config.vectors.iter().filter(|_| rows > 0) {
            let (lists, parts) =
                expected_sections(vector.metric.metric(), vector.dim, vector.datatype, rows, limits.merge_work)?;
            vectors.push(Planned { name: name.clone(), lists, parts, placement: vector.placement });
        }
        let payload = if one.payload_bytes > 0 { one.points.saturating_mul(one.payload_bytes + 8) } else { 0 };
        let parts = vectors.iter().flat_map(|vector| &vector.parts);
        let bytes = payload + parts.map(|(_, bytes)| bytes).sum::<u64>();
        let sections = SECTIONS * vectors.len().max(1);
        let tables = PageFile::open_cost(bytes, sections, META_BYTES) + DeleteBitmap::bytes(rows) + 4096;
        let each = || one.config.indexes.values().map(|field| expected_bytes(&field.schema, one.points));
        let open = |tables: [u64; 3]| PageFile::open_cost(tables.iter().sum(), FIELD_SECTIONS, FIELD_META_BYTES);
        let tables = tables + each().map(open).sum::<u64>();
        let mut fields: Vec<u64> = each().flatten().filter(|bytes| *bytes > 0).collect();
        fields.sort_unstable();
        let of_fields: u64 = fields.iter().sum();
        let offsets = Some(resident_cost(one.points.saturating_mul(8))).filter(|_| payload > 0);
        let offsets = offsets.into_iter().collect();
        Ok(Self { vectors, payload, fields, offsets, tables, checksums: (bytes + of_fields).div_ceil(PAGE as u64) * 4 })
    }

    fn request(&self) -> ResidencyRequest {
        let index = |vector: &Planned| IndexRequest {
            parts: vector.parts.iter().map(|(part, bytes)| (*part, resident_cost(*bytes))).collect(),
            placement: vector.placement,
        };
        ResidencyRequest {
            weight: 1,
            lookups: Vec::new(),
            indexes: self.vectors.iter().map(index).collect(),
            fields: self.fields.iter().map(|bytes| resident_cost(*bytes)).collect(),
            offsets: self.offsets.clone(),
        }
    }

    /// Bytes in memory of all pages that searches read of what is not taken: of codes only where none are.
    fn paged(&self, taken: &Taken) -> u64 {
        let of_vector = |(vector, taken): (&Planned, &Vec<Part>)| {
            let has_codes = taken.iter().any(|part| structure_of(*part) == CODES);
            let is_read = |part: Part| match part {
                Part::Codes1 | Part::Codes8 => !has_codes,
                Part::Codes3 | Part::Codes6 | Part::Positions => false,
                _ => !taken.contains(&part),
            };
            let parts = vector.parts.iter().filter(|(part, _)| is_read(*part));
            parts.map(|(_, bytes)| resident_cost(*bytes)).sum::<u64>()
        };
        self.vectors.iter().zip(&taken.parts).map(of_vector).sum::<u64>() + self.payload
    }

    /// Bytes in memory of the parts of a structure that are taken.
    fn resident(&self, structure: &str, taken: &Taken) -> u64 {
        let offsets = self.offsets.iter().zip(&taken.offsets).filter(|(_, is_taken)| structure == IDS && **is_taken);
        let offsets: u64 = offsets.map(|(bytes, _)| bytes).sum();
        let fields = self.fields.iter().zip(&taken.fields).filter(|(_, is_taken)| structure == FIELDS && **is_taken);
        let fields: u64 = fields.map(|(bytes, _)| resident_cost(*bytes)).sum();
        let held = self.vectors.iter().zip(&taken.parts);
        let parts = held.flat_map(|(vector, taken)| vector.parts.iter().filter(|(part, _)| taken.contains(part)));
        let parts = parts.filter(|(part, _)| structure_of(*part) == structure);
        offsets + fields + parts.map(|(_, bytes)| resident_cost(*bytes)).sum::<u64>()
    }

    fn on_disk(&self, structure: &str) -> u64 {
        let parts = self.vectors.iter().flat_map(|vector| &vector.parts);
        let parts = parts.filter(|(part, _)| structure_of(*part) == structure);
        let fields: u64 = if structure == FIELDS { self.fields.iter().sum() } else { 0 };
        fields + parts.map(|(_, bytes)| bytes.next_multiple_of(PAGE as u64)).sum::<u64>()
    }
}

impl Expected {
    fn memtable_bytes(&self) -> u64 {
        let dims = self.config.vectors.values().map(|vector| vector.dim);
        self.points.saturating_mul(memtable::point_bytes(dims) as u64)
    }

    fn log_bytes(&self) -> u64 {
        self.memtable_bytes().saturating_add(self.points.saturating_mul(self.payload_bytes))
    }
}
