//! Connections of programs to a port of this host.

use super::*;

use crate::client::forward::serve;
use crate::uplink::credential_cache::CachedLogin;

/// The request waits for an hour otherwise. The program's identification is unread, so that its end is behind bytes.
#[tokio::test]
async fn a_program_that_closes_its_connection_ends_its_request_before_the_answer() {
    let proxy = Proxy::bind().await;
    let mut options = proxy.http();
    options.uplink.timeout = Duration::from_secs(3600);
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut program = TcpStream::connect(port.local_addr().unwrap()).await.unwrap();
    program.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    let (stream, _) = within(port.accept()).await.unwrap();
    let exit = ExitSignals(tokio::sync::watch::channel(ExitRequest::No).1);
    let served =
        tokio::spawn(
            async move { serve(stream, (&options, CachedLogin::default()), exit, &UserOutput::default()).await },
        );
    let mut request = proxy.accept().await;
    read_request(&mut request).await;
    drop(program);
    within(served).await.unwrap();
    assert_eq!(read_all(&mut request).await, b"");
}
