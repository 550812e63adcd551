//! libFuzzer on one target, chosen by the variable `TARGET`.
#![no_main]

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static CHOSEN: OnceLock<targets::Target> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("TARGET").unwrap_or_default();
        targets::find(&name).unwrap_or_else(|| panic!("TARGET must be one of: {}", targets::names()))
    });
    (chosen.run)(bytes);
});
