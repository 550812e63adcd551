//! A section of an open file, and the guard under which it is a plain slice.

use crate::Priority;
use crate::cache::Cache;
use crate::cache::file::PageFile;
use crate::format::Entry;
use crate::residency::latch::Enter;
use ramekin_base::limits::PAGE;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use std::ops::Deref;
use std::sync::Arc;

/// A handle to one section; it keeps the file open. Clones are cheap.
#[derive(Clone)]
pub struct Section {
    file: Arc<PageFile>,
    index: u32,
}

impl Section {
    pub(crate) fn new(file: Arc<PageFile>, index: u32) -> Self {
        Self { file, index }
    }

    pub fn tag(&self) -> u32 {
        self.entry().tag
    }

    pub fn priority(&self) -> Priority {
        self.entry().priority
    }

    /// Bytes that were written.
    #[allow(clippy::len_without_is_empty, reason = "a section is asked for its length, not whether it has one")]
    pub fn len(&self) -> u64 {
        self.entry().bytes
    }

    /// Names the account that pays for it while it is resident; without one the cache's own does.
    pub fn owned_by(&self, account: &Account) {
        self.file.set_owner(self.index, account);
    }

    /// Declares `others` as substitutes for this section: while one of them is resident, this one is evicted first.
    pub fn redundant_with<'a>(&self, others: impl Iterator<Item = &'a Section>) {
        self.file.set_redundant_with(self.index, others.map(|other| other.index));
    }

    /// Bytes of its pages.
    pub fn bytes_on_disk(&self) -> u64 {
        u64::from(self.entry().pages()) * PAGE as u64
    }

    /// Bytes that `load` books.
    pub fn resident_cost(&self) -> u64 {
        Cache::cost(self.entry().pages())
    }

    pub fn file(&self) -> &Arc<PageFile> {
        &self.file
    }

    /// Brings the whole section into memory, to stay until `unload` or until the budget is so short
    /// that it must go. Cached pages make way for it, other resident sections do not.
    pub fn load(&self) -> Result<()> {
        self.file.load(self.index)
    }

    /// Lets the section go back to pages: at once, or when the last guard is dropped.
    pub fn unload(&self) {
        let latch = self.file.latch(self.index);
        // One that is still being loaded after that long stays for now.
        _ = self.file.cache().events.wait(|| !latch.is_moving());
        self.file.unload(self.index);
    }

    /// The section as a plain slice, if it is resident.
    #[inline]
    pub fn resident(&self) -> Option<Resident<'_>> {
        match self.file.latch(self.index).enter() {
            Enter::Inside => {}
            Enter::NotResident => return None,
            Enter::Unload => {
                self.file.finish_unload(self.index);
                return None;
            }
        }
        let start = self.file.cache().space.address(self.file.range(self.index).start);
        // SAFETY: all pages of a resident section are in memory, neighbours, checked and never written;
        // the guard keeps them so.
        let bytes = unsafe { std::slice::from_raw_parts(start, self.entry().bytes as usize) };
        Some(Resident { section: self, bytes })
    }

    /// Whether `resident` would answer now.
    pub fn is_resident(&self) -> bool {
        self.file.latch(self.index).is_resident()
    }

    #[inline]
    pub(crate) fn entry(&self) -> &Entry {
        self.file.entry(self.index)
    }

    /// Where its first page lies in the region.
    #[inline]
    pub(crate) fn first_page(&self) -> u32 {
        self.file.range(self.index).start
    }

    #[inline]
    pub(crate) fn is(&self, other: &Section) -> bool {
        std::ptr::eq(&*self.file, &*other.file) && self.index == other.index
    }

    /// The end of a read of `len` bytes at `at`, or an error if the section is shorter: what led here
    /// contradicts the section.
    #[inline]
    pub(crate) fn end_of(&self, at: u64, len: u64) -> Result<u64> {
        let bytes = self.len();
        at.checked_add(len).filter(|end| *end <= bytes).ok_or_else(|| {
            let tag = self.tag();
            let text = format!("section {tag} holds {bytes} bytes, but {len} at {at} were asked for; check the file");
            Error::corrupt(text).at(self.file.path().display())
        })
    }
}

impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Section({} of {}, {} bytes)", self.tag(), self.file.path().display(), self.len())
    }
}

/// Keeps a resident section where it is.
pub struct Resident<'a> {
    section: &'a Section,
    bytes: &'a [u8],
}

impl<'a> Resident<'a> {
    pub fn section(&self) -> &'a Section {
        self.section
    }
}

impl Deref for Resident<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for Resident<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.section.file.latch(self.section.index).leave() {
            self.section.file.finish_unload(self.section.index);
        }
    }
}
