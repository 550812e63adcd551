//! What a message takes once it is decoded, told from its bytes before that: an operation of two bytes becomes a hundred times as much.
//!
//! ```text
//!   bytes ─► Weighing: walks the fields, deep into transactions ─► what they take is booked beside the bytes, or the call ends
//!                                                                └► on a stream, where little is asked at a time: it is little, or the call ends
//! ```

use crate::booked::Bookings;
use crate::door::Door;
use crate::errors;
use crate::wire::etcdserverpb::TxnRequest;
use prost::Message;
use prost::bytes::Buf;
use std::any::TypeId;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// A field of a message: a text in a list, and the list as it grows.
const FIELD: u64 = 96;
/// An operation or a condition of a transaction, on the wire's side and on the store's, while lists grow.
pub(crate) const OPERATION: u64 = 768;
/// Messages are decoded no deeper than this.
const DEEPEST: usize = 100;
/// A message of a stream weighs no more: keys, and what is said of them.
const OF_STREAM: u64 = 512 << 10;

tokio::task_local! {
    /// The call whose message is decoded.
    pub(crate) static CALL: (Door, Bookings);
}

/// The codec of all services: messages are weighed before they are decoded.
pub(crate) struct Weighed<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Weighed<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> Codec for Weighed<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Weighing<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Weighing<U> {
        Weighing(ProstCodec::<T, U>::default().decoder())
    }
}

pub(crate) struct Weighing<U>(ProstDecoder<U>);

impl<U: Message + Default + 'static> Decoder for Weighing<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let more = match TypeId::of::<U>() == TypeId::of::<TxnRequest>() {
            true => of_txn(buf.chunk()),
            false => FIELD * fields(buf.chunk()).count() as u64,
        };
        let too_many = || Status::resource_exhausted(errors::TOO_MANY_REQUESTS);
        match CALL.try_with(|(door, bookings)| bookings.add(door, more)) {
            Ok(booked) => booked?,
            Err(_) if more + 4 * buf.remaining() as u64 > OF_STREAM => return Err(too_many()),
            Err(_) => {}
        }
        self.0.decode(buf)
    }

    fn buffer_settings(&self) -> tonic::codec::BufferSettings {
        self.0.buffer_settings()
    }
}

/// The fields of a message: their numbers, and the bytes of those that have any. Ends where the bytes are none.
fn fields(bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let tag = varint(&mut rest)?;
        let mut take = |len: u64| {
            let (taken, left) = rest.split_at_checked(usize::try_from(len).ok()?)?;
            rest = left;
            Some(taken)
        };
        let body = match tag & 7 {
            0 => {
                varint(&mut rest)?;
                &[]
            }
            1 => take(8)?,
            5 => take(4)?,
            2 => {
                let len = varint(&mut rest)?;
                let (taken, left) = rest.split_at_checked(usize::try_from(len).ok()?)?;
                rest = left;
                taken
            }
            // A group begins or ends: what is in it follows.
            3 | 4 => &[],
            _ => return None,
        };
        Some((tag >> 3, body))
    })
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 127) << shift;
        if *byte < 128 {
            return Some(number);
        }
    }
    None
}

/// What a transaction takes: each condition and operation of it, and of those in it.
pub(crate) fn of_txn(bytes: &[u8]) -> u64 {
    of_nested(bytes, 0)
}

/// No deeper than messages are decoded: what is open of it stands on the stack.
fn of_nested(txn: &[u8], depth: usize) -> u64 {
    if depth > DEEPEST {
        return 0;
    }
    let mut weight = 0;
    for (number, op) in fields(txn) {
        weight += OPERATION;
        // A transaction that comes again is joined with the one before: the lists of all of them stand.
        let inner = fields(op).filter(|(inner, _)| (2..=3).contains(&number) && *inner == 4);
        weight += inner.map(|(_, inner)| of_nested(inner, depth + 1)).sum::<u64>();
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::etcdserverpb::{PutRequest, RequestOp, request_op::Request};
    use ramekin_base::Rng;

    fn nested(levels: u64) -> TxnRequest {
        let put =
            RequestOp { request: Some(Request::RequestPut(PutRequest { key: vec![1], ..PutRequest::default() })) };
        let mut txn = TxnRequest { success: vec![put.clone(), put], ..TxnRequest::default() };
        for _ in 0..levels {
            let inner = RequestOp { request: Some(Request::RequestTxn(txn)) };
            txn = TxnRequest { failure: vec![RequestOp::default(), inner], ..TxnRequest::default() };
        }
        txn
    }

    /// A field of bytes.
    fn part(number: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2];
        prost::encode_length_delimiter(body.len(), &mut bytes).unwrap();
        [bytes, body.to_vec()].concat()
    }

    #[test]
    fn each_operation_is_weighed_however_deep_it_stands() {
        for levels in [0, 1, 7, 40] {
            let bytes = nested(levels).encode_to_vec();
            assert_eq!(of_txn(&bytes), OPERATION * 2 * (levels + 1));
        }
        assert_eq!(of_txn(&[0x12, 0].repeat(1000)), OPERATION * 1000);
        assert_eq!(of_txn(&[0x0a, 0].repeat(1000)), OPERATION * 1000);
        // One that comes again is joined with the one before, and does not take its place.
        let op = [part(4, &[0x12, 0].repeat(1000)), part(4, &[])].concat();
        let joined = part(2, &op);
        let decoded = TxnRequest::decode(&joined[..]).unwrap();
        let Some(Request::RequestTxn(inner)) = &decoded.success[0].request else {
            panic!("there is another operation")
        };
        assert_eq!((inner.success.len(), of_txn(&joined)), (1000, OPERATION * 1001));
        // Deeper than it is decoded it is not walked.
        assert!(of_txn(&nested(300).encode_to_vec()) <= OPERATION * 2 * 102);
    }

    /// What clients send, with some bytes of it changed, cut or doubled.
    #[test]
    fn whatever_is_sent_is_decoded_or_refused() {
        let json =
            br#"{"compare":[{"key":"YQ==","target":"MOD"}],"success":[{"request_put":{"key":"YQ==","value":"Yg=="}}]}"#;
        let texts = [nested(3).encode_to_vec(), nested(0).encode_to_vec(), json.to_vec()];
        let mut rng = Rng::new(2);
        for _ in 0..20_000 {
            let mut bytes = texts[rng.below(3) as usize].clone();
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                match rng.below(4) {
                    0 => bytes[at] = rng.below(256) as u8,
                    1 => bytes.insert(at, rng.below(256) as u8),
                    2 => bytes.truncate(at + 1),
                    _ => bytes.extend_from_within(at..),
                }
            }
            crate::decode_anything(&bytes);
        }
    }

    #[test]
    fn whatever_stands_there_is_walked_to_an_end() {
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..rng.below(60)).map(|_| rng.below(256) as u8).collect();
            assert!(of_txn(&bytes) <= OPERATION * bytes.len() as u64);
            assert!(fields(&bytes).count() <= bytes.len());
        }
    }
}
