//! A pending request: its client, its age, and the deadline of its wait.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::in_band;
use super::record::RequestRecord;
use super::{Port, Shared};
use crate::base::boxed::boxed;
use crate::net::tls::ClientTls;
use crate::net::transport::Transport;
use crate::proxy::exchange::Exchange;
use crate::proxy::http::{Forwarding, RefusalMode, WebSocketOptions, http2};
use crate::proxy::record::RequestInfo;
use crate::proxy::record::line::AnswerKind;
use crate::tunnel::limits::owners::{LimitOwner, OwnerName, network};
use crate::tunnel::limits::unfinished::{EvictionClass, EvictionKey, UnfinishedGuard};
use crate::tunnel::outcome::{Refusal, RefusalReason};
use crate::tunnel::proxy_header::AddressPair;

/// A connection, or an HTTP/2 stream, from its accept until it is a tunnel or its refusal has been read.
#[derive(Debug)]
pub(super) struct PendingRequest<'a> {
    pub(super) shared: &'a Shared,
    /// Its metrics and its access line.
    pub(super) record: Box<RequestRecord<'a>>,
    /// The client's address and the one that it connected to: the peer's, until the PROXY header has been read.
    pub(super) addresses: AddressPair,
    /// The client's admission, once it is known. A refusal is sent when the client's protocol is known.
    pub(super) admission: Result<(), RefusalReason>,
    /// How the port sends refusals.
    pub(super) refusals: RefusalMode,
    /// True if the target is SSH only, or the request is not authorized yet: the form of a refusal must not tell.
    pub(super) target_is_ssh: bool,
    /// True if it may start the workload of its target: a user has asked for a login, not a program for the rest of one.
    pub(super) may_wake: bool,
    /// The WebSocket of the port; `None` if it has none.
    pub(super) websocket_options: Option<Arc<WebSocketOptions>>,
    /// The way of the request before its last hop.
    pub(super) way: Way,
    /// The limits that all connections of the client share; `None` before the PROXY header has been read.
    client: Option<Arc<LimitOwner>>,
}

/// The way of a request before its last hop, by which a credential in clear is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The peer is its client, as far as can be seen.
    Direct,
    /// It was forwarded: its client is elsewhere, and may have sent it in clear.
    Forwarded,
    /// It was forwarded by a trusted load balancer, which takes TLS only.
    Encrypted,
}

impl<'a> PendingRequest<'a> {
    /// Creates the pending request of an accepted connection. Its number orders it by age in every set that it joins.
    pub(super) fn new(peer: SocketAddr, local: Option<SocketAddr>, port: &Port, shared: &'a Shared) -> Self {
        let mut record = RequestRecord::open(shared, shared.ids.next(), peer, Instant::now());
        record.info.locals = [local, None];
        Self {
            shared,
            record,
            addresses: AddressPair::without_header(peer, local),
            admission: Ok(()),
            refusals: port.refusals,
            target_is_ssh: true,
            may_wake: false,
            websocket_options: port.websocket.clone(),
            way: Way::Direct,
            client: None,
        }
    }

    /// Sets the client, and counts the connection towards the client's connect rate, which may refuse it.
    pub(super) fn admit_client(&mut self, addresses: AddressPair) {
        self.record.info.client = addresses.source;
        self.addresses = addresses;
        let network = network(addresses.source.ip());
        self.client = Some(self.shared.clients.get(OwnerName::Client(network)));
        self.admission = self.shared.connect_rate.count(network);
    }

    /// Notes that load balancers have forwarded the request. The client that a trusted one names counts from now on, for its
    /// connect rate, too.
    pub(super) fn note_forwarding(&mut self, forwarding: &Forwarding, options: &WebSocketOptions) {
        let is_trusted = options.trusts(self.addresses.source.ip());
        if is_trusted || forwarding.client.is_some() {
            self.way = Way::Forwarded;
        }
        if is_trusted && options.trusted_tls && forwarding.is_encrypted {
            self.way = Way::Encrypted;
        }
        if is_trusted && let Some(client) = options.client(forwarding) {
            // Whichever client it is, the connection's certificate may be invalid.
            let of_certificate = self.admission.err();
            let of_certificate = of_certificate.filter(|refusal| *refusal == RefusalReason::CertificateInvalidated);
            self.admit_client(AddressPair {
                source: SocketAddr::new(client, 0),
                ..self.addresses
            });
            if let Some(refusal) = of_certificate {
                self.admission = Err(refusal);
            }
        }
    }

    /// Notes that the request comes by a load balancer, if the peer is a trusted one: its certificate is not the client's.
    pub(super) fn may_be_forwarded(&mut self) {
        let options = self.websocket_options.as_ref();
        if options.is_some_and(|options| options.trusts(self.addresses.source.ip())) {
            self.way = Way::Forwarded;
        }
    }

    /// Returns the TLS session of the client itself, and not that of a load balancer.
    pub(super) fn client_tls(&self) -> Option<&Arc<ClientTls>> {
        self.record.info.tls.as_ref().filter(|_| self.way == Way::Direct)
    }

    /// Returns the owner of the client's limits, which is known before any request is read.
    pub(super) fn client(&self) -> Result<Arc<LimitOwner>, RefusalReason> {
        self.client.clone().ok_or(RefusalReason::Internal)
    }

    /// Creates a further request on this HTTP/2 connection. It is checked as a connection is: first by the client's
    /// connect rate, then by its certificate, whose signatures cost CPU time to verify.
    pub(super) fn new_stream(&self) -> Self {
        let record = self.record.request(self.shared.ids.next());
        let is_trusted = |()| match record.is_trusted(&self.shared.tls) {
            true => Ok(()),
            false => Err(RefusalReason::CertificateInvalidated),
        };
        let admission = self.shared.connect_rate.count(network(self.addresses.source.ip()));
        Self {
            admission: admission.and_then(is_trusted),
            record,
            target_is_ssh: true,
            client: self.client.clone(),
            websocket_options: self.websocket_options.clone(),
            ..*self
        }
    }

    /// Completes when an HTTP/2 connection without a stream has waited too long for the next one. The wait starts now,
    /// when the last request has been answered. The connection counts as younger than all earlier ones.
    pub(super) async fn idle_expired(&self) -> RefusalReason {
        self.expiry(Instant::now(), self.shared.ids.next().number).await
    }

    /// Runs one step, unless the wait for the request ends first.
    ///
    /// # Errors
    /// The step's own refusal, or what ended the wait for it: the head deadline, an eviction, or the drain.
    pub(super) async fn step<T>(
        &self,
        step: impl Future<Output = Result<T, RefusalReason>>,
    ) -> Result<T, RefusalReason> {
        tokio::select! {
            biased;
            done = step => done,
            refusal = self.expired() => Err(refusal),
        }
    }

    /// Completes when the wait for the request is over.
    pub(super) async fn expired(&self) -> RefusalReason {
        let RequestInfo { accepted, id, .. } = self.record.info;
        self.expiry(accepted, id.number).await
    }

    /// Completes when an SSH client has waited too long with its login, which a person may have to type.
    pub(super) async fn login_expired(&self) -> RefusalReason {
        let RequestInfo { accepted, id, .. } = self.record.info;
        self.expiry(accepted + LOGIN_TIME, id.number).await
    }

    /// Completes when a refused connection that its client has not closed yet is evicted.
    pub(super) async fn evicted(&self) -> RefusalReason {
        let number = self.record.info.id.number;
        self.join(number, EvictionClass::Refused).evicted().await;
        RefusalReason::Evicted
    }

    /// Returns the deadline of the request.
    pub(super) fn deadline(&self) -> Instant {
        self.record.info.accepted + self.shared.timeouts.request_header
    }

    /// Sends a refusal, records it, and gives the client time to read it.
    pub(super) async fn refuse(mut self, exchange: Exchange, refusal: &Refusal) {
        let reason = refusal.reason;
        self.record.answered = AnswerKind::from_refusal(reason);
        let mut is_in_band = false;
        let sent = match exchange {
            Exchange::Http1(exchange) => {
                let (program, asked_for) = exchange.client_program();
                is_in_band = self.target_is_ssh && self.refusals.are_in_band(program) && reason.may_be_in_band();
                if is_in_band {
                    let message = in_band::refusal_message(refusal, asked_for, self.record.info.id);
                    self.record.answered = AnswerKind::Ssh;
                    tokio::select! {
                        biased;
                        sent = boxed(exchange.refuse_in_band(&message)) => sent,
                        // This, too, waits for the client, so other connections may evict this one.
                        _ = self.evicted() => None,
                    }
                } else {
                    boxed(exchange.refuse(refusal)).await
                }
            }
            // Clients of HTTP/2 read a status.
            Exchange::Http2(request) => http2::refuse(*request, refusal),
            Exchange::Ssh(exchange) => {
                let message = in_band::refusal_message(refusal, exchange.asked_for(), self.record.info.id);
                exchange.refuse(&message.sentence);
                if reason.is_answered() {
                    self.record.answered = AnswerKind::Ssh;
                }
                return self.record.refused(reason);
            }
        };
        match sent {
            Some(mut stream) => {
                let close = async {
                    if is_in_band {
                        in_band::drain_client(&mut stream).await;
                    }
                    stream.shutdown_gracefully().await;
                };
                boxed(self.linger(Some(reason), close)).await;
            }
            None => self.record_unanswered(reason),
        }
    }

    /// Records a refusal that was sent, `None` for another answer, and keeps the connection until `close` has let the client
    /// read it.
    ///
    /// Other connections may evict this one. Its client may lose the answer then: a close with unread bytes is a
    /// reset, which discards what the client has not read.
    pub(super) async fn linger(mut self, refusal: Option<RefusalReason>, close: impl Future<Output = ()>) {
        if let Some(refusal) = refusal {
            self.record.refused(refusal);
        }
        // This connection was evicted: its descriptor is needed at once.
        if refusal == Some(RefusalReason::Evicted) {
            return;
        }
        tokio::select! {
            // First: its first poll sends the end of stream.
            biased;
            () = close => {}
            _ = self.evicted() => {}
            () = self.shared.drain.clone().ended() => {}
        }
    }

    /// Records a refusal that cannot be sent: the client has left, or no protocol was negotiated.
    pub(super) fn record_unanswered(mut self, refusal: RefusalReason) {
        self.record.answered = AnswerKind::None;
        self.record.refused(refusal);
    }

    /// Completes when a wait that started at `since` is over. Among waits of one class the lowest number is evicted
    /// first.
    async fn expiry(&self, since: Instant, number: u64) -> RefusalReason {
        let (class, evicted) = match self.admission {
            Ok(()) => (EvictionClass::Eligible, RefusalReason::Evicted),
            Err(refusal) => (EvictionClass::ToBeRefused, refusal),
        };
        let guard = self.join(number, class);
        tokio::select! {
            () = sleep_until(since + self.shared.timeouts.request_header) => RefusalReason::RequestHeaderTimeout,
            () = guard.evicted() => evicted,
            () = self.shared.drain.draining(number) => RefusalReason::Draining,
        }
    }

    fn join(&self, number: u64, class: EvictionClass) -> UnfinishedGuard<'_> {
        let sets = [
            Some(&self.shared.unfinished),
            self.client.as_ref().map(|client| &client.unfinished),
        ];
        UnfinishedGuard::join(sets, EvictionKey { class, number })
    }
}

/// The time for a login over SSH, beyond that for a request.
const LOGIN_TIME: Duration = Duration::from_secs(50);
