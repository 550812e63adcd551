//! How long requests took, by the kind of what they ask, and how long their work waited for a thread.
//!
//! ```text
//!   route ──► kind: search, read, write or admin ──► a histogram each        lane of the readers ──► a histogram each
//! ```

use crate::request::call::Route;
use crate::request::keys::Access;
use ramekin_base::{Histogram, Lane};
use std::time::Duration;

/// What requests ask for. Each route is of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The nearest points.
    Search,
    /// Points by id, by filter or counted.
    Read,
    /// Points made, changed and deleted.
    Write,
    /// All other: collections, aliases, indexes, memory, the service itself.
    Admin,
}

pub const KINDS: [(Kind, &str); 4] =
    [(Kind::Search, "search"), (Kind::Read, "read"), (Kind::Write, "write"), (Kind::Admin, "admin")];
pub const LANES: [(Lane, &str); 3] = [(Lane::Writes, "writes"), (Lane::Reads, "reads"), (Lane::Short, "short")];

impl Kind {
    pub fn of(route: &Route) -> Self {
        let within = route.path.strip_prefix("/collections/{collection_name}/").unwrap_or_default();
        match (within.strip_prefix("points"), route.access) {
            (Some(rest), _) if rest.starts_with("/query") || rest.starts_with("/search") => Self::Search,
            (Some(_), Access::Write) => Self::Write,
            (Some(_), _) => Self::Read,
            (None, _) if within == "facet" => Self::Read,
            (None, _) => Self::Admin,
        }
    }
}

/// A histogram of each kind and each lane; they live as long as the door.
#[derive(Debug, Default)]
pub struct Latency {
    requests: [Histogram; KINDS.len()],
    waits: [Histogram; LANES.len()],
}

impl Latency {
    pub fn took(&self, route: &Route, took: Duration) {
        self.requests[Kind::of(route) as usize].note(took);
    }

    /// Its work waited so long for a reader.
    pub fn waited(&self, lane: Lane, waited: Duration) {
        if let Some(at) = LANES.iter().position(|(known, _)| *known == lane) {
            self.waits[at].note(waited);
        }
    }

    pub fn requests(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        KINDS.iter().map(|(_, name)| *name).zip(&self.requests)
    }

    pub fn waits(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        LANES.iter().map(|(_, name)| *name).zip(&self.waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::ROUTES;

    #[test]
    fn routes_are_of_the_kind_that_their_path_says() {
        let kind = |method: &str, path: &str| {
            Kind::of(ROUTES.iter().find(|route| (route.method, route.path) == (method, path)).unwrap())
        };
        let of_points = "/collections/{collection_name}/points";
        assert_eq!(kind("POST", &format!("{of_points}/query")), Kind::Search);
        assert_eq!(kind("POST", &format!("{of_points}/search/batch")), Kind::Search);
        assert_eq!(kind("POST", of_points), Kind::Read);
        assert_eq!(kind("POST", "/collections/{collection_name}/facet"), Kind::Read);
        assert_eq!(kind("PUT", of_points), Kind::Write);
        assert_eq!(kind("POST", &format!("{of_points}/delete")), Kind::Write);
        assert_eq!(kind("PUT", "/collections/{collection_name}"), Kind::Admin);
        assert_eq!(kind("GET", "/metrics"), Kind::Admin);
        for (at, (kind, _)) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            assert!(ROUTES.iter().any(|route| Kind::of(route) == kind), "{kind:?}");
        }
    }

    #[test]
    fn what_is_noted_is_counted_in_its_own_place() {
        let latency = Latency::default();
        let search = ROUTES.iter().find(|route| Kind::of(route) == Kind::Search).unwrap();
        latency.took(search, Duration::from_millis(3));
        latency.waited(Lane::Reads, Duration::from_micros(7));
        let counts = |all: Vec<(&'static str, &Histogram)>| {
            all.into_iter().map(|(name, histogram)| (name, histogram.seen().count)).collect::<Vec<_>>()
        };
        assert_eq!(counts(latency.requests().collect()), [("search", 1), ("read", 0), ("write", 0), ("admin", 0)]);
        assert_eq!(counts(latency.waits().collect()), [("writes", 0), ("reads", 1), ("short", 0)]);
    }
}
