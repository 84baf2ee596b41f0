//! A relay between a client and the proxy, which makes connections fail in every way.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::faults::{Fault, Faults};
use super::owner::owner_of;

/// A relay in front of an address.
pub(crate) struct Middle {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    to: Mutex<SocketAddr>,
    /// The faults to come, in this order.
    faults: Mutex<Faults>,
    /// The faults so far.
    happened: Mutex<Vec<Fault>>,
    /// How many connections were cut on demand.
    cuts: AtomicUsize,
    is_closed: AtomicBool,
    open: Mutex<Vec<Arc<Connection>>>,
    /// Connections that are silent: they stay open to the end of the test, and what is sent on them is not read.
    silent: Mutex<Vec<Arc<Connection>>>,
    /// Held while a client is stopped: no test ends in that time.
    stopping: Mutex<()>,
}

/// Both sides of one connection.
struct Connection {
    client: TcpStream,
    proxy: TcpStream,
    /// Neither bytes nor ends pass any more.
    is_silent: AtomicBool,
    /// The bytes of both directions that still pass before the next fault.
    budget: AtomicUsize,
}

impl Middle {
    /// Leads to that address. Each of these faults comes behind some bytes of a connection.
    pub(crate) fn start(to: SocketAddr, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            to: Mutex::new(to),
            faults: Mutex::new(faults),
            happened: Mutex::default(),
            cuts: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            open: Mutex::default(),
            silent: Mutex::default(),
            stopping: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.is_closed.load(Ordering::Relaxed) {
                    return;
                }
                accepting.carry(client);
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
        self.fail_all(if by_reset { Fault::Reset } else { Fault::Close });
    }

    /// Has this happen to all connections that there are.
    pub(crate) fn fail_all(&self, fault: Fault) {
        for connection in self.shared.open.lock().unwrap().drain(..) {
            self.shared.fail(&connection, fault);
            self.shared.cuts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many connections were cut by the test.
    pub(crate) fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::Relaxed)
    }

    /// Fails if a fault has not happened: then the test has shown less than it says.
    #[track_caller]
    pub(crate) fn has_failed_in_every_way(&self) {
        let faults = self.shared.faults.lock().unwrap();
        assert!(faults.is_empty(), "{faults:?} have not happened: more bytes are needed");
    }

    /// Returns the faults so far, and their seed, for the message of a failing test.
    pub(crate) fn log(&self) -> String {
        let seed = self.shared.faults.lock().unwrap().seed();
        let happened = self.shared.happened.lock().unwrap();
        format!("SEED={seed}, {} faults: {happened:?}", happened.len())
    }
}

impl Drop for Middle {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        self.cut(true);
        for connection in self.shared.silent.lock().unwrap().drain(..) {
            // A thread may wait for it.
            connection.client.shutdown(Shutdown::Both).ok();
            connection.proxy.shutdown(Shutdown::Both).ok();
        }
        drop(self.shared.stopping.lock());
    }
}

impl Shared {
    fn carry(self: &Arc<Self>, client: TcpStream) {
        // Without a proxy the connection just ends.
        let to = *self.to.lock().unwrap();
        let Ok(proxy) = TcpStream::connect(to) else {
            return;
        };
        for stream in [&client, &proxy] {
            stream.set_nodelay(true).unwrap();
        }
        let connection = Arc::new(Connection {
            client,
            proxy,
            is_silent: AtomicBool::new(false),
            budget: AtomicUsize::new(self.faults.lock().unwrap().budget()),
        });
        self.open.lock().unwrap().push(Arc::clone(&connection));
        for is_upload in [true, false] {
            let (connection, shared) = (Arc::clone(&connection), Arc::clone(self));
            thread::spawn(move || {
                shared.pass(&connection, is_upload);
                if !is_upload {
                    let mut open = shared.open.lock().unwrap();
                    open.retain(|open| !Arc::ptr_eq(open, &connection));
                }
            });
        }
    }

    /// Passes one direction on to its end.
    fn pass(&self, connection: &Arc<Connection>, is_upload: bool) {
        let Connection { client, proxy, .. } = &**connection;
        let (mut from, mut to) = if is_upload { (client, proxy) } else { (proxy, client) };
        let mut buffer = [0; 16 * 1024];
        loop {
            let read = from.read(&mut buffer);
            if connection.is_silent() {
                return;
            }
            let Ok(read @ 1..) = read else {
                to.shutdown(Shutdown::Write).ok();
                return;
            };
            if !connection.pays_for(read) {
                self.next_fault(connection, read);
                if connection.is_silent() {
                    return;
                }
            }
            if to.write_all(&buffer[..read]).is_err() && !connection.is_silent() {
                self.fail(connection, Fault::Reset);
                return;
            }
        }
    }

    /// Has the next fault happen to that connection, whose budget is too small for so many bytes.
    fn next_fault(&self, connection: &Arc<Connection>, bytes: usize) {
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            // The other direction may have come first.
            if connection.is_silent() || connection.pays_for(bytes) {
                return;
            }
            connection.budget.store(faults.budget(), Ordering::Relaxed);
            let Some(fault) = faults.next() else {
                return;
            };
            self.happened.lock().unwrap().push(fault);
            connection.silence(fault);
            fault
        };
        self.fail(connection, fault);
    }

    fn fail(&self, connection: &Arc<Connection>, fault: Fault) {
        connection.silence(fault);
        if matches!(fault, Fault::Silence | Fault::ResetOfClient | Fault::ResetOfProxy) {
            self.silent.lock().unwrap().push(Arc::clone(connection));
        }
        let Connection { client, proxy, .. } = &**connection;
        match fault {
            Fault::Close => {
                for stream in [client, proxy] {
                    stream.shutdown(Shutdown::Both).ok();
                }
            }
            Fault::Reset => {
                reset(client);
                reset(proxy);
            }
            Fault::Silence => {}
            Fault::ResetOfClient => reset(client),
            Fault::ResetOfProxy => reset(proxy),
            Fault::Stop => self.stop(connection),
        }
    }

    /// Stops the client's process for a moment.
    fn stop(&self, connection: &Connection) {
        let _stopping = self.stopping.lock().unwrap();
        let Connection { client, .. } = connection;
        let ends = client.peer_addr().ok().zip(client.local_addr().ok());
        let client = ends.and_then(|(from, to)| owner_of(from, to));
        let Some(client) = client.filter(|_| !self.is_closed.load(Ordering::Relaxed)) else {
            return;
        };
        let signal = |signal| kill_process(Pid::from_raw(client).unwrap(), signal).ok();
        if signal(Signal::STOP).is_some() {
            thread::sleep(MOMENT);
            signal(Signal::CONT);
        }
    }
}

impl Connection {
    fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// From now on nothing of it is passed on that would look like another fault, above all no end.
    fn silence(&self, fault: Fault) {
        if fault != Fault::Stop {
            self.is_silent.store(true, Ordering::Relaxed);
        }
    }

    /// Takes bytes from the budget before its next fault. Returns whether it had them.
    fn pays_for(&self, bytes: usize) -> bool {
        let left = |left: usize| left.checked_sub(bytes);
        self.budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left)
            .is_ok()
    }
}

/// Sends a reset, whether another thread reads from the connection or not (tcp(7), connect(2)).
fn reset(stream: &TcpStream) {
    // It sends nothing, and wakes the reader, for which the kernel would refuse the reset.
    stream.shutdown(Shutdown::Read).ok();
    while rustix::net::connect_unspec(stream) == Err(Errno::BUSY) {
        thread::yield_now();
    }
}

/// How long a client is stopped.
const MOMENT: Duration = Duration::from_millis(100);
