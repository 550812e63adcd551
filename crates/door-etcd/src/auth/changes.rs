//! Changes of users and roles: what each writes, on a state, as etcd has it.

use super::state::{ENABLED, EPOCH, REVISION, Records, State, role_record, user_record};
use super::{ROOT, errors};
use crate::wire::authpb::{Permission, Role, User, UserAddOptions};
use prost::Message;
use ramekin_base::{Error, Result};
use ramekin_memory::Account;
use ramekin_versions::{Asked, Command, Versions, errors as text};
use std::sync::Arc;

/// A change. Passwords are hashed already.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Enable,
    Disable,
    UserAdd { name: String, password: Vec<u8>, no_password: bool },
    UserDelete(String),
    UserPassword { name: String, password: Vec<u8> },
    UserGrant { user: String, role: String },
    UserRevoke { user: String, role: String },
    RoleAdd(String),
    RoleDelete(String),
    RoleGrant { role: String, permission: Option<Permission> },
    RoleRevoke { role: String, key: Vec<u8>, end: Vec<u8> },
}

/// Does a change; returns the state after it, and the newest revision of the store then. Where it fails nothing is durable.
pub(super) fn make(versions: &Versions, account: &Account, change: &Change) -> Result<(Arc<State>, i64)> {
    loop {
        let state = State::load(versions, account)?;
        let Some(mut records) = state.records(change)? else { return Ok((Arc::new(state), versions.revision()?)) };
        records.push((EPOCH.to_vec(), Some((state.epoch + 1).to_be_bytes().into())));
        // In memory before it is durable: what is durable can always be published. The guard says that nothing else came between.
        let next = State::with(versions, account, &records)?;
        let asked = Asked { guard: Some(state.guard()), ..Asked::from(Command::Own(records)) };
        match versions.execute(asked) {
            // Somebody else was quicker; it counts on what that made.
            Err(error) if error.message() == text::OLD_AUTH_REVISION => {}
            done => {
                let revision = done?.value.revision();
                return Ok((Arc::new(next), revision));
            }
        }
    }
}

fn is_range(key: &[u8], end: &[u8]) -> bool {
    !key.is_empty() && (end.is_empty() || end == [0] || key < end)
}

fn user(user: &User) -> (Vec<u8>, Option<Vec<u8>>) {
    (user_record(&String::from_utf8_lossy(&user.name)), Some(user.encode_to_vec()))
}

fn role(role: &Role) -> (Vec<u8>, Option<Vec<u8>>) {
    (role_record(&String::from_utf8_lossy(&role.name)), Some(role.encode_to_vec()))
}

impl State {
    /// What a change writes; `None`: all is as it asks for.
    fn records(&self, change: &Change) -> Result<Option<Records>> {
        let mut records = match change {
            Change::Enable => return self.enable(),
            Change::Disable if !self.enabled => return Ok(None),
            Change::Disable => vec![(ENABLED.to_vec(), None)],
            Change::UserAdd { name, password, no_password } => self.add_user(name, password, *no_password)?,
            Change::UserDelete(name) => {
                self.keep_root(name == ROOT)?;
                self.user(name)?;
                vec![(user_record(name), None)]
            }
            Change::UserPassword { name, password } => {
                let mut changed = self.user(name)?.clone();
                let has_none = changed.options.as_ref().is_some_and(|options| options.no_password);
                changed.password = if has_none { Vec::new() } else { password.clone() };
                vec![user(&changed)]
            }
            Change::UserGrant { user: name, role } => match self.grant_role(name, role)? {
                Some(records) => records,
                None => return Ok(None),
            },
            Change::UserRevoke { user: name, role } => self.revoke_role(name, role)?,
            Change::RoleAdd(name) => self.add_role(name)?,
            Change::RoleDelete(name) => self.delete_role(name)?,
            Change::RoleGrant { role, permission } => self.grant(role, permission.as_ref())?,
            Change::RoleRevoke { role, key, end } => self.revoke(role, key, end)?,
        };
        records.push((REVISION.to_vec(), Some((self.revision + 1).to_be_bytes().into())));
        Ok(Some(records))
    }

    fn enable(&self) -> Result<Option<Records>> {
        if self.enabled {
            return Ok(None);
        }
        if !self.users.contains_key(ROOT) {
            return Err(Error::invalid(errors::ROOT_USER_NOT_FOUND));
        }
        if !self.is_root(ROOT) {
            return Err(Error::invalid(errors::ROOT_ROLE_NOT_GRANTED));
        }
        Ok(Some(vec![(ENABLED.to_vec(), Some(vec![1]))]))
    }

    /// Fails for what would leave nobody who may manage users.
    fn keep_root(&self, is_root: bool) -> Result<()> {
        match self.enabled && is_root {
            true => Err(Error::invalid(errors::INVALID_MANAGEMENT)),
            false => Ok(()),
        }
    }

    fn add_user(&self, name: &str, password: &[u8], no_password: bool) -> Result<Records> {
        if name.is_empty() {
            return Err(Error::invalid(errors::USER_EMPTY));
        }
        if self.users.contains_key(name) {
            return Err(Error::invalid(errors::USER_EXISTS));
        }
        let (name, password) = (name.into(), if no_password { Vec::new() } else { password.to_vec() });
        let options = Some(UserAddOptions { no_password });
        Ok(vec![user(&User { name, password, roles: Vec::new(), options })])
    }

    fn grant_role(&self, name: &str, role: &str) -> Result<Option<Records>> {
        let mut changed = self.user(name)?.clone();
        if role != ROOT {
            self.role(role)?;
        }
        let Err(at) = changed.roles.binary_search_by(|it| (**it).cmp(role)) else { return Ok(None) };
        changed.roles.insert(at, role.to_owned());
        Ok(Some(vec![user(&changed)]))
    }

    fn revoke_role(&self, name: &str, role: &str) -> Result<Records> {
        self.keep_root(name == ROOT && role == ROOT)?;
        let mut changed = self.user(name)?.clone();
        let count = changed.roles.len();
        changed.roles.retain(|it| it != role);
        match changed.roles.len() == count {
            true => Err(Error::invalid(errors::ROLE_NOT_GRANTED)),
            false => Ok(vec![user(&changed)]),
        }
    }

    fn add_role(&self, name: &str) -> Result<Records> {
        if name.is_empty() {
            return Err(Error::invalid(errors::ROLE_EMPTY));
        }
        if self.roles.contains_key(name) {
            return Err(Error::invalid(errors::ROLE_EXISTS));
        }
        Ok(vec![role(&Role { name: name.into(), key_permission: Vec::new() })])
    }

    fn delete_role(&self, name: &str) -> Result<Records> {
        self.keep_root(name == ROOT)?;
        self.role(name)?;
        let mut records = vec![(role_record(name), None)];
        for held in self.users.values().filter(|user| user.roles.iter().any(|it| it == name)) {
            let mut changed = held.clone();
            changed.roles.retain(|it| it != name);
            records.push(user(&changed));
        }
        Ok(records)
    }

    fn grant(&self, name: &str, permission: Option<&Permission>) -> Result<Records> {
        let permission = permission.ok_or_else(|| Error::invalid(errors::PERMISSION_NOT_GIVEN))?;
        if !is_range(&permission.key, &permission.range_end) {
            return Err(Error::invalid(errors::INVALID_MANAGEMENT));
        }
        let mut changed = self.role(name)?.clone();
        let all = &mut changed.key_permission;
        match all.iter_mut().find(|it| it.key == permission.key && it.range_end == permission.range_end) {
            Some(held) => held.perm_type = permission.perm_type,
            None => {
                all.push(permission.clone());
                all.sort_by(|one, other| one.key.cmp(&other.key));
            }
        }
        Ok(vec![role(&changed)])
    }

    fn revoke(&self, name: &str, key: &[u8], end: &[u8]) -> Result<Records> {
        let mut changed = self.role(name)?.clone();
        let count = changed.key_permission.len();
        changed.key_permission.retain(|it| it.key != key || it.range_end != end);
        match changed.key_permission.len() == count {
            true => Err(Error::invalid(errors::PERMISSION_NOT_GRANTED)),
            false => Ok(vec![role(&changed)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::new_store;
    use crate::wire::authpb::permission::Type;
    use ramekin_memory::Budget;

    fn changes() -> Vec<Change> {
        let (root, ann, all) = (|| ROOT.to_owned(), || "ann".to_owned(), || "all".to_owned());
        let permission = Permission { perm_type: Type::Read.into(), key: b"a".to_vec(), range_end: b"b".to_vec() };
        let user = |name| Change::UserAdd { name, password: b"x".to_vec(), no_password: false };
        vec![
            user(root()),
            user(ann()),
            Change::RoleAdd(all()),
            Change::RoleAdd(root()),
            Change::RoleGrant { role: all(), permission: Some(permission) },
            Change::UserGrant { user: root(), role: root() },
            Change::UserGrant { user: ann(), role: all() },
            Change::Enable,
            Change::UserPassword { name: ann(), password: b"y".to_vec() },
            Change::RoleRevoke { role: all(), key: b"a".to_vec(), end: b"b".to_vec() },
            Change::RoleDelete(all()),
            Change::UserDelete(ann()),
            Change::Disable,
        ]
    }

    fn shown(state: &State) -> String {
        format!("{:?} {:?} {:?} {:?}", state.enabled, state.epoch, state.users, state.roles)
    }

    #[test]
    fn the_state_after_a_change_is_the_one_that_is_durable() {
        let store = new_store();
        let account = store.account.child("auth", "");
        for change in changes() {
            let (made, _) = make(&store.versions, &account, &change).unwrap();
            let loaded = State::load(&store.versions, &account).unwrap();
            assert_eq!(shown(&made), shown(&loaded), "{change:?}");
            assert_eq!(made.revision, loaded.revision);
        }
    }

    #[test]
    fn without_memory_a_change_is_not_durable_or_it_is_known() {
        let store = new_store();
        for (done, change) in changes().into_iter().enumerate() {
            let mut most = 0;
            loop {
                let account = Budget::new(1 << 20).root().child("auth", "").with_limit(most);
                match make(&store.versions, &account, &change) {
                    Ok(_) => break,
                    Err(_) => {
                        let epoch = State::load(&store.versions, &store.account).unwrap().epoch;
                        assert_eq!(epoch, done as u64, "{change:?} failed and is durable");
                        most += 512;
                    }
                }
            }
        }
    }
}
