//! The connections of a port for operators, which are bounded in number.

use std::future::pending;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};

use crate::net::listener;
use crate::tunnel::limits::unfinished::{EvictionClass, EvictionKey, UnfinishedGuard, UnfinishedSet};

/// Accepts connections until dropped, and serves each in a task of its own, at most `max` at once.
///
/// One connection more evicts the oldest: were the newest refused, a peer with silent open connections would keep all
/// other peers out.
pub(crate) async fn accept<F>(listener: TcpListener, max: NonZeroU32, mut serve: impl FnMut(TcpStream, SocketAddr) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let open = Arc::new(UnfinishedSet::new(Some(max)));
    let mut number = 0;
    let spawn = move |stream, peer| {
        number += 1;
        let class = EvictionClass::Eligible;
        let key = EvictionKey { class, number };
        let (serving, open) = (serve(stream, peer), Arc::clone(&open));
        tokio::spawn(async move {
            let guard = UnfinishedGuard::join([Some(&open), None], key);
            tokio::select! {
                () = serving => {}
                () = guard.evicted() => {}
            }
        });
    };
    listener::accept(listener.into(), pending(), spawn, || ()).await;
}
