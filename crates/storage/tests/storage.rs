//! A small store on the simulated disk: log, seal, merge, trim. It crashes at every single operation.
#![allow(clippy::unwrap_used, reason = "tests")]

use ramekin_base::{Kind, Result, Rng};
use ramekin_disk::sim::{Counts, Faults, SimDisk, Trigger};
use ramekin_disk::{Aligned, Disk, Open, ReadOp, Sync};
use ramekin_log::{Log, Lsn};
use ramekin_memory::{Account, Budget};
use ramekin_pages::{PageFile, Pages, Priority};
use ramekin_storage::{Head, ReserveClaim, Storage, check, read_app};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const FOLDER: &str = "/data/store";

/// Snapshots that were written.
static WHOLE: AtomicUsize = AtomicUsize::new(0);

/// Numbers, in the order in which they were written: in sealed files, then in the log.
struct Store {
    storage: Storage,
    log: Log,
    account: Account,
    files: Vec<(String, Arc<PageFile>)>,
    growing: Vec<u64>,
    sealed: u64,
    log_from: Lsn,
    /// The manifest's edits are.
    is_short: bool,
}

impl Store {
    fn open(disk: &Arc<SimDisk>) -> Result<Self> {
        disk.make_folder(Path::new("/data"))?;
        disk.sync(Sync::Folder(Path::new("/")))?;
        let budget = Budget::new(32 << 20);
        let account = budget.root();
        let pages = Pages::new(disk.clone(), account.child("pages", ""), &budget, 1 << 30)?;
        let (storage, mut manifest) = Storage::open(disk.clone(), Path::new(FOLDER), pages, &account, &account)?;
        let head = manifest.as_ref().map_or_else(Head::empty, |manifest| manifest.head.clone());
        let log_from = head.log_from;
        let sealed = head.app::<Option<u64>>()?.unwrap_or(0);
        // One part for each file; its key is the file's number.
        let mut names: Vec<(u64, String)> = Vec::new();
        if let Some(manifest) = &mut manifest {
            manifest.each_part(&mut |key, app| {
                names.push((key, read_app(app)?));
                Ok(())
            })?;
        }
        let mut growing = Vec::new();
        let mut log = storage.open_log(&account, head.log(), &mut |_, record| {
            growing.push(u64::from_le_bytes(record.try_into().unwrap()));
            Ok(())
        })?;
        log.set_file_bytes(64 << 10);
        let open = |(_, name): &(u64, String)| Ok((name.clone(), storage.open_file(name)?));
        let files = names.iter().map(open).collect::<Result<_>>()?;
        Ok(Self { storage, log, account, files, growing, sealed, log_from, is_short: false })
    }

    fn numbers(&self) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for (_, file) in &self.files {
            numbers.extend(self.read(file)?);
        }
        assert_eq!(numbers.len() as u64, self.sealed, "the manifest and its files disagree");
        numbers.extend(&self.growing);
        Ok(numbers)
    }

    fn read(&self, file: &Arc<PageFile>) -> Result<Vec<u64>> {
        let section = file.section(1).unwrap();
        let mut stream = section.stream(&self.account, 4096)?;
        let mut numbers = Vec::new();
        while stream.left() > 0 {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes)?;
            numbers.push(u64::from_le_bytes(bytes));
        }
        Ok(numbers)
    }

    fn write_file(&self, numbers: &[u64]) -> Result<(String, Arc<PageFile>)> {
        let path = self.storage.new_path("seg");
        let mut file = self.storage.pages().create(&path, &self.account)?;
        file.begin(1, Priority::Payload)?;
        for number in numbers {
            file.write(&number.to_le_bytes())?;
        }
        file.end()?;
        file.finish(b"{}")?;
        let name = self.storage.name_of(&path)?;
        let file = self.storage.open_file(&name)?;
        Ok((name, file))
    }

    fn commit(&mut self, files: Vec<(String, Arc<PageFile>)>, sealed: u64, log_from: Lsn) -> Result<()> {
        let key = |name: &str| name.trim_start_matches("files/").trim_end_matches(".seg").parse::<u64>().unwrap();
        let names = |files: &[(String, _)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let (before, now) = (names(&self.files), names(&files));
        self.storage.commit(Head::new(log_from..self.log.end(), &sealed)?, &mut |sink, whole| {
            if whole {
                WHOLE.fetch_add(1, Ordering::Relaxed);
            }
            for name in before.iter().filter(|name| !whole && !now.contains(name)) {
                sink.gone(key(name))?;
            }
            // Of some size, so that now and then a snapshot is due; a short one is in the first sector as a whole.
            let filler = "x".repeat(if self.is_short { 1 } else { 40_000 });
            sink.note(&filler)?;
            let changed = now.iter().filter(|name| whole || !before.contains(name));
            changed.into_iter().try_for_each(|name| sink.part(key(name), vec![name.clone()], name))
        })?;
        (self.files, self.sealed, self.log_from) = (files, sealed, log_from);
        Ok(())
    }

    fn seal(&mut self) -> Result<()> {
        let end = self.log.commit()?;
        let file = self.write_file(&self.growing)?;
        let mut files = self.files.clone();
        files.push(file);
        let sealed = self.sealed + self.growing.len() as u64;
        self.commit(files, sealed, end)?;
        self.growing.clear();
        self.log.trim(end)
    }

    fn merge(&mut self) -> Result<()> {
        let mut numbers = Vec::new();
        for (_, file) in &self.files {
            numbers.extend(self.read(file)?);
        }
        let file = self.write_file(&numbers)?;
        self.commit(vec![file], self.sealed, self.log_from)
    }
}

#[derive(Default)]
struct Client {
    acknowledged: Vec<u64>,
    in_flight: Vec<u64>,
    next: u64,
}

impl Client {
    fn run(&mut self, disk: &Arc<SimDisk>, rng: &mut Rng, steps: u64) -> Result<()> {
        let mut store = Store::open(disk)?;
        self.verify(store.numbers()?);
        for _ in 0..steps {
            match rng.below(10) {
                0..2 => {
                    store.log.commit()?;
                    self.settle(&mut store);
                }
                2 => {
                    store.log.commit()?;
                    self.settle(&mut store);
                    store.seal()?;
                }
                3 if store.files.len() > 1 => store.merge()?,
                _ => {
                    self.next += 1;
                    store.log.append(&self.next.to_le_bytes())?;
                    self.in_flight.push(self.next);
                }
            }
        }
        Ok(())
    }

    fn settle(&mut self, store: &mut Store) {
        store.growing.extend(&self.in_flight);
        self.acknowledged.append(&mut self.in_flight);
    }

    fn verify(&mut self, found: Vec<u64>) {
        let sure = self.acknowledged.len();
        assert!(found.len() >= sure && found[..sure] == self.acknowledged[..], "acknowledged numbers are lost");
        assert!(self.in_flight.starts_with(&found[sure..]), "numbers that nobody wrote");
        self.acknowledged = found;
        self.in_flight.clear();
    }
}

/// The data files on the disk.
fn data_files(disk: &Arc<SimDisk>) -> usize {
    disk.list(&Path::new(FOLDER).join("files")).unwrap().len()
}

#[test]
fn a_crash_at_every_operation_loses_nothing() {
    let mut counts = Counts::default();
    for seed in 0..4 {
        let block = if seed % 2 == 0 { 512 } else { 4096 };
        let disk = |faults| Arc::new(SimDisk::with_block(seed, faults, block));
        let whole = disk(Faults::default());
        Client::default().run(&whole, &mut Rng::new(seed), 60).unwrap();
        for operation in 1..=whole.operations() {
            let mut client = Client::default();
            let mut rng = Rng::new(seed);
            let first = disk(Faults { operations_max: Some(operation), ..Faults::default() });
            let _ = client.run(&first, &mut rng, 60);
            let mut survivor = Arc::new(first.crash());
            for _ in 0..2 {
                let operations_max = Some(survivor.operations() + 1 + rng.below(40));
                survivor.set_faults(Faults { operations_max, ..Faults::default() });
                let _ = client.run(&survivor, &mut rng, 6);
                survivor = Arc::new(survivor.crash());
            }
            client.run(&survivor, &mut rng, 12).unwrap();
            // What crashes left behind is gone.
            let survivor = Arc::new(survivor.crash());
            let store = Store::open(&survivor).unwrap();
            client.verify(store.numbers().unwrap());
            assert_eq!(data_files(&survivor), store.files.len());
            counts.lost_names += survivor.counts().lost_names;
            counts.torn_writes += survivor.counts().torn_writes;
        }
    }
    assert!(WHOLE.load(Ordering::Relaxed) > 100);
    assert!(counts.lost_names > 100 && counts.torn_writes > 20, "{counts:?}");
}

/// A process that ends after a failed sync, with or without the machine, loses nothing that it acknowledged.
#[test]
fn failed_writes_and_syncs_lose_nothing() {
    let mut failed = 0;
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut disk = Arc::new(SimDisk::new(seed, Faults::default()));
        let mut client = Client::default();
        for _ in 0..4 {
            let (write_fails, sync_fails) = (Trigger::chance(0.02), Trigger::chance(0.04));
            disk.set_faults(Faults { write_fails, sync_fails, ..Faults::default() });
            let _ = client.run(&disk, &mut rng, 40);
            disk.set_faults(Faults::default());
            if rng.chance(0.5) {
                disk = Arc::new(disk.crash());
            }
            client.run(&disk, &mut rng, 6).unwrap();
            if rng.chance(0.5) {
                disk = Arc::new(disk.crash());
            }
        }
        client.run(&Arc::new(disk.crash()), &mut rng, 0).unwrap();
        failed += disk.counts().failed_syncs;
    }
    assert!(failed > 50, "{failed}");
}

/// A write that fails may have reached the disk all the same. A file that the failed commit named, and that the store took
/// back, is not missed by the next start.
#[test]
fn a_commit_whose_write_failed_is_not_found_by_the_next_start() {
    let (mut failed, mut closed) = (0, 0);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let disk = Arc::new(SimDisk::new(seed, Faults::default()));
        let mut client = Client::default();
        client.run(&disk, &mut rng, 30).unwrap();
        let mut store = Store::open(&disk).unwrap();
        client.verify(store.numbers().unwrap());
        store.is_short = true;
        store.seal().unwrap();
        let new = store.write_file(&[]).unwrap();
        let files = [&store.files[..], std::slice::from_ref(&new)].concat();
        let (write_fails, sync_fails) = (Trigger::chance(0.5), Trigger::chance(0.1));
        disk.set_faults(Faults { write_fails, sync_fails, ..Faults::default() });
        let (sealed, log_from) = (store.sealed, store.log_from);
        let committed = store.commit(files, sealed, log_from);
        disk.set_faults(Faults::default());
        if committed.is_err() {
            failed += 1;
            closed += usize::from(store.storage.discard(&new.0).is_err());
        }
        drop((store, new));
        let disk = if rng.chance(0.5) { Arc::new(disk.crash()) } else { disk };
        client.run(&disk, &mut rng, 6).unwrap();
    }
    assert!(failed - closed > 30 && closed > 20, "{failed} failed, {closed} of them closed the store");
}

#[test]
fn a_full_disk_changes_nothing_and_passes() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let mut client = Client::default();
    client.run(&disk, &mut Rng::new(3), 30).unwrap();
    let mut store = Store::open(&disk).unwrap();
    let before = store.numbers().unwrap();
    client.verify(before.clone());
    disk.set_faults(Faults { bytes_max: Some(1), ..Faults::default() });
    for _ in 0..3 {
        // More than the space that was taken for edits; nothing of it may count.
        let head = Head::new(store.log_from..store.log_from, &0u64).unwrap();
        let failed = store.storage.commit(head, &mut |sink, _| {
            sink.gone(0)?;
            sink.note(&"x".repeat(300_000))
        });
        assert_eq!(failed.unwrap_err().kind(), Kind::NoSpace);
        assert_eq!(store.log.append(b"8 bytes.").unwrap_err().kind(), Kind::NoSpace);
        assert_eq!(store.merge().unwrap_err().kind(), Kind::NoSpace);
    }
    disk.set_faults(Faults::default());
    store.merge().unwrap();
    drop(store);
    let store = Store::open(&Arc::new(disk.crash())).unwrap();
    assert_eq!(store.numbers().unwrap(), before);
}

#[test]
fn the_reserve_is_given_up_by_steps_and_made_again() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let store = Store::open(&disk).unwrap();
    let reserve = store.storage.reserve();
    reserve.want(8 << 20).unwrap();
    reserve.make(0).unwrap();
    assert_eq!(reserve.bytes(), (8 << 20, 8 << 20));
    // A crash leaves it, and the next start finds it.
    let crashed = Arc::new(disk.crashed_copy(1));
    assert_eq!(Store::open(&crashed).unwrap().storage.reserve().bytes().0, 8 << 20);
    // Not a byte is free.
    let used = 8 << 20 | disk.list(Path::new(FOLDER)).unwrap().iter().map(|entry| entry.bytes).sum::<u64>();
    disk.set_faults(Faults { bytes_max: Some(used), ..Faults::default() });
    assert_eq!(reserve.make(1 << 20).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(reserve.for_tidying(), 6 << 20);
    // A name is given up before any room is.
    let has_spare = || disk.list(Path::new(FOLDER)).unwrap().iter().any(|entry| entry.name == "RESERVE.name");
    assert!(has_spare() && reserve.give(ReserveClaim::Delete).unwrap() && !has_spare());
    assert_eq!(reserve.bytes().0, 8 << 20);
    assert!(reserve.give(ReserveClaim::Tidy).unwrap() && !reserve.give(ReserveClaim::Tidy).unwrap());
    assert_eq!(reserve.bytes().0, 2 << 20, "a quarter is for deletes");
    let mut steps = 0;
    while reserve.give(ReserveClaim::Delete).unwrap() {
        steps += 1;
    }
    assert_eq!((steps, reserve.bytes().0), (4, 0));
    disk.set_faults(Faults::default());
    reserve.make(1 << 20).unwrap();
    assert!(reserve.bytes().0 == 8 << 20 && has_spare());
    // Of a small disk it takes little.
    disk.set_faults(Faults { bytes_max: Some(64 << 20), ..Faults::default() });
    reserve.want(8 << 20).unwrap();
    reserve.make(0).unwrap();
    assert_eq!(reserve.bytes(), (4 << 20, 4 << 20));
}

/// Whoever asks for room hears why there is none: the disk is full, or it failed.
#[test]
fn a_disk_that_fails_while_the_reserve_is_given_up_is_not_called_full() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let store = Store::open(&disk).unwrap();
    let reserve = store.storage.reserve();
    reserve.want(8 << 20).unwrap();
    reserve.make(0).unwrap();
    assert!(reserve.give(ReserveClaim::Delete).unwrap(), "the name");
    disk.set_faults(Faults { sync_fails: Trigger::chance(1.0), ..Faults::default() });
    assert_eq!(reserve.give(ReserveClaim::Delete).unwrap_err().kind(), Kind::Io);
    disk.set_faults(Faults::default());
    assert!(reserve.give(ReserveClaim::Delete).unwrap());
}

/// An edit of an ordinary length changes nothing where there is no room for it, and a snapshot that is due waits for room.
#[test]
fn a_manifest_needs_little_of_a_full_disk() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let mut store = Store::open(&disk).unwrap();
    let commit = |store: &Store, note: u64| {
        let head = Head::new(store.log_from..store.log_from, &note).unwrap();
        let notes = |whole: bool| if whole { 20 } else { 1 };
        store
            .storage
            .commit(head, &mut |sink, whole| (0..notes(whole)).try_for_each(|_| sink.note(&"x".repeat(20_000))))
    };
    let path = Path::new(FOLDER).join("MANIFEST");
    commit(&store, 0).unwrap();
    // With so much room a snapshot would find none, and edits do.
    let (mut used, mut edits) = (disk.file_bytes(&path).unwrap(), 0);
    for note in 1..40 {
        let files = disk.list(Path::new(FOLDER)).unwrap();
        let held: u64 = files.iter().map(|entry| entry.bytes).sum();
        let log: u64 = disk.list(&Path::new(FOLDER).join("log")).unwrap().iter().map(|entry| entry.bytes).sum();
        disk.set_faults(Faults { bytes_max: Some(held + log + (64 << 10)), ..Faults::default() });
        commit(&store, note).unwrap_or_else(|error| panic!("{note}: {error}"));
        let now = disk.file_bytes(&path).unwrap();
        edits += u64::from(now > used);
        used = now;
    }
    assert!(edits > 5 && used > 700_000, "{edits} {used}");
    disk.set_faults(Faults { bytes_max: Some(1), ..Faults::default() });
    let full = (0..10).find_map(|note| commit(&store, note).err()).unwrap();
    assert_eq!(full.kind(), Kind::NoSpace);
    disk.set_faults(Faults::default());
    commit(&store, 50).unwrap();
    store.log.append(b"8 bytes.").unwrap();
    drop(store);
    Store::open(&Arc::new(disk.crash())).unwrap();
}

#[test]
fn a_file_goes_with_its_last_reader() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let mut store = Store::open(&disk).unwrap();
    for round in 0..2u64 {
        store.log.append(&round.to_le_bytes()).unwrap();
        store.growing.push(round);
        store.seal().unwrap();
    }
    let reader = store.files[0].1.clone();
    assert!(Arc::ptr_eq(&reader, &store.storage.open_file(&store.files[0].0).unwrap()));
    store.merge().unwrap();
    assert_eq!(data_files(&disk), 2, "the merged file, and the one that is being read");
    assert_eq!(store.read(&reader).unwrap(), [0]);
    drop(reader);
    assert_eq!(data_files(&disk), 1);
    // A file that was written in vain.
    let (name, file) = store.write_file(&[1, 2, 3]).unwrap();
    drop(file);
    assert_eq!(data_files(&disk), 2);
    store.storage.discard(&name).unwrap();
    assert_eq!(data_files(&disk), 1);
    assert_eq!(store.storage.discard(&store.files[0].0).unwrap_err().kind(), Kind::Bug);
    // A name that a manifest knew is never given again, not even after a restart.
    let known = store.files[0].0.clone();
    store.commit(Vec::new(), 0, store.log_from).unwrap();
    drop(store);
    let store = Store::open(&disk).unwrap();
    assert!(store.storage.new_name("seg") > known);
}

#[test]
fn lost_and_damaged_files_are_named() {
    let fresh = || {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let mut store = Store::open(&disk).unwrap();
        for number in 0..2000u64 {
            store.log.append(&number.to_le_bytes()).unwrap();
            store.growing.push(number);
        }
        store.seal().unwrap();
        store.log.append(&7u64.to_le_bytes()).unwrap();
        store.log.commit().unwrap();
        let name = store.files[0].0.clone();
        (disk, Path::new(FOLDER).join(name))
    };
    let refused = |disk: &Arc<SimDisk>| Store::open(disk).err().unwrap();

    let (disk, file) = fresh();
    disk.rename(&file, None).unwrap();
    let error = refused(&disk);
    assert!(error.kind() == Kind::Corrupt && error.message().contains("000000.seg"), "{error}");

    let (disk, _) = fresh();
    disk.rename(&Path::new(FOLDER).join("MANIFEST"), None).unwrap();
    let error = refused(&disk);
    assert!(error.kind() == Kind::Corrupt && error.message().contains("manifest is missing"), "{error}");

    let (disk, _) = fresh();
    disk.flip_bit(&Path::new(FOLDER).join("MANIFEST"), 60, 1).unwrap();
    assert_eq!(refused(&disk).kind(), Kind::Corrupt);

    // The last edit, which was acknowledged.
    let (disk, _) = fresh();
    let manifest = Path::new(FOLDER).join("MANIFEST");
    let bytes = read_file(&disk, &manifest);
    let end = ramekin_storage::manifest::decode(&bytes).unwrap().1.end;
    disk.flip_bit(&manifest, end - 4096 + 20, 1).unwrap();
    let error = refused(&disk);
    let place = format!("byte {}", end - 4096);
    assert!(error.kind() == Kind::Corrupt && error.message().contains("MANIFEST"), "{error}");
    assert!(error.message().contains("damaged at byte"), "{error}, {place}");
}

fn read_file(disk: &Arc<SimDisk>, path: &Path) -> Vec<u8> {
    let file = disk.open(path, Open::Read).unwrap();
    let mut bytes = Aligned::new(&Budget::new(32 << 20).root(), disk.len(&file).unwrap() as usize).unwrap();
    disk.read(&mut [ReadOp { file: &file, at: 0, buf: &mut bytes }]).unwrap();
    bytes.to_vec()
}

fn run_check(disk: &Arc<SimDisk>, repair: bool) -> ramekin_storage::Report {
    let budget = Budget::new(32 << 20);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
    let disk: Arc<dyn Disk> = disk.clone();
    check(&disk, Path::new(FOLDER), &pages, &budget.root(), repair).unwrap()
}

#[test]
fn check_says_what_is_damaged_and_repairs_the_log() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let mut store = Store::open(&disk).unwrap();
    store.log.append(&1u64.to_le_bytes()).unwrap();
    store.growing.push(1);
    store.seal().unwrap();
    for number in 2..6u64 {
        store.log.append(&number.to_le_bytes()).unwrap();
        store.log.commit().unwrap();
    }
    let (file, log_from) = (store.files[0].0.clone(), store.log_from);
    drop(store);
    let sound = run_check(&disk, false);
    assert!(sound.is_sound() && sound.files.len() == 3, "{sound}");

    // The third of the four records in the log.
    let log = Path::new(FOLDER).join("log");
    let last = disk.list(&log).unwrap().pop().unwrap().name;
    let start = u64::from_str_radix(last.strip_suffix(".log").unwrap(), 16).unwrap();
    let second_block = log_from - start + 512;
    disk.flip_bit(&log.join(&last), second_block + 24, 0).unwrap();
    let report = run_check(&disk, false);
    assert!(!report.is_sound() && !report.repaired && report.to_string().contains(&last), "{report}");
    assert!(Store::open(&disk).is_err());
    let report = run_check(&disk, true);
    assert!(report.is_sound() && report.repaired, "{report}");
    let store = Store::open(&disk).unwrap();
    assert_eq!(store.numbers().unwrap(), [1, 2]);
    drop(store);

    // A damaged page, and a leftover.
    disk.flip_bit(&Path::new(FOLDER).join(&file), 3, 3).unwrap();
    let store = Store::open(&disk).unwrap();
    let left = store.write_file(&[9]).unwrap().0;
    drop(store);
    let report = run_check(&disk, true);
    let damaged: Vec<_> = report.files.iter().filter(|file| file.problem.is_some()).collect();
    assert!(damaged.len() == 1 && damaged[0].name == file, "{report}");
    assert_eq!(report.leftovers, [left]);
}

/// Opens a manifest that an earlier program wrote. Never change the fixture: add the next version's beside it.
#[test]
fn format_version_1_stays_readable() {
    let bytes = include_bytes!("fixtures/version-1/MANIFEST");
    let (records, layout) = ramekin_storage::manifest::decode(bytes).unwrap();
    assert!(records.is_empty() && layout.version == 1);
    let manifest =
        ramekin_storage::whole::decode(&bytes[layout.body.start as usize..layout.body.end as usize]).unwrap();
    assert_eq!((manifest.log_from, manifest.next_file), (4608, 12));
    assert_eq!(manifest.files, ["files/000003.seg", "files/000011.dead"]);
    let app: std::collections::BTreeMap<String, Vec<u32>> = read_app(&manifest.app).unwrap();
    assert_eq!(app["of the store"], [1, 2, 3]);
}

#[test]
fn format_version_2_stays_readable() {
    let bytes = include_bytes!("fixtures/version-2/MANIFEST");
    let (records, layout) = ramekin_storage::manifest::decode(bytes).unwrap();
    assert_eq!((layout.version, layout.torn, layout.end), (2, false, bytes.len() as u64));
    let text = serde_json::to_string(&records).unwrap();
    assert_eq!(text, include_str!("fixtures/version-2/records.json").trim_end());
}

/// What one more commit writes does not follow how many parts there are.
#[test]
fn a_commit_costs_what_it_changes() {
    let written = |parts: u64| {
        let disk = Arc::new(SimDisk::new(1, Faults::default()));
        let store = Store::open(&disk).unwrap();
        let head = || Head::new(0..0, &1u64).unwrap();
        let note = |sink: &mut ramekin_storage::Sink<'_>, from| {
            (from..parts).try_for_each(|key| sink.part(key, Vec::new(), &key))
        };
        // The second is a snapshot, since the first made the edits long.
        for _ in 0..2 {
            store.storage.commit(head(), &mut |sink, _| note(sink, 0)).unwrap();
        }
        let before = disk.counters().written_bytes;
        (0..16).for_each(|_| {
            store.storage.commit(head(), &mut |sink, whole| note(sink, if whole { 0 } else { parts - 1 })).unwrap()
        });
        disk.counters().written_bytes - before
    };
    let (few, many) = (written(10), written(20_000));
    assert_eq!(few, many);
    assert!(few <= 16 * 3 * 4096, "{few}");
}

/// Data folders of earlier programs open, and no file of theirs is lost on the way.
#[test]
fn a_manifest_in_the_format_before_opens_and_is_written_anew() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let mut store = Store::open(&disk).unwrap();
    store.log.append(&1u64.to_le_bytes()).unwrap();
    store.growing.push(1);
    store.seal().unwrap();
    let (name, log_from) = (store.files[0].0.clone(), store.log_from);
    drop(store);
    let app = serde_json::value::to_raw_value(&serde_json::json!({"sealed": 1})).unwrap();
    let old = ramekin_storage::whole::WholeManifest {
        log_from,
        log_durable: log_from,
        files: vec![name.clone()],
        next_file: 9,
        app,
    };
    let path = Path::new(FOLDER).join("MANIFEST");
    disk.rename(&path, None).unwrap();
    let bytes = ramekin_storage::whole::encode(&old).unwrap();
    let file = disk.open(&path, Open::Create).unwrap();
    let mut buffer = Aligned::new(&Budget::new(32 << 20).root(), bytes.len()).unwrap();
    buffer.copy_from_slice(&bytes);
    disk.set_len(&file, bytes.len() as u64).unwrap();
    disk.write(&file, 0, &buffer).unwrap();
    disk.sync(Sync::File(&file)).unwrap();
    assert!(run_check(&disk, false).is_sound());
    let open = || {
        let budget = Budget::new(32 << 20);
        let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
        Storage::open(disk.clone(), Path::new(FOLDER), pages, &budget.root(), &budget.root()).unwrap()
    };
    let (storage, manifest) = open();
    let mut manifest = manifest.unwrap();
    assert_eq!(manifest.whole().unwrap().get(), r#"{"sealed":1}"#);
    assert_eq!(manifest.head.log_from, log_from);
    manifest.each_part(&mut |_, _| panic!("an old one has no parts")).unwrap();
    drop(manifest);
    storage
        .commit(Head::new(log_from..log_from, &1u64).unwrap(), &mut |sink, whole| {
            assert!(whole);
            sink.part(5, vec![name.clone()], &name)
        })
        .unwrap();
    assert_eq!(data_files(&disk), 1);
    assert_eq!(storage.new_name("seg"), "files/000009.seg");
    drop(storage);
    let (_, manifest) = open();
    assert!(manifest.is_some_and(|manifest| manifest.whole().is_none() && manifest.parts() == 1));
}

#[test]
fn a_log_that_lost_its_acknowledged_end_is_refused_and_repaired() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let mut store = Store::open(&disk).unwrap();
    for number in 0..20u64 {
        store.log.append(&number.to_le_bytes()).unwrap();
        store.log.commit().unwrap();
        store.growing.push(number);
    }
    // The manifest notes how far the log is durable, though none of it is in files.
    store.commit(Vec::new(), 0, 0).unwrap();
    let end = store.log.end();
    drop(store);
    // The newest record is damaged where a torn write would look the same.
    let log = disk.list(&Path::new(FOLDER).join("log")).unwrap().pop().unwrap();
    let path = Path::new(FOLDER).join("log").join(&log.name);
    disk.flip_bit(&path, end - 512 + 24, 0).unwrap();
    let error = Store::open(&disk).err().unwrap();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.message().contains(&format!("durable up to position {end}")), "{error}");
    assert!(!run_check(&disk, false).repaired);
    assert!(Store::open(&disk).is_err());
    assert!(run_check(&disk, true).repaired);
    let store = Store::open(&disk).unwrap();
    assert_eq!(store.numbers().unwrap(), (0..19).collect::<Vec<_>>());
}

/// Whatever of it is gone: the manifest, the log's file, the log's folder, or what is in it.
#[test]
fn a_folder_that_held_data_is_never_opened_as_empty() {
    let folder = Path::new(FOLDER);
    let remove = |disk: &SimDisk, name: &str| {
        let path = folder.join(name);
        if let Ok(entries) = disk.list(&path) {
            entries.iter().for_each(|entry| disk.rename(&path.join(&entry.name), None).unwrap());
        }
        disk.rename(&path, None).unwrap();
    };
    let log_file = "log/0000000000000000.log";
    for gone in [
        &["MANIFEST"][..],
        &[log_file],
        &["log"],
        &["MANIFEST", log_file],
        &["MANIFEST", "log"],
        &["MANIFEST", "log", "files"],
    ] {
        for records in [0, 3] {
            let disk = Arc::new(SimDisk::new(1, Faults::default()));
            let mut store = Store::open(&disk).unwrap();
            for number in 0..records {
                store.log.append(&u64::to_le_bytes(number)).unwrap();
                store.log.commit().unwrap();
            }
            drop(store);
            gone.iter().for_each(|name| remove(&disk, name));
            let error = Store::open(&disk).err().unwrap();
            assert_eq!(error.kind(), Kind::Corrupt, "{gone:?}: {error}");
            let budget = Budget::new(32 << 20);
            let dynamic: Arc<dyn Disk> = disk.clone();
            let pages = Pages::new(dynamic.clone(), budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
            let report = check(&dynamic, folder, &pages, &budget.root(), false);
            assert!(!report.is_ok_and(|report| report.is_sound()), "{gone:?}");
        }
    }
    // A folder of an earlier version has no mark; it gets one, and nothing is missed without it.
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    drop(Store::open(&disk).unwrap());
    remove(&disk, "BEGUN");
    drop(Store::open(&disk).unwrap());
    assert!(disk.list(folder).unwrap().iter().any(|entry| entry.name == "BEGUN"));
}
