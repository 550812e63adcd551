//! The page state and the section latch under a model checker that tries many interleavings. What the
//! kernel does to a page is modelled by a cell that holds a value, or zero once it was given back.

use crate::residency::latch::{self, Drain, Enter, SectionLatch, Start};
use crate::residency::state::{self, Age, Demote, PageState, Pin};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use shuttle::thread;

impl state::Atomic for AtomicU16 {
    fn load(&self, order: Ordering) -> u16 {
        AtomicU16::load(self, order)
    }

    fn store(&self, value: u16, order: Ordering) {
        AtomicU16::store(self, value, order);
    }

    fn swap_if(&self, old: u16, new: u16, order: Ordering) -> Result<u16, u16> {
        self.compare_exchange(old, new, order, Ordering::Relaxed)
    }

    fn sub(&self, value: u16, order: Ordering) -> u16 {
        self.fetch_sub(value, order)
    }
}

impl latch::Atomic for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    fn add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }

    fn sub(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_sub(value, order)
    }

    fn swap_if(&self, old: u32, new: u32, order: Ordering) -> Result<u32, u32> {
        self.compare_exchange(old, new, order, Ordering::Relaxed)
    }
}

const VALUE: u64 = 7;

fn twice(work: impl Fn()) {
    work();
    work();
}

#[derive(Default)]
struct Page {
    state: PageState<AtomicU16>,
    bytes: AtomicU64,
}

impl Page {
    /// What a fetch of this one page does; true if it could pin it.
    fn read(&self) -> bool {
        for _ in 0..4 {
            match self.state.pin(3) {
                Pin::Done => {
                    assert_eq!(self.bytes.load(Ordering::SeqCst), VALUE, "a reader saw an evicted page");
                    self.state.unpin();
                    return true;
                }
                Pin::Out if self.state.claim() => {
                    assert_eq!(self.bytes.swap(VALUE, Ordering::SeqCst), 0, "read into a page in use");
                    self.state.publish_cached(1, 1);
                    self.state.unpin();
                    return true;
                }
                _ => thread::yield_now(),
            }
        }
        false
    }

    fn discard(&self) {
        self.bytes.store(0, Ordering::SeqCst);
        self.state.clear();
    }

    fn evict(&self) {
        for _ in 0..5 {
            if self.state.age() == Age::Taken {
                return self.discard();
            }
        }
    }

    /// What loading and unloading a section does to one page.
    fn promote_and_let_go(&self) {
        while !self.state.promote() {
            if self.state.claim() {
                assert_eq!(self.bytes.swap(VALUE, Ordering::SeqCst), 0);
                self.state.publish_resident();
                break;
            }
            thread::yield_now();
        }
        assert_eq!(self.bytes.load(Ordering::SeqCst), VALUE, "a kept page left memory");
        thread::yield_now();
        assert_eq!(self.bytes.load(Ordering::SeqCst), VALUE, "a kept page left memory");
        if self.state.demote() == Some(Demote::Taken) {
            self.discard();
        }
    }
}

#[test]
fn no_interleaving_shows_a_reader_an_evicted_page() {
    let model = || {
        let page = Arc::new(Page::default());
        let spawn = |work: fn(&Page)| {
            let page = page.clone();
            thread::spawn(move || work(&page))
        };
        let threads = [
            spawn(|page| {
                twice(|| {
                    page.read();
                })
            }),
            spawn(|page| {
                twice(|| {
                    page.read();
                })
            }),
            spawn(|page| twice(|| page.evict())),
            spawn(Page::promote_and_let_go),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // Nothing is left pinned, claimed or resident.
        assert!(page.read());
        page.evict();
        assert!(page.state.is_out() && page.bytes.load(Ordering::SeqCst) == 0);
    };
    shuttle::check_random(model, 4000);
    shuttle::check_pct(model, 4000, 3);
}

#[derive(Default)]
struct Whole {
    latch: SectionLatch<AtomicU32>,
    bytes: AtomicU64,
    loads: AtomicU64,
    unloads: AtomicU64,
}

impl Whole {
    fn load(&self) {
        if self.latch.start() == Start::Load {
            assert_eq!(self.bytes.swap(VALUE, Ordering::SeqCst), 0);
            self.loads.fetch_add(1, Ordering::SeqCst);
            self.latch.finish(true);
        }
    }

    fn finish_unload(&self) {
        assert_eq!(self.bytes.swap(0, Ordering::SeqCst), VALUE, "unloaded twice");
        self.unloads.fetch_add(1, Ordering::SeqCst);
        self.latch.finish(false);
    }

    fn unload(&self) {
        if self.latch.drain() == Drain::Unload {
            self.finish_unload();
        }
    }

    fn read(&self) {
        match self.latch.enter() {
            Enter::Inside => {
                assert_eq!(self.bytes.load(Ordering::SeqCst), VALUE, "a guard did not hold the section");
                thread::yield_now();
                assert_eq!(self.bytes.load(Ordering::SeqCst), VALUE, "a guard did not hold the section");
                if self.latch.leave() {
                    self.finish_unload();
                }
            }
            Enter::Unload => self.finish_unload(),
            Enter::NotResident => {}
        }
    }
}

#[test]
fn no_interleaving_unloads_a_section_under_a_guard_or_forgets_to() {
    let model = || {
        let whole = Arc::new(Whole::default());
        whole.load();
        let spawn = |work: fn(&Whole)| {
            let whole = whole.clone();
            thread::spawn(move || work(&whole))
        };
        let threads = [
            spawn(|whole| twice(|| whole.read())),
            spawn(|whole| twice(|| whole.read())),
            spawn(|whole| {
                whole.unload();
                whole.load();
                whole.unload();
            }),
            spawn(|whole| {
                whole.load();
                whole.unload();
            }),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // All guards are gone: a drain that was asked for last has been done by someone.
        whole.unload();
        assert!(whole.latch.is_paged() && whole.bytes.load(Ordering::SeqCst) == 0);
        assert_eq!(whole.loads.load(Ordering::SeqCst), whole.unloads.load(Ordering::SeqCst));
    };
    shuttle::check_random(model, 4000);
    shuttle::check_pct(model, 4000, 3);
}
