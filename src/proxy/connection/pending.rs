//! A connection, or an HTTP/2 stream, that has not been answered: its client, its age, and the end of the wait for it.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::in_band;
use crate::net::transport::Transport;
use crate::proxy::http::{Exchange, Refusals};
use crate::proxy::open_tunnels::facts::Facts;
use crate::proxy::record::{Answered, Record};
use crate::tunnel::limits::owners::{LimitOwner, OwnerName, network};
use crate::tunnel::limits::unfinished::{Membership, Standing, Ticket};
use crate::tunnel::outcome::{Denial, Refusal};
use crate::tunnel::proxy_header::Addresses;

/// A connection, or an HTTP/2 stream, from its accept until it is a tunnel or has read its refusal.
#[derive(Debug)]
pub(super) struct Pending<'a> {
    pub(super) shared: &'a Shared,
    /// The metrics and the log line, whatever becomes of it.
    pub(super) record: Box<Record<'a>>,
    /// The client's address and the one that it connected to: the peer's, until the PROXY header has been read.
    pub(super) addresses: Addresses,
    /// The admission of the client's requests, as far as it is known. A refusal is sent once the client's protocol is known.
    pub(super) admission: Result<(), Refusal>,
    /// The way in which refusals are told on the port.
    pub(super) refusals: Refusals,
    /// True if the target, as far as its name may be told, carries SSH only. An unknown one does.
    pub(super) leads_to_ssh: bool,
    /// The limits that all connections of the client share; `None` before the PROXY header has been read.
    client: Option<Arc<LimitOwner>>,
}

impl<'a> Pending<'a> {
    /// A connection that has just been accepted. Its number, drawn here, is its age in every set that it joins.
    pub(super) fn accept(peer: SocketAddr, local: Option<SocketAddr>, refusals: Refusals, shared: &'a Shared) -> Self {
        let mut record = Record::open(shared.telemetry(), shared.ids.next(), peer, Instant::now());
        record.facts.locals = [local, None];
        Self {
            shared,
            record,
            addresses: Addresses::of(local, peer),
            admission: Ok(()),
            refusals,
            leads_to_ssh: true,
            client: None,
        }
    }

    /// Names the client, which is known now. The connection counts towards its connect rate.
    pub(super) fn introduce(&mut self, addresses: Addresses) {
        self.record.facts.client = addresses.source;
        self.addresses = addresses;
        let network = network(addresses.source.ip());
        self.client = Some(self.shared.clients.get(OwnerName::Client(network)));
        self.admission = self.shared.connect_rate.count(network);
    }

    /// Returns the owner of the client's limits. There is one before any request.
    pub(super) fn client(&self) -> Result<Arc<LimitOwner>, Refusal> {
        self.client.clone().ok_or(Refusal::Internal)
    }

    /// A further request on this HTTP/2 connection. It is judged as a connection is: first by the client's connect
    /// rate, then by its certificate, whose signatures cost processor time to verify.
    pub(super) fn new_stream(&self) -> Self {
        let record = self.record.request(self.shared.ids.next());
        let is_trusted = |()| match record.is_trusted(&self.shared.tls) {
            true => Ok(()),
            false => Err(Refusal::CertificateLapsed),
        };
        let admission = self.shared.connect_rate.count(network(self.addresses.source.ip()));
        Self {
            admission: admission.and_then(is_trusted),
            record,
            leads_to_ssh: true,
            client: self.client.clone(),
            ..*self
        }
    }

    /// Completes when an HTTP/2 connection without a stream has waited too long for the next one. The wait begins now:
    /// its last request has been answered. It is younger than all before.
    pub(super) async fn until_idle(&self) -> Refusal {
        self.overdue(Instant::now(), self.shared.ids.next().number).await
    }

    /// Takes one step towards the request.
    ///
    /// # Errors
    /// The step's own refusal, or what ended the wait for it: the head deadline, an eviction, or the drain.
    pub(super) async fn step<T>(&self, step: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        tokio::select! {
            biased;
            done = step => done,
            refusal = self.until_late() => Err(refusal),
        }
    }

    /// Completes when the wait for the request is over.
    pub(super) async fn until_late(&self) -> Refusal {
        let Facts { accepted, id, .. } = self.record.facts;
        self.overdue(accepted, id.number).await
    }

    /// Completes when a connection that has its refusal, and that its client has not closed yet, is evicted.
    pub(super) async fn until_evicted(&self) -> Refusal {
        let number = self.record.facts.id.number;
        self.join(number, Standing::Refused).evicted().await;
        Refusal::Crowded
    }

    /// When the request has to be complete.
    pub(super) fn deadline(&self) -> Instant {
        self.record.facts.accepted + self.shared.timeouts.head
    }

    /// Sends a refusal, accounts for it, and gives the client time to read it.
    pub(super) async fn refuse(mut self, exchange: impl Exchange, denial: &Denial) {
        let (program, asked_for) = exchange.sender();
        let is_in_band = self.leads_to_ssh && self.refusals.are_in_band(program) && denial.refusal.may_be_in_band();
        let told = if is_in_band {
            let message = in_band::of_refusal(denial, asked_for, self.record.facts.id);
            self.record.answered = Answered::Ssh;
            tokio::select! {
                biased;
                told = exchange.disconnect(&message) => told,
                // It waits for its client, as a connection that has its refusal does.
                _ = self.until_evicted() => None,
            }
        } else {
            self.record.answered = Answered::of(denial.refusal);
            exchange.refuse(denial).await
        };
        match told {
            Some(mut transport) => {
                let close = async {
                    if is_in_band {
                        in_band::await_reader(&mut transport).await;
                    }
                    transport.close_gently().await;
                };
                self.conclude(denial.refusal, close).await;
            }
            None => self.drop_silently(denial.refusal),
        }
    }

    /// Accounts for a refusal that was sent, and keeps the connection until `close` has let the client read it.
    ///
    /// Other connections may evict this one. Its client may lose the refusal then: a close with unread bytes is a reset,
    /// which discards what has not been read.
    pub(super) async fn conclude(mut self, refusal: Refusal, close: impl Future<Output = ()>) {
        self.record.refused(refusal);
        // This connection was evicted: its descriptor is needed at once.
        if refusal == Refusal::Crowded {
            return;
        }
        tokio::select! {
            // First: its first poll sends the end of stream.
            biased;
            () = close => {}
            _ = self.until_evicted() => {}
            () = self.shared.drain.clone().ended() => {}
        }
    }

    /// Accounts for a refusal that cannot be sent: the client has left, or no protocol is negotiated to send it in.
    pub(super) fn drop_silently(mut self, refusal: Refusal) {
        self.record.answered = Answered::Not;
        self.record.refused(refusal);
    }

    /// Completes when a wait that began at `since` is over. Waits are in the order of their numbers.
    async fn overdue(&self, since: Instant, number: u64) -> Refusal {
        let (standing, evicted) = match self.admission {
            Ok(()) => (Standing::Welcome, Refusal::Crowded),
            Err(refusal) => (Standing::Refusable, refusal),
        };
        let membership = self.join(number, standing);
        tokio::select! {
            () = sleep_until(since + self.shared.timeouts.head) => Refusal::HeadTimeout,
            () = membership.evicted() => evicted,
            () = self.shared.drain.stopped(number) => Refusal::Draining,
        }
    }

    fn join(&self, number: u64, standing: Standing) -> Membership<'_> {
        let sets = [
            Some(&self.shared.unfinished),
            self.client.as_ref().map(|client| &client.unfinished),
        ];
        Membership::join(sets, Ticket { standing, number })
    }
}
