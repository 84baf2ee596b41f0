//! Peers of an anchor that are slow: SSH servers that say nothing for long, and clients whose bytes come one at a time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Anchor;
use super::client::{Client, block_on, echo};
use crate::harness::peer::Peer;
use crate::harness::target::{Echo, Target};

/// A relay to that address that passes each byte of a client on in a write of its own: so many of each connection, and no
/// further one.
fn dripping<const N: usize>(to: SocketAddr, max: [usize; N]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (client, most) in listener.incoming().map_while(Result::ok).zip(max) {
            let anchor = TcpStream::connect(to).unwrap();
            anchor.set_nodelay(true).unwrap();
            let (mut from, mut back) = (anchor.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut from, &mut back));
            thread::spawn(move || drip(client, anchor, most));
        }
    });
    address
}

/// To the end of one side. The bytes beyond `most` are lost.
fn drip(mut client: TcpStream, mut anchor: TcpStream, max: usize) -> io::Result<()> {
    let mut chunk = [0; 4096];
    let mut left = max;
    loop {
        let read = client.read(&mut chunk)?;
        if read == 0 {
            return anchor.shutdown(std::net::Shutdown::Write);
        }
        for byte in chunk[..read].iter().take(left) {
            anchor.write_all(&[*byte])?;
        }
        left = left.saturating_sub(read);
    }
}

#[test]
fn lines_proofs_and_frames_may_come_byte_by_byte() {
    const LENGTH: usize = 100_000;
    // The session cannot end before its third connection, however long this thread waits for a processor.
    const OF_A_CONNECTION: usize = LENGTH / 3;
    let target = Echo::listen();
    let anchor = Anchor::start(target.address(), &[]);
    let slow = dripping(anchor.address(), [OF_A_CONNECTION, OF_A_CONNECTION, usize::MAX]);
    block_on(async {
        let (mut client, user) = Client::begin(slow).await.unwrap();
        let echoing = tokio::spawn(echo(user, LENGTH));
        for _ in 0..2 {
            // Some frames, and another connection.
            let moved = client.driver.session().received();
            while client.driver.session().received() < moved + 10_000 {
                tokio::select! {
                    event = client.run() => panic!("{event:?}"),
                    () = tokio::time::sleep(std::time::Duration::from_millis(1)) => {}
                }
            }
            client.resume(slow).await.unwrap();
        }
        let event = client.run().await;
        assert!(
            matches!(event, switchboard::protocol::resume::driver::Event::Over(_)),
            "{event:?}"
        );
        echoing.await.unwrap().unwrap();
    });
}

#[test]
fn an_ssh_server_that_is_silent_and_slow_delays_its_own_session_only() {
    let target = Target::listen();
    let anchor = Anchor::start(target.address(), &["--max-sessions", "2"]);
    block_on(async {
        let (mut client, mut user) = Client::begin(anchor.address()).await.unwrap();
        let mut silent = target.accept();
        user.write_all(b"SSH-2.0-client\r\n").await.unwrap();
        // Its connection is lost, and comes back, before the server has said a word.
        let reading = tokio::task::spawn_blocking(move || {
            silent.expect("SSH-2.0-client\r\n");
            silent
        });
        let mut silent = tokio::select! {
            event = client.run() => panic!("{event:?}"),
            silent = reading => silent.unwrap(),
        };
        drop(client.cut());
        client.resume(anchor.address()).await.unwrap();
        // Others are served: a session, and a plain client.
        let (mut other, mut other_user) = Client::begin(anchor.address()).await.unwrap();
        let mut server = target.accept();
        server.send("quick");
        let mut bytes = [0; 5];
        tokio::select! {
            event = other.run() => panic!("{event:?}"),
            read = other_user.read_exact(&mut bytes) => assert_eq!(read.unwrap(), 5),
        }
        let mut plain = Peer::connect(anchor.address());
        plain.send("SSH-2.0-plain\r\n");
        target.accept().expect("SSH-2.0-plain\r\n");
        let answer = b"SSH-2.0-slow\r\n";
        for byte in answer {
            silent.send([*byte]);
            let mut echo = [0];
            tokio::select! {
                event = client.run() => panic!("{event:?}"),
                read = user.read_exact(&mut echo) => assert_eq!(read.unwrap(), 1),
            }
            assert_eq!(echo, [*byte]);
        }
    });
}
