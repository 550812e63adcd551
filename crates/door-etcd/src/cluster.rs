//! A cluster of one.

use crate::door::Door;
use crate::wire::etcdserverpb as pb;
use crate::wire::etcdserverpb::cluster_server::Cluster;
use tonic::{Request, Response, Status};

impl Door {
    fn itself(&self) -> pb::Member {
        let host = &self.inner.host;
        pb::Member {
            id: self.inner.member,
            name: host.name.clone(),
            peer_ur_ls: host.peer_urls.clone(),
            client_ur_ls: host.client_urls.clone(),
            is_learner: false,
        }
    }

    fn check_member(&self, id: u64) -> Result<(), Status> {
        match id == self.inner.member {
            true => Ok(()),
            false => Err(Status::not_found("etcdserver: member not found")),
        }
    }
}

/// Whether a member could be there: it has a host and a port, and no path.
fn is_of_a_member(url: &str) -> bool {
    let Some((scheme, place)) = url.split_once("://") else { return false };
    let has_port = || place.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    match scheme {
        "unix" | "unixs" => true,
        "http" | "https" => has_port(),
        _ => false,
    }
}

#[tonic::async_trait]
impl Cluster for Door {
    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        let caller = self.caller_of(&request);
        let urls = request.into_inner().peer_ur_ls;
        if urls.is_empty() || !urls.iter().all(|url| is_of_a_member(url.trim())) {
            return Err(Status::invalid_argument("etcdserver: given member URLs are invalid"));
        }
        caller?.must_be_root()?;
        if urls.iter().any(|url| self.inner.host.peer_urls.contains(url)) {
            return Err(Status::failed_precondition("etcdserver: Peer URLs already exists"));
        }
        // It would have no quorum from then on.
        Err(Status::unavailable("etcdserver: unhealthy cluster"))
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        self.check_member(request.into_inner().id)?;
        Err(Status::unknown("etcdserver: re-configuration failed due to not enough started members"))
    }

    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        let pb::MemberUpdateRequest { id, peer_ur_ls } = request.into_inner();
        self.check_member(id)?;
        match peer_ur_ls == self.inner.host.peer_urls {
            true => {
                Ok(Response::new(pb::MemberUpdateResponse { header: self.header(0), members: vec![self.itself()] }))
            }
            false => Err(Status::unavailable("etcdserver: unhealthy cluster")),
        }
    }

    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        self.caller_of(&request)?;
        Ok(Response::new(pb::MemberListResponse { header: self.header(0), members: vec![self.itself()] }))
    }

    async fn member_promote(
        &self,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        self.caller_of(&request)?.must_be_root()?;
        self.check_member(request.into_inner().id)?;
        Err(Status::failed_precondition("etcdserver: can only promote a learner member"))
    }
}
