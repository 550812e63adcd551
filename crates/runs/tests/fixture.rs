//! A file of a run of version 1 opens for ever, with all that was written into it.
//!
//! `UPDATE_FIXTURES=1` writes it anew, which is only right before its version was released. A new version gets a file of its own.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error, and reads the tree")]

use ramekin_disk::{Disk, Engine, Local, Sync};
use ramekin_memory::{Account, Budget};
use ramekin_pages::Pages;
use ramekin_runs::{Entry, Run, RunFile, RunWriter, Shape, Value, View};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file's own pages say its name.
const NAME: &str = "000001.run";
const SHAPE: Shape = Shape { weighted: true, filtered: true, ..Shape::PLAIN };
const BIG: usize = 1500;

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/run-1").join(NAME)
}

/// What was written: every kind of value, keys with common beginnings, weights of both signs.
fn records() -> Vec<(Vec<u8>, Vec<u8>, i64)> {
    let key = |number: u32| format!("key/{:02}/{number:04}", number / 16).into_bytes();
    (0..100).map(|number| (key(number), vec![number as u8; number as usize % 40], i64::from(number % 5) - 1)).collect()
}

fn entry<'a>((key, value, weight): &'a (Vec<u8>, Vec<u8>, i64)) -> Entry<'a> {
    let value = match key[key.len() - 1] {
        b'3' => Value::Deleted,
        b'9' => Value::DeletedTo(b"key/99"),
        _ => Value::Inline(value),
    };
    Entry { key, value, weight: *weight, first: key[key.len() - 1] % 2 == 0 }
}

fn big() -> Vec<u8> {
    (0..BIG).map(|at| (at * 7) as u8).collect()
}

fn pages(folder: &Path) -> (Arc<dyn Disk>, Pages, Account) {
    let disk: Arc<dyn Disk> = Arc::new(Local::new(Engine::Pread, folder).unwrap());
    let budget = Budget::new(64 << 20);
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
    (disk, pages, budget.root().child("runs", ""))
}

fn write(folder: &Path) {
    let (disk, pages, account) = pages(folder);
    let mut name = || folder.join(NAME);
    let mut writer = RunWriter::new(&pages, &account, SHAPE, &mut name);
    let big = big();
    writer.push(&Entry { key: b"big", value: Value::Inline(&big), weight: 1, first: true }).unwrap();
    records().iter().for_each(|record| writer.push(&entry(record)).unwrap());
    writer.finish().unwrap();
    disk.sync(Sync::Folder(folder)).unwrap();
}

#[test]
fn a_file_of_version_1_opens_with_all_that_is_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAME);
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        write(folder.path());
        std::fs::create_dir_all(kept().parent().unwrap()).unwrap();
        std::fs::copy(&path, kept()).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::copy(kept(), &path).unwrap();
    let (_disk, pages, account) = pages(folder.path());
    let file = RunFile::open(&pages, &path, b"", &account).unwrap();
    let records = records();
    assert_eq!((file.records(), file.is_weighted()), (records.len() as u64 + 1, true));
    assert_eq!((file.first_key(), file.last_key()), (&b"big"[..], &records[records.len() - 1].0[..]));
    let view = View::new(Vec::new(), Arc::from([Arc::new(Run::new(vec![file]).unwrap())]));
    let value = view.get(&pages, b"big", |found| Ok(found.big().unwrap())).unwrap().unwrap();
    let mut read = vec![0; value.len() as usize];
    value.read(&pages, 0, &mut read).unwrap();
    assert_eq!(read, big());
    let mut below = 1;
    for record in &records {
        let wanted = entry(record);
        let same = view.get(&pages, &record.0, |found| Ok(found.entry == wanted)).unwrap();
        assert_eq!(same, Some(true), "{:?}", String::from_utf8_lossy(&record.0));
        assert_eq!(view.weight_below(&pages, &record.0).unwrap(), below);
        below += record.2;
    }
    assert!(view.get(&pages, b"key/00/9999", |_| Ok(())).unwrap().is_none());
}
