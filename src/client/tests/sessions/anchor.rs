//! An anchor in the test's process: the handshake, a registry and a driver for each session.

use super::*;

use crate::protocol::resume::driver::{Attachment, Driver, Event, HandshakeOutput, Side};
use crate::protocol::resume::frame::Frame;
use crate::protocol::resume::handshake::anchor_handshake::{self, AnchorHandshake, AnchorHandshakeStep};
use crate::protocol::resume::keys::{AgreementKey, Keys, Nonces, ResumeClaim, SessionId};
use crate::protocol::resume::reason::{DetachReason, EndReason};
use crate::protocol::resume::registry::Registry;
use crate::protocol::resume::session;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

pub(in crate::client::tests) type Wire = Box<dyn dial::io::Io>;

/// A message to the task of a session.
pub(in crate::client::tests) enum Order {
    /// A connection that has proved the session carries it next.
    Carry(Box<Carried>),
    /// The connection is left.
    Leave(DetachReason),
    /// The session is over.
    End(EndReason),
}

pub(in crate::client::tests) struct Carried {
    stream: Wire,
    /// The bytes before ATTACHED.
    answer: Vec<u8>,
    nonces: Nonces,
    received: u64,
    rest: Vec<u8>,
}

/// The SSH server beside a session, and the session's task.
pub(in crate::client::tests) struct Beside {
    pub(in crate::client::tests) sshd: DuplexStream,
    pub(in crate::client::tests) orders: UnboundedSender<Order>,
    pub(in crate::client::tests) ended: JoinHandle<Option<EndReason>>,
}

pub(in crate::client::tests) struct Anchor {
    key: AgreementKey,
    sessions: Mutex<Registry<UnboundedSender<Order>>>,
    begun: UnboundedSender<Beside>,
}

impl Anchor {
    /// Returns an anchor, and the sessions that begin at it.
    pub(in crate::client::tests) fn new() -> (Arc<Self>, UnboundedReceiver<Beside>) {
        let (begun, receiver) = mpsc::unbounded_channel();
        let anchor = Self {
            key: AgreementKey::generate().unwrap(),
            sessions: Mutex::new(Registry::new(2).unwrap()),
            begun,
        };
        (Arc::new(anchor), receiver)
    }

    /// Forgets all sessions, whose tasks end.
    pub(in crate::client::tests) fn forget(&self) {
        *self.sessions.lock() = Registry::new(2).unwrap();
    }

    /// Answers one connection.
    pub(in crate::client::tests) async fn serve(&self, mut stream: Wire) {
        let mut welcome = AnchorHandshake::new(&self.key).unwrap();
        let mut buffer = Vec::new();
        loop {
            let output = welcome.take_output();
            if stream.write_all(&output).await.is_err() || stream.flush().await.is_err() {
                return;
            }
            buffer.clear();
            if !matches!(stream.read_buf(&mut buffer).await, Ok(1..)) {
                return;
            }
            let step = welcome.receive(&buffer, &self.key);
            let answer = welcome.take_output();
            match step {
                Ok(AnchorHandshakeStep::NeedMore) => stream.write_all(&answer).await.unwrap_or_default(),
                Ok(AnchorHandshakeStep::Plain(_)) | Err(_) => {
                    stream.write_all(&answer).await.unwrap_or_default();
                    return stream.shutdown().await.unwrap_or_default();
                }
                Ok(AnchorHandshakeStep::New(new)) => {
                    let carried = Carried {
                        stream,
                        answer,
                        nonces: new.nonces,
                        received: 0,
                        rest: new.rest,
                    };
                    return self.begin(new.keys, carried);
                }
                Ok(AnchorHandshakeStep::Resume(resume)) => {
                    let proved = self
                        .sessions
                        .lock()
                        .prove(&resume.claim, &resume.proof)
                        .map(|(_, orders)| orders.clone());
                    let Ok(orders) = proved else {
                        let gone = [answer.as_slice(), &[9, 0, 0, 1, 4]].concat();
                        stream.write_all(&gone).await.unwrap_or_default();
                        return stream.shutdown().await.unwrap_or_default();
                    };
                    let carried = Carried {
                        stream,
                        answer,
                        nonces: resume.claim.nonces,
                        received: resume.claim.received,
                        rest: resume.rest,
                    };
                    orders.send(Order::Carry(Box::new(carried))).unwrap_or_default();
                    return;
                }
            }
        }
    }

    fn begin(&self, keys: Keys, first: Carried) {
        let (orders, receiver) = mpsc::unbounded_channel();
        let id = self.sessions.lock().open(keys.clone(), orders.clone()).unwrap();
        let (program, sshd) = tokio::io::duplex(10_000);
        orders.send(Order::Carry(Box::new(first))).unwrap_or_default();
        let carrying = Carrying {
            keys,
            id,
            program,
            orders: receiver,
        };
        let ended = tokio::spawn(carrying.run());
        self.begun.send(Beside { sshd, orders, ended }).unwrap_or_default();
    }
}

struct Carrying {
    keys: Keys,
    id: SessionId,
    program: DuplexStream,
    orders: UnboundedReceiver<Order>,
}

impl Carrying {
    /// Returns the end that both sides have agreed on. `None`: the session was forgotten.
    async fn run(mut self) -> Option<EndReason> {
        let options = crate::protocol::resume::Options::default();
        let mut driver = Driver::new(session::Session::new(options), Side::Anchor);
        let mut link: Option<Attachment<Wire>> = None;
        let mut left = Vec::new();
        loop {
            let order = tokio::select! {
                event = driver.run(link.as_mut(), &mut self.program) => {
                    match event {
                        Event::Over(end) => return Some(end),
                        Event::Detached(_) => link = None,
                        Event::Confirmed(_) => {}
                        Event::SourceFailed(_) | Event::SinkFailed(_) => driver.session_mut().end(EndReason::Reset),
                    }
                    continue;
                }
                order = self.orders.recv() => order?,
            };
            match order {
                Order::Leave(going) => {
                    let rest = driver.detach();
                    let (mut leaving, mut rest) = link.take().zip(rest).unwrap();
                    Frame::Going(going).encode(&mut rest);
                    leaving.stream.write_all(&rest).await.unwrap();
                    leaving.stream.flush().await.unwrap();
                    // It is the client that closes it.
                    left.push(leaving);
                }
                Order::End(end) => driver.session_mut().end(end),
                Order::Carry(carried) => {
                    let Carried {
                        stream,
                        mut answer,
                        nonces,
                        received,
                        rest,
                    } = *carried;
                    let claim = ResumeClaim {
                        nonces,
                        id: self.id,
                        received: driver.session().received(),
                    };
                    anchor_handshake::attached(&self.keys, &claim).encode(&mut answer);
                    link = Some(driver.attach(
                        stream,
                        HandshakeOutput {
                            answer,
                            received,
                            rest: &rest,
                        },
                    ));
                }
            }
        }
    }
}
