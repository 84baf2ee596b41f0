#![no_main]

#[path = "../properties/key_set.rs"]
mod key_set;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| key_set::check(bytes));
