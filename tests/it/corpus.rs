//! The seeds and the finds of fuzzing: every file of tests/corpus/.

use std::fs;
use std::path::Path;

#[path = "../fuzz/properties/anchor_frames.rs"]
mod anchor_frames;
#[path = "../fuzz/properties/authority.rs"]
mod authority;
#[path = "../fuzz/properties/config.rs"]
mod config;
#[path = "../fuzz/properties/head.rs"]
mod head;
#[path = "../fuzz/properties/identification.rs"]
mod identification;
#[cfg(feature = "jump")]
#[path = "../fuzz/properties/jump_host.rs"]
mod jump_host;
#[path = "../fuzz/properties/key_set.rs"]
mod key_set;
#[path = "../fuzz/properties/naive.rs"]
mod naive;
#[path = "../fuzz/properties/proxy_header.rs"]
mod proxy_header;
#[path = "../fuzz/properties/resume_frames.rs"]
mod resume_frames;
#[path = "../fuzz/properties/resume_handshake.rs"]
mod resume_handshake;
#[path = "../fuzz/properties/token.rs"]
mod token;
#[path = "../fuzz/properties/users.rs"]
mod users;
#[path = "../fuzz/properties/websocket.rs"]
mod websocket;

fn replay(name: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let mut files = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        eprintln!("{}", path.display());
        check(&fs::read(&path).unwrap());
        files += 1;
    }
    assert!(files > 0, "{} is empty", folder.display());
}

#[test]
fn request_heads() {
    replay("head", head::check);
}

#[test]
fn authorities() {
    replay("authority", authority::check);
}

#[test]
fn proxy_headers() {
    replay("proxy_header", proxy_header::check);
}

#[test]
fn identifications() {
    replay("identification", identification::check);
}

#[test]
fn configurations() {
    replay("config", config::check);
}

#[test]
fn tokens() {
    replay("token", token::check);
}

#[test]
fn files_of_users() {
    replay("users", users::check);
}

#[test]
fn key_sets() {
    replay("key_set", key_set::check);
}

#[test]
fn resumed_sessions() {
    replay("resume_frames", resume_frames::check);
}

#[test]
fn openings_of_sessions() {
    replay("resume_handshake", resume_handshake::check);
}

#[test]
fn frames_of_anchors() {
    replay("anchor_frames", anchor_frames::check);
}

#[test]
fn websockets() {
    replay("websocket", websocket::check);
}

#[cfg(feature = "jump")]
#[test]
fn clients_of_a_jump_host() {
    replay("jump_host", jump_host::check);
}
