//! What a store consists of, each part without the others; `inner` puts them together.

pub(crate) mod accounts;
pub(crate) mod failures;
pub(crate) mod full;
pub(crate) mod idle;
pub(crate) mod options;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod timings;
pub(crate) mod watermark;
