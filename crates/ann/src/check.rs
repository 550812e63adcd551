//! Is the index what it claims to be? Reads all of it, in bounded memory, and says the first thing that is wrong.
//!
//! ```text
//!   sections      lengths as their shapes ask
//!   clusters      lists one after another, blocks likewise, nothing left over, numbers finite
//!   rows          a permutation of 0..n          positions   its inverse
//!   vectors       finite, inside the radius of their list
//!   codes         the estimate of a vector by its own code lies near the truth (one of each list)
//! ```

use crate::format::buffer::Buffer;
use crate::format::index::Index;
use crate::format::layout::InvertedList;
use crate::search::request::SearchParams;
use crate::search::scratch::Scratch;
use crate::source::Source;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use ramekin_pages::Pages;
use ramekin_vecmath::{BLOCK, l2_squared};

impl Index {
    /// Checks the whole index. `account` pays for a bit and 4 bytes a row at most, fewer if its limit is less.
    pub fn check(&self, pages: &Pages, account: &Account) -> Result<()> {
        let lists = self.check_lists(account)?;
        self.check_rows(account)?;
        if self.meta.has_huge() {
            // Their squares are beyond f32, so lists and codes say nothing of them, and nothing is asked of those.
            return self.check_finite(account);
        }
        self.check_vectors(pages, &lists, account)?;
        self.check_codes(pages, &lists, account)
    }

    fn wrong(&self, text: impl Into<String>) -> Error {
        Error::corrupt(text).at(self.rows.file().path().display())
    }

    fn check_lists(&self, account: &Account) -> Result<Buffer<InvertedList>> {
        let mut lists = Buffer::<InvertedList>::new(account, self.shape.lists)?;
        let mut stream = self.clusters.stream(account, 64 << 10)?;
        let (mut start, mut block) = (0u64, 0u64);
        for (at, list) in lists.iter_mut().enumerate() {
            stream.read_exact(zerocopy::IntoBytes::as_mut_bytes(list))?;
            if u64::from(list.start) != start || u64::from(list.block) != block || list.count == 0 {
                return Err(self.wrong(format!("list {at} does not begin where the one before it ends")));
            }
            let spans = list.factors.iter().flatten().flat_map(|span| [span.least, span.step]);
            let numbers = spans.chain([list.scale, list.square, list.spread, list.radius]);
            if !self.meta.has_huge() && numbers.into_iter().any(|number| !number.is_finite()) {
                return Err(self.wrong(format!("list {at} holds a number that is none")));
            }
            start += u64::from(list.count);
            block += u64::from(list.count.div_ceil(BLOCK as u32));
        }
        if start != self.shape.rows as u64 || block != self.shape.blocks as u64 {
            return Err(self.wrong(format!("the lists hold {start} of {} vectors", self.shape.rows)));
        }
        Ok(lists)
    }

    /// Rows and positions undo each other; so both are permutations.
    fn check_rows(&self, account: &Account) -> Result<()> {
        let (count, packed) = (self.shape.rows, self.shape.packed);
        let free = account.left().unwrap_or(u64::MAX) / 8;
        let room = count.min((free as usize).max(64 << 10)).next_multiple_of(8);
        let mut inverse = Buffer::<u32>::new(account, room)?;
        for from in (0..count).step_by(room) {
            let to = (from + room).min(count);
            inverse.fill(u32::MAX);
            let mut rows = Numbers::new(self.rows.stream(account, 64 << 10)?, packed.bits);
            for position in 0..count as u32 {
                let row = rows.next()? as usize;
                if row >= count {
                    return Err(self.wrong(format!("position {position} holds row {row} of {count}")));
                }
                if (from..to).contains(&row) {
                    if inverse[row - from] != u32::MAX {
                        return Err(self.wrong(format!("row {row} stands at two positions")));
                    }
                    inverse[row - from] = position;
                }
            }
            let mut positions = Numbers::new(self.positions.stream(account, 64 << 10)?, packed.bits);
            for row in 0..to {
                let position = positions.next()?;
                if row >= from && inverse[row - from] != position {
                    let text =
                        format!("row {row} is said to stand at {position} and stands at {}", inverse[row - from]);
                    return Err(self.wrong(text));
                }
            }
        }
        Ok(())
    }

    fn check_vectors(&self, pages: &Pages, lists: &[InvertedList], account: &Account) -> Result<()> {
        let mut source = self.stream(account);
        let (mut rows, mut vectors) = (Vec::new(), Vec::new());
        let (mut position, mut at) = (0u32, 0);
        let mut centroid = Vec::new();
        self.centroid(pages, 0, &mut centroid)?;
        while source.next(&mut rows, &mut vectors)? {
            self.shape.full_vectors.view(&mut vectors);
            for x in vectors.chunks_exact(self.shape.dim) {
                while position >= lists[at].positions().end {
                    at += 1;
                    self.centroid(pages, at, &mut centroid)?;
                }
                let far = l2_squared(x, &centroid).sqrt();
                let most = lists[at].radius * 1.001 + 1e-3 * lists[at].square.sqrt() + 1e-6;
                if far > most || !far.is_finite() {
                    let text =
                        format!("the vector at {position} lies {far} from its centroid, beyond {}", lists[at].radius);
                    return Err(self.wrong(text));
                }
                position += 1;
            }
        }
        Ok(())
    }

    fn check_finite(&self, account: &Account) -> Result<()> {
        let (mut source, mut rows, mut vectors) = (self.stream(account), Vec::new(), Vec::new());
        while source.next(&mut rows, &mut vectors)? {
            self.shape.full_vectors.view(&mut vectors);
            let wrong = vectors.chunks_exact(self.shape.dim).position(|x| !x.iter().all(|x| x.is_finite()));
            if let Some(at) = wrong {
                return Err(self.wrong(format!("the vector of row {} holds a number that is none", rows[at])));
            }
        }
        Ok(())
    }

    /// The first vector of every list, asked for by itself, is found where it lies or shares its score.
    fn check_codes(&self, pages: &Pages, lists: &[InvertedList], account: &Account) -> Result<()> {
        let mut scratch = Scratch::new(account)?;
        let (mut source, mut rows, mut vectors) = (self.stream(account), Vec::new(), Vec::new());
        let (mut position, mut at, mut missed) = (0u32, 0, 0);
        let params = SearchParams { recall: Some(0.99), ..SearchParams::default() };
        while source.next(&mut rows, &mut vectors)? && at < lists.len() {
            self.shape.full_vectors.view(&mut vectors);
            for (row, x) in rows.iter().zip(vectors.chunks_exact(self.shape.dim)) {
                if lists.get(at).is_some_and(|list| list.start == position) {
                    at += 1;
                    let hits = self.search(pages, x, 1, &params, None, &mut scratch)?;
                    let own = ramekin_vecmath::score(self.shape.metric, x, x);
                    missed += usize::from(!hits.iter().any(|hit| hit.row == *row || hit.score >= own));
                }
                position += 1;
            }
        }
        // A code that belongs to another vector is not found; a few are missed by chance.
        if missed > 1 + lists.len() / 10 {
            return Err(self.wrong(format!("of {} vectors {missed} were not found by themselves", lists.len())));
        }
        Ok(())
    }
}

/// Reads packed numbers in order.
struct Numbers {
    stream: ramekin_pages::Stream,
    bits: u32,
    word: u64,
    filled: u32,
}

impl Numbers {
    fn new(stream: ramekin_pages::Stream, bits: u32) -> Self {
        Self { stream, bits, word: 0, filled: 0 }
    }

    fn next(&mut self) -> Result<u32> {
        while self.filled < self.bits {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            self.word |= u64::from(byte[0]) << self.filled;
            self.filled += 8;
        }
        let number = self.word & ((1u64 << self.bits) - 1);
        self.word >>= self.bits;
        self.filled -= self.bits;
        Ok(number as u32)
    }
}
