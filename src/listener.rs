//! Binds the public port and accepts from it, surviving a full descriptor table.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tracing::warn;

use crate::{proxy_header, socket, tls};

/// One public port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where to listen; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Who may say there whose connections they are.
    pub proxy_header: proxy_header::Policy,
    /// Whether it speaks TLS.
    pub tls: tls::Mode,
}

/// A port at that address, with nothing special about it.
impl From<SocketAddr> for Options {
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            proxy_header: proxy_header::Policy::Off,
            tls: tls::Mode::Off,
        }
    }
}

/// Binds the port, with a backlog that a burst of 2,000 clients fits.
///
/// # Errors
/// What socket(2), bind(2) and listen(2) say: most often EADDRINUSE or EACCES.
pub fn bind(options: &Options) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(options.address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Here once, and not at every accept: six system calls less for each connection.
    socket::prepare(&socket)?;
    socket.bind(&options.address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Hands every connection to `serve`, which must not block, until `stop` completes.
///
/// At the descriptor limit it pauses instead of spinning, and calls `paused` once for each pause. When stopped it
/// still hands over what the kernel has accepted already: closing the listener would reset those clients.
pub async fn accept(
    listener: TcpListener,
    stop: impl Future<Output = ()>,
    mut serve: impl FnMut(TcpStream, SocketAddr),
    mut paused: impl FnMut(),
) {
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => serve(stream, canonical(peer)),
            Err(error) if concerns_one_client(&error) => {}
            Err(error) => {
                let address = listener.local_addr().ok().map(tracing::field::display);
                warn!(%error, address, "cannot accept, pausing");
                paused();
                tokio::select! {
                    () = &mut stop => break,
                    () = sleep(PAUSE) => {}
                }
            }
        }
    }
    if let Ok(listener) = listener.into_std() {
        hand_over_the_queue(&listener, serve);
    }
}

/// Accepts without waiting until the queue is empty; bounded, as clients may still be coming.
fn hand_over_the_queue(listener: &std::net::TcpListener, mut serve: impl FnMut(TcpStream, SocketAddr)) {
    for _ in 0..BACKLOG {
        let Ok((stream, peer)) = listener.accept() else { return };
        if stream.set_nonblocking(true).is_ok()
            && let Ok(stream) = TcpStream::from_std(stream)
        {
            serve(stream, canonical(peer));
        }
    }
}

/// A client of a dual-stack socket as it knows itself: `192.0.2.1`, not `::ffff:192.0.2.1`.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

/// Whether the error belongs to the connection that was about to be accepted (accept(2), "Error handling").
///
/// All others, EMFILE, ENFILE, ENOBUFS and ENOMEM above all, would come back at once: a plain loop spins on them.
fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INTR
                | Errno::AGAIN
                | Errno::PROTO
                | Errno::PERM
                | Errno::NETDOWN
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
        )
    )
}

/// tokio's default is 1,024: of 2,000 clients at once half wait a second for their second SYN.
const BACKLOG: i32 = 4096;
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::net::Ipv4Addr;

    fn loopback() -> Options {
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()
    }

    #[test]
    fn only_errors_of_one_client_are_passed_over() {
        for (errno, passed_over) in [
            (Errno::CONNABORTED, true),
            (Errno::PERM, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOBUFS, false),
            (Errno::NOMEM, false),
            (Errno::BADF, false),
        ] {
            assert_eq!(concerns_one_client(&errno.into()), passed_over, "{errno:?}");
        }
    }

    #[test]
    fn an_ipv4_client_of_a_dual_stack_port_keeps_its_address() {
        for (seen, known) in [
            ("[::ffff:192.0.2.1]:7", "192.0.2.1:7"),
            ("[2001:db8::1]:7", "[2001:db8::1]:7"),
        ] {
            assert_eq!(canonical(seen.parse().unwrap()), known.parse().unwrap());
        }
    }

    #[tokio::test]
    async fn what_it_accepts_is_prepared() {
        let listener = bind(&loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let accepted = accepted.unwrap().0;
        let socket = SockRef::from(&accepted);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(120)));
    }

    #[tokio::test]
    async fn what_the_kernel_accepted_before_the_stop_is_still_served() {
        let listener = bind(&loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..10)
            .map(|_| std::net::TcpStream::connect(address).unwrap())
            .collect();
        let mut served = 0;
        accept(listener, std::future::ready(()), |_, _| served += 1, || ()).await;
        assert_eq!(served, clients.len());
        std::net::TcpStream::connect(address).unwrap_err();
    }
}
