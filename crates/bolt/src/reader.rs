//! Reads a file: its buckets, and the records of each in the order of keys.
//!
//! ```text
//!   metas ─► root bucket ─► [branch ─► branch ─►] leaf: element ─► key, and where its value stands ─► next element ...
//!                            a place in each level, nothing more
//! ```
//!
//! Nothing that stands in the file is believed: each page says its own number and lies inside of the file, each element inside of its
//! page; keys only grow, and no walk looks at more pages than there are.

use crate::format::{
    BRANCH, BUCKET, ELEMENT, HEAD, Head, IS_BUCKET, KEY_MAX, LEAF, Meta, broken, long, page_sizes, words,
};
use crate::source::Source;
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};

/// Levels of a tree at most: far more than the longest file has.
const DEPTH_MAX: usize = 48;
/// Values are handed out in pieces of so many bytes at most.
const PIECE: u64 = 16 << 10;

/// An open file.
pub struct Reader<S> {
    source: S,
    meta: Meta,
    account: Account,
}

/// Where a bucket begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket(Root);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    Page(u64),
    /// A leaf in its record: where, and how long.
    Inline(u64, u64),
}

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'k> {
    pub key: &'k [u8],
    /// Its value is a bucket.
    pub is_bucket: bool,
    /// Where its value stands in the file, and how long it is.
    pub at: u64,
    pub len: u64,
}

/// A walk along the records of a bucket.
pub struct Walk<'r, S> {
    reader: &'r mut Reader<S>,
    levels: Vec<Level>,
    /// Pages that it has looked at.
    seen: u64,
    key: Vec<u8>,
    has_key: bool,
    _memory: Reservation,
}

/// Where a walk stands in a page.
struct Level {
    /// Where the page begins, and ends with what belongs to it.
    from: u64,
    to: u64,
    is_leaf: bool,
    count: u16,
    next: u16,
}

impl<S: Source> Reader<S> {
    pub fn open(mut source: S, account: &Account) -> Result<Self> {
        let meta = newest_meta(&mut source)?;
        Ok(Self { source, meta, account: account.clone() })
    }

    /// Calls `each` with the name of every bucket.
    pub fn buckets(&mut self, each: &mut dyn FnMut(&[u8], Bucket) -> Result<()>) -> Result<()> {
        let root = Bucket(Root::Page(self.meta.root));
        let mut walk = self.walk(root)?;
        while let Some(bucket) = walk.next_bucket()? {
            each(&walk.key, bucket)?;
        }
        Ok(())
    }

    /// A bucket by its name; `None`: there is none.
    pub fn bucket(&mut self, name: &str) -> Result<Option<Bucket>> {
        let mut found = None;
        self.buckets(&mut |key, bucket| {
            found = found.or((key == name.as_bytes()).then_some(bucket));
            Ok(())
        })?;
        Ok(found)
    }

    /// A walk along all records of a bucket.
    pub fn walk(&mut self, bucket: Bucket) -> Result<Walk<'_, S>> {
        let memory = self.account.try_reserve((2 * KEY_MAX + DEPTH_MAX * size_of::<Level>()) as u64)?;
        let (key, levels) = (Vec::new(), Vec::with_capacity(DEPTH_MAX));
        let mut walk = Walk { reader: self, levels, seen: 0, key, has_key: false, _memory: memory };
        match bucket.0 {
            Root::Page(page) => walk.enter(page)?,
            Root::Inline(at, len) => walk.enter_inline(at, len)?,
        }
        Ok(walk)
    }

    /// Fills `out` from a place in the file on.
    pub fn read(&mut self, at: u64, out: &mut [u8]) -> Result<()> {
        self.source.read(at, out)
    }

    /// Hands out what stands at a place in the file, in pieces.
    pub fn pieces(&mut self, at: u64, len: u64, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut piece = [0; PIECE as usize];
        let mut done = 0;
        while done < len {
            let part = &mut piece[..(len - done).min(PIECE) as usize];
            self.source.read(at + done, part)?;
            each(part)?;
            done += part.len() as u64;
        }
        Ok(())
    }

    fn head(&mut self, at: u64) -> Result<Head> {
        let mut bytes = [0; HEAD];
        self.source.read(at, &mut bytes)?;
        Ok(Head::decode(&bytes))
    }
}

/// The meta that counts: the sound one with the higher number.
fn newest_meta(source: &mut impl Source) -> Result<Meta> {
    let mut read = |at| {
        let mut bytes = [0; 128];
        source.read(at, &mut bytes).ok().and_then(|()| Meta::decode(&bytes))
    };
    let first = read(0);
    // The second one stands one page behind the first, however long a page is.
    let is_second = |(at, meta): &(u64, Meta)| meta.page == *at;
    let second = page_sizes().filter_map(|at| read(at).map(|meta| (at, meta))).find(is_second).map(|(_, meta)| meta);
    let newest = first.into_iter().chain(second).max_by_key(|meta| meta.txid);
    newest.ok_or_else(|| broken("no page at its start says that it is a bbolt file"))
}

impl<S: Source> Walk<'_, S> {
    /// The next record; `None`: there are no more.
    #[allow(clippy::should_implement_trait, reason = "a record borrows from its walk, which no Iterator can say")]
    pub fn next(&mut self) -> Result<Option<Item<'_>>> {
        loop {
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            if level.next == level.count {
                self.levels.pop();
                continue;
            }
            let at = level.from + (HEAD + usize::from(level.next) * ELEMENT) as u64;
            level.next += 1;
            let (to, is_leaf) = (level.to, level.is_leaf);
            let mut bytes = [0; ELEMENT];
            self.reader.source.read(at, &mut bytes)?;
            let [a, b, c, d] = words(&bytes);
            if !is_leaf {
                self.enter(long(c, d))?;
                continue;
            }
            let (key_at, key, len) = (at + u64::from(b), u64::from(c), u64::from(d));
            if key_at + key + len > to {
                return Err(broken("a record reaches beyond its page"));
            }
            self.take_key(key_at, key)?;
            return Ok(Some(Item { key: &self.key, is_bucket: a & IS_BUCKET != 0, at: key_at + key, len }));
        }
    }

    /// The value of the record that was last handed out, in place of what is in `out`; the caller has booked its bytes.
    pub fn value(&mut self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        out.resize(usize::try_from(len).map_err(|_| broken("a value is too long"))?, 0);
        self.reader.source.read(at, out)
    }

    /// The next record, which must be a bucket.
    fn next_bucket(&mut self) -> Result<Option<Bucket>> {
        let Some(Item { is_bucket, at, len, .. }) = self.next()? else { return Ok(None) };
        if !is_bucket || len < BUCKET as u64 {
            return Err(broken("a record of the root is no bucket"));
        }
        let mut root = [0; 8];
        self.reader.source.read(at, &mut root)?;
        let inline = || Root::Inline(at + BUCKET as u64, len - BUCKET as u64);
        Ok(Some(Bucket(match u64::from_le_bytes(root) {
            0 => inline(),
            page => Root::Page(page),
        })))
    }

    /// Keys grow along the whole walk.
    fn take_key(&mut self, at: u64, len: u64) -> Result<()> {
        let is_right = (1..=KEY_MAX as u64).contains(&len);
        let mut key = vec![0; if is_right { len as usize } else { 0 }];
        self.reader.source.read(at, &mut key)?;
        if !is_right || self.has_key && key <= self.key {
            return Err(broken("its keys are not in order"));
        }
        (self.key, self.has_key) = (key, true);
        Ok(())
    }

    /// Goes down into a page.
    fn enter(&mut self, id: u64) -> Result<()> {
        let Meta { page, high_water, .. } = self.reader.meta;
        self.seen += 1;
        if id < 2 || id >= high_water || self.seen > high_water {
            return Err(broken("a page is named that is not there, or twice"));
        }
        let too_far = || broken("a page lies beyond its end");
        let from = id.checked_mul(page).ok_or_else(too_far)?;
        let head = self.reader.head(from)?;
        let pages = u64::from(head.overflow) + 1;
        let to = pages.checked_mul(page).and_then(|bytes| from.checked_add(bytes)).ok_or_else(too_far)?;
        if head.id != id || to > self.reader.source.len() {
            return Err(broken("a page is not the one that is named"));
        }
        self.open_page(head, from, to)
    }

    fn enter_inline(&mut self, at: u64, len: u64) -> Result<()> {
        if len < HEAD as u64 {
            return Err(broken("a bucket has no page"));
        }
        let head = self.reader.head(at)?;
        if head.flags != LEAF {
            return Err(broken("the page inside of a record is no leaf"));
        }
        self.open_page(head, at, at + len)
    }

    fn open_page(&mut self, head: Head, from: u64, to: u64) -> Result<()> {
        let is_leaf = match head.flags {
            LEAF => true,
            BRANCH => false,
            _ => return Err(broken("a page is neither a branch nor a leaf")),
        };
        let elements = (HEAD + usize::from(head.count) * ELEMENT) as u64;
        if from + elements > to || self.levels.len() == DEPTH_MAX {
            return Err(broken("a page has more elements, or a tree more levels, than there can be"));
        }
        self.levels.push(Level { from, to, is_leaf, count: head.count, next: 0 });
        Ok(())
    }
}

/// Told of a bucket's name, a key and its value.
type Each<'a> = dyn FnMut(&[u8], &[u8], &[u8]) + 'a;

/// Calls `each` with the bucket, the key and the first bytes of the value of every record.
pub(crate) fn read_all(bytes: &[u8], account: &Account, each: &mut Each<'_>) -> Result<()> {
    let mut reader = Reader::open(bytes, account)?;
    let mut buckets = Vec::new();
    reader.buckets(&mut |name, bucket| {
        buckets.push((name.to_vec(), bucket));
        Ok(())
    })?;
    for (name, bucket) in buckets {
        let mut walk = reader.walk(bucket)?;
        let mut value = Vec::new();
        while let Some(Item { key, at, len, .. }) = walk.next()? {
            let key = key.to_vec();
            walk.value(at, len, &mut value)?;
            each(&name, &key, &value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::Writer;
    use proptest::prelude::*;
    use ramekin_memory::Budget;
    use std::collections::BTreeMap;

    type Records = BTreeMap<Vec<u8>, Vec<u8>>;

    fn written(buckets: &BTreeMap<String, Records>) -> Vec<u8> {
        let account = Budget::new(16 << 20).root();
        let mut pages = Vec::new();
        let mut out = |bytes: &[u8]| {
            pages.extend_from_slice(bytes);
            Ok(())
        };
        let mut writer = Writer::new(&account, &mut out).unwrap();
        for (name, records) in buckets.iter().rev() {
            let mut bucket = writer.bucket(name).unwrap();
            records.iter().for_each(|(key, value)| bucket.push(key, value).unwrap());
            bucket.end().unwrap();
        }
        let (metas, len) = writer.finish().unwrap();
        let file = [metas, pages].concat();
        assert_eq!((file.len() as u64, file.len() % crate::PAGE), (len, 0));
        assert_eq!(account.used(), 0);
        file
    }

    fn read(file: &[u8]) -> Result<BTreeMap<String, Records>> {
        let account = Budget::new(16 << 20).root();
        let mut all: BTreeMap<String, Records> = BTreeMap::new();
        read_all(file, &account, &mut |name, key, value| {
            let name = String::from_utf8_lossy(name).into_owned();
            assert!(all.entry(name).or_default().insert(key.to_vec(), value.to_vec()).is_none());
        })?;
        Ok(all)
    }

    /// Many small records, some of more than a page, and keys of several lengths.
    fn many(count: u32) -> Records {
        (0..count)
            .map(|number| {
                let key = [&number.to_be_bytes()[..], &vec![b'k'; (number % 300) as usize]].concat();
                let len = if number % 97 == 0 { 10_000 } else { number % 70 };
                (key, vec![number as u8; len as usize])
            })
            .collect()
    }

    #[test]
    fn what_was_written_is_read_back() {
        let long = Records::from([(vec![1; KEY_MAX], vec![7; 3]), (vec![2; KEY_MAX], vec![8; 100_000])]);
        let buckets: BTreeMap<String, Records> = [
            ("key", many(20_000)),
            ("one", Records::from([(b"a".to_vec(), Vec::new())])),
            ("long", (0..40).map(|at| (vec![at + 3; KEY_MAX - 5], vec![at])).chain(long).collect()),
            ("large", Records::from([(b"b".to_vec(), vec![3; 1 << 20])])),
        ]
        .map(|(name, records)| (name.to_owned(), records))
        .into();
        assert_eq!(read(&written(&buckets)).unwrap(), buckets);
        // Buckets without records are there too.
        let empty = written(&[("empty".to_owned(), Records::new())].into());
        let mut reader = Reader::open(&empty[..], &Budget::new(1 << 20).root()).unwrap();
        let bucket = reader.bucket("empty").unwrap().unwrap();
        assert_eq!(reader.walk(bucket).unwrap().next().unwrap(), None);
        assert_eq!(reader.bucket("other").unwrap(), None);
    }

    #[test]
    fn each_page_is_reached_once() {
        let file = written(&[("key".to_owned(), many(5000)), ("b".to_owned(), Records::new())].into());
        let mut reached = vec![0; file.len() / crate::PAGE];
        reached[..3].fill(1);
        let mut at = 3;
        while at < reached.len() {
            let from = at * crate::PAGE;
            let head = Head::decode(file[from..].first_chunk().unwrap());
            assert_eq!(head.id, at as u64);
            at += head.overflow as usize + 1;
            if head.flags == BRANCH {
                for element in file[from + HEAD..].as_chunks::<ELEMENT>().0.iter().take(head.count.into()) {
                    let [_, _, low, high] = words(element);
                    reached[long(low, high) as usize] += 1;
                }
            }
            reached[from / crate::PAGE + 1..at].fill(1);
        }
        // Roots of buckets, and the root of all, are named elsewhere.
        assert_eq!(reached.iter().filter(|times| **times == 0).count(), 3);
        assert!(reached.iter().all(|times| *times < 2));
    }

    #[test]
    fn a_tree_that_goes_in_a_circle_ends() {
        let mut file = written(&[("key".to_owned(), many(5000))].into());
        let branches: Vec<usize> = (3..file.len() / crate::PAGE)
            .map(|page| page * crate::PAGE)
            .filter(|at| {
                let head = Head::decode(file[*at..].first_chunk().unwrap());
                head.id == (*at / crate::PAGE) as u64 && head.flags == BRANCH
            })
            .collect();
        for at in branches {
            let (id, count) = ((at / crate::PAGE) as u64, usize::from(file[at + 10]));
            for element in 0..count {
                let page = at + HEAD + element * ELEMENT + 8;
                file[page..page + 8].copy_from_slice(&id.to_le_bytes());
            }
        }
        assert_eq!(read(&file).unwrap_err().kind(), ramekin_base::Kind::Corrupt);
    }

    proptest! {
        #[test]
        fn damaged_files_are_read_to_some_end(
            flips in proptest::collection::vec((0usize..60_000, any::<u8>()), 1..12),
            cut in 0usize..60_000,
        ) {
            let mut file = written(&[("key".to_owned(), many(300)), ("b".to_owned(), many(2))].into());
            let len = file.len();
            for (at, bits) in flips {
                file[at % len] ^= bits;
            }
            let _ = read(&file);
            file.truncate(cut);
            let _ = read(&file);
        }

        #[test]
        fn any_records_come_back(
            records in proptest::collection::btree_map(
                proptest::collection::vec(any::<u8>(), 1..80),
                proptest::collection::vec(any::<u8>(), 0..6000),
                1..120,
            ),
        ) {
            let buckets = BTreeMap::from([("key".to_owned(), records)]);
            prop_assert_eq!(read(&written(&buckets)).unwrap(), buckets);
        }
    }
}
