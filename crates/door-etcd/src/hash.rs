//! Hashes of what is stored: CRC-32C over records as etcd's database file has them.
//!
//! ```text
//!   HashKV(r)    remembered? ─► that one        else a walk over the versions up to r
//!   Compact(r)   a view of before ─► compacted ─► HashKV(r) of that view is remembered: the newest ten
//! ```
//!
//! What a compaction removes changes the hash of its own revision, so members that compacted and members that did not could not be
//! compared. It is computed as it was before, in the background; on a large store only if anybody has ever asked for a hash, since
//! it reads everything once.

use crate::auth::Caller;
use crate::door::Door;
use crate::errors::status;
use crate::schema::{self, Buckets, Records};
use crate::wire::etcdserverpb as pb;
use parking_lot::Mutex;
use ramekin_base::Result;
use ramekin_bolt::Pieces;
use ramekin_versions::{Command, ReadView, Versions, Wanted};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;
use tonic::Status;

/// Hashes of compactions that are remembered.
const REMEMBERED: usize = 10;
/// Of a store up to this size every compaction is hashed.
const SMALL_STORE: u64 = 64 << 20;
/// Compactions whose hash is computed, or waits for that; others have none.
const COMPACTIONS: usize = 2;

/// The hash of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hashed {
    revision: i64,
    hash: u32,
    compacted: i64,
}

/// What is known of hashes.
pub(crate) struct Hashes {
    remembered: Mutex<Vec<Hashed>>,
    /// Somebody has asked for one.
    is_asked: AtomicBool,
    under_way: Arc<Semaphore>,
    /// One compaction at a time: a view of before one has no other in it.
    compacting: tokio::sync::Mutex<()>,
}

impl Default for Hashes {
    fn default() -> Self {
        let under_way = Arc::new(Semaphore::new(COMPACTIONS));
        let compacting = tokio::sync::Mutex::new(());
        Self { remembered: Mutex::default(), is_asked: AtomicBool::new(false), under_way, compacting }
    }
}

impl Hashes {
    fn remember(&self, hashed: Hashed) {
        let mut remembered = self.remembered.lock();
        remembered.push(hashed);
        remembered.sort_unstable_by_key(|hashed| hashed.revision);
        let more = remembered.len().saturating_sub(REMEMBERED);
        remembered.drain(..more);
    }

    fn of(&self, revision: i64) -> Option<Hashed> {
        self.remembered.lock().iter().find(|hashed| hashed.revision == revision).copied()
    }
}

/// A sum that runs.
struct Sum(u32);

impl Records for Sum {
    fn record(&mut self, key: &[u8], _: u64, pieces: Pieces<'_>) -> Result<()> {
        self.0 = crc32c::crc32c_append(self.0, key);
        pieces(&mut |piece| {
            self.0 = crc32c::crc32c_append(self.0, piece);
            Ok(())
        })
    }
}

/// The sum over all buckets but for what each member has of its own.
struct SumOfAll(u32);

struct Shared<'s>(&'s mut Sum);

impl Records for Shared<'_> {
    fn record(&mut self, key: &[u8], len: u64, pieces: Pieces<'_>) -> Result<()> {
        match key {
            b"consistent_index" | b"term" | b"storageVersion" => Ok(()),
            _ => self.0.record(key, len, pieces),
        }
    }
}

impl Buckets for SumOfAll {
    fn bucket(&mut self, name: &str, fill: &mut dyn FnMut(&mut dyn Records) -> Result<()>) -> Result<()> {
        let mut sum = Sum(crc32c::crc32c_append(self.0, name.as_bytes()));
        match name {
            "meta" => fill(&mut Shared(&mut sum))?,
            _ => fill(&mut sum)?,
        }
        self.0 = sum.0;
        Ok(())
    }
}

fn of_view(versions: &Versions, view: &ReadView, revision: i64, check: &dyn Fn() -> Result<()>) -> Result<Hashed> {
    let mut sum = Sum(crc32c::crc32c(b"key"));
    let mut each = |stored: &ramekin_versions::Stored<'_>| schema::record_of(stored, &mut sum);
    let (compacted, revision) = versions.stored(view, Wanted::Hash(revision), check, &mut each)?;
    Ok(Hashed { revision, hash: sum.0, compacted })
}

impl Door {
    pub(crate) async fn hash_of(&self, revision: i64) -> std::result::Result<pb::HashKvResponse, Status> {
        self.inner.hashes.is_asked.store(true, Ordering::Relaxed);
        let own = self.clone();
        let hashed = match self.inner.hashes.of(revision) {
            Some(hashed) => hashed,
            None => {
                self.walk(move |versions, check| match own.inner.hashes.of(revision) {
                    // A compaction that was before had it computed.
                    Some(hashed) => Ok(hashed),
                    None => of_view(versions, &versions.view(), revision, check),
                })
                .await?
            }
        };
        let Hashed { revision, hash, compacted } = hashed;
        let newest = self.versions().revision().map_err(|error| status(&error))?;
        let header = self.header(newest);
        Ok(pb::HashKvResponse { header, hash, compact_revision: compacted, hash_revision: revision })
    }

    /// The hash of everything.
    pub(crate) async fn hash_of_all(&self) -> std::result::Result<pb::HashResponse, Status> {
        let own = self.clone();
        let done = self.walk(move |versions, check| {
            let (view, mut sum) = (versions.view(), SumOfAll(0));
            schema::each_bucket(&own, &view, check, &mut sum)?;
            Ok((sum.0, versions.revision()?))
        });
        let (hash, revision) = done.await?;
        Ok(pb::HashResponse { header: self.header(revision), hash })
    }

    /// Compacts up to a revision. The newest revision; `physical`: what nobody can read any more is gone when it returns.
    pub(crate) async fn compact_to(
        &self,
        (revision, caller): (i64, Option<&Caller>),
        physical: bool,
    ) -> std::result::Result<i64, Status> {
        let hashes = &self.inner.hashes;
        let is_hashed = hashes.is_asked.load(Ordering::Relaxed) || self.store_bytes() <= SMALL_STORE;
        let (newest, before) = {
            let _one = hashes.compacting.lock().await;
            let before = is_hashed.then(|| self.versions().view());
            let command = Command::Compact(revision);
            let done = match caller {
                Some(caller) => self.command(caller, command, Vec::new()).await?,
                None => self.own_command(command).await?,
            };
            (done.value.revision(), before)
        };
        let hashed = before.and_then(|before| self.hash_before(before, revision));
        if physical {
            self.block(ramekin_base::Lane::Writes, |versions| {
                while versions.purge()? {}
                Ok(())
            })
            .await?;
            if let Some(hashed) = hashed {
                // Without it the compaction is as good.
                _ = hashed.await;
            }
        }
        Ok(newest)
    }

    /// Has the hash of a revision computed as it was before its compaction. `None`: too many are.
    fn hash_before(&self, before: ReadView, revision: i64) -> Option<tokio::task::JoinHandle<()>> {
        let turn = self.inner.hashes.under_way.clone().try_acquire_owned().ok()?;
        let own = self.clone();
        Some(tokio::spawn(async move {
            let _turn = turn;
            match own.walk(move |versions, check| of_view(versions, &before, revision, check)).await {
                Ok(hashed) => own.inner.hashes.remember(hashed),
                Err(error) => tracing::debug!("the hash of compaction {revision} is not known: {error}"),
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{door, new_store, run};

    fn hash(door: &Door, revision: i64) -> (u32, i64, i64) {
        let hashed = run(door.hash_of(revision)).unwrap();
        (hashed.hash, hashed.compact_revision, hashed.hash_revision)
    }

    #[test]
    fn hashes_are_those_of_etcd() {
        let store = new_store();
        let door = door(&store);
        assert_eq!(hash(&door, 0), (1_084_519_789, -1, 1));
        store.put("a", "1");
        assert_eq!(hash(&door, 0), (2_587_454_935, -1, 2));
        store.put("a", "2");
        store.delete("a");
        store.put_all(&[("b", "x"), ("c", "y")]);
        assert_eq!(hash(&door, 0), (4_096_268_493, -1, 5));
        store.put("k1", "1");
        store.put("k2", "1");
        store.put("k1", "2");
        run(door.compact_to((7, None), true)).unwrap();
        assert_eq!(hash(&door, 8), (3_974_957_399, 7, 8));
        assert_eq!(hash(&door, 7), (3_678_572_252, -1, 7));
        let text = |revision| run(door.hash_of(revision)).unwrap_err().message().to_owned();
        assert_eq!(text(6), ramekin_versions::errors::COMPACTED);
        assert_eq!(text(9), ramekin_versions::errors::FUTURE_REVISION);
    }

    #[test]
    fn a_compaction_does_not_change_the_hash_of_its_revision_and_ten_are_remembered() {
        let store = new_store();
        let door = door(&store);
        let mut known = Vec::new();
        for round in 0..14 {
            store.put(&format!("key{}", round % 5), &"v".repeat(round * 500));
            store.delete(&format!("key{}", (round + 2) % 5));
            let revision = store.versions.revision().unwrap();
            let before = hash(&door, 0);
            assert_eq!(before, hash(&door, revision));
            run(door.compact_to((revision, None), true)).unwrap();
            known.push((revision, before));
            for (revision, before) in known.iter().rev().take(REMEMBERED) {
                assert_eq!(hash(&door, *revision), *before);
            }
        }
        assert!(run(door.hash_of(known[0].0)).is_err());
        assert!(store.account.child("walks", "").used() == 0);
    }

    #[test]
    fn the_hash_of_all_changes_with_any_of_it() {
        let store = new_store();
        let door = door(&store);
        let empty = run(door.hash_of_all()).unwrap().hash;
        store.versions.grant(7, 100).unwrap();
        let leased = run(door.hash_of_all()).unwrap().hash;
        store.put("a", "1");
        let more = run(door.hash_of_all()).unwrap().hash;
        assert!(empty != leased && leased != more);
    }
}
