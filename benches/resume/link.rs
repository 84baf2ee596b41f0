//! A link between a client and the proxy that can be cut.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub struct Link {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_down: bool,
    carried: Vec<TcpStream>,
}

impl Link {
    pub fn to(proxy: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                carry(client, proxy, &shared).unwrap_or_default();
            }
        });
        Self { address, state }
    }

    /// Cuts all connections. Others are closed at once until the link is back.
    pub fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_down = true;
        for stream in state.carried.drain(..) {
            stream.shutdown(Shutdown::Both).unwrap_or_default();
        }
    }

    pub fn restore(&self) {
        self.state.lock().unwrap().is_down = false;
    }
}

fn carry(client: TcpStream, proxy: SocketAddr, state: &Mutex<State>) -> io::Result<()> {
    let mut state = state.lock().unwrap();
    if state.is_down {
        return Ok(());
    }
    let server = TcpStream::connect(proxy)?;
    for (mut from, mut to) in [
        (client.try_clone()?, server.try_clone()?),
        (server.try_clone()?, client.try_clone()?),
    ] {
        from.set_nodelay(true)?;
        thread::spawn(move || {
            io::copy(&mut from, &mut to).unwrap_or_default();
            to.shutdown(Shutdown::Write).unwrap_or_default();
        });
    }
    state.carried.extend([client, server]);
    Ok(())
}
