//! A database file of etcd, or a snapshot of one, as something that a store takes over.
//!
//! ```text
//!   key     revision │ _ │ number │ t? ─► KeyValue     versions, and deletes
//!   lease   number ─► Lease                            meta   scheduledCompactRev, finishedCompactRev
//!   auth, authUsers, authRoles, alarm                  as the door keeps them
//! ```

use crate::alarm;
use crate::auth::{ENABLED, REVISION, ROLE, USER};
use crate::wire::etcdserverpb::AlarmMember;
use prost::Message;
use ramekin_base::{Error, Result, varint};
use ramekin_bolt::{Bucket, FileSource, Item, Reader};
use ramekin_disk::Disk;
use ramekin_memory::{Account, Reservation};
use ramekin_versions::{EachIncoming, EachOwn, Incoming, Lease, Source};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

/// Told of a key, its value and where that stands.
type Each<'a> = dyn FnMut(&[u8], &[u8], u64) -> Result<()> + 'a;

/// Versions between two calls that tell how far it has come.
const TELL_EVERY: u64 = 1_000_000;

/// An open file.
pub struct Database {
    file: Reader<FileSource>,
    account: Account,
    /// Is told how many versions were read so far.
    tell: Box<dyn FnMut(u64)>,
}

impl Database {
    pub fn open(disk: &Arc<dyn Disk>, path: &Path, account: &Account, tell: Box<dyn FnMut(u64)>) -> Result<Self> {
        let named = |error: Error| error.at(path.display());
        let file = FileSource::open(disk, path, account)?;
        let mut file = Reader::open(file, account).map_err(named)?;
        if file.bucket(KEY)?.is_none() {
            return Err(named(Error::invalid("is a bbolt file, but not one of etcd: it has no bucket 'key'")));
        }
        Ok(Self { file, account: account.clone(), tell })
    }

    /// Fails where the first `len` bytes of the file have another SHA-256.
    pub fn check_hash(&mut self, len: u64, expected: &[u8]) -> Result<()> {
        let mut hash = Sha256::new();
        self.file.pieces(0, len, &mut |piece| {
            hash.update(piece);
            Ok(())
        })?;
        match hash.finalize()[..] == *expected {
            true => Ok(()),
            false => Err(Error::corrupt("the snapshot does not have the hash that it ends with; take another one")),
        }
    }

    /// Shows each record of a bucket: its key, its value and where that stands.
    fn each(&mut self, name: &str, each: &mut Each<'_>) -> Result<()> {
        let Some(bucket) = self.file.bucket(name)? else { return Ok(()) };
        self.each_of(bucket, each)
    }

    fn each_of(&mut self, bucket: Bucket, each: &mut Each<'_>) -> Result<()> {
        let mut memory: Reservation = self.account.try_reserve(0)?;
        let (mut key_of, mut value) = (Vec::new(), Vec::new());
        let mut walk = self.file.walk(bucket)?;
        while let Some(Item { key, at, len, .. }) = walk.next()? {
            key_of.clear();
            key_of.extend_from_slice(key);
            if len > memory.bytes() {
                memory.grow(len - memory.bytes())?;
            }
            walk.value(at, len, &mut value)?;
            each(&key_of, &value, at)?;
        }
        Ok(())
    }
}

const KEY: &str = "key";

impl Source for Database {
    fn versions(&mut self, each: EachIncoming<'_>) -> Result<()> {
        let mut seen = 0;
        let mut tell = std::mem::replace(&mut self.tell, Box::new(|_| {}));
        let done = self.each(KEY, &mut |key, value, at| {
            seen += 1;
            if seen % TELL_EVERY == 0 {
                tell(seen);
            }
            each(&incoming(key, value, at).ok_or_else(|| broken("a version"))?)
        });
        self.tell = tell;
        done
    }

    fn value(&mut self, at: u64, len: u64, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.file.pieces(at, len, each)
    }

    fn leases(&mut self, each: &mut dyn FnMut(Lease) -> Result<()>) -> Result<()> {
        self.each("lease", &mut |_, value, _| {
            let (mut id, mut ttl) = (0, 0);
            fields(value, &mut |field, is| match (field, is) {
                (1, Field::Number(number)) => id = number,
                (2, Field::Number(number)) => ttl = number,
                _ => {}
            })
            .filter(|()| id != 0)
            .ok_or_else(|| broken("a lease"))?;
            each(Lease { id, ttl })
        })
    }

    fn owns(&mut self, each: &mut EachOwn<'_>) -> Result<()> {
        self.each("alarm", &mut |key, _, _| {
            let alarm = AlarmMember::decode(key).map_err(|_| broken("an alarm"))?;
            each(&alarm::record(&alarm), &[])
        })?;
        self.each("auth", &mut |key, value, _| match key {
            b"authEnabled" => each(ENABLED, value),
            b"authRevision" => each(REVISION, value),
            _ => Ok(()),
        })?;
        for (bucket, names) in [("authRoles", ROLE), ("authUsers", USER)] {
            self.each(bucket, &mut |name, value, _| each(&[names, name].concat(), value))?;
        }
        Ok(())
    }

    /// A compaction that was begun counts: nobody may read what it takes away.
    fn compacted(&mut self) -> Result<i64> {
        let mut compacted = -1;
        self.each("meta", &mut |key, value, _| {
            if key == b"scheduledCompactRev" || key == b"finishedCompactRev" {
                let (revision, ..) = revision_of(value).ok_or_else(|| broken("the compacted revision"))?;
                compacted = compacted.max(revision);
            }
            Ok(())
        })?;
        Ok(compacted)
    }
}

fn broken(what: &str) -> Error {
    Error::corrupt(format!("{what} in etcd's database does not decode; take another copy of it"))
}

/// Revision, number and whether it is a delete.
fn revision_of(key: &[u8]) -> Option<(i64, u32, bool)> {
    let (revision, rest) = key.split_first_chunk::<8>()?;
    let (number, rest) = rest.strip_prefix(b"_")?.split_first_chunk::<8>()?;
    let is_delete = match rest {
        b"" => false,
        b"t" => true,
        _ => return None,
    };
    let revision = i64::from_be_bytes(*revision);
    Some((revision, u32::try_from(i64::from_be_bytes(*number)).ok()?, is_delete)).filter(|_| revision >= 0)
}

fn incoming<'a>(key: &[u8], value: &'a [u8], at: u64) -> Option<Incoming<'a>> {
    let (revision, number, is_delete) = revision_of(key)?;
    let mut is = Incoming {
        revision,
        number,
        is_delete,
        key: &[],
        create_revision: 0,
        version: 0,
        lease: 0,
        value: &[],
        value_at: 0,
    };
    fields(value, &mut |field, found| match (field, found) {
        (1, Field::Bytes(key, _)) => is.key = key,
        (2, Field::Number(number)) => is.create_revision = number,
        (4, Field::Number(number)) => is.version = number,
        (5, Field::Bytes(value, from)) => (is.value, is.value_at) = (value, at + from as u64),
        (6, Field::Number(number)) => is.lease = number,
        _ => {}
    })?;
    Some(is)
}

/// A field of a protobuf message.
enum Field<'a> {
    Number(i64),
    /// And where they begin.
    Bytes(&'a [u8], usize),
}

/// Shows the fields of a message that has numbers and bytes alone; `None`: it is none.
fn fields<'a>(message: &'a [u8], each: &mut dyn FnMut(u64, Field<'a>)) -> Option<()> {
    let mut at = 0;
    while at < message.len() {
        let tag = varint::get(message, &mut at)?;
        let number = varint::get(message, &mut at)?;
        match tag & 7 {
            0 => each(tag >> 3, Field::Number(number as i64)),
            2 => {
                let to = at.checked_add(usize::try_from(number).ok()?)?;
                each(tag >> 3, Field::Bytes(message.get(at..to)?, at));
                at = to;
            }
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot;
    use crate::tests::{Store, door, new_store, run, store};
    use crate::wire::authpb;
    use proptest::prelude::*;
    use ramekin_base::Kind;
    use ramekin_disk::sim::{Faults, SimDisk};
    use ramekin_disk::{Aligned, Open};
    use ramekin_versions::{Command, KeyRange, KeyValue, Put, Range, Versions};
    use tokio_stream::StreamExt;

    const FILE: &str = "/data/versions/copy.db";

    /// The bytes of a snapshot, whose messages are as a client wants them.
    fn snapshot_of(store: &Store) -> Vec<u8> {
        let door = door(store);
        let mut all = Vec::new();
        run(async {
            let mut messages = snapshot::begin(&door).into_inner();
            let (mut hash, mut left) = (Vec::new(), None);
            while let Some(message) = messages.next().await {
                let message = message.unwrap();
                assert_eq!(message.version, "3.6.0");
                if left == Some(0) {
                    assert!(hash.is_empty() && message.remaining_bytes == 0);
                    hash = message.blob;
                    continue;
                }
                let len = message.blob.len() as u64;
                assert!(left.is_none_or(|left| left == message.remaining_bytes + len) && len <= 32 << 10);
                left = Some(message.remaining_bytes);
                all.extend_from_slice(&message.blob);
            }
            assert_eq!(hash, Sha256::digest(&all).to_vec());
        });
        assert!(all.len().is_multiple_of(4096));
        assert_eq!(store.account.child("walks", "").used(), 0);
        all
    }

    /// A store that has a file.
    fn beside(file: &[u8]) -> Store {
        let store = store(Arc::new(SimDisk::new(2, Faults::default())));
        let mut bytes = Aligned::new(&store.account, file.len()).unwrap();
        bytes.copy_from_slice(file);
        let written = store.disk.open(Path::new(FILE), Open::Create).unwrap();
        store.disk.write(&written, 0, &bytes).unwrap();
        store
    }

    fn import(store: &Store) -> Result<ramekin_versions::Imported> {
        let disk: Arc<dyn Disk> = store.disk.clone();
        let account = store.account.child("import", "");
        let mut database = Database::open(&disk, Path::new(FILE), &account, Box::new(|_| {}))?;
        store.versions.import(&mut database, &|| Ok(()))
    }

    fn read(versions: &Versions, revision: i64) -> (i64, Vec<KeyValue>) {
        let keys = KeyRange { key: vec![0], end: vec![0] };
        let counted = Range { keys: keys.clone(), revision, count_only: true, ..Range::default() };
        let asked = Range { keys, revision, ..Range::default() };
        (versions.range(&counted).unwrap().value.count, versions.range(&asked).unwrap().value.kvs)
    }

    /// A life with leases, long values, deletes and a compaction.
    fn lived() -> Store {
        let store = new_store();
        store.versions.grant(7, 1000).unwrap();
        store.versions.grant(1 << 40, 60).unwrap();
        for round in 0..6 {
            for key in 0..80 {
                let len = if key % 20 == 3 { 5000 + key * 700 } else { key };
                let lease = if key % 7 == 0 { 7 } else { 0 };
                let value = vec![round; len];
                let put = Put { key: format!("key{key:03}").into(), value, lease, ..Put::default() };
                store.execute(Command::Put(put));
            }
            store.put_all(&[("a\0b", "1"), ("a", "2"), ("a\0", "3")]);
            (0..20).for_each(|key| store.delete(&format!("key{:03}", key * 3)));
        }
        let door = door(&store);
        run(door.compact_to((300, None), true)).unwrap();
        store
    }

    #[test]
    fn what_a_snapshot_has_is_imported_with_its_revisions() {
        let from = lived();
        let file = snapshot_of(&from);
        let to = beside(&file);
        let done = import(&to).unwrap();
        let newest = from.versions.revision().unwrap();
        assert_eq!((done.revision, done.compacted, done.leases), (newest, 300, 2));
        for revision in (300..=newest).step_by(7).chain([newest]) {
            assert_eq!(read(&to.versions, revision), read(&from.versions, revision), "{revision}");
        }
        let events = |store: &Store| {
            let held = store.versions.events(300, (1 << 40, 1 << 30), true, &mut |_| true).unwrap();
            held.value.events
        };
        // Of the first revision nobody knows any more what was before.
        let (mut ours, mut theirs) = (events(&from), events(&to));
        assert!(ours.len() > 200);
        for events in [&mut ours, &mut theirs] {
            events.iter_mut().filter(|event| event.kv.mod_revision == 300).for_each(|event| event.prev = None);
        }
        assert_eq!(theirs, ours);
        assert_eq!(to.versions.leased(7).unwrap().value, from.versions.leased(7).unwrap().value);
        assert!(!to.versions.leased(7).unwrap().value.is_empty());
        assert_eq!(to.versions.lease_left(1 << 40).unwrap().granted, 60);
        let hash = |store: &Store, revision| {
            let hashed = run(door(store).hash_of(revision)).unwrap();
            (hashed.hash, hashed.compact_revision)
        };
        for revision in [300, newest - 50, newest] {
            assert_eq!(hash(&to, revision), hash(&from, revision));
        }
        // It is whole after a crash, and goes on like the first one.
        let to = store(Arc::new(to.disk.crash()));
        for store in [&from, &to] {
            store.delete("a");
            store.put("key001", "more");
            store.versions.revoke(7).unwrap();
            run(door(store).compact_to((newest, None), true)).unwrap();
        }
        let last = to.versions.revision().unwrap();
        assert_eq!(hash(&to, last), hash(&from, last));
        assert_eq!(snapshot_of(&to).len(), snapshot_of(&from).len());
        assert_eq!(import_twice(&to, &file).kind(), Kind::Exists);
    }

    fn import_twice(store: &Store, file: &[u8]) -> Error {
        let mut bytes = Aligned::new(&store.account, file.len()).unwrap();
        bytes.copy_from_slice(file);
        let _ = store.disk.rename(Path::new(FILE), None);
        let written = store.disk.open(Path::new(FILE), Open::Create).unwrap();
        store.disk.write(&written, 0, &bytes).unwrap();
        import(store).unwrap_err()
    }

    proptest! {
        #[test]
        fn whatever_stands_in_a_record_is_decoded_or_refused(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            value in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = incoming(&key, &value, 0);
            let _ = incoming(b"\0\0\0\0\0\0\0\x01_\0\0\0\0\0\0\0\0", &value, 0);
        }
    }

    #[test]
    fn users_roles_and_alarms_come_along() {
        let from = new_store();
        let user = authpb::User {
            name: b"root".into(),
            password: b"$2a$".into(),
            roles: vec!["root".to_owned()],
            options: None,
        };
        let role = authpb::Role { name: b"reader".into(), key_permission: vec![authpb::Permission::default()] };
        let alarm = AlarmMember { member_id: 7, alarm: 1 };
        let records = vec![
            (ENABLED.to_vec(), Some(vec![1])),
            (REVISION.to_vec(), Some(9u64.to_be_bytes().into())),
            ([USER, b"root"].concat(), Some(user.encode_to_vec())),
            ([ROLE, b"reader"].concat(), Some(role.encode_to_vec())),
            (alarm::record(&alarm), Some(Vec::new())),
        ];
        from.execute(Command::Own(records));
        let to = beside(&snapshot_of(&from));
        import(&to).unwrap();
        for names in [&b"auth/"[..], alarm::ALARMS] {
            let (ours, theirs) = (from.versions.owns(names).unwrap().value, to.versions.owns(names).unwrap().value);
            assert!(!ours.is_empty() && ours == theirs);
        }
    }

    #[test]
    fn an_empty_store_is_imported_too_and_what_is_no_database_is_refused() {
        let done = import(&beside(&snapshot_of(&new_store()))).unwrap();
        assert_eq!((done.revision, done.compacted, done.keys, done.versions), (1, -1, 0, 0));
        assert_eq!(import(&beside(&[7; 8192])).unwrap_err().kind(), Kind::Corrupt);
        let mut cut = snapshot_of(&lived());
        cut.truncate(cut.len() / 2 / 4096 * 4096);
        let to = beside(&cut);
        assert_eq!(import(&to).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!((to.versions.revision().unwrap(), read(&to.versions, 0).0), (1, 0));
    }
}
