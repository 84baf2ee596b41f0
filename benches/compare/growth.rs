//! How cost grows with the number of tunnels and of names.

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;

use crate::load::{open_many, round_trips, set_ups};
use crate::proxies::{Kind, Machine, Program, Proxy, allow_long_command_lines};
use crate::route::{Route, Tunnel};
use crate::scenarios::{Effort, WARM_UP, micros, settle};

/// One measure over one growing number.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) title: &'static str,
    /// What grows.
    pub(crate) over: &'static str,
    /// One line for each program.
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) program: String,
    pub(crate) points: Vec<(usize, f64)>,
}

#[derive(Debug)]
pub(crate) struct Growth {
    pub(crate) curves: Vec<Curve>,
}

/// Measures all curves, each point once.
pub(crate) fn measure(programs: &[Program], target: SocketAddr, effort: Effort) -> io::Result<Growth> {
    let mut beside_idle = curve("CPU µs per round trip of one tunnel, the others idle", "tunnels");
    let mut all_active = curve("CPU µs per round trip, all tunnels in turn", "tunnels");
    let mut memory = curve("Memory of all idle tunnels, MiB", "tunnels");
    for program in programs {
        eprintln!("growth: {}", program.name);
        let [one, all, held] = over_tunnels(program, target, effort)?;
        beside_idle.push(program, one);
        all_active.push(program, all);
        memory.push(program, held);
    }
    let mut set_up = curve("CPU µs per set-up", "names on the allowlist");
    let mut start = curve("Start, ms", "names on the allowlist");
    for program in programs.iter().filter(|program| program.kind == Kind::Switchboard) {
        let [cost, took] = over_names(program, target, effort)?;
        set_up.push(program, cost);
        start.push(program, took);
    }
    Ok(Growth {
        curves: vec![beside_idle, all_active, memory, set_up, start],
    })
}

type Points = Vec<(usize, f64)>;

fn over_tunnels(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<[Points; 3]> {
    let proxy = program.start(target, &Machine::default())?;
    let route = Route::through(&proxy);
    drop(open_many(route, 50)?);
    settle(&proxy);
    let empty = proxy.resident();
    let mut points = [const { Vec::new() }; 3];
    let [one, all, held] = &mut points;
    let mut tunnels = Vec::new();
    for count in [1, 10, 100, 1_000, effort.idle_tunnels] {
        tunnels.extend(open_many(route, count - tunnels.len())?);
        settle(&proxy);
        held.push((count, (proxy.resident() - empty) / 1024.0));
        let first = tunnels.get_mut(..1).unwrap_or_default();
        one.push((count, trip_cost(&proxy, first, effort)?));
        all.push((count, trip_cost(&proxy, &mut tunnels, effort)?));
    }
    Ok(points)
}

fn trip_cost(proxy: &Proxy, tunnels: &mut [Tunnel], effort: Effort) -> io::Result<f64> {
    round_trips(tunnels, WARM_UP)?;
    let before = proxy.processor_time();
    let trips = round_trips(tunnels, effort.period)?.len();
    Ok(micros(proxy.processor_time() - before) / trips as f64)
}

/// Every name is asked for, one after the other.
fn over_names(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<[Points; 2]> {
    allow_long_command_lines()?;
    let mut points = [const { Vec::new() }; 2];
    let [cost, took] = &mut points;
    for count in [10, 100, 1_000, 10_000, 100_000] {
        let names: Vec<_> = (0..count).map(|number| format!("service-{number}.names:22")).collect();
        let machine = Machine {
            names: names.clone(),
            ..Machine::default()
        };
        let proxy = program.start(target, &machine)?;
        let routes: Vec<_> = names.iter().map(|name| Route::through(&proxy).named(name)).collect();
        set_ups(&routes, CLIENTS, WARM_UP)?;
        settle(&proxy);
        let before = proxy.processor_time();
        let set_up = set_ups(&routes, CLIENTS, effort.period)?.times.len();
        settle(&proxy);
        cost.push((count, micros(proxy.processor_time() - before) / set_up as f64));
        took.push((count, micros(proxy.started_in) / 1e3));
    }
    Ok(points)
}

fn curve(title: &'static str, over: &'static str) -> Curve {
    let lines = Vec::new();
    Curve { title, over, lines }
}

impl Curve {
    fn push(&mut self, program: &Program, points: Points) {
        let program = program.name.clone();
        self.lines.push(Line { program, points });
    }
}

impl Growth {
    /// One Markdown table for each curve.
    pub(crate) fn table(&self) -> String {
        let mut table = String::new();
        for curve in &self.curves {
            let Some(first) = curve.lines.first() else { continue };
            write!(table, "| {}, by {} |", curve.title, curve.over).unwrap();
            for (count, _) in &first.points {
                write!(table, " {} |", grouped(*count)).unwrap();
            }
            table.push_str("\n|---|");
            table.push_str(&"--:|".repeat(first.points.len()));
            for line in &curve.lines {
                write!(table, "\n| {} |", line.program).unwrap();
                for (_, figure) in &line.points {
                    write!(table, " {figure:.1} |").unwrap();
                }
            }
            table.push_str("\n\n");
        }
        table
    }
}

/// `9,000`
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

const CLIENTS: usize = 8;
