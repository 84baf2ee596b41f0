#![no_main]

#[path = "../properties/resume_frames.rs"]
mod resume_frames;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| resume_frames::check(bytes));
