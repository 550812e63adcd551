//! An open page file: its tables in memory, its range of addresses, its sections.
//!
//! ```text
//!   open:  the last 64 KiB ─► footer ─► checksums and directory (mostly in the same 64 KiB)
//!          nothing else is read and nothing is mapped; pages come when they are asked for
//!   drop:  its pages leave memory, its addresses are free again; the file itself goes later where somebody sees to it,
//!          since its last reader is mostly a query (see `Pages::remove_dropped`)
//! ```

use crate::Section;
use crate::cache::Cache;
use crate::format::{Entry, Footer, decode_directory, decode_footer, identity, page_crc};
use crate::residency::latch::SectionLatch;
use parking_lot::Mutex;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_disk::{Aligned, Disk, File, Open, ReadOp};
use ramekin_memory::{Account, Reservation};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What is read first: footer, directory and the checksums of files up to about 60 MiB.
const TAIL: u64 = 64 << 10;
/// Pieces in which longer tables, and whole files for a check, are read.
const PIECE: usize = 256 << 10;
/// A page costs an open file: its checksum, its state, its entry in the kernel's page table.
const BYTES_PER_PAGE: u64 = 4 + 2 + 8;

pub struct PageFile {
    cache: Arc<Cache>,
    file: File,
    account: Account,
    first_page: u32,
    tables: Tables,
    sections: Box<[SectionState]>,
    remove: AtomicBool,
    /// The first pages that failed their checksums.
    damage: OnceLock<String>,
    /// Somebody was told of them.
    damage_told: AtomicBool,
}

struct SectionState {
    entry: Entry,
    latch: SectionLatch,
    owner: OnceLock<Account>,
    /// What is booked on the owner's account while the section is resident.
    owned: Mutex<Option<Reservation>>,
    /// Sections that do its work if it leaves, while they are resident.
    redundant_with: OnceLock<Box<[u32]>>,
}

/// What the end of the file says, checked.
struct Tables {
    footer: Footer,
    checksums: Box<[u32]>,
    entries: Box<[Entry]>,
    meta: Box<[u8]>,
    _reservation: Reservation,
}

impl PageFile {
    pub(crate) fn open(cache: &Arc<Cache>, path: &Path, account: &Account) -> Result<Arc<PageFile>> {
        let file = cache.disk.open(path, Open::Read)?;
        let mut tables = Tables::read(&*cache.disk, &file, account)?;
        let state = |entry: Entry| SectionState {
            entry,
            latch: SectionLatch::default(),
            owner: OnceLock::new(),
            owned: Mutex::default(),
            redundant_with: OnceLock::new(),
        };
        let sections = std::mem::take(&mut tables.entries).into_iter().map(state).collect();
        let first_page = cache.space.take(tables.footer.data_pages)?;
        cache.count_open(tables.footer.data_pages, 0);
        Ok(Arc::new(PageFile {
            first_page,
            cache: cache.clone(),
            file,
            account: account.clone(),
            tables,
            sections,
            remove: AtomicBool::new(false),
            damage: OnceLock::new(),
            damage_told: AtomicBool::new(false),
        }))
    }

    /// Bytes that an open file holds: a formula over its data, sections and meta bytes.
    pub fn open_cost(data_bytes: u64, sections: usize, meta_bytes: usize) -> u64 {
        data_bytes.div_ceil(PAGE as u64) * BYTES_PER_PAGE
            + (sections * size_of::<SectionState>() + meta_bytes + size_of::<PageFile>()) as u64
    }

    /// The section with this tag.
    pub fn section(self: &Arc<Self>, tag: u32) -> Option<Section> {
        let index = self.sections.iter().position(|section| section.entry.tag == tag)?;
        Some(Section::new(self.clone(), index as u32))
    }

    /// All sections in file order.
    pub fn sections(self: &Arc<Self>) -> impl Iterator<Item = Section> {
        (0..self.sections.len() as u32).map(|index| Section::new(self.clone(), index))
    }

    /// What the file's owner gave to `finish`.
    pub fn meta(&self) -> &[u8] {
        &self.tables.meta
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Bytes on disk, tables and footer included.
    pub fn bytes(&self) -> u64 {
        self.tables.footer.file_pages() * PAGE as u64
    }

    /// Reads the whole file from the disk and checks every page and both tables.
    pub fn check(&self) -> Result<()> {
        let tables = Tables::read(&*self.cache.disk, &self.file, &self.account)?;
        if tables.footer != self.tables.footer {
            return Err(
                Error::corrupt("changed since it was opened; page files never change").at(self.path().display())
            );
        }
        let data_bytes = self.tables.footer.data_pages as usize * PAGE;
        let mut buffer = Aligned::new(&self.account, PIECE.min(data_bytes.max(PAGE)))?;
        let mut damaged = Vec::new();
        for start in (0..data_bytes).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(data_bytes - start)];
            self.cache.disk.read(&mut [ReadOp { file: &self.file, at: start as u64, buf: piece }])?;
            let numbers = (start / PAGE) as u32..;
            let wrong = numbers.zip(piece.chunks_exact(PAGE)).filter(|(number, page)| !self.verify(*number, page));
            damaged.extend(wrong.map(|(number, _)| number));
            damaged.truncate(8);
        }
        if damaged.is_empty() { Ok(()) } else { Err(self.damaged(&damaged)) }
    }

    /// The file is removed when its last user leaves.
    pub fn remove_on_drop(&self) {
        self.remove.store(true, Ordering::Relaxed);
    }

    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    pub(crate) fn disk_file(&self) -> &File {
        &self.file
    }

    /// Where page 0 lies in the region.
    pub(crate) fn first_page(&self) -> u32 {
        self.first_page
    }

    pub(crate) fn entry(&self, index: u32) -> &Entry {
        &self.sections[index as usize].entry
    }

    /// The same is said each time.
    pub(crate) fn set_redundant_with(&self, index: u32, others: impl Iterator<Item = u32>) {
        self.sections[index as usize].redundant_with.get_or_init(|| others.collect());
    }

    /// Whether others do its work now if it leaves.
    pub(crate) fn is_redundant(&self, index: u32) -> bool {
        let others = self.sections[index as usize].redundant_with.get();
        others.is_some_and(|others| others.iter().any(|other| self.latch(*other).is_resident()))
    }

    pub(crate) fn latch(&self, index: u32) -> &SectionLatch {
        &self.sections[index as usize].latch
    }

    /// Names who pays for a section while it is resident; the first to say so holds.
    pub(crate) fn set_owner(&self, index: u32, owner: &Account) {
        self.sections[index as usize].owner.get_or_init(|| owner.clone());
    }

    /// The owner pays for the section from now on, if there is one and its account lets it.
    pub(crate) fn charge_owner(&self, index: u32) {
        let section = &self.sections[index as usize];
        if let Some(owner) = section.owner.get() {
            let pages = section.entry.pages() as usize;
            let given = self.cache.quota.lock().give_to(owner, pages).ok();
            *section.owned.lock() = given;
        }
    }

    /// The cache pays for the section again, before its pages leave.
    pub(crate) fn discharge_owner(&self, index: u32) {
        let owned = self.sections[index as usize].owned.lock().take();
        if let Some(owned) = owned {
            self.cache.quota.lock().take_back(owned, self.cache.account());
        }
    }

    /// A section's pages in the region.
    pub(crate) fn range(&self, index: u32) -> Range<u32> {
        let entry = self.entry(index);
        let first = self.first_page + entry.first_page;
        first..first + entry.pages()
    }

    pub(crate) fn verify(&self, number: u32, page: &[u8]) -> bool {
        self.tables.checksums.get(number as usize) == Some(&page_crc(self.tables.footer.identity, number, page))
    }

    /// The first damage that was found in it, by whatever read: it stays until another file takes its place.
    pub fn damage(&self) -> Option<&str> {
        self.damage.get().map(String::as_str)
    }

    /// The same, once: for a line in the log.
    pub fn tell_damage(&self) -> Option<&str> {
        self.damage().filter(|_| !self.damage_told.swap(true, Ordering::SeqCst))
    }

    /// The error for pages that fail their checksums.
    pub(crate) fn damaged(&self, numbers: &[u32]) -> Error {
        let holds = |entry: &Entry| (entry.first_page..entry.first_page + entry.pages()).contains(&numbers[0]);
        let tag = self.sections.iter().find(|section| holds(&section.entry)).map_or(0, |section| section.entry.tag);
        let list = numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let text = format!("page {list} (section {tag}) fails its checksum; restore the file from a copy");
        let error = Error::corrupt(text).at(self.path().display());
        // A second finding adds nothing: the file is to be replaced.
        let _ = self.damage.set(error.message().to_owned());
        error
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        // Every pin, guard and fill borrows the file, so only the clock's hand may still be at its pages.
        let (cache, pages) = (&self.cache, self.first_page..self.first_page + self.tables.footer.data_pages);
        let cached = {
            let mut ring = cache.ring.lock();
            let before = ring.len();
            ring.retain(|page| !pages.contains(page));
            before - ring.len()
        };
        let is_still = || pages.clone().all(|page| !cache.space.state(page).is_moving());
        let has_ended = is_still() || cache.events.wait_on(is_still);
        (0..self.sections.len() as u32).for_each(|index| self.discharge_owner(index));
        let resident: u32 = self.sections.iter().filter(|it| !it.latch.is_paged()).map(|it| it.entry.pages()).sum();
        if has_ended {
            cache.space.give(pages.start, pages.len() as u32);
        }
        // Else their addresses are lost rather than used: somebody may still write there.
        let mut quota = cache.quota.lock();
        quota.give_cached(cached);
        quota.give_resident(resident as usize);
        drop(quota);
        cache.count_open(0, pages.len() as u32);
        cache.residents.lock().retain(|(file, _)| file.strong_count() > 0);
        if *self.remove.get_mut() {
            cache.remove(self.file.path());
        }
    }
}

impl Tables {
    fn read(disk: &dyn Disk, file: &File, account: &Account) -> Result<Self> {
        let bytes = disk.len(file)?;
        if bytes == 0 || !bytes.is_multiple_of(PAGE as u64) {
            let text = format!("is {bytes} bytes long, which no page file is; restore it from a copy");
            return Err(Error::corrupt(text).at(file.path().display()));
        }
        let mut tail = Tail { disk, file, account, at: bytes - bytes.min(TAIL), buffer: None };
        tail.buffer = Some(tail.load(tail.at, bytes.min(TAIL) as usize)?);
        Self::decode(&tail, bytes).map_err(|error| match error.kind() {
            // Errors of the disk name the file themselves.
            ramekin_base::Kind::Corrupt | ramekin_base::Kind::Unsupported => error.at(file.path().display()),
            _ => error,
        })
    }

    fn decode(tail: &Tail<'_>, bytes: u64) -> Result<Self> {
        let footer = tail.with(bytes - PAGE as u64, PAGE, |page| decode_footer(page, bytes))?;
        if footer.identity != 0 && footer.identity != identity(tail.file.path()) {
            return Err(Error::corrupt("is another file under this name; restore it from a copy"));
        }
        let data_bytes = u64::from(footer.data_pages) * PAGE as u64;
        let cost = PageFile::open_cost(data_bytes, footer.sections as usize, footer.meta_bytes as usize);
        let reservation = tail.account.try_reserve(cost)?;

        let directory_at = data_bytes + footer.checksum_pages() * PAGE as u64;
        let mut checksums = Vec::with_capacity(footer.data_pages as usize);
        let mut crc = 0;
        for at in (data_bytes..directory_at).step_by(PIECE) {
            tail.with(at, PIECE.min((directory_at - at) as usize), |table| {
                crc = crc32c::crc32c_append(crc, table);
                let numbers =
                    table.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
                checksums.extend(numbers.take(footer.data_pages as usize - checksums.len()));
                Ok(())
            })?;
        }
        if crc != footer.checksums_crc {
            return Err(Error::corrupt("the table of checksums fails its own; restore the file from a copy"));
        }
        let (entries, meta) = tail.with(directory_at, footer.directory_pages() as usize * PAGE, |directory| {
            let (entries, meta) = decode_directory(&footer, directory)?;
            Ok((entries.into_boxed_slice(), Box::from(meta)))
        })?;
        Ok(Self { footer, checksums: checksums.into_boxed_slice(), entries, meta, _reservation: reservation })
    }
}

/// The end of a file, in memory; what lies before it is read when it is asked for.
struct Tail<'a> {
    disk: &'a dyn Disk,
    file: &'a File,
    account: &'a Account,
    at: u64,
    buffer: Option<Aligned>,
}

impl Tail<'_> {
    fn load(&self, at: u64, len: usize) -> Result<Aligned> {
        let mut buffer = Aligned::new(self.account, len)?;
        self.disk.read(&mut [ReadOp { file: self.file, at, buf: &mut buffer }])?;
        Ok(buffer)
    }

    fn with<T>(&self, at: u64, len: usize, work: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        match &self.buffer {
            _ if len == 0 => work(&[]),
            Some(buffer) if at >= self.at => work(&buffer[(at - self.at) as usize..][..len]),
            _ => work(&self.load(at, len)?),
        }
    }
}
