//! The files of host keys that a proxy reads, and those of known_hosts that a block names.

use std::fs;

use rustix::process::Signal;

use super::{HOST, World, with_key};
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;

#[test]
fn a_target_whose_file_cannot_be_read_is_not_left_to_the_lines_of_its_server() {
    let mut world = World::new(|folder, sshd| with_key(sshd, &folder.join("missing.pub")));
    let proxy = world.server.public();
    let answer = |keys: &str| {
        let mut client = Peer::connect(proxy);
        client.send(format!(
            "CONNECT {HOST}:22 HTTP/1.1\r\nHost: {HOST}:22\r\nSwitchboard-Host-Keys: ?1\r\n\r\n"
        ));
        client.expect(format!(
            "HTTP/1.1 200 Connection established\r\nSwitchboard-Host-Keys: {keys};from=config\r\n\r\n"
        ));
    };
    answer("()");
    let text = fs::read_to_string(world.path("host_key.pub")).unwrap();
    fs::write(world.path("missing.pub"), &text).unwrap();
    world.server.process.signal(Signal::HUP);
    world.server.process.stderr.find("configuration reloaded");
    let keys = format!("(:{}:)", text.split(' ').nth(1).unwrap());
    answer(&keys);
    // A reload takes the keys of equal files over.
    fs::remove_file(world.path("missing.pub")).unwrap();
    world.server.process.signal(Signal::HUP);
    world.server.process.stderr.find("configuration reloaded");
    answer(&keys);
}

/// The files that the installed block names.
fn known_hosts_line(world: &World) -> Option<String> {
    let block = fs::read_dir(world.path("switchboard.d"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let text = fs::read_to_string(block.path()).unwrap();
    let mut lines = text.lines();
    lines.find_map(|line| Some(line.trim_start().strip_prefix("UserKnownHostsFile ")?.to_owned()))
}

#[test]
fn a_block_that_is_written_again_names_each_file_once() {
    let world = World::of_files();
    let own = world.path("own_known_hosts").display().to_string();
    let [one, other] = [world.path("published one"), world.path("other")].map(|path| path.display().to_string());
    for _ in 0..3 {
        world.install(&["--known-hosts", &one]);
        assert_eq!(known_hosts_line(&world), Some(format!("{own} \"{one}\"")));
    }
    for _ in 0..2 {
        world.install(&["--known-hosts", &other]);
        assert_eq!(known_hosts_line(&world), Some(format!("{own} {other}")));
    }
    world.install(&[]);
    let default = known_hosts_line(&world).unwrap();
    assert!(
        default.starts_with(&format!("{own} ")) && default.ends_with("/switchboard_known_hosts"),
        "{default}"
    );
    assert_eq!(default.split(' ').count(), 2, "{default}");
}

#[test]
fn a_user_file_with_a_token_is_left_out_of_the_block_with_a_sentence() {
    let world = World::of_files();
    let config = fs::read_to_string(world.path("config")).unwrap();
    for token in ["%k", "%p", "%r", "%h"] {
        let own = world.path("own_known_hosts").display().to_string();
        fs::write(world.path("config"), config.replace(&own, &format!("{own}-{token}"))).unwrap();
        let (path, [proxy, ca]) = (world.path("config"), world.proxy("https"));
        let write = [
            "config",
            &proxy,
            &ca,
            "--name",
            "*.a",
            "--write",
            path.to_str().unwrap(),
        ];
        for _ in 0..2 {
            let written = world.run(world.ours(&write)).succeeded();
            assert_eq!(known_hosts_line(&world), None, "{token}");
            assert!(written.stderr.contains("UserKnownHostsFile"), "{written}");
        }
    }
}
