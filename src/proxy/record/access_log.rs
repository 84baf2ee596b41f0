//! Bounds the access lines of refusals: those beyond the bound share one line a second for each client and reason.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::line::{AccessLine, AnswerKind};
use crate::daemon::logging::Logs;
use crate::proxy::record::RequestInfo;
use crate::tunnel::limits::owners::network;
use crate::tunnel::outcome::{Outcome, RefusalReason};

/// The access log of a process.
///
/// Each pair of client network and reason has a maximum of lines a second, and so have all pairs together. Refusals
/// beyond a maximum are counted, in one line a second for each pair. Only connect rates bound the lines of tunnels.
#[derive(Debug, Default)]
pub struct AccessLog {
    /// The logs that the lines are written to.
    pub(crate) logs: Logs,
    seconds: Mutex<SecondTally>,
    /// Notified at a refusal that finds no shares.
    has_shares: Notify,
    /// True once the log ends: every later refusal has its line at once.
    is_closed: AtomicBool,
}

/// The lines that the refusals of this second have written, and left out.
#[derive(Debug, Default)]
struct SecondTally {
    shares: HashMap<Key, LineTally>,
    /// Lines of all shares.
    written: u32,
}

/// A client's network and a reason's label; without a network, all clients that the table has no space for.
type Key = (Option<IpAddr>, &'static str);

/// The lines of one key.
#[derive(Debug)]
struct LineTally {
    /// The client and the peer of the first refusal; `None` where the share is that of many clients.
    first: Option<[IpAddr; 2]>,
    refusal: RefusalReason,
    written: u32,
    left_out: u64,
    /// The claimed user of the refusals that were left out; empty if their users differ.
    claimed: Option<Box<str>>,
}

impl AccessLog {
    /// Creates the access log that is written to these logs.
    pub(crate) fn new(logs: Logs) -> Self {
        Self {
            logs,
            seconds: Mutex::default(),
            has_shares: Notify::new(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Writes a line.
    pub(in crate::proxy) fn write(&self, line: &AccessLine<'_>) {
        self.logs.write_access(line);
    }

    /// Writes the line of a refusal, or counts the refusal for a later line. Port probes have no lines, which would
    /// drown the rest.
    pub(in crate::proxy) fn refused(&self, info: &RequestInfo, refusal: RefusalReason, answered: AnswerKind) {
        let addresses = [info.client.ip(), info.peer.ip()];
        let claimed = info.claimed.as_deref().unwrap_or_default();
        if refusal != RefusalReason::PortProbe && self.admits(addresses, refusal, claimed) {
            let outcome = Some(Outcome::Refused(refusal));
            self.write(&AccessLine {
                answered,
                ..AccessLine::new(info, "refuse", outcome)
            });
        }
    }

    /// Writes the counts once a second while there are refusals. Never completes.
    pub async fn keep_writing_counts(&self) {
        loop {
            if self.seconds.lock().shares.is_empty() {
                self.has_shares.notified().await;
            }
            sleep(SECOND).await;
            self.write_counts();
        }
    }

    /// Writes the last counts. Refusals have a line each from now on: there is nothing left that would write counts.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.write_counts();
    }

    fn admits(&self, addresses: [IpAddr; 2], refusal: RefusalReason, claimed: &str) -> bool {
        let [client, _] = addresses;
        let max = refusal.lines_a_second();
        let key = (Some(network(client)), refusal.label());
        let mut second = self.seconds.lock();
        let SecondTally { shares, written } = &mut *second;
        if self.is_closed.load(Ordering::Relaxed) {
            return true;
        }
        if shares.is_empty() {
            self.has_shares.notify_one();
        }
        let is_in_bound = *written < MAX_LINES;
        // Beyond the bound no share is begun: its count would be a line as well.
        let has_space = shares.contains_key(&key) || (is_in_bound && shares.len() < MAX_SHARES);
        let key = if has_space { key } else { (None, refusal.label()) };
        let share = shares.entry(key).or_insert_with(|| LineTally {
            first: has_space.then_some(addresses),
            refusal,
            written: 0,
            left_out: 0,
            claimed: None,
        });
        let is_admitted = has_space && is_in_bound && share.written < max;
        if is_admitted {
            share.written += 1;
            *written += 1;
        } else {
            share.left_out += 1;
            let same = share.claimed.get_or_insert_with(|| claimed.into());
            if **same != *claimed {
                *same = Box::default();
            }
        }
        is_admitted
    }

    /// Begins the next second: the lines of counts are the first ones of their shares.
    fn write_counts(&self) {
        let mut due = Vec::new();
        let mut second = self.seconds.lock();
        second.shares.retain(|_, share| {
            if share.left_out == 0 {
                return false;
            }
            let claimed = share.claimed.take().unwrap_or_default();
            due.push((share.first, share.refusal, share.left_out, claimed));
            share.left_out = 0;
            share.written = 1;
            true
        });
        second.written = u32::try_from(due.len()).unwrap_or(u32::MAX);
        drop(second);
        for (first, refusal, count, claimed) in &due {
            self.write(&AccessLine::summary(*first, *refusal, *count, claimed));
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.write_counts();
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// The lines of refusals a second, of all clients: about 120 KB/s. The kubelet keeps 50 MiB of a container's log by
/// default: seven minutes of these. Without this bound 1,000 addresses wrote 5 MB/s.
const MAX_LINES: u32 = 200;
/// The maximum of shares in the table, which then takes about 100 KiB.
const MAX_SHARES: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that are written at once, of that many refusals of a client.
    fn admitted(log: &AccessLog, client: &str, refusal: RefusalReason, refusals: u32) -> usize {
        let addresses = [client.parse().unwrap(); 2];
        (0..refusals).filter(|_| log.admits(addresses, refusal, "")).count()
    }

    fn left_out(log: &AccessLog) -> u64 {
        log.seconds.lock().shares.values().map(|share| share.left_out).sum()
    }

    #[test]
    fn a_client_and_a_reason_have_lines_of_their_own() {
        let log = AccessLog::default();
        assert_eq!(admitted(&log, "192.0.2.1", RefusalReason::ConnectRate, 5), 1);
        assert_eq!(admitted(&log, "192.0.2.2", RefusalReason::ConnectRate, 5), 1);
        assert_eq!(admitted(&log, "192.0.2.1", RefusalReason::NotAllowed, 15), 10);
        assert_eq!(admitted(&log, "2001:db8::1", RefusalReason::ConnectRate, 5), 1);
        assert_eq!(admitted(&log, "2001:db8::2", RefusalReason::ConnectRate, 5), 0);
        assert_eq!(admitted(&log, "2001:db8:0:1::2", RefusalReason::ConnectRate, 5), 1);
        assert_eq!(left_out(&log), 4 + 4 + 5 + 4 + 5 + 4);
    }

    #[test]
    fn a_count_is_the_first_line_of_its_second() {
        let log = AccessLog::default();
        let second = |refusals| {
            let lines = admitted(&log, "192.0.2.1", RefusalReason::NotAllowed, refusals);
            log.write_counts();
            lines
        };
        assert_eq!([15, 15, 5, 0, 15].map(second), [10, 9, 5, 0, 10]);
        log.write_counts();
        assert!(log.seconds.lock().shares.is_empty());
    }

    #[test]
    fn a_count_names_the_user_at_whom_all_of_its_guesses_were_made() {
        for (claimed, expected) in [
            (["alice"; 3], "alice"),
            (["alice", "bob", "bob"], ""),
            (["", "", "bob"], ""),
        ] {
            let log = AccessLog::default();
            assert_eq!(admitted(&log, "192.0.2.1", RefusalReason::CredentialsRefused, 1), 1);
            for claimed in claimed {
                log.admits(
                    ["192.0.2.1".parse().unwrap(); 2],
                    RefusalReason::CredentialsRefused,
                    claimed,
                );
            }
            let second = log.seconds.lock();
            let named = second
                .shares
                .values()
                .filter_map(|share| share.claimed.as_deref())
                .collect::<String>();
            assert_eq!(named, expected);
        }
    }

    #[test]
    fn the_table_is_bounded_and_counts_the_rest_by_reason() {
        let log = AccessLog::default();
        for number in 0..100_000 {
            let client = IpAddr::from(std::net::Ipv4Addr::from_bits(number));
            for refusal in RefusalReason::ALL {
                log.admits([client; 2], *refusal, "");
            }
        }
        let second = log.seconds.lock();
        let shares = &second.shares;
        assert!(
            shares.len() <= MAX_SHARES + RefusalReason::ALL.len(),
            "{}",
            shares.len()
        );
        let counted: u64 = shares
            .values()
            .map(|share| u64::from(share.written) + share.left_out)
            .sum();
        assert_eq!(counted, 100_000 * u64::try_from(RefusalReason::ALL.len()).unwrap());
    }

    #[test]
    fn all_clients_together_have_a_number_of_lines_and_each_refusal_is_counted() {
        let log = AccessLog::default();
        let mut lines = 0;
        for number in 0..1_000 {
            let client = IpAddr::from(std::net::Ipv4Addr::from_bits(number)).to_string();
            lines += admitted(&log, &client, RefusalReason::NotAllowed, 20);
        }
        assert_eq!(lines, usize::try_from(MAX_LINES).unwrap());
        assert_eq!(left_out(&log), 20_000 - u64::from(MAX_LINES));
        // 20 clients with 10 lines each, and a share of the reason's other clients: counts of 21 lines.
        assert_eq!(log.seconds.lock().shares.len(), 21);
        log.write_counts();
        assert_eq!(admitted(&log, "198.51.100.1", RefusalReason::NotAllowed, 20), 10);
        assert_eq!(log.seconds.lock().written, 31);
    }

    #[tokio::test(start_paused = true)]
    async fn each_refusal_is_counted_within_a_second_also_after_a_quiet_time() {
        let log = AccessLog::default();
        let refusals = async {
            for (pause, lines) in [(0, 10), (0, 9), (1, 10), (60, 10)] {
                sleep(SECOND * pause).await;
                assert_eq!(admitted(&log, "192.0.2.1", RefusalReason::NotAllowed, 15), lines);
                assert!(left_out(&log) > 0);
                sleep(SECOND).await;
                assert_eq!(left_out(&log), 0);
            }
        };
        tokio::select! {
            biased;
            () = log.keep_writing_counts() => {}
            () = refusals => {}
        }
    }

    #[test]
    fn a_closed_log_counts_nothing() {
        let log = AccessLog::default();
        log.close();
        assert_eq!(admitted(&log, "192.0.2.1", RefusalReason::ConnectRate, 5), 5);
    }
}
