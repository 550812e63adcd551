//! The calls that manage users and roles.

use super::changes::{self, Change};
use super::{ROOT, State, errors};
use crate::door::{Door, answer};
use crate::errors::{TOO_MANY_REQUESTS, refused, status};
use crate::wire::authpb::{Permission, permission::Type};
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::auth_server::Auth;
use ramekin_base::{Error, Lane, Result};
use ramekin_memory::Reservation;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use tonic::{Request, Response, Status};

/// An item of a list in an answer, besides its bytes.
const ITEM_BYTES: u64 = 128;
/// While commands are waited for that were let in before a change it looks so often whether they have ended.
const LOOK: Duration = Duration::from_millis(2);

impl Door {
    /// Does a change and publishes what it makes; the header of its answer.
    async fn change(&self, change: Change) -> Result<Option<pb::ResponseHeader>, Status> {
        let (own, made) = (self.clone(), change.clone());
        // To its end, whether its client waits or not: what is durable must be known.
        let revision = self
            .block(Lane::Writes, move |versions| {
                let (state, revision) = changes::make(versions, &own.inner.auth_account, &made)?;
                own.publish(state);
                match &made {
                    Change::UserDelete(name) | Change::UserPassword { name, .. } => own.inner.tokens.forget(name),
                    Change::Disable => own.inner.tokens.forget_all(),
                    _ => {}
                }
                Ok(revision)
            })
            .await?;
        // What was let in before it has ended when it is answered.
        while self.is_entered_by_old() {
            tokio::time::sleep(LOOK).await;
        }
        Ok(self.header(revision))
    }

    fn publish(&self, state: Arc<State>) {
        let mut left = self.inner.left_states.lock();
        let before = self.inner.users.rcu(|held| if held.epoch > state.epoch { held.clone() } else { state.clone() });
        left.push(before.entered().clone());
    }

    /// Whether a command is under way that a state let in which is no longer the newest.
    fn is_entered_by_old(&self) -> bool {
        let newest = self.inner.users.load();
        // Either this sees who entered, or that one sees the new state.
        fence(Ordering::SeqCst);
        let mut left = self.inner.left_states.lock();
        left.retain(|entered| !Arc::ptr_eq(entered, newest.entered()) && Arc::weak_count(entered) > 0);
        !left.is_empty()
    }

    /// The same for those who may manage users.
    async fn change_as<T>(&self, request: &Request<T>, change: Change) -> Result<Option<pb::ResponseHeader>, Status> {
        self.caller_of(request)?.must_be_root()?;
        self.change(change).await
    }

    /// Hashes a password as etcd does.
    async fn hashed(&self, password: String, hashed: String) -> Result<Vec<u8>, Status> {
        use base64::Engine;
        if !hashed.is_empty() {
            let bytes = base64::engine::general_purpose::STANDARD.decode(hashed);
            return bytes.map_err(|_| refused(errors::AUTH_FAILED));
        }
        let cost = self.inner.host.bcrypt_cost;
        self.block(Lane::Writes, move |_| {
            // A longer one was never told apart by bcrypt either.
            let hash = bcrypt::non_truncating_hash(password, cost);
            hash.map(String::into_bytes).map_err(|error| Error::invalid(format!("etcdserver: {error}")))
        })
        .await
    }

    /// A token for whoever has the password of a user by a state. `None`: meanwhile it is another state, which may have another password.
    fn token_by(&self, state: &State, (name, password): (&str, &str), index: u64) -> Result<Option<String>> {
        if !state.enabled {
            return Err(Error::invalid(errors::NOT_ENABLED));
        }
        let failed = || Error::invalid(errors::AUTH_FAILED);
        let user = state.user(name).map_err(|_| failed())?;
        if user.options.as_ref().is_some_and(|options| options.no_password) {
            return Err(Error::invalid(errors::NO_PASSWORD));
        }
        if password.is_empty() {
            return Err(failed());
        }
        let hash = std::str::from_utf8(&user.password).map_err(|_| failed())?;
        if !matches!(bcrypt::verify(password, hash), Ok(true)) {
            return Err(failed());
        }
        let token = self.inner.tokens.issue(name, state.revision, index)?;
        // Who changes a user publishes that first, and forgets its tokens then.
        if self.inner.users.load().epoch != state.epoch {
            self.inner.tokens.take_back(&token);
            return Ok(None);
        }
        Ok(Some(token))
    }

    /// Books a list of an answer, of items with so many bytes each.
    fn booked(&self, items: impl Iterator<Item = usize>) -> Result<Reservation, Status> {
        let bytes = items.map(|bytes| ITEM_BYTES + bytes as u64).sum();
        self.inner.bodies.try_reserve(bytes).map_err(|_| refused(TOO_MANY_REQUESTS))
    }

    fn now_header(&self) -> Option<pb::ResponseHeader> {
        self.header(*self.inner.host.changed.borrow())
    }
}

#[tonic::async_trait]
impl Auth for Door {
    async fn auth_enable(
        &self,
        request: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        let header = self.change_as(&request, Change::Enable).await?;
        Ok(Response::new(pb::AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        let header = self.change_as(&request, Change::Disable).await?;
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    async fn auth_status(
        &self,
        request: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        // Anybody may ask, but not with a token that is none.
        if let Err(status) = self.caller_of(&request)
            && status.message() == errors::INVALID_TOKEN
        {
            return Err(status);
        }
        let (state, header) = (self.inner.users.load(), self.now_header());
        Ok(Response::new(pb::AuthStatusResponse { header, enabled: state.enabled, auth_revision: state.revision }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let own = self.clone();
        let token = self
            .block(Lane::Writes, move |versions| {
                loop {
                    let (state, durable) = (own.inner.users.load_full(), versions.stats().durable);
                    if let Some(token) = own.token_by(&state, (&name, &password), durable)? {
                        return Ok(token);
                    }
                }
            })
            .await?;
        Ok(Response::new(pb::AuthenticateResponse { header: self.now_header(), token }))
    }

    async fn user_add(
        &self,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        let pb::AuthUserAddRequest { name, password, options, hashed_password } = request.into_inner();
        let no_password = options.is_some_and(|options| options.no_password);
        let password = if no_password { Vec::new() } else { self.hashed(password, hashed_password).await? };
        let header = self.change(Change::UserAdd { name, password, no_password }).await?;
        Ok(Response::new(pb::AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        let caller = self.caller_of(&request);
        let name = request.into_inner().name;
        match caller {
            Ok(caller) if caller.is(&name) => {}
            Ok(caller) => caller.must_be_root()?,
            // Nobody's name is empty, and so it is its own.
            Err(status) if name.is_empty() && status.message() == errors::USER_EMPTY => {}
            Err(status) => return Err(status),
        }
        let state = self.inner.users.load();
        let user = state.user(&name).map_err(|error| status(&error))?;
        let memory = self.booked(user.roles.iter().map(String::len))?;
        answer(pb::AuthUserGetResponse { header: self.now_header(), roles: user.roles.clone() }, Some(memory))
    }

    async fn user_list(
        &self,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        let state = self.inner.users.load();
        let memory = self.booked(state.users.keys().map(String::len))?;
        let users = state.users.keys().cloned().collect();
        answer(pb::AuthUserListResponse { header: self.now_header(), users }, Some(memory))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        let change = Change::UserDelete(request.get_ref().name.clone());
        let header = self.change_as(&request, change).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        let pb::AuthUserChangePasswordRequest { name, password, hashed_password } = request.into_inner();
        let password = self.hashed(password, hashed_password).await?;
        let header = self.change(Change::UserPassword { name, password }).await?;
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        let pb::AuthUserGrantRoleRequest { user, role } = request.get_ref().clone();
        let header = self.change_as(&request, Change::UserGrant { user, role }).await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        let pb::AuthUserRevokeRoleRequest { name, role } = request.get_ref().clone();
        let header = self.change_as(&request, Change::UserRevoke { user: name, role }).await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        let change = Change::RoleAdd(request.get_ref().name.clone());
        let header = self.change_as(&request, change).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header }))
    }

    async fn role_get(
        &self,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        let caller = self.caller_of(&request)?;
        let name = request.into_inner().role;
        if !caller.has_role(&name) {
            caller.must_be_root()?;
        }
        let state = self.inner.users.load();
        let role = state.role(&name).map_err(|error| status(&error))?;
        let ranges = role.key_permission.iter();
        let memory = self.booked(ranges.map(|permission| permission.key.len() + permission.range_end.len()))?;
        let everything = Permission { perm_type: Type::Readwrite.into(), key: Vec::new(), range_end: vec![0] };
        let perm = if name == ROOT { vec![everything] } else { role.key_permission.clone() };
        answer(pb::AuthRoleGetResponse { header: self.now_header(), perm }, Some(memory))
    }

    async fn role_list(
        &self,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        let state = self.inner.users.load();
        let memory = self.booked(state.roles.keys().map(String::len))?;
        let roles = state.roles.keys().cloned().collect();
        answer(pb::AuthRoleListResponse { header: self.now_header(), roles }, Some(memory))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        let change = Change::RoleDelete(request.get_ref().role.clone());
        let header = self.change_as(&request, change).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        let pb::AuthRoleGrantPermissionRequest { name, perm } = request.get_ref().clone();
        let header = self.change_as(&request, Change::RoleGrant { role: name, permission: perm }).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        let pb::AuthRoleRevokePermissionRequest { role, key, range_end } = request.get_ref().clone();
        let header = self.change_as(&request, Change::RoleRevoke { role, key, end: range_end }).await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse { header }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{door, new_store, run};

    fn enabled(door: &Door) {
        let password = |word: &str| bcrypt::hash(word, 4).unwrap().into_bytes();
        let root = || ROOT.to_owned();
        for change in [
            Change::UserAdd { name: root(), password: password("old"), no_password: false },
            Change::RoleAdd(root()),
            Change::UserGrant { user: root(), role: root() },
            Change::Enable,
        ] {
            run(door.change(change)).unwrap();
        }
    }

    #[test]
    fn a_password_that_is_changed_meanwhile_has_no_token() {
        let store = new_store();
        let door = door(&store);
        enabled(&door);
        let before = door.inner.users.load_full();
        let token = door.token_by(&before, (ROOT, "old"), 1).unwrap().unwrap();
        assert!(door.inner.tokens.user_of(&token).is_some());
        let password = bcrypt::hash("new", 4).unwrap().into_bytes();
        run(door.change(Change::UserPassword { name: ROOT.to_owned(), password })).unwrap();
        assert!(door.inner.tokens.user_of(&token).is_none());
        // One that began before.
        assert_eq!(door.token_by(&before, (ROOT, "old"), 1).unwrap(), None);
        let now = door.inner.users.load_full();
        assert!(door.token_by(&now, (ROOT, "old"), 1).is_err() && door.token_by(&now, (ROOT, "new"), 1).is_ok());
    }

    #[test]
    fn a_change_of_users_is_answered_when_what_was_let_in_before_has_ended() {
        let store = new_store();
        let door = door(&store);
        let anyone = door.caller_of(&Request::new(())).unwrap();
        let entered = door.enter(&anyone).unwrap();
        let changing = {
            let door = door.clone();
            std::thread::spawn(move || enabled(&door))
        };
        while !door.is_entered_by_old() {
            assert!(!changing.is_finished(), "nobody is waited for");
            std::thread::yield_now();
        }
        assert_eq!(door.inner.users.load().epoch, 1);
        drop(entered);
        changing.join().unwrap();
        assert!(door.enter(&anyone).is_err(), "nobody is anyone any more");
    }
}
