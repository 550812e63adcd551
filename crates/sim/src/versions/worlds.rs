//! What the store must hold, and what it may hold besides.
//!
//! ```text
//!   live     all commands that were answered, in their order             what readers see
//!   others   some of those among them that got no answer                 what may stand there after a crash
//! ```

use super::maps::{Model, State};
use ramekin_versions::{Command, Event, Guard, KeyRange, Reply};
use std::collections::BTreeMap;

/// Worlds beside the live one that a life may collect before it must end.
pub const OTHERS_MAX: usize = 40;

/// A command, and what it is tied to.
pub type Deed = (Command, Option<Guard>);

/// All that a store holds.
pub struct Found {
    pub revision: i64,
    pub compacted: i64,
    pub state: State,
    /// From the compacted revision on, each with the version before.
    pub events: Vec<Event>,
    /// Of each lease what it was granted for.
    pub leases: BTreeMap<i64, i64>,
    pub own: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Default)]
pub struct Worlds {
    pub live: Model,
    others: Vec<Model>,
    /// Where writes may be lost without a word: all that were live since the store was opened.
    past: Option<Vec<Model>>,
}

impl Worlds {
    pub fn new(loses: bool) -> Self {
        Self { past: loses.then(Vec::new), ..Self::default() }
    }

    pub fn are_too_many(&self) -> bool {
        self.others.len() > OTHERS_MAX
    }

    fn remember(&mut self) {
        if let Some(past) = &mut self.past {
            past.push(self.live.clone());
        }
    }

    /// A command was answered; fails for an answer that is wrong. Worlds in which it had another one never were.
    pub fn answered(&mut self, (command, guard): &Deed, told: Result<Reply, &str>) -> Result<(), String> {
        self.remember();
        let wanted = self.live.execute(command, guard.as_ref());
        if wanted != told {
            return Err(format!("{command:?} was answered {told:?}, which should be {wanted:?}"));
        }
        self.others.retain_mut(|world| world.execute(command, guard.as_ref()) == wanted);
        Ok(())
    }

    /// A command was done; nobody was told what it answered.
    pub fn done(&mut self, (command, guard): &Deed) -> Result<(), String> {
        let told = self.live.clone().execute(command, guard.as_ref());
        let told = told.map_err(|error| format!("{command:?} was done, and should fail: {error}"))?;
        self.answered(&(command.clone(), guard.clone()), Ok(told))
    }

    /// Commands got no answer: any of them may be done, in any order.
    pub fn unsure(&mut self, deeds: &[Deed]) {
        let before: Vec<Model> = self.others.iter().chain([&self.live]).cloned().collect();
        for world in &before {
            self.after_any(world, deeds);
        }
    }

    fn after_any(&mut self, world: &Model, deeds: &[Deed]) {
        for (at, (command, guard)) in deeds.iter().enumerate() {
            let mut after = world.clone();
            if after.execute(command, guard.as_ref()).is_ok() && after != *world {
                let rest: Vec<Deed> =
                    deeds.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, deed)| deed.clone()).collect();
                self.after_any(&after, &rest);
                self.others.push(after);
            }
        }
    }

    /// Settles what a crash left open: what is found must be one of the worlds. `is_damaged`: stored bytes were made wrong, which may
    /// have cost the newest commands.
    pub fn settle(&mut self, found: &Found, is_damaged: bool) -> Result<(), String> {
        let past = self.past.as_deref().filter(|_| is_damaged).unwrap_or_default();
        let mut worlds = [&self.live].into_iter().chain(&self.others).chain(past.iter().rev());
        let world = worlds.find(|world| difference(world, found).is_none()).cloned();
        drop(worlds);
        let Some(world) = world else {
            let what = difference(&self.live, found).unwrap_or_default();
            return Err(format!("{what} (and {} other worlds do not fit)", self.others.len()));
        };
        self.live = world;
        self.others.clear();
        self.past.iter_mut().for_each(Vec::clear);
        Ok(())
    }
}

/// The first difference in words.
fn difference(wanted: &Model, found: &Found) -> Option<String> {
    if wanted.revision() != found.revision {
        return Some(format!("the revision is {}, it was {}", found.revision, wanted.revision()));
    }
    if wanted.compacted != found.compacted {
        return Some(format!("compacted is {}, it was {}", found.compacted, wanted.compacted));
    }
    for (key, kv) in wanted.now() {
        let held = found.state.get(key);
        if held != Some(kv) {
            return Some(format!("a key is {held:?}, it was {kv:?}"));
        }
    }
    if let Some(kv) = found.state.values().find(|kv| !wanted.now().contains_key(&kv.key)) {
        return Some(format!("a key is there that should not be: {kv:?}"));
    }
    let all = KeyRange { key: vec![0], end: vec![0] };
    let seen = wanted.seen(wanted.compacted.max(1), &all, true);
    if seen.len() != found.events.len() {
        return Some(format!("there are {} events, there were {}", found.events.len(), seen.len()));
    }
    if let Some((wanted, found)) = seen.iter().zip(&found.events).find(|(wanted, found)| wanted != found) {
        return Some(format!("an event is {found:?}, it was {wanted:?}"));
    }
    if wanted.leases != found.leases {
        return Some(format!("leases are {:?}, they were {:?}", found.leases, wanted.leases));
    }
    if wanted.own != found.own {
        return Some(format!("values of the server's are {:?}, they were {:?}", found.own, wanted.own));
    }
    None
}
