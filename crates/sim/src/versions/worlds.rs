//! What the store must hold, and what it may hold besides.
//!
//! ```text
//!   live     all commands that were answered, in their order             what readers see
//!   others   some of those among them that got no answer                 what may stand there after a crash
//! ```

use super::maps::Model;
use super::maps::found::{Found, difference};
use ramekin_versions::{Command, Guard, Reply};

/// Worlds beside the live one that a life may collect before it must end.
pub const OTHERS_MAX: usize = 40;

/// A command, and what it is tied to.
pub type Deed = (Command, Option<Guard>);

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
