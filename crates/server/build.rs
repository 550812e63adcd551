//! Where code stands in the binary: see the linker's script.

fn main() {
    println!("cargo:rerun-if-changed=etcd.ld");
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rustc-link-arg-bins=-Wl,-T,{folder}/etcd.ld");
}
