//! No bytes, however strange, do more to a decoder than be refused.

#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

use proptest::prelude::*;
use ramekin_base::{Kind, Result};
use ramekin_door_qdrant::decode;

/// A decoder that only says whether it took the bytes.
type Decoder = fn(&[u8]) -> Result<()>;

macro_rules! decoders {
    ($($name:ident)*) => { &[$((stringify!($name), |body| decode::$name(body).map(|_| ()))),*] };
}

const DECODERS: &[(&str, Decoder)] = decoders! {
    upsert update_vectors delete delete_vectors set_payload overwrite_payload delete_payload clear_payload
    retrieve query query_batch search search_batch scroll count create_collection change_collection change_aliases memory plan
};

/// Bodies that are right for one decoder or another, as material.
const BODIES: &[&str] = &[
    r#"{"points":[{"id":1,"vector":[0.25,-1e-3],"payload":{"a":[1,{"b":null}]}},{"id":"550e8400-e29b-41d4-a716-446655440000","vector":{"a":[1]}}]}"#,
    r#"{"batch":{"ids":[1,2],"vectors":{"a":[[1,2],[3,4]]},"payloads":[{"x":"\u00e9\ud83d\ude00"},null]}}"#,
    r#"{"points":[1,"550e8400e29b41d4a716446655440000"],"payload":{"k":1},"keys":["a"],"vector":["a"],"filter":null}"#,
    r#"{"ids":[18446744073709551615],"with_payload":{"include":["a.b"]},"with_vector":["a"]}"#,
    r#"{"query":{"nearest":[0.1,0.2]},"using":"a","limit":5,"offset":1,"params":{"hnsw_ef":10,"quantization":{"oversampling":2.0}},"score_threshold":0.5}"#,
    r#"{"searches":[{"query":7},{"vector":{"name":"a","vector":[1]},"limit":1}]}"#,
    r#"{"offset":3,"limit":2,"filter":{"must":[]},"exact":true}"#,
    r#"{"vectors":{"a":{"size":4,"distance":"Dot","hnsw_config":{"m":4}}},"optimizers_config":{"deleted_threshold":0.5},"quantization_config":{"scalar":{"type":"int8"}},"recall":0.9}"#,
    r#"{"actions":[{"create_alias":{"collection_name":"c","alias_name":"a"}}]}"#,
    r#"{"budget":"64MiB","persist":true}"#,
    r#"{"budget":"64MiB","sample":"a.npy","collections":[{"points":9,"payload_bytes":3,"recall":0.9,"fields":{},"vectors":{"size":2,"distance":"Dot"}}]}"#,
];

fn refused_with_reason(bytes: &[u8]) {
    for (name, decoder) in DECODERS {
        if let Err(error) = decoder(bytes) {
            let right = matches!(error.kind(), Kind::Malformed | Kind::Invalid | Kind::TooLarge | Kind::Unsupported);
            assert!(right && !error.message().is_empty(), "{name}: {error:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        refused_with_reason(&bytes);
    }

    #[test]
    fn any_text_of_json_letters(text in r#"[\[\]{}",:0-9eE.\-ntrufalsidvectopyqb ]{0,120}"#) {
        refused_with_reason(text.as_bytes());
    }

    /// A right body, cut, doubled in the middle, or with some bytes changed.
    #[test]
    fn damaged_bodies(
        which in 0..BODIES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        repeat in any::<bool>(),
    ) {
        let mut bytes = BODIES[which].as_bytes().to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let at = cut.index(bytes.len());
        if repeat {
            let end = bytes[at..].to_vec();
            bytes.extend(end);
        } else {
            bytes.truncate(at + 1);
        }
        refused_with_reason(&bytes);
    }
}

#[test]
fn right_bodies_are_taken() {
    for body in BODIES {
        assert!(DECODERS.iter().any(|(_, decoder)| decoder(body.as_bytes()).is_ok()), "{body}");
        refused_with_reason(body.as_bytes());
    }
}
