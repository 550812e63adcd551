//! The memory of a memtable: chunks of 64 KiB that are cut into slots, and slots that are used again.
//!
//! ```text
//!   address (u32, units of 16 bytes) = chunk number × 4096 + unit
//!   chunk 0 │ slot │ slot │ ... free │   chunk 1 │ ...     chunk 7: one slot of more than 16 KiB, as large as it must be
//!   free lists: one for each class of sizes; a free slot holds the address of the next one
//! ```
//!
//! One writer, many readers. The rule that all unsafe code here rests on: *a slot is written only while no published root
//! leads to it* — from the moment it was cut until its root is published, and again when every root that led to it is gone
//! (see `Memtable::publish`). So a reader's slice never changes under it.

use parking_lot::Mutex;
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::{ptr, slice};

/// Bytes that an address counts, and to which slots are aligned.
const UNIT: usize = 16;
const CHUNK: usize = 64 << 10;
const UNITS_A_CHUNK: usize = CHUNK / UNIT;
/// Larger slots are chunks of their own.
const SLOT_MAX: usize = 16 << 10;
/// Up to here each multiple of a unit is a class; above, four between two powers of two.
const FINE_MAX: usize = 1 << 10;
const CLASSES: usize = FINE_MAX / UNIT + 16;
const NONE: u32 = u32::MAX;

/// Where a slot begins.
pub(super) type Address = u32;

/// The chunks: read by all, added to by the writer alone.
pub(super) struct Arena {
    chunks: Box<[Chunk]>,
    /// Of the chunks and their table: as long as anybody reads them, though the writer may be gone.
    memory: Mutex<Reservation>,
}

struct Chunk {
    start: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

/// The writer's part: what is free.
pub(super) struct Slots {
    /// Chunks whose numbers are free.
    numbers: Vec<u32>,
    /// Where the chunk that is being cut goes on, and where it ends.
    next: usize,
    end: usize,
    free: [Address; CLASSES],
    /// Bytes of all chunks, and how many they may be.
    pub(super) bytes: usize,
    pub(super) limit: usize,
    /// Bytes of slots on free lists.
    free_bytes: usize,
}

impl Arena {
    /// Of at most `bytes`; `account` pays.
    pub(super) fn new(bytes: usize, account: &Account) -> Result<(Self, Slots)> {
        let count = bytes / SLOT_MAX + 8;
        let table = (count * (size_of::<Chunk>() + size_of::<u32>())) as u64;
        let memory = Mutex::new(account.try_reserve(table)?);
        let empty = || Chunk { start: AtomicPtr::new(ptr::null_mut()), bytes: AtomicUsize::new(0) };
        let chunks = (0..count).map(|_| empty()).collect();
        let numbers = (0..count as u32).rev().collect();
        let (next, end, free) = (0, 0, [NONE; CLASSES]);
        let slots = Slots { numbers, next, end, free, bytes: 0, limit: bytes, free_bytes: 0 };
        Ok((Self { chunks, memory }, slots))
    }

    fn pointer(&self, address: Address, len: usize) -> *mut u8 {
        let (chunk, unit) = (address as usize / UNITS_A_CHUNK, address as usize % UNITS_A_CHUNK);
        let chunk = &self.chunks[chunk];
        let (start, bytes) = (chunk.start.load(Ordering::Acquire), chunk.bytes.load(Ordering::Acquire));
        assert!(unit * UNIT + len <= bytes, "a slot of a memtable lies in its chunk");
        // SAFETY: inside the chunk's allocation, as was just checked.
        unsafe { start.add(unit * UNIT) }
    }

    /// The first `len` bytes of a slot that a root leads to which the caller holds, or that the caller is about to publish.
    pub(super) fn bytes(&self, address: Address, len: usize) -> &[u8] {
        // SAFETY: nobody writes a slot that a live root leads to (see the head of this file); chunks start zeroed.
        unsafe { slice::from_raw_parts(self.pointer(address, len), len) }
    }

    /// A slot as a node, under the same rule.
    pub(super) fn node<T: Node>(&self, address: Address) -> &T {
        // SAFETY: as in `bytes`; `Node` says that every bit pattern is a `T` and that it needs no more than a unit's alignment.
        unsafe { &*self.pointer(address, size_of::<T>()).cast::<T>() }
    }
}

/// A type that any bytes are, which is aligned to a unit at most.
///
/// # Safety
/// That is so.
pub(super) unsafe trait Node: Copy {}

impl Slots {
    /// Makes sure that slots of at most a KiB, `bytes` of them together, are there: taking them cannot fail then.
    pub(super) fn ensure(&mut self, arena: &Arena, bytes: usize) -> Result<()> {
        debug_assert!(bytes <= CHUNK, "what is ensured at once fits a chunk");
        if self.end - self.next < bytes {
            let number = self.new_chunk(arena, CHUNK)? as usize;
            self.put_rest_aside(arena);
            (self.next, self.end) = (number * CHUNK, (number + 1) * CHUNK);
        }
        Ok(())
    }

    /// What is left of the chunk that was being cut goes to the free lists.
    fn put_rest_aside(&mut self, arena: &Arena) {
        while self.end - self.next >= UNIT {
            let left = self.end - self.next;
            // The largest class that it fills.
            let size = if left > FINE_MAX { FINE_MAX } else { left / UNIT * UNIT };
            let address = (self.next / UNIT) as Address;
            self.next += size;
            self.give(arena, address, size);
        }
    }

    fn new_chunk(&mut self, arena: &Arena, bytes: usize) -> Result<u32> {
        let number = self.numbers.last().copied().filter(|_| self.bytes + bytes <= self.limit).ok_or_else(full)?;
        arena.memory.lock().grow(bytes as u64)?;
        let layout = layout(bytes);
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        self.numbers.pop();
        let chunk = &arena.chunks[number as usize];
        chunk.bytes.store(bytes, Ordering::Release);
        chunk.start.store(start, Ordering::Release);
        self.bytes += bytes;
        Ok(number)
    }

    /// A slot of `size` bytes, which nobody reads yet.
    pub(super) fn take(&mut self, arena: &Arena, size: usize) -> Result<Address> {
        let size = rounded(size);
        if size > SLOT_MAX {
            return Ok(self.new_chunk(arena, size)? * UNITS_A_CHUNK as u32);
        }
        let class = class_of(size);
        let free = self.free[class];
        if free != NONE {
            let next = arena.bytes(free, 4);
            self.free[class] = u32::from_le_bytes([next[0], next[1], next[2], next[3]]);
            self.free_bytes -= size;
            return Ok(free);
        }
        if self.end - self.next < size {
            self.ensure(arena, size)?;
        }
        let address = (self.next / UNIT) as Address;
        self.next += size;
        Ok(address)
    }

    /// Gives back a slot of `size` bytes that nobody reads any more.
    pub(super) fn give(&mut self, arena: &Arena, address: Address, size: usize) {
        let size = rounded(size);
        if size > SLOT_MAX {
            let number = address / UNITS_A_CHUNK as u32;
            arena.chunks[number as usize].free();
            arena.memory.lock().shrink(size as u64);
            self.bytes -= size;
            self.numbers.push(number);
            return;
        }
        let class = class_of(size);
        // SAFETY: nobody reads the slot, and the caller is the only writer.
        unsafe { self.slot(arena, address, 4) }.copy_from_slice(&self.free[class].to_le_bytes());
        self.free[class] = address;
        self.free_bytes += size;
    }

    /// The bytes of a slot, to be written.
    ///
    /// # Safety
    /// No root that somebody else holds leads to it, and no other reference to it lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is the arena's, and the writer is one: `self`")]
    pub(super) unsafe fn slot<'a>(&self, arena: &'a Arena, address: Address, len: usize) -> &'a mut [u8] {
        // SAFETY: inside the chunk; the caller vouches for the rest.
        unsafe { slice::from_raw_parts_mut(arena.pointer(address, len), len) }
    }

    /// A slot as a node, to be written.
    ///
    /// # Safety
    /// As for `slot`.
    #[allow(clippy::mut_from_ref, reason = "the memory is the arena's, and the writer is one: `self`")]
    pub(super) unsafe fn node<'a, T: Node>(&self, arena: &'a Arena, address: Address) -> &'a mut T {
        // SAFETY: as in `Arena::node`; the caller vouches for the rest.
        unsafe { &mut *arena.pointer(address, size_of::<T>()).cast::<T>() }
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        !self.numbers.is_empty() && self.bytes + bytes.max(CHUNK) <= self.limit
    }

    /// Bytes of all chunks, without those of free slots.
    pub(super) fn used(&self) -> usize {
        self.bytes - self.free_bytes - (self.end - self.next)
    }
}

impl Chunk {
    fn free(&self) {
        let (start, bytes) = (self.start.swap(ptr::null_mut(), Ordering::AcqRel), self.bytes.swap(0, Ordering::AcqRel));
        if !start.is_null() {
            // SAFETY: it was allocated with this layout, and is not there a second time.
            unsafe { dealloc(start, layout(bytes)) };
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.chunks.iter().for_each(Chunk::free);
    }
}

fn full() -> Error {
    Error::busy("a memtable is full; its flush makes room, try again")
}

fn layout(bytes: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and no chunk is larger than a value may be.
    unsafe { Layout::from_size_align_unchecked(bytes, UNIT) }
}

/// Bytes of the slot for so many.
fn rounded(size: usize) -> usize {
    let step = if size > FINE_MAX && size <= SLOT_MAX { 1 << ((size - 1).ilog2() - 2) } else { UNIT };
    size.max(1).next_multiple_of(step)
}

fn class_of(size: usize) -> usize {
    if size <= FINE_MAX {
        return size / UNIT - 1;
    }
    let power = (size - 1).ilog2();
    let above = (power - FINE_MAX.ilog2()) as usize;
    FINE_MAX / UNIT + 4 * above + ((size - (1 << power)) >> (power - 2)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_memory::Budget;

    #[test]
    fn slots_do_not_overlap_and_come_again() {
        let budget = Budget::new(4 << 20);
        let (arena, mut slots) = Arena::new(1 << 20, &budget.root()).unwrap();
        let mut taken: Vec<(Address, usize, u8)> = Vec::new();
        for round in 0..3u8 {
            for size in [1, 16, 17, 100, 1000, 1024, 1025, 5000, 16_384, 16_385, 100_000] {
                let address = slots.take(&arena, size).unwrap();
                // SAFETY: it was just taken.
                unsafe { slots.slot(&arena, address, size) }.fill(round ^ size as u8);
                taken.push((address, size, round ^ size as u8));
            }
        }
        for (address, size, fill) in &taken {
            assert!(arena.bytes(*address, *size).iter().all(|byte| byte == fill));
        }
        let used = slots.used();
        taken.iter().for_each(|(address, size, _)| slots.give(&arena, *address, *size));
        assert_eq!(slots.used(), 0);
        let again = taken.iter().map(|(_, size, _)| slots.take(&arena, *size).unwrap()).count();
        assert_eq!((again, slots.used()), (33, used));
        drop((arena, slots));
        assert_eq!(budget.reserved(), 0);
    }

    #[test]
    fn each_size_has_a_class_of_its_own_that_wastes_little() {
        let mut last = (0, 0);
        for size in 1..=SLOT_MAX {
            let (rounded, class) = (rounded(size), class_of(rounded(size)));
            assert!(
                rounded >= size && rounded < size + UNIT.max(size / 4) && class < CLASSES,
                "{size}: {rounded}, {class}"
            );
            assert!(
                (rounded, class) == last || rounded > last.0 && class == last.1 + usize::from(last.0 > 0),
                "{size}"
            );
            last = (rounded, class);
        }
        assert_eq!(last, (SLOT_MAX, CLASSES - 1));
    }

    #[test]
    fn a_full_arena_refuses() {
        let budget = Budget::new(4 << 20);
        let (arena, mut slots) = Arena::new(64 << 10, &budget.root()).unwrap();
        let taken = (0..10_000).take_while(|_| slots.take(&arena, 1024).is_ok()).count();
        assert_eq!((taken, slots.take(&arena, 20_000).is_err()), (64, true));
    }
}
