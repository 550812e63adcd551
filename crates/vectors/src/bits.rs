//! A bitmap of dead rows. Bits are only ever set, by one thread at a time; readers see a bit at once or a moment later.
//! Who sees one sees what was done before it was set, and that it is counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// `len` bits, all clear at first.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Box<[AtomicU64]>,
    set: AtomicU64,
}

impl Bits {
    pub(crate) fn new(len: usize) -> Self {
        Self { words: (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), set: AtomicU64::new(0) }
    }

    /// Bytes of a bitmap of `len` bits.
    pub(crate) fn bytes(len: usize) -> u64 {
        len.div_ceil(64) as u64 * 8
    }

    pub(crate) fn get(&self, at: u32) -> bool {
        self.words[at as usize / 64].load(Ordering::Acquire) >> (at % 64) & 1 == 1
    }

    /// Sets the bit; true if it was clear.
    pub(crate) fn set(&self, at: u32) -> bool {
        let fresh = !self.get(at);
        if fresh {
            self.set.fetch_add(1, Ordering::Relaxed);
            self.words[at as usize / 64].fetch_or(1 << (at % 64), Ordering::Release);
        }
        fresh
    }

    /// Bits that are set.
    pub(crate) fn count(&self) -> u64 {
        self.set.load(Ordering::Relaxed)
    }

    pub(crate) fn words(&self) -> Vec<u64> {
        self.each_word().collect()
    }

    /// Its words, each as it is when its turn comes.
    pub(crate) fn each_word(&self) -> impl Iterator<Item = u64> {
        self.words.iter().map(|word| word.load(Ordering::Relaxed))
    }

    /// Clears every bit of `words` that is set here.
    pub(crate) fn clear_in(&self, words: &mut [u64]) {
        words.iter_mut().zip(&self.words).for_each(|(word, own)| *word &= !own.load(Ordering::Acquire));
    }

    /// Sets every bit that is set in `word`, which is the `index`-th.
    pub(crate) fn merge(&self, index: usize, mut word: u64) {
        while word != 0 {
            self.set((index * 64) as u32 + word.trailing_zeros());
            word &= word - 1;
        }
    }
}

/// Calls `each` with every bit set in `now` and clear in `before`.
pub(crate) fn newly_set(before: &[u64], now: impl Iterator<Item = u64>, mut each: impl FnMut(u32)) {
    for (index, now) in now.enumerate() {
        let mut word = now & !before.get(index).copied().unwrap_or(0);
        while word != 0 {
            each((index * 64) as u32 + word.trailing_zeros());
            word &= word - 1;
        }
    }
}
