//! The target of an anchor: an address, or a name that is looked up for each connection.

use std::fmt;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::base::authority::Authority;
use crate::tunnel::dial::{self, DialError, Upstream, dial};
use crate::tunnel::outcome::RefusalReason;

/// The SSH server that `--to` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetAddr {
    /// An address, with its port.
    Address(SocketAddr),
    /// A name and a port as written: a trailing dot disables the resolver's search domains.
    Name(Box<str>),
}

impl FromStr for TargetAddr {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if let Some(address) = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0) {
            return Ok(Self::Address(address));
        }
        match text.parse::<Authority>() {
            Ok(_) => Ok(Self::Name(text.into())),
            Err(_) => Err("give HOST:PORT, such as 127.0.0.1:22, [::1]:22 or machine.example.com:22"),
        }
    }
}

impl fmt::Display for TargetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Dials the target.
#[derive(Debug)]
pub(super) struct TargetDialer {
    target: TargetAddr,
    /// The anchor's own address: a name that resolves to it would cause a loop.
    own_addr: SocketAddr,
    resolver: Resolver,
    /// The unanswered lookups and when they began, oldest first.
    lookups: Mutex<Vec<(Instant, Answer)>>,
    failure: Mutex<LoggedFailure>,
}

/// The addresses that a lookup has found, or its error; `None` while it is under way.
type Answer = watch::Receiver<Option<Result<Vec<SocketAddr>, String>>>;

/// Looks up `HOST:PORT`.
type Resolver = fn(Box<str>) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// A failure that is logged when it starts and when it clears, at most once per [`MIN_LOG_INTERVAL`]: any stranger can
/// trigger it by connecting.
#[derive(Debug, Default)]
struct LoggedFailure {
    is_logged: bool,
    last: Option<Instant>,
}

impl LoggedFailure {
    /// Notes the failure. Returns whether to log it.
    fn failed(&mut self) -> bool {
        let is_too_soon = self.last.is_some_and(|last| last.elapsed() < MIN_LOG_INTERVAL);
        if self.is_logged || is_too_soon {
            return false;
        }
        (self.is_logged, self.last) = (true, Some(Instant::now()));
        true
    }

    /// Notes the recovery. Returns whether to log it: only if the failure was logged.
    fn recovered(&mut self) -> bool {
        mem::take(&mut self.is_logged)
    }
}

impl TargetDialer {
    /// Creates the dialer of the anchor that listens at `own_addr`.
    pub(super) fn new(target: TargetAddr, own_addr: SocketAddr) -> Self {
        Self {
            target,
            own_addr,
            resolver: |name| Box::pin(async move { Ok(lookup_host(&*name).await?.collect()) }),
            lookups: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Connects to the target within [`DIAL_TIMEOUT`]. The addresses share the time after the lookup equally.
    /// Logs a failure, and the first success after it.
    ///
    /// # Errors
    /// The target cannot be reached, or its name has no address.
    pub(super) async fn dial(&self) -> Result<Upstream, RefusalReason> {
        let deadline = Instant::now() + DIAL_TIMEOUT;
        let addresses = self.addresses().await?;
        let left = deadline.saturating_duration_since(Instant::now());
        let shares = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let options = dial::Options {
            dial_try: left / shares.max(1),
            dial: left,
            unpaced_on_loopback: true,
        };
        let dialled = dial(&addresses, 0, &options).await;
        match &dialled {
            Err(error) => self.fails(&reason(error)),
            Ok(_) if self.failure.lock().recovered() => info!("the target {} can be reached again", self.target),
            Ok(_) => {}
        }
        dialled.map_err(|error| error.reason)
    }

    /// Returns the target's current addresses. Logs why a name has none.
    ///
    /// # Errors
    /// The name cannot be looked up, or has no address but the anchor's own.
    pub(super) async fn addresses(&self) -> Result<Vec<SocketAddr>, RefusalReason> {
        let name = match &self.target {
            TargetAddr::Address(address) => return Ok(vec![*address]),
            TargetAddr::Name(name) => name,
        };
        let fault = match self.look_up(name).await {
            Ok(mut addresses) => {
                addresses.retain(|&address| !is_self(address, self.own_addr));
                if !addresses.is_empty() {
                    return Ok(addresses);
                }
                "it has no address but this anchor's own".to_owned()
            }
            Err(fault) => fault,
        };
        self.fails(&format!("its name cannot be looked up: {fault}"));
        Err(RefusalReason::NoEndpoint)
    }

    async fn look_up(&self, name: &str) -> Result<Vec<SocketAddr>, String> {
        let mut answer = self.join_lookup(name);
        let answered = timeout(LOOKUP_TIMEOUT, answer.wait_for(Option::is_some)).await;
        match answered {
            Ok(Ok(answer)) => answer.clone().unwrap_or(Ok(Vec::new())),
            Ok(Err(_)) => Err("the system has no thread for the lookup".to_owned()),
            Err(_) => Err(format!("no answer within {LOOKUP_TIMEOUT:?}")),
        }
    }

    /// Joins the newest lookup, or begins one. A lookup may hang forever, as glibc has no timeout for answers over TCP.
    /// So another begins once the newest is older than [`LOOKUP_TIMEOUT`] times the number of unanswered lookups.
    fn join_lookup(&self, name: &str) -> Answer {
        let mut lookups = self.lookups.lock();
        // If the system has no thread for a lookup, Tokio panics, which drops its sender.
        lookups.retain(|(_, answer)| matches!(answer.has_changed(), Ok(false)));
        let hanging = u32::try_from(lookups.len()).unwrap_or(u32::MAX);
        if let Some((begun, answer)) = lookups.last()
            && (lookups.len() >= MAX_LOOKUPS || begun.elapsed() < LOOKUP_TIMEOUT * hanging)
        {
            return answer.clone();
        }
        let (sender, answer) = watch::channel(None);
        let lookup = (self.resolver)(name.into());
        tokio::spawn(async move { sender.send_replace(Some(lookup.await.map_err(|error| error.to_string()))) });
        lookups.push((Instant::now(), answer.clone()));
        answer
    }

    fn fails(&self, reason: &str) {
        if self.failure.lock().failed() {
            warn!("clients are turned away: {reason} ({})", self.target);
        }
    }
}

/// Returns why a dial has failed: with the system's error, unless the phrase of the refusal says as much.
fn reason(error: &DialError) -> String {
    match error.errno.filter(|_| error.reason != RefusalReason::TargetRefused) {
        Some(errno) => format!("the target cannot be reached: {errno}"),
        None => error.reason.phrase().to_string(),
    }
}

/// Returns whether a connection to `target` reaches a port bound at `own_addr`, by the addresses alone.
pub(super) fn is_self(target: SocketAddr, own_addr: SocketAddr) -> bool {
    let (to, at) = (target.ip().to_canonical(), own_addr.ip().to_canonical());
    let is_local = to.is_loopback() || to.is_unspecified();
    target.port() == own_addr.port() && (to == at || (is_local && (at.is_unspecified() || to.is_unspecified())))
}

/// How long a client waits for the lookup and the dial.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client waits for the lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of hanging lookups, each of which blocks a thread. As each lengthens the pause, reaching it takes
/// three hours.
const MAX_LOOKUPS: usize = 64;
/// Minimum time between two log lines about the start of a failure.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::io::Errno;
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;

    /// The clock of the tests is one of milliseconds.
    const TICK: Duration = Duration::from_millis(2);
    const OWN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn dialer(resolver: Resolver) -> TargetDialer {
        TargetDialer {
            resolver,
            ..TargetDialer::new("machine.example.com:22".parse().unwrap(), OWN)
        }
    }

    #[test]
    fn a_destination_is_an_address_or_a_name_each_with_a_port() {
        for text in ["127.0.0.1:22", "[::1]:22", "[fe80::1%2]:22"] {
            assert!(matches!(text.parse(), Ok(TargetAddr::Address(_))), "{text}");
        }
        for text in ["localhost:22", "machine.example.com.:2222", "machine_1:22"] {
            assert_eq!(text.parse(), Ok(TargetAddr::Name(text.into())));
            assert_eq!(text.parse::<TargetAddr>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "machine",
            "machine:",
            ":22",
            "machine:0",
            "127.0.0.1:0",
            "[::1]:0",
            "machine:ssh",
            "::1:22",
            "user@machine:22",
            "a b:22",
        ] {
            assert!(text.parse::<TargetAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_log_says_why_a_dial_has_failed_by_the_error_of_the_system() {
        for (refusal, errno, expected) in [
            (
                RefusalReason::OutOfSockets,
                Some(Errno::MFILE),
                "the target cannot be reached: Too many open files (os error 24)",
            ),
            (
                RefusalReason::TargetUnreachable,
                Some(Errno::PERM),
                "the target cannot be reached: Operation not permitted (os error 1)",
            ),
            (
                RefusalReason::TargetRefused,
                Some(Errno::CONNREFUSED),
                "the target refused the connection",
            ),
            (RefusalReason::DialTimeout, None, "the target did not answer in time"),
        ] {
            assert_eq!(reason(&DialError { reason: refusal, errno }), expected);
        }
    }

    #[test]
    fn a_target_that_is_the_anchor_itself_is_known() {
        for (target, own, expected) in [
            ("127.0.0.1:22", "127.0.0.1:22", true),
            ("127.0.0.1:22", "127.0.0.1:2222", false),
            ("127.0.0.1:22", "0.0.0.0:22", true),
            ("[::1]:22", "[::]:22", true),
            ("[::ffff:127.0.0.1]:22", "127.0.0.1:22", true),
            ("0.0.0.0:22", "127.0.0.1:22", true),
            ("10.0.0.1:22", "0.0.0.0:22", false),
            ("127.0.0.1:22", "10.0.0.1:22", false),
        ] {
            let addresses = (target.parse().unwrap(), own.parse().unwrap());
            assert_eq!(is_self(addresses.0, addresses.1), expected, "{target} {own}");
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_for_each_connection_and_never_leads_to_the_anchor_itself() {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        NEXT.store(listener.local_addr().unwrap().port().into(), Ordering::Relaxed);
        let mut dialer = dialer(|name| {
            assert_eq!(&*name, "machine.example.com:22");
            let port = u16::try_from(NEXT.load(Ordering::Relaxed)).unwrap();
            Box::pin(async move { Ok(vec![OWN, SocketAddr::from(([127, 0, 0, 1], port))]) })
        });
        let upstream = dialer.dial().await.unwrap();
        assert_eq!(upstream.address, listener.local_addr().unwrap());
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        NEXT.store(other.local_addr().unwrap().port().into(), Ordering::Relaxed);
        let upstream = dialer.dial().await.unwrap();
        assert_eq!(upstream.address, other.local_addr().unwrap());
        dialer.own_addr = other.local_addr().unwrap();
        NEXT.store(dialer.own_addr.port().into(), Ordering::Relaxed);
        assert_eq!(dialer.addresses().await.unwrap(), [OWN]);
        dialer.own_addr = OWN;
        NEXT.store(OWN.port().into(), Ordering::Relaxed);
        assert_eq!(dialer.dial().await.unwrap_err(), RefusalReason::NoEndpoint);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_that_comes_and_goes_fills_no_log() {
        let mut failure = LoggedFailure::default();
        let (mut begins, mut ends) = (0, 0);
        for _ in 0..1_000 {
            begins += u32::from(failure.failed());
            ends += u32::from(failure.recovered());
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!((begins, ends), (10, 10));
        // One that was too soon is told of when it lasts.
        assert!(failure.failed() && failure.recovered() && !failure.failed());
        tokio::time::advance(MIN_LOG_INTERVAL).await;
        assert!(failure.failed() && !failure.failed());
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_no_endpoint() {
        let failing: Resolver = |_| Box::pin(async { Err(io::Error::other("no such name")) });
        let panicking: Resolver = |_| Box::pin(async { panic!("no thread") });
        for resolver in [failing, panicking] {
            let dialer = dialer(resolver);
            for _ in 0..2 * MAX_LOOKUPS {
                assert_eq!(dialer.dial().await.unwrap_err(), RefusalReason::NoEndpoint);
            }
            assert!(dialer.failure.lock().recovered());
        }
    }

    #[tokio::test]
    async fn the_systems_resolver_is_asked() {
        let dialer = |name: &str| TargetDialer::new(name.parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        let found = dialer("localhost:22").addresses().await.unwrap();
        assert!(found.iter().any(|address| address.ip().is_loopback()), "{found:?}");
        assert_eq!(dialer("localhost:1").addresses().await, Err(RefusalReason::NoEndpoint));
    }

    /// So many at a time.
    async fn many(dialer: &Arc<TargetDialer>, count: usize) -> Vec<Result<Vec<SocketAddr>, RefusalReason>> {
        let mut asking = JoinSet::new();
        for _ in 0..count {
            let dialer = Arc::clone(dialer);
            asking.spawn(async move { dialer.addresses().await });
        }
        asking.join_all().await
    }

    #[tokio::test(start_paused = true)]
    async fn one_lookup_serves_all_that_wait_and_no_one_after_it() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let dialer = Arc::new(dialer(|_| {
            Box::pin(async {
                sleep(Duration::from_millis(700)).await;
                let port = 100 + ASKED.fetch_add(1, Ordering::Relaxed);
                Ok(vec![SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()))])
            })
        }));
        for port in 100..103 {
            for found in many(&dialer, 512).await {
                assert_eq!(found.unwrap(), [SocketAddr::from(([127, 0, 0, 1], port))]);
            }
        }
        assert_eq!(ASKED.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_hangs_is_given_up_and_one_that_answers_again_is_heard() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        const HANGING: usize = 10;
        let dialer = Arc::new(dialer(|_| match ASKED.fetch_add(1, Ordering::Relaxed) {
            asked if asked < HANGING => Box::pin(pending()),
            _ => Box::pin(async { Ok(vec!["127.0.0.1:2".parse().unwrap()]) }),
        }));
        let start = Instant::now();
        for found in many(&dialer, 512).await {
            assert_eq!(found, Err(RefusalReason::NoEndpoint));
        }
        assert!(start.elapsed() < LOOKUP_TIMEOUT + TICK);
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        // Another one begins when the last has had its time for each that hangs: 5 + 10 + … + 50 s.
        while dialer.addresses().await.is_err() {
            assert!(start.elapsed() < LOOKUP_TIMEOUT * 60, "never heard");
        }
        assert_eq!(ASKED.load(Ordering::Relaxed), HANGING + 1);
        // The next lookup need not wait.
        assert!(dialer.addresses().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_never_answers_takes_so_many_threads_and_no_more() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let dialer = dialer(|_| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            Box::pin(pending())
        });
        for _ in 0..50 * MAX_LOOKUPS {
            let begun = Instant::now();
            assert_eq!(dialer.dial().await.unwrap_err(), RefusalReason::NoEndpoint);
            assert!(begun.elapsed() < LOOKUP_TIMEOUT + TICK);
        }
        assert_eq!(ASKED.load(Ordering::Relaxed), MAX_LOOKUPS);
    }
}
