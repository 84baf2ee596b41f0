#![no_main]

#[path = "../properties/proxy_header.rs"]
mod proxy_header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| proxy_header::check(bytes));
