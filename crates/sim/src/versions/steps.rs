//! The steps of a life of versions. What is drawn is drawn before the store is asked, so that a panic inside leaves the seed's course as
//! it was.

use super::Store;
use super::life::Life;
use super::maps::drawn::{Drawing, LEASES};
use super::plan::{Step, share};
use super::worlds::Deed;
use crate::lot::Trouble;
use crate::run::{End, damages, unless_panic};
use ramekin_base::{Clock, Error, Kind, Result, Rng};
use ramekin_versions::*;
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::Duration;

/// Keys that are there only to be many.
const MANY: u64 = 900;
const NAMES: [&[u8]; 3] = [b"users/a", b"users/b", b"alarms"];
/// Steps of what threads would do, at one go.
const ROUNDS: usize = 24;

impl Store {
    fn draw<'r>(&self, rng: &'r mut Rng) -> Drawing<'r> {
        Drawing { rng, newest: self.worlds.live.revision(), many: self.plan.keys }
    }

    pub(super) fn take(&mut self, life: &mut Life, kind: Step, rng: &mut Rng) -> Result<(), End> {
        if rng.chance(0.5) {
            life.pages.evict_all();
        }
        let mut draw = self.draw(rng);
        match kind {
            Step::Put => self.tied(life, Command::Put(draw.put()), rng),
            Step::Delete => self.tied(life, Command::Delete(draw.delete()), rng),
            Step::Txn => self.tied(life, Command::Txn(draw.txn(0, &mut BTreeSet::new())), rng),
            Step::LargeDelete => {
                let keys = if draw.rng.chance(0.5) { many(0, MANY) } else { draw.keys() };
                self.bulk(life, keys)
            }
            Step::Together => {
                let puts = (0..2 + draw.rng.below(2)).map(|_| plain(&mut draw)).collect();
                self.together(life, puts)
            }
            Step::Fill => self.command(life, (fill(rng), None)),
            Step::Compact => {
                let revision = draw.compaction();
                self.seen.compacted += 1;
                self.command(life, (Command::Compact(revision), None))
            }
            Step::Purge => life.change(|| life.versions.purge().map(|_| ())),
            Step::Grant => {
                let ttl = if draw.rng.below(12) == 0 { 9_000_000_001 } else { draw.rng.below(20) as i64 };
                let id = draw.id();
                self.command(life, (Command::Grant { id, ttl }, None))
            }
            Step::Revoke => {
                let id = draw.id();
                self.command(life, (Command::Revoke(id), None))
            }
            Step::KeepAlive => {
                let id = draw.id();
                self.keep_alive(life, id)
            }
            Step::Expire => {
                life.clock.advance(Duration::from_millis(rng.below(12_000)));
                self.expire(life)
            }
            Step::Own => {
                let values = (0..1 + rng.below(3)).map(|_| {
                    let value = (rng.below(4) > 0).then(|| vec![rng.below(3) as u8; rng.below(2000) as usize]);
                    (NAMES[rng.below(3) as usize].to_vec(), value)
                });
                let values = values.collect();
                self.tied(life, Command::Own(values), rng)
            }
            Step::Flush => {
                self.seen.flushed += 1;
                life.change(|| life.versions.engine().flush())
            }
            Step::Background => {
                life.clock.advance(Duration::from_millis(rng.below(3000)));
                life.change(|| {
                    self.seen.merged += u64::from((0..ROUNDS).take_while(|_| life.versions.step()).count() > 0);
                    Ok(())
                })
            }
            Step::Defragment => life.change(|| life.versions.defragment()),
            Step::Resize => {
                let share = share(rng);
                life.change(|| life.versions.engine().resize(share))
            }
            Step::Reopen => self.reopen(life),
            Step::Range => {
                let asked = draw.range();
                self.range(life, &asked)
            }
            Step::Events => self.events(life, rng),
            Step::ReadOwn => self.read_own(life),
            Step::Open => Ok(()),
        }
    }

    /// A command that may be tied to a value of the server's own: as that stands mostly.
    fn tied(&mut self, life: &mut Life, command: Command, rng: &mut Rng) -> Result<(), End> {
        let name = NAMES[rng.below(3) as usize];
        let value = if rng.below(5) == 0 { Some(b"another".to_vec()) } else { self.worlds.live.own.get(name).cloned() };
        let guard = (rng.below(3) == 0).then_some(Guard { name, value });
        self.command(life, (command, guard))
    }

    fn command(&mut self, life: &mut Life, deed: Deed) -> Result<(), End> {
        let panics = life.disk.counts().panics;
        let got = unless_panic(|| match deed.clone() {
            (Command::Grant { id, ttl }, _) => {
                life.versions.grant(id, ttl).map(|(revision, _)| Reply::Done { revision })
            }
            (Command::Revoke(id), _) => life.versions.revoke(id).map(|revision| Reply::Done { revision }),
            (command, guard) => {
                let asked = Asked { guard, ..Asked::from(command) };
                life.versions.execute(asked).map(|held| held.value)
            }
        });
        if let (Some(Ok(_)), (Command::Grant { id, ttl }, _)) = (&got, &deed) {
            let ttl = (*ttl).max(TTL_LEAST) as u64;
            life.ends.insert(*id, life.clock.now() + Duration::from_secs(ttl));
        }
        if let (Some(Ok(_)), (Command::Revoke(id), _)) = (&got, &deed) {
            life.ends.remove(id);
        }
        self.told(life, deed, got, panics)
    }

    /// What an answer to a command says; `panics`: how many the disk had planted before.
    fn told(&mut self, life: &Life, deed: Deed, got: Option<Result<Reply>>, panics: u64) -> Result<(), End> {
        let has_panicked = life.disk.counts().panics > panics;
        let error = match got {
            Some(Ok(reply)) => return self.worlds.answered(&deed, Ok(reply)).map_err(End::Wrong),
            Some(Err(error)) => error,
            None if has_panicked => Error::closed("a panic ended it"),
            None => return Err(End::Wrong(format!("{:?} got no answer", deed.0))),
        };
        match error.kind() {
            Kind::Bug if !has_panicked => Err(End::Wrong(format!("{:?}: {error}", deed.0))),
            // Nothing was done.
            kind if kind.is_refusal() || kind == Kind::TooLarge => Ok(()),
            Kind::Bug | Kind::Closed | Kind::Io | Kind::Corrupt => {
                self.seen.unsure += 1;
                self.worlds.unsure(&[deed]);
                match self.worlds.are_too_many() || matches!(error.kind(), Kind::Bug | Kind::Closed | Kind::Corrupt) {
                    true => Err(End::Trouble(error)),
                    false => Ok(()),
                }
            }
            _ => self.worlds.answered(&deed, Err(error.message())).map_err(End::Wrong),
        }
    }

    fn bulk(&mut self, life: &Life, keys: KeyRange) -> Result<(), End> {
        let panics = life.disk.counts().panics;
        let delete = Command::Delete(DeleteRange { keys: keys.clone(), prev_kv: false });
        self.seen.bulks += 1;
        let got = unless_panic(|| life.versions.delete_many(&keys)).map(|got| {
            got.map(|(deleted, revision)| {
                let deleted = Deleted { deleted, prev: Vec::new() };
                Reply::Op { revision, reply: OpReply::Deleted { revision, deleted } }
            })
        });
        self.told(life, (delete, None), got, panics)
    }

    /// Puts that are handed in before any has its answer. They may be done in any order; their revisions say in which they were.
    fn together(&mut self, life: &Life, puts: Vec<Put>) -> Result<(), End> {
        let panics = life.disk.counts().panics;
        let deeds: Vec<Deed> = puts.into_iter().map(|put| (Command::Put(put), None)).collect();
        let (tell, answers): (Vec<_>, Vec<_>) = deeds.iter().map(|_| mpsc::sync_channel(1)).unzip();
        let handed = unless_panic(|| {
            for ((command, _), tell) in deeds.iter().zip(tell) {
                let asked = Asked::from(command.clone());
                life.versions.submit(asked, move |got| _ = tell.send(got.map(|held| held.value)));
            }
            for _ in 0..ROUNDS {
                life.versions.step();
            }
        });
        let (mut done, mut unsure, mut end) = (Vec::new(), Vec::new(), Ok(()));
        for (deed, answer) in deeds.into_iter().zip(answers) {
            match answer.try_recv().ok() {
                Some(Ok(reply)) => done.push((reply.revision(), deed, Ok(reply))),
                Some(Err(error)) if error.kind() == Kind::NotFound => done.push((0, deed, Err(error))),
                Some(Err(error)) if error.kind() == Kind::Bug && life.disk.counts().panics == panics => {
                    return Err(End::Wrong(format!("{:?}: {error}", deed.0)));
                }
                Some(Err(error)) if error.kind().is_refusal() => {}
                Some(Err(error)) => {
                    unsure.push(deed);
                    end = if error.kind() == Kind::Closed { Err(End::Trouble(error)) } else { end };
                }
                // Whoever waits for memory or for the disk may wait for longer; this life does not.
                None => {
                    unsure.push(deed);
                    end = Err(End::Trouble(Error::closed("a put waits, or the disk panicked")));
                }
            }
        }
        done.sort_by_key(|(revision, ..)| *revision);
        for (_, deed, told) in done {
            let told = match &told {
                Ok(reply) => Ok(reply.clone()),
                Err(error) => Err(error.message()),
            };
            self.worlds.answered(&deed, told).map_err(End::Wrong)?;
        }
        self.seen.unsure += unsure.len() as u64;
        self.worlds.unsure(&unsure);
        match handed {
            None => Err(End::Trouble(Error::closed("a panic ended it"))),
            Some(()) if self.worlds.are_too_many() => Err(End::Trouble(Error::closed("too much is unsure"))),
            Some(()) => end,
        }
    }

    /// Whether leases end when it is said here: slow calls let time pass in the midst of what the store does.
    fn is_timed(&self) -> bool {
        self.plan.trouble != Trouble::SlowCalls
    }

    fn keep_alive(&self, life: &mut Life, id: i64) -> Result<(), End> {
        let (now, granted) = (life.clock.now(), self.worlds.live.leases.get(&id).copied().unwrap_or(0));
        let is_over = life.ends.get(&id).is_none_or(|ends| *ends <= now);
        let got = life.versions.renew(id);
        if got > 0 {
            life.ends.insert(id, now + Duration::from_secs(got as u64));
        }
        let wanted = if is_over { 0 } else { granted };
        match got == wanted || !self.is_timed() && (got == 0 || got == granted) {
            true => Ok(()),
            false => Err(End::Wrong(format!("lease {id} was renewed for {got}, which should be {wanted}"))),
        }
    }

    /// Leases whose time is over are revoked, the first before the others; one for which that failed stays.
    fn expire(&mut self, life: &mut Life) -> Result<(), End> {
        let now = life.clock.now();
        let before = life.versions.leases();
        let is_due: BTreeSet<i64> = before.iter().copied().filter(|id| life.is_due(*id, now)).collect();
        let panics = life.disk.counts().panics;
        let ended = unless_panic(|| life.versions.expire());
        // Nobody is told what became of a lease whose revoke a panic has stopped.
        let ended = ended.filter(|_| life.disk.counts().panics == panics);
        let left: BTreeSet<i64> = life.versions.leases().into_iter().collect();
        for id in before {
            let deed = (Command::Revoke(id), None);
            // Whatever a panic has stopped may be done, or not.
            match (left.contains(&id) || ended.is_none(), is_due.contains(&id)) {
                (false, false) if self.is_timed() => {
                    return Err(End::Wrong(format!("lease {id} was revoked before its time was over")));
                }
                (false, _) => {
                    self.seen.ended += 1;
                    self.worlds.done(&deed).map_err(End::Wrong)?;
                    life.ends.remove(&id);
                }
                (true, true) => self.worlds.unsure(&[deed]),
                (true, false) => {}
            }
        }
        match ended {
            None => Err(End::Trouble(Error::closed("a panic ended it"))),
            Some(_) if self.worlds.are_too_many() => Err(End::Trouble(Error::closed("too much is unsure"))),
            Some(_) => Ok(()),
        }
    }

    fn reopen(&mut self, life: &mut Life) -> Result<(), End> {
        life.change(|| life.versions.close())?;
        let disk = life.disk.clone();
        *life = Life::begin(&disk, &self.plan)?;
        let found = life.contents()?;
        self.worlds.settle(&found, damages(&disk.counts()) > 0).map_err(End::Wrong)
    }

    fn range(&self, life: &Life, asked: &Range) -> Result<(), End> {
        let Some(got) = life.read(|| life.versions.range(asked).map(|held| held.value))? else { return Ok(()) };
        let wanted = self.worlds.live.range(asked).map_err(str::to_owned);
        match got == wanted {
            true => Ok(()),
            false => Err(End::Wrong(format!("{asked:?} found {got:?}, wanted {wanted:?}"))),
        }
    }

    fn events(&self, life: &Life, rng: &mut Rng) -> Result<(), End> {
        let live = &self.worlds.live;
        let least = live.compacted.max(1);
        let from = least + rng.below((live.revision() - least + 2) as u64) as i64;
        let (keys, with_prev) = (self.draw(rng).keys(), rng.chance(0.5));
        let (mut next, mut found) = (from, Vec::new());
        while next <= live.revision() {
            let most = (1 + rng.below(20) as i64, rng.below(4000));
            let read = || life.versions.events(next, most, with_prev, &mut |key| keys.contains(key));
            match life.read(read)? {
                None => return Ok(()),
                Some(Ok(held)) if held.value.next > next && held.value.revision == live.revision() => {
                    next = held.value.next;
                    found.extend(held.value.events);
                }
                Some(Ok(held)) => {
                    let Events { next: to, revision, .. } = held.value;
                    return Err(End::Wrong(format!("events from {next} go to {to} of {revision}")));
                }
                Some(Err(error)) => return Err(End::Wrong(format!("events from {next}: {error}"))),
            }
        }
        let wanted = live.seen(from, &keys, with_prev);
        match found == wanted {
            true => Ok(()),
            false => Err(End::Wrong(format!("events from {from} of {keys:?} are {found:?}, wanted {wanted:?}"))),
        }
    }

    fn read_own(&self, life: &Life) -> Result<(), End> {
        let live = &self.worlds.live;
        for id in LEASES {
            let Some(leased) = life.read(|| life.versions.leased(id).map(|held| held.value))? else { continue };
            if leased.as_ref().ok() != Some(&live.leased(id).cloned().collect()) {
                return Err(End::Wrong(format!("the keys of lease {id} are {leased:?}")));
            }
        }
        for name in NAMES {
            let Some(value) = life.read(|| life.versions.own(name))? else { continue };
            if value.as_ref().ok() != Some(&live.own.get(name).cloned()) {
                return Err(End::Wrong(format!("the value of {name:?} is {value:?}")));
            }
        }
        Ok(())
    }
}

fn many(from: u64, to: u64) -> KeyRange {
    KeyRange { key: format!("f{from:04}").into_bytes(), end: format!("f{to:04}").into_bytes() }
}

/// A put that no other command can make fail.
fn plain(draw: &mut Drawing<'_>) -> Put {
    let put = draw.put();
    let value = if put.ignore_value { vec![1; 10] } else { put.value };
    Put { value, ignore_value: false, ignore_lease: false, ..put }
}

/// Many keys at once, in one unit.
fn fill(rng: &mut Rng) -> Command {
    let first = rng.below(MANY);
    let put = |at: u64| {
        let key = format!("f{:04}", (first + at) % MANY).into_bytes();
        Op::Put(Put { key, value: vec![at as u8; 8], ..Put::default() })
    };
    let success = (0..60 + rng.below(300)).map(put).collect();
    Command::Txn(Txn { success, ..Txn::default() })
}
