//! The example of a store without a server does what it says, on a new folder and on one that it has filled.
#![allow(clippy::unwrap_used, reason = "a test stops at any error")]
#![allow(dead_code, reason = "the example's own way in")]

#[path = "../examples/embedded.rs"]
mod embedded;

#[test]
fn the_example_finds_its_desserts_twice() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let found = embedded::run(folder.path()).unwrap();
        let names: Vec<bool> = found.iter().map(|line| line.contains("chocolate soufflé")).collect();
        assert_eq!(names, [true, false], "{found:?}");
    }
}
