//! The wiring of the REST door: what it needs of the node, as plain values and closures.
//!
//! ```text
//!   node ── store, budget, readers, set_budget ──► door_qdrant::Host ──► router ──► serve(listener)
//! ```
//!
//! Door and node stand on the same floor and do not know each other; they meet here.

use crate::VERSION;
use crate::exit::{Exit, Failure};
use crate::plan::OfServer;
use crate::settings::Settings;
use ramekin_base::{Clock, Error, Kind, Result, Size};
use ramekin_door_qdrant::{Host, Keys};
use ramekin_node::Node;
use std::future::Future;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// What runs until the door is closed.
type Open = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A future that serves until `stop` says when what is still open then is cut, and lets open requests end until then.
pub fn open(
    settings: &Settings,
    node: &Node,
    clock: Arc<dyn Clock>,
    listener: Option<TcpListener>,
    tls: Option<Arc<rustls::ServerConfig>>,
    stop: oneshot::Receiver<Instant>,
) -> Result<Open, Failure> {
    // Dropped, nothing is left to wait for.
    let stop = async move { stop.await.unwrap_or_else(|_| Instant::now()) };
    let Some(listener) = listener else {
        return Ok(Box::pin(async move {
            stop.await;
            Ok(())
        }));
    };
    let (readers, mover, plans) = (node.readers().clone(), node.clone(), OfServer::new(node.clone()));
    let asked = node.clone();
    let host = Host {
        store: node.store().clone(),
        budget: node.budget().clone(),
        run: Arc::new(move |lane, job| readers.run(lane, job)),
        set_budget: Arc::new(move |bytes, keep, at_most| mover.set_budget(bytes, keep, at_most)),
        least_budget: node.least_budget(),
        faults: Arc::new(move || asked.faults()),
        plan: Arc::new(move |wanted| plans.plan(wanted)),
        clock,
        cors: settings.cors.clone(),
        connections: settings.connections,
        version: VERSION,
        engine: node.disk().engine_name().to_owned(),
        account: node.budget().root().child("door", "").child("http", "connections x buffers + bodies + answers"),
    };
    let keys = Keys { full: settings.api_key.clone(), read_only: settings.read_only_api_key.clone() };
    let budget = node.budget().limit();
    let door = ramekin_door_qdrant::router(host, keys).map_err(|error| Failure::of_data(too_small(error, budget)))?;
    let listener =
        tokio::net::TcpListener::from_std(listener).map_err(|error| Failure::new(Exit::Address, Error::from(error)))?;
    Ok(Box::pin(async move {
        let served = ramekin_door_qdrant::serve(listener, tls, door, stop).await;
        served.map_err(|error| too_small(error, budget))
    }))
}

/// What the door needs at its start is needed for good: no waiting helps.
fn too_small(error: Error, budget: u64) -> Error {
    match error.kind() {
        Kind::Busy => Error::no_memory(format!("a budget of {} is too small for the door: {error}", Size(budget))),
        _ => error,
    }
}
