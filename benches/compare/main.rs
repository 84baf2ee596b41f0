//! Puts the same loads on switchboard, Envoy and HAProxy, in turn, and prints what each of them costs.
//!
//! `benches/compare/run` installs what it needs and starts it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a load tool: it has nobody to answer to but its reader, and ends when something is amiss"
)]

use std::env;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::proxies::{Kind, Machine, Program, Proxy, softirq_time};
use self::report::{ENVOY, FLOOR, Results};
use self::scenarios::{Effort, Figure};

mod anchors;
#[path = "../support/bare_relay.rs"]
mod bare_relay;
mod floor;
mod http2;
mod load;
mod protocols;
mod proxies;
mod report;
mod route;
mod rows;
mod scenarios;
mod secure;
mod secure_floor;
mod target;
mod typing;
mod websocket;

/// What the command line asks for.
struct Wanted {
    effort: Effort,
    /// Only scenarios whose name contains one of these; all of them when there are none.
    only: Vec<String>,
    /// Other switchboards, to be measured in the same run.
    against: Vec<PathBuf>,
    /// Lines of the configuration, with each of which the own switchboard is measured once more.
    with: Vec<String>,
    /// Where the table is written.
    output: Option<PathBuf>,
}

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_some_and(|argument| argument == floor::ARGUMENT) {
        let served = arguments.next().map(|file| floor::run(Path::new(&file)));
        return ExitCode::from(u8::from(served.is_none_or(|served| served.is_err())));
    }
    match wanted().and_then(|wanted| run(&wanted)) {
        Ok(lost) if lost.is_empty() => ExitCode::SUCCESS,
        Ok(lost) => {
            eprintln!("compare: missed, and met in the last table: {}", lost.join("; "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn wanted() -> io::Result<Wanted> {
    let mut wanted = Wanted {
        effort: FULL,
        only: Vec::new(),
        against: Vec::new(),
        with: Vec::new(),
        output: None,
    };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| io::Error::other(USAGE));
        match argument.as_str() {
            // Cargo says it to every benchmark.
            "--bench" => {}
            "--quick" => wanted.effort = QUICK,
            "--rounds" => wanted.effort.rounds = value()?.parse().map_err(io::Error::other)?,
            "--only" => wanted.only.extend(value()?.split(',').map(str::to_owned)),
            "--against" => wanted.against.push(value()?.into()),
            "--with" => wanted.with.push(value()?),
            "--output" => wanted.output = Some(value()?.into()),
            _ => return Err(io::Error::other(USAGE)),
        }
    }
    Ok(wanted)
}

/// Measures and prints the table; returns the rows whose goal is missed although the last table met it.
fn run(wanted: &Wanted) -> io::Result<Vec<&'static str>> {
    let target = target::start()?;
    let programs = programs(wanted)?;
    let mut results = Results::new(programs.iter().map(|program| program.name.clone()).collect());
    for round in 0..wanted.effort.rounds {
        eprintln!("round {} of {}", round + 1, wanted.effort.rounds);
        let in_order: Vec<Program> = order(round, programs.len())
            .filter_map(|index| programs.get(index).cloned())
            .collect();
        measure(wanted, &in_order, target, &mut results)?;
    }
    let table = results.table();
    println!("{table}");
    if let Some(directory) = &wanted.output {
        fs::create_dir_all(directory)?;
        fs::write(directory.join("table.md"), table)?;
    }
    Ok(results.lost(include_str!("table.md")))
}

/// The order of `programs` in a round: a Williams design, in which over `programs` rounds each one comes first once and
/// follows each of the others once (an odd number takes twice as many rounds). A measurement pays for what the one
/// before it has left behind: with an order that was only rotated, the same binary in two columns differed by 8 %.
fn order(round: usize, programs: usize) -> impl Iterator<Item = usize> {
    let zigzag = move |place: usize| {
        if place % 2 == 1 {
            place.div_ceil(2)
        } else {
            programs - place / 2
        }
    };
    let reversed = programs % 2 == 1 && (round / programs) % 2 == 1;
    (0..programs)
        .map(move |place| if reversed { programs - 1 - place } else { place })
        .map(move |place| (zigzag(place) + round) % programs)
}

/// One round: every scenario with every program, one after the other.
fn measure(wanted: &Wanted, programs: &[Program], target: SocketAddr, results: &mut Results) -> io::Result<()> {
    let running: Vec<(&Program, Proxy)> = programs
        .iter()
        .map(|program| Ok((program, program.start(target, &Machine::default())?)))
        .collect::<io::Result<_>>()?;
    let scenarios = scenarios::SCENARIOS.iter().chain(&protocols::SCENARIOS);
    for scenario in scenarios.filter(|scenario| wanted.wants(scenario.name)) {
        for (program, proxy) in &running {
            if scenario.kinds.contains(&proxy.kind) {
                let (softirq, start) = (softirq_time(), Instant::now());
                let figures = (scenario.run)(proxy, wanted.effort).map_err(named(&program.name, scenario.name))?;
                results.add(&program.name, figures);
                let cores = (softirq_time() - softirq).as_secs_f64() / start.elapsed().as_secs_f64();
                results.add_softirq(scenario.name, &program.name, cores);
            }
        }
    }
    drop(running);
    for (name, scenario) in ALONE.into_iter().filter(|(name, _)| wanted.wants(name)) {
        for program in programs.iter().filter(|program| program.kind != Kind::Floor) {
            let figures = scenario(program, target, wanted.effort).map_err(named(&program.name, name))?;
            results.add(&program.name, figures);
        }
    }
    Ok(())
}

fn named(program: &str, scenario: &str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::other(format!("{scenario} through {program}: {error}"))
}

impl Wanted {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

fn programs(wanted: &Wanted) -> io::Result<Vec<Program>> {
    let ours = Path::new(env!("CARGO_BIN_EXE_switchboard"));
    let missing = |name: &str| io::Error::other(format!("{name} is not there: benches/compare/run installs it"));
    let from = |variable, usual: &str| PathBuf::from(env::var_os(variable).unwrap_or_else(|| usual.into()));
    let envoy = from("ENVOY", "/usr/local/bin/envoy");
    let haproxy = from("HAPROXY", "/usr/sbin/haproxy");
    let mut programs = vec![
        Program::find("switchboard", Kind::Switchboard, ours).ok_or_else(|| missing("switchboard"))?,
        Program::find(ENVOY, Kind::Envoy, &envoy).ok_or_else(|| missing("Envoy"))?,
        Program::find("HAProxy, TCP", Kind::HaProxy, &haproxy).ok_or_else(|| missing("HAProxy"))?,
        Program::find(FLOOR, Kind::Floor, &env::current_exe()?).ok_or_else(|| missing("this program"))?,
    ];
    let own = programs.first().cloned();
    programs.extend(own.iter().flat_map(|own| wanted.with.iter().map(|line| own.with(line))));
    for other in &wanted.against {
        let name = other.file_name().unwrap_or_default().to_string_lossy();
        programs.push(Program::find(&name, Kind::Switchboard, other).ok_or_else(|| missing(&name))?);
    }
    Ok(programs)
}

/// Scenarios that start a process of their own.
const ALONE: [(&str, RunAlone); 9] = [
    ("idle", scenarios::idle),
    ("slow", scenarios::slow),
    ("tls-idle", protocols::idle_tls),
    ("ws-idle", protocols::idle_websockets),
    ("h2-idle", protocols::idle_http2),
    ("pinned", scenarios::pinned),
    ("anchor-tunnels", anchors::tunnels),
    ("anchor-slow-link", anchors::slow_link),
    ("anchor-idle", anchors::idle),
];
type RunAlone = fn(&Program, SocketAddr, Effort) -> io::Result<Vec<Figure>>;
const FULL: Effort = Effort {
    rounds: 3,
    period: Duration::from_secs(2),
    idle_tunnels: 9_000,
};
const QUICK: Effort = Effort {
    rounds: 1,
    period: Duration::from_millis(700),
    idle_tunnels: 2_000,
};
const USAGE: &str = "usage: compare [--quick] [--rounds N] [--only NAME,…] [--against SWITCHBOARD]… [--with LINE]… \
                     [--output DIRECTORY]";
