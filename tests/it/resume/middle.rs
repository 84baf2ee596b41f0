//! What is between a client and the proxy: it passes bytes on, cuts connections, and falls silent.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use socket2::SockRef;

/// A relay in front of an address.
pub(crate) struct Middle {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    to: Mutex<SocketAddr>,
    /// How many connections are cut after a while.
    left: AtomicUsize,
    cuts: AtomicUsize,
    is_closed: AtomicBool,
    open: Mutex<Vec<Arc<Connection>>>,
}

/// Both sides of one connection.
struct Connection {
    client: TcpStream,
    proxy: TcpStream,
    is_silent: AtomicBool,
    /// The bytes of both directions that still pass before it is cut.
    budget: Option<AtomicUsize>,
}

impl Middle {
    /// Leads to that address, and cuts the first so many connections, each after some bytes.
    pub(crate) fn start(to: SocketAddr, cuts: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            to: Mutex::new(to),
            left: AtomicUsize::new(cuts),
            cuts: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            open: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for (number, client) in listener.incoming().map_while(Result::ok).enumerate() {
                if accepting.is_closed.load(Ordering::Relaxed) {
                    return;
                }
                accepting.carry(client, number);
            }
        });
        Self { address, shared }
    }

    /// Leads later connections to another address.
    pub(crate) fn lead_to(&self, to: SocketAddr) {
        *self.shared.to.lock().unwrap() = to;
    }

    /// Cuts all connections, with a reset or in order.
    pub(crate) fn cut(&self, by_reset: bool) {
        for connection in self.shared.open.lock().unwrap().drain(..) {
            connection.cut(by_reset);
            self.shared.cuts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets nothing pass any more on the connections that there are, and closes none.
    pub(crate) fn fall_silent(&self) {
        for connection in self.shared.open.lock().unwrap().iter() {
            connection.is_silent.store(true, Ordering::Relaxed);
        }
    }

    /// How many connections were cut.
    pub(crate) fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Middle {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        self.cut(true);
    }
}

impl Shared {
    fn carry(self: &Arc<Self>, client: TcpStream, number: usize) {
        // Without a proxy the connection just ends.
        let to = *self.to.lock().unwrap();
        let Ok(proxy) = TcpStream::connect(to) else {
            return;
        };
        for stream in [&client, &proxy] {
            stream.set_nodelay(true).unwrap();
        }
        let is_cut = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok();
        // Behind the handshake and the exchange: a first connection that fails ends ssh, as without sessions.
        let budget = 12_000 + number.wrapping_mul(7_919) % 97 * 2_500;
        let connection = Arc::new(Connection {
            client,
            proxy,
            is_silent: AtomicBool::new(false),
            budget: is_cut.then(|| AtomicUsize::new(budget)),
        });
        self.open.lock().unwrap().push(Arc::clone(&connection));
        for is_upload in [true, false] {
            let (connection, shared) = (Arc::clone(&connection), Arc::clone(self));
            thread::spawn(move || {
                if connection.pass(is_upload) {
                    shared.cuts.fetch_add(1, Ordering::Relaxed);
                }
                if !is_upload {
                    shared
                        .open
                        .lock()
                        .unwrap()
                        .retain(|open| !Arc::ptr_eq(open, &connection));
                }
            });
        }
    }
}

impl Connection {
    /// Passes one direction on to its end. Whether the connection was cut here.
    fn pass(&self, is_upload: bool) -> bool {
        let (mut from, mut to) = (&self.client, &self.proxy);
        if !is_upload {
            (from, to) = (to, from);
        }
        let mut buffer = [0; 16 * 1024];
        loop {
            let Ok(read @ 1..) = from.read(&mut buffer) else {
                to.shutdown(Shutdown::Write).ok();
                return false;
            };
            if self.is_silent.load(Ordering::Relaxed) {
                continue;
            }
            if let Some(budget) = &self.budget {
                let left = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(read));
                if left.is_err() {
                    self.cut(read % 2 == 0);
                    return true;
                }
            }
            if to.write_all(&buffer[..read]).is_err() {
                self.cut(true);
                return false;
            }
        }
    }

    fn cut(&self, by_reset: bool) {
        for stream in [&self.client, &self.proxy] {
            if by_reset {
                SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO)).ok();
            }
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}
