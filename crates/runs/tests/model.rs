//! Drawn histories of a tree with weights beside a plain map: what is found, counted, ranked and selected is the same after
//! every step, also in views that were pinned before.
//!
//! ```text
//!   put · rewrite · delete · drop a number · flush · merge of neighbours · one file of a merge · crash · pin
//!                                  after each: get, rank, count, select, ranges both ways = BTreeMap
//! ```
//!
//! `RUNS_SEEDS=10000` draws so many histories.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at any error")]

use ramekin_base::Result;
use ramekin_base::rng::Rng;
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_disk::{Disk, Sync};
use ramekin_memory::{Account, Budget};
use ramekin_pages::Pages;
use ramekin_runs::compaction::{due, flush, flush_bytes, merge_file};
use ramekin_runs::{Entry, INLINE_MAX, Memtable, Root, Run, RunFile, Shape, Value, View};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SEEDS: u64 = 150;
const STEPS: usize = 60;
const MEMTABLE: usize = 4 << 20;

/// Live keys with their values; the weight of a value is its first byte.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A record as a log holds it.
#[derive(Clone)]
struct Logged {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
    weight: i64,
    first: bool,
}

impl Logged {
    fn entry(&self) -> Entry<'_> {
        let value = match (&self.value, &self.to) {
            (Some(value), _) => Value::Inline(value),
            (None, Some(end)) => Value::DeletedTo(end),
            (None, None) => Value::Deleted,
        };
        Entry { key: &self.key, value, weight: self.weight, first: self.first }
    }
}

/// A file of a run as a manifest names it.
type Named = (PathBuf, Vec<u8>);

struct Tree {
    disk: Arc<SimDisk>,
    budget: Budget,
    account: Account,
    pages: Pages,
    shape: Shape,
    memtable: Memtable,
    root: Arc<Root>,
    runs: Vec<Arc<Run>>,
    log: Vec<Logged>,
    made: Cell<u64>,
}

fn folder() -> &'static Path {
    Path::new("/data")
}

fn open(disk: &Arc<SimDisk>) -> (Budget, Account, Pages) {
    let budget = Budget::new(64 << 20);
    let account = budget.root().child("runs", "");
    let disk: Arc<dyn Disk> = disk.clone();
    let pages = Pages::new(disk, budget.root().child("pages", ""), &budget, 1 << 30).unwrap();
    (budget, account, pages)
}

impl Tree {
    fn new(seed: u64, shape: Shape) -> Self {
        let disk = Arc::new(SimDisk::new(seed, Faults::default()));
        disk.make_folder(folder()).unwrap();
        let (budget, account, pages) = open(&disk);
        let mut memtable = Memtable::new(MEMTABLE, &account).unwrap();
        let root = memtable.publish();
        Self {
            disk,
            budget,
            account,
            pages,
            shape,
            memtable,
            root,
            runs: Vec::new(),
            log: Vec::new(),
            made: Cell::new(0),
        }
    }

    fn view(&self) -> View {
        View::new(vec![self.root.clone()], self.runs.clone().into())
    }

    /// What the newest record of a key says: its weight if it is live; `None`: there is no record.
    fn weigh(&self, key: &[u8]) -> Option<i64> {
        let weigh = |value: &Value<'_>, big: Option<u8>| match value {
            Value::Inline(value) => i64::from(value[0]),
            Value::Big(_) => i64::from(big.unwrap()),
            _ => 0,
        };
        if let Some(entry) = self.memtable.get(key) {
            return Some(weigh(&entry.value, None));
        }
        let read = |found: &ramekin_runs::Found<'_>| {
            let mut byte = [0];
            found.big().map(|big| big.read(&self.pages, 0, &mut byte)).transpose()?;
            Ok(weigh(&found.entry.value, Some(byte[0])))
        };
        self.view().get(&self.pages, key, read).unwrap()
    }

    fn write(&mut self, record: Logged) {
        self.memtable.put(&record.entry()).unwrap();
        self.memtable.keep_unit();
        self.log.push(record);
        self.root = self.memtable.publish();
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let old = self.weigh(key);
        let weight = i64::from(value[0]) - old.unwrap_or(0);
        let value = Some(value.to_vec());
        self.write(Logged { key: key.to_vec(), value, to: None, weight, first: old.is_none() });
    }

    fn delete(&mut self, key: &[u8]) {
        let old = self.weigh(key);
        let (weight, first) = (-old.unwrap_or(0), old.is_none());
        self.write(Logged { key: key.to_vec(), value: None, to: None, weight, first });
    }

    fn drop_number(&mut self, number: u8) {
        let to = Some(vec![number + 1]);
        self.write(Logged { key: vec![number], value: None, to, weight: 0, first: false });
    }

    fn flush(&mut self) {
        let (mut name, bottom) = (namer(&self.made), self.runs.is_empty());
        let paths = flush(&self.pages, &self.account, &self.root, (self.shape, bottom), &mut name).unwrap();
        self.disk.sync(Sync::Folder(folder())).unwrap();
        let files = paths.iter().map(|path| self.file(path, &[])).collect();
        self.runs.push(Arc::new(Run::new(files).unwrap()));
        self.memtable = Memtable::new(MEMTABLE, &self.account).unwrap();
        self.root = self.memtable.publish();
        self.log.clear();
    }

    fn file(&self, path: &Path, from: &[u8]) -> Arc<RunFile> {
        RunFile::open(&self.pages, path, from, &self.account).unwrap()
    }

    /// Merges neighbours; at the bottom file by file, and perhaps not to the end.
    fn merge(&mut self, range: std::ops::Range<usize>, files_max: usize) {
        let bottom = range.start == 0;
        let mut inputs: Vec<Arc<Run>> = self.runs[range.clone()].to_vec();
        let mut outputs = Vec::new();
        loop {
            let mut name = namer(&self.made);
            let step = merge_file(&self.pages, &self.account, &inputs, (self.shape, bottom), &mut name).unwrap();
            self.disk.sync(Sync::Folder(folder())).unwrap();
            outputs.extend(step.file.map(|path| self.file(&path, &[])));
            let Some(next) = step.next else {
                inputs.clear();
                break;
            };
            inputs = inputs.iter().map(|run| Arc::new(run.cut(&self.pages, &next, &self.account).unwrap())).collect();
            if bottom && outputs.len() >= files_max {
                break;
            }
        }
        // What is left of the bottom goes on after what was written of it.
        if bottom && !inputs.is_empty() {
            outputs.extend_from_slice(inputs.remove(0).files());
        }
        let merged = Arc::new(Run::new(outputs).unwrap());
        self.runs.splice(range, [merged].into_iter().chain(inputs).filter(|run| !run.files().is_empty()));
    }

    /// Opens everything again from what is durable: the names of the files, and the log.
    fn crash(&mut self) {
        let named = |run: &Arc<Run>| -> Vec<Named> {
            run.files().iter().map(|file| (file.path().to_owned(), file.from().to_vec())).collect()
        };
        let manifest: Vec<Vec<Named>> = self.runs.iter().map(named).collect();
        let disk = Arc::new(self.disk.crash());
        let (budget, account, pages) = open(&disk);
        let mut memtable = Memtable::new(MEMTABLE, &account).unwrap();
        for record in &self.log {
            memtable.put(&record.entry()).unwrap();
        }
        memtable.keep_unit();
        let (made, shape) = (self.made.clone(), self.shape);
        let (root, log) = (memtable.publish(), std::mem::take(&mut self.log));
        *self = Self { disk, budget, account, pages, shape, memtable, root, runs: Vec::new(), log, made };
        let open = |run: Vec<Named>| {
            let files = run.iter().map(|(path, from)| self.file(path, from)).collect();
            Arc::new(Run::new(files).unwrap())
        };
        self.runs = manifest.into_iter().map(open).collect();
    }
}

fn namer(made: &Cell<u64>) -> impl FnMut() -> PathBuf {
    move || {
        made.set(made.get() + 1);
        folder().join(format!("run-{}", made.get()))
    }
}

/// What a view answers is what the map says.
fn same(tree: &Tree, view: &View, model: &Model, numbers: &[u8], rng: &mut Rng) -> Result<()> {
    let pages = &tree.pages;
    for number in numbers {
        let (start, end) = (vec![*number], vec![number + 1]);
        let inside = || model.range(start.clone()..end.clone()).filter(|(key, _)| key.len() > 1);
        let total: i64 = inside().map(|(_, value)| i64::from(value[0])).sum();
        assert_eq!(view.count(pages, &start, &end)?, total, "live elements of number {number}");
        let key = draw_key(rng, *number);
        let below: i64 = inside().filter(|(at, _)| **at < key).map(|(_, value)| i64::from(value[0])).sum();
        assert_eq!(view.count(pages, &start, &key)?, below, "elements below {key:?}");
        let nth = rng.below(total as u64 + 2) as i64;
        let mut left = nth;
        let expected = inside().find_map(|(key, value)| {
            left -= i64::from(value[0]);
            (left < 0).then(|| (key.clone(), left + i64::from(value[0])))
        });
        assert_eq!(
            view.select(pages, &tree.account, (&start, &end), nth)?,
            expected,
            "element {nth} of number {number}"
        );
        walk(tree, view, &inside().collect::<Vec<_>>(), (&start, &end), rng)?;
    }
    let keys: Vec<Vec<u8>> = (0..8).map(|_| draw_any(rng, numbers)).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    view.get_many(pages, &keys, &mut |at, found| {
        let live = found.map(|found| value_of(tree, found)).transpose()?.flatten();
        assert_eq!(live.as_ref(), model.get(keys[at]), "{:?}", keys[at]);
        let alone = view.get(pages, keys[at], |found| value_of(tree, found))?.flatten();
        assert_eq!(alone, live);
        Ok(())
    })
}

fn value_of(tree: &Tree, found: &ramekin_runs::Found<'_>) -> Result<Option<Vec<u8>>> {
    match (found.entry.value, found.big()) {
        (Value::Inline(value), _) => Ok(Some(value.to_vec())),
        (_, Some(big)) => {
            let mut value = vec![0; big.len() as usize];
            big.read(&tree.pages, 0, &mut value)?;
            Ok(Some(value))
        }
        _ => Ok(None),
    }
}

/// A walk from a drawn key to the end of the number, one way or the other.
fn walk(
    tree: &Tree,
    view: &View,
    expected: &[(&Vec<u8>, &Vec<u8>)],
    (start, end): (&[u8], &[u8]),
    rng: &mut Rng,
) -> Result<()> {
    let from = draw_key(rng, start[0]);
    let mut range = view.range(&tree.pages, &tree.account)?;
    let forward = rng.chance(0.5);
    if forward {
        range.seek(&from)?
    } else {
        range.seek_back(Some(&from))?
    }
    let mut seen = Vec::new();
    while let Some(found) = range.entry()?.filter(|it| it.entry.key < end && it.entry.key > start) {
        if let Some(value) = value_of(tree, &found)? {
            assert_eq!(found.entry.weight, i64::from(value[0]), "the weights of a key are its live elements");
            seen.push((found.entry.key.to_vec(), value));
        } else {
            assert_eq!(found.entry.weight, 0, "the weights of a key that is gone");
        }
        range.advance()?;
    }
    if !forward {
        seen.reverse();
    }
    let inside = |key: &&(&Vec<u8>, &Vec<u8>)| (*key.0 >= from) == forward;
    let expected: Vec<_> =
        expected.iter().filter(inside).map(|(key, value)| ((*key).clone(), (*value).clone())).collect();
    assert_eq!(seen, expected);
    Ok(())
}

fn draw_key(rng: &mut Rng, number: u8) -> Vec<u8> {
    let mut key = vec![number];
    key.extend((0..1 + rng.below(3)).map(|_| b'a' + rng.below(5) as u8));
    // Some keys are long, so that indexes have several levels.
    if rng.chance(0.1) {
        key.extend(vec![b'x'; 200 + rng.below(400) as usize]);
    }
    key
}

fn draw_any(rng: &mut Rng, numbers: &[u8]) -> Vec<u8> {
    let number = numbers[rng.below(numbers.len() as u64) as usize];
    draw_key(rng, number)
}

fn draw_value(rng: &mut Rng, all_one: bool) -> Vec<u8> {
    let len = match rng.below(20) {
        0 => INLINE_MAX as u64 + rng.below(6000),
        1..=4 => 1 + rng.below(600),
        _ => 1 + rng.below(20),
    };
    let weight = if all_one { 1 } else { 1 + rng.below(4) as u8 };
    let mut value = vec![rng.below(256) as u8; len as usize];
    value[0] = weight;
    value
}

/// All in one run: no tombstone is left, and nothing of a number that was dropped.
fn only_what_lives_is_left(tree: &mut Tree, model: &Model) -> Result<()> {
    tree.flush();
    tree.merge(0..tree.runs.len(), usize::MAX);
    let mut range = tree.view().range(&tree.pages, &tree.account)?;
    range.seek(&[])?;
    let mut left = Vec::new();
    while let Some(found) = range.entry()? {
        left.push((found.entry.key.to_vec(), value_of(tree, &found)?));
        range.advance()?;
    }
    let expected: Vec<_> = model.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    assert_eq!(left, expected);
    Ok(())
}

fn history(seed: u64) {
    let mut rng = Rng::new(seed);
    let file_bytes = [4 << 10, 16 << 10, 1 << 20][rng.below(3) as usize];
    let shape = Shape { weighted: true, filtered: rng.chance(0.5), file_bytes, ..Shape::PLAIN };
    let all_one = rng.chance(0.5);
    let mut tree = Tree::new(seed, shape);
    let (mut model, mut pinned) = (Model::new(), Vec::new());
    let (mut numbers, mut next_number) = (vec![1, 2], 3u8);
    for _ in 0..STEPS {
        match rng.below(100) {
            0..60 => {
                for _ in 0..1 + rng.below(30) {
                    let key = draw_any(&mut rng, &numbers);
                    if rng.chance(0.65) {
                        let value = draw_value(&mut rng, all_one);
                        tree.put(&key, &value);
                        model.insert(key, value);
                    } else {
                        tree.delete(&key);
                        model.remove(&key);
                    }
                }
            }
            60..75 => tree.flush(),
            75..85 if tree.runs.len() > 1 => {
                let from = rng.below(tree.runs.len() as u64 - 1) as usize;
                let to = from + 2 + rng.below((tree.runs.len() - from - 1) as u64) as usize;
                tree.merge(from..to, 1 + rng.below(4) as usize);
            }
            85..90 => {
                let sizes: Vec<u64> = tree.runs.iter().map(|run| run.bytes()).collect();
                if let Some(range) = due(&sizes, rng.chance(0.5)) {
                    tree.merge(range, usize::MAX);
                }
            }
            90..93 => {
                let at = rng.below(numbers.len() as u64) as usize;
                let number = numbers[at];
                // Numbers are never used again.
                numbers[at] = next_number;
                next_number += 1;
                tree.drop_number(number);
                model.retain(|key, _| key[0] != number);
            }
            93..96 => {
                // Views do not outlive the process.
                pinned.clear();
                tree.crash();
            }
            _ => pinned.push((tree.view(), model.clone(), numbers.clone())),
        }
        if pinned.len() > 3 {
            pinned.remove(0);
        }
        same(&tree, &tree.view(), &model, &numbers, &mut rng).unwrap();
        for (view, model, numbers) in &pinned {
            same(&tree, view, model, numbers, &mut rng).unwrap();
        }
    }
    drop(pinned);
    only_what_lives_is_left(&mut tree, &model).unwrap();
    let Tree { budget, account, memtable, root, runs, pages, .. } = tree;
    drop((memtable, root, runs));
    assert_eq!(account.used(), 0, "what runs and memtables held is given back");
    drop((pages, budget));
}

#[test]
fn histories_end_as_a_map_says() {
    let seeds = std::env::var("RUNS_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let first = std::env::var("RUNS_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + seeds {
        let outcome = std::panic::catch_unwind(|| history(seed));
        assert!(outcome.is_ok(), "seed {seed} failed: RUNS_SEED={seed} RUNS_SEEDS=1 draws it again");
    }
}

/// However small or large its records are: nothing else stands between a memtable and its end.
#[test]
fn a_flush_takes_no_more_than_it_says() {
    for (seed, (key, value)) in
        [(8, 0), (8, 8), (16, 8), (24, 64), (100, 0), (400, 100), (9, 3000)].into_iter().enumerate()
    {
        for size in [200 << 10, 1 << 20, 5 << 20, 20 << 20] {
            let disk = Arc::new(SimDisk::new(seed as u64, Faults::default()));
            disk.make_folder(folder()).unwrap();
            let (budget, account, pages) = open(&disk);
            let mut memtable = Memtable::new(size, &account).unwrap();
            let value = vec![7; value];
            for number in 0_u64.. {
                // Keys that differ at their ends make separators long.
                let key = [vec![1; key - 8], number.to_be_bytes().to_vec()].concat();
                let entry = Entry { key: &key, value: Value::Inline(&value), weight: 0, first: false };
                if !memtable.has_room(key.len() + value.len() + 200) || memtable.put(&entry).is_err() {
                    break;
                }
                memtable.keep_unit();
            }
            let root = memtable.publish();
            let most = flush_bytes(memtable.held_bytes() as u64);
            let bounded = budget.root().child("flush", "").with_limit(most);
            let shape = Shape { file_bytes: 1 << 20, weighted: false, filtered: true, deadline: |_| 0, ended: 0 };
            let made = Cell::new(0);
            let mut name = || {
                made.set(made.get() + 1);
                folder().join(format!("{}.run", made.get()))
            };
            let flushed = flush(&pages, &bounded, &root, (shape, true), &mut name);
            assert!(flushed.is_ok(), "{} records of {key} and {} bytes: {flushed:?}", root.records(), value.len());
        }
    }
}
