//! The log on real files: what comes back, what is refused, what a repair keeps.
#![allow(clippy::disallowed_methods, reason = "the tests damage files behind the log's back")]
#![allow(clippy::unwrap_used, reason = "tests")]

use ramekin_base::{Error, Kind, Result, Rng, nonblocking};
use ramekin_disk::{Disk, Engine, Local};
use ramekin_log::{Log, Lsn, repair};
use ramekin_memory::{Account, Budget};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

type Records = Vec<(Lsn, Vec<u8>)>;

struct Bench {
    folder: TempDir,
    disk: Arc<dyn Disk>,
    budget: Budget,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(Local::new(Engine::Pread, folder.path()).unwrap());
        Self { folder, disk, budget: Budget::new(64 << 20) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// A store's folder says whether its log has had a file; here a test says so by making the folder's mark.
    fn begun(&self) -> bool {
        self.folder.path().join("begun").exists()
    }

    fn begin(&self) {
        std::fs::write(self.folder.path().join("begun"), "").unwrap();
    }

    fn account(&self) -> Account {
        self.budget.root()
    }

    fn open(&self, from: Lsn) -> Result<(Log, Records)> {
        let mut records = Records::new();
        let log = Log::open(
            self.disk.clone(),
            &self.path(),
            &self.account(),
            from..from,
            self.begun(),
            &mut |lsn, record| {
                records.push((lsn, record.to_vec()));
                Ok(())
            },
        )?;
        Ok((log, records))
    }

    fn refused(&self, from: Lsn) -> Error {
        match self.open(from) {
            Ok((_, records)) => panic!("opened with {} records", records.len()),
            Err(error) => error,
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = std::fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// Writes each group of records as one commit.
    fn write(&self, groups: &[&[&[u8]]]) -> Records {
        let (mut log, mut records) = self.open(0).unwrap();
        for group in groups {
            for record in *group {
                records.push((log.append(record).unwrap(), record.to_vec()));
            }
            log.commit().unwrap();
        }
        records
    }
}

fn again(log: &Log, from: Lsn) -> Records {
    let mut records = Records::new();
    log.replay(from, &mut |lsn, record| {
        assert_eq!(log.reader().read(lsn, record.len())?[..], *record);
        records.push((lsn, record.to_vec()));
        Ok(())
    })
    .unwrap();
    records
}

fn flip(path: &Path, offset: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset as usize] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

fn some_record(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(20) {
        0 => 0,
        1 => rng.below(3 << 20),
        2..5 => rng.below(60_000),
        _ => rng.below(700),
    };
    let seed = rng.next_u64();
    (0..len).map(|index| (seed >> (index % 57)) as u8).collect()
}

/// Appends, commits, trims, reads and restarts in any order give back what was put in.
#[test]
fn everything_committed_comes_back() {
    for seed in 0..6 {
        let bench = Bench::new();
        let mut rng = Rng::new(seed);
        let mut from = 0;
        let mut all = Records::new();
        for _ in 0..6 {
            let (mut log, records) = bench.open(from).unwrap();
            assert!(records == all, "seed {seed}");
            assert!(again(&log, from) == all, "seed {seed}");
            log.set_file_bytes(1 << 20);
            for _ in 0..rng.below(60) {
                let record = some_record(&mut rng);
                all.push((log.append(&record).unwrap(), record));
                match rng.below(12) {
                    0..4 => {
                        assert!(log.uncommitted_bytes() > 0);
                        let end = log.commit().unwrap();
                        assert_eq!(log.uncommitted_bytes(), 0);
                        assert!(all.last().unwrap().0 < end && end == log.end());
                    }
                    4 => {
                        log.commit().unwrap();
                        from = all[rng.below(all.len() as u64) as usize].0;
                        all.retain(|(lsn, _)| *lsn >= from);
                        log.trim(from).unwrap();
                    }
                    5 => {
                        log.commit().unwrap();
                        let wanted: Vec<_> = (0..30)
                            .map(|_| {
                                let (lsn, record) = &all[rng.below(all.len() as u64) as usize];
                                (*lsn, rng.below(record.len() as u64 * 2) as usize)
                            })
                            .collect();
                        for (found, (lsn, _)) in log.reader().read_many(&wanted).unwrap().iter().zip(&wanted) {
                            let index = all.binary_search_by_key(lsn, |(lsn, _)| *lsn).unwrap();
                            assert!(**found == all[index].1, "seed {seed}");
                        }
                    }
                    6 => {
                        // What is not committed is not replayed.
                        let sure = all.partition_point(|(lsn, _)| *lsn < log.end());
                        assert!(again(&log, from) == all[..sure], "seed {seed}");
                    }
                    _ => {}
                }
            }
            log.commit().unwrap();
        }
        drop(all);
        assert_eq!(bench.budget.reserved(), 0);
    }
}

#[test]
fn trim_keeps_the_log_short() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    log.set_file_bytes(256 << 10);
    let mut first = None;
    for _ in 0..100 {
        let lsn = log.append(&[7; 50_000]).unwrap();
        first = first.or(Some(lsn));
        let end = log.commit().unwrap();
        log.trim(end.saturating_sub(200_000)).unwrap();
        assert!(log.bytes_on_disk() <= 3 * (256 << 10), "{}", log.bytes_on_disk());
    }
    let on_disk: u64 = bench.files().iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(on_disk, log.bytes_on_disk());
    let error = log.reader().read(first.unwrap(), 50_000).err().unwrap();
    assert_eq!(error.kind(), Kind::NotFound);
    // A reader that is ahead of the commit has a bug.
    let lsn = log.append(b"not yet").unwrap();
    assert_eq!(log.reader().read(lsn, 7).err().unwrap().kind(), Kind::Bug);
    // A start needs the position that the log was trimmed to.
    drop(log);
    assert_eq!(bench.refused(0).kind(), Kind::Corrupt);
}

/// A reader that has pinned the log reads on what is trimmed; what came after is trimmed for it as for others.
#[test]
fn what_is_pinned_is_read_after_it_was_trimmed() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    log.set_file_bytes(256 << 10);
    let mut write = |byte: u8| {
        let lsn = log.append(&[byte; 50_000]).unwrap();
        let end = log.commit().unwrap();
        log.trim(end.saturating_sub(100_000)).unwrap();
        (lsn, log.reader())
    };
    let (kept, reader) = write(1);
    let pinned = reader.pin();
    assert!(pinned.start() <= kept);
    let later: Vec<Lsn> = (2..40).map(|byte| write(byte).0).collect();
    let newest = write(40).0;
    let reads = |reader: &ramekin_log::LogReader, lsn| reader.read(lsn, 50_000).map(|record| record.to_vec());
    assert_eq!(reads(&reader, kept).err().unwrap().kind(), Kind::NotFound);
    assert_eq!(reads(&pinned, kept).unwrap(), [1; 50_000]);
    assert_eq!(reads(&pinned, newest).unwrap(), [40; 50_000]);
    assert_eq!(reads(&pinned, later[15]).err().unwrap().kind(), Kind::NotFound);
    let held = log.bytes_on_disk();
    drop((pinned, reader));
    log.trim(newest).unwrap();
    assert!(log.bytes_on_disk() < held, "what nobody reads any more is closed");
}

/// Wherever one byte of a record is changed, no record is lost in silence but those of the last commit.
#[test]
fn damage_before_the_last_commit_is_refused() {
    let bench = Bench::new();
    let big = vec![9; 3000];
    let records = bench.write(&[&[b"one", b"two"], &[&big, b"four"], &[b"five"]]);
    let file = &bench.files()[0];
    let whole = std::fs::read(file).unwrap();
    let sizes = [3, 3, 3000, 4, 4];
    let last_commit = records[4].0;
    for (index, (lsn, _)) in records.iter().enumerate() {
        for offset in (*lsn..lsn + 24 + sizes[index]).step_by(7) {
            std::fs::write(file, &whole).unwrap();
            flip(file, offset);
            if *lsn >= last_commit {
                assert_eq!(bench.open(0).unwrap().1, records[..4]);
                continue;
            }
            let error = bench.refused(0);
            assert_eq!(error.kind(), Kind::Corrupt);
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(error.message().contains(name) && error.message().contains(&lsn.to_string()), "{error}");
        }
    }
    // The file's own header.
    std::fs::write(file, &whole).unwrap();
    flip(file, 17);
    assert_eq!(bench.refused(0).kind(), Kind::Corrupt);
}

/// Bits that change in the last commit look unlike a torn write while a record of it stands behind them.
/// A start reads the log twice; what was there the first time is not a torn end the second time.
#[test]
fn damage_that_comes_after_the_log_was_opened_is_no_end_of_it() {
    let bench = Bench::new();
    let records = bench.write(&[&[b"one"], &[b"two"], &[b"the last one"]]);
    for (lsn, _) in &records {
        let (log, _) = bench.open(0).unwrap();
        assert_eq!(again(&log, 0), records);
        let byte = lsn + 16;
        flip(&bench.files()[0], byte);
        let error = log.replay(0, &mut |_, _| Ok(())).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.message().contains(&format!("offset {lsn}")), "{error}");
        flip(&bench.files()[0], byte);
    }
}

#[test]
fn damage_inside_the_last_commit_is_told_from_a_torn_write() {
    let bench = Bench::new();
    let big = vec![9; 3000];
    let records = bench.write(&[&[b"one"], &[b"two", &big, b"four"]]);
    let file = &bench.files()[0];
    let whole = std::fs::read(file).unwrap();
    let inside = records[2].0 + 700;
    flip(file, inside);
    assert_eq!(bench.refused(0).kind(), Kind::Corrupt);
    // A sector that never arrived.
    let mut torn = whole.clone();
    let sector = (inside / 512 * 512) as usize;
    torn[sector..sector + 512].fill(0);
    std::fs::write(file, &torn).unwrap();
    assert_eq!(bench.open(0).unwrap().1, records[..2]);
}

/// Zeros from any place on, as a crash leaves them in the reserved space, leave a prefix.
#[test]
fn a_write_that_was_lost_leaves_a_prefix() {
    let bench = Bench::new();
    let records = bench.write(&[&[b"one"], &[&[1; 900], b"three"], &[&[2; 5000]]]);
    let file = &bench.files()[0];
    let whole = std::fs::read(file).unwrap();
    for len in (0..12_000).step_by(151) {
        let mut torn = whole.clone();
        torn[len..].fill(0);
        std::fs::write(file, &torn).unwrap();
        let kept = records.iter().filter(|(at, record)| *at as usize + 24 + record.len() <= len).count();
        let (mut log, found) = bench.open(0).unwrap();
        assert_eq!(found, records[..kept], "lost from {len} on");
        // What is written after the cut stands, and nothing of the past comes back.
        let mut expected = found;
        expected.push((log.append(&[3; 1500]).unwrap(), vec![3; 1500]));
        log.commit().unwrap();
        drop(log);
        assert_eq!(bench.open(0).unwrap().1, expected, "lost from {len} on");
        bench.files()[1..].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

/// Several files, each with records, the newest without or with some.
fn several_files(bench: &Bench, last_records: usize) -> (Records, Lsn) {
    let (mut log, mut records) = bench.open(0).unwrap();
    log.set_file_bytes(64 << 10);
    for _ in 0..10 {
        records.push((log.append(&[7; 40_000]).unwrap(), vec![7; 40_000]));
        log.commit().unwrap();
    }
    log.make_room(1, 40_000).unwrap();
    for _ in 0..last_records {
        records.push((log.append(b"last").unwrap(), b"last".to_vec()));
        log.commit().unwrap();
    }
    (records, log.end())
}

#[test]
fn a_missing_emptied_or_shortened_file_is_refused_the_newest_too() {
    for last_records in [0, 3] {
        let bench = Bench::new();
        let (records, end) = several_files(&bench, last_records);
        bench.begin();
        let aside = bench.folder.path().join("aside");
        let files = bench.files();
        for (index, file) in files.iter().enumerate() {
            let before = &files[index.saturating_sub(1)];
            let named = |error: Error, other: &Path| {
                assert_eq!(error.kind(), Kind::Corrupt);
                let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
                let message = error.message();
                assert!(message.contains(&name(file)) || message.contains(&name(other)), "{message}");
                assert!(message.contains("offset") || index == 0, "{message}");
            };
            std::fs::rename(file, &aside).unwrap();
            let error = bench.refused(0);
            assert!(index == 0 || error.message().contains(file.file_name().unwrap().to_str().unwrap()), "{error}");
            named(error, &files[(index + 1).min(files.len() - 1)]);
            let whole = std::fs::read(&aside).unwrap();
            for len in [0, 1, 31, 4095, 4096, 5000, 8192, whole.len() / 2, whole.len() - 4096, whole.len() - 1] {
                if len < whole.len() {
                    std::fs::write(file, &whole[..len]).unwrap();
                    named(bench.refused(0), before);
                }
            }
            std::fs::rename(&aside, file).unwrap();
        }
        assert_eq!(bench.open(0).unwrap().1, records);
        bench.files().iter().for_each(|path| std::fs::remove_file(path).unwrap());
        assert_eq!(bench.refused(end).kind(), Kind::Corrupt);
        // Even if no manifest ever named a position.
        assert_eq!(bench.refused(0).kind(), Kind::Corrupt);
    }
}

#[test]
fn a_repair_of_a_missing_or_shortened_file_opens_with_what_is_left() {
    for damage in 0..3 {
        let bench = Bench::new();
        let (records, _) = several_files(&bench, 3);
        let files = bench.files();
        let newest = files.last().unwrap();
        match damage {
            0 => std::fs::remove_file(newest).unwrap(),
            1 => std::fs::write(newest, b"").unwrap(),
            _ => std::fs::write(newest, &std::fs::read(newest).unwrap()[..4608]).unwrap(),
        }
        bench.begin();
        let run = |dry_run| repair(&*bench.disk, &bench.path(), &bench.account(), 0..0, true, dry_run).unwrap();
        assert!(run(true).damage.is_some());
        assert_eq!(bench.refused(0).kind(), Kind::Corrupt);
        let report = run(false);
        assert!(report.repaired && run(true).damage.is_none(), "{report}, then {}", run(true));
        let (mut log, found) = bench.open(0).unwrap();
        let kept = if damage == 2 { records.len() - 2 } else { records.len() - 3 };
        assert_eq!(found, records[..kept], "{report}");
        log.append(b"after").unwrap();
        log.commit().unwrap();
        drop(log);
        assert_eq!(bench.open(0).unwrap().1.len(), kept + 1);
    }
}

/// Appends the records of a request.
fn request(log: &mut Log, number: u64, records: &[&[u8]]) -> Records {
    log.make_room(records.len(), records.iter().map(|record| record.len()).sum()).unwrap();
    let last = records.len() - 1;
    let append =
        |(at, record): (usize, &&[u8])| (log.append_part(number, record, at == last).unwrap(), record.to_vec());
    records.iter().enumerate().map(append).collect()
}

/// A request of many records that is cut in its middle is dropped whole, and how much that is is said.
#[test]
fn a_request_is_there_as_a_whole_or_not_at_all() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    let parts: Vec<Vec<u8>> = (0..9u8).map(|part| vec![part + 1; 32 << 10]).collect();
    let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
    let mut kept = request(&mut log, 7, &parts[..3]);
    log.commit().unwrap();
    kept.extend(request(&mut log, 8, &[b"small"]));
    let torn = request(&mut log, 9, &parts);
    log.commit().unwrap();
    drop(log);
    let file = bench.files().pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    let start = u64::from_str_radix(file.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
    assert_eq!(bench.open(0).unwrap().1, [&kept[..], &torn[..]].concat());
    for part in 0..9 {
        let mut bytes = whole.clone();
        bytes[(torn[part].0 - start) as usize + 700..].fill(0);
        std::fs::write(&file, &bytes).unwrap();
        let report = repair(&*bench.disk, &bench.path(), &bench.account(), 0..0, false, true).unwrap();
        let (log, found) = bench.open(0).unwrap();
        assert_eq!(found, kept, "cut in part {part}");
        let cut = log.cut().unwrap();
        assert_eq!((cut.requests, cut.records, report.cut), (1, part as u64, Some(cut)));
        assert!(cut.bytes > part as u64 * (32 << 10) && report.to_string().contains("1 request "), "{report}");
        drop(log);
        // It is dropped but once.
        assert_eq!(bench.open(0).unwrap().0.cut(), None);
    }
}

/// Records of several requests stand between each other, and one request never comes to its end.
#[test]
fn requests_may_stand_between_each_other() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    log.make_room(20, 1000).unwrap();
    let mut append =
        |number, record: &[u8], is_last| (log.append_part(number, record, is_last).unwrap(), record.to_vec());
    append(5, b"refused", false);
    let mut kept = vec![append(1, b"one", false)];
    kept.push(append(2, b"whole", true));
    append(6, b"refused, too", false);
    kept.push(append(1, b"one, the end", true));
    append(1, b"one begins again", false);
    log.commit().unwrap();
    // Its number comes again in a later commit: that is another request.
    let mut later = request(&mut log, 5, &[b"five"]);
    kept.append(&mut later);
    log.commit().unwrap();
    assert_eq!(again(&log, 0), kept);
    assert_eq!(again(&log, kept[2].0), kept[2..]);
    drop(log);
    let (log, found) = bench.open(0).unwrap();
    assert_eq!((found, log.cut()), (kept, None));
}

#[test]
fn room_is_made_before_the_first_record_of_a_request() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    log.set_file_bytes(64 << 10);
    log.make_room(1, 10).unwrap();
    log.append_part(1, &[1; 10], false).unwrap();
    assert_eq!(log.append_part(1, &vec![1; 70_000], true).unwrap_err().kind(), Kind::Bug);
}

#[test]
fn repair_says_what_is_lost_and_cuts() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    log.set_file_bytes(64 << 10);
    let mut records = Records::new();
    for index in 0..20u8 {
        records.push((log.append(&[index; 10_000]).unwrap(), vec![index; 10_000]));
        log.commit().unwrap();
    }
    drop(log);
    let run = |from, dry_run| {
        repair(&*bench.disk, &bench.path(), &bench.account(), from..from, bench.begun(), dry_run).unwrap()
    };
    let sound = run(0, false);
    assert_eq!((sound.records, &sound.damage, sound.repaired), (20, &None, false), "{sound}");

    let files = bench.files();
    let start = u64::from_str_radix(files[1].file_stem().unwrap().to_str().unwrap(), 16).unwrap();
    let victim = records.iter().position(|(lsn, _)| *lsn > start + 15_000).unwrap();
    let offset = records[victim].0 - start;
    flip(&files[1], offset + 5000);
    let report = run(0, true);
    let damage = report.damage.clone().unwrap();
    assert_eq!((report.records, report.repaired), (victim as u64, false));
    assert_eq!((&damage.file, damage.offset), (&files[1], offset));
    assert_eq!(damage.lost_records, 20 - victim as u64 - 1, "{report}");
    assert_eq!(bench.refused(0).kind(), Kind::Corrupt);

    let report = run(0, false);
    assert!(report.repaired && report.to_string().contains("was cut"), "{report}");
    let (mut log, found) = bench.open(0).unwrap();
    assert_eq!(found, records[..victim]);
    records.truncate(victim);
    records.push((log.append(b"after").unwrap(), b"after".to_vec()));
    log.commit().unwrap();
    drop(log);
    assert_eq!(bench.open(0).unwrap().1, records);

    // A log that does not reach the position the manifest names is begun anew there.
    let far = 1 << 30;
    assert_eq!(bench.refused(far).kind(), Kind::Corrupt);
    assert!(run(far, true).damage.is_some());
    run(far, false);
    let (mut log, found) = bench.open(far).unwrap();
    assert!(found.is_empty() && log.append(b"again").unwrap() >= far);
    log.commit().unwrap();
    drop(log);
    assert_eq!(bench.open(far).unwrap().1.len(), 1);
}

#[test]
fn replay_fits_a_small_budget() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    for _ in 0..400 {
        log.append(&[5; 100_000]).unwrap();
    }
    log.commit().unwrap();
    drop(log);
    let account = Budget::new(1 << 20).root();
    let mut records = 0;
    let mut count = |_: Lsn, _: &[u8]| {
        records += 1;
        Ok(())
    };
    Log::open(bench.disk.clone(), &bench.path(), &account, 0..0, false, &mut count).unwrap();
    assert_eq!(records, 400);
    // A record that the budget cannot hold is an error of memory, not of the log.
    let (mut log, _) = bench.open(0).unwrap();
    log.append(&vec![1; 5 << 20]).unwrap();
    log.commit().unwrap();
    drop(log);
    let error = Log::open(bench.disk.clone(), &bench.path(), &account, 0..0, false, &mut |_, _| Ok(())).err().unwrap();
    assert_eq!(error.kind(), Kind::NoMemory);
    assert_eq!(bench.open(0).unwrap().1.len(), 401);
}

#[test]
fn sizes_have_limits() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    let most = vec![1; ramekin_base::limits::LOG_RECORD_MAX];
    log.append(b"small").unwrap();
    let lsn = log.append(&most).unwrap();
    assert_eq!(log.append(&[&most[..], b"1"].concat()).unwrap_err().kind(), Kind::TooLarge);
    log.commit().unwrap();
    assert!(*log.reader().read(lsn, 0).unwrap() == most);
    drop(log);
    assert!(bench.open(0).unwrap().1[1].1 == most);
}

/// Readers see every committed record while the writer appends and trims.
#[test]
fn readers_run_beside_the_writer() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    log.set_file_bytes(128 << 10);
    let (send, receive) = std::sync::mpsc::sync_channel::<(Lsn, u8)>(64);
    let reader = log.reader();
    let thread = std::thread::spawn(move || {
        let mut read = 0;
        for (lsn, value) in receive {
            match reader.read(lsn, 900) {
                Ok(record) => assert!(record.len() == 1000 && record.iter().all(|byte| *byte == value)),
                Err(error) => assert_eq!(error.kind(), Kind::NotFound),
            }
            read += 1;
        }
        read
    });
    for index in 0..2000u32 {
        let value = index as u8;
        let lsn = log.append(&[value; 1000]).unwrap();
        if index % 10 == 9 {
            let end = log.commit().unwrap();
            log.trim(end.saturating_sub(300_000)).unwrap();
            send.send((lsn, value)).unwrap();
        }
    }
    drop(send);
    assert_eq!(thread.join().unwrap(), 200);
}

/// Opens a copy of a log that an earlier program wrote. Never change the fixture: add the next version's beside it.
#[test]
fn format_version_1_stays_readable() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.path()).unwrap();
    let name = "0000000000000000.log";
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1").join(name);
    std::fs::copy(fixture, bench.path().join(name)).unwrap();
    let records = bench.open(0).unwrap().1;
    let bodies: Vec<&[u8]> = records.iter().map(|(_, record)| &record[..]).collect();
    assert_eq!(bodies, [b"first".as_slice(), b"", &[0xAB; 700], b"last of version 1"]);
}

fn version_2(bench: &Bench) -> Records {
    let mut records = bench.write(&[&[b"first", b""], &[&[0xAB; 700]]]);
    let (mut log, _) = bench.open(0).unwrap();
    records.extend(request(&mut log, 9, &[b"two records", b"of one request"]));
    log.commit().unwrap();
    records
}

/// The bytes of a file without the zeros at its end.
fn trimmed(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]
}

/// The second file is kept without the zeros of its reserved space.
#[test]
fn format_version_2_stays_readable() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.path()).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-2");
    for entry in std::fs::read_dir(fixture).unwrap() {
        let from = entry.unwrap();
        let mut bytes = std::fs::read(from.path()).unwrap();
        if from.file_name() != "0000000000000000.log" {
            bytes.resize(4 << 20, 0);
        }
        std::fs::write(bench.path().join(from.file_name()), bytes).unwrap();
    }
    bench.begin();
    let records = bench.open(0).unwrap().1;
    let bodies: Vec<&[u8]> = records.iter().map(|(_, record)| &record[..]).collect();
    assert_eq!(bodies, [b"first".as_slice(), b"", &[0xAB; 700], b"two records", b"of one request"]);
}

/// As long as version 2 is what is written, the fixture is written again, byte for byte.
#[test]
fn format_version_2_is_what_is_written() {
    let bench = Bench::new();
    version_2(&bench);
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-2");
    assert_eq!(bench.files().len(), 2);
    for file in bench.files() {
        let wanted = std::fs::read(fixture.join(file.file_name().unwrap())).unwrap_or_default();
        let written = std::fs::read(&file).unwrap();
        assert!(trimmed(&written) == trimmed(&wanted), "the format changed; it needs a version of its own");
    }
}

/// A log of version 1 goes on in files of version 2, and a damaged or missing one of them is noticed.
#[test]
fn a_log_of_version_1_goes_on_in_the_present_one() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.path()).unwrap();
    let name = "0000000000000000.log";
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1").join(name);
    std::fs::copy(fixture, bench.path().join(name)).unwrap();
    let (mut log, mut records) = bench.open(0).unwrap();
    records.extend(request(&mut log, 3, &[b"more", b"of the new form"]));
    log.commit().unwrap();
    drop(log);
    assert_eq!(bench.open(0).unwrap().1, records);
    let newest = bench.files().pop().unwrap();
    let whole = std::fs::read(&newest).unwrap();
    std::fs::remove_file(&newest).unwrap();
    assert_eq!(bench.refused(0).kind(), Kind::Corrupt);
    std::fs::write(&newest, &whole[..4096]).unwrap();
    assert_eq!(bench.refused(0).kind(), Kind::Corrupt);
    std::fs::write(&newest, &whole).unwrap();
    let (mut log, found) = bench.open(0).unwrap();
    assert_eq!(found, records);
    log.append(b"on").unwrap();
    log.commit().unwrap();
    drop(log);
    assert_eq!(bench.open(0).unwrap().1.len(), records.len() + 1);
}

#[test]
fn a_newer_format_is_refused_as_such() {
    let bench = Bench::new();
    bench.write(&[&[b"one"]]);
    let file = &bench.files()[0];
    let mut bytes = std::fs::read(file).unwrap();
    bytes[8] = 3;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..32]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(file, bytes).unwrap();
    let error = bench.refused(0);
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.message().contains("version 3"), "{error}");
}

#[test]
fn a_guessed_length_reads_nothing_that_the_next_file_may_cut_off() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    log.set_file_bytes(1 << 20);
    let lsn = log.append(b"the last one").unwrap();
    log.commit().unwrap();
    // The file is long, and what stands behind the commit is cut off when the next one begins, perhaps just now.
    let before = bench.disk.counters().read_bytes;
    let read = log.reader().read(lsn, 32 << 10).unwrap();
    assert_eq!(&read[..], b"the last one");
    let end = (log.end() as usize).next_multiple_of(ramekin_disk::ALIGN)
        - lsn as usize / ramekin_disk::ALIGN * ramekin_disk::ALIGN;
    assert!(bench.disk.counters().read_bytes - before <= end as u64);
}

#[test]
fn a_thread_that_may_not_wait_does_not_read_the_log() {
    let bench = Bench::new();
    let records = bench.write(&[&[b"one"]]);
    let (log, _) = bench.open(0).unwrap();
    let (lsn, record) = &records[0];
    let read = || log.reader().read(*lsn, record.len()).map(|found| found[..] == record[..]);
    assert_eq!(nonblocking::scope(read).unwrap_err().kind(), Kind::Busy);
    assert!(read().unwrap());
}

/// A seal reads payloads from the log while minimum reservations and requests hold all the rest: nothing else frees memory then.
#[test]
fn a_reader_with_memory_of_its_own_reads_where_nothing_is_left() {
    let bench = Bench::new();
    let (mut log, _) = bench.open(0).unwrap();
    let lsn = log.append(b"a payload").unwrap();
    log.commit().unwrap();
    let own = bench.budget.root().child("seal", "");
    own.set_min_reservation(1 << 20).unwrap();
    let _rest = bench.account().try_reserve(bench.budget.free()).unwrap();
    assert!(log.reader().read(lsn, 9).is_err_and(|error| error.kind().is_memory()));
    assert_eq!(&*log.reader().or_on(&own).read(lsn, 9).unwrap(), b"a payload");
}
