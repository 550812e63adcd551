//! Fetch, then execute: name the bytes that a step needs, get them all in one batch, work on slices.
//!
//! ```text
//!   want(section, at, len) × n ─► spans of pages, sorted, overlaps melted
//!   run: pin what is there ─► claim what is not ─► make room, or take bypass buffers (bypass.rs) ─► ONE batch of reads
//!        ─► wait for pages that others were reading ─► Pinned
//! ```
//!
//! Own claims are read and published before a thread waits for another one's, so no two fetches can
//! wait for each other. A fetch that finds no room lets everything go before it waits.

use crate::cache::fill::{Claims, PendingRead, unharmed};
use crate::cache::{Cache, FetchStats, FetchTally};
use crate::residency::bypass::BYPASS_PAGES;
use crate::residency::state::Pin;
use crate::{Resident, Section};
use ramekin_base::limits::PAGE;
use ramekin_base::lock::about_to_wait;
use ramekin_base::{Error, Result, cancel, nonblocking};
use std::sync::atomic::Ordering;

/// Pages of one read at most: 64 KiB.
const RUN: usize = 16;

/// Pages that are being named.
pub struct Fetch<'a> {
    cache: &'a Cache,
    fetch_stats: Option<&'a FetchTally>,
    parts: Vec<Part>,
    spans: Vec<Span<'a>>,
    guards: Vec<Resident<'a>>,
}

/// Names one part of a fetch; [`Pinned::bytes`] answers with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchTicket(u32);

/// Bytes of the region.
struct Part {
    start: usize,
    len: usize,
}

/// Neighbouring pages of one section.
struct Span<'a> {
    section: &'a Section,
    first: u32,
    end: u32,
    /// The first of the bypass buffers that hold it, if it is not in its own place.
    buffer: Option<u32>,
    /// Whether one of its pages was wanted not long before this fetch; `None`: not asked yet.
    is_known: Option<bool>,
}

/// The bytes that were wanted; they stay in memory until this is dropped.
pub struct Pinned<'a> {
    cache: &'a Cache,
    fetch_stats: Option<&'a FetchTally>,
    parts: Vec<Part>,
    spans: Vec<Span<'a>>,
    guards: Vec<Resident<'a>>,
}

impl Span<'_> {
    /// Gives back the bypass buffers that hold it. False if none do.
    fn give_bypass(&mut self, cache: &Cache) -> bool {
        let buffer = self.buffer.take();
        if let Some(buffer) = buffer {
            cache.bypass.give(buffer, self.end - self.first);
        }
        buffer.is_some()
    }
}

impl<'a> Fetch<'a> {
    pub(crate) fn new(cache: &'a Cache, fetch_stats: Option<&'a FetchTally>) -> Self {
        Self { cache, fetch_stats, parts: Vec::with_capacity(16), spans: Vec::with_capacity(16), guards: Vec::new() }
    }

    /// Names `len` bytes at `at` of a section. They will be contiguous in memory.
    pub fn want(&mut self, section: &'a Section, at: u64, len: usize) -> Result<FetchTicket> {
        let end = section.end_of(at, len as u64)?;
        if !std::ptr::eq(&**section.file().cache(), self.cache) {
            return Err(Error::bug("the section was opened through another cache"));
        }
        let base = section.first_page();
        let want = FetchTicket(self.parts.len() as u32);
        self.parts.push(Part { start: base as usize * PAGE + at as usize, len });
        if len > 0 && !self.is_guarded(section) {
            let (first, last) = (at / PAGE as u64, (end - 1) / PAGE as u64);
            self.spans.push(Span {
                section,
                first: base + first as u32,
                end: base + last as u32 + 1,
                buffer: None,
                is_known: None,
            });
        }
        Ok(want)
    }

    /// A resident section needs one guard and no pins.
    fn is_guarded(&mut self, section: &'a Section) -> bool {
        if self.guards.iter().any(|guard| guard.section().is(section)) {
            return true;
        }
        self.guards.extend(section.resident());
        self.guards.last().is_some_and(|guard| guard.section().is(section))
    }

    /// Pages named so far, twice if they were named twice.
    pub fn pages(&self) -> usize {
        self.spans.iter().map(|span| (span.end - span.first) as usize).sum()
    }

    /// Brings all pages in and pins them. `Busy` if others hold so many pages that there is no room:
    /// a fetch of at most 1 MiB finds room as soon as they let go; and where this thread may not wait, if any is not there.
    pub fn run(mut self) -> Result<Pinned<'a>> {
        // Nothing is claimed yet, so nobody waits for what is not read.
        cancel::check()?;
        if !self.spans.is_empty() && !nonblocking::is_set() {
            about_to_wait("a fetch of pages");
        }
        self.spans.sort_unstable_by_key(|span| span.first);
        self.spans.dedup_by(|next, span| {
            let melts = next.first <= span.end && next.section.is(span.section);
            if melts {
                span.end = span.end.max(next.end);
            }
            melts
        });
        let took = self.cache.retry_while_busy(|| pin_all(self.cache, &mut self.spans))?;
        self.point_to_bypass();
        if let Some(fetch_stats) = self.fetch_stats {
            fetch_stats.hits.fetch_add(took.hits, Ordering::Relaxed);
            fetch_stats.reads.fetch_add(took.reads, Ordering::Relaxed);
            fetch_stats.read_pages.fetch_add(took.read_pages, Ordering::Relaxed);
        }
        Ok(Pinned {
            cache: self.cache,
            fetch_stats: self.fetch_stats,
            parts: self.parts,
            spans: self.spans,
            guards: self.guards,
        })
    }

    /// Parts of spans that are in bypass buffers begin there.
    fn point_to_bypass(&mut self) {
        if self.spans.iter().all(|span| span.buffer.is_none()) {
            return;
        }
        for part in self.parts.iter_mut().filter(|part| part.len > 0) {
            let page = (part.start / PAGE) as u32;
            let span = &self.spans[..self.spans.partition_point(|span| span.first <= page)];
            let Some(span) = span.last().filter(|span| page < span.end) else { continue };
            if let Some(buffer) = span.buffer {
                part.start = (buffer as usize * PAGE) + (part.start - span.first as usize * PAGE);
            }
        }
    }
}

/// Pins every page of every span, or reads it into a bypass buffer. All or nothing: after an error no pin is held.
fn pin_all<'a>(cache: &'a Cache, spans: &mut [Span<'a>]) -> Result<FetchStats> {
    let (mut claims, mut waits) = (Claims::new(cache), Vec::new());
    let (mut pages, mut full) = (0, false);
    for span in &*spans {
        let priority = span.section.priority();
        pages += span.end - span.first;
        for page in span.first..span.end {
            let claim = PendingRead { file: span.section.file(), page, to: page, usage: priority.usage_first() };
            match pin_or_claim(cache, page, priority.usage_again()) {
                Outcome::Pinned => {}
                Outcome::Claimed => claims.push(claim),
                Outcome::Wait => waits.push(claim),
                Outcome::Full => {
                    full = true;
                    waits.push(claim);
                }
            }
        }
    }
    let misses = claims.len() + waits.len();
    let mut fetch_stats = FetchStats::default();
    let refused = match misses {
        _ if full => Err(too_many_pins()),
        0 => Ok(()),
        _ => nonblocking::check(),
    };
    let mut bring_in = || bring_in(cache, spans, &mut claims, &mut waits, &mut fetch_stats);
    if let Err(error) = refused.and_then(|()| unharmed(&mut bring_in)) {
        let not_ours =
            |page: u32, list: &[PendingRead<'_>]| list.binary_search_by_key(&page, |claim| claim.page).is_ok();
        // Pages that were claimed but not read are let go; the others that are neither claimed nor
        // waited for are pinned, or in bypass buffers.
        for span in spans {
            if span.give_bypass(cache) {
                continue;
            }
            for page in span.first..span.end {
                if !not_ours(page, &claims) && !not_ours(page, &waits) {
                    cache.space.state(page).unpin();
                }
            }
        }
        claims.let_go();
        return Err(error);
    }
    fetch_stats.hits = pages as u64 - misses as u64;
    cache.tally.hits.fetch_add(fetch_stats.hits, Ordering::Relaxed);
    if misses > 0 {
        cache.tally.misses.fetch_add(misses as u64, Ordering::Relaxed);
    }
    Ok(fetch_stats)
}

enum Outcome {
    Pinned,
    Claimed,
    Wait,
    Full,
}

#[inline]
fn pin_or_claim(cache: &Cache, page: u32, usage: u16) -> Outcome {
    let state = cache.space.state(page);
    match state.pin(usage) {
        Pin::Done => Outcome::Pinned,
        Pin::Out if state.claim() => Outcome::Claimed,
        Pin::Out | Pin::Moving => Outcome::Wait,
        Pin::Full => Outcome::Full,
    }
}

/// Reads what was claimed and waits for the rest. After an error nothing of `claims` and `waits` is pinned.
fn bring_in<'a>(
    cache: &Cache,
    spans: &mut [Span<'a>],
    claims: &mut Claims<'a>,
    waits: &mut Vec<PendingRead<'a>>,
    fetch_stats: &mut FetchStats,
) -> Result<()> {
    loop {
        if !claims.is_empty() {
            fetch_stats.reads += read_claims(cache, spans, claims)? as u64;
            fetch_stats.read_pages += claims.len() as u64;
            claims.published();
        }
        let Some(first) = waits.first() else { return Ok(()) };
        let state = cache.space.state(first.page);
        cache.events.wait(|| !state.is_moving())?;
        let mut full = false;
        waits.retain(|claim| match pin_or_claim(cache, claim.page, claim.usage) {
            Outcome::Pinned => false,
            Outcome::Claimed => {
                claims.push(*claim);
                false
            }
            Outcome::Wait => true,
            Outcome::Full => {
                full = true;
                true
            }
        });
        if full {
            return Err(too_many_pins());
        }
    }
}

/// Returns how many reads it took.
fn read_claims(cache: &Cache, spans: &mut [Span<'_>], claims: &mut Claims<'_>) -> Result<usize> {
    let is_room = cache.has_room(claims.len());
    if !is_room {
        to_bypass(cache, spans, claims);
    }
    let count = claims.iter().filter(|claim| !claim.is_bypassing()).count();
    cache.take_cached(count)?;
    let reads = cache.fill(claims, RUN).inspect_err(|_| {
        cache.quota.lock().give_cached(count);
    })?;
    if count > 0 {
        let mut ring = cache.ring.lock();
        for claim in claims.iter().filter(|claim| !claim.is_bypassing()) {
            cache.space.state(claim.page).publish_cached(claim.usage, 1);
            ring.push_back(claim.page);
        }
        drop(ring);
        cache.events.notify();
    }
    Ok(reads)
}

/// Spans that were claimed as a whole, and are not wanted again and again, go into bypass buffers while some are free. Their
/// pages are no longer claimed.
fn to_bypass(cache: &Cache, spans: &mut [Span<'_>], claims: &mut [PendingRead<'_>]) {
    let mut moved = false;
    for span in spans {
        let from = claims.partition_point(|claim| claim.page < span.first);
        let to = claims.partition_point(|claim| claim.page < span.end);
        let pages = span.end - span.first;
        if to - from < pages as usize || pages > BYPASS_PAGES {
            continue;
        }
        let wanted = || (span.first..span.end).filter(|page| cache.bypass.wanted_again(*page)).count();
        if *span.is_known.get_or_insert_with(|| wanted() > 0) {
            continue;
        }
        let Some(buffer) = cache.bypass.take(pages) else { continue };
        span.buffer = Some(buffer);
        for claim in &mut claims[from..to] {
            claim.to = buffer + (claim.page - span.first);
            cache.space.state(claim.page).clear();
        }
        moved = true;
    }
    if moved {
        cache.events.notify();
    }
}

fn too_many_pins() -> Error {
    Error::busy("pin count overflow: more than 1,023 concurrent readers of one page; retry")
}

impl<'a> Pinned<'a> {
    /// The bytes of one want of this fetch.
    #[inline]
    pub fn bytes(&self, want: FetchTicket) -> &[u8] {
        let part = &self.parts[want.0 as usize];
        // SAFETY: inside one section, whose pages are neighbours; all pages of the part are pinned or in
        // neighbouring buffers of ours, or the section is guarded, until `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.cache.space.address(0).add(part.start), part.len) }
    }

    /// Lets the pages go and begins anew, with the buffers of this fetch.
    pub fn again(mut self) -> Fetch<'a> {
        self.unpin();
        let (mut parts, mut guards) = (std::mem::take(&mut self.parts), std::mem::take(&mut self.guards));
        parts.clear();
        guards.clear();
        Fetch {
            cache: self.cache,
            fetch_stats: self.fetch_stats,
            parts,
            spans: std::mem::take(&mut self.spans),
            guards,
        }
    }

    fn unpin(&mut self) {
        for mut span in self.spans.drain(..) {
            if !span.give_bypass(self.cache) {
                (span.first..span.end).for_each(|page| self.cache.space.state(page).unpin());
            }
        }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.unpin();
    }
}
