//! etcd's door: a store of versions on the node's budget, and the door over it; beside vectors, or of a process called `etcd`.
//!
//! ```text
//!   flags.rs, config.rs ─► member.rs ─► sockets (address.rs), TLS
//!   node.host("versions") ─► Versions, with a share of the budget ─► door_etcd::Host ─► serve(listeners)
//!        every half second: leases whose time is over are revoked, what a compaction left is removed
//!        compaction.rs: by itself, where that is asked for
//! ```

mod address;
mod compaction;
mod config;
mod flags;
mod member;

pub use member::{Member, Tls};

use crate::exit::{Exit, Failure};
use crate::settings::{Settings, read_file};
use crate::usage::usage;
use crate::{VERSION, print, serve, tls};
use address::Address;
use ramekin_base::{Error, Kind, Lane, Result};
use ramekin_door_etcd::{Door, ETCD_VERSION, Host, Job, Listener, Serves, Socket};
use ramekin_node::{Node, Tenant, Wants};
use ramekin_versions::{Options, Versions};
use rustls::ServerConfig;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The name of a process that is this door and no other.
pub const NAME: &str = "etcd";

/// The folder of its store in a data folder.
pub const STORE: &str = "versions";

/// Between two looks at leases whose time is over.
const LOOK: Duration = Duration::from_millis(500);
/// What a compaction left is removed for so long at a look, so that others who write have their turns.
const PURGING: Duration = Duration::from_millis(200);

/// What a process called `etcd` does, by its arguments.
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    let said = flags::read(arguments, |name| std::env::var(name).ok()).map_err(Failure::usage)?;
    if said.is_on("version", false) {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        return print(&format!("etcd Version: {ETCD_VERSION}\nServed by: ramekin {VERSION}\nOS/Arch: {os}/{arch}\n"));
    }
    if said.is_on("help", false) || said.is_on("h", false) {
        return print(&flags::help());
    }
    let said = match said.get("config-file") {
        Some(path) => read_config(Path::new(path)).map_err(Failure::usage)?,
        None => said,
    };
    let member = Member::of(&said).map_err(Failure::usage)?;
    if member.data.join("member").is_dir() {
        let data = member.data.display();
        let message = format!(
            "{data} holds data of another etcd; choose another --data-dir, and take it over with \
             `ramekin import etcd {data}/member/snap/db --data DIR`"
        );
        return Err(Failure::new(Exit::Folder, Error::unsupported(message)));
    }
    serve::start(Settings::of_etcd(member).map_err(Failure::usage)?)
}

fn read_config(path: &Path) -> Result<flags::Said> {
    let text = String::from_utf8(read_file(path)?).map_err(|_| Error::malformed("the file is not UTF-8 text"));
    text.and_then(|text| config::read(&text)).map_err(|error| error.at(path.display()))
}

/// Sockets that are bound, with what they serve, and how people call them.
pub struct Bound {
    listeners: Vec<Listener>,
    names: Vec<String>,
    /// Where calls are taken, as the member was told.
    clients: Vec<String>,
}

/// Binds what a member listens on.
pub fn bind(member: &Member) -> Result<Bound, Failure> {
    let secured = member.tls.as_ref().map(tls::of_member).transpose().map_err(Failure::usage)?;
    // HTTP that has addresses of its own is at those alone.
    let clients = if member.http.is_empty() { Serves::All } else { Serves::Grpc };
    let mut bound = Bound { listeners: Vec::new(), names: Vec::new(), clients: Vec::new() };
    for (addresses, serves) in
        [(&member.clients, clients), (&member.http, Serves::Http), (&member.metrics, Serves::Metrics)]
    {
        for address in addresses {
            bind_one(&mut bound, address, serves, member, secured.as_ref())?;
        }
    }
    Ok(bound)
}

fn bind_one(
    bound: &mut Bound,
    address: &Address,
    serves: Serves,
    member: &Member,
    secured: Option<&Arc<ServerConfig>>,
) -> Result<(), Failure> {
    let sockets =
        address.bind().map_err(|error| serve::not_bound("address for etcd's clients", &address.to_string(), &error))?;
    let told = sockets.first().map(|socket| name_of(socket, address)).filter(|_| address.has_no_port());
    if matches!(serves, Serves::All | Serves::Grpc) {
        bound.clients.push(told.unwrap_or_else(|| address.to_string()));
    }
    for socket in sockets {
        bound.names.push(name_of(&socket, address));
        bound.listeners.push(Listener {
            socket,
            tls: secured.filter(|_| address.is_secured).cloned(),
            is_mixed: address.is_mixed,
            names_users: member.tls.as_ref().is_some_and(|tls| tls.names_users),
            serves,
        });
    }
    Ok(())
}

/// With the port that the kernel chose, where it was to choose one.
fn name_of(socket: &Socket, address: &Address) -> String {
    match socket {
        Socket::Tcp(socket) => match socket.local_addr() {
            Ok(bound) => Address::plain(&bound.to_string(), address.is_secured).to_string(),
            Err(_) => address.to_string(),
        },
        Socket::Unix(_) => address.to_string(),
    }
}

/// The store as one that shares the budget.
pub struct Hosted(pub Versions);

impl Tenant for Hosted {
    fn wants(&self) -> Wants {
        let engine = self.0.engine();
        Wants {
            idle: engine.idle_share(),
            least: engine.least_share(),
            needed: self.0.working_share(),
            most: engine.most_share(),
            requests: engine.stats().asked(),
        }
    }

    fn shrink(&self, share: u64, _: Duration) -> Result<()> {
        self.0.engine().resize(share)
    }

    fn resize(&self, share: u64) -> Result<()> {
        self.0.engine().resize(share)
    }
}

/// An open store, and how it says that something is new.
pub struct Store {
    pub hosted: Arc<Hosted>,
    changed: watch::Receiver<i64>,
}

/// Opens the store beside that of vectors.
pub fn open_store(node: &Node) -> Result<Store> {
    let (told, changed) = watch::channel(1);
    let told = Arc::new(told);
    let tell = told.clone();
    let newer = move |revision: i64| {
        _ = tell.send_if_modified(|held| {
            let is_newer = revision > *held;
            *held = revision.max(*held);
            is_newer
        });
    };
    let hosted = node.host(STORE, Versions::open_bytes(), |place| {
        let options = Options {
            disk: place.disk,
            folder: place.folder,
            pages: place.pages,
            budget: place.budget,
            account: place.account,
            share: place.share,
            clock: place.clock,
            threads: true,
            changed: Box::new(newer),
        };
        Versions::open(options).map(Hosted)
    })?;
    let revision = hosted.0.revision()?;
    told.send_modify(|held| *held = revision.max(*held));
    Ok(Store { hosted, changed })
}

/// A future that serves until `stop` says when what is still open then is cut.
pub fn open(
    (member, connections): (&Member, Option<usize>),
    node: &Node,
    store: &Store,
    bound: Bound,
    stop: oneshot::Receiver<Instant>,
) -> Result<impl Future<Output = Result<()>> + Send + use<>, Failure> {
    let readers = node.readers().clone();
    let run: Arc<dyn Fn(Lane, Job) -> Result<()> + Send + Sync> = Arc::new(move |lane, job| readers.run(lane, job));
    let budget = node.budget().limit();
    let Bound { listeners, names, clients } = bound;
    let host = Host {
        versions: store.hosted.0.clone(),
        run: run.clone(),
        changed: store.changed.clone(),
        account: node.budget().root().child("door", "").child("etcd", "connections + bodies"),
        connections: connections.unwrap_or((budget >> 16).clamp(16, 10_000) as usize),
        name: member.name.clone(),
        client_urls: if member.client_urls.is_empty() { clients } else { member.client_urls.clone() },
        listening: names,
        peer_urls: member.peer_urls.clone(),
        cluster_token: member.cluster_token.clone(),
        progress_every: member.progress_every,
        max_txn_ops: member.max_txn_ops,
        max_request_bytes: member.max_request_bytes,
        quota: member.quota,
        auth_token: member.auth.token.clone(),
        auth_token_ttl: member.auth.token_ttl,
        bcrypt_cost: member.auth.bcrypt_cost,
        gateway: member.gateway,
        cors: member.cors.clone(),
        host_whitelist: member.host_whitelist.clone(),
        usage,
    };
    let (versions, retention) = (store.hosted.0.clone(), member.retention);
    let door = Door::open(host).map_err(|error| match error.kind() {
        Kind::Invalid => Failure::usage(error),
        _ => Failure::of_data(error),
    })?;
    Ok(async move {
        let keeping = tokio::spawn(keep(versions, run));
        let compacting = retention.map(|retention| tokio::spawn(compaction::run(door.clone(), retention)));
        let stop = async move { stop.await.unwrap_or_else(|_| Instant::now()) };
        let served = ramekin_door_etcd::serve(listeners, door, stop).await;
        keeping.abort();
        compacting.inspect(tokio::task::JoinHandle::abort);
        served
    })
}

/// Revokes leases whose time is over, and removes what nobody can read any more.
async fn keep(versions: Versions, run: Arc<dyn Fn(Lane, Job) -> Result<()> + Send + Sync>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let (own, (ended, has_ended)) = (versions.clone(), oneshot::channel::<()>());
        let work = move || {
            own.expire();
            if let Err(error) = own.purge_for(PURGING) {
                tracing::debug!("what a compaction left stays for now: {error}");
            }
            drop(ended);
        };
        if run(Lane::Writes, Box::new(work)).is_ok() {
            _ = has_ended.await;
        }
    }
}
