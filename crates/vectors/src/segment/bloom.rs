//! "Is this id in this segment?", answered from one byte a row: a blocked Bloom filter
//! (Putze, Sanders and Singler, WEA 2007). One id touches one block of 64 bytes, so a filter that is
//! not resident costs one page read. About 2.5 % of absent ids pass.

use ramekin_base::PointId;

/// Bytes of a block; never straddles a page.
pub(crate) const BLOCK: usize = 64;
/// Bits that an id sets in its block.
const PROBES: u32 = 5;

/// Bytes of a filter for `rows` ids.
pub(crate) fn bytes(rows: usize) -> usize {
    rows.div_ceil(BLOCK).max(1) * BLOCK
}

/// The block of an id, and the hash that names its bits there.
pub(crate) fn place(id: PointId, blocks: usize) -> (usize, u64) {
    let hash = id.hash64();
    let block = (u128::from(hash) * blocks as u128) >> 64;
    (block as usize, ramekin_base::rng::mix(hash))
}

fn bits(hash: u64) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |probe| (hash >> (9 * probe)) as usize % (BLOCK * 8))
}

pub(crate) fn insert(block: &mut [u8], hash: u64) {
    bits(hash).for_each(|bit| block[bit / 8] |= 1 << (bit % 8));
}

pub(crate) fn may_hold(block: &[u8], hash: u64) -> bool {
    bits(hash).all(|bit| block[bit / 8] >> (bit % 8) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_all_and_few_others() {
        let mut filter = vec![0; bytes(10_000)];
        let blocks = filter.len() / BLOCK;
        for number in 0..10_000 {
            let (block, hash) = place(PointId::Num(number), blocks);
            insert(&mut filter[block * BLOCK..][..BLOCK], hash);
        }
        let held = |number: u64| {
            let (block, hash) = place(PointId::Num(number), blocks);
            may_hold(&filter[block * BLOCK..][..BLOCK], hash)
        };
        assert!((0..10_000).all(held));
        let wrong = (10_000..110_000).filter(|number| held(*number)).count();
        assert!(wrong < 5_000, "{wrong} of 100,000 absent ids passed");
    }
}
