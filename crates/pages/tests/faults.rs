//! Page files on a disk that fails and forgets.
#![allow(clippy::unwrap_used, reason = "tests stop at any error that was not asked for")]

mod common;

use common::content;
use ramekin_base::limits::PAGE;
use ramekin_base::{Kind, Result, Rng};
use ramekin_disk::sim::{Faults, SimDisk, Trigger};
use ramekin_disk::{Disk, Sync};
use ramekin_memory::{Account, Budget};
use ramekin_pages::{Pages, Priority, RESERVE, Section};
use std::path::Path;
use std::sync::Arc;

struct Store {
    disk: Arc<SimDisk>,
    pages: Pages,
    cache_account: Account,
    account: Account,
}

impl Store {
    fn on(disk: SimDisk, budget: u64) -> Self {
        let disk = Arc::new(disk);
        let budget = Budget::new(budget);
        let (cache_account, account) = (budget.root().child("pages", ""), budget.root().child("files", ""));
        let pages = Pages::new(disk.clone(), cache_account.clone(), &budget, 64 << 20).unwrap();
        Self { disk, pages, cache_account, account }
    }

    fn write(&self, path: &Path, sections: &[usize]) -> Result<()> {
        let mut writer = self.pages.create(path, &self.account)?;
        for (tag, pages) in sections.iter().enumerate() {
            writer.begin(tag as u32, Priority::Vectors)?;
            (0..*pages).try_for_each(|page| writer.write(&content(tag as u32, page)))?;
            writer.end()?;
        }
        writer.finish(b"meta")
    }
}

fn is_right(section: &Section, bytes: &[u8], first: usize) -> bool {
    bytes.chunks(PAGE).enumerate().all(|(page, bytes)| bytes == content(section.tag(), first + page))
}

/// Reads fail and bits flip at any time: what is answered is right, what is not right is an error, and
/// no memory is lost over it.
#[test]
fn failing_reads_and_flipping_bits_are_errors_never_answers() {
    let (mut failed, mut answered) = (0, 0);
    for seed in 0..30 {
        let store = Store::on(SimDisk::new(seed, Faults::default()), 4 << 20);
        let path = Path::new("/a");
        store.write(path, &[120, 300]).unwrap();
        let file = store.pages.open(path, &store.account).unwrap();
        let flips = if seed % 2 == 0 { 0.01 } else { 0.0 };
        let (read_fails, bit_flips) = (Trigger::chance(0.05), Trigger::chance(flips));
        store.disk.set_faults(Faults { read_fails, bit_flips, ..Faults::default() });
        let mut rng = Rng::new(seed);
        let mut expected = |outcome: Result<bool>| match outcome {
            Ok(right) => {
                assert!(right, "seed {seed}");
                answered += 1;
            }
            Err(error) => {
                assert!(matches!(error.kind(), Kind::Io | Kind::Corrupt), "seed {seed}: {error}");
                assert!(error.kind() == Kind::Io || seed % 2 == 0, "seed {seed}: {error}");
                failed += 1;
            }
        };
        for _ in 0..300 {
            let section = file.section(rng.below(2) as u32).unwrap();
            let pages = section.len() as usize / PAGE;
            let page = rng.below(pages as u64) as usize;
            match rng.below(10) {
                0 => expected(section.load().map(|()| is_right(&section, &section.resident().unwrap(), 0))),
                1 => section.unload(),
                2 => store.pages.evict_all(),
                3 => {
                    let mut stream = section.stream(&store.account, 7 * PAGE).unwrap();
                    let mut bytes = vec![0; section.len() as usize];
                    expected(stream.read_exact(&mut bytes).map(|()| is_right(&section, &bytes, 0)));
                }
                _ => {
                    let len = (1 + rng.below(9) as usize).min(pages - page);
                    let mut fetch = store.pages.fetch();
                    let want = fetch.want(&section, (page * PAGE) as u64, len * PAGE).unwrap();
                    expected(fetch.run().map(|pinned| is_right(&section, pinned.bytes(want), page)));
                }
            }
        }
        drop(file);
        assert_eq!((store.cache_account.used(), store.account.used()), (RESERVE, 0), "seed {seed}");
    }
    assert!(failed > 300 && answered > 1000, "{failed} failed, {answered} answered");
}

/// The plug is pulled at every operation of writing a file. A finished file is whole; of an unfinished
/// one nothing is ever taken for content that it is not.
#[test]
fn a_crash_at_any_operation_leaves_a_whole_file_or_a_refused_one() {
    let (folder, path) = (Path::new("/"), Path::new("/a"));
    let (mut whole, mut refused) = (0, 0);
    for seed in 0..10 {
        for operations_max in 1.. {
            let faults = Faults { operations_max: Some(operations_max), ..Faults::default() };
            let store = Store::on(SimDisk::new(seed, faults), 8 << 20);
            let finished = store.write(path, &[70, 90]).and_then(|()| store.disk.sync(Sync::Folder(folder))).is_ok();
            let survivor = Store::on(store.disk.crash(), 8 << 20);
            survivor.disk.set_faults(Faults::default());
            let opened = survivor.pages.open(path, &survivor.account);
            match opened.and_then(|file| file.check().map(|()| file)) {
                Ok(file) => {
                    for section in file.sections() {
                        section.load().unwrap();
                        assert!(is_right(&section, &section.resident().unwrap(), 0));
                    }
                    whole += 1;
                }
                Err(error) => {
                    assert!(!finished, "seed {seed}, {operations_max} operations: {error}");
                    assert!(matches!(error.kind(), Kind::NotFound | Kind::Corrupt), "{error}");
                    refused += 1;
                }
            }
            if finished {
                break;
            }
        }
    }
    assert!(whole >= 10 && refused > 40, "{whole} whole, {refused} refused");
}

#[test]
fn a_full_disk_leaves_no_file_and_no_memory() {
    for bytes_max in [0, 100_000, 300_000, 650_000] {
        let faults = Faults { bytes_max: Some(bytes_max), ..Faults::default() };
        let store = Store::on(SimDisk::new(1, faults), 8 << 20);
        let error = store.write(Path::new("/a"), &[70, 90]).unwrap_err();
        assert_eq!(error.kind(), Kind::NoSpace, "{error}");
        assert!(store.disk.list(Path::new("/")).unwrap().is_empty());
        assert_eq!(store.account.used(), 0);
    }
    for nth in 1..5 {
        let faults = Faults { write_fails: Trigger::nth(nth), sync_fails: Trigger::nth(nth), ..Faults::default() };
        let store = Store::on(SimDisk::new(1, faults), 8 << 20);
        let outcome = store.write(Path::new("/a"), &[70, 90]);
        assert_eq!(outcome.is_err(), store.disk.list(Path::new("/")).unwrap().is_empty());
    }
}

#[path = "../../vectors/tests/gate/mod.rs"]
#[allow(dead_code, reason = "of the gate only what stands at it is used")]
mod gate;

#[test]
fn a_panic_while_pages_are_read_is_told_and_leaves_them_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let gate = gate::Gate::default();
    let disk = Arc::new(ramekin_disk::Local::new(ramekin_disk::Engine::Pread, folder.path()).unwrap());
    let disk = Arc::new(gate::Gated { disk, gate: gate.clone() });
    let world = common::World::on(disk, folder, 16 << 20);
    let section = world.file("a", &[(40, Priority::Vectors)]).section(0).unwrap();
    gate.close(|call, _| {
        assert_ne!(call, gate::Call::Read, "planted by a test");
        false
    });
    assert_eq!(world.check(&section, 7).unwrap_err().kind(), Kind::Bug);
    assert_eq!(section.load().unwrap_err().kind(), Kind::Bug);
    gate.open();
    // Nobody waits for pages that the one who was reading them has given up.
    world.check(&section, 7).unwrap();
    section.load().unwrap();
    assert_eq!(&section.resident().unwrap()[..PAGE], &content(0, 0)[..]);
}
