//! What all services share: the store, who they are, and how work is done that may block.

use crate::alarm;
use crate::auth::{Caller, Entered, State, Tokens};
use crate::calls::Calls;
use crate::errors;
use crate::hash::Hashes;
use crate::health::Healths;
use crate::metrics::{Done, Usage};
use crate::recent::Recent;
use crate::schema::gone;
use crate::wire::etcdserverpb::{AlarmMember, ResponseHeader};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use ramekin_base::{Error, Kind, Lane, Result, cancel, nonblocking, supervise};
use ramekin_memory::{Account, Reservation};
use ramekin_versions::{Asked, Command, Held, Reply, Versions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};
use tonic::{Response, Status};

/// Work for a thread that may block.
pub type Job = Box<dyn FnOnce() + Send>;

/// What the door stands on.
pub struct Host {
    pub versions: Versions,
    /// The reader pool: runs a job on a thread that may block. `Busy` when its lane is full.
    pub run: Arc<dyn Fn(Lane, Job) -> Result<()> + Send + Sync>,
    /// Whoever opens the door says when something new is durable: the newest revision.
    pub changed: watch::Receiver<i64>,
    pub account: Account,
    /// Connections at most.
    pub connections: usize,
    pub name: String,
    /// Where it is listened, for people.
    pub listening: Vec<String>,
    pub client_urls: Vec<String>,
    pub peer_urls: Vec<String>,
    pub cluster_token: String,
    /// Between two messages to a watcher that asked for progress.
    pub progress_every: Duration,
    pub max_txn_ops: usize,
    pub max_request_bytes: usize,
    /// Bytes of the store at most; `None`: as the disk has.
    pub quota: Option<u64>,
    /// How users are known again, in etcd's words; and how long that of `simple` lives from its last use on.
    pub auth_token: String,
    pub auth_token_ttl: Duration,
    /// Rounds of the hashes of passwords, as a power of two: 4 to 31.
    pub bcrypt_cost: u32,
    /// Whether calls may come as JSON.
    pub gateway: bool,
    /// Origins whose pages may ask, and names of this host by which it may be asked; none, or `*`: all.
    pub cors: Vec<String>,
    pub host_whitelist: Vec<String>,
    /// What the process uses.
    pub usage: fn() -> Usage,
}

/// The door of a process. Clones are handles to the same one.
#[derive(Clone)]
pub struct Door {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) host: Host,
    pub(crate) member: u64,
    pub(crate) cluster: u64,
    /// Bodies of requests.
    pub(crate) bodies: Account,
    /// Users and roles as they are durable, and what pays for them.
    pub(crate) users: ArcSwap<State>,
    pub(crate) auth_account: Account,
    /// Held by commands that states let in which were the newest before.
    pub(crate) left_states: Mutex<Vec<Arc<()>>>,
    pub(crate) tokens: Tokens,
    /// Alarms that are raised, as they are durable.
    pub(crate) alarms: ArcSwap<Vec<AlarmMember>>,
    pub(crate) hashes: Hashes,
    /// One walk over everything at a time.
    walks: Arc<Semaphore>,
    is_stopping: Arc<AtomicBool>,
    pub(crate) calls: Calls,
    pub(crate) done: Done,
    /// The newest events, for streams of watchers.
    pub(crate) recent: Recent,
    pub(crate) healths: Healths,
}

/// A message may be longer by this than the request in it.
const MESSAGE_MORE: usize = 512 << 10;

/// A single member's term.
pub(crate) const TERM: u64 = 2;
/// The version of etcd whose surface this is.
pub const VERSION: &str = "3.7.1";
pub(crate) const CLUSTER_VERSION: &str = "3.7.0";
/// The same as `Downgrade` says it.
pub(crate) const CLUSTER_MINOR: &str = "3.7";

impl Door {
    /// Blocks: who it is stands in the store from its first start on. Fails where the options do not fit, or what is durable cannot
    /// be read.
    pub fn open(host: Host) -> Result<Self> {
        let (member, cluster) = kept_ids(&host)?;
        let bodies = host.account.child("bodies", "requests x their messages").transient();
        let auth_account = host.account.child("auth", "users and roles x 4 + tokens x 256");
        let tokens = Tokens::open(&host.auth_token, host.auth_token_ttl, auth_account.clone())?;
        let recent = Recent::new(&host.account);
        let users = ArcSwap::from_pointee(State::load(&host.versions, &auth_account)?);
        let alarms = ArcSwap::from_pointee(alarm::load(&host.versions)?);
        let (walks, is_stopping) = (Arc::new(Semaphore::new(1)), Arc::default());
        let inner = Inner {
            host,
            member,
            cluster,
            bodies,
            users,
            auth_account,
            left_states: Mutex::default(),
            tokens,
            alarms,
            hashes: Hashes::default(),
            walks,
            is_stopping,
            calls: Calls::default(),
            done: Done::default(),
            recent,
            healths: Healths::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Compacts up to a revision, for the server itself. False: it cannot be done now; a revision that is compacted already is done.
    pub async fn compact(&self, revision: i64) -> bool {
        match self.compact_to((revision, None), false).await {
            Ok(_) => true,
            Err(status) => {
                tracing::debug!("could not compact to revision {revision}: {status}");
                status.message() == ramekin_versions::errors::COMPACTED
            }
        }
    }

    /// The newest revision.
    pub fn newest(&self) -> i64 {
        *self.inner.host.changed.borrow()
    }

    /// Bytes of a message at most: of one that is no longer than this the request itself may be too large.
    pub(crate) fn message_most(&self) -> usize {
        self.inner.host.max_request_bytes + MESSAGE_MORE
    }

    /// Fails for a change that is too large.
    pub(crate) fn check_size(&self, message: &impl prost::Message) -> Result<(), Status> {
        match message.encoded_len() > self.inner.host.max_request_bytes {
            true => Err(Status::invalid_argument(ramekin_versions::errors::TOO_LARGE)),
            false => Ok(()),
        }
    }

    pub(crate) fn versions(&self) -> &Versions {
        &self.inner.host.versions
    }

    pub(crate) fn header(&self, revision: i64) -> Option<ResponseHeader> {
        let Inner { member, cluster, .. } = *self.inner;
        Some(ResponseHeader { cluster_id: cluster, member_id: member, revision, raft_term: TERM })
    }

    /// Does a command of a caller if there is space for it; waits for it without holding a thread. `memory`: what came with it.
    pub(crate) async fn command(
        &self,
        caller: &Caller,
        command: Command,
        memory: Vec<Reservation>,
    ) -> Result<Held<Reply>, Status> {
        let guard = caller.guard();
        let entered = if guard.is_none() { Some(self.enter(caller)?) } else { None };
        self.do_command(Asked { command, guard, memory }, entered).await
    }

    /// Does a command of the server's own.
    pub(crate) async fn own_command(&self, command: Command) -> Result<Held<Reply>, Status> {
        self.do_command(Asked::from(command), None).await
    }

    async fn do_command(&self, asked: Asked, entered: Option<Entered>) -> Result<Held<Reply>, Status> {
        self.check_space(alarm::cost(&asked.command)).await?;
        let (tell, told) = oneshot::channel();
        // Whoever asked may be gone.
        self.versions().submit(asked, move |answer| {
            drop(entered);
            drop(tell.send(answer));
        });
        match told.await {
            Ok(Err(error)) if error.kind() == Kind::NoSpace => Err(self.raise_no_space().await),
            Ok(answer) => answer.map_err(|error| errors::status(&error)),
            Err(_) => Err(Status::unavailable(errors::STOPPED)),
        }
    }

    /// Does work that reads: here, if it is small and all that it needs is in memory, else on a thread that may wait.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        is_small: bool,
        work: impl Fn(&Versions) -> Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        if is_small {
            match nonblocking::scope(|| work(self.versions())) {
                Err(error) if error.kind() == Kind::Busy => {}
                done => return done.map_err(|error| errors::status(&error)),
            }
        }
        self.block(Lane::Reads, work).await
    }

    /// Does work that reads everything, one after the other: it takes long, and ends early where nobody waits for it any more, as
    /// what it is given says.
    pub(crate) async fn walk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Versions, &dyn Fn() -> Result<()>) -> Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = self.inner.walks.clone().acquire_owned().await;
        let turn = turn.map_err(|_| Status::unavailable(errors::STOPPED))?;
        let (is_stopping, waits) = (self.inner.is_stopping.clone(), Arc::new(()));
        let is_waiting = Arc::downgrade(&waits);
        let done = self.block(Lane::Reads, move |versions| {
            let _turn = turn;
            let check = || match is_stopping.load(Ordering::Relaxed) || is_waiting.strong_count() == 0 {
                true => Err(gone()),
                false => Ok(()),
            };
            work(versions, &check)
        });
        let done = done.await;
        drop(waits);
        done
    }

    /// Walks over everything end.
    pub(crate) fn stop(&self) {
        self.inner.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Does work on a thread that may wait.
    pub(crate) async fn block<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce(&Versions) -> Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let (tell, told) = oneshot::channel();
        let (versions, wanted) = (self.versions().clone(), cancel::Guard::new());
        // Reads end early where nobody waits for them any more; what changes something is seen through.
        let token = if lane == Lane::Reads { wanted.token() } else { cancel::Token::new() };
        let work = move || cancel::scope(&token, || token.check().and_then(|()| work(&versions)));
        let job = move || drop(tell.send(supervise::caught("a request", work)));
        (self.inner.host.run)(lane, Box::new(job)).map_err(|error| errors::status(&error))?;
        let done = told.await.unwrap_or_else(|_| Err(Error::closed("the server is stopping")));
        done.map_err(|error| errors::status(&error))
    }
}

/// What an answer takes for each of its bytes, besides its message, while these are made: a buffer, and the one that it grows out of.
const ENCODED_TIMES: u64 = 2;
/// So many bytes are paid for with the call.
const SMALL_ANSWER: u64 = 2 << 10;
/// Who changed something is told so: for so long memory is waited for, which others hold; and so often it is looked for.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(20);

/// What a message took before it was encoded.
#[derive(Clone, Copy)]
pub(crate) struct MessageBytes(pub(crate) u64);

fn too_many() -> Status {
    Status::resource_exhausted(errors::TOO_MANY_REQUESTS)
}

/// An answer with what pays for it, until its bytes have left.
pub(crate) fn answer<T: prost::Message>(message: T, mut memory: Option<Reservation>) -> Result<Response<T>, Status> {
    book_encoded(&message, &mut memory).map_err(|_| too_many())?;
    Ok(paid(message, memory))
}

/// The same after a change. Without memory for it nobody knows what became of the change: so it is told.
pub(crate) async fn answer_done<T: prost::Message>(
    message: T,
    mut memory: Option<Reservation>,
) -> Result<Response<T>, Status> {
    let until = tokio::time::Instant::now() + PATIENCE;
    while book_encoded(&message, &mut memory).is_err() {
        if tokio::time::Instant::now() >= until {
            return Err(Status::unavailable(errors::TIMED_OUT));
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(paid(message, memory))
}

/// Books what a message takes while it is encoded, beside what it takes as it is.
pub(crate) fn book_encoded(message: &impl prost::Message, memory: &mut Option<Reservation>) -> Result<()> {
    let bytes = message.encoded_len() as u64;
    match memory {
        Some(memory) if bytes > SMALL_ANSWER => memory.grow(ENCODED_TIMES * bytes),
        _ => Ok(()),
    }
}

fn paid<T: prost::Message>(message: T, memory: Option<Reservation>) -> Response<T> {
    let bytes = message.encoded_len() as u64;
    let mut response = Response::new(message);
    if let Some(memory) = memory {
        let encoded = if bytes > SMALL_ANSWER { ENCODED_TIMES * bytes } else { 0 };
        response.extensions_mut().insert(MessageBytes(memory.bytes() - encoded));
        response.extensions_mut().insert(Arc::new(memory));
    }
    response
}

/// The name under which the store keeps who the member is: two numbers of eight bytes.
const IDS: &[u8] = b"member";

/// Who the member was at its first start; other addresses do not make it another one.
fn kept_ids(host: &Host) -> Result<(u64, u64)> {
    if let Some(kept) = host.versions.own(IDS)? {
        let [member, cluster] = [0, 8].map(|at| kept.get(at..at + 8).and_then(<[u8]>::first_chunk));
        if let (Some(member), Some(cluster)) = (member, cluster) {
            return Ok((u64::from_be_bytes(*member), u64::from_be_bytes(*cluster)));
        }
    }
    let (member, cluster) = ids(&host.peer_urls, &host.cluster_token);
    let kept = [member.to_be_bytes(), cluster.to_be_bytes()].concat();
    host.versions.execute(Command::Own(vec![(IDS.to_vec(), Some(kept))]))?;
    Ok((member, cluster))
}

/// Member and cluster as etcd computes them: the first bytes of SHA-1 over the sorted addresses of peers and the token, and over the
/// members.
fn ids(peer_urls: &[String], token: &str) -> (u64, u64) {
    use sha1::{Digest, Sha1};
    let first = |hash: Sha1| {
        let bytes = hash.finalize();
        bytes.first_chunk::<8>().map_or(1, |first| u64::from_be_bytes(*first))
    };
    let mut sorted = peer_urls.to_vec();
    sorted.sort_unstable();
    let member = first(Sha1::new_with_prefix(sorted.concat() + token));
    (member, first(Sha1::new_with_prefix(member.to_be_bytes())))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_ids_of_a_member_are_those_that_etcd_gives_it() {
        let ids = super::ids(&["http://localhost:2380".to_owned()], "etcd-cluster");
        assert_eq!(ids, (0x8e9e_05c5_2164_694d, 0xcdf8_1819_4e3a_8c32));
    }
}
