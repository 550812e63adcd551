//! A small file that bbolt 1.4.3 wrote, with pages of 1 KiB: of 200 records under numbers in bucket `many` each third was deleted, one
//! is of several pages; `small` and `empty` lie inline.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

use ramekin_bolt::{FileSource, Item, Reader, Source};
use ramekin_disk::{Disk, Engine, Local};
use ramekin_memory::Budget;
use std::path::Path;
use std::sync::Arc;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/written-by-bbolt.db");

fn records(reader: &mut Reader<impl Source>, bucket: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bucket = reader.bucket(bucket).unwrap().unwrap();
    let (mut walk, mut all, mut value) = (reader.walk(bucket).unwrap(), Vec::new(), Vec::new());
    while let Some(Item { key, at, len, .. }) = walk.next().unwrap() {
        let key = key.to_vec();
        walk.value(at, len, &mut value).unwrap();
        all.push((key, value.clone()));
    }
    all
}

fn check(mut reader: Reader<impl Source>) {
    let number = |number: u64| (number.to_be_bytes().to_vec(), format!("value {number}").into_bytes());
    let mut many: Vec<_> = (0..200).filter(|at| at % 3 != 0).map(number).collect();
    many.push((b"large".to_vec(), vec![0; 2000]));
    assert_eq!(records(&mut reader, "many"), many);
    let small = [("a", "1"), ("b", ""), ("c", "3")];
    assert_eq!(records(&mut reader, "small"), small.map(|(key, value)| (key.into(), value.into())));
    assert_eq!(records(&mut reader, "empty"), []);
}

#[test]
fn a_file_of_bbolt_is_read() {
    let (budget, folder) = (Budget::new(1 << 20), tempfile::tempdir().unwrap());
    let account = budget.root();
    let disk: Arc<dyn Disk> = Arc::new(Local::new(Engine::Pread, folder.path()).unwrap());
    // Whole blocks of it, as a file of etcd has them.
    let mut bytes = std::fs::read(FILE).unwrap();
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let path = folder.path().join("file");
    std::fs::write(&path, [&bytes[..], &[7; 32]].concat()).unwrap();
    let source = FileSource::open(&disk, Path::new(&path), &account).unwrap();
    assert_eq!(source.len(), bytes.len() as u64);
    assert!(account.used() >= FileSource::BYTES);
    check(Reader::open(source, &account).unwrap());
    assert_eq!(account.used(), 0);
    check(Reader::open(&bytes[..], &account).unwrap());
    // Either of its two heads is enough.
    for page in [0, 1024] {
        let mut bytes = bytes.clone();
        bytes[page + 20] ^= 1;
        assert!(Reader::open(&bytes[..], &account).is_ok());
        bytes[1024 - page + 20] ^= 1;
        assert!(Reader::open(&bytes[..], &account).is_err());
    }
}
