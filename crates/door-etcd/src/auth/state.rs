//! Users and roles as they are durable. The store has one record for each, in etcd's own messages; the door holds them all, booked.

use super::permits::Permits;
use super::{ROOT, errors};
use crate::wire::authpb;
use prost::Message;
use ramekin_base::{Error, Result};
use ramekin_memory::{Account, Reservation};
use ramekin_versions::{Guard, Versions};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What all names of records begin with, and what follows it.
const AUTH: &[u8] = b"auth/";
pub(crate) const ENABLED: &[u8] = b"auth/enabled";
pub(crate) const REVISION: &[u8] = b"auth/revision";
/// Counts changes; commands are tied to it.
pub(super) const EPOCH: &[u8] = b"auth/epoch";
pub(crate) const USER: &[u8] = b"auth/user/";
pub(crate) const ROLE: &[u8] = b"auth/role/";
/// What a user or a role takes besides its bytes.
const ENTRY_BYTES: u64 = 256;

pub(super) fn user_record(name: &str) -> Vec<u8> {
    [USER, name.as_bytes()].concat()
}

pub(super) fn role_record(name: &str) -> Vec<u8> {
    [ROLE, name.as_bytes()].concat()
}

/// All users and roles at one moment.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) enabled: bool,
    /// Counts changes as etcd does; a fresh store has 1.
    pub(crate) revision: u64,
    pub(super) epoch: u64,
    pub(super) users: BTreeMap<String, authpb::User>,
    pub(super) roles: BTreeMap<String, authpb::Role>,
    /// Users of the same roles have the same.
    permits: BTreeMap<String, Arc<Permits>>,
    /// Held by commands that were let in by it and that nothing else ties to it.
    entered: Arc<()>,
    _memory: Option<Reservation>,
}

/// What changes: the names of records, and what they are then.
pub(super) type Records = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl State {
    pub(crate) fn load(versions: &Versions, account: &Account) -> Result<Self> {
        Self::with(versions, account, &[])
    }

    /// As it is when some records are written.
    pub(super) fn with(versions: &Versions, account: &Account, changed: &[(Vec<u8>, Option<Vec<u8>>)]) -> Result<Self> {
        let held = versions.owns(AUTH)?;
        let of = |name: &[u8], value: &[u8]| ENTRY_BYTES + 4 * (name.len() + value.len()) as u64;
        let kept = held.value.iter().map(|(name, value)| of(name, value)).sum::<u64>();
        let written = changed.iter().map(|(name, value)| of(name, value.as_deref().unwrap_or_default())).sum::<u64>();
        let mut memory = account.try_reserve(kept + written)?;
        let mut state = Self {
            enabled: false,
            revision: 1,
            epoch: 0,
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
            permits: BTreeMap::new(),
            entered: Arc::default(),
            _memory: None,
        };
        for (name, value) in &held.value {
            state.take(&[AUTH, name].concat(), value)?;
        }
        for (name, value) in changed {
            match value {
                Some(value) => state.take(name, value)?,
                None => state.leave(name),
            }
        }
        state.permits = state.all_permits(&mut memory)?;
        state._memory = Some(memory);
        Ok(state)
    }

    /// What each user may do.
    fn all_permits(&self, memory: &mut Reservation) -> Result<BTreeMap<String, Arc<Permits>>> {
        let mut made: BTreeMap<&[String], Arc<Permits>> = BTreeMap::new();
        let mut all = BTreeMap::new();
        for (name, user) in &self.users {
            let permits = match made.get(&user.roles[..]) {
                Some(permits) => permits.clone(),
                None => {
                    let roles = user.roles.iter().filter_map(|role| self.roles.get(role));
                    let permissions = roles.flat_map(|role| &role.key_permission);
                    memory.grow(permissions.clone().map(Permits::bytes).sum())?;
                    let permits = Arc::new(Permits::of(permissions));
                    made.insert(&user.roles, permits.clone());
                    permits
                }
            };
            all.insert(name.clone(), permits);
        }
        Ok(all)
    }

    /// A record is no more.
    fn leave(&mut self, name: &[u8]) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if name == ENABLED {
            self.enabled = false;
        } else if let Some(user) = name.strip_prefix(USER) {
            self.users.remove(&text(user));
        } else if let Some(role) = name.strip_prefix(ROLE) {
            self.roles.remove(&text(role));
        }
    }

    /// Whoever holds it is waited for, before it is said that the state is another one.
    pub(super) fn entered(&self) -> &Arc<()> {
        &self.entered
    }

    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        let broken = || Error::corrupt("a record of a user or a role does not decode; restore the folder from a copy");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| broken());
        match name {
            ENABLED => self.enabled = value == [1],
            REVISION => self.revision = number(value),
            EPOCH => self.epoch = number(value),
            name => {
                if let Some(user) = name.strip_prefix(USER) {
                    self.users.insert(text(user)?, authpb::User::decode(value).map_err(|_| broken())?);
                } else if let Some(role) = name.strip_prefix(ROLE) {
                    self.roles.insert(text(role)?, authpb::Role::decode(value).map_err(|_| broken())?);
                }
            }
        }
        Ok(())
    }

    /// What a command is tied to that this state allows.
    pub(crate) fn guard(&self) -> Guard {
        Guard {
            name: EPOCH,
            value: Some(self.epoch).filter(|epoch| *epoch > 0).map(|epoch| epoch.to_be_bytes().into()),
        }
    }

    pub(super) fn user(&self, name: &str) -> Result<&authpb::User> {
        self.users.get(name).ok_or_else(|| Error::not_found(errors::USER_NOT_FOUND))
    }

    pub(super) fn role(&self, name: &str) -> Result<&authpb::Role> {
        self.roles.get(name).ok_or_else(|| Error::not_found(errors::ROLE_NOT_FOUND))
    }

    pub(super) fn has_role(&self, user: &str, role: &str) -> bool {
        self.users.get(user).is_some_and(|user| user.roles.iter().any(|it| it == role))
    }

    pub(super) fn is_root(&self, user: &str) -> bool {
        self.has_role(user, ROOT)
    }

    pub(super) fn permits(&self, user: &str) -> Option<&Permits> {
        self.permits.get(user).map(|permits| &**permits)
    }
}
