#![no_main]

#[path = "../properties/users.rs"]
mod users;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| users::check(bytes));
