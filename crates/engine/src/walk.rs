//! Ranges in a unit: a walk along the records between two keys, and the number of live elements there, as the unit sees them.
//!
//! ```text
//!   memtable (private) ─┐
//!   frozen, runs ───────┴─► records in order           all of it in memory: now
//!                       └─► a page is missing: a piece of what is below the memtable is copied, and the command staged anew
//! ```
//!
//! Nothing is held for a piece: what is below the memtable stays as it is until the memtable is frozen or a large unit is
//! installed, which the piece's stamp shows; it is read again then. A walk is bounded: what is longer is read through a view.

use crate::fetch::copied;
use crate::keylocks::KeyRange;
use crate::tree::{Stamp, Tree};
use crate::unit::{Miss, Unit};
use ramekin_base::{Error, Kind, Result, nonblocking};
use ramekin_memory::{Account, Reservation};
use ramekin_pages::Pages;
use ramekin_runs::{Entry, Range, Value};

/// Records of a piece: the first one is short, each is twice as long as the one before, up to this, and about so many bytes.
const PIECE_FIRST: usize = 64;
const PIECE_RECORDS: usize = 1024;
const PIECE_BYTES: u64 = 256 << 10;
/// What a record of a piece takes besides its key and value, and what a piece or a count does.
const RECORD_COST: u64 = 64;
const LOOK_COST: u64 = 192;
/// Bytes of records that a command walks along at most each time that it is staged, tombstones included: all others wait meanwhile.
const WALK_MOST: u64 = 4 << 20;
/// A command whose pieces were stale so often is refused.
const STALE_MOST: u32 = 16;

/// What a command has to read of a range.
pub(crate) struct Look {
    pub(crate) range: KeyRange,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Records,
    Count,
}

impl Look {
    pub(crate) fn bytes(&self) -> u64 {
        LOOK_COST + (self.range.from.len() + self.range.to.len()) as u64
    }
}

/// What was read of ranges for one command.
#[derive(Default)]
pub(crate) struct Walks {
    pieces: Vec<Piece>,
    counts: Vec<Count>,
    /// How often something was read that had changed by then.
    stale: u32,
}

/// All records below the memtable from one key on and below another.
struct Piece {
    range: KeyRange,
    stamp: Stamp,
    /// In the order of their keys.
    records: Vec<(Box<[u8]>, Copied)>,
    _memory: Reservation,
}

/// What stands under a key.
enum Copied {
    Value(Box<[u8]>),
    Deleted,
    DeletedTo(Box<[u8]>),
}

/// Live elements below the memtable.
struct Count {
    range: KeyRange,
    stamp: Stamp,
    count: i64,
    _memory: Reservation,
}

impl Walks {
    /// Reads what a walk or a count needs; `account` pays.
    pub(crate) fn look(&mut self, tree: &Tree, (pages, account): (&Pages, &Account), look: &Look) -> Result<()> {
        let state = tree.state();
        self.forget_stale(look.range.tree, state.stamp())?;
        let (mut memory, KeyRange { from, to, .. }) = (account.try_reserve(look.bytes())?, &look.range);
        if look.what == What::Count {
            let (range, count) = (look.range.clone(), state.below.count(pages, from, to)?);
            self.counts.push(Count { range, stamp: state.stamp(), count, _memory: memory });
            return Ok(());
        }
        let most = (PIECE_FIRST << self.pieces.len().min(8)).min(PIECE_RECORDS);
        let mut walk = state.below.range(pages, account)?;
        walk.seek(from)?;
        let (mut records, mut end) = (Vec::new(), to.clone());
        while let Some(found) = walk.entry()?.filter(|found| *found.entry.key < **to) {
            let key = found.entry.key;
            if records.len() == most || memory.bytes() >= PIECE_BYTES {
                end = key.into();
                break;
            }
            memory.grow(RECORD_COST + (key.len() + inline(&found.entry).map_or(0, <[u8]>::len)) as u64)?;
            let mut passed = None;
            let value = match (found.entry.value, found.big()) {
                (Value::Inline(value), _) => Copied::Value(value.into()),
                (Value::DeletedTo(end), _) => {
                    passed = Some(end.to_vec());
                    Copied::DeletedTo(end.into())
                }
                (_, Some(big)) => {
                    let (value, its) = copied(pages, account, &big)?;
                    memory.join(its)?;
                    Copied::Value(value)
                }
                _ => Copied::Deleted,
            };
            records.push((key.into(), value));
            match passed {
                Some(end) => walk.seek(&end)?,
                None => walk.advance()?,
            }
        }
        let range = KeyRange { to: end, ..look.range.clone() };
        self.pieces.push(Piece { range, stamp: state.stamp(), records, _memory: memory });
        Ok(())
    }

    /// Gives back what was read of a tree that has changed since. A command for which that was in vain again and again is refused.
    fn forget_stale(&mut self, tree: usize, stamp: Stamp) -> Result<()> {
        let before = self.pieces.len() + self.counts.len();
        self.pieces.retain(|piece| piece.range.tree != tree || piece.stamp == stamp);
        self.counts.retain(|count| count.range.tree != tree || count.stamp == stamp);
        self.stale += u32::from(self.pieces.len() + self.counts.len() < before);
        match self.stale > STALE_MOST {
            true => Err(Error::busy("the range changes faster than it can be read; try again, or read it by parts")),
            false => Ok(()),
        }
    }

    fn piece(&self, tree: usize, key: &[u8], stamp: Stamp) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.stamp == stamp && piece.range.contains(tree, key))
    }

    fn count(&self, tree: usize, (from, to): (&[u8], &[u8]), stamp: Stamp) -> Option<i64> {
        let is_it = |range: &KeyRange| range.tree == tree && *range.from == *from && *range.to == *to;
        self.counts.iter().find(|count| count.stamp == stamp && is_it(&count.range)).map(|count| count.count)
    }
}

/// Is shown a key and its value; false: the walk may end.
type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// Where a walk goes from a record.
enum Next {
    On,
    To(Vec<u8>),
    End,
}

impl Unit<'_> {
    /// Shows what is there from one key on and below another, in the order of keys, until `each` says that it has enough. It shows
    /// the beginning anew where the unit is staged again. Refused where it comes to more than 4 MiB of records for one command.
    pub fn range(&mut self, tree: usize, (from, to): (&[u8], &[u8]), each: Each<'_>) -> Result<()> {
        let (state, mut at) = (self.trees[tree].state(), from.to_vec());
        while *at < *to {
            let piece = self.fetched.and_then(|fetched| fetched.walks().piece(tree, &at, state.stamp()));
            let Some(piece) = piece else { return self.walk(tree, (&at, to), each) };
            let end = to.min(&piece.range.to);
            match self.walk_piece(tree, piece, (&at, end), each)? {
                Next::On => at = end.to_vec(),
                Next::To(past) => at = past.max(end.to_vec()),
                Next::End => return Ok(()),
            }
        }
        Ok(())
    }

    /// Live elements from one key on and below another, in a tree with weights.
    pub fn count(&mut self, tree: usize, (from, to): (&[u8], &[u8])) -> Result<i64> {
        if to <= from {
            return Ok(0);
        }
        let state = self.trees[tree].state();
        let memtable = &self.core.drafts[tree].memtable;
        let newest = memtable.weight_below(to) - memtable.weight_below(from);
        if let Some(below) = self.fetched.and_then(|fetched| fetched.walks().count(tree, (from, to), state.stamp())) {
            return Ok(newest + below);
        }
        match nonblocking::scope(|| state.below.count(self.pages, from, to)) {
            Ok(below) => Ok(newest + below),
            Err(error) => Err(self.misses((tree, from, to), What::Count, error)),
        }
    }

    /// Of what is in memory.
    fn walk(&mut self, tree: usize, (from, to): (&[u8], &[u8]), each: Each<'_>) -> Result<()> {
        let (state, core) = (self.trees[tree].state(), &mut *self.core);
        let (newest, walked) = (core.drafts[tree].memtable.walk(), &mut core.walked);
        let mut refused = None;
        let done = nonblocking::scope(|| {
            let mut walk = state.below.range_below(newest, self.pages, self.reads)?;
            walk.seek(from)?;
            loop {
                // What the store or a bound refuses is no page that is missing.
                let mut noted = |bytes| note(walked, bytes);
                let next = show(&walk, to, (self.pages, self.reads), &mut noted, each, &mut refused)?;
                match next {
                    Next::On => walk.advance()?,
                    Next::To(past) => walk.seek(&past)?,
                    Next::End => return Ok(()),
                }
            }
        });
        match (refused, done) {
            (Some(refused), _) => Err(refused),
            (None, Err(error)) => Err(self.misses((tree, from, to), What::Records, error)),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Of the memtable and a piece of what is below it.
    fn walk_piece(&mut self, tree: usize, piece: &Piece, (from, to): (&[u8], &[u8]), each: Each<'_>) -> Result<Next> {
        let core = &mut *self.core;
        let (mut newest, walked) = (core.drafts[tree].memtable.walk(), &mut core.walked);
        let place = |key: &[u8]| piece.records.partition_point(|(it, _)| **it < *key);
        newest.seek(from);
        let mut below = place(from);
        loop {
            let above = newest.entry().filter(|entry| *entry.key < *to);
            let beneath = piece.records.get(below).filter(|(key, _)| **key < *to);
            let keys = above.map(|entry| entry.key).into_iter().chain(beneath.map(|(key, _)| &**key));
            let Some(key) = keys.min() else { return Ok(Next::On) };
            let is_newest = above.is_some_and(|entry| entry.key == key);
            let is_below = beneath.is_some_and(|(it, _)| **it == *key);
            let value = match (above.filter(|_| is_newest), beneath) {
                (Some(entry), _) => entry.value,
                (None, Some((_, Copied::Value(value)))) => Value::Inline(value),
                (None, Some((_, Copied::DeletedTo(end)))) => Value::DeletedTo(end),
                (None, _) => Value::Deleted,
            };
            note(walked, key.len())?;
            match value {
                Value::Inline(value) => {
                    note(walked, value.len())?;
                    if !each(key, value)? {
                        return Ok(Next::End);
                    }
                }
                // All that lies there is older.
                Value::DeletedTo(end) if end >= to => return Ok(Next::To(end.to_vec())),
                Value::DeletedTo(end) => {
                    let end = end.to_vec();
                    below = place(&end);
                    newest.seek(&end);
                    continue;
                }
                Value::Deleted | Value::Big(_) => {}
            }
            if is_newest {
                newest.next();
            }
            below += usize::from(is_below);
        }
    }

    /// The command waits until a range is read, if it is that.
    fn misses(&mut self, (tree, from, to): (usize, &[u8], &[u8]), what: What, error: Error) -> Error {
        if error.kind() == Kind::Busy {
            self.miss = Some(Miss::Pages);
            self.core.looks.push(Look { range: KeyRange { tree, from: from.into(), to: to.into() }, what });
        }
        error
    }
}

/// Counts what a command has walked along.
fn note(walked: &mut u64, bytes: usize) -> Result<()> {
    *walked += bytes as u64;
    match *walked > WALK_MOST {
        true => Err(Error::too_large(format!("one command walks along more than {WALK_MOST} bytes of records"))),
        false => Ok(()),
    }
}

/// Shows the record on which a walk stands. What is `refused` ends it.
fn show(
    walk: &Range,
    to: &[u8],
    (pages, reads): (&Pages, &Account),
    note: &mut dyn FnMut(usize) -> Result<()>,
    each: Each<'_>,
    refused: &mut Option<Error>,
) -> Result<Next> {
    let Some(found) = walk.entry()?.filter(|found| found.entry.key < to) else { return Ok(Next::End) };
    let (key, big) = (found.entry.key, found.big());
    let copied = big.map(|big| copied(pages, reads, &big)).transpose()?;
    let value = copied.as_ref().map(|(value, _)| &**value).or(inline(&found.entry));
    let shown =
        note(key.len() + value.map_or(0, <[u8]>::len)).and_then(|()| value.map_or(Ok(true), |value| each(key, value)));
    Ok(match (shown, found.entry.value) {
        (Ok(true), Value::DeletedTo(end)) => Next::To(end.to_vec()),
        (Ok(true), _) => Next::On,
        (Ok(false), _) => Next::End,
        (Err(error), _) => {
            *refused = Some(error);
            Next::End
        }
    })
}

fn inline<'a>(entry: &Entry<'a>) -> Option<&'a [u8]> {
    match entry.value {
        Value::Inline(value) => Some(value),
        _ => None,
    }
}
