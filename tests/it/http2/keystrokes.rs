//! The delay of keystrokes by bulk on the same connection, counted in bytes, not in time.

use std::thread;

use super::raw::{DATA, END_HEADERS, HEADERS, Raw, connect, frame};
use super::unread::downloads_stall;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Target;
use crate::harness::{allow, eventually};

/// Twenty downloads have filled the connection when a key is pressed: its echo overtakes what their targets have to
/// send.
#[test]
fn an_echo_does_not_wait_for_the_downloads_of_others() {
    let (typing, bulk) = (Target::listen(), Target::listen());
    let targets = [("typing:22", typing.address()), ("bulk:22", bulk.address())];
    let server = Server::with(&Settings::new(&allow(&targets)));
    let mut raw = Raw::connect_with_wide_windows(server.public());
    raw.send(&frame(HEADERS, END_HEADERS, 1, &connect("typing:22")));
    let mut shell = typing.accept();
    // A prompt: the tunnel is classed as interactive. Its first read would queue with those of downloads that begin.
    shell.send(b"$");
    raw.skip_to(DATA, 1);
    let downloads: Vec<_> = (3..43)
        .step_by(2)
        .map(|stream| {
            raw.send(&frame(HEADERS, END_HEADERS, stream, &connect("bulk:22")));
            bulk.accept()
        })
        .collect();
    for mut download in downloads {
        thread::spawn(move || while download.try_send([0; 65536]).is_ok() {});
    }
    // Each of them has more to send than goes through: nothing is read yet, nor has the client's buffer grown.
    downloads_stall(&server);
    raw.send(&frame(DATA, 0, 1, b"k"));
    shell.expect(b"k");
    shell.send(b"k");
    // Then it waits in the proxy for a client that reads nothing yet.
    eventually("the proxy reads the echo", || {
        (shell.unread_by(shell.other()) == 0).then_some(())
    });
    let before = raw.skip_to(DATA, 1);
    println!("{} KiB before the echo", before / 1024);
    assert!(before < 2 << 20, "{before} bytes before the echo");
}
