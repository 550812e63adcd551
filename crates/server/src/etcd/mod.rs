//! The wiring of etcd's door: a store of versions on the node's budget, and the door over it.
//!
//! ```text
//!   node.host("versions") ─► Versions, with a share of the budget ─► door_etcd::Host ─► serve(listener)
//!        every half second: leases whose time is over are revoked, what a compaction left is removed
//! ```

use crate::exit::{Exit, Failure};
use crate::settings::Settings;
use ramekin_base::{Error, Lane, Result};
use ramekin_door_etcd::{Door, Host, Job};
use ramekin_node::{Node, Tenant, Wants};
use ramekin_versions::{Options, Versions};
use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Between two looks at leases whose time is over.
const LOOK: Duration = Duration::from_millis(500);
/// etcd's defaults.
const PROGRESS_EVERY: Duration = Duration::from_secs(600);
const MAX_TXN_OPS: usize = 128;
const MAX_REQUEST_BYTES: usize = 1_572_864;
const AUTH_TOKEN_TTL: Duration = Duration::from_secs(300);
const BCRYPT_COST: u32 = 10;
const PEER_URL: &str = "http://localhost:2380";
const CLUSTER_TOKEN: &str = "etcd-cluster";

/// The store as one that shares the budget.
pub struct Hosted(pub Versions);

impl Tenant for Hosted {
    fn wants(&self) -> Wants {
        let engine = self.0.engine();
        Wants {
            idle: engine.idle_share(),
            least: engine.least_share(),
            most: engine.most_share(),
            requests: engine.stats().answered,
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
    let hosted = node.host("versions", Versions::open_bytes(), |place| {
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
    settings: &Settings,
    node: &Node,
    store: &Store,
    listener: TcpListener,
    stop: oneshot::Receiver<Instant>,
) -> Result<impl Future<Output = Result<()>> + Send + use<>, Failure> {
    let readers = node.readers().clone();
    let run: Arc<dyn Fn(Lane, Job) -> Result<()> + Send + Sync> = Arc::new(move |lane, job| readers.run(lane, job));
    let failure = |error: std::io::Error| Failure::new(Exit::Address, Error::from(error));
    let address = listener.local_addr().map_err(failure)?;
    let budget = node.budget().limit();
    let host = Host {
        versions: store.hosted.0.clone(),
        run: run.clone(),
        changed: store.changed.clone(),
        account: node.budget().root().child("door", "").child("etcd", "connections + bodies"),
        connections: settings.connections.unwrap_or((budget >> 16).clamp(16, 10_000) as usize),
        name: "default".to_owned(),
        client_urls: vec![format!("http://{address}")],
        peer_urls: vec![PEER_URL.to_owned()],
        cluster_token: CLUSTER_TOKEN.to_owned(),
        progress_every: PROGRESS_EVERY,
        max_txn_ops: MAX_TXN_OPS,
        max_request_bytes: MAX_REQUEST_BYTES,
        quota: None,
        auth_token: "simple".to_owned(),
        auth_token_ttl: AUTH_TOKEN_TTL,
        bcrypt_cost: BCRYPT_COST,
    };
    let door = Door::open(host).map_err(Failure::of_data)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failure)?;
    let versions = store.hosted.0.clone();
    Ok(async move {
        let keeping = tokio::spawn(keep(versions, run));
        let stop = async move { stop.await.unwrap_or_else(|_| Instant::now()) };
        let served = ramekin_door_etcd::serve(listener, door, stop).await;
        keeping.abort();
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
            if let Err(error) = own.purge() {
                tracing::debug!("what a compaction left stays for now: {error}");
            }
            drop(ended);
        };
        if run(Lane::Writes, Box::new(work)).is_ok() {
            _ = has_ended.await;
        }
    }
}
