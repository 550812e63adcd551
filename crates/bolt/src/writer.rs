//! Writes a file as a stream, in the memory of a page for each level of a tree.
//!
//! ```text
//!   records in order ─► a leaf fills ─► it gets the next number and goes out; the branch above notes its first key
//!                                                     the branch fills ─► it goes out the same way; the one above it notes ...
//!   end of a bucket ─► what is left of each level, from below ─► its root       end of all ─► the bucket of buckets, the metas
//! ```
//!
//! So a page stands behind all that it names. Only the metas, which stand first, are known last.

use crate::format::{
    BRANCH, BUCKET, ELEMENT, FREE_LIST, HEAD, Head, IS_BUCKET, LEAF, METAS_BYTES, Meta, PAGE, VALUE_MAX, check_key,
    element,
};
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};

/// Hands out the bytes of a value in pieces.
pub type Pieces<'a> = &'a mut dyn FnMut(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

/// Memory of a level: its page as it fills, and as it is written.
const LEVEL_BYTES: u64 = 3 * PAGE as u64;
/// Elements of a page at most.
const COUNT_MAX: usize = 0xfff0;
const FREE_LIST_PAGE: u64 = 2;
const ZEROS: [u8; PAGE] = [0; PAGE];

/// Writes a file; `out` is given all pages but the metas, in their order.
pub struct Writer<'o> {
    pages: Out<'o>,
    account: Account,
    /// Name and root of each bucket.
    buckets: Vec<(Vec<u8>, u64)>,
}

/// Numbers pages and hands them out.
struct Out<'o> {
    out: &'o mut dyn FnMut(&[u8]) -> Result<()>,
    next: u64,
}

/// A page that fills: the lengths of its elements, and what follows them.
#[derive(Default)]
struct Filling {
    elements: Vec<Element>,
    bytes: Vec<u8>,
}

struct Element {
    key: u32,
    value: u32,
    /// Of a branch, the page below.
    page: u64,
}

/// A tree that grows.
struct Tree {
    /// Flags of the elements of its leaves.
    flags: u32,
    /// The leaf, and the branches above it.
    levels: Vec<Filling>,
    last: Vec<u8>,
    memory: Reservation,
}

/// Takes the records of one bucket.
pub struct BucketWriter<'w, 'o> {
    writer: &'w mut Writer<'o>,
    name: Vec<u8>,
    tree: Tree,
}

impl<'o> Writer<'o> {
    pub fn new(account: &Account, out: &'o mut dyn FnMut(&[u8]) -> Result<()>) -> Result<Self> {
        let mut pages = Out { out, next: FREE_LIST_PAGE };
        pages.page(FREE_LIST, 0, &[], &[], 0)?;
        pages.pad(HEAD as u64)?;
        Ok(Self { pages, account: account.clone(), buckets: Vec::new() })
    }

    /// Begins a bucket. It counts once [`BucketWriter::end`] was called.
    pub fn bucket(&mut self, name: &str) -> Result<BucketWriter<'_, 'o>> {
        let tree = Tree::new(0, &self.account)?;
        Ok(BucketWriter { writer: self, name: name.as_bytes().to_vec(), tree })
    }

    /// Ends the file. Its first bytes, which no other call has handed out, and how long it is with them.
    pub fn finish(mut self) -> Result<(Vec<u8>, u64)> {
        let mut tree = Tree::new(IS_BUCKET, &self.account)?;
        self.buckets.sort_unstable();
        for (name, root) in &self.buckets {
            let mut value = [0; BUCKET];
            value[..8].copy_from_slice(&root.to_le_bytes());
            tree.push(&mut self.pages, name, BUCKET as u64, &mut |each| each(&value))?;
        }
        let root = tree.end(&mut self.pages)?;
        let high_water = self.pages.next;
        let mut metas = Vec::with_capacity(METAS_BYTES);
        // The one with the higher number counts.
        for (id, txid) in [(0, 2), (1, 1)] {
            let meta = Meta { page: PAGE as u64, root, free_list: FREE_LIST_PAGE, high_water, txid };
            metas.extend_from_slice(&meta.page_of(id));
        }
        Ok((metas, high_water * PAGE as u64))
    }
}

impl BucketWriter<'_, '_> {
    /// Adds a record; its key is greater than the last one's.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.push_pieces(key, value.len() as u64, &mut |each| each(value))
    }

    /// Adds a record whose value has `len` bytes, which `pieces` hands out.
    pub fn push_pieces(&mut self, key: &[u8], len: u64, pieces: Pieces<'_>) -> Result<()> {
        self.tree.push(&mut self.writer.pages, key, len, pieces)
    }

    pub fn end(mut self) -> Result<()> {
        let root = self.tree.end(&mut self.writer.pages)?;
        self.writer.buckets.push((self.name, root));
        Ok(())
    }
}

impl Out<'_> {
    /// Hands out the head of a page, its elements and what follows them, of `len` bytes or more. The number that it got.
    fn page(&mut self, flags: u16, count: usize, elements: &[u8], bytes: &[u8], len: u64) -> Result<u64> {
        let id = self.next;
        let pages = (HEAD as u64 + elements.len() as u64 + len).div_ceil(PAGE as u64);
        let too_large = |_| Error::too_large("a page of a bbolt file would have too many elements or bytes");
        let (count, overflow) = (u16::try_from(count), u32::try_from(pages - 1));
        let head =
            Head { id, flags, count: count.map_err(too_large)?, overflow: overflow.map_err(too_large)? }.encode();
        self.next += pages;
        (self.out)(&head)?;
        (self.out)(elements)?;
        (self.out)(bytes)?;
        Ok(id)
    }

    /// Zeros up to the end of a page of which so much is written.
    fn pad(&mut self, written: u64) -> Result<()> {
        let rest = written.next_multiple_of(PAGE as u64) - written;
        (self.out)(&ZEROS[..rest as usize])
    }
}

impl Filling {
    fn len(&self) -> usize {
        HEAD + self.elements.len() * ELEMENT + self.bytes.len()
    }

    fn has_room(&self, more: u64) -> bool {
        self.len() as u64 + ELEMENT as u64 + more <= PAGE as u64 && self.elements.len() < COUNT_MAX
    }

    /// Writes it out and empties it. Its first key, and the number that it got.
    fn write(&mut self, flags: u16, of_elements: u32, out: &mut Out<'_>) -> Result<(Vec<u8>, u64)> {
        let mut elements = Vec::with_capacity(self.elements.len() * ELEMENT);
        let mut before = 0;
        for (at, Element { key, value, page }) in self.elements.iter().enumerate() {
            let place = ((self.elements.len() - at) * ELEMENT) as u32 + before;
            before += key + value;
            elements.extend_from_slice(&element(match flags {
                BRANCH => [place, *key, *page as u32, (*page >> 32) as u32],
                _ => [of_elements, place, *key, *value],
            }));
        }
        let count = self.elements.len();
        let id = out.page(flags, count, &elements, &self.bytes, self.bytes.len() as u64)?;
        out.pad(self.len() as u64)?;
        let first = self.elements.first().map_or(0, |first| first.key as usize);
        let first = self.bytes[..first].to_vec();
        self.elements.clear();
        self.bytes.clear();
        self.bytes.shrink_to(PAGE);
        Ok((first, id))
    }
}

impl Tree {
    fn new(flags: u32, account: &Account) -> Result<Self> {
        let memory = account.try_reserve(LEVEL_BYTES)?;
        Ok(Self { flags, levels: vec![Filling::default()], last: Vec::new(), memory })
    }

    fn push(&mut self, out: &mut Out<'_>, key: &[u8], len: u64, pieces: Pieces<'_>) -> Result<()> {
        check_key(key)?;
        if key <= &self.last[..] {
            return Err(Error::bug("records of a bucket were not in order"));
        }
        if len > VALUE_MAX {
            return Err(Error::too_large(format!("a value of {len} bytes does not fit into a bbolt file")));
        }
        if key.len() > PAGE {
            // It may stand in branches too, and as the last key.
            self.memory.grow(3 * key.len() as u64)?;
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        let more = key.len() as u64 + len;
        if !self.levels[0].has_room(more) && !self.levels[0].elements.is_empty() {
            self.write(0, out)?;
        }
        let leaf = &mut self.levels[0];
        if !leaf.has_room(more) {
            return self.write_large(out, key, len, pieces);
        }
        let from = leaf.bytes.len() + key.len();
        leaf.bytes.extend_from_slice(key);
        pieces(&mut |piece| {
            check_length((leaf.bytes.len() - from + piece.len()) as u64, len, true)?;
            leaf.bytes.extend_from_slice(piece);
            Ok(())
        })?;
        check_length((leaf.bytes.len() - from) as u64, len, false)?;
        leaf.elements.push(Element { key: key.len() as u32, value: len as u32, page: 0 });
        Ok(())
    }

    /// A record that has a page, and more, of its own.
    fn write_large(&mut self, out: &mut Out<'_>, key: &[u8], len: u64, pieces: Pieces<'_>) -> Result<()> {
        let head = element([self.flags, ELEMENT as u32, key.len() as u32, len as u32]);
        let id = out.page(LEAF, 1, &head, key, key.len() as u64 + len)?;
        let mut written = 0;
        pieces(&mut |piece| {
            written += piece.len() as u64;
            check_length(written, len, true)?;
            (out.out)(piece)
        })?;
        check_length(written, len, false)?;
        out.pad((HEAD + ELEMENT + key.len()) as u64 + len)?;
        self.note(1, key, id, out)
    }

    /// A level is full, or all that there will be.
    fn write(&mut self, level: usize, out: &mut Out<'_>) -> Result<()> {
        let flags = if level == 0 { LEAF } else { BRANCH };
        let (first, id) = self.levels[level].write(flags, self.flags, out)?;
        self.note(level + 1, &first, id, out)
    }

    /// A page was written, which the level above it names.
    fn note(&mut self, level: usize, first: &[u8], page: u64, out: &mut Out<'_>) -> Result<()> {
        if level == self.levels.len() {
            self.memory.grow(LEVEL_BYTES)?;
            self.levels.push(Filling::default());
        }
        if !self.levels[level].has_room(first.len() as u64) && self.levels[level].elements.len() > 1 {
            self.write(level, out)?;
        }
        let branch = &mut self.levels[level];
        branch.bytes.extend_from_slice(first);
        branch.elements.push(Element { key: first.len() as u32, value: 0, page });
        Ok(())
    }

    /// Writes what is left. The number of its root.
    fn end(&mut self, out: &mut Out<'_>) -> Result<u64> {
        let mut level = 0;
        loop {
            let is_top = level + 1 == self.levels.len();
            let filling = &mut self.levels[level];
            match &filling.elements[..] {
                // One page is its own root.
                [only] if is_top && level > 0 => return Ok(only.page),
                [] if level > 0 || !is_top => {}
                _ if is_top => {
                    let flags = if level == 0 { LEAF } else { BRANCH };
                    return filling.write(flags, self.flags, out).map(|(_, id)| id);
                }
                _ => self.write(level, out)?,
            }
            level += 1;
        }
    }
}

fn check_length(written: u64, len: u64, is_so_far: bool) -> Result<()> {
    match written == len || is_so_far && written < len {
        true => Ok(()),
        false => Err(Error::corrupt(format!("a value of {len} bytes was handed out as {written}"))),
    }
}
