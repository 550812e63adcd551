//! A thread that can have no ring of its own still reads. Alone in its process, for it lowers the process's limit.

use ramekin_disk::{Aligned, Disk, Engine, Local, Open, ReadOp};
use ramekin_memory::Budget;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn reads_go_on_without_a_ring() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let Ok(disk) = Local::new(Engine::Uring, folder.path()) else { return };
    let file = disk.open(&folder.path().join("a"), Open::Create).unwrap();
    let mut page = Aligned::new(&Budget::new(1 << 20).root(), 128 * 512).unwrap();
    page.fill(9);
    disk.write(&file, 0, &page).unwrap();
    page.fill(0);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let read = || {
        let op = |(number, buf)| ReadOp { file: &file, at: number as u64 * 512, buf };
        let mut ops: Vec<_> = page.chunks_mut(512).enumerate().map(op).collect();
        disk.read(&mut ops).unwrap();
    };
    // A new thread has made no ring before the limit fell.
    std::thread::scope(|scope| scope.spawn(read).join().unwrap());
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(page.iter().all(|byte| *byte == 9));
}
