#![no_main]

#[path = "../properties/resume_exchange.rs"]
mod resume_exchange;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| resume_exchange::check(bytes));
