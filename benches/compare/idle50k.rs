//! 50,000 idle tunnels: more than the limit of open files allows most processes, so that several share them where need be.

use std::cell::RefCell;
use std::env;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::load::open_many;
use crate::proxies::{Machine, Program, Proxy};
use crate::route::{Route, Tunnel};
use crate::scenarios::{Effort, Figure, held_by_idle};
use crate::target;

/// The argument by which this program is a [`Holder`].
pub(crate) const HOLD: &str = "--hold";

/// What the tunnels cost while they are idle: in one proxy or, where it may not have as many descriptors, in several that
/// have equal parts of them.
pub(crate) fn idle(program: &Program, _: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    let processes = TUNNELS.div_ceil(most_of_a_process()?);
    let mut parts = Vec::new();
    let mut each = [0.0; 2];
    for tunnels in shares(TUNNELS, processes) {
        let (part, held) = Part::open(program, tunnels)?;
        for (all, held) in each.iter_mut().zip(held) {
            *all += held * tunnels as f64 / TUNNELS as f64;
        }
        parts.push(part);
    }
    let used = || -> Duration { parts.iter().map(|part| part.proxy.processor_time()).sum() };
    let period = effort.period.max(SHORTEST_PERIOD);
    let before = used();
    sleep(period);
    let used = used() - before;
    let [memory, descriptors] = each;
    Ok(vec![
        ("idle50k.memory", memory),
        ("idle50k.descriptors", descriptors),
        ("idle50k.cpu", used.as_secs_f64() * 1e3 / period.as_secs_f64()),
    ])
}

/// The tunnels for which a process may have descriptors: two for each, in a proxy as in a holder. Raises the limit of open
/// files as far as this process may; the others inherit it.
fn most_of_a_process() -> io::Result<usize> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let most = limit.maximum.unwrap_or(u64::MAX).saturating_sub(FOR_OTHER_THINGS) / 2;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if most == 0 {
        return Err(io::Error::other(
            "the limit of open files (ulimit -Hn) allows no tunnel",
        ));
    }
    Ok(most)
}

/// A part of the tunnels, with the proxy that carries them.
struct Part {
    proxy: Proxy,
    _holder: RefCell<Holder>,
}

impl Part {
    /// That many tunnels; memory in KiB and descriptors of the proxy for each.
    fn open(program: &Program, tunnels: usize) -> io::Result<(Self, [f64; 2])> {
        let (mut holder, targets) = Holder::start()?;
        let machine = Machine {
            tunnels,
            ..Machine::default()
        };
        let proxy = program.start_before(&targets, &machine)?;
        let name = Route::through(&proxy).name;
        holder.say(&format!("{} {}", proxy.address, name.unwrap_or(NOBODY_ASKS)))?;
        let holder = RefCell::new(holder);
        let (held, tunnels) = held_by_idle(&proxy, tunnels, |count| Held::open(&holder, count))?;
        tunnels.keep();
        let part = Self { proxy, _holder: holder };
        Ok((part, held))
    }
}

/// A process of this program with both ends of tunnels: clients and target. Dropped, it ends.
struct Holder {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    /// A holder, and the ports of its target.
    fn start() -> io::Result<(Self, Vec<SocketAddr>)> {
        let mut child = Command::new(env::current_exe()?)
            .arg(HOLD)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut holder = Self {
            child,
            input,
            output: BufReader::new(output).lines(),
        };
        let targets = holder.answer()?;
        let targets = targets
            .split(' ')
            .map(|target| target.parse().map_err(io::Error::other));
        Ok((holder, targets.collect::<io::Result<_>>()?))
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input, "{line}")
    }

    fn answer(&mut self) -> io::Result<String> {
        let ended = || io::Error::other("a process with idle tunnels has ended");
        self.output.next().ok_or_else(ended)?
    }

    /// Has it hold that many tunnels, and no others.
    fn hold(&mut self, tunnels: usize) -> io::Result<()> {
        self.say(&tunnels.to_string())?;
        self.answer().map(drop)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The tunnels of a holder. Dropped, they end.
struct Held<'a>(Option<&'a RefCell<Holder>>);

impl<'a> Held<'a> {
    fn open(holder: &'a RefCell<Holder>, tunnels: usize) -> io::Result<Self> {
        holder.borrow_mut().hold(tunnels)?;
        Ok(Self(Some(holder)))
    }

    /// Leaves them to the holder.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(holder) = self.0 {
            // What does not answer any more holds none.
            holder.borrow_mut().hold(0).ok();
        }
    }
}

/// The process of a [`Holder`]: says the ports of its target, reads the proxy's address and name, and then numbers of tunnels,
/// of which it says that it has them. Ends with its input.
pub(crate) fn hold() -> io::Result<()> {
    let targets = (0..TARGETS).map(|_| Ok(target::start()?.to_string()));
    let mut output = io::stdout();
    writeln!(output, "{}", targets.collect::<io::Result<Vec<_>>>()?.join(" "))?;
    let mut lines = io::stdin().lines();
    let way = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
    let (address, name) = way.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
    let address = address.parse().map_err(io::Error::other)?;
    let route = Route::to(address, (name != NOBODY_ASKS).then_some(name));
    let mut tunnels: Vec<Tunnel> = Vec::new();
    for wanted in lines {
        let wanted: usize = wanted?.parse().map_err(io::Error::other)?;
        tunnels.clear();
        for (client, share) in (1..=CLIENTS).zip(shares(wanted, CLIENTS.into())) {
            tunnels.extend(open_many(route.of_client(Ipv4Addr::new(127, 0, 1, client)), share)?);
        }
        writeln!(output, "{}", tunnels.len())?;
    }
    Ok(())
}

/// A number in so many nearly equal parts.
fn shares(all: usize, parts: usize) -> impl Iterator<Item = usize> {
    (0..parts).map(move |part| all / parts + usize::from(part < all % parts))
}

const TUNNELS: usize = 50_000;
/// Descriptors that a proxy or a holder keeps for other things.
const FOR_OTHER_THINGS: u64 = 4_000;
/// Addresses of loopback from which the clients come, and ports of the target: each has some 28,000 ephemeral ports, and
/// those of the program before are used up for a minute.
const CLIENTS: u8 = 16;
const TARGETS: usize = 4;
/// In place of a name, for a proxy that speaks no CONNECT.
const NOBODY_ASKS: &str = "-";
/// Idle tunnels cost next to nothing: a short period would show single timers.
const SHORTEST_PERIOD: Duration = Duration::from_secs(5);
