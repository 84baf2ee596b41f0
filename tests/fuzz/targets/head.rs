#![no_main]

#[path = "../properties/head.rs"]
mod head;
#[path = "../properties/naive.rs"]
mod naive;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| head::check(bytes));
