//! Which requests of a group commit are there as a whole.
//!
//! ```text
//!   group     part 7 ─ record 8 ─ part 7 ─ record 7 ─ part 9 ─ ▒▒▒▒
//!             │        whole                 whole    cut
//!             └─ first part: read ahead to the group's end, note where each request with parts ends, go back
//! ```
//!
//! Records are handed on in the order in which they stand. What is noted is bounded by the requests with parts of one group
//! commit, and a part that is not the last of a long request is tens of KiB long.

use crate::files::LogFile;
use crate::format::{Header, Kind};
use crate::walk::step;
use crate::window::Window;
use ramekin_base::Result;
use ramekin_memory::{Account, Reservation};
use std::collections::BTreeMap;

/// What the note of one request takes.
const NOTE_BYTES: u64 = 64;

/// The group that is being read.
pub(crate) struct Group {
    /// Where it began, as its records say.
    durable: Option<u64>,
    /// It has been read ahead from a part of it on.
    known: bool,
    /// Requests that have parts here, and where the last record of each stands; 0: it has none.
    ends: BTreeMap<u32, u64>,
    /// The first part of a request that does not end here, if no whole one stands behind it.
    open_from: Option<u64>,
    memory: Reservation,
}

impl Group {
    pub(crate) fn new(account: &Account) -> Result<Self> {
        let memory = account.try_reserve(0)?;
        Ok(Self { durable: None, known: false, ends: BTreeMap::new(), open_from: None, memory })
    }

    /// Where what is not whole begins at the end of what was read.
    pub(crate) fn open_from(&self) -> Option<u64> {
        self.open_from
    }

    /// Whether the request of the record at `offset` is there to its end.
    pub(crate) fn is_whole(
        &mut self,
        window: &mut Window<'_>,
        file: &LogFile,
        offset: u64,
        header: &Header,
        readable: u64,
    ) -> Result<bool> {
        if self.durable != Some(header.durable) {
            self.durable = Some(header.durable);
            self.known = false;
            self.open_from = None;
            self.ends.clear();
        }
        if header.kind == Kind::Record {
            self.open_from = None;
            return Ok(true);
        }
        if !self.known {
            self.read_ahead(window, file, offset, header.durable, readable)?;
            self.known = true;
        }
        let is_whole = self.ends.get(&header.request).is_some_and(|end| *end > offset);
        self.open_from = if is_whole { None } else { self.open_from.or(Some(offset)) };
        Ok(is_whole)
    }

    fn read_ahead(
        &mut self,
        window: &mut Window<'_>,
        file: &LogFile,
        mut offset: u64,
        durable: u64,
        readable: u64,
    ) -> Result<()> {
        while let Ok(header) = step(window, file, offset, readable)? {
            if header.durable != durable || header.kind == Kind::End {
                break;
            }
            if header.kind == Kind::Part && !self.ends.contains_key(&header.request) {
                self.memory.resize((self.ends.len() as u64 + 1) * NOTE_BYTES)?;
                self.ends.insert(header.request, 0);
            } else if header.kind == Kind::Record
                && let Some(end) = self.ends.get_mut(&header.request)
            {
                *end = offset;
            }
            offset = header.next(offset);
        }
        Ok(())
    }
}
