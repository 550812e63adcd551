//! `ramekin serve`: start, run, stop.
//!
//! ```text
//!   settings ► folder locked ► port bound ► node opened (log replayed) ► door serves
//!                                               │                          │
//!       SIGTERM, SIGINT ──► nothing to wait for ┘                          │
//!                       └─► stop accepting ► open requests end, or are cut ┤  all of it within drain-s
//!       a second signal ──► stop at once: what was acknowledged is in the log
//!       folder gone     ──► stop with an error: nothing acknowledged any more could be kept
//!                                                                          ▼
//!                                                        node flushes and closes ► exit code
//! ```

use crate::exit::{Exit, Failure};
use crate::settings::Settings;
use crate::{VERSION, door, etcd, process, tls};
use ramekin_base::{Clock, Error, Kind, Result, Size, SystemClock, supervise};
use ramekin_node::{Folder, Node, NodeOptions};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinError;
use tokio::time::Instant;

/// Threads that serve connections.
const DOOR_THREADS: usize = 2;
/// Threads for what tokio itself may block on.
const BLOCKING_THREADS: usize = 2;
const DOOR_STACK_BYTES: usize = 512 << 10;
/// The main thread, the doors, and one of tokio's own.
pub const OTHER_THREADS: u64 = 1 + DOOR_THREADS as u64 + 1;
/// Of the time that a stop may take, the last quarter and no more than this is for closing: by then requests are cut, and
/// threads end at their next look at their tokens.
const CLOSING_MOST: Duration = Duration::from_secs(2);
/// A part of the stop gets this even where `drain-s` leaves nothing for it.
const PART_LEAST: Duration = Duration::from_millis(100);

pub fn run(flags: &clap::ArgMatches) -> Result<(), Failure> {
    start(Settings::load(flags).map_err(Failure::usage)?)
}

/// Serves with these settings until a signal.
pub fn start(settings: Settings) -> Result<(), Failure> {
    tracing_subscriber::fmt()
        .with_max_level(settings.log_level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    log_panics();
    process::prepare().map_err(|error| Failure::new(Exit::Other, error))?;
    let tls = match &settings.tls {
        Some((cert, key)) => Some(tls::server(cert, key).map_err(Failure::usage)?),
        None => None,
    };

    let folder = Folder::take(&settings.data, settings.io)
        .map_err(|error| Failure::of_data(error.at(settings.data.display())))?;
    let listener = settings.http.as_deref().map(|address| listen("http", address)).transpose()?;
    let etcd_bound = settings.etcd.as_ref().map(etcd::bind).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(DOOR_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(DOOR_STACK_BYTES)
        .thread_name("door")
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Other, error.into()))?;
    // Signals count from here.
    let signals = || runtime.block_on(async { Signals::new() }).map_err(|error| Failure::new(Exit::Other, error));
    let (early, signals) = (signals()?, signals()?);

    let (report_fault, fault) = oneshot::channel();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let options = NodeOptions {
        memory: settings.memory,
        code_bytes: match settings.etcd {
            Some(_) => process::code_bytes(),
            None => process::code_bytes_without_etcd(),
        },
        other_threads: OTHER_THREADS,
        doors: ramekin_door_qdrant::min_reservations,
        clock: clock.clone(),
        on_fault: Box::new(move |error| drop(report_fault.send(error))),
    };
    let opening = runtime.spawn(stop_while_opening(early));
    let opened = Node::open(folder, options).map_err(|error| Failure::of_data(explain(error, &settings)));
    opening.abort();
    let node = opened?;
    announce(&settings, &node, listener.as_ref(), tls.is_some());
    let versions = match etcd_bound {
        Some(bound) => {
            let store = etcd::open_store(&node).map_err(|error| Failure::of_data(explain(error, &settings)))?;
            Some((store, bound))
        }
        None => None,
    };
    process::drop_start_code();
    let hosted = versions.as_ref().map(|(store, _)| store.hosted.clone());

    let ended = runtime.block_on(serve(&settings, &node, clock, Doors { listener, tls, versions }, signals, fault));
    match ended {
        Ok(end) => {
            runtime.shutdown_timeout(left(end) / 2);
            match in_time("the closing of the folder", left(end), move || close(&node, hosted.as_deref())) {
                Some(Ok(())) => tracing::info!("stopped; everything acknowledged is on the disk"),
                Some(Err(error)) => tracing::error!("stopped; everything acknowledged is in the log, but {error}"),
                None => tracing::warn!("stopped while work was under way; everything acknowledged is in the log"),
            }
            Ok(())
        }
        // The folder is gone: flushing into it would only fail again.
        Err(failure) => Err(failure),
    }
}

fn close(node: &Node, versions: Option<&etcd::Hosted>) {
    if let Some(Err(error)) = versions.map(|versions| versions.0.close()) {
        tracing::error!("the store of versions: everything acknowledged is in the log, but {error}");
    }
    node.close();
}

/// What is listened on, and what for.
struct Doors {
    listener: Option<TcpListener>,
    tls: Option<Arc<rustls::ServerConfig>>,
    versions: Option<(etcd::Store, etcd::Bound)>,
}

/// What is left of a stop that is to end then.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now()).max(PART_LEAST)
}

/// Stops the process at a signal that comes before the folder is open: nothing is acknowledged meanwhile, and what was
/// is in the log, as after a crash.
async fn stop_while_opening(mut signals: Signals) {
    let name = signals.next().await;
    tracing::info!("{name}: stopped while the folder was being opened; everything acknowledged is on the disk");
    std::process::exit(0);
}

/// Does `work` on a thread of its own, which does not keep the process if it does not end in time: what is acknowledged is in
/// the log already. A panic in it is an error.
fn in_time(job: &'static str, at_most: Duration, work: impl FnOnce() + Send + 'static) -> Option<Result<()>> {
    let (ended, has_ended) = std::sync::mpsc::sync_channel(1);
    let run = move || {
        let done = supervise::caught(job, || {
            work();
            Ok(())
        });
        // Nobody listens any more if it took too long.
        let _ = ended.send(done);
    };
    match std::thread::Builder::new().name("close".to_owned()).spawn(run) {
        Ok(_) => has_ended.recv_timeout(at_most).ok(),
        Err(error) => Some(Err(Error::io(format!("the kernel refused a thread for {job}: {error}")))),
    }
}

/// Binds the address of a door, which an option names.
fn listen(option: &str, address: &str) -> Result<TcpListener, Failure> {
    let failure = |error: std::io::Error| not_bound(&format!("--{option}"), address, &error);
    let listener = TcpListener::bind(address).map_err(failure)?;
    listener.set_nonblocking(true).map_err(failure)?;
    Ok(listener)
}

/// Says what to do about an address that cannot be bound, which an option names.
pub fn not_bound(option: &str, address: &str, error: &std::io::Error) -> Failure {
    let next = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("another process listens there; stop it or choose another {option}")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("a port below 1024 needs CAP_NET_BIND_SERVICE; choose another {option}, or grant it")
        }
        _ => format!("choose another {option}"),
    };
    Failure::new(Exit::Address, Error::io(format!("cannot listen on {address}: {error}; {next}")))
}

/// Adds what to do about it, where the floors below cannot know.
fn explain(error: Error, settings: &Settings) -> Error {
    let data = settings.data.display();
    let next = match error.kind() {
        Kind::Corrupt => {
            format!("look at it with 'ramekin check {data}', and cut it with 'ramekin check {data} --repair'")
        }
        Kind::NoSpace => "the disk is full; make room and start again, nothing acknowledged is lost".to_owned(),
        Kind::Unsupported => format!("{data} needs a newer ramekin than {VERSION}"),
        Kind::Invalid | Kind::NoMemory => format!("the budget comes from {}", settings.memory_from),
        _ => return error,
    };
    Error::new(error.kind(), format!("{error}; {next}"))
}

fn announce(settings: &Settings, node: &Node, listener: Option<&TcpListener>, tls: bool) {
    tracing::info!("ramekin {VERSION}, process {}", std::process::id());
    tracing::info!("memory {} from {}", Size(settings.memory), settings.memory_from);
    let of_etcd = settings.etcd.iter().flat_map(|member| &member.notes);
    node.notes().iter().chain(of_etcd).for_each(|note| tracing::info!("{note}"));
    tracing::info!("data in {}", settings.data.display());
    match listener.and_then(|listener| listener.local_addr().ok()) {
        Some(address) => tracing::info!("REST on http{}://{address}", if tls { "s" } else { "" }),
        None => tracing::info!("the REST door is off"),
    }
}

async fn serve(
    settings: &Settings,
    node: &Node,
    clock: Arc<dyn Clock>,
    doors: Doors,
    mut signals: Signals,
    fault: oneshot::Receiver<Error>,
) -> Result<Instant, Failure> {
    let (stop_door, door_stopped) = oneshot::channel::<Instant>();
    let (stop_etcd, etcd_stopped) = oneshot::channel::<Instant>();
    node.make_way_for_doors();
    let rest = door::open(settings, node, clock, doors.listener, doors.tls, door_stopped)?;
    let etcd = match (doors.versions, &settings.etcd) {
        (Some((store, bound)), Some(member)) => {
            Some(etcd::open((member, settings.connections), node, &store, bound, etcd_stopped)?)
        }
        _ => None,
    };
    let mut door = tokio::spawn(async move {
        let etcd = async move {
            match etcd {
                Some(etcd) => etcd.await,
                None => Ok(()),
            }
        };
        tokio::try_join!(rest, etcd).map(|_| ())
    });
    tokio::select! {
        name = signals.next() => tracing::info!("{name}: stopping within {} s; until shortly before, open requests may end", settings.drain.as_secs()),
        error = fault => {
            let error = error.unwrap_or_else(|_| Error::bug("the watch ended"));
            return Err(Failure::new(Exit::Lost, error));
        }
        ended = &mut door => {
            let error = ended_by_itself(ended);
            let exit = if error.kind() == Kind::NoMemory { Exit::Budget } else { Exit::Other };
            return Err(Failure::new(exit, error));
        }
    }
    let end = Instant::now() + settings.drain;
    let cut = end - (settings.drain / 4).min(CLOSING_MOST);
    // The door may be gone already; then there is nothing to stop.
    let _ = stop_door.send(cut);
    let _ = stop_etcd.send(cut);
    let end = tokio::select! {
        ended = &mut door => {
            if !matches!(ended, Ok(Ok(()))) {
                tracing::error!("{}", ended_by_itself(ended));
            }
            end
        }
        () = tokio::time::sleep_until(cut) => {
            tracing::warn!("some requests did not end in time and are cut");
            end
        }
        name = signals.next() => {
            tracing::warn!("{name} again: stopping at once");
            Instant::now()
        }
    };
    door.abort();
    Ok(end)
}

/// Why the door ended, which does so only when it is told to.
fn ended_by_itself(ended: Result<Result<()>, JoinError>) -> Error {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(Err(error)) => error,
        Err(Ok(panic)) => supervise::error_of("the door", &*panic),
        _ => Error::bug("the door ended by itself"),
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let on = |kind| signal(kind).map_err(|error| Error::io(format!("signals cannot be caught: {error}")));
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// A panic is a line in the log, wherever it happens.
fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        tracing::error!("panic in thread {}: {info}", thread.name().unwrap_or("without a name"));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_that_panics_is_told_apart_from_one_that_takes_long() {
        let soon = Duration::from_secs(60);
        assert!(matches!(in_time("a test", soon, || {}), Some(Ok(()))));
        let error = in_time("a test", soon, || panic!("planted by a test")).unwrap().unwrap_err();
        assert!(error.message().contains("a test panicked") && error.message().contains("planted"), "{error}");
        let (stay, gate) = std::sync::mpsc::sync_channel::<()>(0);
        assert!(in_time("a test", Duration::from_millis(10), move || _ = gate.recv()).is_none());
        drop(stay);
    }

    fn planted() -> Result<()> {
        panic!("planted by a test")
    }

    #[tokio::test]
    async fn a_door_that_panics_says_so() {
        let door = tokio::spawn(async { planted() });
        let error = ended_by_itself(door.await);
        assert!(error.message().contains("the door panicked") && error.message().contains("planted"), "{error}");
    }
}
