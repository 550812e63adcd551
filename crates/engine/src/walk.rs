//! Ranges in a unit: a walk along the records between two keys, and the number of live elements there, as the unit sees them.
//!
//! ```text
//!   memtable (private) ─┐
//!   frozen, runs ───────┴─► records in order           all of it in memory: now
//!                       └─► a page is missing: a piece of what is below the memtable is copied, and the command staged anew
//! ```
//!
//! Nothing is held for a piece: what is below the memtable stays as it is until the memtable is frozen or a large unit is
//! installed, which the piece's stamp shows; it is read again then.

use crate::fetch::copied;
use crate::keylocks::KeyRange;
use crate::tree::{Stamp, Tree};
use crate::unit::{Miss, Unit};
use ramekin_base::{Error, Kind, Result, nonblocking};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use ramekin_runs::{Entry, Range, Value};

/// Records of a piece at most, and about how many bytes.
const PIECE_RECORDS: usize = 1024;
const PIECE_BYTES: u64 = 256 << 10;
/// What a record of a piece takes besides its key and value, and what a piece or a count does.
const RECORD_COST: u64 = 64;
const LOOK_COST: u64 = 192;

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
    counts: Vec<(KeyRange, Stamp, i64)>,
}

/// All records below the memtable from one key on and below another.
struct Piece {
    range: KeyRange,
    stamp: Stamp,
    /// In the order of their keys.
    records: Vec<Copied>,
}

/// A key and its value; without one it is deleted there.
type Copied = (Box<[u8]>, Option<Box<[u8]>>);

/// Books bytes.
type Book<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

impl Walks {
    pub(crate) fn look(
        &mut self,
        tree: &Tree,
        (pages, account): (&Pages, &Account),
        look: &Look,
        book: Book<'_>,
    ) -> Result<()> {
        book(look.bytes())?;
        let (state, KeyRange { from, to, .. }) = (tree.state(), &look.range);
        let stamp = state.stamp();
        if look.what == What::Count {
            let count = state.below.count(pages, from, to)?;
            self.counts.push((look.range.clone(), stamp, count));
            return Ok(());
        }
        let mut walk = state.below.range(pages, account)?;
        walk.seek(from)?;
        let (mut records, mut bytes, mut end) = (Vec::new(), 0, to.clone());
        while let Some(found) = walk.entry()?.filter(|found| *found.entry.key < **to) {
            let key = found.entry.key;
            if records.len() == PIECE_RECORDS || bytes >= PIECE_BYTES {
                end = key.into();
                break;
            }
            let value: Option<Box<[u8]>> = match (found.entry.value, found.big()) {
                (Value::Inline(value), _) => Some(value.into()),
                (_, Some(big)) => Some(copied(pages, account, &big)?.0),
                _ => None,
            };
            let more = RECORD_COST + (key.len() + value.as_ref().map_or(0, |value| value.len())) as u64;
            book(more)?;
            bytes += more;
            records.push((key.into(), value));
            walk.advance()?;
        }
        let range = KeyRange { to: end, ..look.range.clone() };
        // What is stale by now is of no use.
        self.pieces.retain(|piece| piece.range.tree != range.tree || piece.stamp == stamp);
        self.pieces.push(Piece { range, stamp, records });
        Ok(())
    }

    fn piece(&self, tree: usize, key: &[u8], stamp: Stamp) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.stamp == stamp && piece.range.contains(tree, key))
    }

    fn count(&self, tree: usize, (from, to): (&[u8], &[u8]), stamp: Stamp) -> Option<i64> {
        let is_it = |range: &KeyRange| range.tree == tree && *range.from == *from && *range.to == *to;
        self.counts.iter().find(|(range, of, _)| *of == stamp && is_it(range)).map(|(.., count)| *count)
    }
}

/// Is shown a key and its value; false: the walk may end.
type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

impl Unit<'_> {
    /// Shows what is there from one key on and below another, in the order of keys, until `each` says that it has enough. It shows
    /// the beginning anew where the unit is staged again.
    pub fn range(&mut self, tree: usize, (from, to): (&[u8], &[u8]), each: Each<'_>) -> Result<()> {
        let (state, mut at) = (self.trees[tree].state(), from.to_vec());
        while *at < *to {
            let piece = self.fetched.and_then(|fetched| fetched.walks().piece(tree, &at, state.stamp()));
            let Some(piece) = piece else { return self.walk(tree, (&at, to), each) };
            let end = to.min(&piece.range.to);
            if !self.walk_piece(tree, piece, (&at, end), each)? {
                return Ok(());
            }
            at = end.to_vec();
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
        let state = self.trees[tree].state();
        let newest = self.core.drafts[tree].memtable.walk();
        let mut refused = None;
        let walked = nonblocking::scope(|| {
            let mut walk = state.below.range_below(Some(newest), self.pages, self.reads)?;
            walk.seek(from)?;
            while show(&walk, to, (self.pages, self.reads), each, &mut refused)? {
                walk.advance()?;
            }
            Ok(())
        });
        match (refused, walked) {
            (Some(refused), _) => Err(refused),
            (None, Err(error)) => Err(self.misses((tree, from, to), What::Records, error)),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Of the memtable and a piece of what is below it. False: `each` has enough.
    fn walk_piece(&self, tree: usize, piece: &Piece, (from, to): (&[u8], &[u8]), each: Each<'_>) -> Result<bool> {
        let mut newest = self.core.drafts[tree].memtable.walk();
        newest.seek(from);
        let below = piece.records.partition_point(|(key, _)| **key < *from);
        let mut below = piece.records[below..].iter().take_while(|(key, _)| **key < *to).peekable();
        loop {
            let above = newest.entry().filter(|entry| *entry.key < *to);
            let beneath = below.peek().copied();
            let Some(key) = above.map(|entry| entry.key).into_iter().chain(beneath.map(|(key, _)| &**key)).min() else {
                return Ok(true);
            };
            let is_newest = above.is_some_and(|entry| entry.key == key);
            let is_below = beneath.is_some_and(|(it, _)| **it == *key);
            let value = match above.filter(|_| is_newest) {
                Some(entry) => inline(&entry),
                None => beneath.and_then(|(_, value)| value.as_deref()),
            };
            if let Some(value) = value
                && !each(key, value)?
            {
                return Ok(false);
            }
            if is_newest {
                newest.next();
            }
            if is_below {
                below.next();
            }
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

/// Shows the record on which a walk stands. False: the walk ends there, or `each` has enough, or it refused.
fn show(
    walk: &Range,
    to: &[u8],
    (pages, reads): (&Pages, &Account),
    each: Each<'_>,
    refused: &mut Option<Error>,
) -> Result<bool> {
    let Some(found) = walk.entry()?.filter(|found| found.entry.key < to) else { return Ok(false) };
    let shown = match (inline(&found.entry), found.big()) {
        (Some(value), _) => each(found.entry.key, value),
        (None, Some(big)) => {
            let (value, _memory) = copied(pages, reads, &big)?;
            each(found.entry.key, &value)
        }
        (None, None) => Ok(true),
    };
    // What the store refuses is no page that is missing.
    Ok(shown.unwrap_or_else(|error| {
        *refused = Some(error);
        false
    }))
}

fn inline<'a>(entry: &Entry<'a>) -> Option<&'a [u8]> {
    match entry.value {
        Value::Inline(value) => Some(value),
        _ => None,
    }
}
