//! The wire's messages and services, from its protobuf files. They are compiled in Rust: no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["rpc.proto", "v3lock.proto", "v3election.proto"];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().build_client(false).build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
