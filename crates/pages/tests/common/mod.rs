//! A cache over a folder of its own, and files whose every word says where it belongs.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part, and stops at any error")]

use ramekin_base::limits::PAGE;
use ramekin_disk::{Disk, Engine, Local};
use ramekin_memory::{Account, Budget};
use ramekin_pages::{PageFile, PageWriter, Pages, Priority, Section};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

pub struct World {
    pub pages: Pages,
    pub budget: Budget,
    /// Pays for writers, open files and streams.
    pub account: Account,
    pub cache_account: Account,
    pub folder: TempDir,
}

impl World {
    pub fn new(budget: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(Local::new(Engine::Pread, folder.path()).unwrap());
        Self::on(disk, folder, budget)
    }

    pub fn on(disk: Arc<dyn Disk>, folder: TempDir, budget: u64) -> Self {
        let budget = Budget::new(budget);
        let account = budget.root().child("files", "");
        let cache_account = budget.root().child("pages", "");
        let pages = Pages::new(disk, cache_account.clone(), &budget, 1 << 30).unwrap();
        Self { pages, budget, account, cache_account, folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn writer(&self, name: &str) -> PageWriter {
        self.pages.create(&self.path(name), &self.account).unwrap()
    }

    /// A file with a section of `pages` pages for each priority given; section `i` has the tag `i`.
    pub fn file(&self, name: &str, sections: &[(usize, Priority)]) -> Arc<PageFile> {
        let mut writer = self.writer(name);
        for (tag, (pages, priority)) in sections.iter().enumerate() {
            writer.begin(tag as u32, *priority).unwrap();
            for page in 0..*pages {
                writer.write(&content(tag as u32, page)).unwrap();
            }
            assert_eq!(writer.end().unwrap(), (pages * PAGE) as u64);
        }
        writer.finish(b"meta").unwrap();
        self.open(name)
    }

    pub fn open(&self, name: &str) -> Arc<PageFile> {
        self.pages.open(&self.path(name), &self.account).unwrap()
    }

    /// Fetches one page of a section and checks its bytes.
    pub fn check(&self, section: &Section, page: usize) -> ramekin_base::Result<()> {
        let mut fetch = self.pages.fetch();
        let want = fetch.want(section, (page * PAGE) as u64, PAGE)?;
        assert_eq!(fetch.run()?.bytes(want), content(section.tag(), page));
        Ok(())
    }
}

/// A page whose bytes say which it is; no eight of them are zeros.
pub fn content(tag: u32, page: usize) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let number = (u64::from(tag) << 56 | (page as u64) << 20 | at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        word.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}
