//! The results, round by round, and the table of their medians.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::rows::{Goal, ROWS, Row};
use crate::scenarios::Figure;

/// All figures of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// The heads of the columns: ours, then Envoy, then the others.
    programs: Vec<String>,
    figures: BTreeMap<(&'static str, String), Vec<f64>>,
    /// Cores of the machine, by scenario.
    softirq: BTreeMap<(&'static str, String), Vec<f64>>,
}

/// Ours beside its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Met,
    Missed,
    /// There is no goal, or nothing to compare with.
    Open,
}

impl Results {
    pub(crate) fn new(programs: Vec<String>) -> Self {
        Self {
            programs,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, program: &str, figures: Vec<Figure>) {
        for (row, figure) in figures {
            self.figures.entry((row, program.to_owned())).or_default().push(figure);
        }
    }

    /// Notes the softirq time of the machine while a scenario ran, in cores.
    pub(crate) fn add_softirq(&mut self, scenario: &'static str, program: &str, cores: f64) {
        self.softirq
            .entry((scenario, program.to_owned()))
            .or_default()
            .push(cores);
    }

    /// The median over the rounds.
    fn median(&self, row: &'static str, program: &str) -> Option<f64> {
        median(self.figures.get(&(row, program.to_owned()))?)
    }

    /// The median of the ratios that the rounds gave: what disturbs the machine for a while disturbs both.
    fn ratio(&self, row: &'static str, program: &str, other: (&'static str, &str)) -> Option<f64> {
        let figures = self.figures.get(&(row, program.to_owned()))?;
        let others = self.figures.get(&(other.0, other.1.to_owned()))?;
        let ratios: Vec<_> = figures.iter().zip(others).map(|(one, two)| one / two).collect();
        median(&ratios)
    }

    /// The ratio to what the goal names, and to Envoy where it names nothing.
    fn compared(&self, row: &Row, program: &str) -> Option<f64> {
        let other = match row.goal {
            Goal::OfEnvoy(_) | Goal::Absolute(_) | Goal::None => (row.id, ENVOY),
            Goal::OfFloor(_) => (row.id, FLOOR),
            Goal::OfRow(other, _) => (other, program),
            Goal::LoadTool => return None,
        };
        self.ratio(row.id, program, other)
    }

    fn verdict(&self, row: &Row, program: &str) -> Verdict {
        let (reached, goal) = match row.goal {
            Goal::OfEnvoy(goal) | Goal::OfFloor(goal) | Goal::OfRow(_, goal) => (self.compared(row, program), goal),
            Goal::Absolute(goal) => (self.median(row.id, program), goal),
            Goal::None | Goal::LoadTool => (None, 0.0),
        };
        match reached {
            None => Verdict::Open,
            Some(reached) if (row.more && reached >= goal) || (!row.more && reached <= goal) => Verdict::Met,
            Some(_) => Verdict::Missed,
        }
    }

    /// The rows that miss their goal now and met it in `table`, an earlier [`Self::table`].
    pub(crate) fn lost(&self, table: &str) -> Vec<&'static str> {
        let was_met = |row: &Row| {
            let mut lines = table.lines().map(|line| line.split('|').map(str::trim));
            lines.any(|mut cells| cells.nth(1) == Some(row.label) && cells.any(|cell| cell == "met"))
        };
        let is_missed = |row: &&Row| {
            self.programs
                .first()
                .is_some_and(|ours| self.verdict(row, ours) == Verdict::Missed)
        };
        ROWS.iter()
            .filter(is_missed)
            .filter(|row| was_met(row))
            .map(|row| row.label)
            .collect()
    }

    /// As Markdown that reads well as plain text too.
    pub(crate) fn table(&self) -> String {
        let mut lines = vec![self.head()];
        lines.extend(ROWS.iter().filter_map(|row| self.line(row)));
        let softirq = self.softirq_lines();
        format!("{}\n{}", aligned(&lines), aligned(&softirq))
    }

    /// The scenarios in the order of their names.
    fn softirq_lines(&self) -> Vec<Vec<String>> {
        let mut head = vec!["softirq of the machine, in cores".to_owned()];
        head.extend(self.programs.iter().cloned());
        let mut lines = vec![head];
        let mut scenarios: Vec<_> = self.softirq.keys().map(|(scenario, _)| *scenario).collect();
        scenarios.dedup();
        for scenario in scenarios {
            let cell = |program: &String| {
                let cores = self.softirq.get(&(scenario, program.clone()));
                let cores = cores.and_then(|cores| median(cores));
                cores.map_or("–".to_owned(), |cores| format!("{cores:.2}"))
            };
            let mut line = vec![scenario.to_owned()];
            line.extend(self.programs.iter().map(cell));
            lines.push(line);
        }
        lines
    }
    fn head(&self) -> Vec<String> {
        let mut head = vec![String::new()];
        head.extend(self.programs.iter().cloned());
        head.extend(["ratio".to_owned(), "goal".to_owned(), String::new()]);
        head
    }

    fn line(&self, row: &Row) -> Option<Vec<String>> {
        let ours = self.programs.first()?;
        let mut line = vec![row.label.to_owned()];
        let figures: Vec<_> = self
            .programs
            .iter()
            .map(|program| self.median(row.id, program))
            .collect();
        if figures.iter().all(Option::is_none) {
            return None;
        }
        line.extend(
            figures
                .iter()
                .map(|figure| figure.map_or("–".to_owned(), |figure| format!("{figure:.*}", row.digits))),
        );
        line.push(
            self.compared(row, ours)
                .map_or("–".to_owned(), |ratio| format!("{ratio:.2}")),
        );
        let bound = if row.more { "≥" } else { "≤" };
        line.push(match row.goal {
            Goal::OfEnvoy(goal) => format!("{bound} {goal:.2} × Envoy"),
            Goal::OfFloor(goal) => format!("{bound} {goal:.2} × {FLOOR}"),
            Goal::OfRow(other, goal) => format!("{bound} {goal:.2} × {}", label(other)),
            Goal::Absolute(goal) => format!("{bound} {goal}"),
            Goal::None | Goal::LoadTool => String::new(),
        });
        line.push(match self.verdict(row, ours) {
            Verdict::Met => "met".to_owned(),
            Verdict::Missed => "missed".to_owned(),
            Verdict::Open => String::new(),
        });
        Some(line)
    }
}

/// Lines of cells, the first one the head, as a table of Markdown.
fn aligned(lines: &[Vec<String>]) -> String {
    let widths: Vec<_> = (0..lines.first().map_or(0, Vec::len))
        .map(|column| {
            lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|cell| cell.chars().count())
                .max()
        })
        .map(Option::unwrap_or_default)
        .collect();
    let mut table = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, &width) in line.iter().zip(&widths) {
            write!(table, "| {cell:<width$} ").unwrap();
        }
        table.push_str("|\n");
        if number == 0 {
            for width in &widths {
                write!(table, "|{}", "-".repeat(width + 2)).unwrap();
            }
            table.push_str("|\n");
        }
    }
    table
}

/// The middle one; of an even number the mean of the two in the middle.
fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (
        sorted.get(sorted.len().checked_sub(1)? / 2)?,
        sorted.get(sorted.len() / 2)?,
    );
    Some(f64::midpoint(*low, *high))
}

fn label(row: &str) -> &'static str {
    ROWS.iter()
        .find(|other| other.id == row)
        .map_or("", |other| other.label)
}

/// The heads of the columns that others are compared with.
pub(crate) const ENVOY: &str = "Envoy";
pub(crate) const FLOOR: &str = "floor";
