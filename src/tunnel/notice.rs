//! The end notices of tunnels: for clients that have asked for one.

use std::time::Duration;

use super::in_band::{self, End, phrase, phrase_of_proxy};
use super::record::TunnelRecord;
use crate::end_notice::{self, Marker};
use crate::net::transport::Transport;
use crate::outcome::Reason;
use crate::ssh_disconnect::sentence;

/// The notice of a tunnel that the proxy has ended.
pub(super) fn of_proxy(marker: Marker, reason: Reason, record: &TunnelRecord<'_>) -> Vec<u8> {
    let operator = record.tunnel().closing().unwrap_or_default();
    notice(marker, &phrase_of_proxy(reason, operator), record)
}

/// The notice of a tunnel that has ended in front of the target's identification.
pub(super) fn of_end(marker: Marker, end: &End<'_>, record: &TunnelRecord<'_>) -> Vec<u8> {
    notice(marker, &phrase(end), record)
}

fn notice(marker: Marker, phrase: &str, record: &TunnelRecord<'_>) -> Vec<u8> {
    // The client knows the name that it has asked for, and puts it in front of a sentence without it.
    let name = match (phrase.contains("the target"), &record.tunnel().facts.authority) {
        (true, Some(authority)) => authority.to_string(),
        (true, None) | (false, _) => String::new(),
    };
    let phrase = format!("the proxy ended the session: {phrase}");
    end_notice::notice(marker, &sentence(&name, &phrase, Some(&record.id()), LONGEST))
}

/// Sends a notice to a client that takes it at once, or nearly so. False: perhaps a part of it.
pub(super) async fn send(client: &mut impl Transport, notice: &[u8]) -> bool {
    in_band::send_within(LONGEST_SEND, client, notice).await
}

/// The bytes of a sentence: what its length can say.
const LONGEST: usize = 255;
/// A client that takes no more is cut off without a notice: the end of a drain waits for it.
const LONGEST_SEND: Duration = Duration::from_millis(500);
