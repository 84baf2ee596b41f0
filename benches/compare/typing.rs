//! Typing: keystrokes through a thousand tunnels at human speed, beside bulk, and the time until each one's echo.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};

use crate::load::{Bulk, open_many};
use crate::proxies::Proxy;
use crate::route::{Route, Tunnel};
use crate::scenarios::{Effort, Figure, WARM_UP, micros, percentile};
use crate::target::Role;

/// Typing beside eight tunnels of that role: the echo's two percentiles, cores of the proxy, the bulk's GiB/s, and how
/// late the load tool itself was.
pub(crate) fn typing(proxy: &Proxy, effort: Effort, role: Role, rows: [&'static str; 5]) -> io::Result<Vec<Figure>> {
    let [p50, p99, cores, rate, late] = rows;
    let route = Route::through(proxy);
    let mut typing = Typing::begin(open_many(route, Role::Echo, TYPED)?)?;
    let bulk = Bulk::start(route, role, BULK)?;
    typing.go_on(WARM_UP)?;
    let (processor, moved, start) = (proxy.processor_time(), bulk.moved(), Instant::now());
    let keystrokes = typing.go_on(effort.period)?;
    let took = start.elapsed().as_secs_f64();
    let processor = (proxy.processor_time() - processor).as_secs_f64();
    let gibibytes = (bulk.moved() - moved) as f64 / (1_u64 << 30) as f64;
    Ok(vec![
        (p50, micros(percentile(&keystrokes.echoes, 0.5)) / 1e3),
        (p99, micros(percentile(&keystrokes.echoes, 0.99)) / 1e3),
        (cores, processor / took),
        (rate, gibibytes / took),
        (late, micros(percentile(&keystrokes.late, 0.99)) / 1e3),
    ])
}

/// Tunnels with typing. One thread serves them all: it sends what is due, and reads what has come.
struct Typing {
    epoll: OwnedFd,
    /// It ends a wait when the next keystroke is due: epoll_wait(2) itself rounds up to a millisecond.
    timer: OwnedFd,
    tunnels: Vec<Typed>,
    /// Keystrokes whose echo has not come.
    open: usize,
    random: u64,
}

struct Typed {
    socket: TcpStream,
    /// When the keystrokes without an echo were sent. The next one does not wait for an echo.
    sent: VecDeque<Instant>,
    /// Bytes of an echo that has come in part.
    part: usize,
}

/// What became of the keystrokes of a period.
#[derive(Default)]
struct Keystrokes {
    /// From the send of each to the wake-up that found its echo.
    echoes: Vec<Duration>,
    /// From when each was due to its send. It is the load tool's own delay, and no part of `echoes`.
    late: Vec<Duration>,
}

impl Typing {
    fn begin(tunnels: Vec<Tunnel>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        let watch = |(number, tunnel)| {
            let Tunnel::Plain(socket) = tunnel else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            socket.set_nonblocking(true)?;
            epoll::add(&epoll, &socket, EventData::new_u64(number), EventFlags::IN)?;
            Ok(Typed {
                socket,
                sent: VecDeque::new(),
                part: 0,
            })
        };
        let tunnels = (0..).zip(tunnels).map(watch).collect::<io::Result<_>>()?;
        Ok(Self {
            epoll,
            timer,
            tunnels,
            open: 0,
            random: 0x2545_f491_4f6c_dd1d,
        })
    }

    /// Types for so long, and waits for the last echoes. One that does not come is an error.
    fn go_on(&mut self, period: Duration) -> io::Result<Keystrokes> {
        let start = Instant::now();
        let end = start + period;
        let mut keystrokes = Keystrokes::default();
        let mut due: BinaryHeap<_> = (0..self.tunnels.len())
            .map(|tunnel| Reverse((start + self.up_to(PAUSE), tunnel)))
            .collect();
        let mut events = Vec::with_capacity(EVENTS);
        while self.open > 0 || !due.is_empty() {
            let next = due.peek().map_or(end + ECHO_TIMEOUT, |Reverse((next, _))| *next);
            self.wait(next, &mut events)?;
            let now = Instant::now();
            for event in events.drain(..) {
                self.read(event.data.u64(), now, &mut keystrokes)?;
            }
            if now < next {
                continue;
            }
            // One between two waits: no echo is read later for the sends of a burst.
            let Some(Reverse((when, tunnel))) = due.pop() else {
                return Err(io::Error::other(format!("{} keystrokes had no echo", self.open)));
            };
            keystrokes.late.push(self.send(tunnel)?.duration_since(when));
            let again = when + PAUSE / 2 + self.up_to(PAUSE);
            if again < end {
                due.push(Reverse((again, tunnel)));
            }
        }
        Ok(keystrokes)
    }

    /// Waits for bytes, until then at most.
    fn wait(&self, until: Instant, events: &mut Vec<Event>) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let at_once = Timespec::default();
        if !left.is_zero() {
            let once = Itimerspec {
                it_interval: Timespec::default(),
                it_value: left.try_into().map_err(io::Error::other)?,
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        }
        let timeout = left.is_zero().then_some(&at_once);
        epoll::wait(&self.epoll, spare_capacity(events), timeout)?;
        Ok(())
    }

    /// Gives the time of the send.
    fn send(&mut self, tunnel: usize) -> io::Result<Instant> {
        let tunnel = self.tunnels.get_mut(tunnel).ok_or(io::ErrorKind::NotFound)?;
        let now = Instant::now();
        tunnel.sent.push_back(now);
        self.open += 1;
        // 64 bytes always fit: there are never more than a few on the way.
        tunnel.socket.write_all(&[b'k'; KEYSTROKE])?;
        Ok(now)
    }

    fn read(&mut self, event: u64, now: Instant, keystrokes: &mut Keystrokes) -> io::Result<()> {
        let tunnel = usize::try_from(event)
            .ok()
            .and_then(|number| self.tunnels.get_mut(number));
        // The timer is no tunnel.
        let Some(tunnel) = tunnel else { return Ok(()) };
        match tunnel.socket.read(&mut [0; 16 * KEYSTROKE])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => tunnel.part += read,
        }
        while tunnel.part >= KEYSTROKE {
            let sent = tunnel.sent.pop_front().ok_or(io::ErrorKind::InvalidData)?;
            keystrokes.echoes.push(now.duration_since(sent));
            tunnel.part -= KEYSTROKE;
            self.open -= 1;
        }
        Ok(())
    }

    /// A random part of that time (xorshift64): typing in several tunnels keeps no step.
    fn up_to(&mut self, max: Duration) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        max * u32::try_from(self.random >> 48).unwrap_or_default() / (1 << 16)
    }
}

/// Tunnels with typing.
const TYPED: usize = 1_000;
/// Tunnels with bulk beside them.
const BULK: usize = 8;
const KEYSTROKE: usize = 64;
/// The mean pause between two keystrokes of a tunnel: each pause is from half of it to one and a half.
const PAUSE: Duration = Duration::from_millis(200);
const ECHO_TIMEOUT: Duration = Duration::from_secs(10);
/// Read in one wake-up. They all count as come when it began.
const EVENTS: usize = 64;
const TIMER: u64 = u64::MAX;
