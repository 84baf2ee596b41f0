//! One attempt to open the tunnel.

use tokio::io::{join, split};

use super::end_notice;
use super::end_notice::EndNoticeStream;
use crate::client::options::Options;
use crate::uplink::attempt;
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::dial::head::Wanted;
use crate::uplink::dial::io::BoxedIo;
use crate::uplink::error::ClientError;

/// The stream of an open tunnel, and the bytes of it that are already read.
pub(in crate::client) type Tunnel = (BoxedIo, Vec<u8>);

/// Opens the tunnel, by at most two requests.
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
    };
    let opened = attempt::open(&options.uplink, &wanted, login, dialer).await?;
    let (stream, early) = (opened.stream, opened.agreement.early);
    Ok(match opened.agreement.end_marker {
        Some(marker) => {
            let (download, upload) = split(stream);
            let download = EndNoticeStream::new(download, marker, early);
            (Box::new(join(download, upload)), Vec::new())
        }
        None => (stream, early),
    })
}
