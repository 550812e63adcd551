//! The store, open.

use crate::api::{Asked, Command, DeleteRange, KeyRange, OpReply, Range, RangeReply, Reply, Txn};
use crate::import::{self, Imported, Source};
use crate::keys::{self, HEADS, HISTORY, META};
use crate::large::{self, Which};
use crate::lease::{AFTER_START, Lease, LeaseLeft, Leases, Over};
use crate::range::{self, booking};
use crate::reads::{InView, Reads};
use crate::record;
use crate::stage::{Answer, TREES, TTL_LEAST, Trees};
use crate::stored::{self, EachStored, Stored, Wanted, Work, sort_bytes};
use crate::txn;
use crate::watch::{self, Events};
use ramekin_base::{Clock, Error, Kind, Result, supervise};
use ramekin_disk::{Disk, SpillFile};
use ramekin_engine::{Durability, Engine, EngineOptions, ReadView, Stats};
use ramekin_memory::{Account, Budget, Reservation};
use ramekin_pages::Pages;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A delete of more keys is not one unit of the log.
const LARGE: i64 = 512;
/// The folder of temporary files, inside of the store's.
const TEMP: &str = "temp";
/// Leases that are revoked at one go.
const REVOKES: usize = 500;

/// What the store is opened with.
pub struct Options {
    pub disk: Arc<dyn Disk>,
    pub folder: PathBuf,
    pub pages: Pages,
    pub budget: Budget,
    /// Everything of the store is booked below it.
    pub account: Account,
    pub share: u64,
    pub clock: Arc<dyn Clock>,
    /// False: no threads; the owner calls [`Versions::step`].
    pub threads: bool,
    /// Told the newest revision when a command has its answer. It must not wait.
    pub changed: Box<dyn Fn(i64) + Send + Sync>,
}

/// An answer, and what pays for it as long as it is held.
pub struct Held<T> {
    pub value: T,
    pub memory: Option<Reservation>,
}

/// The name and the value of something of the server's own.
pub type Own = (Vec<u8>, Vec<u8>);

/// Is shown a key; false: it has enough.
pub type EachShown<'a> = &'a mut dyn FnMut(&Stored<'_>) -> Result<bool>;

/// The store. Clones are handles to the same.
#[derive(Clone)]
pub struct Versions {
    engine: Engine<Trees>,
    inner: Arc<Inner>,
}

struct Inner {
    leases: Leases,
    disk: Arc<dyn Disk>,
    /// For temporary files.
    work: PathBuf,
    works: AtomicU64,
    /// Walks over everything.
    walks: Account,
    budget: Budget,
    clock: Arc<dyn Clock>,
    answers: Account,
    changed: Box<dyn Fn(i64) + Send + Sync>,
    /// Leases that were revoked since their time was over.
    expired: AtomicU64,
    /// Up to which revision compactions were asked for, and up to which nothing of what they left is there any more.
    compacted: Arc<AtomicI64>,
    purged: AtomicI64,
}

impl Versions {
    /// What an open takes: it may have to replay a log.
    pub fn open_bytes() -> u64 {
        ramekin_engine::open_bytes(TREES)
    }

    pub fn open(options: Options) -> Result<Self> {
        let Options { disk, folder, pages, budget, account, share, clock, threads, changed } = options;
        let answers = account.child("answers", "keys of an answer x (160 + key + value)").transient();
        let leases = Leases::new(&account.child("leases", "leases x 200"))?;
        let walks = account
            .child("walks", "walks over everything x (a sixteenth of the budget, 0.75 to 12 MiB) + buffers")
            .transient();
        let work = empty_work(&*disk, &folder)?;
        let own_budget = budget.clone();
        let engine = EngineOptions {
            disk: disk.clone(),
            folder,
            pages,
            budget,
            account,
            share,
            clock: clock.clone(),
            durability: Durability::Each,
            threads,
        };
        let trees = Trees::new(answers.clone());
        let compacted = trees.compacted.clone();
        let engine = Engine::open(engine, trees)?;
        let inner = Inner {
            leases,
            disk,
            work,
            works: AtomicU64::new(0),
            walks,
            budget: own_budget,
            clock,
            answers,
            changed,
            expired: AtomicU64::new(0),
            compacted,
            purged: AtomicI64::new(i64::MIN),
        };
        let versions = Self { engine, inner: Arc::new(inner) };
        versions.find_leases()?;
        versions.drop_ended()?;
        Ok(versions)
    }

    fn find_leases(&self) -> Result<()> {
        let now = self.inner.clock.now();
        self.leases_at(&self.engine.view(), &mut |lease| {
            self.inner.leases.book()?;
            self.inner.leases.add(lease, now + AFTER_START);
            Ok(())
        })
    }

    /// Versions that ended up to the compacted revision go as their files are written anew.
    fn drop_ended(&self) -> Result<()> {
        let compacted = self.compacted()?;
        self.engine.drop_ended(HISTORY, compacted.max(0) as u64);
        self.inner.compacted.fetch_max(compacted, Ordering::Relaxed);
        Ok(())
    }

    /// The newest revision that is durable.
    pub fn revision(&self) -> Result<i64> {
        InView(&self.engine.view()).revision()
    }

    /// Up to which revision versions are compacted; -1: none ever was.
    pub fn compacted(&self) -> Result<i64> {
        InView(&self.engine.view()).compacted()
    }

    /// Does a command; returns when what it changed is durable.
    pub fn execute(&self, asked: impl Into<Asked>) -> Result<Held<Reply>> {
        self.answered(self.engine.execute(asked.into()))
    }

    /// The same without waiting: `done` is called once with the answer, on a thread of the store.
    pub fn submit(&self, asked: Asked, done: impl FnOnce(Result<Held<Reply>>) + Send + 'static) {
        let own = self.clone();
        let done = move |answer| done(own.answered(answer));
        self.engine.submit(asked, None, Box::new(done));
    }

    fn answered(&self, answer: Result<Answer>) -> Result<Held<Reply>> {
        let Answer { reply, memory } = answer?;
        (self.inner.changed)(reply.revision());
        Ok(Held { value: reply, memory })
    }

    /// Whether a delete is of so many keys that it is not one unit of the log: [`Versions::delete_many`] does it then.
    pub fn is_large(&self, delete: &DeleteRange) -> Result<bool> {
        if delete.keys.is_one() || delete.prev_kv {
            return Ok(false);
        }
        let (from, to) = keys::heads_of(&delete.keys);
        Ok(from < to && InView(&self.engine.view()).count(HEADS, (&from, &to))? > LARGE)
    }

    /// Deletes a range of any number of keys in one revision. Blocks; whoever else writes waits meanwhile. How many there were, and
    /// the newest revision then.
    pub fn delete_many(&self, keys: &KeyRange) -> Result<(i64, i64)> {
        let (deleted, revision) = large::delete(&self.engine, (&self.inner.answers, self.work()), Which::Range(keys))?;
        (self.inner.changed)(revision);
        Ok((deleted, revision))
    }

    /// A moment of the store.
    pub fn view(&self) -> ReadView {
        self.engine.view()
    }

    /// The budget that all that it holds is a part of.
    pub fn budget(&self) -> u64 {
        self.inner.budget.limit()
    }

    /// The least share with which it takes the largest unit, and a budget the request that brings it.
    pub fn working_share(&self) -> u64 {
        self.engine.working_share() + crate::capacity::REQUEST_BYTES
    }

    /// Which revision of a view is meant by one that is asked for, and its newest.
    pub fn meant(&self, view: &ReadView, wanted: i64) -> Result<(i64, i64)> {
        let reads = InView(view);
        let newest = reads.revision()?;
        Ok((range::check_revision(&reads, wanted, newest)?, newest))
    }

    /// Shows the keys of a range as they were at a revision of a view, which [`Versions::meant`] said beside the newest, in their
    /// order. `each` says whether it wants more.
    pub fn show(&self, view: &ReadView, keys: &KeyRange, at: (i64, i64), each: EachShown<'_>) -> Result<()> {
        range::visible(&InView(view), keys, at, &mut |key, revision, is| each(&Stored::shown(view, key, revision, is)))
    }

    /// Keys of a range that were there at a revision of a view.
    pub fn count(&self, view: &ReadView, keys: &KeyRange, (revision, newest): (i64, i64)) -> Result<i64> {
        range::count(&InView(view), keys, revision, newest)
    }

    /// Shows all versions that are stored at a moment, in the order in which they were written: it blocks for long, and sorts in a
    /// temporary file. `check` fails where nobody waits any more. The compacted revision, and up to which one was shown.
    pub fn stored(
        &self,
        view: &ReadView,
        wanted: Wanted,
        check: &dyn Fn() -> Result<()>,
        each: EachStored<'_>,
    ) -> Result<(i64, i64)> {
        stored::walk(view, wanted, self.work(), check, each)
    }

    /// Takes over all of another store, with its revisions, as one unit; this one must be empty. It blocks for long; `check` fails
    /// where it is to stop.
    pub fn import(&self, source: &mut dyn Source, check: &dyn Fn() -> Result<()>) -> Result<Imported> {
        let done = import::import(&self.engine, self.work(), source, check)?;
        self.find_leases()?;
        self.drop_ended()?;
        (self.inner.changed)(done.revision);
        Ok(done)
    }

    fn work(&self) -> Work {
        let Inner { disk, work, works, walks, budget, .. } = &*self.inner;
        let name = format!("walk-{}", works.fetch_add(1, Ordering::Relaxed));
        let (account, bytes) = (walks.clone(), sort_bytes(budget.limit()));
        Work { disk: disk.clone(), folder: work.clone(), name, account, bytes }
    }

    /// A temporary file in the store's folder, and what pays for walks over everything.
    pub fn spool(&self, buffer_bytes: usize) -> Result<(SpillFile, Account)> {
        let Work { disk, folder, name, account, .. } = self.work();
        Ok((SpillFile::create(&disk, &folder.join(format!("spool-{name}")), &account, buffer_bytes)?, account))
    }

    /// Shows the leases of a moment by their numbers, and the seconds that each was granted for.
    pub fn leases_at(&self, view: &ReadView, each: &mut dyn FnMut(Lease) -> Result<()>) -> Result<()> {
        let reads = InView(view);
        let mut walk = reads.walk(META, keys::LEASES.1)?;
        walk.seek(keys::LEASES.0)?;
        while let Some((key, ttl)) = walk.record() {
            each(Lease { id: keys::of_lease(key)?, ttl: record::of_number(ttl)? })?;
            walk.next()?;
        }
        Ok(())
    }

    /// Reads keys.
    pub fn range(&self, asked: &Range) -> Result<Held<RangeReply>> {
        let (view, mut memory) = (self.engine.view(), None);
        let reads = InView(&view);
        let newest = reads.revision()?;
        let value = range::range(&reads, asked, newest, &mut booking(&self.inner.answers, &mut memory))?;
        Ok(Held { value, memory })
    }

    /// Does a transaction that only reads.
    pub fn read_txn(&self, asked: &Txn) -> Result<Held<OpReply>> {
        let (view, mut memory) = (self.engine.view(), None);
        let reads = InView(&view);
        let newest = reads.revision()?;
        let answers = &self.inner.answers;
        let value = txn::read(&reads, asked, newest, answers, &mut booking(answers, &mut memory))?;
        Ok(Held { value, memory })
    }

    /// Reads what happened from a revision on to keys that `is_wanted` names: of so many revisions at most, and no more than about
    /// `most` bytes, unless one revision has more.
    pub fn events(
        &self,
        from: i64,
        (revisions, most): (i64, u64),
        with_prev: bool,
        is_wanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Held<Events>> {
        let (view, mut memory) = (self.engine.view(), None);
        let mut book = booking(&self.inner.answers, &mut memory);
        let value = watch::read(&view, from, (revisions, most), with_prev, is_wanted, &mut book)?;
        drop(book);
        Ok(Held { value, memory })
    }

    /// Grants a lease of so many seconds. Returns it as it was granted.
    pub fn grant(&self, id: i64, ttl: i64) -> Result<(i64, Lease)> {
        let leases = &self.inner.leases;
        leases.book()?;
        let granted = self.execute(Command::Grant { id, ttl }).inspect_err(|_| leases.unbook())?;
        let lease = Lease { id, ttl: ttl.max(TTL_LEAST) };
        leases.add(lease, self.inner.clock.now());
        Ok((granted.value.revision(), lease))
    }

    /// Ends a lease, and removes its keys in one revision.
    pub fn revoke(&self, id: i64) -> Result<i64> {
        let grant = self.inner.leases.grant_of(id);
        let revoked = self.end_lease(id)?;
        // As soon as it is gone others may grant the same id.
        grant.iter().for_each(|grant| self.inner.leases.remove(Over { id, grant: *grant }));
        Ok(revoked)
    }

    fn end_lease(&self, id: i64) -> Result<i64> {
        match self.execute(Command::Revoke(id)) {
            Err(error) if error.kind() == Kind::TooLarge => {
                let (_, revision) = large::delete(&self.engine, (&self.inner.answers, self.work()), Which::Lease(id))?;
                (self.inner.changed)(revision);
                Ok(revision)
            }
            revoked => revoked.map(|revoked| revoked.value.revision()),
        }
    }

    /// A lease has its full time again. What was granted; 0: there is no such lease.
    pub fn renew(&self, id: i64) -> i64 {
        self.inner.leases.renew(id, self.inner.clock.now())
    }

    pub fn lease_left(&self, id: i64) -> Option<LeaseLeft> {
        self.inner.leases.left(id, self.inner.clock.now())
    }

    /// Ids of leases, the one that ends first before the others.
    pub fn leases(&self) -> Vec<i64> {
        self.inner.leases.ids()
    }

    /// Shows the keys of a lease.
    pub fn leased(&self, id: i64) -> Result<Held<Vec<Vec<u8>>>> {
        let (view, mut memory, mut value) = (self.engine.view(), None, Vec::new());
        let (reads, (from, to)) = (InView(&view), keys::leased_range(id));
        let mut book = booking(&self.inner.answers, &mut memory);
        let mut walk = reads.walk(META, &to)?;
        walk.seek(&from)?;
        while let Some((key, _)) = walk.record() {
            book(64 + key.len() as u64)?;
            value.push(keys::of_leased(key)?.to_vec());
            walk.next()?;
        }
        drop((book, walk));
        Ok(Held { value, memory })
    }

    /// Revokes leases whose time is over. False: there were none.
    pub fn expire(&self) -> bool {
        let leases = &self.inner.leases;
        let all = leases.take_over(self.inner.clock.now(), REVOKES);
        for over in &all {
            // Whoever revoked it meanwhile may have granted its id anew.
            if leases.grant_of(over.id) != Some(over.grant) {
                continue;
            }
            // A panic leaves it to the next round, too.
            match supervise::caught("the end of a lease", || self.end_lease(over.id)) {
                // It is gone in any case.
                Err(error) if error.kind() == Kind::NotFound => leases.remove(*over),
                Err(error) => {
                    tracing::warn!("could not revoke lease {:x}, whose time is over: {error}", over.id);
                    leases.not_revoked(*over, self.inner.clock.now());
                }
                Ok(_) => {
                    leases.remove(*over);
                    self.inner.expired.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        !all.is_empty()
    }

    /// How many leases were revoked since the start because their time was over.
    pub fn expired(&self) -> u64 {
        self.inner.expired.load(Ordering::Relaxed)
    }

    /// Gives back what nobody can read since a compaction: some of the long values, and others as their files are written anew. False:
    /// no long ones are left.
    pub fn purge(&self) -> Result<bool> {
        // Whatever ends later ends after the compacted revision. Who does not look does not count as one who uses the store.
        let purged = self.inner.purged.load(Ordering::Relaxed);
        if purged >= self.inner.compacted.load(Ordering::Relaxed) {
            self.engine.drop_ended(HISTORY, purged.max(0) as u64);
            return Ok(false);
        }
        let view = self.engine.view();
        let reads = InView(&view);
        let compacted = reads.compacted()?;
        self.engine.drop_ended(HISTORY, compacted.max(0) as u64);
        let (from, to) = keys::graves_to(compacted);
        let mut walk = reads.walk(META, &to)?;
        walk.seek(&from)?;
        let is_due = walk.record().is_some();
        drop(walk);
        match is_due {
            true => _ = self.execute(Command::Purge)?,
            false => _ = self.inner.purged.fetch_max(compacted, Ordering::Relaxed),
        }
        Ok(is_due)
    }

    /// The same again and again, for about so long at most.
    pub fn purge_for(&self, most: Duration) -> Result<()> {
        let end = self.now() + most;
        while self.purge()? && self.now() < end {}
        Ok(())
    }

    /// Gives back all the space that nothing needs.
    pub fn defragment(&self) -> Result<()> {
        while self.purge()? {}
        self.engine.merge_all()
    }

    /// A value of the server's own.
    pub fn own(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        InView(&self.engine.view()).get(META, &keys::own(name))
    }

    /// Values of the server's own whose names begin so, without that.
    pub fn owns(&self, prefix: &[u8]) -> Result<Held<Vec<Own>>> {
        self.owns_at(&self.engine.view(), prefix)
    }

    /// The same as they were at a moment.
    pub fn owns_at(&self, view: &ReadView, prefix: &[u8]) -> Result<Held<Vec<Own>>> {
        let (reads, from, mut memory, mut value) = (InView(view), keys::own(prefix), None, Vec::new());
        let mut book = booking(&self.inner.answers, &mut memory);
        let mut walk = reads.walk(META, keys::OWN_END)?;
        walk.seek(&from)?;
        while let Some((key, held)) = walk.record() {
            let Some(name) = key.strip_prefix(&from[..]) else { break };
            book(64 + (key.len() + held.len()) as u64)?;
            value.push((name.to_vec(), held.to_vec()));
            walk.next()?;
        }
        drop((book, walk));
        Ok(Held { value, memory })
    }

    pub fn now(&self) -> Duration {
        self.inner.clock.now()
    }

    /// Numbers of the engine below.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    pub fn engine(&self) -> &Engine<Trees> {
        &self.engine
    }

    /// One step of all that threads would do, for owners without threads. False: nothing was to be done.
    pub fn step(&self) -> bool {
        self.engine.step()
    }

    pub fn close(&self) -> Result<()> {
        self.engine.close()
    }
}

/// The folder of temporary files, without those that a crash has left.
fn empty_work(disk: &dyn Disk, folder: &Path) -> Result<PathBuf> {
    let work = folder.join(TEMP);
    disk.make_folder(&work)?;
    disk.list(&work)?.iter().try_for_each(|entry| disk.rename(&work.join(&entry.name), None))?;
    Ok(work)
}

/// An answer that is of another kind than was asked for.
pub fn unexpected() -> Error {
    Error::bug("a command was answered as another one is")
}
