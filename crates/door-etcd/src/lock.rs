//! Locks: the first key below a name has it.

use crate::door::Door;
use crate::queue::below;
use crate::wire::v3lockpb as pb;
use crate::wire::v3lockpb::lock_server::Lock;
use ramekin_versions::KeyRange;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl Lock for Door {
    async fn lock(&self, request: Request<pb::LockRequest>) -> Result<Response<pb::LockResponse>, Status> {
        let caller = self.may_queue(&request, &below(&request.get_ref().name))?;
        let pb::LockRequest { name, lease } = request.into_inner();
        let place = self.take_place(&caller, (&name, &[]), lease).await?;
        let revision = self.turn_of(&name, &place).await?;
        Ok(Response::new(pb::LockResponse { header: self.header(revision), key: place.key }))
    }

    async fn unlock(&self, request: Request<pb::UnlockRequest>) -> Result<Response<pb::UnlockResponse>, Status> {
        let caller = self.may_queue(&request, &KeyRange::one(&request.get_ref().key[..]))?;
        let revision = self.remove(&caller, request.into_inner().key).await?;
        Ok(Response::new(pb::UnlockResponse { header: self.header(revision) }))
    }
}
