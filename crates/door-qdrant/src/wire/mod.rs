//! The pieces of Qdrant's JSON that several requests share.
//!
//! ```text
//!   json     the cursor           numbers  digits to f32          id      7 or "550e8400-..."
//!   vector   vectors to columns   parts    with_payload, with_vector
//!   filter   conditions, paths    payload  a text, each key once
//! ```

pub mod filter;
pub mod id;
pub mod json;
pub mod numbers;
pub mod parts;
pub mod payload;
pub mod vector;
