//! Who sent a request, and what it may do.

use super::state::State;
use super::{ROOT, errors};
use crate::door::Door;
use crate::errors::refused;
use ramekin_base::Result;
use ramekin_versions::{Guard, KeyRange, Op, Txn, Versions};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use tonic::{Request, Status};

/// The name in the certificate of a client.
#[derive(Debug, Clone)]
pub(crate) struct CommonName(pub(crate) String);

/// What a request says of who sent it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Credentials {
    token: Option<String>,
    common_name: Option<String>,
}

impl<T> From<&Request<T>> for Credentials {
    fn from(request: &Request<T>) -> Self {
        let metadata = request.metadata();
        let token = metadata.get("token").or_else(|| metadata.get("authorization"));
        let token = token.and_then(|token| token.to_str().ok());
        let token = token.map(|token| token.strip_prefix("Bearer ").unwrap_or(token).to_owned());
        let common_name = request.extensions().get::<CommonName>().map(|name| name.0.clone());
        Self { token, common_name }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Who sent a request. `None`: nobody is asked.
#[derive(Debug, Clone)]
pub(crate) struct Caller(Option<User>);

#[derive(Debug, Clone)]
struct User {
    /// By which it is judged.
    state: Arc<State>,
    name: String,
}

/// A command under way. Changes of users wait for it.
pub(crate) struct Entered {
    _held: Weak<()>,
}

impl Door {
    /// Who sent a request. Fails while users are asked for and it is from none.
    pub(crate) fn caller(&self, credentials: &Credentials) -> Result<Caller, Status> {
        let state = self.inner.users.load_full();
        if !state.enabled {
            return Ok(Caller(None));
        }
        let name = match (&credentials.token, &credentials.common_name) {
            (Some(token), _) => {
                let (name, revision) =
                    self.inner.tokens.user_of(token).ok_or_else(|| refused(errors::INVALID_TOKEN))?;
                if revision.is_some_and(|revision| revision < state.revision) {
                    return Err(refused(ramekin_versions::errors::OLD_AUTH_REVISION));
                }
                name
            }
            (None, Some(name)) => name.clone(),
            (None, None) => return Err(refused(errors::USER_EMPTY)),
        };
        Ok(Caller(Some(User { state, name })))
    }

    /// The same for whoever sent a request of gRPC.
    pub(crate) fn caller_of<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        // The common case costs nothing.
        match self.inner.users.load().enabled {
            true => self.caller(&Credentials::from(request)),
            false => Ok(Caller(None)),
        }
    }

    /// Lets a command in that no guard ties to what its caller was judged by: a change of users is answered when it has ended. Fails if
    /// they were changed already.
    pub(crate) fn enter(&self, caller: &Caller) -> Result<Entered, Status> {
        loop {
            let state = self.inner.users.load();
            let entered = Entered { _held: Arc::downgrade(state.entered()) };
            // Either who changes users sees this, or this sees the change.
            fence(Ordering::SeqCst);
            if !Arc::ptr_eq(self.inner.users.load().entered(), state.entered()) {
                continue;
            }
            let still = match &caller.0 {
                Some(user) => user.state.epoch == state.epoch,
                None => !state.enabled,
            };
            return if still { Ok(entered) } else { Err(refused(ramekin_versions::errors::OLD_AUTH_REVISION)) };
        }
    }

    /// Fails if users or roles were changed since a caller was judged: what it read may be too new for it.
    pub(crate) fn still(&self, caller: &Caller) -> Result<(), Status> {
        match &caller.0 {
            Some(user) if self.inner.users.load().epoch != user.state.epoch => {
                Err(refused(ramekin_versions::errors::OLD_AUTH_REVISION))
            }
            _ => Ok(()),
        }
    }
}

impl Caller {
    /// What its commands are tied to.
    pub(crate) fn guard(&self) -> Option<Guard> {
        self.0.as_ref().map(|user| user.state.guard())
    }

    pub(crate) fn is_anyone(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn may(&self, access: Access, keys: &KeyRange) -> Result<(), Status> {
        let Some(User { state, name }) = &self.0 else { return Ok(()) };
        let may = state.is_root(name)
            || state.permits(name).is_some_and(|permits| match access {
                Access::Read => permits.may_read(keys),
                Access::Write => permits.may_write(keys),
            });
        if may { Ok(()) } else { Err(refused(errors::PERMISSION_DENIED)) }
    }

    pub(crate) fn must_be_root(&self) -> Result<(), Status> {
        match &self.0 {
            Some(User { state, name }) if !state.is_root(name) => Err(refused(errors::PERMISSION_DENIED)),
            _ => Ok(()),
        }
    }

    /// Whether it is the user of this name.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|user| user.name == name)
    }

    pub(crate) fn has_role(&self, role: &str) -> bool {
        role != ROOT && self.0.as_ref().is_some_and(|User { state, name }| state.has_role(name, role))
    }

    /// Fails unless it may write, or read, all keys of a lease.
    pub(crate) fn may_lease(&self, access: Access, versions: &Versions, lease: i64) -> Result<()> {
        if self.is_anyone() || lease == 0 {
            return Ok(());
        }
        for key in versions.leased(lease)?.value {
            self.may(access, &KeyRange::one(key)).map_err(|_| denied())?;
        }
        Ok(())
    }

    /// Fails unless it may do one operation.
    pub(crate) fn may_do(&self, versions: &Versions, op: &Op) -> Result<()> {
        let may = |access, keys: &KeyRange| self.may(access, keys).map_err(|_| denied());
        match op {
            Op::Range(range) => may(Access::Read, &range.keys),
            Op::Put(put) => {
                let keys = KeyRange::one(put.key.clone());
                may(Access::Write, &keys)?;
                if put.prev_kv {
                    may(Access::Read, &keys)?;
                }
                self.may_lease(Access::Write, versions, put.lease)
            }
            Op::Delete(delete) => {
                may(Access::Write, &delete.keys)?;
                if delete.prev_kv { may(Access::Read, &delete.keys) } else { Ok(()) }
            }
            Op::Txn(txn) => self.may_txn(versions, txn),
            Op::Refused(_) => Ok(()),
        }
    }

    /// Fails unless it may do all of a transaction, whichever way it goes.
    pub(crate) fn may_txn(&self, versions: &Versions, txn: &Txn) -> Result<()> {
        if self.is_anyone() {
            return Ok(());
        }
        for compare in &txn.compare {
            self.may(Access::Read, &compare.keys).map_err(|_| denied())?;
        }
        txn.success.iter().chain(&txn.failure).try_for_each(|op| self.may_do(versions, op))
    }
}

fn denied() -> ramekin_base::Error {
    ramekin_base::Error::invalid(errors::PERMISSION_DENIED)
}
