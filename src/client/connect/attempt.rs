//! One attempt to open the tunnel.

use tokio::io::{join, split};

use super::end_notice;
use super::end_notice::EndNoticeStream;
use crate::client::known_hosts;
use crate::client::options::Options;
use crate::protocol::host_key::{KeySource, PublishedKeys};
use crate::uplink::attempt;
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::dial::head::Wanted;
use crate::uplink::dial::io::BoxedIo;
use crate::uplink::error::ClientError;

/// An open tunnel.
pub(in crate::client) struct Tunnel {
    /// Its stream.
    pub(in crate::client) stream: BoxedIo,
    /// The bytes of it that are already read.
    pub(in crate::client) early: Vec<u8>,
    /// True if an anchor that announces itself may publish host keys.
    pub(in crate::client) takes_anchor_keys: bool,
}

/// Opens the tunnel, by at most two requests. The host keys that the proxy publishes are known before it returns.
pub(in crate::client) async fn open(
    options: &Options,
    login: &mut CachedLogin,
    dialer: &mut ProxyDialer,
) -> Result<Tunnel, ClientError> {
    let wanted = Wanted::Tunnel {
        target: &options.target,
        end_marker: end_notice::marker(),
        session: dialer.session,
        no_wake: options.no_wake,
        // A session that goes on has ssh's key exchange done.
        host_keys: options.host_keys.is_some() && dialer.session.is_none(),
    };
    let opened = attempt::open(&options.uplink, &wanted, login, dialer).await?;
    let published = opened.agreement.host_keys;
    let is_left_to_anchor =
        |published: &PublishedKeys| published.source == KeySource::Anchor && published.keys.is_empty();
    let takes_anchor_keys = published.as_ref().is_some_and(is_left_to_anchor);
    if let Some(published) = published {
        known_hosts::publish(options.host_keys.as_ref(), &options.output, published, true).await;
    }
    let (stream, early) = (opened.stream, opened.agreement.early);
    let (stream, early) = match opened.agreement.end_marker {
        Some(marker) => {
            let (download, upload) = split(stream);
            let download = EndNoticeStream::new(download, marker, early);
            let stream: BoxedIo = Box::new(join(download, upload));
            (stream, Vec::new())
        }
        None => (stream, early),
    };
    Ok(Tunnel {
        stream,
        early,
        takes_anchor_keys,
    })
}
