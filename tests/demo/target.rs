//! The demo's target where there is no sshd: it speaks the first line of SSH (RFC 4253 section 4.2) and no more.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    for stream in listener.incoming() {
        // One client's fault is not the next one's.
        thread::spawn(|| stream.and_then(greet));
    }
    Ok(())
}

fn greet(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(b"SSH-2.0-switchboard_demo\r\n")?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    write!(stream, "the target heard {:?} and hangs up\r\n", line.trim_end())
}
