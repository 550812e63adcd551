//! All that a store holds, read as clients would, and whether that is what the model says.

use super::{Model, State};
use ramekin_base::{Error, Result};
use ramekin_versions::*;
use std::collections::BTreeMap;

/// Revisions and bytes that a look at all events takes at a time.
const WINDOW: (i64, u64) = (50, 32 << 10);

/// All that a store holds.
pub struct Found {
    pub revision: i64,
    pub compacted: i64,
    pub state: State,
    /// From the compacted revision on, each with the version before.
    pub events: Vec<Event>,
    /// Of each lease what it was granted for.
    pub leases: BTreeMap<i64, i64>,
    pub own: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Reads everything.
pub fn read_all(versions: &Versions) -> Result<Found> {
    let all = KeyRange { key: vec![0], end: vec![0] };
    let range = versions.range(&Range { keys: all, ..Range::default() })?;
    let (revision, compacted) = (versions.revision()?, versions.compacted()?);
    if range.value.count != range.value.kvs.len() as i64 || range.value.revision != revision {
        return Err(Error::bug("the count of all keys is not how many there are"));
    }
    let state: State = range.value.kvs.iter().map(|kv| (kv.key.clone(), kv.clone())).collect();
    let (mut next, mut events) = (compacted.max(1), Vec::new());
    while next <= revision {
        let held = versions.events(next, WINDOW, true, &mut |_| true)?;
        if held.value.next <= next {
            return Err(Error::bug("a read of events does not come on"));
        }
        next = held.value.next;
        events.extend(held.value.events);
    }
    let mut leases = BTreeMap::new();
    for id in versions.leases() {
        let granted = versions.lease_left(id).map_or(0, |left| left.granted);
        leases.insert(id, granted);
        let keys: Vec<&Vec<u8>> = state.values().filter(|kv| kv.lease == id).map(|kv| &kv.key).collect();
        if versions.leased(id)?.value.iter().collect::<Vec<_>>() != keys {
            return Err(Error::bug("the keys of a lease are not those that name it"));
        }
    }
    let own = versions.owns(b"")?.value.into_iter().collect();
    Ok(Found { revision, compacted, state, events, leases, own })
}

/// The first difference in words.
pub fn difference(wanted: &Model, found: &Found) -> Option<String> {
    if wanted.revision() != found.revision {
        return Some(format!("the revision is {}, it was {}", found.revision, wanted.revision()));
    }
    if wanted.compacted != found.compacted {
        return Some(format!("compacted is {}, it was {}", found.compacted, wanted.compacted));
    }
    for (key, kv) in wanted.now() {
        let held = found.state.get(key);
        if held != Some(kv) {
            return Some(format!("a key is {held:?}, it was {kv:?}"));
        }
    }
    if let Some(kv) = found.state.values().find(|kv| !wanted.now().contains_key(&kv.key)) {
        return Some(format!("a key is there that should not be: {kv:?}"));
    }
    let all = KeyRange { key: vec![0], end: vec![0] };
    let seen = wanted.seen(wanted.compacted.max(1), &all, true);
    if seen.len() != found.events.len() {
        return Some(format!("there are {} events, there were {}", found.events.len(), seen.len()));
    }
    if let Some((wanted, found)) = seen.iter().zip(&found.events).find(|(wanted, found)| wanted != found) {
        return Some(format!("an event is {found:?}, it was {wanted:?}"));
    }
    if wanted.leases != found.leases {
        return Some(format!("leases are {:?}, they were {:?}", found.leases, wanted.leases));
    }
    if wanted.own != found.own {
        return Some(format!("values of the server's are {:?}, they were {:?}", found.own, wanted.own));
    }
    None
}
