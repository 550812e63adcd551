//! Maintenance: what one member can say of itself.

use crate::door::{CLUSTER_MINOR, CLUSTER_VERSION, Door, TERM, VERSION};
use crate::snapshot::{self, Snapshots};
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::maintenance_server::Maintenance;
use ramekin_base::Lane;
use ramekin_versions::Versions;
use tonic::{Request, Response, Status};

impl Door {
    /// Bytes of records, written out or not yet. What finds them on the disk does not count, and neither does the log.
    pub(crate) fn store_bytes(&self) -> u64 {
        self.versions().stats().trees.iter().map(|tree| tree.record_bytes + tree.memtable_bytes).sum()
    }
}

/// etcd's default.
const QUOTA: i64 = 2 << 30;

const WRONG_VERSION: &str = "etcdserver: wrong downgrade target version format";

/// Major and minor number of a version.
fn minor_of(version: &str) -> Option<(i64, i64)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    let (major, minor) = (parts.next()??, parts.next()??);
    parts.all(|part| part.is_some()).then_some((major, minor))
}

/// An alarm as `Status` and clients write it.
pub(crate) fn name_of(alarm: &pb::AlarmMember) -> String {
    format!("memberID:{} alarm:{} ", alarm.member_id, alarm.alarm().as_str_name())
}

#[tonic::async_trait]
impl Maintenance for Door {
    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        let caller = self.caller_of(&request)?;
        let pb::AlarmRequest { action, member_id, alarm } = request.into_inner();
        let asked = pb::AlarmMember { member_id, alarm };
        let alarms = match pb::alarm_request::AlarmAction::try_from(action) {
            Ok(pb::alarm_request::AlarmAction::Get) => {
                let all = self.alarms();
                all.iter().filter(|it| alarm == 0 || it.alarm == alarm).copied().collect()
            }
            Ok(action) => {
                caller.must_be_root()?;
                let is_raised = action == pb::alarm_request::AlarmAction::Activate;
                // No alarm is none: it is neither raised nor taken back.
                let is_done = alarm != 0 && self.set_alarm(asked, is_raised).await?;
                if is_done || is_raised && alarm != 0 { vec![asked] } else { Vec::new() }
            }
            Err(_) => Vec::new(),
        };
        let header = self.header(*self.inner.host.changed.borrow());
        Ok(Response::new(pb::AlarmResponse { header, alarms }))
    }

    async fn status(&self, request: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        self.caller_of(&request)?;
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
            errors: self.alarms().iter().map(name_of).collect(),
            db_size_in_use: bytes,
            is_learner: false,
            storage_version: CLUSTER_VERSION.to_owned(),
            db_size_quota: self.inner.host.quota.map_or(QUOTA, |quota| quota as i64),
            downgrade_info: Some(pb::DowngradeInfo::default()),
        }))
    }

    async fn defragment(
        &self,
        request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        self.block(Lane::Writes, Versions::defragment).await?;
        Ok(Response::new(pb::DefragmentResponse::default()))
    }

    async fn hash(&self, request: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        self.hash_of_all().await.map(Response::new)
    }

    async fn hash_kv(&self, request: Request<pb::HashKvRequest>) -> Result<Response<pb::HashKvResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        self.hash_of(request.into_inner().revision).await.map(Response::new)
    }

    type SnapshotStream = Snapshots;

    async fn snapshot(&self, request: Request<pb::SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        Ok(snapshot::begin(self))
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        match request.into_inner().target_id == self.inner.member {
            true => Ok(Response::new(pb::MoveLeaderResponse { header: self.header(0) })),
            false => Err(Status::failed_precondition("etcdserver: bad leader transferee")),
        }
    }

    async fn downgrade(
        &self,
        request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        let pb::DowngradeRequest { action, version } = request.into_inner();
        let is_cancel = action == pb::downgrade_request::DowngradeAction::Cancel as i32;
        if !is_cancel {
            let target = minor_of(&version).ok_or_else(|| Status::invalid_argument(WRONG_VERSION))?;
            if minor_of(VERSION).map(|(major, minor)| (major, minor - 1)) != Some(target) {
                return Err(Status::invalid_argument("etcdserver: invalid downgrade target version"));
            }
        }
        if action == pb::downgrade_request::DowngradeAction::Enable as i32 {
            return Err(Status::unimplemented("a downgrade is done with a snapshot that an older etcd restores"));
        }
        let header = self.header(*self.inner.host.changed.borrow());
        Ok(Response::new(pb::DowngradeResponse { header, version: CLUSTER_MINOR.to_owned() }))
    }
}
