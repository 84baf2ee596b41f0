#![no_main]

#[path = "../properties/websocket.rs"]
mod websocket;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| websocket::check(bytes));
