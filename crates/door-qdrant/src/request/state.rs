//! The door: what all requests share, and the way of a request through it.
//!
//! ```text
//!   hyper ─► route ─► key? ─► query string ─► handler ─────────────► answer
//!                                              │  body: admitted, read, decoded
//!                                              └─► reader pool: store + writing of the answer
//! ```
//!
//! The threads that serve connections never wait for the disk: what may do so runs on the reader pool, and comes back through
//! a oneshot. For memory they ask those who give it back, which may take some tens of milliseconds where it is short: sections
//! and minimum reservations are given up for nobody else. What is busy for the moment is tried again until the request's timeout.

use crate::admission::Admission;
use crate::admission::guests::{Class, Guest, Guests};
use crate::errors::{HttpError, Outcome};
use crate::limits;
use crate::request::call::{Call, Route};
use crate::request::counters::Counters;
use crate::request::host::Host;
use crate::request::inline_policy::InlinePolicy;
use crate::request::keys::Keys;
use crate::request::latency::Latency;
use crate::request::options::Options;
use crate::response::pack;
use crate::response::{BookedResponse, ResponseWriter};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use ramekin_base::{Error, Kind, Lane, Result, cancel, supervise};
use ramekin_memory::{Account, holding};
use ramekin_vectors::Store;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

/// The header in which our own version stands: `GET /` tells that of the API.
const OUR_VERSION: HeaderName = HeaderName::from_static("x-ramekin-version");

/// What all requests share.
pub struct DoorInner {
    pub host: Host,
    pub keys: Keys,
    pub admission: Admission,
    pub answers: Account,
    pub guests: Arc<Guests>,
    pub routes: &'static [Route],
    pub counters: Counters,
    pub latency: Latency,
    pub inline_policy: InlinePolicy,
    /// When the door was opened; only shown to people.
    pub opened: SystemTime,
    /// One change of a collection's configuration at a time: it reads, lays over and writes.
    pub change: parking_lot::Mutex<()>,
    pub budget_moves: Arc<Semaphore>,
}

impl DoorInner {
    pub fn now(&self) -> Duration {
        self.host.clock.now()
    }

    /// Serves one request of a known route.
    pub async fn serve(
        self: Arc<Self>,
        index: usize,
        route: &'static Route,
        params: Params,
        request: Request,
    ) -> Response {
        let started = self.now();
        let (parts, body) = request.into_parts();
        let expects = parts.headers.contains_key(header::EXPECT);
        let ready = self.keys.check(route.access, &parts.headers).and_then(|()| {
            let options = Options::read(parts.uri.query().unwrap_or_default())?;
            crate::request::call::check_path(route, &params)?;
            Ok((options, crate::admission::encoding::encoding(&parts.headers)?))
        });
        let outcome = match ready {
            Err(refusal) => {
                if !expects {
                    crate::body::drain(body).await;
                }
                Err(refusal)
            }
            Ok((options, encoding)) => {
                // A router that serves no connections has none.
                let guest = parts.extensions.get::<Arc<Guest>>().cloned();
                let begun = match &guest {
                    Some(guest) => guest.begin(Class::of(&body, encoding), options.until).await,
                    None => Ok(()),
                };
                match begun {
                    Ok(()) => {
                        let (door, body) = (self.clone(), Some(body));
                        let call = Call { door, route, params, options, body, encoding, expects, started, guest };
                        unharmed((route.handler)(call)).await
                    }
                    Err(error) => {
                        if !expects {
                            crate::body::drain(body).await;
                        }
                        Err(error.into())
                    }
                }
            }
        };
        let took = self.now().saturating_sub(started);
        let mut response = match outcome {
            Ok(answer) if pack::is_wanted(&parts.headers, &answer) => self.packed(answer),
            Ok(answer) => answer.response(),
            Err(refusal) => {
                tracing::debug!(path = route.path, status = refusal.status.as_u16(), "{}", refusal.message);
                refusal.response(took)
            }
        };
        response.headers_mut().insert(OUR_VERSION, HeaderValue::from_static(self.host.version));
        self.counters.count(index, response.status(), took);
        self.latency.took(route, took);
        response
    }

    /// The answer, packed as it goes out; as it is where there is no memory for that.
    fn packed(&self, answer: BookedResponse) -> Response {
        match self.answers.try_reserve(limits::PACK_BYTES) {
            Ok(memory) => pack::response(answer, memory),
            Err(_) => answer.response(),
        }
    }

    /// Runs `work` on the reader pool. While it is busy, tries again until the time is over. Work that nobody waits for
    /// any more, since the client hung up, the time is over or the server stops, ends at its next look at its token.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        lane: Lane,
        until: Instant,
        work: impl Fn(&DoorInner) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let work = Arc::new(work);
        let wanted = cancel::Guard::new();
        for round in 0.. {
            let (sender, receiver) = oneshot::channel();
            let (shared, job, token) = (self.clone(), work.clone(), wanted.token());
            let queued = self.now();
            let job = Box::new(move || {
                shared.latency.waited(lane, shared.now().saturating_sub(queued));
                if !token.is_cancelled() {
                    let _ = sender.send(cancel::scope(&token, || holding(0, || job(&shared))));
                }
            });
            let result = match (self.host.run)(lane, job) {
                Err(error) => Err(error),
                Ok(()) => outcome(receiver, &wanted, until).await,
            };
            match result {
                Err(error) if error.kind() == Kind::Busy => self.admission.pause(error, round, until).await?,
                done => return done,
            }
        }
        Err(Error::bug("rounds have no end"))
    }

    /// A read whose answer is written on the reader pool, where the results are.
    pub async fn read(
        self: &Arc<Self>,
        lane: Lane,
        until: Instant,
        started: Duration,
        work: impl Fn(&Store, &mut ResponseWriter) -> Result<()> + Send + Sync + 'static,
    ) -> Outcome<BookedResponse> {
        Ok(self.run(lane, until, move |shared| shared.answer(started, &work)).await?)
    }

    /// Writes an answer here and now.
    pub fn answer(
        &self,
        started: Duration,
        work: impl Fn(&Store, &mut ResponseWriter) -> Result<()>,
    ) -> Result<BookedResponse> {
        let mut text = ResponseWriter::answer(self.answers.clone())?;
        work(&self.host.store, &mut text)?;
        text.finish(self.now().saturating_sub(started))
    }
}

/// A handler that panics costs its own request, not the connection.
async fn unharmed(handler: impl Future<Output = Outcome<BookedResponse>>) -> Outcome<BookedResponse> {
    caught("a request", handler).await.unwrap_or_else(|error| Err(error.into()))
}

/// Does `work`; a panic in it is an error that names the `job`.
pub(crate) async fn caught<T>(job: &str, work: impl Future<Output = T>) -> Result<T> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.map_or_else(|panic| Poll::Ready(Err(supervise::error_of(job, &*panic))), |poll| poll.map(Ok))
    })
    .await
}

/// Waits for what another thread will say. Work that has begun when the time is over, as a change of names has whose record is
/// in the log, is waited for a little longer; all other is given up.
pub(crate) async fn outcome<T>(
    mut receiver: oneshot::Receiver<Result<T>>,
    wanted: &cancel::Guard,
    until: Instant,
) -> Result<T> {
    let over = || Error::busy("the request did not end within its timeout");
    let mut heard = timeout_at(until, &mut receiver).await;
    if heard.is_err() {
        if wanted.cancel() {
            return Err(over());
        }
        heard = timeout_at(until + limits::BEGUN_GRACE, receiver).await;
    }
    match heard {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Error::bug("the request ended without an answer; the server's log says why")),
        Err(_) => Err(over().after(BEGUN)),
    }
}

pub(crate) const BEGUN: &str = "the write has begun, and may still be done";

/// Values of a route's `{...}` parts, in order.
pub type Params = Vec<String>;

/// A path that no route has.
pub async fn unknown_path(request: Request) -> Response {
    let message = format!("Not found: no endpoint {} {}", request.method(), request.uri().path());
    crate::body::drain(request.into_body()).await;
    HttpError::new(StatusCode::NOT_FOUND, message).response(Duration::ZERO)
}

/// A path that has routes, but none for the method.
pub async fn unknown_method(request: Request) -> Response {
    let message = format!("Method not allowed: {} {}", request.method(), request.uri().path());
    crate::body::drain(request.into_body()).await;
    HttpError::new(StatusCode::METHOD_NOT_ALLOWED, message).response(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn heard(token: impl Fn(&cancel::Token), said_after: Option<Duration>) -> Result<u32> {
        let (sender, receiver) = oneshot::channel();
        let wanted = cancel::Guard::new();
        token(&wanted.token());
        tokio::spawn(async move {
            match said_after {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
            _ = sender.send(Ok(7));
        });
        outcome(receiver, &wanted, Instant::now() + Duration::from_secs(5)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_that_is_over_says_busy_only_of_what_will_never_be_done() {
        let begun = |token: &cancel::Token| token.begin().unwrap();
        assert_eq!(heard(|_| (), None).await.unwrap_err().kind(), Kind::Busy);
        assert_eq!(heard(begun, None).await.unwrap_err().kind(), Kind::Unfinished);
        assert_eq!(heard(begun, Some(Duration::from_secs(6))).await.unwrap(), 7);
        assert_eq!(heard(|_| (), Some(Duration::from_secs(4))).await.unwrap(), 7);
    }
}
