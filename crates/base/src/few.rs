//! A list of at most so many elements, in place: it takes no memory beside itself.

use std::ops::{Deref, DerefMut};

/// Up to `N` elements.
#[derive(Debug, Clone, Copy)]
pub struct Few<T, const N: usize> {
    list: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    pub fn new() -> Self {
        Self { list: [T::default(); N], len: 0 }
    }

    /// Adds an element. False: there is no room for it.
    #[must_use]
    pub fn push(&mut self, value: T) -> bool {
        let Some(place) = self.list.get_mut(self.len) else { return false };
        (*place, self.len) = (value, self.len + 1);
        true
    }

    /// Leaves out the elements that do not hold, in one pass.
    pub fn retain(&mut self, mut holds: impl FnMut(&T) -> bool) {
        let mut kept = 0;
        for at in 0..self.len {
            if holds(&self.list[at]) {
                self.list[kept] = self.list[at];
                kept += 1;
            }
        }
        self.len = kept;
    }
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Deref for Few<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.list[..self.len]
    }
}

impl<T, const N: usize> DerefMut for Few<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.list[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_so_many_and_no_more() {
        let mut few = Few::<u32, 3>::new();
        assert!((1..=3).all(|number| few.push(number)) && !few.push(4));
        few.retain(|number| *number != 2);
        assert_eq!(*few, [1, 3]);
        assert!(few.push(5));
        assert_eq!(*few, [1, 3, 5]);
    }
}
