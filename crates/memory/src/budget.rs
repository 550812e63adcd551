//! The budget: one limit, the tree of accounts below it, and reclaim where the tree is short.
//!
//! ```text
//!   try_reserve ─► the tree has room ──────────────────────────────────────────────► Reservation
//!        ▲             │ short
//!        │             ▼
//!        └──── pages are reclaimed ─► one asker at a time: still short? ─► sections, then idle reserves
//! ```

use crate::account::Account;
use crate::held;
use crate::kernel::allocator_purge;
use crate::pressure::{Pressure, Reclaim, ReclaimOrder};
use crate::tree::{Node, Short, Tree};
use parking_lot::{Condvar, Mutex};
use ramekin_base::lock::{Rank, Ranked, about_to_wait};
use ramekin_base::{Error, Result, nonblocking};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Taken after all others, also by those that give way. The order of all stands in `vectors/lib.rs`.
static TREE: Rank = Rank::short(100, "memory.tree");

/// The one number, and the tree below it.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<BudgetInner>,
}

pub(crate) struct BudgetInner {
    pub(crate) tree: Ranked<Mutex<Tree>>,
    pub(crate) released: Condvar,
    reclaimers: Mutex<Vec<(ReclaimOrder, Arc<dyn Reclaim>)>>,
    /// Serialises expensive reclaim (anything beyond dropping cached pages): one reclaim often frees enough for every waiter.
    turn: Mutex<()>,
    pub(crate) failing: Failing,
}

/// Lets one reservation fail, for tests of what happens then.
#[derive(Default)]
pub(crate) struct Failing {
    asked: AtomicU64,
    nth: AtomicU64,
}

impl Failing {
    pub(crate) fn check(&self) -> Result<()> {
        if self.asked.fetch_add(1, Ordering::Relaxed) + 1 == self.nth.load(Ordering::Relaxed) {
            return Err(Error::busy("a reservation that a test lets fail"));
        }
        Ok(())
    }
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        Self {
            shared: Arc::new(BudgetInner {
                tree: Ranked::mutex(&TREE, Tree::new(bytes)),
                released: Condvar::new(),
                reclaimers: Mutex::new(Vec::new()),
                turn: Mutex::new(()),
                failing: Failing::default(),
            }),
        }
    }

    /// The account of the whole process.
    pub fn root(&self) -> Account {
        self.shared.tree.lock().nodes[0].handles += 1;
        Account { shared: self.shared.clone(), index: 0 }
    }

    pub fn limit(&self) -> u64 {
        self.shared.tree.lock().nodes[0].limit
    }

    /// Bytes claimed now: in use, or held by a minimum reservation.
    pub fn reserved(&self) -> u64 {
        self.shared.tree.lock().nodes[0].used
    }

    /// Bytes that could be reserved now without reclaiming any.
    pub fn free(&self) -> u64 {
        self.shared.tree.lock().unclaimed()
    }

    /// Bytes that could be reserved once all reclaimable memory is taken back: what is free, cached pages and sections, but no
    /// minimum reservation that is lent.
    pub fn room(&self) -> u64 {
        self.shared.tree.lock().room()
    }

    /// Bytes that nobody has asked for and that are held for the moment, as those are that the allocator keeps: whoever asks
    /// what there is room for in the long run counts them as free.
    pub fn passing(&self) -> u64 {
        self.shared
            .tree
            .lock()
            .nodes
            .iter()
            .filter(|node| node.is_passing && node.handles > 0)
            .map(|node| node.own)
            .sum()
    }

    pub fn peak(&self) -> u64 {
        self.shared.tree.lock().peak
    }

    /// Moves the budget. Below what is claimed, memory is reclaimed first; returns the bytes
    /// by which the claims still pass the new limit (0: done).
    pub fn set_limit(&self, bytes: u64) -> u64 {
        self.shared.tree.lock().nodes[0].limit = bytes;
        let over = |tree: &mut Tree| match tree.nodes[0].used.saturating_sub(bytes) {
            0 => Ok(()),
            missing => Err(Short { index: 0, missing, firm: false }),
        };
        let short = self.shared.ease(ReclaimOrder::Residency, over);
        self.shared.released.notify_all();
        short.map_or_else(|short| short.missing, |()| 0)
    }

    pub fn pressure(&self) -> Pressure {
        let tree = self.shared.tree.lock();
        Pressure::of(tree.nodes[0].used, tree.nodes[0].limit)
    }

    /// Lets the `nth` reservation from now on fail as one does that waiting may help; 0: none. Returns how many there were.
    #[doc(hidden)]
    pub fn fail_nth_for_tests(&self, nth: u64) -> u64 {
        self.shared.failing.nth.store(nth, Ordering::Relaxed);
        self.shared.failing.asked.swap(0, Ordering::Relaxed)
    }

    /// Registers someone who can give bytes back when the budget is short.
    pub fn add_reclaimer(&self, order: ReclaimOrder, reclaimer: Arc<dyn Reclaim>) {
        let mut reclaimers = self.shared.reclaimers.lock();
        reclaimers.push((order, reclaimer));
        reclaimers.sort_by_key(|(order, _)| *order);
    }

    /// Bytes that the accounts hold themselves, all together: unused parts of minimum reservations are not among them.
    pub(crate) fn booked(&self) -> u64 {
        let tree = self.shared.tree.lock();
        tree.nodes.iter().skip(1).filter(|node| node.handles > 0).map(|node| node.own).sum()
    }

    /// How many accounts there may be, at most.
    pub(crate) fn accounts(&self) -> usize {
        self.shared.tree.lock().nodes.len()
    }

    /// Every account with its path, root first, parents before children.
    pub(crate) fn nodes(&self) -> Vec<(String, Node)> {
        let tree = self.shared.tree.lock();
        let live = |index: &usize| tree.nodes[*index].handles > 0;
        (0..tree.nodes.len()).filter(live).map(|index| (tree.path(index), tree.nodes[index].clone())).collect()
    }
}

/// Upper bound on waiting for the reclaim lock. A waiter may itself hold memory that the lock's owner waits for, so after this
/// it goes on without the lock.
const TURN_WAIT: Duration = Duration::from_millis(20);

/// Rounds of reclaim for one reservation: another thread may take in between what a round has freed.
const ROUNDS: usize = 4;

impl BudgetInner {
    /// Adds `bytes` to an account, for who holds `handles` of it besides.
    pub(crate) fn take(&self, index: usize, bytes: u64, handles: usize) -> Result<()> {
        self.failing.check()?;
        // Mostly there is room: then the tree is locked once.
        let last = {
            let mut tree = self.tree.lock();
            match tree.add(index, bytes) {
                Ok(()) => {
                    tree.nodes[index].handles += handles;
                    return Ok(());
                }
                // A transient account waits for others of its kind: what the allocator keeps is soon needed again.
                Err(short) if !short.can_be_eased() || short.firm && tree.nodes[index].transient => {
                    return Err(tree.error(&short, index, bytes));
                }
                Err(_) if tree.nodes[index].transient => ReclaimOrder::Idle,
                Err(_) => ReclaimOrder::Residency,
            }
        };
        self.take_from(index, bytes, handles, last)
    }

    /// `last` is the last stage of reclaim to try.
    pub(crate) fn take_from(&self, index: usize, bytes: u64, handles: usize, last: ReclaimOrder) -> Result<()> {
        let eased = self.ease(last, |tree| {
            tree.add(index, bytes)?;
            tree.nodes[index].handles += handles;
            Ok(())
        });
        eased.map_err(|short| self.tree.lock().error(&short, index, bytes))
    }

    /// Gives bytes back, and perhaps the handle that held them. What was in so many is free by now, but not with the kernel
    /// yet: whoever takes them next would be charged beside it.
    pub(crate) fn give(&self, index: usize, bytes: u64, is_last: bool) {
        let mut tree = self.tree.lock();
        if tree.is_large(index, bytes) {
            drop(tree);
            allocator_purge();
            tree = self.tree.lock();
        }
        tree.sub(index, bytes);
        if is_last {
            tree.drop_handle(index);
        }
        drop(tree);
        if bytes > 0 {
            self.released.notify_all();
        }
    }

    /// Repeats `attempt` as long as reclaim, up to the stage `last`, frees something for it.
    pub(crate) fn ease(
        &self,
        last: ReclaimOrder,
        mut attempt: impl FnMut(&mut Tree) -> Result<(), Short>,
    ) -> Result<(), Short> {
        for _ in 0..ROUNDS {
            let Err(mut short) = attempt(&mut self.tree.lock()) else { return Ok(()) };
            if !short.can_be_eased() {
                return Err(short);
            }
            // The list is copied so that a reclaimer may itself release reservations.
            let reclaimers = self.reclaimers.lock().clone();
            let mut given = 0;
            for (order, reclaimer) in reclaimers.into_iter().filter(|(order, _)| *order <= last) {
                if !short.is_eased_by(order) {
                    continue;
                }
                let is_costly = order > ReclaimOrder::Pages;
                if is_costly && nonblocking::is_set() {
                    return Err(short);
                }
                if is_costly {
                    about_to_wait("memory that others give back");
                }
                let _turn = if is_costly { self.turn.try_lock_for(TURN_WAIT) } else { None };
                if is_costly {
                    short = match attempt(&mut self.tree.lock()) {
                        Ok(()) => return Ok(()),
                        Err(short) if short.can_be_eased() => short,
                        Err(short) => return Err(short),
                    };
                }
                // What reclaimers release is not what the job on this thread holds.
                let more = held::aside(|| reclaimer.reclaim(short.missing));
                given += more;
                if more >= short.missing {
                    break;
                }
            }
            if given == 0 {
                return Err(short);
            }
        }
        attempt(&mut self.tree.lock())
    }
}
