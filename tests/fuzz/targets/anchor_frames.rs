#![no_main]

#[path = "../properties/anchor_frames.rs"]
mod anchor_frames;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| anchor_frames::check(bytes));
