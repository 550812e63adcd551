//! Every decoder of outside bytes as a function of bytes that must neither panic nor take more memory than
//! it reserved. What can be written again must come back the same.
//!
//! ```text
//!   bytes ──► target ──► Ok or Err, never a panic          any.rs: libFuzzer      replay.rs: corpus + mutation, stable Rust
//! ```

use ramekin_base::{PointId, Size};

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
    Target { name: "manifest", run: manifest },
    Target { name: "bodies", run: bodies },
];

pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.name == name).copied()
}

pub fn names() -> String {
    TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ")
}

fn size(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(size) = Size::parse(text) {
        assert_eq!(Size::parse(&size.0.to_string()).ok(), Some(size), "plain bytes come back");
    }
}

fn point_id(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(id) = PointId::parse(text)
    {
        assert_eq!(PointId::parse(&id.to_string()).ok(), Some(id));
        assert_eq!(PointId::from_key(&id.to_key()), Some(id));
    }
    if let Some(key) = bytes.first_chunk::<17>()
        && let Some(id) = PointId::from_key(key)
    {
        assert_eq!(id.to_key(), *key);
    }
}
