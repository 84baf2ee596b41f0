//! An anchor that is short of descriptors or of memory.

use super::Anchor;
use super::client::{Client, block_on};
use crate::harness::peer::Peer;
use crate::harness::ports::Ports as _;
use crate::harness::target::{Echo, Target};
use crate::harness::{DEADLINE, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

#[test]
fn an_anchor_without_descriptors_keeps_its_sessions_and_serves_again_when_it_has_some() {
    const DESCRIPTORS: u32 = 128;
    let target = Echo::listen();
    let mut anchor = Anchor::start_with_descriptors(DESCRIPTORS, target.address(), &[]);
    block_on(async {
        let (mut client, mut user) = Client::begin(anchor.address()).await.unwrap();
        // More than there are descriptors: those that are not accepted wait in the kernel.
        let mut peers: Vec<_> = (0..3 * DESCRIPTORS)
            .map(|_| {
                let mut peer = Peer::connect(anchor.address());
                peer.try_send("SSH-2.0-plain\r\n").ok();
                peer
            })
            .collect();
        for text in [b"first", b"again"] {
            user.write_all(text).await.unwrap();
            let mut bytes = [0; 5];
            tokio::select! {
                event = client.run() => panic!("{event:?}"),
                read = timeout(DEADLINE, user.read_exact(&mut bytes)) => assert_eq!(read.unwrap().unwrap(), 5),
            }
            assert_eq!(&bytes, text);
        }
        peers.clear();
        // One that begins while the last of them are still closed may be turned away.
        let mut begun = None;
        while begun.is_none() {
            begun = Client::begin(anchor.address()).await.ok();
        }
        client.resume(anchor.address()).await.unwrap();
    });
    anchor.stop();
    let said = anchor.0.process.stderr.rest();
    assert!(said.iter().all(|line| !line.contains("ERROR")), "{said:#?}");
    // A line in ten seconds, and not ten in a second.
    assert!(said.len() < 30, "{said:#?}");
}

fn a_thousand_sessions_without_a_connection_stay_within_the_memory() {
    const SESSIONS: usize = 1_000;
    const MEMORY: f64 = (64 << 20) as f64;
    let target = Target::listen();
    let anchor = Anchor::start(target.address(), &["--memory", "64MiB"]);
    block_on(async {
        let stop = CancellationToken::new();
        let mut attached = Vec::new();
        for _ in 0..SESSIONS {
            let (mut client, mut user) = Client::begin(anchor.address()).await.unwrap();
            let server = client.exchanges_keys(&mut user, target.accept()).await;
            let stopped = stop.clone().cancelled_owned();
            // It answers the anchor's PINGs until all lose their connections at once: in the first minutes a session that is
            // without one may be given up for those that begin.
            attached.push(tokio::spawn(async move {
                tokio::select! {
                    event = client.run() => panic!("{event:?}"),
                    () = stopped => drop(client.cut()),
                }
                (client, user, server)
            }));
        }
        stop.cancel();
        let mut sessions = Vec::new();
        for client in attached {
            sessions.push(client.await.unwrap());
        }
        anchor.counts("sessions{state=\"detached\"}", SESSIONS as f64);
        let page = anchor.0.scrape();
        let before = page.values["process_resident_memory_bytes"];
        for (_, _, server) in &mut sessions {
            server.send_what_fits(&[7; 128 << 10]);
        }
        let mut last = -1.0;
        eventually("the anchor has taken what it takes", || {
            let page = anchor.0.scrape();
            let used = page.value("anchor_memory_bytes");
            assert!(used <= MEMORY, "{used}");
            let is_settled = used > 0.0 && used == last;
            last = used;
            is_settled.then_some(())
        });
        let page = anchor.0.scrape();
        let resident = page.values["process_resident_memory_bytes"] - before;
        // With what the allocator has not given back.
        assert!(resident <= 2.0 * MEMORY, "{resident}");
        assert_eq!(page.value("anchor_session_ends_total{reason=\"memory\"}"), 0.0);
        assert_eq!(page.value("anchor_sessions{state=\"detached\"}"), SESSIONS as f64);
        // The kept bytes are there.
        for (client, user, _) in sessions.iter_mut().step_by(100) {
            client.resume(anchor.address()).await.unwrap();
            let mut bytes = [0; 4096];
            tokio::select! {
                event = client.run() => panic!("{event:?}"),
                read = timeout(DEADLINE, user.read_exact(&mut bytes)) => assert_eq!(read.unwrap().unwrap(), 4096),
            }
            assert_eq!(bytes, [7; 4096]);
        }
    });
}

tests_in! { measured: a_thousand_sessions_without_a_connection_stay_within_the_memory }
