//! Who stays in memory and who leaves.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests stop at any error and damage files")]

mod common;

use common::{World, content};
use ramekin_base::limits::PAGE;
use ramekin_base::{Kind, nonblocking};
use ramekin_pages::{PAGE_COST, Priority, RESERVE, Section};

/// Pages that the cache holds of its reserve; the others of it are bypass buffers.
const LEAST_CACHED: usize = 256;

/// How many of the pages are in memory, found by reading them and counting misses.
fn misses(world: &World, section: &Section, pages: std::ops::Range<usize>) -> u64 {
    let before = world.pages.stats().misses;
    pages.for_each(|page| world.check(section, page).unwrap());
    world.pages.stats().misses - before
}

#[test]
fn a_fetch_reads_what_is_missing_as_one_batch() {
    let world = World::new(64 << 20);
    let (a, b) = (world.file("a", &[(100, Priority::Vectors)]), world.file("b", &[(100, Priority::Vectors)]));
    let (a, b) = (a.section(0).unwrap(), b.section(0).unwrap());
    world.check(&a, 10).unwrap();
    let before = world.pages.disk().counters();
    let mut fetch = world.pages.fetch();
    let wants = [(&a, 8..14), (&b, 50..90), (&a, 40..41), (&a, 12..16), (&b, 50..50)];
    let wants = wants
        .map(|(section, pages)| (fetch.want(section, (pages.start * PAGE) as u64, pages.len() * PAGE).unwrap(), pages));
    let pinned = fetch.run().unwrap();
    let after = world.pages.disk().counters();
    assert_eq!(after.batches - before.batches, 1);
    // 8-9, 11-15, 40; 50-65, 66-81, 82-89.
    assert_eq!(after.reads - before.reads, 6);
    assert_eq!(after.read_bytes - before.read_bytes, (2 + 5 + 1 + 40) * PAGE as u64);
    for (want, pages) in wants {
        let whole: Vec<u8> = pages.flat_map(|page| content(0, page)).collect();
        assert!(pinned.bytes(want) == whole);
    }
    let mut again = pinned.again();
    let one = again.want(&b, 60 * PAGE as u64 + 5, 3).unwrap();
    assert_eq!(again.run().unwrap().bytes(one), &content(0, 60)[5..8]);
    assert_eq!(world.pages.disk().counters(), after);
}

#[test]
fn a_thread_that_may_not_wait_gets_what_is_in_memory_and_is_refused_the_rest() {
    let world = World::new(64 << 20);
    let section = world.file("a", &[(100, Priority::Vectors)]).section(0).unwrap();
    world.check(&section, 10).unwrap();
    let before = world.pages.disk().counters();
    nonblocking::scope(|| {
        world.check(&section, 10).unwrap();
        for pages in [11..12, 8..14, 0..100] {
            let mut fetch = world.pages.fetch();
            fetch.want(&section, (pages.start * PAGE) as u64, pages.len() * PAGE).unwrap();
            assert_eq!(fetch.run().map(|_| ()).unwrap_err().kind(), Kind::Busy);
        }
    });
    assert_eq!(world.pages.disk().counters(), before);
    // Nothing is left behind of what was refused: pins, or claims that others would wait for.
    assert_eq!(misses(&world, &section, 0..100), 99);
    section.load().unwrap();
    nonblocking::scope(|| world.check(&section, 50)).unwrap();
}

#[test]
fn others_need_takes_cached_pages_first_then_sections_lowest_first() {
    let world = World::new(9 << 20);
    let file = world.file("a", &[(400, Priority::WideCodes), (300, Priority::NarrowCodes), (900, Priority::Vectors)]);
    let [wide, narrow, vectors] = [0, 1, 2].map(|tag| file.section(tag).unwrap());
    narrow.load().unwrap();
    wide.load().unwrap();
    assert_eq!(misses(&world, &vectors, 0..900), 900);
    // A section that cannot fit pushes nothing out.
    let large = world.file("b", &[(1300, Priority::Ids)]).section(0).unwrap();
    assert_eq!((large.load().unwrap_err().kind(), misses(&world, &vectors, 0..900)), (Kind::Busy, 0));
    let other = world.budget.root().child("other", "");

    let free = world.budget.free();
    let held = other.try_reserve(free + (1 << 20)).unwrap();
    let stats = world.pages.stats();
    assert!(stats.cached_bytes <= (900 - 256) * PAGE as u64 && wide.is_resident() && narrow.is_resident());
    drop(held);

    // More than all cached pages: the wide codes go, the narrow ones stay.
    let held = other.try_reserve(world.budget.limit() - world.account.used() - RESERVE - 600 * PAGE_COST).unwrap();
    assert!(!wide.is_resident() && narrow.is_resident());
    assert_eq!(world.pages.stats().cached_bytes, LEAST_CACHED as u64 * PAGE as u64);
    // The reserve still serves queries of any part.
    misses(&world, &wide, 0..400);
    assert_eq!(wide.load().unwrap_err().kind(), Kind::Busy);
    assert!(narrow.is_resident(), "loading a section does not push out another one");
    drop(held);
    wide.load().unwrap();
    // What others do the work of leaves before them.
    narrow.redundant_with([&wide].into_iter());
    let held = other.try_reserve(world.budget.free() + PAGE_COST * 256).unwrap();
    assert!(wide.is_resident() && !narrow.is_resident());
    drop(held);
    // Where it would not be enough it stays, as the worthier one.
    narrow.load().unwrap();
    let held = other.try_reserve(world.budget.free() + PAGE_COST * 350).unwrap();
    assert!(!wide.is_resident() && narrow.is_resident());
    drop(held);
    wide.load().unwrap();
    assert!(wide.resident().unwrap().chunks(PAGE).enumerate().all(|(page, bytes)| bytes == content(0, page)));
}

#[test]
fn worthier_pages_stay_longer_and_a_scan_does_not_push_out_what_is_in_use() {
    let world = World::new(5 << 20);
    let file = world.file("a", &[(150, Priority::Ids), (100, Priority::Vectors), (3000, Priority::Vectors)]);
    let [ids, hot, scan] = [0, 1, 2].map(|tag| file.section(tag).unwrap());
    assert_eq!(misses(&world, &ids, 0..150), 150);
    misses(&world, &hot, 0..100);
    assert_eq!(misses(&world, &hot, 0..100), 0);
    // Scanned once through the cache, a fifth more than fits; used pages are touched in between.
    for start in (0..1200).step_by(100) {
        misses(&world, &scan, start..start + 100);
        assert_eq!(misses(&world, &hot, 0..100), 0, "at {start}");
    }
    assert_eq!(world.pages.stats().evictions, 0, "what is read once pushes nothing out");
    // Scanned again and again, it is taken in, at the cost of its own.
    for start in (900..1200).step_by(50).flat_map(|start| [start, start]) {
        misses(&world, &scan, start..start + 50);
        assert_eq!(misses(&world, &hot, 0..100), 0, "at {start}");
    }
    assert!(world.pages.stats().evictions > 0);
    assert_eq!(misses(&world, &scan, 1110..1160), 0);
    assert_eq!(misses(&world, &ids, 0..150), 0);
}

#[test]
fn a_fetch_that_finds_everything_pinned_is_busy_and_harmless() {
    let world = World::new(RESERVE + (2 << 20));
    let file = world.file("a", &[(1000, Priority::Vectors)]);
    let section = file.section(0).unwrap();
    let _others = world.budget.root().child("other", "").try_reserve(world.budget.free()).unwrap();
    let room = LEAST_CACHED;
    let mut fetch = world.pages.fetch();
    fetch.want(&section, 0, room * PAGE).unwrap();
    let pinned = fetch.run().unwrap();
    // What is read once needs no room in the cache; what is wanted again does.
    world.check(&section, room).unwrap();
    assert_eq!(world.check(&section, room).unwrap_err().kind(), Kind::Busy);
    world.check(&section, 0).unwrap();
    drop(pinned);
    world.check(&section, room).unwrap();
    assert_eq!(misses(&world, &section, room..room + 1), 0);
    let mut fetch = world.pages.fetch();
    fetch.want(&section, 0, (room + 1) * PAGE).unwrap();
    assert!(fetch.run().is_err());
    misses(&world, &section, 0..1000);
}

#[test]
fn a_section_takes_over_cached_and_pinned_pages_and_gives_them_back() {
    let world = World::new(64 << 20);
    let file = world.file("a", &[(10, Priority::Ids), (200, Priority::Ids)]);
    let section = file.section(1).unwrap();
    misses(&world, &section, 0..50);
    let mut fetch = world.pages.fetch();
    let want = fetch.want(&section, 20 * PAGE as u64, 40 * PAGE).unwrap();
    let pinned = fetch.run().unwrap();
    section.load().unwrap();
    let stats = world.pages.stats();
    assert_eq!((stats.cached_bytes, stats.resident_bytes), (0, 200 * PAGE as u64));
    assert_eq!(world.cache_account.used(), RESERVE + 200 * PAGE_COST);

    let guard = section.resident().unwrap();
    section.unload();
    assert!(section.resident().is_none(), "draining");
    assert!(guard.chunks(PAGE).enumerate().all(|(page, bytes)| bytes == content(1, page)));
    drop(guard);
    let stats = world.pages.stats();
    assert_eq!((stats.cached_bytes, stats.resident_bytes), (40 * PAGE as u64, 0));
    assert!(pinned.bytes(want).chunks(PAGE).enumerate().all(|(page, bytes)| bytes == content(1, 20 + page)));
    drop(pinned);
    assert_eq!(misses(&world, &section, 0..200), 160);

    // A load while the section drains calls the drain off.
    section.load().unwrap();
    let guard = section.resident().unwrap();
    section.unload();
    section.load().unwrap();
    assert!(section.is_resident());
    drop(guard);
    assert!(section.is_resident());
    section.unload();
    section.unload();
    assert_eq!(world.cache_account.used(), RESERVE);
}

#[test]
fn a_fetch_of_a_resident_section_pins_no_page() {
    let world = World::new(64 << 20);
    let file = world.file("a", &[(50, Priority::Ids)]);
    let section = file.section(0).unwrap();
    section.load().unwrap();
    let before = world.pages.stats();
    let mut fetch = world.pages.fetch();
    let wants: Vec<_> = (0..50).map(|page| fetch.want(&section, (page * PAGE) as u64, PAGE).unwrap()).collect();
    assert_eq!(fetch.pages(), 0);
    let pinned = fetch.run().unwrap();
    section.unload();
    assert_eq!(world.pages.stats(), before, "the fetch holds a guard");
    for (page, want) in wants.into_iter().enumerate() {
        assert_eq!(pinned.bytes(want), content(0, page));
    }
    drop(pinned);
    assert_eq!(world.pages.stats().resident_bytes, 0);
}

#[test]
fn a_section_of_another_cache_is_refused() {
    let (one, two) = (World::new(8 << 20), World::new(8 << 20));
    let section = one.file("a", &[(1, Priority::Ids)]).section(0).unwrap();
    assert_eq!(two.pages.fetch().want(&section, 0, 1).unwrap_err().kind(), Kind::Bug);
}

#[test]
fn a_smaller_budget_is_reached_at_once() {
    let world = World::new(32 << 20);
    let file = world.file("a", &[(2000, Priority::NarrowCodes), (4000, Priority::Vectors)]);
    let [codes, vectors] = [0, 1].map(|tag| file.section(tag).unwrap());
    codes.load().unwrap();
    misses(&world, &vectors, 0..4000);
    assert_eq!(world.budget.set_limit(10 << 20), 0);
    assert!(codes.is_resident() && world.budget.reserved() <= 10 << 20);
    assert_eq!(world.budget.set_limit(4 << 20), 0);
    assert!(!codes.is_resident() && world.budget.reserved() <= 4 << 20);
    misses(&world, &vectors, 0..4000);
    assert!(world.budget.reserved() <= 4 << 20);
}
