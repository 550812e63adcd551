//! Leases.

use crate::alarm;
use crate::auth::{Access, Credentials};
use crate::door::{Door, answer};
use crate::errors::{TOO_MANY_REQUESTS, refused};
use crate::metrics::Done;
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::lease_server::Lease;
use ramekin_base::Lane;
use ramekin_versions::Versions;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// What a lease takes in a list of all: its number, and that again in the answer.
const LISTED_BYTES: u64 = 32;

/// A number that nobody guesses, and that is not 0.
pub(crate) fn new_id() -> i64 {
    let random = RandomState::new().build_hasher().finish();
    (random >> 1).max(1) as i64
}

#[tonic::async_trait]
impl Lease for Door {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let caller = self.caller_of(&request)?;
        self.check_space(alarm::LEASE_BYTES).await?;
        let pb::LeaseGrantRequest { ttl, id } = request.into_inner();
        let id = if id == 0 { new_id() } else { id };
        let entered = self.enter(&caller)?;
        let grant = move |versions: &Versions| {
            let _entered = entered;
            versions.grant(id, ttl)
        };
        let (revision, lease) = self.block(Lane::Writes, grant).await?;
        Done::one(&self.inner.done.granted);
        let header = self.header(revision);
        Ok(Response::new(pb::LeaseGrantResponse { header, id, ttl: lease.ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let caller = self.caller_of(&request)?;
        self.check_sound()?;
        let id = request.into_inner().id;
        let entered = self.enter(&caller)?;
        let revoke = move |versions: &Versions| {
            let _entered = entered;
            caller.may_lease(Access::Write, versions, id)?;
            versions.revoke(id)
        };
        let revision = self.block(Lane::Writes, revoke).await?;
        Done::one(&self.inner.done.revoked);
        Ok(Response::new(pb::LeaseRevokeResponse { header: self.header(revision) }))
    }

    type LeaseKeepAliveStream = Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (door, credentials) = (self.clone(), Credentials::from(&request));
        let renewed = request.into_inner().then(move |asked| {
            let (door, caller) = (door.clone(), door.caller(&credentials));
            async move {
                let pb::LeaseKeepAliveRequest { id } = asked?;
                let caller = caller?;
                if !caller.is_anyone() {
                    door.block(Lane::Reads, move |versions| caller.may_lease(Access::Write, versions, id)).await?;
                }
                let revision = *door.inner.host.changed.borrow();
                let ttl = door.versions().renew(id);
                if ttl > 0 {
                    Done::one(&door.inner.done.renewed);
                }
                Ok(pb::LeaseKeepAliveResponse { header: door.header(revision), id, ttl })
            }
        });
        Ok(Response::new(Box::pin(renewed)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let caller = self.caller_of(&request)?;
        let pb::LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let left = self.versions().lease_left(id);
        let mut memory = None;
        let keys = match left.filter(|_| keys) {
            Some(_) => {
                let read = move |versions: &Versions| {
                    caller.may_lease(Access::Read, versions, id)?;
                    versions.leased(id)
                };
                let held = self.read(false, read).await?;
                memory = held.memory;
                held.value
            }
            None => Vec::new(),
        };
        let header = self.header(*self.inner.host.changed.borrow());
        let (ttl, granted_ttl) = left.map_or((-1, 0), |left| (left.left, left.granted));
        answer(pb::LeaseTimeToLiveResponse { header, id, ttl, granted_ttl, keys }, memory)
    }

    async fn lease_leases(
        &self,
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let caller = self.caller_of(&request)?;
        if !caller.is_anyone() {
            let may = move |versions: &Versions| {
                versions.leases().into_iter().try_for_each(|id| caller.may_lease(Access::Read, versions, id))
            };
            self.block(Lane::Reads, may).await?;
        }
        let leases = self.versions().leases();
        let memory = self.inner.bodies.try_reserve(LISTED_BYTES * leases.len() as u64);
        let memory = Some(memory.map_err(|_| refused(TOO_MANY_REQUESTS))?);
        let leases = leases.into_iter().map(|id| pb::LeaseStatus { id }).collect();
        let header = self.header(*self.inner.host.changed.borrow());
        answer(pb::LeaseLeasesResponse { header, leases }, memory)
    }
}
