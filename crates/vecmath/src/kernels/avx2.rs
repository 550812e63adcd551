//! AVX2 and FMA.
use super::Kernels;
use crate::level::Level;
pub(crate) static TABLE: Kernels = Kernels { level: Level::Avx2, ..super::plain::TABLE };
