//! A typed buffer that an account pays for before it exists.
//!
//! Builds hold a few large arrays for a short time; they are mapped (see [`Aligned`]), so the kernel
//! has their bytes back the moment they are dropped.

use ramekin_base::{Error, Result};
use ramekin_disk::Aligned;
use ramekin_memory::Account;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use zerocopy::{FromBytes, IntoBytes};

/// `len` values of `T`, zero at first.
pub(crate) struct Buffer<T> {
    bytes: Aligned,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes> Buffer<T> {
    pub(crate) fn new(account: &Account, len: usize) -> Result<Self> {
        const { assert!(align_of::<T>() <= ramekin_disk::ALIGN) }
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| Error::too_large("the buffer is too large"))?;
        Ok(Self { bytes: Aligned::new(account, bytes)?, len, kind: PhantomData })
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` values of plain bytes at an address aligned for any `T` (see `new`), which we own.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_mut_ptr().cast(), self.len) }
    }
}
