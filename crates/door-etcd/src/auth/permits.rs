//! The keys that a user may read or write: ranges of all its roles, joined where they meet.

use crate::wire::authpb::Permission;
use crate::wire::authpb::permission::Type;
use ramekin_versions::KeyRange;

/// Ranges in order, none of which meets the next; `None`: without end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Union(Vec<(Vec<u8>, Option<Vec<u8>>)>);

/// What the roles of a user permit.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    read: Union,
    write: Union,
}

/// What follows a range; `None`: it has no end.
fn end_of(key: &[u8], end: &[u8]) -> Option<Vec<u8>> {
    match end {
        [] => Some([key, &[0]].concat()),
        [0] => None,
        end => Some(end.to_vec()),
    }
}

impl Union {
    fn of(mut ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> Self {
        ranges.sort();
        let mut joined: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        for (from, to) in ranges {
            match joined.last_mut() {
                Some((_, last)) if last.as_ref().is_none_or(|last| *last >= from) => {
                    // `None` is the end of all.
                    if last.is_some() && (to.is_none() || to > *last) {
                        *last = to;
                    }
                }
                _ => joined.push((from, to)),
            }
        }
        Self(joined)
    }

    fn contains(&self, keys: &KeyRange) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= keys.key);
        let Some((from, to)) = after.checked_sub(1).and_then(|at| self.0.get(at)) else { return false };
        match (to, end_of(&keys.key, &keys.end)) {
            // A range that ends before it begins must lie inside too.
            (_, Some(end)) if end <= *from => false,
            (None, _) => true,
            (Some(_), None) => false,
            (Some(to), Some(end)) => keys.key < *to && end <= *to,
        }
    }
}

/// A range in both of the lists while they are sorted and joined, without the bytes of its bounds.
const RANGE_BYTES: u64 = 2 * (2 * 48 + 64);

impl Permits {
    /// What they take for a permission, at most.
    pub(crate) fn bytes(permission: &Permission) -> u64 {
        RANGE_BYTES + 4 * (permission.key.len() + permission.range_end.len() + 1) as u64
    }

    pub(crate) fn of<'p>(permissions: impl Iterator<Item = &'p Permission>) -> Self {
        let (mut read, mut write) = (Vec::new(), Vec::new());
        for permission in permissions {
            let range = (permission.key.clone(), end_of(&permission.key, &permission.range_end));
            match permission.perm_type() {
                Type::Read => read.push(range),
                Type::Write => write.push(range),
                Type::Readwrite => {
                    read.push(range.clone());
                    write.push(range);
                }
            }
        }
        Self { read: Union::of(read), write: Union::of(write) }
    }

    pub(crate) fn may_read(&self, keys: &KeyRange) -> bool {
        self.read.contains(keys)
    }

    pub(crate) fn may_write(&self, keys: &KeyRange) -> bool {
        self.write.contains(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(kind: Type, key: &str, end: &str) -> Permission {
        Permission { perm_type: kind as i32, key: key.into(), range_end: end.into() }
    }

    #[test]
    fn ranges_of_roles_are_joined_where_they_meet() {
        let all = [
            permission(Type::Read, "c", "f"),
            permission(Type::Readwrite, "a", "c"),
            permission(Type::Write, "k", ""),
            permission(Type::Read, "x", "\0"),
        ];
        let permits = Permits::of(all.iter());
        let range = |key: &str, end: &str| KeyRange { key: key.into(), end: end.into() };
        for (key, end, read, write) in [
            ("a", "", true, true),
            ("a", "f", true, false),
            ("a", "c", true, true),
            ("a", "g", false, false),
            ("f", "", false, false),
            ("k", "", false, true),
            ("k", "k\0", false, true),
            ("ka", "", false, false),
            ("x", "\0", true, false),
            ("w", "\0", false, false),
            ("zz", "zzz", true, false),
            // Empty ranges, too.
            ("f", "b", false, false),
            ("e", "b", true, false),
            ("0", "b", false, false),
        ] {
            assert_eq!(permits.may_read(&range(key, end)), read, "read {key:?} to {end:?}");
            assert_eq!(permits.may_write(&range(key, end)), write, "write {key:?} to {end:?}");
        }
    }

    #[test]
    fn a_range_inside_of_another_one_does_not_shorten_it() {
        let all = [permission(Type::Read, "a", "\0"), permission(Type::Read, "b", "c")];
        let permits = Permits::of(all.iter());
        assert!(permits.may_read(&KeyRange { key: b"d".to_vec(), end: vec![0] }));
    }
}
