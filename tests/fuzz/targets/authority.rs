#![no_main]

#[path = "../properties/authority.rs"]
mod authority;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| authority::check(bytes));
