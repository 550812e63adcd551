//! Every decoder of outside bytes as a function of bytes that must neither panic nor take more memory than
//! it reserved. What can be written again must come back the same.
//!
//! ```text
//!   bytes ──► target ──► Ok or Err, never a panic          any.rs: libFuzzer      replay.rs: corpus + mutation, stable Rust
//! ```

use ramekin_base::limits::PAGE;
use ramekin_base::{Kind, PointId, Result, Size};
use ramekin_door_qdrant::decode;
use ramekin_fields::{Condition, Filter, Path, Point, Stem, Subject, parts};
use ramekin_log::format::{self as log_format, FileHeader, Header, Place, RECORD_HEADER};
use ramekin_memory::Budget;
use ramekin_pages::format as page_format;
use ramekin_storage::manifest as manifest_format;

/// A decoder under test.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "size", run: size },
    Target { name: "point_id", run: point_id },
    Target { name: "log", run: log },
    Target { name: "operation", run: operation },
    Target { name: "page_file", run: page_file },
    Target { name: "run", run: run },
    Target { name: "bolt", run: bolt },
    Target { name: "manifest", run: manifest },
    Target { name: "options", run: options },
    Target { name: "bodies", run: bodies },
    Target { name: "filter", run: filter },
    Target { name: "stems", run: stems },
    Target { name: "versions", run: ramekin_versions::decode_anything },
    Target { name: "etcd", run: ramekin_door_etcd::decode_anything },
];

pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.name == name).copied()
}

pub fn names() -> String {
    TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ")
}

fn size(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(size) = text.parse::<Size>() {
        assert!(!size.to_string().is_empty());
        assert_eq!(Size::parse(&size.0.to_string()).ok(), Some(size), "plain bytes come back");
    }
}

fn point_id(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(id) = PointId::parse(text)
    {
        assert_eq!(PointId::parse(&id.to_string()).ok(), Some(id));
        assert_eq!(PointId::from_key(&id.to_key()), Some(id));
        // Small numbers hash apart: the mix loses nothing of one word.
        let next = match id {
            PointId::Num(number) => PointId::Num(number ^ 1),
            PointId::Uuid(uuid) => PointId::Uuid(uuid ^ 1),
        };
        assert_ne!(id.hash64(), next.hash64());
    }
    if let Some(key) = bytes.first_chunk::<17>()
        && let Some(id) = PointId::from_key(key)
    {
        assert_eq!(id.to_key(), *key);
    }
}

/// Headers of log files and of records, as they stand, and with their checksums made right.
fn log(bytes: &[u8]) {
    check_file_header(bytes);
    let position = bytes.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first));
    for header in [
        FileHeader { start: position, number: 0, bytes: 0 },
        FileHeader { start: position, number: 3, bytes: 1 << 20 },
    ] {
        let mut written = header.encode();
        assert_eq!(FileHeader::decode(&written).ok(), Some(header), "a file's header comes back");
        for (at, byte) in [8, 24, 25, 28].into_iter().zip(bytes) {
            written[at] = *byte;
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&written[..12]), &written[16..]);
        written[12..16].copy_from_slice(&crc.to_le_bytes());
        check_file_header(&written);
    }
    for place in [0, 1, 2].into_iter().flat_map(|file| [0, position].map(|lsn| Place { file, lsn })) {
        if let Some(header) = Header::decode(bytes, place) {
            assert_eq!(header.encode(place)[..], bytes[..RECORD_HEADER], "a header comes back");
            assert!(header.next(0) > header.len as u64);
            let body = &bytes[RECORD_HEADER..];
            header.holds(&body[..header.len.min(body.len())]);
        }
        // A header whose checksum is right, whatever its fields say.
        if bytes.len() >= 24 {
            let len = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
            let since = u64::from(u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]));
            let request = u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
            let durable = place.lsn.saturating_sub(since);
            let made = match bytes[20] & 3 {
                0 => Header::pad(len, durable),
                1 => Header::end(len, durable),
                kind => Header { len, ..Header::record(bytes, durable, request, kind == 2) },
            };
            if let Some(read) = Header::decode(&made.encode(place), place) {
                assert!(read == made || place.file == 0);
                assert!(read.next(0) > read.len as u64);
                _ = read.holds(bytes);
            }
        }
    }
    let offset = position >> 1;
    let placed = log_format::place(offset);
    assert!(placed >= offset && placed - offset < RECORD_HEADER as u64);
}

fn check_file_header(bytes: &[u8]) {
    match FileHeader::decode(bytes) {
        Ok(header) => assert_eq!(header.encode()[..24], bytes[..24], "a file's header comes back"),
        Err(error) => assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported)),
    }
}

/// A block of a run, its index and its head, and a key in the last line; a block as it would be with its header made right too.
fn run(bytes: &[u8]) {
    let split = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    let (block, key) = bytes.split_at(split);
    ramekin_runs::decode_anything(block, key);
    let records = block.len().min(64) as u16;
    for weights in 0..3u8 {
        let mut made = vec![0, weights];
        made.extend_from_slice(&records.to_le_bytes());
        made.extend_from_slice(&if weights == 2 { records } else { 0 }.to_le_bytes());
        made.extend_from_slice(block);
        ramekin_runs::decode_anything(&made, key);
    }
}

/// A file of bbolt, with whatever stands in it.
fn bolt(bytes: &[u8]) {
    let account = Budget::new(1 << 20).root();
    ramekin_bolt::decode_anything(bytes, &account);
    assert_eq!(account.used(), 0);
}

/// The store's own records, as they stand in the log.
fn operation(bytes: &[u8]) {
    match ramekin_vectors::record_again(bytes) {
        Err(error) => assert_eq!(error.kind(), Kind::Corrupt),
        // JSON may be written in many ways, and a float has many that are no number: then the second writing settles it.
        Ok(again) => assert_eq!(ramekin_vectors::record_again(&again).ok().as_ref(), Some(&again), "a record comes back"),
    }
}

/// Footer and directory of a page file, as they stand, and with their checksums made right.
fn page_file(bytes: &[u8]) {
    _ = page_format::decode_footer(bytes, bytes.len() as u64);
    let (first, rest) = bytes.split_at(bytes.len().min(64));
    let mut page = [0; PAGE];
    page[..first.len()].copy_from_slice(first);
    let end = PAGE - 4;
    let crc = crc32c::crc32c(&page[..end]);
    page[end..].copy_from_slice(&crc.to_le_bytes());
    // The right length of the file, so that the directory is reached, then a wrong one.
    let pages = page_format::decode_footer(&page, 0).err().and_then(|error| {
        let tail = error.message().rsplit_once("speaks of ")?.1;
        tail.split(';').next()?.parse::<u64>().ok()
    });
    let Some(Ok(mut footer)) = pages.map(|bytes| page_format::decode_footer(&page, bytes)) else { return };
    assert_eq!(page_format::decode_footer(&page_format::encode_footer(&footer), footer.file_pages() * PAGE as u64).ok(), Some(footer));
    let mut directory = rest.to_vec();
    directory.resize(rest.len().next_multiple_of(PAGE), 0);
    footer.directory_crc = crc32c::crc32c(&directory);
    if let Ok((entries, meta)) = page_format::decode_directory(&footer, &directory) {
        let again = page_format::encode_directory(&entries, meta);
        assert_eq!(again[..], directory[..again.len()], "a directory comes back");
    }
}

/// The manifest, as it stands, and with a first line that fits its snapshot: in the format of now, the one before, and a
/// newer one.
fn manifest(bytes: &[u8]) {
    check_manifest(bytes);
    for version in ["001", "002", "999"] {
        let mut whole = format!("RAMEKIN-MANIFEST {version} {:012} ", bytes.len()).into_bytes();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&whole), bytes);
        whole.extend_from_slice(format!("{crc:08x}\n").as_bytes());
        whole.extend_from_slice(bytes);
        check_manifest(&whole);
    }
    if let Ok(old) = ramekin_storage::whole::decode(bytes) {
        let again = ramekin_storage::whole::encode(&old).and_then(|bytes| {
            let layout = manifest_format::decode(&bytes)?.1;
            ramekin_storage::whole::decode(&bytes[layout.body.start as usize..layout.body.end as usize])
        });
        assert!(again.is_ok_and(|again| (again.log_from, again.next_file, again.files) == (old.log_from, old.next_file, old.files)));
    }
    // Records as the bytes have them, a line each, the last one as the head.
    let records: Vec<_> = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let is_head = |record: &manifest_format::Record| matches!(record, manifest_format::Record::Head(_));
    let groups: Vec<Vec<_>> = records.split_inclusive(is_head).filter(|group| group.last().is_some_and(is_head)).map(<[_]>::to_vec).collect();
    if !groups.is_empty() {
        let read = manifest_format::encode(&groups).and_then(|bytes| manifest_format::decode(&bytes));
        let text = |records: &[manifest_format::Record]| serde_json::to_string(records).unwrap_or_default();
        assert!(read.is_ok_and(|(read, layout)| text(&read) == text(&groups.concat()) && !layout.torn), "a manifest comes back");
    }
}

fn check_manifest(bytes: &[u8]) {
    match manifest_format::decode(bytes) {
        Ok((records, layout)) => {
            assert!(layout.version < 2 || matches!(records.last(), Some(manifest_format::Record::Head(_))));
            assert!(layout.end <= bytes.len().next_multiple_of(4096) as u64);
        }
        Err(error) => assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported)),
    }
}

/// What follows the question mark of a request.
fn options(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(options) = decode::Options::read(text)
    {
        assert!(!options.timeout.is_zero());
    }
}

/// Every body that the REST door reads.
fn bodies(bytes: &[u8]) {
    fn check<T>(decoded: Result<T>) {
        if let Err(error) = decoded {
            assert!(!error.message().is_empty());
            assert_ne!(error.kind(), Kind::Bug, "{error}");
        }
    }
    check(decode::upsert(bytes));
    check(decode::update_vectors(bytes));
    check(decode::delete(bytes));
    check(decode::delete_vectors(bytes));
    check(decode::set_payload(bytes));
    check(decode::overwrite_payload(bytes));
    check(decode::delete_payload(bytes));
    check(decode::clear_payload(bytes));
    check(decode::retrieve(bytes));
    check(decode::query(bytes));
    check(decode::query_batch(bytes));
    check(decode::search(bytes));
    check(decode::search_batch(bytes));
    check(decode::scroll(bytes));
    check(decode::count(bytes));
    check(decode::facet(bytes));
    check(decode::index(bytes));
    check(decode::create_collection(bytes));
    check(decode::change_collection(bytes));
    check(decode::change_aliases(bytes));
    check(decode::memory(bytes));
    check(decode::plan(bytes));
    check(decode::operations(bytes));
}

/// Lines: the body of a count, a payload, a path. The filter looks at the payload, and the path changes it.
fn filter(bytes: &[u8]) {
    let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
    let (body, payload, path) = (lines.next(), lines.next(), lines.next());
    let Some(Ok(mut payload)) = payload.map(serde_json::from_slice::<serde_json::Map<_, _>>) else { return };
    if let Ok(decode::Count { filter, .. }) = decode::count(body.unwrap_or_default()) {
        let point = Point { id: PointId::Num(1), has_vector: &|name| name.is_empty() };
        let budget = Budget::new(64 << 20);
        let passes = |filter: &Filter| {
            let prepared = filter.prepare(None, &budget.root()).expect("there is room for words that fit a body");
            prepared.passes(&Subject { payload: &payload, point: Some(point) })
        };
        let is_in = passes(&filter);
        let not = Filter { must_not: [Condition::Filter(filter)].into(), ..Filter::default() };
        assert_ne!(passes(&not), is_in);
    }
    let text = path.and_then(|path| std::str::from_utf8(path).ok()).unwrap_or_default();
    if let Ok(path) = Path::parse(text) {
        assert_eq!(Path::parse(&path.to_string()).ok().as_ref(), Some(&path));
        let keys = payload.clone();
        parts::merge(&mut payload, Some(&path), &keys);
        parts::include(&mut payload, std::slice::from_ref(&path));
        let text = serde_json::Value::Object(payload.clone()).to_string();
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "what was set can be read again");
        parts::exclude(&mut payload, &[path]);
    }
}

/// A byte that names a language, then words of which each has a stem.
fn stems(bytes: &[u8]) {
    let Some((first, text)) = bytes.split_first() else { return };
    let Some(stem) = Stem::named(Stem::NAMES[*first as usize % Stem::COUNT]) else { return };
    String::from_utf8_lossy(text).split(' ').for_each(|word| _ = stem.of(word));
}
