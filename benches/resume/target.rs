//! A target that identifies itself as an SSH server does, and does what the client's identification asks for.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::programs::thread_time;

/// The target.
pub struct Target {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Processor time of the bulk that is over, in nanoseconds.
    bulk: AtomicU64,
    /// Connections that are only held.
    held: Mutex<Vec<TcpStream>>,
}

impl Target {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A connection that is cut ends its thread, and nothing else.
                thread::spawn(move || serve(stream, &state).unwrap_or_default());
            }
        });
        Self { address, state }
    }

    /// The processor time of the threads whose bulk is over.
    pub fn bulk_time(&self) -> Duration {
        Duration::from_nanos(self.state.bulk.load(Ordering::Relaxed))
    }

    /// Writes to each connection that is held until none takes more for a second. Returns the bytes.
    pub fn flood(&self) -> usize {
        let chunk = vec![b'f'; 64 * 1024];
        let mut held = self.state.held.lock().unwrap();
        held.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let (mut written, mut idle_rounds) = (0, 0);
        while idle_rounds < 10 {
            let before = written;
            for stream in held.iter_mut() {
                written += stream.write(&chunk).unwrap_or_default();
            }
            idle_rounds = if written == before { idle_rounds + 1 } else { 0 };
            thread::sleep(Duration::from_millis(if written == before { 100 } else { 0 }));
        }
        written
    }
}

fn serve(mut stream: TcpStream, state: &State) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(b"SSH-2.0-target\r\n")?;
    let mut line = String::new();
    // Bytes after the line are the reader's.
    let mut reader = BufReader::with_capacity(CHUNK, stream.try_clone()?);
    reader.read_line(&mut line)?;
    let before = thread_time();
    let asked = line.trim_end().strip_prefix("SSH-2.0-bench_").unwrap_or_default();
    match asked.split_once('_').unwrap_or((asked, "0")) {
        ("echo", _) => echo(reader, stream)?,
        ("hold", _) => {
            let mut byte = [0];
            reader.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
            state.held.lock().unwrap().push(stream);
        }
        ("sink", _) => {
            let mut chunk = vec![0; CHUNK];
            while reader.get_mut().read(&mut chunk)? > 0 {}
            state.add(before);
            stream.write_all(b".")?;
        }
        ("source", bytes) => {
            let chunk = vec![b's'; CHUNK];
            let mut left: usize = bytes.parse().unwrap_or_default();
            while left > 0 {
                left -= stream.write(chunk.get(..left).unwrap_or(&chunk))?;
            }
            state.add(before);
            stream.shutdown(Shutdown::Write)?;
            reader.read_to_end(&mut Vec::new())?;
        }
        _ => return Err(ErrorKind::InvalidData.into()),
    }
    Ok(())
}

fn echo(mut reader: impl Read, mut writer: impl Write) -> std::io::Result<()> {
    let mut chunk = [0; 1024];
    loop {
        match reader.read(&mut chunk)? {
            0 => return Ok(()),
            read => writer.write_all(&chunk[..read])?,
        }
    }
}

impl State {
    fn add(&self, before: Duration) {
        let used = thread_time().saturating_sub(before);
        self.bulk
            .fetch_add(u64::try_from(used.as_nanos()).unwrap(), Ordering::Relaxed);
    }
}

const CHUNK: usize = 64 * 1024;
