//! A client that resumes: the crate's own state machines on connections that the test makes and cuts.

use std::io;
use std::net::SocketAddr;

use switchboard::protocol::resume::Options;
use switchboard::protocol::resume::driver::{Attachment, Driver, Event, HandshakeOutput, Side};
use switchboard::protocol::resume::handshake::client_handshake::{
    ClientHandshake, HandshakeError, HandshakeResult, HandshakeStep, ResumptionSecrets,
};
use switchboard::protocol::resume::session::Session;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::DEADLINE;
use crate::harness::peer::Peer;

/// A client with a session.
pub(crate) struct Client {
    pub(crate) driver: Driver,
    pub(crate) secrets: ResumptionSecrets,
    pub(crate) link: Option<Attachment<TcpStream>>,
    program: DuplexStream,
}

impl Client {
    /// Begins a session. The second value is the other end of its stdin and stdout.
    pub(crate) async fn begin(anchor: SocketAddr) -> Result<(Self, DuplexStream), HandshakeError> {
        let (stream, attached) = exchange(anchor, ClientHandshake::begin()).await?;
        let (program, user) = duplex(64 * 1024);
        let mut client = Self {
            driver: Driver::new(Session::new(Options::default()), Side::Client),
            secrets: attached.secrets.clone(),
            link: None,
            program,
        };
        client.attach(stream, &attached);
        Ok((client, user))
    }

    /// Resumes the session on another connection. The one before, if there is one, stays open in `link`'s place.
    pub(crate) async fn resume(&mut self, anchor: SocketAddr) -> Result<(), HandshakeError> {
        self.cut();
        let opening = ClientHandshake::resume(self.secrets.clone(), self.driver.session().received()).unwrap();
        let (stream, attached) = exchange(anchor, opening).await?;
        self.attach(stream, &attached);
        Ok(())
    }

    /// Drops the connection, and returns its stream.
    pub(crate) fn cut(&mut self) -> Option<TcpStream> {
        self.driver.detach();
        Some(self.link.take()?.stream)
    }

    /// Moves bytes until something happens.
    pub(crate) async fn run(&mut self) -> Event {
        let running = self.driver.run(self.link.as_mut(), &mut self.program);
        timeout(DEADLINE, running).await.expect("the session moves")
    }

    /// Has the target send the end of a key exchange, and acknowledges it: the user may have logged in from now on.
    pub(crate) async fn exchanges_keys(&mut self, user: &mut DuplexStream, mut target: Peer) -> Peer {
        target.send(KEY_EXCHANGE);
        let mut bytes = [0; KEY_EXCHANGE.len()];
        let exchanged = async {
            user.read_exact(&mut bytes).await.unwrap();
            // The acknowledgement is in front of it.
            user.write_all(b"x").await.unwrap();
            let heard = tokio::task::spawn_blocking(move || {
                target.expect("x");
                target
            });
            heard.await.unwrap()
        };
        tokio::select! {
            event = self.run() => panic!("{event:?}"),
            target = exchanged => target,
        }
    }

    /// Expects that what the target sends comes out of the session's stdout.
    pub(crate) async fn hears(&mut self, user: &mut DuplexStream, target: &mut Peer) {
        target.send("hello");
        let mut bytes = [0; 5];
        tokio::select! {
            event = self.run() => panic!("{event:?}"),
            read = user.read_exact(&mut bytes) => assert_eq!(read.unwrap(), 5),
        }
        assert_eq!(&bytes, b"hello");
    }

    fn attach(&mut self, stream: TcpStream, attached: &HandshakeResult) {
        let exchanged = HandshakeOutput {
            answer: Vec::new(),
            received: attached.received,
            rest: &attached.rest,
        };
        self.link = Some(self.driver.attach(stream, exchanged));
    }
}

/// Begins the exchange of a resume, and returns the connection with the proof that is still to be sent on it.
pub(crate) async fn proof(anchor: SocketAddr, secrets: &ResumptionSecrets) -> (TcpStream, Vec<u8>) {
    let mut opening = ClientHandshake::resume(secrets.clone(), 0).unwrap();
    let mut stream = TcpStream::connect(anchor).await.unwrap();
    stream.write_all(&opening.take_output()).await.unwrap();
    let mut bytes = vec![0; 4096];
    while !opening.is_proved() {
        let read = timeout(DEADLINE, stream.read(&mut bytes)).await.unwrap().unwrap();
        assert!(read > 0);
        assert!(matches!(opening.receive(&bytes[..read]), Ok(HandshakeStep::NeedMore)));
    }
    (stream, opening.take_output())
}

/// Goes through an exchange.
pub(crate) async fn exchange(
    anchor: SocketAddr,
    mut opening: ClientHandshake,
) -> Result<(TcpStream, HandshakeResult), HandshakeError> {
    let mut stream = TcpStream::connect(anchor).await.unwrap();
    let exchanged = async {
        let mut bytes = vec![0; 4096];
        loop {
            // An anchor that refuses may close before all is written: its reason is still read.
            stream.write_all(&opening.take_output()).await.ok();
            let read = stream.read(&mut bytes).await.unwrap_or_default();
            if read == 0 {
                return Err(HandshakeError::Fault);
            }
            match opening.receive(&bytes[..read])? {
                HandshakeStep::NeedMore => {}
                HandshakeStep::Attached(attached) => return Ok(attached),
                HandshakeStep::Plain(bytes) => panic!("no anchor: {bytes:?}"),
            }
        }
    };
    let attached = timeout(DEADLINE, exchanged).await.expect("the exchange ends")?;
    Ok((stream, attached))
}

/// Runs a test on a runtime of its own.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test)
}

/// The bytes of a stream from an offset on: no two places of it look alike.
pub(crate) fn pattern(offset: usize, length: usize) -> Vec<u8> {
    let word = |index: usize| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (offset..offset + length).map(|at| word(at / 8)[at % 8]).collect()
}

/// Writes so many bytes of the pattern to the user's end, and reads as many of it back.
pub(crate) async fn echo(user: DuplexStream, length: usize) -> io::Result<()> {
    let (mut reader, mut writer) = split(user);
    let write = async {
        for offset in (0..length).step_by(CHUNK) {
            writer.write_all(&pattern(offset, CHUNK.min(length - offset))).await?;
        }
        writer.shutdown().await
    };
    let read = async {
        let mut bytes = vec![0; CHUNK];
        for offset in (0..length).step_by(CHUNK) {
            let expected = pattern(offset, CHUNK.min(length - offset));
            let bytes = &mut bytes[..expected.len()];
            reader.read_exact(bytes).await?;
            assert!(*bytes == expected, "other bytes at {offset}");
        }
        assert_eq!(reader.read(&mut bytes).await?, 0);
        Ok(())
    };
    tokio::try_join!(write, read).map(|_| ())
}

/// An identification and SSH_MSG_NEWKEYS.
const KEY_EXCHANGE: [u8; 27] = *b"SSH-2.0-x\r\n\0\0\0\x0c\x0a\x15\0\0\0\0\0\0\0\0\0\0";
const CHUNK: usize = 32 * 1024;
