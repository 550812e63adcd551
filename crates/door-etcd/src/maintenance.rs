//! Maintenance: what one member can say of itself.

use crate::door::{CLUSTER_VERSION, Door, TERM, VERSION};
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::maintenance_server::Maintenance;
use std::pin::Pin;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

impl Door {
    /// Bytes of the store on the disk.
    pub(crate) fn store_bytes(&self) -> u64 {
        let stats = self.versions().stats();
        stats.trees.iter().map(|tree| tree.run_bytes).sum::<u64>() + stats.log_bytes
    }
}

/// etcd's default.
const QUOTA: i64 = 2 << 30;

#[tonic::async_trait]
impl Maintenance for Door {
    async fn alarm(&self, _request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        let header = self.header(*self.inner.host.changed.borrow());
        Ok(Response::new(pb::AlarmResponse { header, alarms: Vec::new() }))
    }

    async fn status(&self, _request: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        let (bytes, revision) = (self.store_bytes() as i64, *self.inner.host.changed.borrow());
        let index = self.versions().stats().durable;
        Ok(Response::new(pb::StatusResponse {
            header: self.header(revision),
            version: VERSION.to_owned(),
            db_size: bytes,
            leader: self.inner.member,
            raft_index: index,
            raft_term: TERM,
            raft_applied_index: index,
            errors: Vec::new(),
            db_size_in_use: bytes,
            is_learner: false,
            storage_version: CLUSTER_VERSION.to_owned(),
            db_size_quota: self.inner.host.quota.map_or(QUOTA, |quota| quota as i64),
            downgrade_info: Some(pb::DowngradeInfo::default()),
        }))
    }

    async fn defragment(
        &self,
        _request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        // Merges give space back as they go.
        Ok(Response::new(pb::DefragmentResponse::default()))
    }

    async fn hash(&self, _request: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        Err(Status::unimplemented("Hash is not built yet"))
    }

    async fn hash_kv(&self, _request: Request<pb::HashKvRequest>) -> Result<Response<pb::HashKvResponse>, Status> {
        Err(Status::unimplemented("HashKV is not built yet"))
    }

    type SnapshotStream = Pin<Box<dyn Stream<Item = Result<pb::SnapshotResponse, Status>> + Send>>;

    async fn snapshot(&self, _request: Request<pb::SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(Status::unimplemented("Snapshot is not built yet"))
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        match request.into_inner().target_id == self.inner.member {
            true => Ok(Response::new(pb::MoveLeaderResponse { header: self.header(0) })),
            false => Err(Status::failed_precondition("etcdserver: bad leader transferee")),
        }
    }

    async fn downgrade(
        &self,
        _request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        Err(Status::unimplemented("Downgrade is not built yet"))
    }
}
