//! Sessions with an anchor over streams of HTTP/2.

use super::*;

use crate::client::tests::sessions::anchor::Anchor;
use crate::protocol::resume::reason::End;

/// Leads a tunnel to an anchor. Aborting the task that is returned cuts the connection.
fn lead(tunnel: Tunnel, anchor: &Arc<Anchor>) -> JoinHandle<()> {
    let Tunnel {
        mut receive,
        mut send,
        connection,
    } = tunnel;
    let (mut near, far) = tokio::io::duplex(64 * 1024);
    let anchor = Arc::clone(anchor);
    tokio::spawn(async move { anchor.serve(Box::new(far)).await });
    tokio::spawn(async move {
        let mut buffer = vec![0; 8 * 1024];
        loop {
            tokio::select! {
                data = receive.data() => {
                    let Some(Ok(bytes)) = data else { return };
                    receive.flow_control().release_capacity(bytes.len()).unwrap_or_default();
                    near.write_all(&bytes).await.unwrap_or_default();
                }
                read = near.read(&mut buffer) => {
                    let read = read.unwrap_or_default();
                    let bytes = Bytes::copy_from_slice(&buffer[..read]);
                    if send.send_data(bytes, read == 0).is_err() || read == 0 {
                        return;
                    }
                }
            }
        }
    });
    connection
}

#[tokio::test]
async fn a_session_goes_on_over_another_connection() {
    let proxy = Http2Proxy::bind().await;
    let (anchor, mut begun) = Anchor::new();
    let session = Session::start(Options {
        session: Some(Settings::default()),
        ..proxy.options()
    });
    let mut connection = lead(proxy.tunnel().await, &anchor);
    let beside = within(begun.recv()).await.unwrap();
    let (mut stdin, mut stdout, ended) = session.parts();
    let (mut from_client, mut to_client) = tokio::io::split(beside.sshd);
    let (up, down) = (pattern(1, 2_000_000), pattern(2, 2_000_000));
    let cutting = async {
        let mut received = Vec::new();
        for part in 1..=10 {
            let next = part * 200_000;
            while received.len() < next {
                let mut buffer = vec![0; 8 * 1024];
                let read = within(stdout.read(&mut buffer)).await.unwrap();
                received.extend_from_slice(&buffer[..read]);
            }
            if part < 10 {
                connection.abort();
                connection = lead(proxy.tunnel().await, &anchor);
            }
        }
        received.extend(read_all(&mut stdout).await);
        received
    };
    let (received_up, received_down, (), ()) = tokio::join!(
        read_all(&mut from_client),
        cutting,
        async {
            stdin.write_all(&up).await.unwrap();
            drop(stdin);
        },
        async {
            to_client.write_all(&down).await.unwrap();
            to_client.shutdown().await.unwrap();
        },
    );
    assert!(received_up == up);
    assert!(received_down == down);
    within(ended).await.unwrap().unwrap();
    assert_eq!(within(beside.ended).await.unwrap(), Some(End::Done));
}
