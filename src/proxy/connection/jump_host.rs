//! One SSH connection of a jump host: its login, then its tunnels, one after another.

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpStream;

use super::authorize::{check_offered_key, log_in};
use super::pending::PendingRequest;
use super::shared::Port;
use crate::base::boxed::boxed;
use crate::policy::access::Mode;
use crate::policy::access::credentials::credential::Credential;
use crate::protocol::host_key::HostKey;
use crate::proxy::exchange::{ChannelExchange, Exchange};
use crate::proxy::http::RefusalMode;
use crate::proxy::record::Door;
use crate::tunnel::limits::unfinished::{EvictionClass, EvictionKey, UnfinishedGuard, UnfinishedSet};
use crate::tunnel::outcome::{Refusal, RefusalReason};
use crate::tunnel::ssh::jump::{Connection, Event, Login, LoginRule, Proof};

/// Serves a connection until it ends. `serve_channel` returns the sentence for the channel's client if the
/// proxy has ended its tunnel.
pub(super) async fn serve<'a, F: Future<Output = Option<String>>>(
    stream: TcpStream,
    read: Vec<u8>,
    port: &Port,
    mut pending: PendingRequest<'a>,
    serve_channel: impl Fn(Exchange, PendingRequest<'a>) -> F,
) {
    pending.record.info.door = Door::Ssh;
    // Its clients speak SSH.
    pending.refusals = RefusalMode::Ssh;
    let (mut connection, credential) = match boxed(open(stream, read, port, &mut pending)).await {
        Ok(opened) => opened,
        Err(refusal) => return pending.record_unanswered(refusal),
    };
    match serve_channels(&mut connection, credential, &pending, serve_channel).await {
        Ok(()) => pending.record.discard(),
        Err(refusal) => {
            connection.disconnect(Refusal::from(refusal).phrase()).await;
            pending.record_unanswered(refusal);
        }
    }
}

/// Exchanges keys with a client, and logs it in. Returns the connection, and the credential of its login.
async fn open(
    stream: TcpStream,
    read: Vec<u8>,
    port: &Port,
    pending: &mut PendingRequest<'_>,
) -> Result<(Connection, Option<Credential>), RefusalReason> {
    // Before the key exchange, which is the most expensive step of a connection.
    pending.admission?;
    let shared = pending.shared;
    let (client, number) = (pending.client()?, pending.record.info.id.number);
    let rule = match shared.access.mode() {
        Mode::Open | Mode::Report => LoginRule::Open,
        Mode::Enforce if shared.access.has_keys() => LoginRule::PasswordOrKey,
        Mode::Enforce => LoginRule::Password,
    };
    let jump_host = port.jump_host.as_ref().ok_or(RefusalReason::Internal)?;
    // Before its login a connection takes more memory than others.
    let sets = [Some(&shared.logins), Some(&client.logins)];
    let exchanged = async {
        let accepted = boxed(jump_host.accept(stream, read, rule));
        let mut connection = accepted.await?;
        match connection.next().await {
            Some(_) => Ok(connection),
            None => Err(RefusalReason::ClientDisconnected),
        }
    };
    let key_exchange = EvictionKey {
        class: EvictionClass::KeyExchange,
        number,
    };
    let mut connection = unless_evicted(sets, key_exchange, pending.step(exchanged)).await?;
    // A person who types is older than any client that floods: the exchange of keys costs that one as much as the proxy.
    let login = EvictionKey {
        class: EvictionClass::Eligible,
        number,
    };
    let credential = unless_evicted(sets, login, boxed(authenticate(&mut connection, pending))).await?;
    Ok((connection, credential))
}

async fn unless_evicted<T>(
    sets: [Option<&UnfinishedSet>; 2],
    key: EvictionKey,
    step: impl Future<Output = Result<T, RefusalReason>>,
) -> Result<T, RefusalReason> {
    let guard = UnfinishedGuard::join(sets, key);
    tokio::select! {
        biased;
        done = step => done,
        () = guard.evicted() => Err(RefusalReason::Evicted),
    }
}

/// Answers logins until one is accepted. Returns its credential; `None` if none is needed.
///
/// # Errors
/// The refusal of the last login, if the client leaves after it.
async fn authenticate(
    connection: &mut Connection,
    pending: &mut PendingRequest<'_>,
) -> Result<Option<Credential>, RefusalReason> {
    let (mut refused, mut accepted) = (RefusalReason::ClientDisconnected, None);
    loop {
        let event = tokio::select! {
            biased;
            event = connection.next() => event,
            refusal = pending.login_expired() => return Err(refusal),
        };
        match event {
            Some(Event::LoggedIn) => return Ok(accepted),
            Some(Event::Login(Login { user, proof, answer })) => match check(&user, proof, pending).await {
                Ok(credential) => {
                    accepted = credential;
                    // A client that has left is found by the next event.
                    answer.send(true).ok();
                }
                Err(refusal) => refused = refusal.reason,
            },
            Some(Event::KeysExchanged | Event::Channel(_)) | None => return Err(refused),
        }
    }
}

/// Checks a login, and returns its credential; `None` for a key that is only offered. A machine's name after the user's, as in
/// `alice%box`, is for the client.
async fn check(user: &str, proof: Proof, pending: &mut PendingRequest<'_>) -> Result<Option<Credential>, Refusal> {
    let name = user.split('%').next().unwrap_or_default();
    let credential = match proof {
        Proof::Password(password) => Credential::of_ssh(name, password).ok_or(RefusalReason::CredentialsRefused)?,
        Proof::OfferedKey(key) => return check_offered_key(&public_key(name, key), pending).map(|()| None),
        Proof::Key(key) => public_key(name, key),
        Proof::Certificate(certificate) => Credential::SshCertificate {
            user: name.into(),
            certificate: Arc::new(certificate),
        },
    };
    boxed(log_in(name, credential.clone(), pending)).await?;
    Ok(Some(credential))
}

fn public_key(user: &str, key: HostKey) -> Credential {
    let (user, key) = (user.into(), Arc::new(key));
    Credential::PublicKey { user, key }
}

/// Serves each channel to its end.
///
/// # Errors
/// The client has asked for no channel in time, or not at all.
async fn serve_channels<'a, F: Future<Output = Option<String>>>(
    connection: &mut Connection,
    credential: Option<Credential>,
    pending: &PendingRequest<'a>,
    serve_channel: impl Fn(Exchange, PendingRequest<'a>) -> F,
) -> Result<(), RefusalReason> {
    let mut served = Err(RefusalReason::ClientDisconnected);
    loop {
        let event = tokio::select! {
            biased;
            event = connection.next() => event,
            refusal = pending.idle_expired() => {
                if served.is_ok() {
                    // It follows the end of the last tunnel, which the client may not have read.
                    connection.disconnect(Refusal::from(refusal).phrase()).await;
                }
                return served.map_err(|_| refusal);
            }
        };
        let Some(Event::Channel(request)) = event else {
            return served;
        };
        served = Ok(());
        let exchange = Exchange::Ssh(Box::new(ChannelExchange::new(request, credential.clone())));
        let ended = serve_channel(exchange, pending.new_stream()).await;
        if let Some(sentence) = ended {
            // Not after a close of the channel, at which the client may leave.
            connection.disconnect(&sentence).await;
            return served;
        }
        connection.close_channel().await;
    }
}
