//! Requests counted by route and status, for `/metrics` and `/telemetry`.

use axum::http::StatusCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Statuses that are counted one by one; all others count as the last.
pub const STATUSES: [u16; 18] =
    [200, 202, 204, 400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 431, 501, 503, 507, 500];

/// Counts of one route and one status.
#[derive(Default)]
pub struct Count {
    pub requests: AtomicU64,
    pub micros: AtomicU64,
}

pub struct Counters {
    routes: Vec<[Count; STATUSES.len()]>,
}

impl Counters {
    pub fn new(routes: usize) -> Self {
        Self { routes: std::iter::repeat_with(Default::default).take(routes).collect() }
    }

    pub fn count(&self, route: usize, status: StatusCode, took: Duration) {
        let index = STATUSES.iter().position(|known| *known == status.as_u16()).unwrap_or(STATUSES.len() - 1);
        if let Some(count) = self.routes.get(route).and_then(|route| route.get(index)) {
            count.requests.fetch_add(1, Ordering::Relaxed);
            count.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        }
    }

    /// Every route and status that was counted: route, status, requests, microseconds in all.
    pub fn all(&self) -> impl Iterator<Item = (usize, u16, u64, u64)> {
        self.routes.iter().enumerate().flat_map(|(route, counts)| {
            counts.iter().zip(STATUSES).filter_map(move |(count, status)| {
                let requests = count.requests.load(Ordering::Relaxed);
                (requests > 0).then(|| (route, status, requests, count.micros.load(Ordering::Relaxed)))
            })
        })
    }
}
