//! Rows of a part that died: a bitmap that is shared until it changes.
//!
//! ```text
//!   DeleteBitmap ─► chunk 0 │ chunk 1 │ none │ chunk 3        8,192 rows each; none: nobody of these died
//!                  ▲                          ▲
//!   a view of an earlier moment               a death copies the chunk that it falls into, if a view holds it
//! ```
//!
//! So a reader that holds one sees the deaths of one moment, whatever dies meanwhile, and a lookup costs two indirections.

use ramekin_memory::Reservation;
use std::sync::Arc;

/// Words of a chunk.
const WORDS: usize = 128;
/// Rows of a chunk.
const ROWS: usize = WORDS * 64;

/// What a chunk takes while it lives.
pub(crate) const CHUNK_BYTES: u64 = (WORDS * 8 + 64) as u64;

struct Chunk {
    words: [u64; WORDS],
    _memory: Reservation,
}

/// Rows that are dead at one moment. A clone is cheap, and stays as it is.
#[derive(Clone, Default)]
pub(crate) struct DeleteBitmap {
    chunks: Arc<[Option<Arc<Chunk>>]>,
    count: u64,
}

impl DeleteBitmap {
    /// Chunks of a part of so many rows.
    pub(crate) fn chunks(rows: usize) -> u64 {
        rows.div_ceil(ROWS) as u64
    }

    /// Bytes of all of them, and of the list that leads to them.
    pub(crate) fn bytes(rows: usize) -> u64 {
        Self::chunks(rows) * (CHUNK_BYTES + 16)
    }

    pub(crate) fn get(&self, row: u32) -> bool {
        self.word(row as usize / 64) >> (row % 64) & 1 == 1
    }

    /// The `index`-th 64 rows.
    pub(crate) fn word(&self, index: usize) -> u64 {
        match self.chunks.get(index / WORDS) {
            Some(Some(chunk)) => chunk.words[index % WORDS],
            _ => 0,
        }
    }

    /// Rows that are dead.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Marks a row; true if it was alive. A chunk that is made for it is paid for out of `memory`.
    pub(crate) fn set(&mut self, row: u32, memory: &mut Reservation) -> bool {
        if self.get(row) {
            return false;
        }
        let number = row as usize / ROWS;
        if number >= self.chunks.len() {
            let more = std::iter::repeat_with(|| None).take(number + 1 - self.chunks.len());
            self.chunks = self.chunks.iter().cloned().chain(more).collect();
        }
        let slot = &mut Arc::make_mut(&mut self.chunks)[number];
        if slot.as_mut().and_then(Arc::get_mut).is_none() {
            let words = slot.as_ref().map_or([0; WORDS], |held| held.words);
            debug_assert!(memory.bytes() >= CHUNK_BYTES, "a chunk of dead rows is booked before it is made");
            *slot = Some(Arc::new(Chunk { words, _memory: memory.split(CHUNK_BYTES) }));
        }
        if let Some(chunk) = slot.as_mut().and_then(Arc::get_mut) {
            chunk.words[row as usize / 64 % WORDS] |= 1 << (row % 64);
        }
        self.count += 1;
        true
    }

    /// Whether somebody died in the chunk of a row before.
    pub(crate) fn has_chunk_of(&self, row: u32) -> bool {
        matches!(self.chunks.get(row as usize / ROWS), Some(Some(_)))
    }

    /// Clears every bit of `words` that is set here.
    pub(crate) fn clear_in(&self, words: &mut [u64]) {
        for (chunk, words) in self.chunks.iter().zip(words.chunks_mut(WORDS)) {
            if let Some(chunk) = chunk {
                words.iter_mut().zip(&chunk.words).for_each(|(word, own)| *word &= !own);
            }
        }
    }

    /// Calls `each` with every row that is dead here and was alive then.
    pub(crate) fn since(&self, before: &Self, mut each: impl FnMut(u32)) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk else { continue };
            let same = matches!(before.chunks.get(number), Some(Some(old)) if Arc::ptr_eq(old, chunk));
            for (at, word) in chunk.words.iter().enumerate().filter(|_| !same) {
                let index = number * WORDS + at;
                let mut word = word & !before.word(index);
                while word != 0 {
                    each((index * 64) as u32 + word.trailing_zeros());
                    word &= word - 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    #[test]
    fn a_clone_stays_as_it_was_and_chunks_are_booked_while_they_live() {
        let budget = Budget::new(16 << 20);
        let mut memory = budget.root().try_reserve(64 * CHUNK_BYTES).unwrap();
        let mut now = DeleteBitmap::default();
        assert!(now.set(5, &mut memory) && !now.set(5, &mut memory) && now.set(70_000, &mut memory));
        let then = now.clone();
        assert!(now.set(6, &mut memory) && now.set(100_000, &mut memory));
        assert_eq!((then.count(), now.count()), (2, 4));
        assert_eq!((then.get(6), now.get(6), then.get(5), now.get(100_000)), (false, true, true, true));
        let mut newly = Vec::new();
        now.since(&then, |row| newly.push(row));
        assert_eq!(newly, [6, 100_000]);
        let mut words = vec![u64::MAX; 2_000];
        now.clear_in(&mut words);
        assert_eq!(words.iter().map(|word| u64::from(word.count_zeros())).sum::<u64>(), 4);
        // Of three parts of the bitmap one stands twice, as long as somebody holds the older one.
        drop(memory);
        assert_eq!(budget.root().used(), 4 * CHUNK_BYTES);
        drop(then);
        assert_eq!(budget.root().used(), 3 * CHUNK_BYTES);
    }
}
