//! Every disk passes the same suite, so that a caller cannot tell them apart but by speed and faults.

#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

use ramekin_base::{Error, Kind, Result, Rng};
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_disk::{Aligned, Disk, Engine, Entry, File, Local, Open, ReadOp, Sync};
use ramekin_memory::Budget;
use std::path::Path;

fn buffer(len: usize) -> Aligned {
    Aligned::new(&Budget::new(1 << 30).root(), len).unwrap()
}

/// Bytes that tell their place: block `n` of a file is filled from `n` and `salt`.
fn filled(disk: &dyn Disk, blocks: usize, salt: u64) -> Aligned {
    let mut bytes = buffer(blocks * disk.block());
    for (number, block) in bytes.chunks_mut(disk.block()).enumerate() {
        let mut rng = Rng::new(salt << 32 | number as u64);
        block.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
    }
    bytes
}

/// Reads once as a batch of one and once as a part of a batch, since engines may tell these apart.
fn read(disk: &dyn Disk, file: &File, at: u64, buf: &mut [u8]) -> Result<()> {
    let alone = disk.read(&mut [ReadOp { file, at, buf }]);
    let copy = alone.is_ok().then(|| buf.to_vec());
    let empty = ReadOp { file, at: 0, buf: &mut [] };
    let together = disk.read(&mut [empty, ReadOp { file, at, buf }]);
    assert_eq!(alone.as_ref().err().map(Error::message), together.as_ref().err().map(Error::message));
    assert!(copy.is_none_or(|copy| copy == buf));
    together
}

/// Reads `count` random blocks as one batch and compares each with what was written.
fn read_random(disk: &dyn Disk, file: &File, written: &[u8], count: usize, rng: &mut Rng) {
    let block = disk.block();
    let mut room = buffer(count * block);
    let places: Vec<_> = (0..count).map(|_| rng.below((written.len() / block) as u64) as usize * block).collect();
    let read = |(buf, at): (_, &usize)| ReadOp { file, at: *at as u64, buf };
    let mut ops: Vec<_> = room.chunks_mut(block).zip(&places).map(read).collect();
    disk.read(&mut ops).unwrap();
    for (got, at) in room.chunks(block).zip(&places) {
        assert!(got == &written[*at..at + block], "wrong bytes at {at}");
    }
}

fn kind<T>(result: Result<T>) -> Kind {
    result.err().expect("an error").kind()
}

fn suite(disk: &dyn Disk, root: &Path) {
    for (name, test) in [
        ("opening", opening as fn(&dyn Disk, &Path)),
        ("bytes", bytes),
        ("alignment", alignment),
        ("ends", ends),
        ("errors_inside_a_batch", errors_inside_a_batch),
        ("names", names),
        ("lengths", lengths),
        ("threads", threads),
    ] {
        let folder = root.join(name);
        disk.make_folder(&folder).unwrap();
        test(disk, &folder);
    }
}

fn opening(disk: &dyn Disk, folder: &Path) {
    let path = folder.join("a");
    assert_eq!(kind(disk.open(&path, Open::Read)), Kind::NotFound);
    assert_eq!(kind(disk.open(&path, Open::Write)), Kind::NotFound);
    assert_eq!(kind(disk.open(&folder.join("none/a"), Open::Create)), Kind::NotFound);
    let file = disk.open(&path, Open::Create).unwrap();
    assert_eq!((file.path(), disk.len(&file).unwrap()), (path.as_path(), 0));
    assert_eq!(kind(disk.open(&path, Open::Create)), Kind::Exists);
    assert_eq!(kind(disk.open(folder, Open::Read)), Kind::Io);
    let page = filled(disk, 1, 1);
    disk.write(&file, 0, &page).unwrap();
    drop(file);
    let file = disk.open(&path, Open::Write).unwrap();
    disk.write(&file, page.len() as u64, &page).unwrap();
    disk.sync(Sync::File(&file)).unwrap();
    disk.sync(Sync::Folder(folder)).unwrap();
    let file = disk.open(&path, Open::Read).unwrap();
    assert_eq!(disk.len(&file).unwrap(), 2 * page.len() as u64);
    assert_eq!(kind(disk.write(&file, 0, &page)), Kind::Io);
    assert!(disk.set_len(&file, 0).is_err());
    let mut back = buffer(2 * page.len());
    read(disk, &file, 0, &mut back).unwrap();
    assert!(back[..page.len()] == *page && back[page.len()..] == *page);
    assert_eq!(kind(disk.sync(Sync::Folder(&folder.join("none")))), Kind::NotFound);
}

fn bytes(disk: &dyn Disk, folder: &Path) {
    let mut rng = Rng::new(2);
    let before = disk.counters();
    let written = filled(disk, 600, 3);
    let file = disk.open(&folder.join("a"), Open::Create).unwrap();
    // Three megabytes at 4096: past what a buffered file may keep behind it.
    disk.write(&file, 0, &written).unwrap();
    for count in [0, 1, 2, 63, 64, 65, 200, 513] {
        read_random(disk, &file, &written, count, &mut rng);
    }
    disk.sync(Sync::File(&file)).unwrap();
    read_random(disk, &file, &written, 100, &mut rng);
    let counters = disk.counters();
    assert_eq!(counters.reads - before.reads, 1008);
    assert_eq!(counters.read_bytes - before.read_bytes, 1008 * disk.block() as u64);
    assert_eq!((counters.writes - before.writes, counters.syncs - before.syncs), (1, 1));
    assert_eq!(counters.written_bytes - before.written_bytes, written.len() as u64);
    assert!(counters.batches - before.batches <= 9);

    // A block that is written again, and one batch over two files with ranges that overlap.
    let other = disk.open(&folder.join("b"), Open::Create).unwrap();
    let block = disk.block();
    let again = filled(disk, 2, 4);
    disk.write(&file, block as u64, &again).unwrap();
    disk.write(&other, 0, &again).unwrap();
    let (mut a, mut b, mut c) = (buffer(3 * block), buffer(2 * block), buffer(block));
    disk.read(&mut [
        ReadOp { file: &file, at: 0, buf: &mut a },
        ReadOp { file: &other, at: 0, buf: &mut b },
        ReadOp { file: &file, at: 2 * block as u64, buf: &mut c },
        ReadOp { file: &file, at: 0, buf: &mut [] },
    ])
    .unwrap();
    assert!(a[..block] == written[..block] && a[block..] == *again);
    assert!(*b == *again && *c == again[block..]);
    // A large read is one operation.
    let mut all = buffer(written.len());
    read(disk, &file, 0, &mut all).unwrap();
    assert!(all[3 * block..] == written[3 * block..]);
}

fn alignment(disk: &dyn Disk, folder: &Path) {
    let file = disk.open(&folder.join("a"), Open::Create).unwrap();
    let block = disk.block();
    assert!(block == 512 || block == 4096);
    let mut room = filled(disk, 4, 5);
    disk.write(&file, 0, &room).unwrap();
    assert_eq!(kind(disk.write(&file, 1, &room[..block])), Kind::Bug);
    assert_eq!(kind(disk.write(&file, 0, &room[..block - 1])), Kind::Bug);
    assert_eq!(kind(disk.write(&file, 0, &room[1..block + 1])), Kind::Bug);
    assert_eq!(kind(read(disk, &file, block as u64 / 2, &mut room[..block])), Kind::Bug);
    assert_eq!(kind(read(disk, &file, 0, &mut room[..block + 8])), Kind::Bug);
    assert_eq!(kind(read(disk, &file, 0, &mut room[8..block + 8])), Kind::Bug);
    // A block inside a buffer is aligned well enough.
    let old = room[..block].to_vec();
    disk.write(&file, block as u64, &room[3 * block..]).unwrap();
    read(disk, &file, 0, &mut room[block..2 * block]).unwrap();
    assert!(room[block..2 * block] == old);
    read(disk, &file, block as u64, &mut room[..block]).unwrap();
    assert!(room[..block] == room[3 * block..]);
}

fn ends(disk: &dyn Disk, folder: &Path) {
    let file = disk.open(&folder.join("a"), Open::Create).unwrap();
    let block = disk.block();
    let mut room = buffer(4 * block);
    assert_eq!(kind(read(disk, &file, 0, &mut room[..block])), Kind::Corrupt);
    disk.write(&file, 0, &filled(disk, 3, 6)).unwrap();
    for (at, blocks) in [(3, 1), (2, 2), (0, 4), (1 << 30, 1)] {
        assert_eq!(kind(read(disk, &file, at * block as u64, &mut room[..blocks * block])), Kind::Corrupt, "{at}");
    }
    // An end that is not even a whole sector.
    disk.set_len(&file, 2 * block as u64 + 100).unwrap();
    read(disk, &file, 0, &mut room[..2 * block]).unwrap();
    assert_eq!(kind(read(disk, &file, 2 * block as u64, &mut room[..block])), Kind::Corrupt);
    let error = read(disk, &file, 0, &mut room).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.message().contains(&format!("{} of {} bytes", 2 * block + 100, 4 * block)), "{error}");
    assert!(error.message().contains(&*file.path().to_string_lossy()), "{error}");
}

fn errors_inside_a_batch(disk: &dyn Disk, folder: &Path) {
    let file = disk.open(&folder.join("a"), Open::Create).unwrap();
    let block = disk.block();
    let written = filled(disk, 200, 7);
    disk.write(&file, 0, &written).unwrap();
    for bad in [0, 1, 31, 64, 100, 199] {
        let mut room = buffer(200 * block);
        let place = |number: usize| if number >= bad && number % 50 == bad % 50 { 1000 + number } else { number };
        let read = |(number, buf)| ReadOp { file: &file, at: (place(number) * block) as u64, buf };
        let mut ops: Vec<_> = room.chunks_mut(block).enumerate().map(read).collect();
        let error = disk.read(&mut ops).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        // Of several bad operations the first is named, whichever came back first.
        assert!(error.message().contains(&format!("at offset {};", (1000 + bad) * block)), "{bad}: {error}");
        drop(ops);
        // Nobody writes into the memory any more, and the next batch is whole.
        room.fill(0x11);
        read_random(disk, &file, &written, 130, &mut Rng::new(bad as u64));
        assert!(room.iter().all(|byte| *byte == 0x11));
    }
}

fn names(disk: &dyn Disk, folder: &Path) {
    assert_eq!(kind(disk.list(&folder.join("none"))), Kind::NotFound);
    assert_eq!(disk.list(folder).unwrap(), []);
    let before = disk.counters().syncs;
    disk.make_folder(&folder.join("d/e/f")).unwrap();
    assert!(disk.counters().syncs >= before + 3, "each name is durable");
    disk.make_folder(&folder.join("d/e")).unwrap();
    let block = disk.block();
    let pages: Vec<_> = (1..=3).map(|blocks| filled(disk, blocks, 8)).collect();
    for (name, page) in ["b", "a", "c"].iter().zip(&pages) {
        let file = disk.open(&folder.join(name), Open::Create).unwrap();
        disk.write(&file, 0, page).unwrap();
    }
    let entry = |name: &str, blocks: usize, folder| Entry { name: name.into(), bytes: (blocks * block) as u64, folder };
    let all = [entry("a", 2, false), entry("b", 1, false), entry("c", 3, false), entry("d", 0, true)];
    assert_eq!(disk.list(folder).unwrap(), all);

    // Files that are open stay readable under whatever name, and under none.
    let (a, b) = (disk.open(&folder.join("a"), Open::Read).unwrap(), disk.open(&folder.join("b"), Open::Read).unwrap());
    disk.rename(&folder.join("a"), Some(&folder.join("b"))).unwrap();
    disk.rename(&folder.join("b"), Some(&folder.join("d/moved"))).unwrap();
    disk.rename(&folder.join("c"), None).unwrap();
    disk.sync(Sync::Folder(folder)).unwrap();
    assert_eq!(disk.list(folder).unwrap(), [entry("d", 0, true)]);
    assert_eq!(disk.list(&folder.join("d")).unwrap(), [entry("e", 0, true), entry("moved", 2, false)]);
    for (file, page) in [(&a, &pages[1]), (&b, &pages[0])] {
        let mut back = buffer(page.len());
        read(disk, file, 0, &mut back).unwrap();
        assert!(*back == **page);
    }
    assert_eq!(kind(disk.rename(&folder.join("a"), Some(&folder.join("b")))), Kind::NotFound);
    assert_eq!(kind(disk.rename(&folder.join("a"), None)), Kind::NotFound);
    assert!(disk.rename(&folder.join("d"), None).is_err(), "a folder that is not empty");
    for name in ["d/moved", "d/e/f", "d/e", "d"] {
        disk.rename(&folder.join(name), None).unwrap();
    }
    assert_eq!(disk.list(folder).unwrap(), []);
}

fn lengths(disk: &dyn Disk, folder: &Path) {
    let file = disk.open(&folder.join("a"), Open::Create).unwrap();
    let block = disk.block();
    let written = filled(disk, 4, 9);
    disk.write(&file, 0, &written).unwrap();
    let mut room = buffer(8 * block);
    for (len, kept) in [(8, 4), (2, 2), (8, 2), (8, 2)] {
        disk.set_len(&file, (len * block) as u64).unwrap();
        assert_eq!(disk.len(&file).unwrap(), (len * block) as u64);
        read(disk, &file, 0, &mut room[..len * block]).unwrap();
        assert!(room[..kept * block] == written[..kept * block]);
        assert!(room[kept * block..len * block].iter().all(|byte| *byte == 0), "{len} {kept}");
    }
    let space = disk.space(folder).unwrap();
    assert!(space.free <= space.total && space.total > 0);
    // A hole reads as zeros.
    disk.write(&file, 20 * block as u64, &written[..block]).unwrap();
    read(disk, &file, 10 * block as u64, &mut room).unwrap();
    assert!(room.iter().all(|byte| *byte == 0));
    assert_eq!(disk.len(&file).unwrap(), 21 * block as u64);
}

fn threads(disk: &dyn Disk, folder: &Path) {
    let written = filled(disk, 300, 10);
    let file = disk.open(&folder.join("a"), Open::Create).unwrap();
    disk.write(&file, 0, &written).unwrap();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (file, written) = (&file, &written);
            scope.spawn(move || {
                let mut rng = Rng::new(number);
                for _ in 0..40 {
                    read_random(disk, file, written, 1 + rng.below(150) as usize, &mut rng);
                }
            });
        }
        // Meanwhile another file grows: readers and a writer do not meet.
        let other = disk.open(&folder.join("b"), Open::Create).unwrap();
        for number in 0..50 {
            disk.write(&other, number * written.len() as u64, &written).unwrap();
        }
        disk.sync(Sync::File(&other)).unwrap();
    });
}

fn local(engine: Engine, root: &str) {
    let folder = tempfile::tempdir_in(root).unwrap();
    match Local::new(engine, folder.path()) {
        Ok(disk) => suite(&disk, folder.path()),
        Err(error) => {
            // Only where the kernel forbids it is an engine left out.
            assert_eq!((engine, error.kind()), (Engine::Uring, Kind::Unsupported), "{error}");
            eprintln!("left out: {error}");
            return;
        }
    }
    let folder = tempfile::tempdir_in(root).unwrap();
    suite(&Local::new(engine, folder.path()).unwrap().buffered(), folder.path());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 8, "the trial file is gone");
}

#[test]
fn uring() {
    local(Engine::Uring, "/tmp");
}

#[test]
fn pread() {
    local(Engine::Pread, "/tmp");
}

#[test]
fn mmap() {
    local(Engine::Mmap, "/tmp");
}

#[test]
fn in_memory_file_system() {
    if Path::new("/dev/shm").is_dir() {
        local(Engine::Uring, "/dev/shm");
        local(Engine::Pread, "/dev/shm");
    }
}

#[test]
fn simulated() {
    suite(&SimDisk::new(1, Faults::default()), Path::new("/data"));
    suite(&SimDisk::with_block(1, Faults::default(), 4096), Path::new("/data"));
}

#[test]
fn a_file_belongs_to_its_disk() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let local = Local::new(Engine::Pread, folder.path()).unwrap();
    let sim = SimDisk::new(1, Faults::default());
    let file = sim.open(Path::new("/a"), Open::Create).unwrap();
    let mut page = buffer(4096);
    assert_eq!(kind(local.write(&file, 0, &page)), Kind::Bug);
    assert_eq!(kind(SimDisk::new(1, Faults::default()).write(&file, 0, &page)), Kind::Bug);
    for engine in [Engine::Uring, Engine::Pread, Engine::Mmap] {
        if let Ok(disk) = Local::new(engine, folder.path()) {
            assert_eq!(kind(read(&disk, &file, 0, &mut page)), Kind::Bug);
        }
    }
    let file = local.open(&folder.path().join("a"), Open::Create).unwrap();
    assert_eq!(kind(sim.write(&file, 0, &page)), Kind::Bug);
}
