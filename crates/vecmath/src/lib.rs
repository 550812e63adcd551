//! Floor 1: arithmetic over vectors. Pure functions; nothing here knows files, threads or time.
//!
//! ```text
//!   distance   dot, l2, l1, score of a metric, blocks of rows      f32
//!   datatype   f32, f16 or u8 a value: rounded, packed, unpacked
//!   panels     many rows x many centroids, register-tiled          f32, packed [panel][dim][32]
//!   rotation   orthogonal, from a seed                             dense, or signs + Hadamard
//!   codes      residual -> b-bit code + factor (RaBitQ, extended)  widths 1 to 8, bit planes
//!   query      rotated query -> byte tables and int8, b-bit dots
//!   scan       blocks of 32 one-bit codes, byte tables             nibbles interleaved
//!   centroids  all k centroids of a query in int8                  [16 centroids][4 dims]
//!   select     the best n of k scores
//! ```
//!
//! Each kernel has a plain form, which says what it computes, and SIMD forms that are chosen once at run time
//! (see [`level`]). Integer kernels give the same bits at every level; float kernels differ in rounding only.
//!
//! How the pieces give an estimate of `<q, x>` for `x = c + r`, all rotated by the same `P`:
//!
//! ```text
//!   r = P(x - c)     (code, f) = encode(r)      f = |r|^2 / <r, code>
//!   <q, x> = <q, c> + <Pq, r>  ~  <q, c> + f * (<Pq, code> - <Pc, code>) + <c, x - c>
//!          = base(c) + f * <Pq, code> + k(x)    k = <c, x - c> - f * <Pc, code>
//! ```

pub mod centroids;
pub mod codes;
pub mod datatype;
pub mod distance;
mod kernels;
pub mod level;
pub mod panels;
pub mod query;
pub mod rotation;
pub mod scan;
pub mod select;

pub use centroids::Centroids8;
pub use codes::{Encoded, Encoder, Linear, Width, code_bytes, decode, dot_f32, record_bytes};
pub use datatype::Datatype;
pub use distance::{Metric, divide_by_lengths, dot, l1, l2_squared, norm, normalise, sad, score, score_block};
pub use level::{Level, detected, force_level, level};
pub use panels::Panels;
pub use query::QueryCodes;
pub use rotation::Rotation;
pub use scan::{BLOCK, Probe, Survivors, block_bytes, block_put_factors, lane_factors, pack_block, unpack_lane};
pub use select::{select_best, select_unordered};
