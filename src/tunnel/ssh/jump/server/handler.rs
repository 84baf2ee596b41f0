//! The answers to the messages of one SSH client: its logins, its channels, and what is refused.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use futures_util::FutureExt;
use parking_lot::Mutex;
use russh::keys::{Algorithm, Certificate, PublicKey};
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Response, Session, VerifiedPublicKey};
use russh::{Channel as SshChannel, ChannelId, ChannelOpenFailure, ChannelWriteHalf, MethodKind, MethodSet, Pty};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::protocol::host_key::HostKey;
use crate::tunnel::ssh::jump::channel::{Channel, Outlet};
use crate::tunnel::ssh::jump::gate::{ChannelEnd, Gate, Inbox};
use crate::tunnel::ssh::jump::request::{ChannelRequest, Event, Login, LoginRule, Proof, UserCertificate};

/// The channel that carries a tunnel, or waits to.
pub(super) type OpenChannel = Arc<Mutex<Option<ChannelId>>>;

/// Answers the messages of one client, in the task of its session.
pub(super) struct JumpHandler {
    rule: LoginRule,
    /// A login is awaited, and a second channel is refused.
    events: mpsc::Sender<Event>,
    gate: Arc<Gate>,
    /// The last channel that was asked for.
    current: Option<(ChannelId, Arc<Inbox>)>,
    open: OpenChannel,
    /// The channels that the client has asked for.
    asked: u32,
    /// The channels of the type `session` that were opened.
    sessions: usize,
    /// Those of them that have not been answered.
    silent: HashSet<ChannelId>,
}

impl Drop for JumpHandler {
    fn drop(&mut self) {
        if let Some((_, inbox)) = &self.current {
            let end = self.gate.end();
            if end == ChannelEnd::Closed {
                inbox.finish();
            }
            inbox.fail(end);
        }
    }
}

impl JumpHandler {
    /// The handler of one connection, which sends what its client wants to `events`.
    pub(super) fn new(rule: LoginRule, events: mpsc::Sender<Event>, gate: Arc<Gate>) -> Self {
        Self {
            rule,
            events,
            gate,
            current: None,
            open: Arc::default(),
            asked: 0,
            sessions: 0,
            silent: HashSet::new(),
        }
    }

    /// Returns the place of the channel that carries a tunnel.
    pub(super) fn open(&self) -> OpenChannel {
        Arc::clone(&self.open)
    }

    /// Asks the connection's task about a credential; `None` is one that proves nothing.
    async fn log_in(&self, user: &str, proof: Option<Proof>) -> Auth {
        if self.rule == LoginRule::Open {
            return Auth::Accept;
        }
        let Some(proof) = proof.filter(|_| user.len() <= MAX_USER) else {
            return self.rejected();
        };
        let (answer, answered) = oneshot::channel();
        let login = Login {
            user: user.into(),
            proof,
            answer,
        };
        let is_asked = self.events.send(Event::Login(login)).await.is_ok();
        match is_asked && answered.await.unwrap_or(false) {
            true => Auth::Accept,
            false => self.rejected(),
        }
    }

    /// Checks a password. A wrong one is rejected after a second, the time of the check included.
    async fn check_password(&self, user: &str, password: &str) -> Auth {
        let until = Instant::now() + REJECTION;
        let is_short = password.len() <= MAX_PASSWORD;
        let auth = self
            .log_in(user, is_short.then(|| Proof::Password(password.into())))
            .await;
        if auth != Auth::Accept {
            tokio::select! {
                () = sleep_until(until) => {}
                // The connection was evicted: its socket is in this task.
                () = self.events.closed() => {}
            }
        }
        auth
    }

    /// Returns a rejection after which the client may try the same method again.
    fn rejected(&self) -> Auth {
        Auth::Reject {
            proceed_with_methods: Some(MethodSet::from(methods(self.rule))),
            partial_success: false,
        }
    }

    fn inbox(&self, channel: ChannelId) -> Option<&Inbox> {
        let of_channel = self.current.as_ref().filter(|(id, _)| *id == channel);
        of_channel.map(|(_, inbox)| &**inbox)
    }

    /// Counts a channel that the client asks for. Its refusal waits in memory while the client exchanges keys, and the library
    /// keeps a part of one that was open.
    ///
    /// # Errors
    /// There were too many on this connection.
    fn count(&mut self) -> Result<(), russh::Error> {
        self.asked += 1;
        match self.asked <= MAX_CHANNELS {
            true => Ok(()),
            false => Err(russh::Error::Pending),
        }
    }

    async fn refuse_channel(&mut self, reply: ChannelOpenHandle) -> Result<(), russh::Error> {
        self.count()?;
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }

    /// Answers a program that a client wants to run: there is none. The answer may wait for the client's window for as long
    /// as the connection, so there is one for each session.
    fn refuse_session(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
        if !self.silent.remove(&channel) {
            return session.channel_failure(channel);
        }
        session.channel_success(channel)?;
        session.extended_data(channel, STDERR, JUMP_HOST)?;
        session.exit_status_request(channel, 1)?;
        session.eof(channel)?;
        session.close(channel)
    }
}

/// Returns the key of a user; `None` for one that is never accepted, and for signatures with SHA-1.
fn user_key(key: &PublicKey, algorithm: &Algorithm) -> Option<HostKey> {
    let is_weak = matches!(algorithm, Algorithm::Rsa { hash: None });
    key.to_openssh().ok()?.parse().ok().filter(|_| !is_weak)
}

/// Returns a certificate; `None` for one whose authority is never accepted, or has signed with SHA-1.
fn user_certificate(certificate: &Certificate) -> Option<UserCertificate> {
    let authority = PublicKey::from(certificate.signature_key().clone());
    let bytes = certificate.to_bytes().ok()?;
    Some(UserCertificate {
        authority: user_key(&authority, &certificate.signature().algorithm())?,
        is_for_users: certificate.cert_type().is_user(),
        principals: certificate.valid_principals().into(),
        validity: certificate.valid_after()..certificate.valid_before(),
        critical_options: certificate.critical_options().0.clone(),
        permits_forwarding: certificate.extensions().contains_key("permit-port-forwarding"),
        digest: digest::digest(&digest::SHA256, &bytes).as_ref().try_into().ok()?,
    })
}

impl Handler for JumpHandler {
    type Error = russh::Error;

    /// The client begins its login: the keys are exchanged.
    async fn authentication_banner(&mut self) -> Result<Option<String>, russh::Error> {
        self.events.send(Event::KeysExchanged).await.ok();
        Ok(None)
    }

    async fn auth_none(&mut self, _user: &str) -> Result<Auth, russh::Error> {
        match self.rule {
            LoginRule::Open => Ok(Auth::Accept),
            LoginRule::Password | LoginRule::PasswordOrKey => Ok(self.rejected()),
        }
    }

    async fn auth_password(&mut self, user: &str, password: &str) -> Result<Auth, russh::Error> {
        Ok(self.check_password(user, password).await)
    }

    /// The key of an unknown user and an unknown key take the same way.
    async fn auth_publickey_offered(&mut self, user: &str, key: PublicKeyOffer<'_>) -> Result<Auth, russh::Error> {
        let key = user_key(key.public_key, key.algorithm);
        Ok(self.log_in(user, key.map(Proof::OfferedKey)).await)
    }

    /// A client that has begun with its key needs no other login where none is needed.
    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        let key = user_key(key.public_key, key.algorithm);
        Ok(self.log_in(user, key.map(Proof::Key)).await)
    }

    /// The key was judged by [`Self::auth_publickey_offered`], with the algorithm of its signature.
    async fn auth_openssh_certificate(&mut self, user: &str, certificate: &Certificate) -> Result<Auth, russh::Error> {
        let certificate = user_certificate(certificate);
        Ok(self.log_in(user, certificate.map(Proof::Certificate)).await)
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        user: &str,
        _submethods: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, russh::Error> {
        let Some(mut response) = response else {
            return Ok(Auth::Partial {
                name: "".into(),
                instructions: "".into(),
                prompts: Cow::Borrowed(&[(Cow::Borrowed("Password, token or ticket: "), false)]),
            });
        };
        // One prompt has one response (RFC 4256 section 3.4).
        let (password, further) = (response.next(), response.next());
        let password = password.filter(|_| further.is_none());
        match password.as_deref().and_then(|bytes| str::from_utf8(bytes).ok()) {
            Some(password) => Ok(self.check_password(user, password).await),
            None => Ok(self.rejected()),
        }
    }

    async fn auth_succeeded(&mut self, _session: &mut Session) -> Result<(), russh::Error> {
        self.gate.authenticated();
        self.events.send(Event::LoggedIn).await.ok();
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: SshChannel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.count()?;
        if self.current.as_ref().is_some_and(|(_, inbox)| !inbox.is_over()) {
            reply.reject(refusal(RESOURCE_SHORTAGE, ONE_AT_A_TIME.to_owned())).await;
            return Ok(());
        }
        if channel.writable_packet_size().await < MIN_PACKET {
            reply.reject(refusal(RESOURCE_SHORTAGE, SMALL_PACKETS.to_owned())).await;
            return Ok(());
        }
        self.gate.expect_no_late();
        let (id, inbox) = (channel.id(), Inbox::new(Arc::clone(&self.gate)));
        let (_, download) = channel.split();
        let own = Channel::new(Arc::clone(&inbox), outlet(download));
        let open = Arc::clone(&self.open);
        let answer = Box::new(move |answer| {
            // Neither waits.
            let sent = match answer {
                Ok(()) => {
                    *open.lock() = Some(id);
                    reply.accept().now_or_never()
                }
                Err(sentence) => reply.reject(refusal(PROHIBITED, sentence)).now_or_never(),
            };
            sent.unwrap_or_default();
        });
        let request = ChannelRequest::new((host, port), own, answer);
        // One that does not fit is refused by its drop.
        if self.events.try_send(Event::Channel(request)).is_ok() {
            self.current = Some((id, inbox));
        }
        Ok(())
    }

    async fn data(&mut self, channel: ChannelId, data: &[u8], _session: &mut Session) -> Result<(), russh::Error> {
        if let Some(inbox) = self.inbox(channel) {
            inbox.push(data);
        }
        Ok(())
    }

    async fn channel_eof(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), russh::Error> {
        if let Some(inbox) = self.inbox(channel) {
            inbox.finish();
        }
        Ok(())
    }

    async fn channel_close(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), russh::Error> {
        self.silent.remove(&channel);
        // The library has answered it.
        self.open.lock().take_if(|open| *open == channel);
        if let Some(inbox) = self.inbox(channel) {
            inbox.fail(ChannelEnd::Closed);
        }
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: SshChannel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.count()?;
        if self.sessions == MAX_SESSIONS {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        self.sessions += 1;
        self.silent.insert(channel.id());
        reply.accept().await;
        Ok(())
    }

    async fn channel_open_x11(
        &mut self,
        _channel: SshChannel<Msg>,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.refuse_channel(reply).await
    }

    async fn channel_open_forwarded_tcpip(
        &mut self,
        _channel: SshChannel<Msg>,
        _host: &str,
        _port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.refuse_channel(reply).await
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        _channel: SshChannel<Msg>,
        _path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.refuse_channel(reply).await
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
        self.refuse_session(channel, session)
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        _command: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.refuse_session(channel, session)
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _term: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        // A failure would be one more line on the terminal, before the sentence.
        session.channel_success(channel)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        _name: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_failure(channel)
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        _name: &str,
        _value: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_failure(channel)
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _single: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.channel_failure(channel)
    }
}

/// Returns the way of a download into the session.
fn outlet(half: ChannelWriteHalf<Msg>) -> Outlet {
    let half = Arc::new(half);
    Box::new(move |bytes| {
        let half = Arc::clone(&half);
        Box::pin(async move {
            match bytes {
                Some(bytes) => half.data_bytes(bytes).await.is_ok(),
                None => half.eof().await.is_ok(),
            }
        })
    })
}

fn refusal(code: u32, reason: String) -> ChannelOpenFailure {
    ChannelOpenFailure::Other { code, reason }
}

/// Returns the methods of a login. Keys are named only where a user has one: a client tries all that it has before it asks for
/// a password.
pub(super) fn methods(rule: LoginRule) -> &'static [MethodKind] {
    match rule {
        LoginRule::Open => &[MethodKind::None],
        LoginRule::Password => &[MethodKind::Password, MethodKind::KeyboardInteractive],
        LoginRule::PasswordOrKey => &[
            MethodKind::PublicKey,
            MethodKind::Password,
            MethodKind::KeyboardInteractive,
        ],
    }
}

/// From a wrong password to its rejection.
const REJECTION: Duration = Duration::from_secs(1);
/// The exchange of keys, the login, and the channel that the client has asked for without a wait.
pub(super) const EVENTS: usize = 3;
/// The channels that a client may ask for on one connection, most of them one after another.
const MAX_CHANNELS: u32 = 1024;
const MAX_SESSIONS: usize = 16;
/// A packet of one byte takes 36 on the wire.
const MIN_PACKET: usize = 256;
/// Bytes of a user name, and of a password or token: what a head of HTTP can have.
const MAX_USER: usize = 512;
const MAX_PASSWORD: usize = 12 * 1024;
/// The type of extended data (RFC 4254 section 5.2), and the reasons of a refused channel (section 5.1).
const STDERR: u32 = 1;
const PROHIBITED: u32 = 1;
const RESOURCE_SHORTAGE: u32 = 4;
const JUMP_HOST: &str = "this is a jump host, and runs nothing: ssh -J HOST NAME\r\n";
const SMALL_PACKETS: &str = "the channel's window and packets are too small: 256 bytes at least";
const ONE_AT_A_TIME: &str = "this connection carries a tunnel already: open another one (ControlMaster no)";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wrong_password_waits_no_longer_than_its_connection_lives() {
        let started = Instant::now();
        let (events, mut connection) = mpsc::channel(EVENTS);
        let mut handler = JumpHandler::new(LoginRule::Password, events, Arc::default());
        let rejected = handler.rejected();
        let (answered, ()) = tokio::join!(handler.auth_password("alice", "wrong"), async {
            connection.recv().await.unwrap();
        });
        assert_eq!(answered.unwrap(), rejected);
        assert_eq!(started.elapsed(), REJECTION);
        drop(connection);
        handler.auth_password("alice", "wrong").await.unwrap();
        assert_eq!(started.elapsed(), REJECTION);
    }
}
