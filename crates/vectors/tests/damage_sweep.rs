//! Damage at drawn places of every kind of file, and what the store then says. Never a wrong answer in silence.
//!
//! ```text
//!   a store    sealed segments · indexes · overlays in memory and in files · a tail of requests in the log
//!   damage     a bit flipped · a range zeroed · a file cut · two pages exchanged · two files exchanged · one removed or emptied
//!   allowed    refused as corrupt, with the file · answers right · a request fails and the part is red
//!              · the tail is cut by whole requests, and the store says so
//! ```
//!
//! DAMAGED_PLACES (500; 20,000 in full), drawn by DAMAGE_SEED.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as expected")]

mod world;

use ramekin_base::{Kind, Rng};
use ramekin_disk::Disk;
use ramekin_disk::sim::{Faults, SimDisk};
use ramekin_fields::Schema;
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use ramekin_vectors::{PayloadChange, Selection, Write};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use world::{Fault, Model, NAME, Point, World, asked, id, payload, upsert};

const PAGE: usize = 4096;
const BUDGET: u64 = 48 << 20;

/// A folder, and what it holds after each request of the log's tail.
struct Kept {
    disk: SimDisk,
    models: Vec<Model>,
}

fn put(model: &mut Model, points: &[(ramekin_base::PointId, u64)]) {
    model.extend(points.iter().map(|(id, tag)| (*id, Point { vector: *tag, payload: *tag })));
}

fn overwrite(world: &World, model: &mut Model, seed: u64) {
    let (tag, filter) = (1_000_000 + seed, asked(&mut Rng::new(seed)));
    model.iter_mut().filter(|(id, point)| (filter.passes)(id, point)).for_each(|(_, point)| point.payload = tag);
    let change = PayloadChange::Overwrite(payload(tag).into());
    world.write(Write::Payload { points: Selection::Filter(filter.filter), change }).unwrap();
}

fn delete(world: &World, model: &mut Model, from: u64) {
    let ids: Vec<_> = (0..30).map(|at| id(from + at * 7)).collect();
    ids.iter().for_each(|id| _ = model.remove(id));
    world.write(Write::Delete(Selection::Ids(ids))).unwrap();
}

fn fill(world: &World, model: &mut Model, numbers: std::ops::Range<u64>, tag: u64) {
    let points: Vec<_> = numbers.map(|number| (id(number), tag + number)).collect();
    put(model, &points);
    world.write(upsert(&points)).unwrap();
}

/// A store with every kind of file.
fn kept(seed: u64) -> Kept {
    let disk = Arc::new(SimDisk::with_block(seed, Faults::default(), PAGE));
    let (as_disk, budget): (Arc<dyn Disk>, _) = (disk.clone(), Budget::new(BUDGET));
    let world = World::open(&as_disk, Path::new("/data"), &budget).unwrap();
    let mut model = Model::new();
    world.create().unwrap();
    world.index_number().unwrap();
    world.index("word", Schema::Keyword).unwrap();
    fill(&world, &mut model, 0..400, 0);
    world.flush().unwrap();
    delete(&world, &mut model, 3);
    overwrite(&world, &mut model, seed);
    world.store.fold_for_tests(NAME).unwrap();
    world.settle();
    fill(&world, &mut model, 400..460, 0);
    while world.store.rotate_for_tests(NAME).unwrap() {
        while world.store.step() {}
    }
    let mut models = vec![model.clone()];
    for turn in 0..2 {
        fill(&world, &mut model, turn * 50..turn * 50 + 80, 10_000);
        models.push(model.clone());
        delete(&world, &mut model, 200 + turn);
        models.push(model.clone());
        overwrite(&world, &mut model, seed + 10 + turn);
        models.push(model.clone());
    }
    if seed.is_multiple_of(2) {
        // As after a SIGTERM; the others end as after a kill, a second after the last write.
        world.store.close();
    } else {
        world.clock.advance(Duration::from_secs(1));
        while world.store.step() {}
    }
    Kept { disk: disk.crashed_copy(seed), models }
}

/// Every file below the folder, with its length.
fn files(disk: &SimDisk, folder: &Path) -> Vec<(PathBuf, usize)> {
    let mut found = Vec::new();
    for entry in disk.list(folder).unwrap() {
        let path = folder.join(&entry.name);
        match entry.folder {
            true => found.extend(files(disk, &path)),
            false => found.push((path, entry.bytes as usize)),
        }
    }
    found
}

/// Bytes of a file up to the last one that is not zero; `None`: all are.
fn used(disk: &SimDisk, path: &Path) -> Option<usize> {
    let mut used = None;
    disk.edit(path, |held| used = held.iter().rposition(|byte| *byte != 0).map(|at| at + 1)).unwrap();
    used
}

/// What a file is, by its name.
fn kind(path: &Path) -> String {
    let part = path.extension().or(path.file_name()).unwrap_or_default();
    part.to_string_lossy().into_owned()
}

#[derive(Debug)]
#[allow(dead_code, reason = "shown where it is not survived")]
enum Damage {
    Flipped(PathBuf, usize, u8),
    Zeroed(PathBuf, usize, usize),
    Cut(PathBuf, usize),
    Pages(PathBuf, usize, PathBuf, usize),
    Files(PathBuf, PathBuf),
    Removed(PathBuf),
}

impl Damage {
    /// A place in a file of a kind drawn first, so that each kind is met as often.
    fn draw(rng: &mut Rng, disk: &SimDisk) -> Self {
        let mut kinds: BTreeMap<String, Vec<(PathBuf, usize)>> = BTreeMap::new();
        for (path, bytes) in files(disk, Path::new("/data")).into_iter().filter(|(_, bytes)| *bytes > 0) {
            kinds.entry(kind(&path)).or_default().push((path, bytes));
        }
        let pick = |rng: &mut Rng| -> (PathBuf, usize) {
            let of_kind = kinds.values().nth(rng.below(kinds.len() as u64) as usize).unwrap();
            let (path, bytes) = of_kind[rng.below(of_kind.len() as u64) as usize].clone();
            // Files may be longer than what was written to them: most damage goes where bytes are.
            let used = used(disk, &path).unwrap_or(bytes);
            (path, if rng.chance(0.9) { used } else { bytes })
        };
        let (path, bytes) = pick(rng);
        let at = rng.below(bytes as u64) as usize;
        match rng.below(12) {
            0..=3 => Self::Flipped(path, at, rng.below(8) as u8),
            4 | 5 => Self::Zeroed(path, at, 1 << rng.below(14)),
            6 | 7 => Self::Cut(path, if rng.chance(0.3) { at / PAGE * PAGE } else { at }),
            8 | 9 => {
                let (other, bytes) = if rng.chance(0.5) { (path.clone(), bytes) } else { pick(rng) };
                Self::Pages(path, at / PAGE, other, rng.below(bytes as u64) as usize / PAGE)
            }
            10 => Self::Files(path, pick(rng).0),
            _ => Self::Removed(path),
        }
    }

    fn done(&self, disk: &SimDisk) {
        let read = |path: &Path| {
            let mut held = Vec::new();
            disk.edit(path, |bytes| held.clone_from(bytes)).unwrap();
            held
        };
        match self {
            Self::Flipped(path, at, bit) => disk.edit(path, |bytes| bytes[*at] ^= 1 << bit).unwrap(),
            Self::Zeroed(path, at, count) => disk
                .edit(path, |bytes| {
                    let end = (at + count).min(bytes.len());
                    bytes[*at..end].fill(0);
                })
                .unwrap(),
            Self::Cut(path, at) => disk.edit(path, |bytes| bytes.truncate(*at)).unwrap(),
            Self::Pages(one, at, other, at_other) => {
                let page = |bytes: &[u8], at: usize| {
                    bytes[(at * PAGE).min(bytes.len())..((at + 1) * PAGE).min(bytes.len())].to_vec()
                };
                let (first, second) = (page(&read(one), *at), page(&read(other), *at_other));
                for (path, at, page) in [(one, *at, second), (other, *at_other, first)] {
                    disk.edit(path, |bytes| {
                        let room = bytes.len().saturating_sub(at * PAGE).min(page.len());
                        bytes[at * PAGE..at * PAGE + room].copy_from_slice(&page[..room]);
                    })
                    .unwrap();
                }
            }
            Self::Files(one, other) => {
                let (first, second) = (read(one), read(other));
                disk.edit(one, |bytes| *bytes = second).unwrap();
                disk.edit(other, |bytes| *bytes = first).unwrap();
            }
            Self::Removed(path) => disk.rename(path, None).unwrap(),
        }
    }
}

/// How the store took it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Taken {
    Refused,
    Right,
    Red,
    Cut,
}

fn taken(kept: &Kept, disk: SimDisk, rng: &mut Rng) -> Result<Taken, String> {
    let untouched = disk.crashed_copy(0);
    let (disk, budget): (Arc<dyn Disk>, _) = (Arc::new(disk), Budget::new(BUDGET));
    let world = match World::open(&disk, Path::new("/data"), &budget) {
        Err(error) if error.kind() == Kind::Corrupt && names_a_file(&error.to_string()) => return Ok(Taken::Refused),
        Err(error) => return Err(format!("refused, but not as corrupt with the file: {:?} {error}", error.kind())),
        Ok(world) => world,
    };
    let mut failed = None;
    for turn in 0..2 {
        let mut seen = Vec::new();
        // What it holds is what one of the requests left; a store that is cut keeps to one of them.
        for (at, model) in kept.models.iter().enumerate().rev() {
            match answers(&world, model, rng) {
                Ok(()) => {
                    seen.push(Ok(at));
                    break;
                }
                Err(Fault::Failed(error)) => {
                    seen.clear();
                    failed = Some(error);
                    break;
                }
                Err(Fault::Wrong(wrong)) => seen.push(Err(wrong)),
            }
        }
        match (&failed, seen.pop()) {
            (Some(error), _) => {
                if !matches!(error.kind(), Kind::Corrupt | Kind::Io) {
                    return Err(format!("a request failed as {:?}: {error}", error.kind()));
                }
                if world.store.info(NAME).is_ok_and(|info| info.optimizer.is_ok()) {
                    return Err(format!("a request failed, and the collection is not red: {error}"));
                }
                return Ok(Taken::Red);
            }
            (None, Some(Ok(at))) if at + 1 == kept.models.len() => {}
            (None, Some(Ok(_))) if check_tells(untouched) => return Ok(Taken::Cut),
            (None, Some(Ok(at))) => {
                return Err(format!("the tail was cut to {at} requests, and a check says nothing of it"));
            }
            (None, last) => return Err(format!("a wrong answer: {last:?}")),
        }
        if turn == 0 {
            // Merges and folds read what no query may have read; then all is asked again.
            world.flush().map_err(|error| format!("a flush: {error}"))?;
        }
    }
    Ok(Taken::Right)
}

/// Whether a check of the folder, before a start, says how many requests of the log are lost.
fn check_tells(disk: SimDisk) -> bool {
    let (disk, budget): (Arc<dyn Disk>, _) = (Arc::new(disk), Budget::new(BUDGET));
    let account = budget.root();
    let pages = Pages::new(disk.clone(), account.child("pages", ""), &budget, 1 << 32).unwrap();
    ramekin_storage::check(&disk, Path::new("/data"), &pages, &account, false).unwrap().to_string().contains(" request")
}

fn names_a_file(message: &str) -> bool {
    // Of a file that is missing the folder is named.
    ["files/", "MANIFEST", "/data"].iter().any(|part| message.contains(part))
}

fn answers(world: &World, model: &Model, rng: &mut Rng) -> Result<(), Fault> {
    world.holds(model)?;
    (0..4).try_for_each(|_| world.answers(model, rng))
}

fn number(name: &str, missing: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(missing)
}

#[test]
fn damage_is_refused_or_red_or_harmless_and_never_a_wrong_answer() {
    let (places, seed) = (number("DAMAGED_PLACES", 500), number("DAMAGE_SEED", 1));
    let stores: Vec<Kept> = (0..4).map(kept).collect();
    for kept in &stores {
        let whole = taken(kept, kept.disk.crashed_copy(0), &mut Rng::new(0));
        assert_eq!(whole, Ok(Taken::Right), "without any damage");
    }
    let (mut rng, mut wrong) = (Rng::new(seed), Vec::new());
    let mut seen: BTreeMap<(String, Taken), u64> = BTreeMap::new();
    let mut check = |kept: &Kept, damage: &Damage, rng: &mut Rng| {
        let disk = kept.disk.crashed_copy(0);
        damage.done(&disk);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| taken(kept, disk, rng)));
        match result.unwrap_or_else(|_| Err("a panic".to_owned())) {
            Ok(taken) => *seen.entry((named(damage), taken)).or_default() += 1,
            Err(what) => wrong.push(format!("{damage:?}: {what}")),
        }
    };
    for kept in &stores {
        for (path, _) in files(&kept.disk, Path::new("/data")) {
            for damage in [Damage::Removed(path.clone()), Damage::Cut(path, 0)] {
                check(kept, &damage, &mut rng);
            }
        }
    }
    for kept in &stores {
        for damage in zeroed_tails(&kept.disk) {
            check(kept, &damage, &mut rng);
        }
    }
    for place in 0..places {
        let kept = &stores[place as usize % stores.len()];
        let damage = Damage::draw(&mut rng, &kept.disk);
        check(kept, &damage, &mut rng);
    }
    println!("{places} places of seed {seed}");
    seen.iter().for_each(|((damage, taken), count)| println!("  {damage:<24} {taken:?} {count}"));
    assert!(wrong.is_empty(), "{} were not noticed:\n{}", wrong.len(), wrong.join("\n"));
}

/// Zeros from a block of the log's last file on: what is left may look like an end that was never passed.
fn zeroed_tails(disk: &SimDisk) -> Vec<Damage> {
    let logs = files(disk, Path::new("/data/log"));
    let Some((path, bytes)) = logs.into_iter().max() else { return Vec::new() };
    let blocks = used(disk, &path).unwrap_or(0).div_ceil(PAGE);
    (1..blocks).map(|page| Damage::Zeroed(path.clone(), page * PAGE, bytes - page * PAGE)).collect()
}

/// The damage and the kind of file, for the table.
fn named(damage: &Damage) -> String {
    let (word, path) = match damage {
        Damage::Flipped(path, ..) => ("flipped", path),
        Damage::Zeroed(path, ..) => ("zeroed", path),
        Damage::Cut(path, _) => ("cut", path),
        Damage::Pages(path, ..) => ("pages exchanged", path),
        Damage::Files(path, _) => ("files exchanged", path),
        Damage::Removed(path) => ("removed", path),
    };
    format!("{word} {}", kind(path))
}
