//! 50,000 idle tunnels: more than one address has ephemeral ports for, and than most limits of open files allow.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::growth::grouped;
use crate::load::open_many;
use crate::proxies::{Machine, Program};
use crate::route::Route;
use crate::scenarios::{Effort, Figure, held_by_idle};
use crate::target;

/// What the tunnels cost while they are idle. The error is `Unsupported` where the machine does not allow so many.
pub(crate) fn idle(program: &Program, first: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    allow_descriptors()?;
    let mut targets = vec![first];
    for _ in 1..TARGETS {
        targets.push(target::start()?);
    }
    let machine = Machine {
        tunnels: TUNNELS,
        ..Machine::default()
    };
    let proxy = program.start_before(&targets, &machine)?;
    let route = Route::through(&proxy);
    let ([memory, descriptors], _tunnels) = held_by_idle(&proxy, TUNNELS, |count| {
        let mut tunnels = Vec::with_capacity(count);
        for (client, share) in (1..=CLIENTS).zip(shares(count)) {
            tunnels.extend(open_many(route.of_client(Ipv4Addr::new(127, 0, 1, client)), share)?);
        }
        Ok(tunnels)
    })?;
    let period = effort.period.max(SHORTEST_PERIOD);
    let before = proxy.processor_time();
    sleep(period);
    let used = proxy.processor_time() - before;
    Ok(vec![
        ("idle50k.memory", memory),
        ("idle50k.descriptors", descriptors),
        ("idle50k.cpu", used.as_secs_f64() * 1e3 / period.as_secs_f64()),
    ])
}

/// Raises the limit of open files as far as the process may; the proxy inherits it.
fn allow_descriptors() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    match limit.maximum {
        Some(most) if most < DESCRIPTORS => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "{} tunnels take {DESCRIPTORS} descriptors, and the limit of open files (ulimit -Hn) is {most}",
                grouped(TUNNELS)
            ),
        )),
        _ => Ok(()),
    }
}

/// The tunnels of each client.
fn shares(count: usize) -> impl Iterator<Item = usize> {
    let clients = usize::from(CLIENTS);
    (0..clients).map(move |client| count / clients + usize::from(client < count % clients))
}

const TUNNELS: usize = 50_000;
/// Two for each tunnel, in the proxy as in the load tool with the target, and what a proxy keeps for other things.
const DESCRIPTORS: u64 = 2 * TUNNELS as u64 + 4_000;
/// Addresses of loopback from which the clients come, and ports of the target: each has some 28,000 ephemeral ports, and
/// those of the program before are used up for a minute.
const CLIENTS: u8 = 16;
const TARGETS: usize = 4;
/// Idle tunnels cost next to nothing: a short period would show single timers.
const SHORTEST_PERIOD: Duration = Duration::from_secs(5);
