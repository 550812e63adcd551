//! The wire's messages and services, from its protobuf files. They are compiled in Rust: no `protoc` is needed.

#[allow(clippy::disallowed_methods, reason = "it makes a part of the source, and no data")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["rpc.proto", "v3lock.proto", "v3election.proto"];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    // The JSON gateway reads messages by their descriptors.
    let encoded =
        protox::Compiler::new(["proto"])?.include_imports(true).open_files(files)?.encode_file_descriptor_set();
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), encoded)?;
    let services = tonic_prost_build::configure().build_client(false).build_transport(false);
    // Messages are weighed before they are decoded.
    services.codec_path("crate::weight::Weighed").compile_fds(descriptors)?;
    Ok(())
}
