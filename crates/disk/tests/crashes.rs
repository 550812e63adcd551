//! The simulated disk against a plain model of what it promises, and each of its faults by itself.

#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

use proptest::prelude::*;
use ramekin_base::{Kind, Result};
use ramekin_disk::sim::{Counts, Faults, SimDisk, Trigger};
use ramekin_disk::{Aligned, Disk, File, Open, ReadOp, Sync};
use ramekin_memory::Budget;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const SECTOR: usize = 512;

fn page(sectors: usize, fill: u8) -> Aligned {
    let mut bytes = Aligned::new(&Budget::new(1 << 30).root(), sectors * SECTOR).unwrap();
    bytes.fill(fill);
    bytes
}

fn content(disk: &dyn Disk, path: &Path) -> Result<Vec<u8>> {
    let file = disk.open(path, Open::Read)?;
    let mut bytes = page(disk.len(&file)? as usize / SECTOR, 0);
    disk.read(&mut [ReadOp { file: &file, at: 0, buf: &mut bytes }])?;
    Ok(bytes.to_vec())
}

/// A disk with one durable file `/a` of `sectors` times `fill`.
fn with_file(seed: u64, faults: Faults, sectors: usize, fill: u8) -> (SimDisk, File) {
    let disk = SimDisk::new(seed, faults);
    let file = disk.open(Path::new("/a"), Open::Create).unwrap();
    disk.write(&file, 0, &page(sectors, fill)).unwrap();
    disk.sync(Sync::File(&file)).unwrap();
    disk.sync(Sync::Folder(Path::new("/"))).unwrap();
    (disk, file)
}

#[derive(Debug, Clone)]
enum Step {
    Write { file: usize, at: usize, sectors: usize },
    SetLen { file: usize, sectors: usize },
    Sync { file: usize },
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2usize, 0..12usize, 1..9usize).prop_map(|(file, at, sectors)| Step::Write { file, at, sectors }),
        2 => (0..2usize, 0..20usize).prop_map(|(file, sectors)| Step::SetLen { file, sectors }),
        2 => (0..2usize).prop_map(|file| Step::Sync { file }),
        1 => Just(Step::Crash),
    ]
}

/// What a file may hold after a crash: a set of lengths, and for each sector a set of fillings.
#[derive(Clone, Default)]
struct Model {
    live: Vec<u8>,
    /// Lengths, in sectors, that a crash may leave: all from the least to the largest since the sync.
    lengths: BTreeSet<usize>,
    /// Fillings of each sector since the sync, oldest first.
    since: Vec<BTreeSet<u8>>,
}

impl Model {
    fn set_len(&mut self, sectors: usize) {
        let before = self.live.len();
        self.live.resize(sectors, 0);
        self.since.resize(self.since.len().max(sectors).max(before), BTreeSet::from([0]));
        for number in before.min(sectors)..before.max(sectors) {
            self.since[number].insert(0);
        }
        self.lengths.insert(sectors);
    }

    fn write(&mut self, at: usize, sectors: usize, fill: u8) {
        if at + sectors > self.live.len() {
            self.set_len(at + sectors);
        }
        for number in at..at + sectors {
            self.live[number] = fill;
            self.since[number].insert(fill);
        }
    }

    fn sync(&mut self) {
        self.lengths = BTreeSet::from([self.live.len()]);
        self.since = self.live.iter().map(|fill| BTreeSet::from([*fill])).collect();
    }

    /// Checks what a crash left, and goes on from it.
    fn survives(&mut self, bytes: &[u8]) {
        let (least, most) = (*self.lengths.first().unwrap(), *self.lengths.last().unwrap());
        let sectors = bytes.len() / SECTOR;
        assert!((least..=most).contains(&sectors), "{sectors} sectors, not {least} to {most}");
        let found: Vec<u8> = bytes.chunks(SECTOR).map(|sector| sector[0]).collect();
        for (number, sector) in bytes.chunks(SECTOR).enumerate() {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "sector {number} is torn inside");
            let allowed = &self.since[number];
            assert!(allowed.contains(&sector[0]), "sector {number} holds {}, not one of {allowed:?}", sector[0]);
        }
        self.live = found;
        self.sync();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// After a crash every synced byte is there, and each unsynced sector is old or new.
    #[test]
    fn synced_bytes_survive_and_sectors_are_whole(seed: u64, steps in prop::collection::vec(step(), 1..60)) {
        let mut disk = SimDisk::new(seed, Faults::default());
        let paths = [PathBuf::from("/a"), PathBuf::from("/b")];
        let mut models = [Model::default(), Model::default()];
        let mut files: Vec<_> = paths.iter().map(|path| disk.open(path, Open::Create).unwrap()).collect();
        disk.sync(Sync::Folder(Path::new("/"))).unwrap();
        models.iter_mut().for_each(Model::sync);
        for (number, step) in steps.into_iter().chain([Step::Crash]).enumerate() {
            let fill = number as u8 + 1;
            match step {
                Step::Write { file, at, sectors } => {
                    disk.write(&files[file], (at * SECTOR) as u64, &page(sectors, fill)).unwrap();
                    models[file].write(at, sectors, fill);
                }
                Step::SetLen { file, sectors } => {
                    disk.set_len(&files[file], (sectors * SECTOR) as u64).unwrap();
                    models[file].set_len(sectors);
                }
                Step::Sync { file } => {
                    disk.sync(Sync::File(&files[file])).unwrap();
                    models[file].sync();
                }
                Step::Crash => {
                    for other in 0..3 {
                        let copy = disk.crashed_copy(other);
                        for (path, model) in paths.iter().zip(&models) {
                            model.clone().survives(&content(&copy, path).unwrap());
                        }
                    }
                    disk = disk.crash();
                    files = paths.iter().map(|path| disk.open(path, Open::Write).unwrap()).collect();
                }
            }
            for (path, model) in paths.iter().zip(&mut models) {
                let bytes = content(&disk, path).unwrap();
                if matches!(step, Step::Crash) {
                    model.survives(&bytes);
                }
                prop_assert!(bytes.chunks(SECTOR).map(|sector| sector[0]).eq(model.live.iter().copied()));
            }
        }
    }

    /// A file written aside, synced and renamed over another: a crash at any call leaves one of both, whole.
    #[test]
    fn replacing_a_file_is_atomic(seed: u64) {
        let replace = |disk: &SimDisk| -> Result<()> {
            let file = disk.open(Path::new("/new"), Open::Create)?;
            disk.write(&file, 0, &page(4, 2))?;
            disk.sync(Sync::File(&file))?;
            disk.rename(Path::new("/new"), Some(Path::new("/a")))?;
            disk.sync(Sync::Folder(Path::new("/")))
        };
        for last in 0..=5 {
            let (disk, _) = with_file(seed, Faults::default(), 3, 1);
            let done = disk.operations();
            disk.set_faults(Faults { operations_max: Some(done + last), ..Faults::default() });
            let result = replace(&disk);
            prop_assert_eq!(result.is_ok(), last == 5);
            let found = content(&disk.crash(), Path::new("/a")).unwrap();
            let (old, new) = (vec![1; 3 * SECTOR], vec![2; 4 * SECTOR]);
            prop_assert!(found == new || (found == old && last < 5), "{last}");
        }
    }
}

#[test]
fn unsynced_names_may_be_undone() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let (disk, _) = with_file(seed, Faults::default(), 1, 1);
        disk.open(Path::new("/c"), Open::Create).unwrap();
        disk.rename(Path::new("/a"), Some(Path::new("/b"))).unwrap();
        let after = disk.crash();
        let names: Vec<_> = after.list(Path::new("/")).unwrap().into_iter().map(|entry| entry.name).collect();
        assert!(names.contains(&"a".to_owned()) != names.contains(&"b".to_owned()), "a rename is whole: {names:?}");
        assert!(after.counts().crashes == 1 && (names.len() == 2 || after.counts().lost_names > 0));
        seen.insert(names);
    }
    assert_eq!(seen.len(), 4);
    for seed in 0..50 {
        let disk = SimDisk::new(seed, Faults::default());
        disk.make_folder(Path::new("/d/e")).unwrap();
        let file = disk.open(Path::new("/d/e/f"), Open::Create).unwrap();
        disk.write(&file, 0, &page(1, 7)).unwrap();
        disk.sync(Sync::File(&file)).unwrap();
        for folder in ["/", "/d", "/d/e"] {
            disk.sync(Sync::Folder(Path::new(folder))).unwrap();
        }
        disk.rename(Path::new("/d/e/f"), None).unwrap();
        let back = content(&disk.crash(), Path::new("/d/e/f"));
        assert!(back.is_err() || back.unwrap() == vec![7; SECTOR], "a removal that is undone brings the bytes back");
    }
}

/// A folder that was made is there after a crash, and so are those above it; one that was being made may be lost.
#[test]
fn a_made_folder_survives_a_crash() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new(seed, Faults::default());
        disk.make_folder(Path::new("/d/e")).unwrap();
        disk.set_faults(Faults { operations_max: Some(disk.operations()), ..Faults::default() });
        assert!(disk.make_folder(Path::new("/d/f/g")).is_err());
        let after = disk.crash();
        assert!(after.list(Path::new("/d/e")).is_ok());
        seen.insert((after.list(Path::new("/d/f")).is_ok(), after.list(Path::new("/d/f/g")).is_ok()));
    }
    assert_eq!(seen, BTreeSet::from([(false, false), (true, false), (true, true)]));
    let failing = Faults { sync_fails: ramekin_disk::sim::Trigger::chance(1.0), ..Faults::default() };
    assert!(SimDisk::new(1, failing).make_folder(Path::new("/d")).is_err());
}

#[test]
fn a_crash_ends_the_old_disk_and_its_files() {
    let (disk, file) = with_file(1, Faults::default(), 1, 1);
    let after = disk.crash();
    assert!(disk.write(&file, 0, &page(1, 2)).is_err() && disk.list(Path::new("/")).is_err());
    assert_eq!(after.write(&file, 0, &page(1, 2)).unwrap_err().kind(), Kind::Bug);
    assert_eq!(content(&after, Path::new("/a")).unwrap(), vec![1; SECTOR]);
}

#[test]
fn reads_fail_by_number_and_by_chance() {
    let (disk, file) = with_file(1, Faults { read_fails: Trigger::nth(3), ..Faults::default() }, 8, 1);
    let mut room = page(4, 0);
    let mut batch = |count: usize| {
        let read = |(number, buf)| ReadOp { file: &file, at: (number * SECTOR) as u64, buf };
        let mut ops: Vec<_> = room.chunks_mut(SECTOR).take(count).enumerate().map(read).collect();
        disk.read(&mut ops).map_err(|error| error.kind())
    };
    assert_eq!([batch(2), batch(2), batch(4)], [Ok(()), Err(Kind::Io), Ok(())]);
    assert_eq!(disk.counts(), Counts { failed_reads: 1, ..Counts::default() });
    disk.set_faults(Faults { read_fails: Trigger::chance(0.1), ..Faults::default() });
    let failed = (0..1000).filter(|_| batch(1).is_err()).count();
    assert_eq!(disk.counts().failed_reads, failed as u64 + 1);
    assert!((50..200).contains(&failed), "{failed}");
}

#[test]
fn flipped_bits_stay() {
    let (disk, _) = with_file(5, Faults { bit_flips: Trigger::nth(1), ..Faults::default() }, 8, 0);
    let ones = |bytes: Vec<u8>| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
    assert_eq!(ones(content(&disk, Path::new("/a")).unwrap()), 1);
    disk.flip_bit(Path::new("/a"), 4095, 7).unwrap();
    assert!(disk.flip_bit(Path::new("/a"), 4096, 0).is_err());
    let after = disk.crash();
    assert_eq!(ones(content(&after, Path::new("/a")).unwrap()), 2);
    assert_eq!(after.counts().flipped_bits, 2);
}

/// After a failed sync a later one may succeed, and the bytes be lost all the same.
#[test]
fn a_failed_sync_loses_bytes_for_good() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..50 {
        let (disk, file) = with_file(seed, Faults { sync_fails: Trigger::nth(3), ..Faults::default() }, 1, 1);
        disk.write(&file, 0, &page(1, 2)).unwrap();
        assert_eq!(disk.sync(Sync::File(&file)).unwrap_err().kind(), Kind::Io);
        disk.sync(Sync::File(&file)).unwrap();
        assert_eq!(content(&disk, Path::new("/a")).unwrap(), vec![2; SECTOR]);
        let after = disk.crash();
        let found = content(&after, Path::new("/a")).unwrap()[0];
        assert_eq!(after.counts().lost_sectors, u64::from(found == 1));
        assert_eq!(after.counts().failed_syncs, 1);
        *(if found == 1 { &mut lost } else { &mut kept }) += 1;
    }
    assert!(lost > 10 && kept > 10, "{lost} {kept}");
}

#[test]
fn writes_fail_and_the_disk_fills_up() {
    let faults = Faults { write_fails: Trigger::nth(2), bytes_max: Some(20 * 512), ..Faults::default() };
    let (disk, file) = with_file(1, faults, 8, 1);
    assert_eq!(disk.write(&file, 0, &page(8, 2)).unwrap_err().kind(), Kind::Io);
    assert!(content(&disk, Path::new("/a")).unwrap().iter().all(|byte| *byte == 1 || *byte == 2));
    let other = disk.open(Path::new("/b"), Open::Create).unwrap();
    disk.write(&other, 0, &page(10, 3)).unwrap();
    assert_eq!(disk.write(&other, 10 * 512, &page(4, 3)).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(disk.set_len(&file, 100 * 512).unwrap_err().kind(), Kind::NoSpace);
    disk.write(&file, 0, &page(8, 4)).unwrap();
    // An open file without a name still holds its room.
    disk.rename(Path::new("/b"), None).unwrap();
    assert_eq!(disk.set_len(&file, 18 * 512).unwrap_err().kind(), Kind::NoSpace);
    drop(other);
    disk.set_len(&file, 20 * 512).unwrap();
    assert_eq!((disk.counts().failed_writes, disk.counts().full), (1, 3));
}

/// The same seed and calls give the same outcome; crashes tear and lose.
#[test]
fn outcomes_follow_from_the_seed() {
    let outcome = |seed| {
        let (disk, file) = with_file(seed, Faults::default(), 8, 1);
        disk.write(&file, 0, &page(16, 2)).unwrap();
        disk.open(Path::new("/b"), Open::Create).unwrap();
        let after = disk.crash();
        (content(&after, Path::new("/a")).unwrap(), after.list(Path::new("/")).unwrap(), after.counts())
    };
    let outcomes: Vec<_> = (0..40).map(outcome).collect();
    assert!(outcomes == (0..40).map(outcome).collect::<Vec<_>>());
    for happened in [
        |counts: &Counts| counts.torn_writes,
        |counts: &Counts| counts.lost_sectors,
        |counts: &Counts| counts.lost_lengths,
        |counts: &Counts| counts.lost_names,
    ] {
        let times = outcomes.iter().filter(|(_, _, counts)| happened(counts) > 0).count();
        assert!((5..40).contains(&times), "{times}");
    }
}
