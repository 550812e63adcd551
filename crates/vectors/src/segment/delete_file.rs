//! The file that keeps a segment's dead rows: a bitmap; the next version replaces it.

use crate::memtable::delete_bitmap::DeleteBitmap;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use ramekin_pages::Priority;
use ramekin_storage::Storage;

/// Section of a `.dead` file: the bitmap, 8 bytes a word.
const DEAD: u32 = 1;

/// A `.dead` file.
#[derive(Clone)]
pub(crate) struct DeleteFile {
    pub(crate) name: String,
    /// Dead rows in it.
    pub(crate) dead: u64,
}

/// Bytes of a bitmap of so many rows.
pub(crate) fn bitmap_bytes(rows: usize) -> u64 {
    rows.div_ceil(64) as u64 * 8
}

impl DeleteFile {
    /// Writes which of so many rows are dead.
    pub(crate) fn write(storage: &Storage, rows: u32, dead: &DeleteBitmap, account: &Account) -> Result<Self> {
        let path = storage.new_path("dead");
        let mut out = storage.pages().create(&path, account)?;
        out.begin(DEAD, Priority::Ids)?;
        for index in 0..(rows as usize).div_ceil(64) {
            out.write(&dead.word(index).to_le_bytes())?;
        }
        out.end()?;
        out.finish(b"{}")?;
        Ok(Self { name: storage.name_of(&path)?, dead: dead.count() })
    }

    /// Shows the dead ones of so many rows.
    pub(crate) fn read(
        storage: &Storage,
        name: &str,
        rows: u32,
        account: &Account,
        each: &mut dyn FnMut(u32),
    ) -> Result<()> {
        let (file, rows) = (storage.open_file(name)?, rows as usize);
        let section = file.section(DEAD).ok_or_else(|| Error::corrupt("an overlay without its bitmap").at(name))?;
        if section.len() != bitmap_bytes(rows) {
            return Err(Error::corrupt("an overlay of another size than its segment").at(name));
        }
        let mut bytes = [0; 8];
        let mut stream = section.stream(account, 64 << 10)?;
        for index in 0..rows.div_ceil(64) {
            stream.read_exact(&mut bytes)?;
            let word = u64::from_le_bytes(bytes);
            // The last word has bits for rows that there are not.
            if rows / 64 == index && word >> (rows % 64) != 0 {
                return Err(Error::corrupt("an overlay names rows that are not there").at(name));
            }
            (0..64).filter(|bit| word >> bit & 1 == 1).for_each(|bit| each((index * 64) as u32 + bit));
        }
        Ok(())
    }
}
