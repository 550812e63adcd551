//! Numbers of as many bytes as they need: seven bits a byte, little end first (LEB128); signed ones zigzag, so that small
//! negative numbers are short too.

/// Bytes of the longest number.
pub const VARINT_MAX: usize = 10;

pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Bytes of `number`.
pub fn len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// The number at `at`, which moves behind it; `None`: the bytes end before it does, or it is longer than any number.
#[inline]
pub fn get(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    *at += 1;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    let mut number = u64::from(first & 0x7f);
    for shift in (7..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            // The tenth byte has room for one bit.
            return (shift < 63 || byte < 2).then_some(number);
        }
    }
    None
}

pub fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, zigzag(number));
}

#[inline]
pub fn get_signed(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let number = get(bytes, at)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(number in any::<u64>(), shift in 0u32..64) {
            let number = number >> shift;
            let mut out = Vec::new();
            put(&mut out, number);
            prop_assert_eq!(out.len(), len(number));
            prop_assert!(out.len() <= VARINT_MAX);
            put_signed(&mut out, number as i64);
            put_signed(&mut out, (number as i64).wrapping_neg());
            let mut at = 0;
            prop_assert_eq!(get(&out, &mut at), Some(number));
            prop_assert_eq!(get_signed(&out, &mut at), Some(number as i64));
            prop_assert_eq!(get_signed(&out, &mut at), Some((number as i64).wrapping_neg()));
            prop_assert_eq!(at, out.len());
        }

        #[test]
        fn whatever_stands_there_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut at = 0;
            _ = get(&bytes, &mut at);
            prop_assert!(at <= bytes.len());
        }
    }
}
