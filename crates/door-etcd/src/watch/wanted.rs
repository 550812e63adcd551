//! Keys that somebody watches.
//!
//! ```text
//!   [a, c) [b, d) [f]  ─► [a, d) [f]  ─► of a key, the last range that begins at it or before: is it in there?
//! ```

/// Whether a key is in a range, as etcd writes them: an empty end is one key, and a zero byte all from one on.
pub(super) fn contains(from: &[u8], end: &[u8], key: &[u8]) -> bool {
    match end {
        [] => key == from,
        [0] => from <= key,
        _ => from <= key && key < end,
    }
}

/// Keys that somebody watches: as ranges none of which touches another, in their order.
pub(super) struct Wanted(pub(super) Vec<(Vec<u8>, Vec<u8>)>);

impl Wanted {
    /// Of ranges in the order of their first keys.
    pub(super) fn new(ranges: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Self {
        let mut merged: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for (from, end) in ranges {
            match merged.last_mut() {
                // It is within the one before.
                Some((first, last)) if contains(first, last, &from) => {
                    let is_longer = *last != [0] && (end == [0] || end > *last);
                    if is_longer {
                        *last = end;
                    }
                }
                _ => merged.push((from, end)),
            }
        }
        Self(merged)
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        let place = self.0.partition_point(|(from, _)| &**from <= key);
        place.checked_sub(1).and_then(|place| self.0.get(place)).is_some_and(|(from, end)| contains(from, end, key))
    }
}
