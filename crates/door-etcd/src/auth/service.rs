//! The calls that manage users and roles.

use super::changes::{self, Change};
use super::{ROOT, errors};
use crate::door::Door;
use crate::errors::{refused, status};
use crate::wire::authpb::{Permission, permission::Type};
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::auth_server::Auth;
use ramekin_base::{Error, Lane, Result};
use tonic::{Request, Response, Status};

impl Door {
    /// Does a change and publishes what it makes; the header of its answer.
    async fn change(&self, change: Change) -> Result<Option<pb::ResponseHeader>, Status> {
        let (own, made) = (self.clone(), change.clone());
        // To its end, whether its client waits or not: what is durable must be known.
        let (state, revision) = self
            .block(Lane::Writes, move |versions| {
                let (state, revision) = changes::make(versions, &own.inner.auth_account, &made)?;
                own.publish(state.clone());
                match &made {
                    Change::UserDelete(name) | Change::UserPassword { name, .. } => own.inner.tokens.forget(name),
                    Change::Disable => own.inner.tokens.forget_all(),
                    _ => {}
                }
                Ok((state, revision))
            })
            .await?;
        drop(state);
        Ok(self.header(revision))
    }

    fn publish(&self, state: std::sync::Arc<super::State>) {
        self.inner.users.rcu(|held| if held.epoch > state.epoch { held.clone() } else { state.clone() });
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
        let state = self.inner.users.load_full();
        if !state.enabled {
            return Err(refused(errors::NOT_ENABLED));
        }
        let own = self.clone();
        let token = self
            .block(Lane::Writes, move |versions| {
                let failed = || Error::invalid(errors::AUTH_FAILED);
                let user = state.user(&name).map_err(|_| failed())?;
                if user.options.as_ref().is_some_and(|options| options.no_password) {
                    return Err(Error::invalid(errors::NO_PASSWORD));
                }
                if password.is_empty() {
                    return Err(failed());
                }
                let hash = std::str::from_utf8(&user.password).map_err(|_| failed())?;
                match bcrypt::verify(password, hash) {
                    Ok(true) => own.inner.tokens.issue(&name, state.revision, versions.stats().durable),
                    _ => Err(failed()),
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
        let roles = state.user(&name).map_err(|error| status(&error))?.roles.clone();
        Ok(Response::new(pb::AuthUserGetResponse { header: self.now_header(), roles }))
    }

    async fn user_list(
        &self,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        let users = self.inner.users.load().users.keys().cloned().collect();
        Ok(Response::new(pb::AuthUserListResponse { header: self.now_header(), users }))
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
        let everything = Permission { perm_type: Type::Readwrite.into(), key: Vec::new(), range_end: vec![0] };
        let perm = if name == ROOT { vec![everything] } else { role.key_permission.clone() };
        Ok(Response::new(pb::AuthRoleGetResponse { header: self.now_header(), perm }))
    }

    async fn role_list(
        &self,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        let roles = self.inner.users.load().roles.keys().cloned().collect();
        Ok(Response::new(pb::AuthRoleListResponse { header: self.now_header(), roles }))
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
