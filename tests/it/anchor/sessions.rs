//! Sessions: they outlive their connections, and end with a reason.

use std::io::{Write as _, pipe};
use std::time::Duration;

use switchboard::protocol::resume::driver::{DetachCause, Event};
use switchboard::protocol::resume::handshake::client_handshake::HandshakeError;
use switchboard::protocol::resume::reason::{DetachReason, EndReason};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::Anchor;
use super::client::{Client, block_on, echo};
use crate::harness::ports::Ports as _;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::seccomp::Call;
use crate::harness::target::{Closed, Echo, Target};
use crate::harness::{DEADLINE, allow};

/// Runs a client until its session is over.
async fn to_the_end(client: &mut Client) -> EndReason {
    let event = client.run().await;
    let Event::Over(end) = event else {
        panic!("{event:?}");
    };
    end
}

/// By the real client, whose stdout is closed by then.
#[test]
fn an_upload_goes_on_when_the_target_has_finished() {
    let target = Target::listen();
    let mut anchor = Anchor::start(target.address(), &[]);
    let address = anchor.address();
    let server = Server::with(&Settings::new(&allow(&[("devbox:22", address)])));
    let proxy = format!("http://{}", server.public());
    let mut command = switchboard(&["connect", "--proxy", &proxy, "devbox:22"]);
    let (stdin, mut user) = pipe().unwrap();
    let mut client = Process::spawn_from(&mut command, stdin);
    drop(command);
    let mut service = target.accept();
    service.send("SSH-2.0-x\r\n");
    service.finish();
    assert_eq!(client.stdout.rest(), ["SSH-2.0-x"]);
    // Longer than it takes to see that a reader of stdout has left.
    assert_eq!(service.read_within(Duration::from_secs(2)), None);
    user.write_all(b"SSH-2.0-y\r\nthe rest").unwrap();
    drop(user);
    service.expect("SSH-2.0-y\r\nthe rest");
    service.expect_end();
    assert_eq!(client.exit_status(), 0);
    assert_eq!(anchor.access_line()["reason"], "done");
}

#[test]
fn all_bytes_arrive_once_and_in_order_over_connections_that_are_cut() {
    const LENGTH: usize = 8 << 20;
    let target = Echo::listen();
    let mut anchor = Anchor::start(target.address(), &[]);
    block_on(async {
        let (mut client, user) = Client::begin(anchor.address()).await.unwrap();
        let echoing = tokio::spawn(echo(user, LENGTH));
        let mut resumes: u64 = 0;
        let mut next = 5_000;
        let end = loop {
            // A cut falls wherever the streams are by then: in lines, in frames, in nothing.
            let event = tokio::select! {
                event = client.run() => event,
                () = tokio::time::sleep(Duration::from_micros(next)), if resumes < 100 => {
                    next = next * 7 % 49_999 + 1_000;
                    match client.resume(anchor.address()).await {
                        Ok(()) => {}
                        // The cut has met the answer to the end.
                        Err(HandshakeError::Ended(EndReason::NoSuchSession)) if client.driver.session().is_complete() => break EndReason::Completed,
                        Err(error) => panic!("{error}"),
                    }
                    resumes += 1;
                    continue;
                }
            };
            let Event::Over(end) = event else {
                panic!("{event:?}");
            };
            break end;
        };
        assert_eq!(end, EndReason::Completed);
        echoing.await.unwrap().unwrap();
        let line = anchor.access_line();
        let number = |field: &str| line[field].as_u64().unwrap();
        assert_eq!(line["reason"], "done");
        assert_eq!(
            (number("bytes_sent"), number("bytes_received")),
            (LENGTH as u64, LENGTH as u64)
        );
        assert_eq!(number("attachments"), resumes + 1);
        anchor.counts("attachments_total", (resumes + 1) as f64);
        anchor.counts("sessions{state=\"attached\"}", 0.0);
    });
    anchor.stop();
}

#[test]
fn a_target_whose_end_of_stream_is_refused_ends_its_session() {
    let target = Target::listen();
    let mut anchor = Anchor::start_refusing(Call::Shutdown, target.address());
    block_on(async {
        let (mut client, mut user) = Client::begin(anchor.address()).await.unwrap();
        let _server = target.accept();
        user.shutdown().await.unwrap();
        assert_eq!(to_the_end(&mut client).await, EndReason::Reset);
    });
    assert_eq!(anchor.access_line()["reason"], "reset");
}

#[test]
fn a_newer_connection_displaces_an_older_one() {
    let target = Target::listen();
    let anchor = Anchor::start(target.address(), &[]);
    block_on(async {
        let (mut client, mut user) = Client::begin(anchor.address()).await.unwrap();
        let mut server = target.accept();
        // Another process with the keys, or the same one that believes its connection to be dead.
        let opening = switchboard::protocol::resume::handshake::client_handshake::ClientHandshake::resume(
            client.secrets.clone(),
            0,
        )
        .unwrap();
        let other = super::client::exchange(anchor.address(), opening).await.unwrap();
        let event = client.run().await;
        let is_displaced = matches!(event, Event::Detached(DetachCause::ByPeer(DetachReason::Displaced)));
        assert!(is_displaced, "{event:?}");
        drop(other);
        client.resume(anchor.address()).await.unwrap();
        client.hears(&mut user, &mut server).await;
    });
}

#[test]
fn a_proof_that_arrives_late_displaces_no_newer_connection() {
    let target = Target::listen();
    let anchor = Anchor::start(target.address(), &[]);
    block_on(async {
        let (mut client, mut user) = Client::begin(anchor.address()).await.unwrap();
        let mut server = target.accept();
        // The proof of this connection is under way while the client gives it up, and resumes on another one.
        let (mut late, proof) = super::client::proof(anchor.address(), &client.secrets).await;
        client.resume(anchor.address()).await.unwrap();
        let mut bytes = [0; 5];
        server.send("hello");
        tokio::select! {
            event = client.run() => panic!("{event:?}"),
            read = user.read_exact(&mut bytes) => assert_eq!(read.unwrap(), 5),
        }
        late.write_all(&proof).await.unwrap();
        let mut answer = Vec::new();
        timeout(DEADLINE, late.read_to_end(&mut answer)).await.unwrap().ok();
        assert!(!answer.windows(3).any(|bytes| bytes == [9, 0, 0]), "{answer:?}");
        server.send("again");
        tokio::select! {
            event = client.run() => panic!("{event:?}"),
            read = user.read_exact(&mut bytes) => assert_eq!(read.unwrap(), 5),
        }
        assert_eq!(&bytes, b"again");
    });
}

#[test]
fn a_reset_of_the_target_comes_behind_its_bytes_and_stays_a_reset() {
    let target = Target::listen();
    let mut anchor = Anchor::start(target.address(), &[]);
    block_on(async {
        let (mut client, mut user) = Client::begin(anchor.address()).await.unwrap();
        let mut server = target.accept();
        server.send("half of it");
        let mut bytes = [0; 10];
        tokio::select! {
            event = client.run() => panic!("{event:?}"),
            read = user.read_exact(&mut bytes) => assert_eq!(read.unwrap(), 10),
        }
        server.reset();
        assert_eq!(to_the_end(&mut client).await, EndReason::Reset);
    });
    assert_eq!(anchor.access_line()["reason"], "reset");
    anchor.counts("session_ends_total{reason=\"reset\"}", 1.0);
}

#[test]
fn a_client_that_is_interrupted_resets_the_target_behind_its_bytes() {
    let target = Target::listen();
    let anchor = Anchor::start(target.address(), &[]);
    block_on(async {
        let (mut client, mut user) = Client::begin(anchor.address()).await.unwrap();
        let mut server = target.accept();
        user.write_all(b"half of it").await.unwrap();
        let reading = tokio::task::spawn_blocking(move || {
            server.expect("half of it");
            server
        });
        let mut server = tokio::select! {
            event = client.run() => panic!("{event:?}"),
            server = reading => server.unwrap(),
        };
        client.driver.session_mut().end(EndReason::ProgramExited);
        assert_eq!(to_the_end(&mut client).await, EndReason::ProgramExited);
        server.expect_reset();
    });
}

#[test]
fn a_target_that_cannot_be_reached_is_said_to_be() {
    let target = Closed::bind();
    let anchor = Anchor::start(target.address(), &[]);
    let failure = block_on(Client::begin(anchor.address())).err();
    assert_eq!(failure, Some(HandshakeError::Ended(EndReason::Unreachable)));
    anchor.counts("sessions{state=\"attached\"}", 0.0);
}

#[test]
fn one_session_too_many_is_refused_unless_another_is_of_no_more_use() {
    let target = Target::listen();
    let anchor = Anchor::start(target.address(), &["--max-sessions", "1"]);
    block_on(async {
        let (mut client, mut user) = Client::begin(anchor.address()).await.unwrap();
        let server = client.exchanges_keys(&mut user, target.accept()).await;
        let failure = Client::begin(anchor.address()).await.err();
        assert_eq!(failure, Some(HandshakeError::Ended(EndReason::TooManySessions)));
        // Its user may have logged in.
        drop(client.cut());
        anchor.counts("sessions{state=\"detached\"}", 1.0);
        assert_eq!(
            Client::begin(anchor.address()).await.err(),
            Some(HandshakeError::Ended(EndReason::TooManySessions))
        );
        // A session that has lost its connection and its target has nothing but its last bytes.
        drop(server);
        let (mut other, _user) = loop {
            match Client::begin(anchor.address()).await {
                Ok(begun) => break begun,
                Err(failure) => assert_eq!(failure, HandshakeError::Ended(EndReason::TooManySessions)),
            }
        };
        assert_eq!(
            client.resume(anchor.address()).await,
            Err(HandshakeError::Ended(EndReason::NoSuchSession))
        );
        // One without a login gives its place up, here and at the SSH server.
        let mut server = target.accept();
        drop(other.cut());
        anchor.counts("sessions{state=\"detached\"}", 1.0);
        let _new = Client::begin(anchor.address()).await.unwrap();
        server.expect_reset();
        anchor.counts("session_ends_total{reason=\"full\"}", 2.0);
    });
}

#[test]
fn a_session_without_a_connection_expires_and_says_so() {
    let target = Target::listen();
    let mut anchor = Anchor::start(target.address(), &["--grace", "1ms"]);
    block_on(async {
        let (mut client, _user) = Client::begin(anchor.address()).await.unwrap();
        let mut server = target.accept();
        drop(client.cut());
        anchor.counts("sessions{state=\"ended\"}", 1.0);
        server.expect_reset();
        client.resume(anchor.address()).await.unwrap();
        assert_eq!(to_the_end(&mut client).await, EndReason::Expired);
    });
    let line = anchor.access_line();
    assert_eq!(
        (line["reason"].as_str(), line["gaps"].as_u64()),
        (Some("expired"), Some(1)),
        "{line}"
    );
}

#[test]
fn a_stop_is_said_to_every_client() {
    let target = Target::listen();
    let mut anchor = Anchor::start(target.address(), &[]);
    block_on(async {
        let (mut client, _user) = Client::begin(anchor.address()).await.unwrap();
        let (mut detached, _other_user) = Client::begin(anchor.address()).await.unwrap();
        let mut servers = [target.accept(), target.accept()];
        drop(detached.cut());
        anchor.counts("sessions{state=\"detached\"}", 1.0);
        anchor.0.process.signal(rustix::process::Signal::TERM);
        assert_eq!(to_the_end(&mut client).await, EndReason::Stopping);
        servers.iter_mut().for_each(|server| server.expect_reset());
    });
    assert_eq!(anchor.0.process.exit_status(), 0);
    for _ in 0..2 {
        assert_eq!(anchor.access_line()["reason"], "stopping");
    }
}

#[test]
fn a_drain_is_the_end_of_all_sessions() {
    let target = Target::listen();
    let mut anchor = Anchor::start(target.address(), &[]);
    block_on(async {
        let (mut client, _user) = Client::begin(anchor.address()).await.unwrap();
        let mut server = target.accept();
        let serving = anchor.0.ask_admin("GET", "/drain");
        assert_eq!(
            serving.body.trim_end(),
            r#"{"phase":"serving","tunnels":1,"connections":0}"#
        );
        assert_eq!(anchor.0.ask_admin("POST", "/drain").status, 202);
        assert_eq!(to_the_end(&mut client).await, EndReason::Stopping);
        server.expect_reset();
    });
    assert_eq!(anchor.0.process.exit_status(), 0);
    assert_eq!(anchor.access_line()["reason"], "stopping");
}

#[test]
fn memory_is_taken_from_the_session_that_has_been_without_a_connection_for_the_longest_time() {
    let target = Target::listen();
    let anchor = Anchor::start(target.address(), &["--memory", "64KiB", "--max-sessions", "4"]);
    block_on(async {
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(Client::begin(anchor.address()).await.unwrap());
        }
        let mut servers: Vec<_> = clients.iter().map(|_| target.accept()).collect();
        for (index, (client, _)) in clients.iter_mut().enumerate() {
            drop(client.cut());
            anchor.counts("sessions{state=\"detached\"}", index as f64 + 1.0);
        }
        for server in &mut servers {
            server.send_what_fits(&[7; 256 << 10]);
        }
        // All four keep no more than allowed, or the oldest goes.
        crate::harness::eventually("the memory is bounded", || {
            let page = crate::harness::ports::Ports::scrape(&anchor.0);
            let (used, ended) = (
                page.value("anchor_memory_bytes"),
                page.value("anchor_session_ends_total{reason=\"memory\"}")
                    + page.value("anchor_sessions{state=\"ended\"}"),
            );
            (used > 0.0 && used <= 65_536.0 && ended < 4.0).then_some(())
        });
    });
}

fn an_idle_session_takes_no_more_than_16_kib() {
    const SESSIONS: usize = 1_000;
    let target = Target::listen();
    let anchor = Anchor::start(target.address(), &[]);
    let resident = || crate::harness::ports::Ports::scrape(&anchor.0).values["process_resident_memory_bytes"];
    block_on(async {
        let mut begun = Vec::new();
        let mut begin = async |sessions: usize| {
            for _ in 0..sessions {
                let (mut client, user) = Client::begin(anchor.address()).await.unwrap();
                // It answers the anchor's PINGs: within 15 s a busy machine may not begin them all.
                let running = tokio::spawn(async move { client.run().await });
                begun.push((running, user, target.accept()));
            }
        };
        // Memory that is taken once is not a session's.
        begin(100).await;
        let before = resident();
        begin(SESSIONS - 100).await;
        anchor.counts("sessions{state=\"attached\"}", SESSIONS as f64);
        let each = (resident() - before) / (SESSIONS - 100) as f64;
        assert!(each <= 16.0 * 1024.0, "{each} bytes each");
    });
}

tests_in! { measured: an_idle_session_takes_no_more_than_16_kib }
