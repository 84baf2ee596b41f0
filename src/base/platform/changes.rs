//! Changes of this host's addresses and routes, as the kernel tells them (rtnetlink(7)).

use std::future::pending;
use std::io;
use std::os::unix::net;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use tokio::net::UnixDatagram;

/// A socket that receives a message of each change.
#[derive(Debug)]
pub(crate) struct Changes {
    /// To Tokio a netlink socket is a datagram socket like others: it is polled and received from. `None` once it has failed.
    socket: Option<UnixDatagram>,
}

impl Changes {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without another protocol it is NETLINK_ROUTE, which is 0.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        // Of the number 0: the kernel chooses one.
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        let socket = UnixDatagram::from_std(net::UnixDatagram::from(socket))?;
        Ok(Self { socket: Some(socket) })
    }

    /// Completes when something has changed since the last time. It may be dropped at any time.
    pub(crate) async fn next(&mut self) {
        let Some(socket) = &self.socket else {
            return pending().await;
        };
        while socket.readable().await.is_ok() {
            match take_all(socket) {
                Ok(true) => return,
                Ok(false) => {}
                Err(_) => break,
            }
        }
        self.socket = None;
        pending().await
    }
}

/// Takes what the socket holds, up to a bound, and tells whether it was anything.
fn take_all(socket: &UnixDatagram) -> io::Result<bool> {
    let mut has_changed = false;
    for _ in 0..MOST_MESSAGES {
        // That there is a message is enough: the kernel cuts off what does not fit.
        match socket.try_recv(&mut [0; 16]) {
            Ok(_) => has_changed = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // Messages were dropped, of which each was a change.
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => has_changed = true,
            Err(error) => return Err(error),
        }
    }
    Ok(has_changed)
}

/// RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR and RTMGRP_IPV6_ROUTE of linux/rtnetlink.h.
const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;
/// Messages of one look: a network that comes and goes sends some dozens.
const MOST_MESSAGES: usize = 1_000;
