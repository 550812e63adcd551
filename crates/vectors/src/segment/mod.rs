//! An immutable segment: one immutable page file, the rows of it that died since, and the payloads that changed.
//!
//! ```text
//!   rows in id order:  numbers ascending, then UUIDs ascending
//!
//!   ids         nothing where the numbers are dense, else 8 bytes each; 16 bytes a UUID
//!   fences      the first id of each page of ids; read at open, held
//!   filter      "is this id here?", one byte a row (see `bloom.rs`)
//!   payload_at  where each row's text ends      payload   the texts
//!   256 + 16 i  the cluster index of the i-th vector name (crate `ann`)
//! ```
//!
//! A row number is found from an id by the filter, then a fence, then one page; an id from a row
//! number by one page; both at no cost where numbers are dense.

pub(crate) mod bloom;
pub(crate) mod delete_file;
pub(crate) mod field;
pub(crate) mod meta;
pub(crate) mod ordinals;
pub(crate) mod overlay;
pub(crate) mod patch_tree;
pub(crate) mod write;

use crate::api::codec::{read_number, read_uuid, row_in};
use crate::lock;
use crate::memtable::delete_bitmap::{CHUNK_BYTES, DeleteBitmap};
use crate::payload::log;
use crate::payload::texts::{self, FETCH_BYTES};
use crate::segment::delete_file::DeleteFile;
use crate::segment::field::FieldIndex;
use crate::segment::meta::{
    FENCES, FILTER, NUMBERS, PAYLOAD, PAYLOAD_AT, SegmentMeta, UUIDS, VectorMeta, index_tag, present_tag,
};
use crate::segment::ordinals::Present;
use crate::segment::patch_tree::{PatchTree, PatchView};
use parking_lot::{Mutex, RwLock};
use ramekin_ann::{Index, IndexMeta};
use ramekin_base::lock::Ranked;
use ramekin_base::{Error, PointId, Result};
use ramekin_log::LogReader;
use ramekin_memory::{Account, Reservation};
use ramekin_pages::{PageFile, Pages, Section};
use ramekin_storage::Storage;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Ids of a page, by kind.
const NUMBERS_PER_PAGE: usize = ramekin_base::limits::PAGE / 8;
const UUIDS_PER_PAGE: usize = ramekin_base::limits::PAGE / 16;

pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) file: Arc<PageFile>,
    pub(crate) meta: SegmentMeta,
    deaths: Mutex<Deaths>,
    /// The newest overlay of dead rows that a manifest names.
    pub(crate) delete_bitmap: Mutex<Option<DeleteFile>>,
    pub(crate) patches: PatchTree,
    /// Of payload fields, those that are built.
    pub(crate) fields: Ranked<RwLock<Arc<[Arc<FieldIndex>]>>>,
    /// A manifest names this segment.
    pub(crate) listed: AtomicBool,
    indexes: Vec<Option<Named>>,
    numbers: Option<Ids<u64>>,
    uuids: Option<Ids<u128>>,
    filter: Option<Section>,
    _memory: Reservation,
}

/// Rows that died up to now.
struct Deaths {
    rows: DeleteBitmap,
    /// Of the chunks that are not made yet.
    memory: Reservation,
}

/// A segment at one moment: who of its rows is dead, what changed in their payloads, and which indexes it has.
#[derive(Clone)]
pub(crate) struct SegmentView {
    pub(crate) own: Arc<Segment>,
    pub(crate) dead: DeleteBitmap,
    pub(crate) patches: PatchView,
    pub(crate) fields: Arc<[Arc<FieldIndex>]>,
}

impl Deref for SegmentView {
    type Target = Arc<Segment>;

    fn deref(&self) -> &Arc<Segment> {
        &self.own
    }
}

/// The index of one vector name, and which rows are in it.
pub(crate) struct Named {
    pub(crate) index: Index,
    pub(crate) present: Present,
}

struct Ids<T> {
    section: Section,
    fences: Box<[T]>,
}

impl Segment {
    /// Bytes held for an open segment besides its dead rows: fences, and its small parts.
    fn held_bytes(meta: &SegmentMeta) -> u64 {
        let uuids = (meta.points - meta.numbers) as usize;
        let numbers = if meta.dense_from.is_some() { 0 } else { meta.numbers as usize };
        let fences = numbers.div_ceil(NUMBERS_PER_PAGE) * 8 + uuids.div_ceil(UUIDS_PER_PAGE) * 16;
        fences as u64 + 4096
    }

    pub(crate) fn open(name: &str, file: Arc<PageFile>, account: &Account) -> Result<Self> {
        let broken = |what: String| Error::corrupt(what).at(name);
        let meta: SegmentMeta = serde_json::from_slice(file.meta()).map_err(|error| broken(error.to_string()))?;
        if meta.numbers > meta.points {
            return Err(broken("more numbers than points".into()));
        }
        let memory = account.try_reserve(Self::held_bytes(&meta))?;
        let deaths = account.try_reserve(DeleteBitmap::bytes(meta.points as usize))?;
        let uuid_count = (meta.points - meta.numbers) as usize;
        let number_count = if meta.dense_from.is_some() { 0 } else { meta.numbers as usize };
        let section = |tag: u32, bytes: usize| match file.section(tag) {
            Some(section) if section.len() == bytes as u64 => Ok(section),
            _ => Err(broken(format!("section {tag} is missing or not {bytes} bytes long"))),
        };
        let number_pages = number_count.div_ceil(NUMBERS_PER_PAGE);
        let uuid_pages = uuid_count.div_ceil(UUIDS_PER_PAGE);
        let mut fences = vec![0; number_pages * 8 + uuid_pages * 16];
        if !fences.is_empty() {
            section(FENCES, fences.len())?.stream(account, 64 << 10)?.read_exact(&mut fences)?;
        }
        let (low, high) = fences.split_at(number_pages * 8);
        let numbers = if number_count == 0 {
            None
        } else {
            let fences = low.chunks_exact(8).map(read_number).collect();
            Some(Ids { section: section(NUMBERS, number_count * 8)?, fences })
        };
        let uuids = if uuid_count == 0 {
            None
        } else {
            let fences = high.chunks_exact(16).map(read_uuid).collect();
            Some(Ids { section: section(UUIDS, uuid_count * 16)?, fences })
        };
        let mut indexes = Vec::with_capacity(meta.vectors.len());
        for (at, vector) in meta.vectors.iter().enumerate() {
            let open = |index: &IndexMeta| -> Result<Named> {
                let present = Present::open(&file, present_tag(at), index.rows as usize, meta.points, account)?;
                Ok(Named { index: Index::open(&file, index_tag(at), index, account)?, present })
            };
            indexes.push(vector.index.as_ref().map(open).transpose().map_err(|error| error.at(name))?);
        }
        let (filter, deaths) = (file.section(FILTER), Deaths { rows: DeleteBitmap::default(), memory: deaths });
        let (delete_bitmap, listed) = (Mutex::new(None), AtomicBool::new(false));
        Ok(Self {
            name: name.to_owned(),
            file,
            meta,
            deaths: Mutex::new(deaths),
            delete_bitmap,
            patches: PatchTree::default(),
            fields: Ranked::rw(&lock::FIELDS, Arc::default()),
            listed,
            indexes,
            numbers,
            uuids,
            filter,
            _memory: memory,
        })
    }

    /// Its files: its own, of its overlays of payloads, and of its indexes of fields.
    fn each_file(&self, each: &mut dyn FnMut(&PageFile)) {
        each(&self.file);
        self.patches.runs().iter().for_each(|run| each(&run.file));
        self.fields.read().iter().for_each(|field| each(field.index.file()));
    }

    /// Damage that was found in a file of it, if any was.
    pub(crate) fn damage(&self) -> Option<String> {
        let mut damage = None;
        self.each_file(&mut |file| damage = damage.take().or_else(|| file.damage().map(str::to_owned)));
        damage
    }

    /// Its own file or an overlay is damaged: it cannot be read as a whole.
    pub(crate) fn is_damaged(&self) -> bool {
        self.file.damage().is_some() || self.patches.runs().iter().any(|run| run.file.damage().is_some())
    }

    /// Tells of damage that nobody was told of, a file at a time.
    pub(crate) fn tell_damage(&self, tell: &mut dyn FnMut(&str)) {
        self.each_file(&mut |file| file.tell_damage().into_iter().for_each(&mut *tell));
    }

    /// Whether rows have died that no overlay on disk has.
    pub(crate) fn has_unwritten_deaths(&self) -> bool {
        self.dead().count() != self.delete_bitmap.lock().as_ref().map_or(0, |overlay| overlay.dead)
    }

    /// The rows that are dead now.
    pub(crate) fn dead(&self) -> DeleteBitmap {
        self.deaths.lock().rows.clone()
    }

    /// Marks rows dead. `memory` pays for chunks that a view holds, see [`Segment::deaths_bytes`]; only the writer, an
    /// installation under the lock of changes, and an opening kill.
    pub(crate) fn kill(&self, rows: impl Iterator<Item = u32>, memory: &mut Reservation) {
        let mut deaths = self.deaths.lock();
        let Deaths { rows: dead, memory: own } = &mut *deaths;
        for row in rows {
            dead.set(row, if dead.has_chunk_of(row) { &mut *memory } else { &mut *own });
        }
    }

    /// Takes the dead rows out of a `.dead` file, while nobody else has the segment.
    pub(crate) fn restore_deaths(&self, storage: &Storage, name: &str, account: &Account) -> Result<()> {
        // Nobody holds its chunks yet, and they were booked when it was opened.
        let mut none = account.try_reserve(0)?;
        let each = &mut |row| self.kill(std::iter::once(row), &mut none);
        DeleteFile::read(storage, name, self.meta.points, account, each)?;
        *self.delete_bitmap.lock() = Some(DeleteFile { name: name.to_owned(), dead: self.dead().count() });
        Ok(())
    }

    /// The most that deaths of so many rows take besides what was booked when it was opened.
    pub(crate) fn deaths_bytes(&self, rows: usize) -> u64 {
        DeleteBitmap::chunks(self.meta.points as usize).min(rows as u64) * CHUNK_BYTES
    }

    /// It, as it is now.
    pub(crate) fn view(self: &Arc<Self>) -> SegmentView {
        let fields = self.fields.read().clone();
        SegmentView { own: self.clone(), dead: self.dead(), patches: self.patches.view(), fields }
    }

    pub(crate) fn live(&self) -> u64 {
        u64::from(self.meta.points) - self.deaths.lock().rows.count()
    }

    /// Bytes of its file, of its overlays of payloads and of its indexes of fields.
    pub(crate) fn bytes_on_disk(&self) -> u64 {
        let fields = self.fields.read().clone();
        self.file.bytes()
            + self.patches.runs().iter().map(|run| run.file.bytes()).sum::<u64>()
            + fields.iter().map(|field| field.index.file().bytes()).sum::<u64>()
    }

    /// Bytes of vectors of the live points as f32, all names together: the size that policies compare, with each other and
    /// with new points, whatever the datatype makes of it on disk.
    pub(crate) fn vector_bytes(&self) -> u64 {
        let all: u64 = self.vectors().map(|(meta, named)| named.index.len() as u64 * meta.dim as u64 * 4).sum();
        let live = self.live() as f64 / f64::from(self.meta.points.max(1));
        (all as f64 * live) as u64
    }

    /// Each vector name that some point has.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = (&VectorMeta, &Named)> {
        let pairs = self.meta.vectors.iter().zip(&self.indexes);
        pairs.filter_map(|(meta, named)| named.as_ref().map(|named| (meta, named)))
    }

    pub(crate) fn vector(&self, name: &str) -> Option<(&VectorMeta, &Named)> {
        self.vectors().find(|(meta, _)| meta.name == name)
    }

    /// The small sections that lookups need, in the order in which they should be resident.
    pub(crate) fn lookup_sections(&self) -> impl Iterator<Item = &Section> {
        let ids = [self.numbers.as_ref().map(|ids| &ids.section), self.uuids.as_ref().map(|ids| &ids.section)];
        self.filter.iter().chain(ids.into_iter().flatten())
    }

    /// Where its payloads end, if it has some.
    pub(crate) fn payload_offsets(&self) -> Option<Section> {
        self.file.section(PAYLOAD_AT)
    }

    /// The row of each id, dead rows included; `None` where the id is not here.
    pub(crate) fn find(&self, pages: &Pages, ids: &[PointId]) -> Result<Vec<Option<u32>>> {
        let mut rows = vec![None; ids.len()];
        // Which page of which table could hold the id; the filter spares most of the reads.
        let mut asked: Vec<(usize, usize)> = Vec::new();
        for (at, id) in ids.iter().enumerate() {
            match (id, self.meta.dense_from) {
                (PointId::Num(number), Some(first)) => {
                    let row = number.checked_sub(first).filter(|row| *row < u64::from(self.meta.numbers));
                    rows[at] = row.map(|row| row as u32);
                }
                (PointId::Num(number), None) => asked.extend(page_of(&self.numbers, *number).map(|page| (at, page))),
                (PointId::Uuid(uuid), _) => asked.extend(page_of(&self.uuids, *uuid).map(|page| (at, page))),
            }
        }
        self.drop_absent(pages, ids, &mut asked)?;
        for asked in asked.chunks(FETCH_BYTES / ramekin_base::limits::PAGE) {
            let mut fetch = pages.fetch();
            let mut wants = Vec::with_capacity(asked.len());
            for (at, page) in asked {
                let section = match ids[*at] {
                    PointId::Num(_) => self.numbers.as_ref().map(|ids| &ids.section),
                    PointId::Uuid(_) => self.uuids.as_ref().map(|ids| &ids.section),
                };
                let section = section.ok_or_else(|| Error::bug("a page without its table"))?;
                let start = *page as u64 * ramekin_base::limits::PAGE as u64;
                let len = (section.len() - start).min(ramekin_base::limits::PAGE as u64);
                wants.push(fetch.want(section, start, len as usize)?);
            }
            let pinned = fetch.run()?;
            for ((at, page), want) in asked.iter().zip(wants) {
                rows[*at] = match ids[*at] {
                    PointId::Num(number) => row_in(pinned.bytes(want), 8, |bytes| read_number(bytes).cmp(&number))
                        .map(|row| (page * NUMBERS_PER_PAGE + row) as u32),
                    PointId::Uuid(uuid) => row_in(pinned.bytes(want), 16, |bytes| read_uuid(bytes).cmp(&uuid))
                        .map(|row| self.meta.numbers + (page * UUIDS_PER_PAGE + row) as u32),
                };
            }
        }
        Ok(rows)
    }

    /// Takes out of `asked` the ids that the filter knows not to be here.
    fn drop_absent(&self, pages: &Pages, ids: &[PointId], asked: &mut Vec<(usize, usize)>) -> Result<()> {
        let (Some(section), false) = (&self.filter, asked.is_empty()) else { return Ok(()) };
        let blocks = (section.len() as usize) / bloom::BLOCK;
        if let Some(resident) = section.resident() {
            asked.retain(|(at, _)| {
                let (block, bits) = bloom::place(ids[*at], blocks);
                bloom::may_hold(&resident[block * bloom::BLOCK..(block + 1) * bloom::BLOCK], bits)
            });
            return Ok(());
        }
        let mut kept = Vec::with_capacity(asked.len());
        for asked in asked.chunks(FETCH_BYTES / ramekin_base::limits::PAGE) {
            let mut fetch = pages.fetch();
            let places: Vec<_> = asked.iter().map(|(at, _)| bloom::place(ids[*at], blocks)).collect();
            let want = |(block, _): &(usize, u64)| fetch.want(section, (block * bloom::BLOCK) as u64, bloom::BLOCK);
            let wants = places.iter().map(want).collect::<Result<Vec<_>>>()?;
            let pinned = fetch.run()?;
            let held = asked.iter().zip(places.iter().zip(wants));
            kept.extend(
                held.filter(|(_, ((_, bits), want))| bloom::may_hold(pinned.bytes(*want), *bits))
                    .map(|(asked, _)| *asked),
            );
        }
        *asked = kept;
        Ok(())
    }

    /// The ids of rows, in the order asked.
    pub(crate) fn ids(&self, pages: &Pages, rows: &[u32]) -> Result<Vec<PointId>> {
        let mut ids = Vec::with_capacity(rows.len());
        for rows in rows.chunks(FETCH_BYTES / ramekin_base::limits::PAGE) {
            let mut fetch = pages.fetch();
            let mut wants = Vec::with_capacity(rows.len());
            for row in rows {
                wants.push(match self.place(*row)? {
                    Place::Dense(id) => Err(id),
                    Place::Number(section, at) => Ok(fetch.want(section, at, 8)?),
                    Place::Uuid(section, at) => Ok(fetch.want(section, at, 16)?),
                });
            }
            let pinned = fetch.run()?;
            ids.extend(wants.into_iter().zip(rows).map(|(want, row)| match want {
                Err(id) => id,
                Ok(want) if *row < self.meta.numbers => PointId::Num(read_number(pinned.bytes(want))),
                Ok(want) => PointId::Uuid(read_uuid(pinned.bytes(want))),
            }));
        }
        Ok(ids)
    }

    fn place(&self, row: u32) -> Result<Place<'_>> {
        if row < self.meta.numbers {
            return match (self.meta.dense_from, &self.numbers) {
                (Some(first), _) => Ok(Place::Dense(PointId::Num(first + u64::from(row)))),
                (None, Some(ids)) => Ok(Place::Number(&ids.section, u64::from(row) * 8)),
                (None, None) => Err(Error::bug("a segment without its numbers")),
            };
        }
        let ids = self.uuids.as_ref().filter(|_| row < self.meta.points);
        let ids =
            ids.ok_or_else(|| Error::corrupt(format!("row {row} of {} rows", self.meta.points)).at(&self.name))?;
        Ok(Place::Uuid(&ids.section, u64::from(row - self.meta.numbers) * 16))
    }

    /// The first row whose id is not below `from`.
    pub(crate) fn rank(&self, pages: &Pages, from: PointId) -> Result<u32> {
        let (mut low, mut high) = (0, self.meta.points);
        if let (PointId::Num(number), Some(first)) = (from, self.meta.dense_from) {
            return Ok(number.saturating_sub(first).min(u64::from(self.meta.numbers)) as u32);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.ids(pages, &[middle])?[0] < from { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }
}

impl SegmentView {
    pub(crate) fn live(&self) -> u64 {
        u64::from(self.meta.points) - self.dead.count()
    }

    /// The payload texts of rows, in the order asked; empty where a row has none. `memory` grows by what they hold.
    pub(crate) fn payloads(
        &self,
        pages: &Pages,
        log: &LogReader,
        rows: &[u32],
        memory: &mut Reservation,
    ) -> Result<Vec<String>> {
        let mut texts = vec![String::new(); rows.len()];
        let (mut in_log, mut asked) = (Vec::new(), Vec::new());
        for (at, row) in rows.iter().enumerate() {
            match self.patches.get(*row) {
                Some(place) => in_log.push((at, place)),
                // Where in the answer the rows stand whose payload is still to be found.
                None => asked.push(at),
            }
        }
        log::read_log(log, pages, in_log, memory, &mut texts)?;
        for run in self.patches.runs().iter().rev() {
            let wanted: Vec<u32> = asked.iter().map(|at| rows[*at]).collect();
            let found = run.find(pages, &wanted)?;
            let held = asked.iter().zip(&found).filter_map(|(at, number)| Some((*at, (*number)?)));
            let (at, numbers): (Vec<usize>, Vec<u32>) = held.unzip();
            at.iter().zip(run.texts(pages, &numbers, memory)?).for_each(|(at, text)| texts[*at] = text);
            let mut missing = found.iter().map(Option::is_none);
            asked.retain(|_| missing.next().unwrap_or(false));
        }
        if let (Some(ends), Some(payload)) = (self.file.section(PAYLOAD_AT), self.file.section(PAYLOAD)) {
            let wanted: Vec<u32> = asked.iter().map(|at| rows[*at]).collect();
            let read = texts::read(pages, (&ends, &payload), &wanted, &self.name, memory)?;
            asked.iter().zip(read).for_each(|(at, text)| texts[*at] = text);
        }
        Ok(texts)
    }
}

enum Place<'a> {
    Dense(PointId),
    Number(&'a Section, u64),
    Uuid(&'a Section, u64),
}

/// The page whose first id is the last one not above `id`.
fn page_of<T: Ord>(ids: &Option<Ids<T>>, id: T) -> Option<usize> {
    ids.as_ref()?.fences.partition_point(|fence| *fence <= id).checked_sub(1)
}
