//! A store of counters, for tests and measurements of the engine: conditional adds, one command that waits, several in one unit.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses its part; a test stops at any error")]

use ramekin_base::{Clock, Error, Result};
use ramekin_disk::Disk;
use ramekin_engine::{Durability, Engine, EngineOptions, Staged, Store, TreeOptions, Unit};
use ramekin_memory::Budget;
use ramekin_pages::Pages;
use std::path::Path;
use std::sync::Arc;

pub const TREE: usize = 0;

/// Counters by a number, dealt out to the trees in turn.
pub struct Counters {
    trees: Vec<TreeOptions>,
}

const NAMES: [&str; 6] = ["counters", "second", "third", "fourth", "fifth", "sixth"];

/// The tree of a counter, of so many.
pub fn tree_of(key: u64, trees: usize) -> usize {
    (key % trees as u64) as usize
}

#[derive(Debug, Clone)]
pub enum Command {
    Get(u64),
    /// Adds where the sum is at least so much.
    Add {
        key: u64,
        by: i64,
        least: i64,
    },
    /// A counter of one, of so many bytes.
    Put(u64, usize),
    /// The same, and it does not look what was there.
    Set(u64, usize),
    Delete(u64),
    /// Waits until a counter is at least so much.
    AtLeast(u64, i64),
    /// The counters of a tree from one number on and below another, so many at most, and how many there are.
    Within {
        tree: usize,
        from: u64,
        to: u64,
        most: usize,
    },
    /// All of them, or none where one fails.
    Both(Box<[Command]>),
    /// A bug of the store.
    Panic(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Count(Option<i64>),
    Counts(Vec<Option<i64>>),
}

impl Default for Counters {
    fn default() -> Self {
        Self::of(1)
    }
}

impl Counters {
    pub fn of(trees: usize) -> Self {
        let weighted =
            |name: &&'static str| TreeOptions { weigh: Some(|_| 1), filtered: true, ..TreeOptions::plain(name) };
        Self { trees: NAMES[..trees].iter().map(weighted).collect() }
    }
}

pub fn key_of(key: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.to_be_bytes());
    bytes[8..].copy_from_slice(&key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes
}

pub fn number_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(key[..8].try_into().unwrap())
}

pub fn count_of(value: &[u8]) -> i64 {
    i64::from_le_bytes(value[..8].try_into().unwrap())
}

/// What a counter of `count` is stored as.
pub fn value_of(count: i64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// A counter of one, of so many bytes.
pub fn one_of(bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    value[..16].copy_from_slice(&value_of(1));
    value
}

/// The counter that a command is about.
fn number_in(command: &Command) -> Option<u64> {
    match command {
        Command::Get(key)
        | Command::Add { key, .. }
        | Command::Put(key, _)
        | Command::Set(key, _)
        | Command::Delete(key)
        | Command::AtLeast(key, _) => Some(*key),
        Command::Both(_) | Command::Panic(_) | Command::Within { .. } => None,
    }
}

impl Counters {
    fn one(&self, unit: &mut Unit<'_>, command: &Command) -> Result<Staged<Option<i64>>> {
        let number = number_in(command).ok_or_else(|| Error::invalid("not one command"))?;
        let (tree, name) = (tree_of(number, self.trees.len()), key_of(number));
        if let Command::Set(_, bytes) = command {
            unit.put(tree, &name, &one_of(*bytes))?;
            return Ok(Staged::Done(None));
        }
        let before = unit.get(tree, &name, |value| value.map(count_of))?;
        match command {
            Command::Add { by, least, .. } => {
                let sum = before.unwrap_or(0) + by;
                if sum < *least {
                    return Err(Error::invalid(format!("{sum} is less than {least}")));
                }
                unit.put(tree, &name, &value_of(sum))?;
                Ok(Staged::Done(Some(sum)))
            }
            Command::Put(_, bytes) => {
                unit.put(tree, &name, &one_of(*bytes))?;
                Ok(Staged::Done(Some(1)))
            }
            Command::Delete(_) => {
                unit.delete(tree, &name)?;
                Ok(Staged::Done(before))
            }
            Command::AtLeast(_, least) if before.is_none_or(|count| count < *least) => {
                Ok(Staged::Blocked(vec![(tree, name.into())]))
            }
            _ => Ok(Staged::Done(before)),
        }
    }
}

impl Store for Counters {
    type Command = Command;
    type Reply = Reply;

    fn trees(&self) -> &[TreeOptions] {
        &self.trees
    }

    fn stage(&self, unit: &mut Unit<'_>, command: &Command) -> Result<Staged<Reply>> {
        match command {
            Command::Both(all) => {
                for tree in 0..self.trees.len() {
                    let of_tree = |key: &u64| tree_of(*key, self.trees.len()) == tree;
                    let names: Vec<[u8; 16]> = all.iter().filter_map(number_in).filter(of_tree).map(key_of).collect();
                    unit.will_get(tree, names.iter().map(|name| &name[..]))?;
                }
                let mut counts = Vec::with_capacity(all.len());
                for command in all {
                    if let Command::Within { .. } = command {
                        let Staged::Done(Reply::Counts(within)) = self.stage(unit, command)? else { continue };
                        counts.extend(within);
                        continue;
                    }
                    match self.one(unit, command)? {
                        Staged::Done(count) => counts.push(count),
                        Staged::Blocked(keys) => return Ok(Staged::Blocked(keys)),
                    }
                }
                Ok(Staged::Done(Reply::Counts(counts)))
            }
            Command::Within { tree, from, to, most } => {
                let (from, to) = (key_of(*from), key_of(*to));
                let mut counts = vec![Some(unit.count(*tree, (&from, &to))?)];
                unit.range(*tree, (&from, &to), &mut |_, value| {
                    counts.push(Some(count_of(value)));
                    Ok(counts.len() <= *most)
                })?;
                Ok(Staged::Done(Reply::Counts(counts)))
            }
            Command::Panic(key) => {
                unit.put(tree_of(*key, self.trees.len()), &key_of(*key), &value_of(-1))?;
                panic!("planted by a test");
            }
            one => Ok(match self.one(unit, one)? {
                Staged::Done(count) => Staged::Done(Reply::Count(count)),
                Staged::Blocked(keys) => Staged::Blocked(keys),
            }),
        }
    }
}

/// How a store is opened in a test.
#[derive(Clone, Copy)]
pub struct Setup {
    pub budget: u64,
    pub share: u64,
    pub durability: Durability,
    pub threads: bool,
    pub trees: usize,
}

impl Setup {
    /// Small memtables, no threads, each answer durable.
    pub const SMALL: Self =
        Self { budget: 48 << 20, share: 11 << 20, durability: Durability::Each, threads: false, trees: 1 };
}

pub fn open(
    disk: Arc<dyn Disk>,
    folder: &Path,
    clock: Arc<dyn Clock>,
    setup: Setup,
) -> Result<(Engine<Counters>, Budget)> {
    let budget = Budget::new(setup.budget);
    let account = budget.root().child("counters", "");
    let pages = Pages::new(disk.clone(), budget.root().child("pages", ""), &budget, 4 << 30)?;
    let options = EngineOptions {
        disk,
        folder: folder.to_owned(),
        pages,
        budget: budget.clone(),
        account,
        share: setup.share,
        clock,
        durability: setup.durability,
        threads: setup.threads,
    };
    Ok((Engine::open(options, Counters::of(setup.trees))?, budget))
}

/// One more under a key.
pub fn add(key: u64) -> Command {
    Command::Add { key, by: 1, least: 0 }
}

/// What stands under a key.
pub fn count(engine: &Engine<Counters>, key: u64) -> Option<i64> {
    match engine.execute(Command::Get(key)).unwrap() {
        Reply::Count(count) => count,
        Reply::Counts(_) => None,
    }
}
