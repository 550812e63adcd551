//! Leases.

use crate::door::{Door, answer};
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::lease_server::Lease;
use ramekin_base::Lane;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

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
        let pb::LeaseGrantRequest { ttl, id } = request.into_inner();
        let id = if id == 0 { new_id() } else { id };
        let (revision, lease) = self.block(Lane::Writes, move |versions| versions.grant(id, ttl)).await?;
        let header = self.header(revision);
        Ok(Response::new(pb::LeaseGrantResponse { header, id, ttl: lease.ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let id = request.into_inner().id;
        let revision = self.block(Lane::Writes, move |versions| versions.revoke(id)).await?;
        Ok(Response::new(pb::LeaseRevokeResponse { header: self.header(revision) }))
    }

    type LeaseKeepAliveStream = Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let door = self.clone();
        let renewed = request.into_inner().map(move |asked| {
            let pb::LeaseKeepAliveRequest { id } = asked?;
            let revision = *door.inner.host.changed.borrow();
            let ttl = door.versions().renew(id);
            Ok(pb::LeaseKeepAliveResponse { header: door.header(revision), id, ttl })
        });
        Ok(Response::new(Box::pin(renewed)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let pb::LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let left = self.versions().lease_left(id);
        let mut memory = None;
        let keys = match left.filter(|_| keys) {
            Some(_) => {
                let held = self.read(false, move |versions| versions.leased(id)).await?;
                memory = held.memory;
                held.value
            }
            None => Vec::new(),
        };
        let header = self.header(*self.inner.host.changed.borrow());
        let (ttl, granted_ttl) = left.map_or((-1, 0), |left| (left.left, left.granted));
        Ok(answer(pb::LeaseTimeToLiveResponse { header, id, ttl, granted_ttl, keys }, memory))
    }

    async fn lease_leases(
        &self,
        _request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let leases = self.versions().leases().into_iter().map(|id| pb::LeaseStatus { id }).collect();
        let header = self.header(*self.inner.host.changed.borrow());
        Ok(Response::new(pb::LeaseLeasesResponse { header, leases }))
    }
}
