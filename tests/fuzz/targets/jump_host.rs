#![no_main]

#[path = "../properties/jump_host.rs"]
mod jump_host;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| jump_host::check(bytes));
