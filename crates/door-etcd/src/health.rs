//! Whether the door is well: `/health` for who watches it, `/livez` and `/readyz` with their checks, one by one.
//!
//! ```text
//!   /livez   serializable_read                          alive: it reads
//!   /readyz  data_corruption, serializable_read, linearizable_read, non_learner
//!            ?verbose: a line each · ?exclude=NAME: not that one · /readyz/NAME: that one alone
//! ```

use crate::door::Door;
use crate::http::{Answer, PLAIN, text};
use crate::wire::etcdserverpb as pb;
use http::StatusCode;
use std::sync::atomic::{AtomicU64, Ordering};

/// Answers to `/health`.
#[derive(Default)]
pub(crate) struct Healths {
    pub(crate) well: AtomicU64,
    pub(crate) unwell: AtomicU64,
}

const LIVE: &[&str] = &["serializable_read"];
const READY: &[&str] = &["data_corruption", "serializable_read", "linearizable_read", "non_learner"];

/// The values of a name in the query of an address.
fn values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(move |(key, _)| *key == name).map(|(_, value)| value)
}

impl Door {
    async fn reads(&self) -> Result<(), String> {
        self.read(true, |versions| versions.revision()).await.map(drop).map_err(|status| status.message().to_owned())
    }

    async fn check(&self, name: &str) -> Result<(), String> {
        match name {
            "data_corruption" => {
                match self.inner.alarms.load().iter().any(|alarm| alarm.alarm() == pb::AlarmType::Corrupt) {
                    true => Err("alarm activated: CORRUPT".to_owned()),
                    false => Ok(()),
                }
            }
            "non_learner" => Ok(()),
            _ => self.reads().await,
        }
    }

    /// Why the door is not well; `None`: it is.
    async fn unwell(&self, query: &str) -> Option<String> {
        let is_excluded =
            |alarm: &pb::AlarmMember| values(query, "exclude").any(|it| it == alarm.alarm().as_str_name());
        if let Some(alarm) = self.inner.alarms.load().iter().find(|alarm| !is_excluded(alarm)) {
            return Some(format!("ALARM {}", alarm.alarm().as_str_name()));
        }
        // A single member always leads, so that a read is the same with `serializable` and without.
        self.reads().await.err().map(|error| format!("RANGE ERROR:{error}"))
    }
}

/// `/health`.
pub(crate) async fn health(door: &Door, query: &str) -> Answer {
    let (counter, status, reason) = match door.unwell(query).await {
        None => (&door.inner.healths.well, StatusCode::OK, String::new()),
        Some(reason) => (&door.inner.healths.unwell, StatusCode::SERVICE_UNAVAILABLE, reason),
    };
    counter.fetch_add(1, Ordering::Relaxed);
    let is_well = if status == StatusCode::OK { "true" } else { "false" };
    let body = serde_json::json!({"health": is_well, "reason": reason}).to_string();
    text(status, "application/json", body)
}

/// `/livez`, `/readyz` and what stands below them; `None`: nothing stands there.
pub(crate) async fn checks(door: &Door, path: &str, query: &str) -> Option<Answer> {
    let (head, one) = path.strip_prefix('/')?.split_once('/').unwrap_or((path.get(1..)?, ""));
    let all = match head {
        "livez" => LIVE,
        "readyz" => READY,
        _ => return None,
    };
    let names: Vec<&str> = all.iter().copied().filter(|name| one.is_empty() || *name == one).collect();
    if names.is_empty() {
        return None;
    }
    let (mut lines, mut has_failed) = (String::new(), false);
    for name in names {
        if values(query, "exclude").any(|it| it == name) {
            lines += &format!("[+]{name} excluded: ok\n");
            continue;
        }
        match door.check(name).await {
            Ok(()) => lines += &format!("[+]{name} ok\n"),
            Err(why) => {
                has_failed = true;
                lines += &format!("[-]{name} failed: {why}\n");
            }
        }
    }
    let is_verbose = values(query, "verbose").next().is_some();
    Some(match (has_failed, is_verbose) {
        (true, _) => text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{lines}{path} check failed\n")),
        (false, true) => text(StatusCode::OK, PLAIN, format!("{lines}{path} check passed\n")),
        (false, false) => text(StatusCode::OK, PLAIN, "ok\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::values;

    #[test]
    fn a_query_has_values_by_name() {
        let query = "exclude=NOSPACE&verbose&exclude=CORRUPT";
        assert_eq!(values(query, "exclude").collect::<Vec<_>>(), ["NOSPACE", "CORRUPT"]);
        assert_eq!(values(query, "verbose").collect::<Vec<_>>(), [""]);
        assert_eq!(values("", "verbose").next(), None);
    }
}
