#![no_main]

#[path = "../properties/resume_handshake.rs"]
mod resume_handshake;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| resume_handshake::check(bytes));
