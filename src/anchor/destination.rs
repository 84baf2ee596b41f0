//! The target of an anchor: its address, or its name, which is looked up for each connection to it.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use crate::authority::Authority;
use crate::net::dial::{self, Upstream, dial};
use crate::outcome::Refusal;

/// The SSH server, as `--to` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An address, with its port.
    Address(SocketAddr),
    /// A name and a port, as they were written: a dot at the end keeps the resolver's search domains away.
    Name(Box<str>),
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, DestinationError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        match text.parse::<Authority>() {
            Ok(_) => Ok(Self::Name(text.into())),
            Err(_) => Err(DestinationError),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A text is neither an address nor a name with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("give HOST:PORT, such as 127.0.0.1:22, [::1]:22 or machine.example.com:22")]
pub struct DestinationError;

/// Makes connections to the target.
#[derive(Debug)]
pub(super) struct Dialler {
    to: Destination,
    /// The anchor's own address: a name that leads there would make a loop.
    own: SocketAddr,
    look_up: LookUp,
    lookups: Arc<Semaphore>,
    /// The last lookup has led to no address, and the log says so.
    is_failing: AtomicBool,
}

/// The addresses of `HOST:PORT`.
type LookUp = fn(Box<str>) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

impl Dialler {
    /// Of the anchor that listens at `own`.
    pub(super) fn new(to: Destination, own: SocketAddr) -> Self {
        Self {
            to,
            own,
            look_up: |name| Box::pin(async move { lookup_host(&*name).await.map(Iterator::collect) }),
            lookups: Arc::new(Semaphore::new(MOST_LOOKUPS)),
            is_failing: AtomicBool::new(false),
        }
    }

    /// A connection to the target, within [`LONGEST_DIAL`]. Several addresses have even parts of what the lookup has left of it.
    ///
    /// # Errors
    /// The target cannot be reached, or its name has no address.
    pub(super) async fn dial(&self) -> Result<Upstream, Refusal> {
        let deadline = Instant::now() + LONGEST_DIAL;
        let addresses = self.addresses().await;
        let left = deadline.saturating_duration_since(Instant::now());
        let shares = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let options = dial::Options {
            dial_try: left / shares,
            dial: left,
            unpaced_on_loopback: true,
        };
        dial(&addresses, 0, &options).await
    }

    /// The target's addresses now. Where a name has none, the log says why, and says when it has one again.
    pub(super) async fn addresses(&self) -> Vec<SocketAddr> {
        let name = match &self.to {
            Destination::Address(address) => return vec![*address],
            Destination::Name(name) => name,
        };
        let deadline = Instant::now() + LONGEST_LOOKUP;
        let fault = match timeout_at(deadline, self.addresses_of(name.clone())).await {
            Ok(Ok(mut addresses)) => {
                addresses.retain(|&address| !leads_to(address, self.own));
                if !addresses.is_empty() {
                    if self.is_failing.swap(false, Ordering::Relaxed) {
                        info!("the target {name} has an address again");
                    }
                    return addresses;
                }
                "it has no address but this anchor's own".to_owned()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer, or no free lookup, within {LONGEST_LOOKUP:?}"),
        };
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            warn!("the target {name} cannot be looked up, so clients are turned away: {fault}");
        }
        Vec::new()
    }

    /// A lookup takes a thread for as long as the resolver takes. In a task of its own, so that the permit is held until that thread
    /// is free, also when the client has left.
    async fn addresses_of(&self, name: Box<str>) -> io::Result<Vec<SocketAddr>> {
        let permit = Arc::clone(&self.lookups).acquire_owned().await;
        let addresses = (self.look_up)(name);
        let lookup = tokio::spawn(async move {
            let _permit = permit;
            addresses.await
        });
        lookup.await.map_err(io::Error::other)?
    }
}

/// Whether a connection to `target` arrives at a port that is bound at `own`, as far as the addresses tell.
pub(super) fn leads_to(target: SocketAddr, own: SocketAddr) -> bool {
    let (to, at) = (target.ip().to_canonical(), own.ip().to_canonical());
    let is_local = to.is_loopback() || to.is_unspecified();
    target.port() == own.port() && (to == at || (is_local && (at.is_unspecified() || to.is_unspecified())))
}

/// The longest that a client waits for the target: for its addresses, and for one that accepts.
const LONGEST_DIAL: Duration = Duration::from_secs(10);
const LONGEST_LOOKUP: Duration = Duration::from_secs(5);
/// The lookups at a time: the name is the same, and one that is answered takes milliseconds.
const MOST_LOOKUPS: usize = 8;

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::AtomicUsize;

    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;

    const OWN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn dialler(look_up: LookUp) -> Dialler {
        Dialler {
            look_up,
            ..Dialler::new("machine.example.com:22".parse().unwrap(), OWN)
        }
    }

    #[test]
    fn a_destination_is_an_address_or_a_name_each_with_a_port() {
        for text in ["127.0.0.1:22", "[::1]:22", "[fe80::1%2]:22"] {
            assert!(matches!(text.parse(), Ok(Destination::Address(_))), "{text}");
        }
        for text in ["localhost:22", "machine.example.com.:2222", "machine_1:22"] {
            assert_eq!(text.parse(), Ok(Destination::Name(text.into())));
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "machine",
            "machine:",
            ":22",
            "machine:0",
            "machine:ssh",
            "::1:22",
            "user@machine:22",
            "a b:22",
        ] {
            assert_eq!(text.parse::<Destination>(), Err(DestinationError), "{text}");
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
            assert_eq!(leads_to(addresses.0, addresses.1), expected, "{target} {own}");
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_for_each_connection_and_never_leads_to_the_anchor_itself() {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        NEXT.store(listener.local_addr().unwrap().port().into(), Ordering::Relaxed);
        let mut dialler = dialler(|name| {
            assert_eq!(&*name, "machine.example.com:22");
            let port = u16::try_from(NEXT.load(Ordering::Relaxed)).unwrap();
            Box::pin(async move { Ok(vec![OWN, SocketAddr::from(([127, 0, 0, 1], port))]) })
        });
        let upstream = dialler.dial().await.unwrap();
        assert_eq!(upstream.address, listener.local_addr().unwrap());
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        NEXT.store(other.local_addr().unwrap().port().into(), Ordering::Relaxed);
        let upstream = dialler.dial().await.unwrap();
        assert_eq!(upstream.address, other.local_addr().unwrap());
        dialler.own = other.local_addr().unwrap();
        NEXT.store(dialler.own.port().into(), Ordering::Relaxed);
        assert_eq!(dialler.addresses().await, [OWN]);
        dialler.own = OWN;
        NEXT.store(OWN.port().into(), Ordering::Relaxed);
        assert_eq!(dialler.dial().await.unwrap_err(), Refusal::NoEndpoint);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_does_not_answer_is_asked_few_times_and_given_up() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let dialler = Arc::new(dialler(|_| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            Box::pin(pending())
        }));
        let start = Instant::now();
        let mut dials = JoinSet::new();
        for _ in 0..20 {
            let dialler = Arc::clone(&dialler);
            dials.spawn(async move { dialler.dial().await });
        }
        while let Some(refused) = dials.join_next().await {
            assert_eq!(refused.unwrap().unwrap_err(), Refusal::NoEndpoint);
        }
        assert!(start.elapsed() >= LONGEST_LOOKUP && start.elapsed() < LONGEST_DIAL);
        // Those that were given up still have their threads.
        assert_eq!(ASKED.load(Ordering::Relaxed), MOST_LOOKUPS);
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_no_endpoint() {
        let dialler = dialler(|_| Box::pin(async { Err(io::Error::other("no such name")) }));
        assert_eq!(dialler.dial().await.unwrap_err(), Refusal::NoEndpoint);
        assert!(dialler.is_failing.load(Ordering::Relaxed));
    }
}
