//! One request on its way, and what all requests share.

pub(crate) mod call;
pub(crate) mod counters;
pub(crate) mod host;
pub(crate) mod inline_policy;
pub(crate) mod keys;
pub(crate) mod latency;
pub(crate) mod options;
pub(crate) mod state;
