//! Tunnels by an anchor that has dialled in, and what idle anchors hold.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::load::{Bulk, round_trips, set_ups};
use crate::proxies::{Kind, Machine, Program, Proxy};
use crate::route::{Route, Tunnel};
use crate::scenarios::{Effort, Figure, WARM_UP, carry, micros, percentile, settle};
use crate::secure::Security;
use crate::target::Role::{Download, Echo, Paced, Upload};

/// Bulk, logins and keystrokes by an anchor, each beside the same without one.
pub(crate) fn tunnels(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    if program.kind != Kind::Switchboard {
        return Ok(Vec::new());
    }
    let proxy = program.with(ANCHORED).start(target, &Machine::default())?;
    let _anchor = program.start_anchor(proxy.address, "one.anchored:22", target)?;
    let dialled = Route::through(&proxy);
    let anchored = dialled.named("one.anchored:22");
    wait_for(anchored)?;
    let bulk = Bulk::start(anchored, Download, 8)?;
    let mut figures = carry(&proxy, &bulk, effort.period).figures(["anchor-down8.cpu", "anchor-down8.rate"]);
    drop(bulk);
    // The same bytes, the other way round: a client's connection of HTTP/2.
    let bulk = Bulk::over_http2(dialled, Upload, [1, 8])?;
    figures.extend(carry(&proxy, &bulk, effort.period).figures(["h2c-up8.cpu", "h2c-up8.rate"]));
    drop(bulk);
    for (route, alone, beside) in [
        (dialled, "alone.p50", "beside-dialled.p99"),
        (anchored, "anchor-alone.p50", "anchor-beside.p99"),
    ] {
        set_ups(route, 1, WARM_UP)?;
        let times = set_ups(route, 1, effort.period)?.times;
        figures.push((alone, micros(percentile(&times, 0.5)) / 1e3));
        let mut tunnel = [route.open(Echo)?];
        let _bulk = Bulk::start(route, Paced(60), 4)?;
        round_trips(&mut tunnel, WARM_UP)?;
        let times = round_trips(&mut tunnel, effort.period)?;
        figures.push((beside, micros(percentile(&times, 0.99))));
    }
    Ok(figures)
}

/// Keystrokes beside the uploads of others to an anchor with a slow link.
pub(crate) fn slow_link(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    if program.kind != Kind::Switchboard {
        return Ok(Vec::new());
    }
    let proxy = program.with(ANCHORED).start(target, &Machine::default())?;
    let _anchor = program.start_anchor(link_to(proxy.address)?, "one.anchored:22", target)?;
    let route = Route::through(&proxy).named("one.anchored:22");
    wait_for(route)?;
    let mut tunnel = [route.open(Echo)?];
    let _bulk = Bulk::start(route, Upload, UPLOADS)?;
    // Without a figure if the anchor has lost its connection.
    let typed = round_trips(&mut tunnel, SETTLED).and_then(|_| round_trips(&mut tunnel, effort.period.max(SETTLED)));
    let times = typed.unwrap_or_default();
    Ok([("slow-link.p50", 0.5), ("slow-link.p99", 0.99)]
        .into_iter()
        .filter(|_| !times.is_empty())
        .map(|(row, part)| (row, micros(percentile(&times, part)) / 1e3))
        .collect())
}

/// The address of a relay that passes [`LINK_RATE`] on in each direction.
fn link_to(proxy: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    set_socket_recv_buffer_size(&listener, LINK_BUFFER)?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            link(&near, proxy).ok();
        }
    });
    Ok(address)
}

fn link(near: &TcpStream, proxy: SocketAddr) -> io::Result<()> {
    let far = TcpStream::connect(proxy)?;
    set_socket_recv_buffer_size(&far, LINK_BUFFER)?;
    for (from, to) in [(near, &far), (&far, near)] {
        to.set_nodelay(true)?;
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        thread::spawn(move || {
            pass_slowly(&from, &to).ok();
            // The other end sees it as it would see a cut link.
            to.shutdown(Shutdown::Both)
        });
    }
    Ok(())
}

fn pass_slowly(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut piece = [0; LINK_PIECE];
    let mut due = Instant::now();
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(piece.get(..read).unwrap_or_default())?;
        due = due.max(Instant::now()) + Duration::from_secs_f64(read as f64 / LINK_RATE);
        sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn wait_for(route: Route<'_>) -> io::Result<()> {
    let end = Instant::now() + START_TIMEOUT;
    while let Err(error) = route.set_up() {
        if Instant::now() > end {
            return Err(error);
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Anchors that carry nothing, in clear and by TLS.
pub(crate) fn idle(program: &Program, target: SocketAddr, _effort: Effort) -> io::Result<Vec<Figure>> {
    if program.kind != Kind::Switchboard {
        return Ok(Vec::new());
    }
    let security = Security::new(b"http/1.1")?;
    let memory_of = |security: Option<&Security>| {
        let proxy = program.with(ANCHORED).start(target, &Machine::default())?;
        let route = Route::through(&proxy);
        let route = security.map_or(route, |security| route.secured(security));
        // The first ones pay for what all share. They stay, so that the others find no freed memory.
        let _first = register_all(&proxy, route, 0..FIRST)?;
        settle(&proxy);
        let before = proxy.resident();
        let _others = register_all(&proxy, route, FIRST..FIRST + ANCHORS)?;
        settle(&proxy);
        let memory = (proxy.resident() - before) / ANCHORS as f64;
        io::Result::Ok(memory)
    };
    Ok(vec![
        ("anchor-idle.memory", memory_of(None)?),
        ("anchor-tls-idle.memory", memory_of(Some(&security))?),
    ])
}

fn register_all(proxy: &Proxy, route: Route<'_>, numbers: Range<usize>) -> io::Result<Vec<Tunnel>> {
    numbers.map(|number| register(proxy, route, number)).collect()
}

/// Registers an anchor that opens no stream.
fn register(proxy: &Proxy, route: Route<'_>, number: usize) -> io::Result<Tunnel> {
    let name = NAMES.get(number % NAMES.len()).copied().unwrap_or_default();
    let mut connection = route.connect()?;
    write!(
        connection,
        "GET /.well-known/switchboard/anchor/{name} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: \
         switchboard-anchor\r\nProxy-Authorization: Basic {CREDENTIAL}\r\n\r\n",
        proxy.address
    )?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        connection.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    if !head.starts_with(b"HTTP/1.1 101 ") {
        return Err(io::Error::other(String::from_utf8_lossy(&head).into_owned()));
    }
    // SETTINGS without any, and the acknowledgement of the proxy's (RFC 9113 section 6.5).
    connection.write_all(b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0")?;
    connection.read_exact(&mut [0; PREFACE.len()])?;
    Ok(connection)
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Further targets, which anchors of the user serve.
const ANCHORED: &str = "    - {name: \"one.anchored:22\", dials_in: {users: [bench]}}\n    - {name: \"two.anchored:22\", \
                        dials_in: {users: [bench]}}\n    - {name: \"three.anchored:22\", dials_in: {users: [bench]}}\n\
                        access: {users: {file: \"@DIRECTORY@/users\"}}";
const NAMES: [&str; 3] = ["one.anchored:22", "two.anchored:22", "three.anchored:22"];
/// A user may have 64 connections.
const FIRST: usize = 8;
const ANCHORS: usize = 56;
/// `bench:correct` in Base64.
const CREDENTIAL: &str = "YmVuY2g6Y29ycmVjdA==";
/// In bytes a second.
const LINK_RATE: f64 = 1e6;
/// The kernel doubles it.
const LINK_BUFFER: usize = 16 * 1024;
const LINK_PIECE: usize = 4096;
const UPLOADS: usize = 60;
/// The uploads have filled their buffers after that time.
const SETTLED: Duration = Duration::from_secs(5);
const START_TIMEOUT: Duration = Duration::from_secs(20);
