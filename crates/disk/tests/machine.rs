//! What the machine allows: the probe and the lock of a folder.

use ramekin_base::Kind;
use ramekin_disk::{Aligned, Engine, FolderLock, Open, Sync, probe};
use ramekin_memory::Budget;

#[test]
fn the_probe_says_what_it_chose() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    for wanted in [None, Some(Engine::Uring), Some(Engine::Pread), Some(Engine::Mmap)] {
        let (disk, line) = probe(folder.path(), wanted).unwrap();
        assert!(line.contains(disk.engine_name()) && line.contains(&format!("blocks of {}", disk.block())), "{line}");
        if let Some(Engine::Pread | Engine::Mmap) = wanted {
            assert_eq!(disk.engine_name(), wanted.unwrap().name());
        }
        println!("{line}");
    }
    let missing = probe(&folder.path().join("none"), None).err().unwrap();
    assert_eq!(missing.kind(), Kind::NotFound);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn engines_have_names() {
    for engine in [Engine::Uring, Engine::Pread, Engine::Mmap] {
        assert_eq!(engine.to_string().parse::<Engine>().unwrap(), engine);
    }
    assert!("aio".parse::<Engine>().unwrap_err().message().contains("choose"));
}

#[test]
fn a_folder_has_one_owner() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let lock = FolderLock::take(folder.path()).unwrap();
    let error = FolderLock::take(folder.path()).err().unwrap();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.message().contains(&format!("process {}", std::process::id())), "{error}");
    drop(lock);
    drop(FolderLock::take(folder.path()).unwrap());
    assert_eq!(FolderLock::take(&folder.path().join("none")).err().unwrap().kind(), Kind::NotFound);
}

/// Its folder may be gone: what is durable in it is lost all the same.
#[test]
fn a_file_that_was_removed_cannot_be_synced() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let (disk, _) = probe(folder.path(), None).unwrap();
    let path = folder.path().join("a");
    let file = disk.open(&path, Open::Create).unwrap();
    let page = Aligned::new(&Budget::new(1 << 20).root(), 4096).unwrap();
    disk.write(&file, 0, &page).unwrap();
    disk.sync(Sync::File(&file)).unwrap();
    disk.rename(&path, Some(&folder.path().join("b"))).unwrap();
    disk.sync(Sync::File(&file)).unwrap();
    disk.rename(&folder.path().join("b"), None).unwrap();
    disk.write(&file, 0, &page).unwrap();
    let error = disk.sync(Sync::File(&file)).unwrap_err();
    assert!(error.kind() == Kind::Io && error.message().contains("was removed"), "{error}");
}
