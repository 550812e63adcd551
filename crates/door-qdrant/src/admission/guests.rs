//! Who is connected, and what each holds: little between requests, more while one is under way.
//!
//! ```text
//!   accept ─► a seat: room for a header, structures ─► header complete ─► work: what a request of its class may hold
//!                ▲                                                           │
//!                └─ once the client has read its answer: soon, or at once where others wait ◄─ answer written
//!
//!   no seat, or no memory for work: work of who is idle is given back, or else who is idle longest leaves,
//!                                   or else who has not read its answer for longest
//! ```
//!
//! Classes of requests have memory of their own, so that those without a body pass those with one, and small ones pass
//! uploads: one that waits for its part of a pool of bodies keeps its place among those of its class only.

use crate::admission::encoding::Encoding;
use crate::admission::socket::Socket;
use crate::admission::{Pool, Waiter};
use crate::limits;
use axum::body::{Body, HttpBody};
use parking_lot::Mutex;
use ramekin_base::limits as base;
use ramekin_base::{Error, Kind, Result};
use ramekin_memory::{Account, Budget, Reservation};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// In words, for the ledger.
pub const FORMULA: &str = "connections x (8 KiB read + 10 KiB structures and the kernel's; TLS 48 KiB more)";
const FORMULA_BARE: &str = "requests without a body under way x (8 KiB read + 32 KiB kernel + 16 KiB answer)";
const FORMULA_BRIEF: &str =
    "requests with a small body under way x (8 KiB read + 32 KiB kernel + 16 KiB answer + 16 KiB body)";
const FORMULA_SMALL: &str = "requests with a body of up to 128 KiB under way x (as uploads)";
const FORMULA_UPLOADS: &str = "requests with a large body under way x (8 KiB read + 32 KiB kernel + 8 KiB answer + 16 KiB body + up to 256 KiB kernel if there is room, an eighth of the body)";

/// Connections that are there for good, however small the budget.
const SEATS_LEAST: u64 = 16;
/// What all of it has for good, without TLS.
pub const MIN_RESERVATION: u64 = SEATS_LEAST * seat(false)
    + Class::Bare.min_places() * Class::Bare.bytes()
    + Class::Brief.min_places() * Class::Brief.bytes()
    + Class::Small.min_places() * Class::Small.bytes()
    + Class::Upload.min_places() * Class::Upload.bytes();

/// What one connection is booked at between requests.
const fn seat(tls: bool) -> u64 {
    (limits::HEAD_FREE + limits::CONNECTION_FIXED + if tls { limits::CONNECTION_TLS } else { 0 }) as u64
}

/// What so many connections may be booked at together, without their requests. With TLS it is enough for fewer.
fn seats_most(budget: u64, places: usize) -> u64 {
    (places as u64 * seat(false)).min(budget / 2).max(SEATS_LEAST * seat(true))
}

/// Connections at a time under a budget: as many as were asked for, or what is usual.
pub fn places(budget: u64, asked: Option<usize>) -> usize {
    // Files of data must open too.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    (asked.unwrap_or_else(|| base::connections_max(budget)) as u64).min(files).max(SEATS_LEAST) as usize
}

/// What a request may hold beside what is booked for it later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Without a body: it asks, and waits for nobody.
    Bare,
    /// With a body that lives on the connection's own booking.
    Brief,
    /// With one that has the pool of small bodies.
    Small,
    /// With one that is booked as it comes.
    Upload,
}

impl Class {
    pub fn of(body: &Body, encoding: Encoding) -> Self {
        match body.size_hint().exact() {
            Some(0) => Self::Bare,
            Some(bytes) if bytes <= limits::BODY_FREE as u64 && encoding == Encoding::Plain => Self::Brief,
            Some(bytes) if bytes <= limits::BODY_SMALL && encoding == Encoding::Plain => Self::Small,
            _ => Self::Upload,
        }
    }

    const fn bytes(self) -> u64 {
        let read = limits::READ_BUFFER - limits::HEAD_FREE;
        let asked = read + limits::ANSWER_FREE + 2 * limits::SOCKET_SEND;
        (match self {
            Self::Bare => asked,
            Self::Brief => asked + limits::BODY_FREE,
            Self::Small | Self::Upload => asked - limits::ANSWER_FREE / 2 + limits::BODY_FREE,
        }) as u64
    }

    /// So many have their memory for good.
    const fn min_places(self) -> u64 {
        match self {
            Self::Bare | Self::Brief => 4,
            Self::Small | Self::Upload => 1,
        }
    }

    /// What all of a class may be booked at together.
    fn most(self, budget: u64) -> u64 {
        let share = if self == Self::Upload { budget / 16 } else { budget / 8 };
        share.max(self.min_places() * self.bytes())
    }
}

/// The requests of a class.
struct SeatQueue {
    class: Class,
    account: Account,
    pool: Pool,
    waiting: AtomicUsize,
}

impl SeatQueue {
    fn new(class: Class, account: Account, budget: u64) -> Result<Self> {
        account.set_min_reservation(class.min_places() * class.bytes())?;
        Ok(Self { class, account, pool: Pool::new(class.most(budget)), waiting: AtomicUsize::new(0) })
    }

    /// Waits for a turn; `look` is called now and then meanwhile.
    async fn turn(&self, until: Instant, look: impl Fn()) -> Result<OwnedSemaphorePermit> {
        let units = Pool::units_of(self.class.bytes());
        if let Ok(permit) = self.pool.free.clone().try_acquire_many_owned(units) {
            return Ok(permit);
        }
        let _waiter = self.wait()?;
        let mut permit = std::pin::pin!(self.pool.free.clone().acquire_many_owned(units));
        while Instant::now() < until {
            let look_again = until.min(Instant::now() + Duration::from_millis(limits::UNREAD_STALL_MS / 4));
            match timeout_at(look_again, permit.as_mut()).await {
                Ok(permit) => return permit.map_err(|_| Error::closed("the server is stopping")),
                Err(_) => look(),
            }
        }
        Err(Error::busy("too many requests are under way, and this one waited until its timeout"))
    }

    fn wait(&self) -> Result<Waiter<'_>> {
        let waiter = Waiter(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= base::QUEUE_MAX {
            return Err(Error::busy(format!("{} requests are waiting already", base::QUEUE_MAX)));
        }
        Ok(waiter)
    }
}

/// All connections of a door.
pub struct Guests {
    /// Connections at a time, where somebody said a number.
    asked: Option<usize>,
    budget: Budget,
    seats: Account,
    lines: [SeatQueue; 4],
    list: Mutex<HashMap<u64, Arc<Guest>>>,
    /// Rung when one has left.
    left: Notify,
}

/// One connection.
pub struct Guest {
    all: Arc<Guests>,
    socket: Socket,
    state: Mutex<State>,
    leaving: AtomicBool,
    /// Tells it to leave.
    leave: Notify,
}

struct State {
    /// Since when no request is under way; none: one is.
    idle: Option<Instant>,
    /// Since when a header is under way, and how much of it came.
    header: Option<Instant>,
    head: usize,
    /// Since when the client has taken nothing of its answer.
    stuck: Option<Instant>,
    work: Option<Work>,
    /// For a header that went on where a seat's buffer was full; the larger buffer stays.
    _wide_head: Option<Reservation>,
}

impl State {
    /// Since when nothing is asked for, and nothing of an answer waits to be written.
    fn is_idle(&self) -> Option<Instant> {
        self.idle.filter(|_| self.stuck.is_none())
    }

    /// Since when the client has not read its answer, if others need not put up with it any more.
    fn stuck_for_long(&self) -> Option<Instant> {
        self.stuck.filter(|since| since.elapsed() >= Duration::from_millis(limits::UNREAD_STALL_MS))
    }
}

struct Work {
    class: Class,
    memory: Reservation,
    turn: Option<OwnedSemaphorePermit>,
    /// The kernel may hold more of an answer, and so much of a body.
    answers: bool,
    receive: usize,
}

impl Work {
    /// The kernel may hold no more than between requests.
    fn narrow(&mut self, socket: &Socket) {
        if std::mem::replace(&mut self.receive, limits::SOCKET_RECEIVE_IDLE) > limits::SOCKET_RECEIVE_IDLE {
            socket.set_receive_buffer(limits::SOCKET_RECEIVE_IDLE);
        }
        if std::mem::take(&mut self.answers) {
            socket.set_send_buffer(limits::SOCKET_SEND_IDLE);
        }
    }
}

impl Guests {
    /// Takes the minimum reservations of the requests.
    pub fn new(budget: Budget, door: &Account, asked: Option<usize>) -> Result<Self> {
        let requests = |name, formula| door.child(name, formula);
        let most = budget.limit();
        Ok(Self {
            asked,
            seats: door.child("connections", FORMULA).with_limit(seats_most(most, places(most, asked))),
            lines: [
                SeatQueue::new(Class::Bare, requests("questions", FORMULA_BARE), most)?,
                SeatQueue::new(Class::Brief, requests("requests", FORMULA_BRIEF), most)?,
                SeatQueue::new(Class::Small, requests("small-uploads", FORMULA_SMALL), most)?,
                SeatQueue::new(Class::Upload, requests("uploads", FORMULA_UPLOADS), most)?,
            ],
            budget,
            list: Mutex::default(),
            left: Notify::new(),
        })
    }

    fn line(&self, class: Class) -> &SeatQueue {
        let [bare, brief, small, upload] = &self.lines;
        match class {
            Class::Bare => bare,
            Class::Brief => brief,
            Class::Small => small,
            Class::Upload => upload,
        }
    }

    /// Some connections are there for good.
    pub fn open(&self, tls: bool) -> Result<()> {
        self.seats.set_min_reservation(SEATS_LEAST * seat(tls))
    }

    /// Follows the budget after it moved.
    pub fn after_budget(&self) {
        let budget = self.budget.limit();
        self.seats.set_limit(seats_most(budget, places(budget, self.asked)));
        for line in &self.lines {
            line.pool.resize(line.class.most(budget));
        }
    }

    /// Waits for a seat. While there is none, somebody leaves.
    pub async fn seat(self: &Arc<Self>, number: u64, socket: &Socket, tls: bool) -> Seat {
        loop {
            if self.list.lock().len() >= places(self.budget.limit(), self.asked) {
                self.send_one_away(Duration::ZERO);
            } else if let Ok(memory) = self.seats.try_reserve(seat(tls)) {
                return self.seated(number, socket, memory);
            } else {
                self.make_room();
            }
            // One that must leave may have its last request under way.
            let _ = timeout(Duration::from_millis(20), self.left.notified()).await;
        }
    }

    fn seated(self: &Arc<Self>, number: u64, socket: &Socket, memory: Reservation) -> Seat {
        let state =
            State { idle: Some(Instant::now()), header: None, head: 0, stuck: None, work: None, _wide_head: None };
        let guest = Arc::new(Guest {
            all: self.clone(),
            socket: socket.clone(),
            state: Mutex::new(state),
            leaving: AtomicBool::new(false),
            leave: Notify::new(),
        });
        self.list.lock().insert(number, guest.clone());
        Seat { number, guest, memory: Some(memory) }
    }

    /// Waits until all have left.
    pub async fn all_left(&self) {
        while !self.list.lock().is_empty() {
            let _ = timeout(Duration::from_millis(20), self.left.notified()).await;
        }
    }

    /// Memory for a request; where it is short, others make room until the time is over.
    async fn memory(&self, class: Class, until: Instant) -> Result<Reservation> {
        for round in 0u32.. {
            match self.line(class).account.try_reserve(class.bytes()) {
                Err(error) if error.kind() == Kind::Busy => {
                    self.make_room();
                    let pause = Duration::from_millis(1 << round.min(5));
                    if Instant::now() + pause >= until {
                        return Err(error);
                    }
                    sleep(pause).await;
                }
                done => return done,
            }
        }
        Err(Error::bug("rounds have no end"))
    }

    /// Those who are idle give back what their last request held; where none has anything, one leaves.
    fn make_room(&self) {
        let given = self.list.lock().values().filter(|guest| guest.give_back()).count();
        if given == 0 {
            // One that was just opened is about to ask for something.
            self.send_one_away(Duration::from_millis(limits::BODY_STALL_MS / 4));
        }
    }

    /// Who is idle longest leaves, if it is that long; where nobody is, who has not read its answer for longest, if that is long.
    fn send_one_away(&self, least: Duration) {
        let list = self.list.lock();
        let longest = |since: fn(&State) -> Option<Instant>, may_be_leaving: bool| {
            let able = list.values().filter(|guest| may_be_leaving || !guest.leaving.load(Ordering::Relaxed));
            able.filter_map(|guest| Some((since(&guest.state.lock())?, guest))).min_by_key(|(since, _)| *since)
        };
        let idle = longest(State::is_idle, false).filter(|(since, _)| since.elapsed() >= least);
        // One that was to leave after its last answer stays as long as that is not read.
        let chosen = idle.or_else(|| longest(State::stuck_for_long, true));
        if let Some((_, guest)) = chosen {
            guest.send_away();
        }
    }

    /// Others of a class wait: those who do not read their answers hold what they wait for.
    fn cut_stuck(&self, class: Class) {
        for guest in self.list.lock().values() {
            let state = guest.state.lock();
            let is_of_class = state.work.as_ref().is_some_and(|work| work.class == class);
            if is_of_class && state.stuck_for_long().is_some() {
                guest.send_away();
            }
        }
    }

    /// Looks at all of them now and then, for ever.
    pub async fn watch(&self) -> std::convert::Infallible {
        loop {
            sleep(Duration::from_secs(1)).await;
            let all: Vec<_> = self.list.lock().values().cloned().collect();
            for guest in all {
                guest.look();
            }
        }
    }
}

impl Guest {
    /// A request is there.
    pub fn busy(&self) {
        let mut state = self.state.lock();
        (state.idle, state.header, state.head) = (None, None, 0);
    }

    /// The answer is with whoever writes it.
    pub fn over(&self) {
        let mut state = self.state.lock();
        state.idle = Some(Instant::now());
        if let Some(work) = &mut state.work {
            work.turn = None;
        }
    }

    /// Books what a request holds.
    pub async fn begin(&self, class: Class, until: Instant) -> Result<()> {
        let turn = self.all.line(class).turn(until, || self.all.cut_stuck(class)).await?;
        // What the last request held often suits this one.
        let kept = self.state.lock().work.take();
        let mut work = match kept {
            Some(work) if work.class == class => Work { turn: Some(turn), ..work },
            other => {
                // What the kernel may hold was booked with it; the new one may wait long.
                if let Some(mut work) = other {
                    work.narrow(&self.socket);
                }
                let memory = self.all.memory(class, until).await?;
                Work { class, memory, turn: Some(turn), answers: false, receive: limits::SOCKET_RECEIVE_IDLE }
            }
        };
        if !std::mem::replace(&mut work.answers, true) {
            self.socket.set_send_buffer(limits::SOCKET_SEND);
        }
        self.state.lock().work = Some(work);
        Ok(())
    }

    /// A body comes that has room for so many bytes: the kernel takes more of it at a time, where there is memory for that.
    pub fn widen(&self, body: usize) {
        let mut state = self.state.lock();
        let Some(work) = state.work.as_mut() else { return };
        for wanted in [limits::socket_receive(body, self.all.budget.limit()), limits::SOCKET_RECEIVE] {
            let more = 2 * wanted.saturating_sub(work.receive) as u64;
            if more == 0 || work.memory.grow(more).is_err() {
                continue;
            }
            self.socket.set_receive_buffer(wanted);
            work.receive = wanted;
            return;
        }
    }

    /// Others of its class wait for what it holds.
    pub fn is_crowded(&self) -> bool {
        let class = self.state.lock().work.as_ref().map(|work| work.class);
        class.is_some_and(|class| self.all.line(class).waiting.load(Ordering::Relaxed) > 0)
    }

    /// So many bytes came. Those of a header have a deadline; what is more than a seat has room for is booked.
    pub fn heard(&self, bytes: usize) -> Result<()> {
        let mut state = self.state.lock();
        if state.idle.is_none() || bytes == 0 {
            return Ok(());
        }
        state.header.get_or_insert_with(Instant::now);
        let is_wide = state.head >= limits::HEAD_FREE - 1;
        state.head += bytes;
        if is_wide && state._wide_head.is_none() {
            let more = limits::READ_BUFFER - limits::HEAD_FREE;
            state._wide_head = Some(self.all.seats.try_reserve(more as u64)?);
        }
        Ok(())
    }

    /// The client takes nothing of its answer, or all of it is on its way.
    pub fn stuck(&self, is_so: bool) {
        let mut state = self.state.lock();
        state.stuck = is_so.then(|| state.stuck.unwrap_or_else(Instant::now));
    }

    /// Gives back what the last request held, if none is under way and the client has read the answer. True: it did.
    fn give_back(&self) -> bool {
        let mut state = self.state.lock();
        let is_idle = state.is_idle().is_some();
        let Some(work) = state.work.as_mut().filter(|_| is_idle) else { return false };
        work.narrow(&self.socket);
        let is_read = self.socket.has_room();
        if is_read {
            state.work = None;
        }
        is_read
    }

    /// Ends what takes too long, and gives back what is not needed any more.
    fn look(&self) {
        let (idle, header) = {
            let state = self.state.lock();
            (state.idle.map(|since| since.elapsed()), state.header.map(|since| since.elapsed()))
        };
        let is_late = header.is_some_and(|since| since >= Duration::from_secs(limits::HEADER_S));
        let Some(idle) = idle else { return };
        let is_unread =
            || !self.give_back() && self.state.lock().work.is_some() && idle >= Duration::from_secs(limits::UNREAD_S);
        if is_late || idle >= Duration::from_millis(limits::WORK_KEPT_MS) && is_unread() {
            self.send_away();
        }
    }

    fn send_away(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.leave.notify_one();
    }

    /// Done when it must leave.
    pub async fn must_leave(&self) {
        self.leave.notified().await;
    }

    /// Done when it must leave, and need not be heard out. One that was busy when it was told so is told again.
    pub async fn must_be_cut(&self) {
        while !self.may_be_cut() {
            self.must_leave().await;
        }
    }

    /// It must leave, and nothing that it asked for is worked on, or nobody reads what came of it.
    pub fn may_be_cut(&self) -> bool {
        let state = self.state.lock();
        self.leaving.load(Ordering::Relaxed) && state.is_idle().or(state.stuck_for_long()).is_some()
    }
}

/// A connection's place; it is free again when this is gone.
pub struct Seat {
    number: u64,
    pub guest: Arc<Guest>,
    memory: Option<Reservation>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let all = &self.guest.all;
        self.guest.state.lock().work = None;
        self.memory = None;
        all.list.lock().remove(&self.number);
        all.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    const IDLE: (usize, usize) = (2 * limits::SOCKET_RECEIVE_IDLE, 2 * limits::SOCKET_SEND_IDLE);
    const WIDE: (usize, usize) = (2 * limits::SOCKET_RECEIVE, 2 * limits::SOCKET_SEND);

    fn guests() -> (Budget, Arc<Guests>) {
        let budget = Budget::new(32 << 20);
        let guests = Guests::new(budget.clone(), &budget.root().child("door", ""), None).unwrap();
        (budget, Arc::new(guests))
    }

    /// A connection, and its far end.
    async fn connected(guests: &Arc<Guests>) -> (Seat, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let socket = Socket::new(accepted.unwrap().0);
        socket.set_receive_buffer(limits::SOCKET_RECEIVE_IDLE);
        socket.set_send_buffer(limits::SOCKET_SEND_IDLE);
        (guests.seat(1, &socket, false).await, client.unwrap())
    }

    #[tokio::test]
    async fn the_kernel_holds_no_more_for_a_request_than_is_booked_for_it() {
        let (budget, guests) = guests();
        let (seat, _client) = connected(&guests).await;
        let until = Instant::now() + Duration::from_secs(60);
        let (guest, socket) = (&seat.guest, &seat.guest.socket);
        let upload = async || {
            guest.begin(Class::Upload, until).await.unwrap();
            guest.widen(64 << 10);
            assert_eq!(socket.buffers(), WIDE);
        };
        upload().await;
        guest.begin(Class::Bare, until).await.unwrap();
        assert_eq!(socket.buffers(), (IDLE.0, WIDE.1));
        // Where the next one finds no memory nothing is booked, and the kernel holds nothing.
        upload().await;
        let questions = guests.line(Class::Bare);
        let _minimum = questions.account.try_reserve(Class::Bare.min_places() * Class::Bare.bytes()).unwrap();
        let _all = budget.root().try_reserve(budget.free()).unwrap();
        guest.begin(Class::Bare, Instant::now()).await.unwrap_err();
        assert_eq!(socket.buffers(), IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_busy_when_told_to_leave_is_told_again_when_it_does_not_read() {
        let (_budget, guests) = guests();
        let (seat, _client) = connected(&guests).await;
        let guest = &seat.guest;
        guests.send_one_away(Duration::ZERO);
        guest.busy();
        guest.must_leave().await;
        assert!(!guest.may_be_cut());
        guest.over();
        guest.stuck(true);
        let told = async {
            guests.send_one_away(Duration::ZERO);
            sleep(Duration::from_millis(limits::UNREAD_STALL_MS)).await;
            assert!(guest.may_be_cut());
            guests.send_one_away(Duration::ZERO);
        };
        timeout(Duration::from_secs(10), async { tokio::join!(guest.must_be_cut(), told) }).await.unwrap();
    }
}
