//! What services and messages there are, for clients that bring no protobuf files of their own.
//!
//! ```text
//!   first call ─► the files' descriptors are decoded, for good, in both versions of the service ─► routes
//! ```

use std::sync::OnceLock;
use tonic::service::Routes;
use tonic_reflection::server::Builder;

/// The files of the wire, as their compiler describes them.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// What a call takes for its answers, of which two may wait: each is a file as it is, as it is framed, and as the connection has it.
pub(crate) const ANSWER_BYTES: u64 = 2 * 3 * DESCRIPTORS.len() as u64;

/// Whether a path asks for what there is.
pub(crate) fn is_here(path: &str) -> bool {
    path.starts_with("/grpc.reflection.")
}

/// The services; `None` where the descriptors are none.
pub(crate) fn routes() -> Option<Routes> {
    static ROUTES: OnceLock<Option<Routes>> = OnceLock::new();
    let build = || {
        let builder = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let (one, alpha) = (builder().build_v1().ok()?, builder().build_v1alpha().ok()?);
        Some(Routes::new(one).add_service(alpha).prepare())
    };
    ROUTES.get_or_init(build).clone()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_descriptors_are_those_of_services() {
        assert!(super::routes().is_some());
    }
}
