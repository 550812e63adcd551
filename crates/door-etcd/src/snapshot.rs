//! A snapshot: the store at one moment as the database file that etcd would have, in pieces, and their SHA-256.
//!
//! ```text
//!   a view ─► buckets ─► pages in a temporary file; the metas at the end ─► the view is let go of
//!                          metas, then the file ─► blobs of 32 KiB, each when the client has taken the one before ─► the hash
//! ```
//!
//! The file is written at the disk's speed and read at the client's: a client that is slow, or stands still, holds a file and little
//! memory, but no view, for which writes would have to wait.

use crate::door::Door;
use crate::schema::{self, Buckets, Records, STORAGE_VERSION};
use crate::wire::etcdserverpb as pb;
use ramekin_base::{Lane, Result};
use ramekin_bolt::{BucketWriter, Pieces, Writer};
use ramekin_disk::SpillReader;
use ramekin_memory::Reservation;
use ramekin_versions::Versions;
use sha2::{Digest, Sha256};
use std::pin::Pin;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

/// Bytes of a blob.
const BLOB: usize = 32 << 10;
/// The buffer of the temporary file.
const BUFFER: usize = 128 << 10;
/// Blobs of one client at a time: one that is read, one that waits, those that are sent.
const BLOBS: u64 = 4;

pub(crate) type Snapshots = Pin<Box<dyn Stream<Item = Result<pb::SnapshotResponse, Status>> + Send>>;

/// What is left to be sent.
struct Blobs {
    metas: Vec<u8>,
    reader: SpillReader<'static>,
    left: u64,
    hash: Sha256,
    _memory: Reservation,
}

impl Blobs {
    /// The next one; after the last comes the hash of all.
    fn next(&mut self) -> Result<pb::SnapshotResponse> {
        let mut blob = std::mem::take(&mut self.metas);
        if self.left > 0 {
            let from = blob.len();
            blob.resize((self.left as usize).min(BLOB), 0);
            self.reader.read_exact(&mut blob[from..])?;
            self.hash.update(&blob);
            self.left -= blob.len() as u64;
        } else {
            blob = std::mem::take(&mut self.hash).finalize().to_vec();
        }
        let version = STORAGE_VERSION.to_owned();
        Ok(pb::SnapshotResponse { header: None, remaining_bytes: self.left, blob, version })
    }
}

impl Records for BucketWriter<'_, '_> {
    fn record(&mut self, key: &[u8], len: u64, pieces: Pieces<'_>) -> Result<()> {
        self.push_pieces(key, len, pieces)
    }
}

impl Buckets for Writer<'_> {
    fn bucket(&mut self, name: &str, fill: &mut dyn FnMut(&mut dyn Records) -> Result<()>) -> Result<()> {
        let mut bucket = Writer::bucket(self, name)?;
        fill(&mut bucket)?;
        bucket.end()
    }
}

/// Writes the file.
fn write(door: &Door, versions: &Versions, check: &dyn Fn() -> Result<()>) -> Result<Blobs> {
    let (mut file, account) = versions.spool(BUFFER)?;
    let (metas, left) = {
        let view = versions.view();
        let mut out = |bytes: &[u8]| file.append(bytes);
        let mut writer = Writer::new(&account, &mut out)?;
        schema::each_bucket(door, &view, check, &mut writer)?;
        writer.finish()?
    };
    file.finish()?;
    let reader = file.into_reader(&account, BUFFER)?;
    Ok(Blobs { metas, reader, left, hash: Sha256::new(), _memory: account.try_reserve(BLOBS * BLOB as u64)? })
}

pub(crate) fn begin(door: &Door) -> Response<Snapshots> {
    let (send, sent) = mpsc::channel(1);
    tokio::spawn(run(door.clone(), send));
    Response::new(Box::pin(ReceiverStream::new(sent)))
}

async fn run(door: Door, send: mpsc::Sender<Result<pb::SnapshotResponse, Status>>) {
    let own = door.clone();
    let written = tokio::select! {
        written = door.walk(move |versions, check| write(&own, versions, check)) => written,
        () = send.closed() => return,
    };
    let mut blobs = match written {
        Ok(blobs) => blobs,
        Err(status) => return drop(send.send(Err(status)).await),
    };
    // Where the client is gone there is nobody to tell.
    while let Ok(place) = send.reserve().await {
        let is_last = blobs.left == 0;
        let read = door.block(Lane::Reads, move |_| blobs.next().map(|blob| (blob, blobs))).await;
        match read {
            Ok((blob, rest)) => {
                place.send(Ok(blob));
                blobs = rest;
            }
            Err(status) => return place.send(Err(status)),
        }
        if is_last {
            return;
        }
    }
}
