//! The log on a disk that crashes, at every single operation, and fails in every other way.
#![allow(clippy::unwrap_used, reason = "tests")]

use ramekin_base::{Kind, Result, Rng};
use ramekin_disk::sim::{Counts, Faults, SimDisk, Trigger};
use ramekin_disk::{Aligned, Disk, Open, ReadOp};
use ramekin_log::{Log, Lsn, repair};
use ramekin_memory::Budget;
use std::path::Path;
use std::sync::Arc;

type Records = Vec<(Lsn, Vec<u8>)>;

/// What a client knows: what was acknowledged, and what may or may not be there.
#[derive(Default)]
struct Client {
    acknowledged: Records,
    /// The records of each request.
    in_flight: Vec<Records>,
    from: Lsn,
}

const FOLDER: &str = "/store/log";

fn open(disk: &Arc<SimDisk>, from: Lsn) -> Result<(Log, Records)> {
    disk.make_folder(Path::new("/store"))?;
    disk.sync(ramekin_disk::Sync::Folder(Path::new("/")))?;
    let mut records = Records::new();
    let account = Budget::new(16 << 20).root();
    let mut log = Log::open(disk.clone(), Path::new(FOLDER), &account, from..from, false, &mut |lsn, record| {
        records.push((lsn, record.to_vec()));
        Ok(())
    })?;
    log.set_file_bytes(64 << 10);
    Ok((log, records))
}

impl Client {
    /// Opens, verifies what came back, and writes until the script ends or the disk does.
    fn run(&mut self, disk: &Arc<SimDisk>, rng: &mut Rng, steps: u64) -> Result<()> {
        let (mut log, found) = open(disk, self.from)?;
        self.verify(found);
        for _ in 0..steps {
            match rng.below(10) {
                0..3 => {
                    let end = log.commit()?;
                    self.acknowledged.extend(self.in_flight.drain(..).flatten());
                    assert!(self.acknowledged.last().is_none_or(|(lsn, _)| *lsn < end));
                }
                3 if !self.acknowledged.is_empty() => {
                    // As after a manifest that names the new start.
                    self.from = self.acknowledged[rng.below(self.acknowledged.len() as u64) as usize].0;
                    let from = self.from;
                    self.acknowledged.retain(|(lsn, _)| *lsn >= from);
                    log.trim(from)?;
                }
                4 if !self.acknowledged.is_empty() => {
                    let (lsn, body) = &self.acknowledged[rng.below(self.acknowledged.len() as u64) as usize];
                    assert!(log.reader().read(*lsn, 100)?[..] == body[..]);
                }
                5 => self.request(&mut log, rng)?,
                _ => {
                    let len = if rng.below(6) == 0 { rng.below(30_000) } else { rng.below(900) };
                    let fill = rng.next_u64() as u8 | 1;
                    let body = vec![fill; len as usize];
                    // The position is known only if the append comes back; a failed one leaves no record.
                    let lsn = log.append(&body)?;
                    self.in_flight.push(vec![(lsn, body)]);
                }
            }
        }
        Ok(())
    }

    /// A request of several records, sometimes one that is refused before its last.
    fn request(&mut self, log: &mut Log, rng: &mut Rng) -> Result<()> {
        let bodies: Vec<Vec<u8>> =
            (0..2 + rng.below(4)).map(|_| vec![rng.next_u64() as u8 | 1; rng.below(9000) as usize]).collect();
        log.make_room(bodies.len(), bodies.iter().map(Vec::len).sum())?;
        let (number, is_refused, last) = (rng.next_u64(), rng.below(5) == 0, bodies.len() - 1);
        let mut records = Records::new();
        for (at, body) in bodies.into_iter().enumerate().filter(|(at, _)| !is_refused || *at < last) {
            records.push((log.append_part(number, &body, at == last)?, body));
        }
        if !is_refused {
            self.in_flight.push(records);
        }
        Ok(())
    }

    /// All that was acknowledged is there, and behind it at most what was under way, in order and whole.
    fn verify(&mut self, found: Records) {
        let sure = self.acknowledged.len();
        assert!(found.len() >= sure, "{} of {sure} acknowledged records", found.len());
        assert!(found[..sure] == self.acknowledged[..], "acknowledged records differ");
        let mut more = &found[sure..];
        for request in &self.in_flight {
            if more.is_empty() {
                break;
            }
            assert!(more.len() >= request.len() && more[..request.len()] == request[..], "a partial request");
            more = &more[request.len()..];
        }
        assert!(more.is_empty(), "records that nobody wrote");
        self.acknowledged = found;
        self.in_flight.clear();
    }
}

/// The machine stops at each operation of a script; then again at each of the first ones of the recovery.
#[test]
fn a_crash_at_every_operation_loses_nothing() {
    let mut counts = Counts::default();
    for seed in 0..12 {
        let disk = |faults| {
            let block = if seed % 2 == 0 { 512 } else { 4096 };
            Arc::new(SimDisk::with_block(seed, faults, block))
        };
        let whole = disk(Faults::default());
        Client::default().run(&whole, &mut Rng::new(seed), 50).unwrap();
        for operation in 1..=whole.operations() {
            let mut client = Client::default();
            let first = disk(Faults { operations_max: Some(operation), ..Faults::default() });
            let mut rng = Rng::new(seed);
            let _ = client.run(&first, &mut rng, 50);
            let mut survivor = Arc::new(first.crash());
            // The recovery may be cut short, too.
            for _ in 0..2 {
                let operations_max = Some(survivor.operations() + 1 + rng.below(20));
                survivor.set_faults(Faults { operations_max, ..Faults::default() });
                let _ = client.run(&survivor, &mut rng, 4);
                survivor = Arc::new(survivor.crash());
            }
            client.run(&survivor, &mut rng, 10).unwrap();
            let survivor = Arc::new(survivor.crash());
            client.run(&survivor, &mut rng, 0).unwrap();
            add(&mut counts, survivor.counts());
        }
    }
    assert!(counts.torn_writes > 60 && counts.lost_names > 100 && counts.lost_sectors > 500, "{counts:?}");
}

fn add(sum: &mut Counts, more: Counts) {
    sum.torn_writes += more.torn_writes;
    sum.lost_names += more.lost_names;
    sum.lost_sectors += more.lost_sectors;
    sum.failed_syncs += more.failed_syncs;
    sum.failed_writes += more.failed_writes;
}

/// After a failed write or sync all writes are refused; a restart, with or without a power loss, opens them again.
#[test]
fn a_failed_write_or_sync_closes_writes_until_a_restart() {
    let mut counts = Counts::default();
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut disk = Arc::new(SimDisk::new(seed, Faults::default()));
        let mut client = Client::default();
        for round in 0..4 {
            let (trigger, none) = (Trigger::chance(0.08), Trigger::default());
            let (write_fails, sync_fails) = if rng.chance(0.5) { (trigger, none) } else { (none, trigger) };
            disk.set_faults(Faults { write_fails, sync_fails, ..Faults::default() });
            let _ = client.run(&disk, &mut rng, 40);
            disk.set_faults(Faults::default());
            if rng.chance(0.5) {
                disk = Arc::new(disk.crash());
            }
            client.run(&disk, &mut rng, 3 + round).unwrap();
            if rng.chance(0.5) {
                disk = Arc::new(disk.crash());
            }
        }
        let disk = Arc::new(disk.crash());
        client.run(&disk, &mut rng, 0).unwrap();
        add(&mut counts, disk.counts());
    }
    assert!(counts.failed_syncs > 100 && counts.failed_writes > 100 && counts.lost_sectors > 100, "{counts:?}");
}

#[test]
fn the_message_of_a_failed_sync_says_what_to_do() {
    let disk = Arc::new(SimDisk::new(1, Faults::default()));
    let (mut log, _) = open(&disk, 0).unwrap();
    log.append(b"one").unwrap();
    log.commit().unwrap();
    let lsn = log.append(b"two").unwrap();
    disk.set_faults(Faults { sync_fails: Trigger::chance(1.0), ..Faults::default() });
    assert_eq!(log.commit().unwrap_err().kind(), Kind::Io);
    disk.set_faults(Faults::default());
    for error in [log.commit().unwrap_err(), log.append(b"three").unwrap_err()] {
        assert_eq!(error.kind(), Kind::Closed);
        assert!(error.message().contains("restart"), "{error}");
    }
    assert!(log.end() <= lsn);
    assert_eq!(log.reader().read(4096, 3).unwrap()[..], *b"one");
}

/// A full disk refuses the append that needs a new file and changes nothing else.
#[test]
fn a_full_disk_is_survived() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let disk = Arc::new(SimDisk::new(seed, Faults::default()));
        let full = |kib: u64| Faults { bytes_max: Some(kib << 10), ..Faults::default() };
        let mut client = Client::default();
        let (mut log, _) = open(&disk, 0).unwrap();
        disk.set_faults(full(150));
        let mut refused = 0;
        for step in 0..60 {
            let body = vec![step as u8; rng.below(9000) as usize];
            match log.append(&body) {
                Ok(lsn) => client.in_flight.push(vec![(lsn, body)]),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::NoSpace);
                    refused += 1;
                    if rng.below(4) == 0 {
                        disk.set_faults(full(disk_kib(&log) + 70));
                    }
                }
            }
            if rng.below(3) == 0 {
                log.commit().unwrap();
                client.acknowledged.extend(client.in_flight.drain(..).flatten());
            }
        }
        assert!(refused > 0);
        drop(log);
        disk.set_faults(Faults::default());
        let disk = Arc::new(disk.crash());
        client.run(&disk, &mut rng, 5).unwrap();
    }
}

fn disk_kib(log: &Log) -> u64 {
    log.bytes_on_disk() >> 10
}

/// Room for a group is made before its first record, so that a full disk never takes half of one.
#[test]
fn room_is_made_for_whole_groups() {
    let disk = Arc::new(SimDisk::new(1, Faults { bytes_max: Some(100 << 10), ..Faults::default() }));
    let (mut log, _) = open(&disk, 0).unwrap();
    log.make_room(50, 50 * 1000).unwrap();
    let end = log.end();
    for _ in 0..50 {
        log.append(&[1; 1000]).unwrap();
    }
    assert_eq!(log.end(), end);
    assert_eq!(log.make_room(50, 50 * 1000).unwrap_err().kind(), Kind::NoSpace);
    log.append(b"a small one still fits").unwrap();
    log.commit().unwrap();
    let records = open(&Arc::new(disk.crash()), 0).unwrap().1;
    assert_eq!(records.len(), 51);
}

/// Wherever a bit flips: nothing wrong is served, and what is lost is said. A repair then opens the log.
#[test]
fn a_flipped_bit_is_never_served() {
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let disk = Arc::new(SimDisk::new(seed, Faults::default()));
        let mut client = Client::default();
        client.run(&disk, &mut rng, 60).unwrap();
        let files = disk.list(Path::new(FOLDER)).unwrap();
        let Some(file) = files.get(rng.below(files.len() as u64) as usize) else { continue };
        let path = Path::new(FOLDER).join(&file.name);
        disk.flip_bit(&path, rng.below(file.bytes), rng.below(8) as u8).unwrap();
        let all: Records = client.acknowledged.drain(..).chain(client.in_flight.drain(..).flatten()).collect();
        match open(&disk, client.from) {
            Ok((_, found)) => {
                opened += 1;
                assert!(found[..] == all[..found.len()], "seed {seed}");
            }
            Err(error) => {
                refused += 1;
                assert!(error.kind() == Kind::Corrupt && error.message().contains(&file.name), "{error}");
                let account = Budget::new(16 << 20).root();
                let report =
                    repair(&*disk, Path::new(FOLDER), &account, client.from..client.from, false, false).unwrap();
                assert!(report.repaired, "{report}");
                let found = open(&disk, client.from).unwrap().1;
                assert!(found.len() as u64 == report.records && found[..] == all[..found.len()], "seed {seed}");
            }
        }
    }
    assert!(refused > 10 && opened > 10, "{refused} refused, {opened} opened");
}

/// Sectors lost, mixed up and overwritten, files cut, lengthened, lost and renamed: what is served is always what
/// was written, in order and from the start, or the log is refused and a repair makes it so.
#[test]
fn no_damage_makes_the_log_serve_what_was_not_written() {
    let (mut refused, mut whole, mut shorter) = (0, 0, 0);
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let disk = Arc::new(SimDisk::new(seed, Faults::default()));
        let mut client = Client::default();
        client.run(&disk, &mut rng, 50).unwrap();
        if rng.chance(0.5) {
            client.run(&disk, &mut rng, 20).unwrap();
        }
        for _ in 0..1 + rng.below(2) {
            damage(&disk, &mut rng);
        }
        let all: Records = client.acknowledged.drain(..).chain(client.in_flight.drain(..).flatten()).collect();
        let found = match open(&disk, client.from) {
            Ok((_, found)) => found,
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt, "seed {seed}: {error}");
                refused += 1;
                let account = Budget::new(16 << 20).root();
                let report =
                    repair(&*disk, Path::new(FOLDER), &account, client.from..client.from, false, false).unwrap();
                assert!(report.repaired, "seed {seed}: {report}");
                let again = repair(&*disk, Path::new(FOLDER), &account, client.from..client.from, false, true).unwrap();
                assert!(again.damage.is_none(), "seed {seed}: {report}, and then {again}");
                open(&disk, client.from).unwrap().1
            }
        };
        assert!(found[..] == all[..found.len()], "seed {seed}");
        *(if found.len() == all.len() { &mut whole } else { &mut shorter }) += 1;
        // It goes on from there.
        client.acknowledged = found;
        client.run(&disk, &mut rng, 20).unwrap();
        client.run(&Arc::new(disk.crash()), &mut rng, 5).unwrap();
    }
    assert!(refused > 40 && whole > 40 && shorter > 40, "{refused} refused, {whole} whole, {shorter} shorter");
}

fn damage(disk: &Arc<SimDisk>, rng: &mut Rng) {
    let folder = Path::new(FOLDER);
    let files = disk.list(folder).unwrap();
    if files.is_empty() {
        return;
    }
    let pick = |rng: &mut Rng| folder.join(&files[rng.below(files.len() as u64) as usize].name);
    let (path, other) = (pick(rng), pick(rng));
    let Ok(file) = disk.open(&path, Open::Write) else { return };
    let bytes = disk.len(&file).unwrap();
    let sectors = bytes / 512;
    // Most of a file is reserved space, so look near its start.
    let sector = |rng: &mut Rng| rng.below(sectors.clamp(1, 40)) * 512;
    let mut buffer = Aligned::new(&Budget::new(1 << 20).root(), 512).unwrap();
    match rng.below(8) {
        0 => disk.set_len(&file, rng.below(bytes + 1)).unwrap(),
        1 => disk.set_len(&file, bytes + rng.below(9000)).unwrap(),
        2 => disk.rename(&path, None).unwrap(),
        3 if path != other => disk.rename(&path, Some(&other)).unwrap(),
        _ if sectors == 0 => {}
        4 => disk.write(&file, sector(rng), &buffer).unwrap(),
        5 => {
            buffer.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
            disk.write(&file, sector(rng), &buffer).unwrap();
        }
        _ => {
            let at = sector(rng).min((sectors - 1) * 512);
            disk.read(&mut [ReadOp { file: &file, at, buf: &mut buffer }]).unwrap();
            disk.write(&file, sector(rng), &buffer).unwrap();
        }
    }
}

fn of_several_files(disk: &Arc<SimDisk>) -> Log {
    let (mut log, _) = open(disk, 0).unwrap();
    for _ in 0..8 {
        log.append(&[7; 40_000]).unwrap();
        log.commit().unwrap();
    }
    log
}

/// A file that could not be removed when the log was trimmed is removed by the next trim.
#[test]
fn what_a_trim_could_not_remove_is_left_to_the_next_one() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let mut log = of_several_files(&disk);
    let names = || disk.list(Path::new(FOLDER)).unwrap();
    let on_disk = || names().iter().map(|entry| entry.bytes).sum::<u64>();
    assert!(names().len() > 4);
    disk.set_faults(Faults { call_fails: Trigger::nth(disk.operations() + 2), ..Faults::default() });
    assert_eq!(log.trim(log.end()).unwrap_err().kind(), Kind::Io);
    disk.set_faults(Faults { call_fails: Trigger::chance(1.0), ..Faults::default() });
    _ = log.trim(log.end());
    disk.set_faults(Faults::default());
    assert!(log.bytes_on_disk() >= on_disk());
    log.trim(log.end()).unwrap();
    assert_eq!((names().len(), log.bytes_on_disk()), (1, on_disk()));
}

/// The same where a start removes what a crash brought back: it starts.
#[test]
fn what_a_start_could_not_remove_is_left_to_the_next_trim() {
    let disk = Arc::new(SimDisk::new(3, Faults::default()));
    let log = of_several_files(&disk);
    let end = log.end();
    drop(log);
    let names = || disk.list(Path::new(FOLDER)).unwrap().len();
    let before = names();
    assert!(before > 4);
    let mut log = (1..)
        .find_map(|call| {
            disk.set_faults(Faults { call_fails: Trigger::nth(disk.operations() + call), ..Faults::default() });
            open(&disk, end).ok()
        })
        .unwrap()
        .0;
    disk.set_faults(Faults::default());
    // But for the file that was made ahead.
    assert!(names() >= before - 1);
    log.trim(end).unwrap();
    assert_eq!(names(), 1);
}
