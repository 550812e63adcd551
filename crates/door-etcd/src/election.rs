//! Elections: the first key below a name leads, and its value is what it proclaims.

use crate::auth::{Access, Caller};
use crate::convert;
use crate::door::Door;
use crate::queue::{Place, below};
use crate::wire::v3electionpb as pb;
use crate::wire::v3electionpb::election_server::Election;
use ramekin_versions::{Compare, CompareResult, CompareTarget, DeleteRange, KeyRange, Op, Put, Txn};
use std::pin::Pin;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

type Answers = Pin<Box<dyn Stream<Item = Result<pb::LeaderResponse, Status>> + Send>>;

fn leader_of(leader: Option<pb::LeaderKey>) -> Result<pb::LeaderKey, Status> {
    leader.ok_or_else(|| Status::unknown("\"leader\" field must be provided"))
}

impl Door {
    fn may_lead<T>(&self, request: &Request<T>, leader: Option<&pb::LeaderKey>) -> Result<Caller, Status> {
        self.may_queue(request, &KeyRange::one(leader.map(|leader| leader.key.clone()).unwrap_or_default()))
    }

    /// Does an operation if the leader's key is still the one that it was elected with. False: it is not.
    async fn as_leader(&self, caller: &Caller, leader: &pb::LeaderKey, op: Op) -> Result<(i64, bool), Status> {
        let is_mine = Compare {
            keys: KeyRange::one(&leader.key[..]),
            result: CompareResult::Equal,
            target: CompareTarget::Create(leader.rev),
        };
        let txn = Txn { compare: vec![is_mine], success: vec![op], failure: Vec::new() };
        let (revision, succeeded, _) = self.transact(caller, txn).await?;
        Ok((revision, succeeded))
    }

    async fn proclaimed(&self, caller: &Caller, leader: &pb::LeaderKey, value: Vec<u8>) -> Result<i64, Status> {
        let put = Put { key: leader.key.clone(), value, lease: leader.lease, ..Put::default() };
        match self.as_leader(caller, leader, Op::Put(put)).await? {
            (revision, true) => Ok(revision),
            (_, false) => Err(Status::unknown("election: not leader")),
        }
    }
}

#[tonic::async_trait]
impl Election for Door {
    async fn campaign(&self, request: Request<pb::CampaignRequest>) -> Result<Response<pb::CampaignResponse>, Status> {
        let caller = self.may_queue(&request, &below(&request.get_ref().name))?;
        let pb::CampaignRequest { name, lease, value } = request.into_inner();
        let place: Place = self.take_place(&caller, (&name, &value), lease).await?;
        let leader =
            pb::LeaderKey { name: name.clone(), key: place.key.clone(), rev: place.revision, lease: place.lease };
        if place.was_there.as_ref().is_some_and(|held| *held != value) {
            self.proclaimed(&caller, &leader, value).await?;
        }
        let revision = self.turn_of(&name, &place).await?;
        Ok(Response::new(pb::CampaignResponse { header: self.header(revision), leader: Some(leader) }))
    }

    async fn proclaim(&self, request: Request<pb::ProclaimRequest>) -> Result<Response<pb::ProclaimResponse>, Status> {
        let caller = self.may_lead(&request, request.get_ref().leader.as_ref())?;
        let pb::ProclaimRequest { leader, value } = request.into_inner();
        let revision = self.proclaimed(&caller, &leader_of(leader)?, value).await?;
        Ok(Response::new(pb::ProclaimResponse { header: self.header(revision) }))
    }

    async fn leader(&self, request: Request<pb::LeaderRequest>) -> Result<Response<pb::LeaderResponse>, Status> {
        self.caller_of(&request)?.may(Access::Read, &below(&request.get_ref().name))?;
        match self.first_of(&request.into_inner().name).await? {
            (revision, Some(kv)) => {
                let kv = Some(convert::key_value(kv));
                Ok(Response::new(pb::LeaderResponse { header: self.header(revision), kv }))
            }
            (_, None) => Err(Status::unknown("election: no leader")),
        }
    }

    type ObserveStream = Answers;

    async fn observe(&self, request: Request<pb::LeaderRequest>) -> Result<Response<Answers>, Status> {
        self.caller_of(&request)?.may(Access::Read, &below(&request.get_ref().name))?;
        let (name, door) = (request.into_inner().name, self.clone());
        let (send, sent) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut changed = door.inner.host.changed.clone();
            let mut seen = 0;
            loop {
                changed.borrow_and_update();
                let answer = match door.first_of(&name).await {
                    // The leader, and each change of what it proclaims.
                    Ok((revision, Some(kv))) if kv.mod_revision != seen => {
                        seen = kv.mod_revision;
                        Some(Ok(pb::LeaderResponse { header: door.header(revision), kv: Some(convert::key_value(kv)) }))
                    }
                    Ok(_) => None,
                    Err(status) => Some(Err(status)),
                };
                if let Some(answer) = answer {
                    let is_over = answer.is_err();
                    if send.send(answer).await.is_err() || is_over {
                        return;
                    }
                }
                tokio::select! {
                    change = changed.changed() => if change.is_err() { return },
                    () = send.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(sent))))
    }

    async fn resign(&self, request: Request<pb::ResignRequest>) -> Result<Response<pb::ResignResponse>, Status> {
        let caller = self.may_lead(&request, request.get_ref().leader.as_ref())?;
        let leader = leader_of(request.into_inner().leader)?;
        let delete = DeleteRange { keys: KeyRange::one(&leader.key[..]), prev_kv: false };
        let (revision, _) = self.as_leader(&caller, &leader, Op::Delete(delete)).await?;
        Ok(Response::new(pb::ResignResponse { header: self.header(revision) }))
    }
}
