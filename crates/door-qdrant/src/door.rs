//! The door of a process: opened once, with its accounts, its guests and its routes.

use crate::admission::Admission;
use crate::admission::guests::{self, Guests};
use crate::handlers::memory::BUDGET_MOVES;
use crate::limits;
use crate::request::counters::Counters;
use crate::request::host::Host;
use crate::request::inline_policy::InlinePolicy;
use crate::request::keys::Keys;
use crate::request::latency::Latency;
use crate::request::state::DoorInner;
use crate::routes;
use axum::Router;
use ramekin_base::Result;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::Semaphore;

/// The door of a process. Clones are handles to the same one.
#[derive(Clone)]
pub struct Door {
    pub(crate) shared: Arc<DoorInner>,
    pub(crate) router: Router,
}

/// What the door has for good, used or not.
pub const fn min_reservations(budget: u64) -> u64 {
    limits::bodies_min_reservation(budget) + limits::answers_min_reservation(budget) + guests::MIN_RESERVATION
}

impl Door {
    /// Takes the minimum reservations of the door's accounts; fails if the budget has no room for them.
    #[allow(clippy::disallowed_methods, reason = "the moment of the start is shown to people, nothing depends on it")]
    pub fn open(host: Host, keys: Keys) -> Result<Self> {
        let bodies =
            host.account.child("bodies", "requests x 2 x their body; at least budget / 32, at most budget / 8");
        let answers = host.account.child("answers", "answers x their text; at least budget / 128");
        answers.set_min_reservation(limits::answers_min_reservation(host.budget.limit()))?;
        let store = host.store.clone();
        let admission = Admission::new(host.budget.clone(), bodies)?.relieved_by(move || store.write_out());
        let guests = Arc::new(Guests::new(host.budget.clone(), &host.account, host.connections)?);
        let counters = Counters::new(routes::ROUTES.len());
        let shared = DoorInner {
            host,
            keys,
            admission,
            answers,
            guests,
            routes: routes::ROUTES,
            counters,
            latency: Latency::default(),
            inline_policy: InlinePolicy::new(),
            opened: SystemTime::now(),
            change: parking_lot::Mutex::default(),
            budget_moves: Arc::new(Semaphore::new(BUDGET_MOVES)),
        };
        let shared = Arc::new(shared);
        Ok(Self { router: routes::router(&shared), shared })
    }

    /// The routes, for a server of one's own or for tests.
    pub fn router(&self) -> Router {
        self.router.clone()
    }
}
