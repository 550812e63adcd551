//! The operations of the log: what is written, what replay reads.
//!
//! ```text
//!   meta     0 | sequence u64 | JSON of a MetaOp
//!   upsert   1 | sequence u64 | collection u64 | points u32 | ids 17 B each
//!              | columns u32 | { name | dim u32 | present u32 each | f32 each }
//!              | payloads u32 (0 or points) | { length u32 | JSON text }
//!   delete   2 | sequence u64 | collection u64 | points u32 | ids 17 B each
//!   payload  3 | sequence u64 | collection u64 | points u32 | ids 17 B each | { length u32 | JSON text } each
//! ```
//!
//! Only results stand here: a change that depends on what was there is resolved first, a vector of a
//! point to a whole upsert, a payload key to the whole new payload, so replay never has to read
//! anything else.

use crate::api::codec::{Reader, put_bytes, put_floats, put_u32, put_u64};
use crate::api::{AliasAction, Batch, CollectionConfig, CollectionPatch, Column, FieldConfig};
use ramekin_base::{Error, PointId, Result};
use ramekin_fields::Path;
use serde::{Deserialize, Serialize};

/// Bytes of one upsert record: a payload that is read back from the log costs a read of its record.
pub(crate) const RECORD_BYTES: usize = 32 << 10;

/// Number of a collection, never used twice in a store; names can change hands, numbers cannot.
pub(crate) type CollectionId = u64;

/// A change of names and configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum MetaOp {
    Create {
        number: CollectionId,
        name: String,
        config: CollectionConfig,
    },
    Drop {
        number: CollectionId,
    },
    Patch {
        number: CollectionId,
        patch: CollectionPatch,
    },
    Aliases {
        actions: Vec<AliasAction>,
    },
    /// An index of a field, or that it goes.
    Index {
        number: CollectionId,
        path: Path,
        index: Option<FieldConfig>,
    },
}

impl MetaOp {
    /// Whether it frees space, so that a full disk is no reason to refuse it.
    pub(crate) fn frees(&self) -> bool {
        matches!(self, Self::Drop { .. } | Self::Index { index: None, .. })
    }
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Op {
    Meta(MetaOp),
    Upsert {
        collection: CollectionId,
        batch: Batch,
        payloads_at: Vec<u32>,
    },
    Delete {
        collection: CollectionId,
        ids: Vec<PointId>,
    },
    /// The payloads of points become these texts: where each starts in the record, and its bytes.
    Payloads {
        collection: CollectionId,
        ids: Vec<PointId>,
        texts: Vec<(u32, u32)>,
    },
}

/// Bytes of a record about points besides the points: kind, number, collection, how many.
pub(crate) const HEAD_BYTES: usize = 1 + 8 + 8 + 4;
/// The same of an upsert, besides 12 bytes and the name of each column.
pub(crate) const UPSERT_HEAD_BYTES: usize = HEAD_BYTES + 4 + 4;

const META: u8 = 0;
const UPSERT: u8 = 1;
const DELETE: u8 = 2;
const PAYLOADS: u8 = 3;

pub(crate) fn encode_meta(out: &mut Vec<u8>, seqno: u64, op: &MetaOp) -> Result<()> {
    let json =
        serde_json::to_vec(op).map_err(|error| Error::bug(format!("a meta operation does not encode: {error}")))?;
    out.push(META);
    put_u64(out, seqno);
    put_bytes(out, &json);
    Ok(())
}

pub(crate) fn encode_delete(out: &mut Vec<u8>, seqno: u64, collection: CollectionId, ids: &[PointId]) {
    put_head(out, DELETE, seqno, collection, ids.iter());
}

/// Encodes new payloads. Returns where each text starts in the record.
pub(crate) fn encode_payloads(
    out: &mut Vec<u8>,
    seqno: u64,
    collection: CollectionId,
    points: &[(PointId, Box<str>)],
) -> Vec<u32> {
    let start = out.len();
    put_head(out, PAYLOADS, seqno, collection, points.iter().map(|(id, _)| id));
    points.iter().map(|(_, text)| put_text(out, start, text)).collect()
}

/// Encodes the points `range` of a batch. Returns where each payload's text starts in the record.
pub(crate) fn encode_upsert(
    out: &mut Vec<u8>,
    seqno: u64,
    collection: CollectionId,
    batch: &Batch,
    range: std::ops::Range<usize>,
) -> Vec<u32> {
    let start = out.len();
    put_head(out, UPSERT, seqno, collection, batch.ids[range.clone()].iter());
    put_u32(out, batch.columns.len() as u32);
    for column in &batch.columns {
        let first = column.present.partition_point(|point| (*point as usize) < range.start);
        let last = column.present.partition_point(|point| (*point as usize) < range.end);
        put_bytes(out, column.name.as_bytes());
        put_u32(out, column.dim as u32);
        put_u32(out, (last - first) as u32);
        column.present[first..last].iter().for_each(|point| put_u32(out, point - range.start as u32));
        put_floats(out, &column.data[first * column.dim..last * column.dim]);
    }
    let payloads = if batch.payloads.is_empty() { &[] } else { &batch.payloads[range] };
    put_u32(out, payloads.len() as u32);
    payloads.iter().map(|text| put_text(out, start, text)).collect()
}

/// What a record about points begins with.
fn put_head<'a>(
    out: &mut Vec<u8>,
    kind: u8,
    seqno: u64,
    collection: CollectionId,
    ids: impl ExactSizeIterator<Item = &'a PointId>,
) {
    out.push(kind);
    put_u64(out, seqno);
    put_u64(out, collection);
    put_u32(out, ids.len() as u32);
    ids.for_each(|id| out.extend_from_slice(&id.to_key()));
}

/// Adds a text after its length. Returns where it starts in the record that began at `start`.
fn put_text(out: &mut Vec<u8>, start: usize, text: &str) -> u32 {
    put_bytes(out, text.as_bytes());
    (out.len() - start - text.len()) as u32
}

fn decode_ids(reader: &mut Reader<'_>) -> Result<Vec<PointId>> {
    let count = reader.count(17)?;
    (0..count).map(|_| reader.id()).collect()
}

fn decode_column(reader: &mut Reader<'_>, points: usize) -> Result<Column> {
    let name = reader.text()?.to_owned();
    let dim = reader.u32()? as usize;
    let count = reader.count(4)?;
    let present: Vec<u32> = (0..count).map(|_| reader.u32()).collect::<Result<_>>()?;
    let ascending = present.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || present.last().is_some_and(|last| *last as usize >= points) || dim == 0 {
        return Err(Error::corrupt("record holds a column that does not fit its points"));
    }
    let mut data = Vec::new();
    reader.floats(count.saturating_mul(dim), &mut data)?;
    Ok(Column { name, dim, present, data })
}

/// Reads one record: its operation's sequence number and the operation.
pub(crate) fn decode(record: &[u8]) -> Result<(u64, Op)> {
    let mut reader = Reader::new(record);
    let kind = reader.u8()?;
    let seqno = reader.u64()?;
    let op = match kind {
        META => {
            let json = reader.bytes()?;
            Op::Meta(serde_json::from_slice(json).map_err(|error| Error::corrupt(format!("meta record: {error}")))?)
        }
        UPSERT => {
            let collection = reader.u64()?;
            let ids = decode_ids(&mut reader)?;
            let columns = reader.count(12)?;
            let columns = (0..columns).map(|_| decode_column(&mut reader, ids.len())).collect::<Result<_>>()?;
            let count = reader.count(4)?;
            if count != 0 && count != ids.len() {
                return Err(Error::corrupt("record holds payloads that do not fit its points"));
            }
            let (mut payloads, mut payloads_at) = (Vec::with_capacity(count), Vec::with_capacity(count));
            for _ in 0..count {
                let at = reader.at() + 4;
                payloads.push(reader.text()?.into());
                payloads_at.push(at as u32);
            }
            Op::Upsert { collection, batch: Batch { ids, columns, payloads }, payloads_at }
        }
        DELETE => Op::Delete { collection: reader.u64()?, ids: decode_ids(&mut reader)? },
        PAYLOADS => {
            let collection = reader.u64()?;
            let ids = decode_ids(&mut reader)?;
            let text = |_: &PointId| {
                let at = reader.at() + 4;
                Ok((at as u32, reader.text()?.len() as u32))
            };
            let texts = ids.iter().map(text).collect::<Result<_>>()?;
            Op::Payloads { collection, ids, texts }
        }
        other => return Err(Error::corrupt(format!("record of unknown kind {other}"))),
    };
    Ok((seqno, op))
}

/// Reads a record of the log as replay would and writes it anew, for fuzz targets.
pub fn record_again(record: &[u8]) -> Result<Vec<u8>> {
    let (seqno, op) = decode(record)?;
    let mut out = Vec::with_capacity(record.len());
    match op {
        Op::Meta(op) => encode_meta(&mut out, seqno, &op)?,
        Op::Upsert { collection, batch, .. } => {
            _ = encode_upsert(&mut out, seqno, collection, &batch, 0..batch.ids.len());
        }
        Op::Delete { collection, ids } => encode_delete(&mut out, seqno, collection, &ids),
        Op::Payloads { collection, ids, texts } => {
            let text = |(at, len): &(u32, u32)| {
                String::from_utf8_lossy(&record[*at as usize..(at + len) as usize]).into_owned().into()
            };
            let points: Vec<_> = ids.into_iter().zip(texts.iter().map(text)).collect();
            _ = encode_payloads(&mut out, seqno, collection, &points);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch() -> Batch {
        Batch {
            ids: vec![PointId::Num(3), PointId::Uuid(9), PointId::Num(4)],
            columns: vec![
                Column { name: String::new(), dim: 2, present: vec![0, 1, 2], data: vec![1., 2., 3., 4., 5., 6.] },
                Column { name: "b".into(), dim: 1, present: vec![1], data: vec![9.] },
            ],
            payloads: vec!["{}".into(), "".into(), "{\"a\":1}".into()],
        }
    }

    #[test]
    fn room_for_a_record_is_known_before_it_is_written() {
        let batch = batch();
        let mut record = Vec::new();
        encode_upsert(&mut record, 5, 7, &batch, 0..3);
        let names: usize = batch.columns.iter().map(|column| column.name.len() + 12).sum();
        let vectors: usize = batch.columns.iter().map(|column| column.dim * 4 + 4).sum();
        let payloads: usize = batch.payloads.iter().map(|text| text.len() + 4).sum();
        assert!(record.len() <= UPSERT_HEAD_BYTES + names + 3 * (17 + vectors) + payloads);
        record.clear();
        encode_delete(&mut record, 5, 7, &batch.ids);
        assert_eq!(record.len(), HEAD_BYTES + 3 * 17);
    }

    #[test]
    fn an_upsert_comes_back_in_parts() {
        let batch = batch();
        let mut record = Vec::new();
        let at = encode_upsert(&mut record, 5, 7, &batch, 1..3);
        let (seqno, op) = decode(&record).unwrap();
        let Op::Upsert { collection, batch: read, payloads_at } = op else { panic!("kind") };
        assert_eq!((seqno, collection, payloads_at), (5, 7, at.clone()));
        assert_eq!(read.ids, batch.ids[1..]);
        assert_eq!(read.columns[0].data, [3., 4., 5., 6.]);
        assert_eq!((&read.columns[1].present[..], &read.columns[1].data[..]), (&[0][..], &[9.][..]));
        assert_eq!(&record[at[1] as usize..at[1] as usize + 7], b"{\"a\":1}");
    }

    #[test]
    fn new_payloads_come_back() {
        let points = [(PointId::Num(3), "{\"a\":1}".into()), (PointId::Uuid(9), "".into())];
        let mut record = Vec::new();
        let at = encode_payloads(&mut record, 5, 7, &points);
        let (seqno, op) = decode(&record).unwrap();
        let Op::Payloads { collection, ids, texts } = op else { panic!("kind") };
        assert_eq!((seqno, collection, &ids[..]), (5, 7, &[PointId::Num(3), PointId::Uuid(9)][..]));
        assert_eq!(texts, [(at[0], 7), (at[1], 0)]);
        assert_eq!(&record[at[0] as usize..][..7], b"{\"a\":1}");
        // A record that ends before its last text's length does is broken.
        assert_eq!(decode(&record[..record.len() - 1]).unwrap_err().kind(), ramekin_base::Kind::Corrupt);
        // A text that is no text, and more ids than the record holds.
        record[at[0] as usize] = 0xFF;
        assert_eq!(decode(&record).unwrap_err().kind(), ramekin_base::Kind::Corrupt);
        record[17..21].fill(0xFF);
        assert_eq!(decode(&record).unwrap_err().kind(), ramekin_base::Kind::Corrupt);
    }

    proptest! {
        #[test]
        fn broken_records_are_errors(bytes in prop::collection::vec(any::<u8>(), 0..200), flip in 0usize..200, bit in 0u8..8) {
            let _ = decode(&bytes);
            let mut record = Vec::new();
            encode_upsert(&mut record, 5, 7, &batch(), 0..3);
            let at = flip % record.len();
            record[at] ^= 1 << bit;
            let _ = decode(&record);
            let _ = decode(&record[..at]);
            let mut record = Vec::new();
            encode_payloads(&mut record, 5, 7, &[(PointId::Num(3), "{}".into()), (PointId::Uuid(9), "".into())]);
            let at = flip % record.len();
            record[at] ^= 1 << bit;
            let _ = decode(&record);
            prop_assert!(decode(&record[..at]).is_err());
        }
    }
}
