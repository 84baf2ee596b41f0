use super::*;
use crate::protocol::resume::Options;
use crate::protocol::resume::reason::DetachReason;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::time::timeout;

/// One side, the program beside it, and the other end of that.
struct Half {
    driver: Driver,
    program: DuplexStream,
    user: DuplexStream,
}

fn half(side: Side) -> Half {
    let (program, user) = duplex(10_000);
    let options = Options {
        window: 64 * 1024,
        ..Options::default()
    };
    Half {
        driver: Driver::new(Session::new(options), side),
        program,
        user,
    }
}

/// Carries both sides over connections that are cut after so many polls each, until both say how the session ended.
async fn carry(
    client: &mut (Driver, DuplexStream),
    anchor: &mut (Driver, DuplexStream),
    cuts: &[usize],
) -> (EndReason, EndReason) {
    let mut ends = (None, None);
    for cut in cuts.iter().copied().chain([usize::MAX]) {
        let (near, far) = duplex(3_000);
        // The offset that each expects is read before either is attached, as in a handshake.
        let (at_client, at_anchor) = (client.0.session().received(), anchor.0.session().received());
        let output = |received| HandshakeOutput {
            received,
            ..HandshakeOutput::default()
        };
        let mut links = (
            client.0.attach(near, output(at_anchor)),
            anchor.0.attach(far, output(at_client)),
        );
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            if ends.0.is_none()
                && let Poll::Ready(Event::Over(end)) = client.0.poll(context, Some(&mut links.0), &mut client.1)
            {
                ends.0 = Some(end);
            }
            if ends.1.is_none()
                && let Poll::Ready(Event::Over(end)) = anchor.0.poll(context, Some(&mut links.1), &mut anchor.1)
            {
                ends.1 = Some(end);
            }
            let is_over = ends.0.is_some() && ends.1.is_some();
            if is_over || polls > cut {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        client.0.detach();
        anchor.0.detach();
        if let (Some(client), Some(anchor)) = ends {
            return (client, anchor);
        }
    }
    panic!("it does not end");
}

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..=250_u8).cycle().take(count).map(|byte| byte ^ seed).collect()
}

async fn exchange_all(user: DuplexStream, sent: Vec<u8>) -> Vec<u8> {
    let (mut reader, mut writer) = split(user);
    let sending = async move {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    let receiving = reader.read_to_end(&mut received);
    let ((), result) = tokio::join!(sending, receiving);
    result.unwrap();
    received
}

#[tokio::test(start_paused = true)]
async fn both_streams_arrive_whole_over_connections_that_are_cut_anywhere() {
    for cuts in [vec![], vec![1; 40], vec![0, 3, 9, 0, 27, 81], (0..120).collect()] {
        let (client, anchor) = (half(Side::Client), half(Side::Anchor));
        let (up, down) = (bytes(700_000, 7), bytes(400_001, 9));
        let ssh = tokio::spawn(exchange_all(client.user, up.clone()));
        let sshd = tokio::spawn(exchange_all(anchor.user, down.clone()));
        let mut near = (client.driver, client.program);
        let mut far = (anchor.driver, anchor.program);
        let ends = timeout(Duration::from_secs(600), carry(&mut near, &mut far, &cuts)).await;
        assert_eq!(ends.unwrap(), (EndReason::Completed, EndReason::Completed), "{cuts:?}");
        assert!(ssh.await.unwrap() == down && sshd.await.unwrap() == up, "{cuts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_of_the_program_is_told_behind_all_of_its_bytes() {
    let (mut client, mut anchor) = (half(Side::Client), half(Side::Anchor));
    anchor.user.write_all(b"the ending").await.unwrap();
    let (near, far) = duplex(3_000);
    let mut near = client.driver.attach(near, HandshakeOutput::default());
    let mut far = anchor.driver.attach(far, HandshakeOutput::default());
    let mut read = [0; 10];
    tokio::select! {
        event = anchor.driver.run(Some(&mut far), &mut anchor.program) => panic!("{event:?}"),
        event = client.driver.run(Some(&mut near), &mut client.program) => panic!("{event:?}"),
        result = client.user.read_exact(&mut read) => assert_eq!(result.unwrap(), 10),
    }
    anchor.driver.session_mut().end(EndReason::Reset);
    let ends = tokio::join!(
        anchor.driver.run(Some(&mut far), &mut anchor.program),
        client.driver.run(Some(&mut near), &mut client.program),
    );
    assert!(
        matches!(ends, (Event::Over(EndReason::Reset), Event::Over(EndReason::Reset))),
        "{ends:?}"
    );
    assert_eq!(&read, b"the ending");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_falls_silent_is_given_up_and_the_program_is_read_on() {
    let mut client = half(Side::Client);
    let (near, far) = duplex(1_000_000);
    let mut attachment = client.driver.attach(near, HandshakeOutput::default());
    client.user.write_all(b"x").await.unwrap();
    let start = Instant::now();
    let event = client.driver.run(Some(&mut attachment), &mut client.program).await;
    assert!(matches!(event, Event::Detached(DetachCause::Silent)), "{event:?}");
    assert_eq!(start.elapsed().as_secs(), 4);
    drop(far);
    let detached = client
        .driver
        .run(None::<&mut Attachment<DuplexStream>>, &mut client.program);
    let writing = client.user.write_all(&[1; 50_000]);
    tokio::select! {
        event = detached => panic!("{event:?}"),
        result = writing => result.unwrap(),
    }
    assert!(client.driver.memory() <= 70_000, "{}", client.driver.memory());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_does_not_hold_a_session_that_is_over() {
    let mut anchor = half(Side::Anchor);
    let (far, mut near) = duplex(4);
    let mut attachment = anchor.driver.attach(far, HandshakeOutput::default());
    let end = [9, 0, 0, 1, 1];
    let event = async {
        tokio::join!(
            anchor.driver.run(Some(&mut attachment), &mut anchor.program),
            near.write_all(&end)
        )
    };
    let (event, _) = timeout(Duration::from_secs(60), event).await.unwrap();
    assert!(matches!(event, Event::Over(EndReason::ProgramExited)), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_reads_nothing_of_a_session_that_is_over_does_not_make_its_driver_spin() {
    let mut client = half(Side::Client);
    let (near, mut far) = duplex(30_000);
    let mut attachment = client.driver.attach(near, HandshakeOutput::default());
    // The first acknowledgement opens the window.
    let opened = poll_fn(|context| {
        let polled = client.driver.poll(context, Some(&mut attachment), &mut client.program);
        Poll::Ready(polled.is_pending())
    });
    assert!(opened.await);
    // More than the pipe of the program takes.
    let data = [[3, 0, 0x4e, 0x28].as_slice(), &[0; 8], &[7; 20_000], &[9, 0, 0, 1, 1]].concat();
    far.write_all(&data).await.unwrap();
    let (mut polls, mut is_attached) = (0, true);
    let run = poll_fn(|context| {
        polls += 1;
        assert!(polls < 100, "it spins");
        let attached = Some(&mut attachment).filter(|_| is_attached);
        match client.driver.poll(context, attached, &mut client.program) {
            // The peer, which has nothing more to send, counts as dead.
            Poll::Ready(Event::Detached(_)) => {
                is_attached = false;
                client
                    .driver
                    .poll(context, None::<&mut Attachment<DuplexStream>>, &mut client.program)
            }
            other @ (Poll::Ready(_) | Poll::Pending) => other,
        }
    });
    let event = timeout(Duration::from_secs(60), run).await;
    assert!(event.is_err(), "{event:?}");
    let (event, read) = tokio::join!(
        client
            .driver
            .run(None::<&mut Attachment<DuplexStream>>, &mut client.program),
        async {
            let mut read = vec![0; 20_000];
            client.user.read_exact(&mut read).await.map(|_| read)
        }
    );
    assert!(matches!(event, Event::Over(EndReason::ProgramExited)), "{event:?}");
    assert_eq!(read.unwrap(), [7; 20_000]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_dropped_behind_its_going_says_why() {
    let mut client = half(Side::Client);
    let (near, mut far) = duplex(100);
    let mut attachment = client.driver.attach(near, HandshakeOutput::default());
    client.user.write_all(b"x").await.unwrap();
    far.write_all(&[8, 0, 0, 1, 1]).await.unwrap();
    drop(far);
    let event = client.driver.run(Some(&mut attachment), &mut client.program).await;
    assert!(
        matches!(event, Event::Detached(DetachCause::ByPeer(DetachReason::Displaced))),
        "{event:?}"
    );
}
