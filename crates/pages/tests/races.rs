//! Many threads over one small cache. Every page says which it is, so a reader that ever sees the
//! zeros of an evicted page, or a page of another file, fails at once.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests stop at any error and damage files")]

mod common;

use common::{World, content};
use ramekin_base::limits::PAGE;
use ramekin_base::{Kind, Rng};
use ramekin_pages::{LEAST_CACHED, PAGE_COST, Priority, RESERVE};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ROUNDS: usize = if cfg!(debug_assertions) { 1500 } else { 6000 };

#[test]
fn readers_never_see_zeros_while_pages_come_and_go() {
    let world = World::new(RESERVE + (3 << 20));
    let file = world.file("a", &[(800, Priority::Vectors), (800, Priority::NarrowCodes)]);
    let other = world.budget.root().child("other", "");
    let (stop, read) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (world, file, stop, read) = (&world, &file, &stop, &read);
        let readers: Vec<_> = (0..4)
            .map(|seed| {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    let sections = [file.section(0).unwrap(), file.section(1).unwrap()];
                    for _ in 0..ROUNDS {
                        let mut fetch = world.pages.fetch();
                        let mut wants = Vec::new();
                        for _ in 0..rng.below(12) {
                            let section = &sections[rng.below(2) as usize];
                            let (page, len) = (rng.below(800) as usize, 1 + rng.below(4) as usize);
                            let len = len.min(800 - page);
                            let want = fetch.want(section, (page * PAGE) as u64, len * PAGE).unwrap();
                            wants.push((want, section.tag(), page));
                        }
                        let pinned = fetch.run().unwrap();
                        for (want, tag, page) in wants {
                            for (number, bytes) in pinned.bytes(want).chunks(PAGE).enumerate() {
                                assert!(bytes == content(tag, page + number));
                                read.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                })
            })
            .collect();
        // Someone else takes and returns nearly all memory, again and again.
        scope.spawn(|| {
            let mut rng = Rng::new(99);
            while !stop.load(Ordering::Relaxed) {
                let held = other.try_reserve(rng.below(3 << 20));
                std::thread::yield_now();
                drop(held);
                world.pages.evict_all();
            }
        });
        let outcomes: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(|outcome| outcome.is_ok()));
    });
    assert!(read.load(Ordering::Relaxed) > 0 && world.pages.stats().evictions > 100);
    drop(file);
    assert_eq!(world.cache_account.used(), RESERVE);
}

#[test]
fn sections_load_and_unload_under_readers() {
    let world = World::new(RESERVE + (4 << 20));
    let file = world.file("a", &[(300, Priority::WideCodes), (300, Priority::NarrowCodes), (500, Priority::Vectors)]);
    let stop = AtomicBool::new(false);
    let slices = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (world, file, stop, slices) = (&world, &file, &stop, &slices);
        let readers: Vec<_> = (0..3)
            .map(|seed| {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    let sections = [0, 1, 2].map(|tag| file.section(tag).unwrap());
                    for _ in 0..ROUNDS {
                        let section = &sections[rng.below(3) as usize];
                        let pages = section.len() as usize / PAGE;
                        let page = rng.below(pages as u64) as usize;
                        if let Some(resident) = section.resident() {
                            slices.fetch_add(1, Ordering::Relaxed);
                            for page in [page, 0, pages - 1, pages / 2] {
                                assert!(resident[page * PAGE..][..PAGE] == content(section.tag(), page));
                            }
                        }
                        world.check(section, page).unwrap();
                    }
                })
            })
            .collect();
        for seed in 10..12 {
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let sections = [0, 1].map(|tag| file.section(tag).unwrap());
                while !stop.load(Ordering::Relaxed) {
                    let section = &sections[rng.below(2) as usize];
                    match rng.below(3) {
                        0 => section.unload(),
                        1 => drop(world.budget.root().try_reserve(rng.below(4 << 20))),
                        _ => match section.load() {
                            Ok(()) => {}
                            Err(error) => assert_eq!(error.kind(), Kind::Busy, "{error}"),
                        },
                    }
                }
            });
        }
        let outcomes: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(|outcome| outcome.is_ok()));
    });
    assert!(slices.load(Ordering::Relaxed) > 0);
    file.sections().for_each(|section| section.unload());
    let stats = world.pages.stats();
    assert_eq!(stats.resident_bytes, 0);
    let cached = (stats.cached_bytes / PAGE as u64 * PAGE_COST).max(LEAST_CACHED);
    assert_eq!(world.cache_account.used(), RESERVE - LEAST_CACHED + cached);
    world.pages.evict_all();
    assert_eq!(world.pages.stats().cached_bytes, 0);
}

#[test]
fn files_open_and_close_while_the_clock_turns() {
    let world = World::new(RESERVE + (2 << 20));
    for number in 0..6 {
        drop(world.file(&format!("f{number}"), &[(60 + number, Priority::Vectors)]));
    }
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let world = &world;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..ROUNDS / 5 {
                    let number = rng.below(6) as usize;
                    let file = world.open(&format!("f{number}"));
                    let section = file.section(0).unwrap();
                    for _ in 0..rng.below(20) {
                        world.check(&section, rng.below(60) as usize).unwrap();
                    }
                    if rng.chance(0.2) && section.load().is_ok() {
                        let page = rng.below(60) as usize;
                        if let Some(resident) = section.resident() {
                            assert!(resident[page * PAGE..][..PAGE] == content(0, page));
                        }
                    }
                    if rng.chance(0.3) {
                        world.pages.evict_all();
                    }
                }
            });
        }
    });
    assert_eq!((world.cache_account.used(), world.account.used()), (RESERVE, 0));
    let stats = world.pages.stats();
    assert_eq!((stats.cached_bytes, stats.resident_bytes), (0, 0));
}
