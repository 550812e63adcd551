//! Little-endian bytes in and out, with every length checked.
//!
//! A reader never panics and never allocates more than the bytes that stand before it.

use ramekin_base::{Error, PointId, Result};

/// Reads fields off the front of a record.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next byte in the record.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| Error::corrupt(format!("record ends before byte {} of {len}", self.at)))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of items of `size` bytes each that must still stand before us.
    pub(crate) fn count(&mut self, size: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count.saturating_mul(size) > self.bytes.len() - self.at {
            return Err(Error::corrupt(format!("record claims {count} items, more than it holds")));
        }
        Ok(count)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.count(1)?;
        self.take(len)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Error::corrupt("record holds text that is not UTF-8"))
    }

    pub(crate) fn id(&mut self) -> Result<PointId> {
        PointId::from_key(&self.array::<17>()?).ok_or_else(|| Error::corrupt("record holds a broken point id"))
    }

    pub(crate) fn floats(&mut self, count: usize, out: &mut Vec<f32>) -> Result<()> {
        let len = count.checked_mul(4).ok_or_else(|| Error::corrupt("record claims too many floats"))?;
        let bytes = self.take(len)?;
        out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        Ok(())
    }
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_floats(out: &mut Vec<u8>, floats: &[f32]) {
    out.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
}

/// Finds the entry of `size` bytes for which `order` says equal.
pub(crate) fn row_in(page: &[u8], size: usize, order: impl Fn(&[u8]) -> std::cmp::Ordering) -> Option<usize> {
    let (mut low, mut high) = (0, page.len() / size);
    while low < high {
        let middle = (low + high) / 2;
        match order(&page[middle * size..(middle + 1) * size]) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
            std::cmp::Ordering::Equal => return Some(middle),
        }
    }
    None
}

pub(crate) fn read_number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

pub(crate) fn read_uuid(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte))
}
