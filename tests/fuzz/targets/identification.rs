#![no_main]

#[path = "../properties/identification.rs"]
mod identification;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| identification::check(bytes));
