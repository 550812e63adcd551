//! Who asks, and what they may do: etcd's users, roles and tokens.
//!
//! ```text
//!   token or client certificate ─► tokens.rs ─► a name ─┐
//!   users and roles, as they are durable ─► state.rs ───┴─► caller.rs: may it read or write these keys, is it root
//!                        └─ permits.rs: the keys of all roles of a user, joined
//!   the 17 calls ─► service.rs ─► changes.rs: what a change writes ─► the store ─► a new state
//! ```
//!
//! A command carries the state by which it was allowed as its guard: where that is no longer the newest when the command's turn comes,
//! it fails, and clients ask again. What has no such guard, as all commands while nobody is asked, is counted: a change of users is answered
//! when what was let in before it has ended.

mod caller;
mod changes;
mod permits;
mod service;
mod state;
mod tokens;

pub(crate) use caller::{Access, Caller, CommonName, Credentials, Entered};
pub(crate) use state::{ENABLED, REVISION, ROLE, State, USER};
pub(crate) use tokens::Tokens;

/// Texts of refusals, as clients of etcd know them.
pub(crate) mod errors {
    pub(crate) const ROOT_USER_NOT_FOUND: &str = "etcdserver: root user does not exist";
    pub(crate) const ROOT_ROLE_NOT_GRANTED: &str = "etcdserver: root user does not have root role";
    pub(crate) const USER_EXISTS: &str = "etcdserver: user name already exists";
    pub(crate) const USER_EMPTY: &str = "etcdserver: user name is empty";
    pub(crate) const USER_NOT_FOUND: &str = "etcdserver: user name not found";
    pub(crate) const ROLE_EXISTS: &str = "etcdserver: role name already exists";
    pub(crate) const ROLE_NOT_FOUND: &str = "etcdserver: role name not found";
    pub(crate) const ROLE_EMPTY: &str = "etcdserver: role name is empty";
    pub(crate) const AUTH_FAILED: &str = "etcdserver: authentication failed, invalid user ID or password";
    pub(crate) const NO_PASSWORD: &str = "auth: authentication failed, password was given for no password user";
    pub(crate) const PERMISSION_NOT_GIVEN: &str = "etcdserver: permission not given";
    pub(crate) const PERMISSION_DENIED: &str = "etcdserver: permission denied";
    pub(crate) const ROLE_NOT_GRANTED: &str = "etcdserver: role is not granted to the user";
    pub(crate) const PERMISSION_NOT_GRANTED: &str = "etcdserver: permission is not granted to the role";
    pub(crate) const NOT_ENABLED: &str = "etcdserver: authentication is not enabled";
    pub(crate) const INVALID_TOKEN: &str = "etcdserver: invalid auth token";
    pub(crate) const INVALID_MANAGEMENT: &str = "etcdserver: invalid auth management";
}

/// The user and the role that may do everything.
pub(crate) const ROOT: &str = "root";
