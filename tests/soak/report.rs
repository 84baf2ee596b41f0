//! The result: a table of figures, each with its bound.

use std::fmt;

/// All figures.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    what: String,
    figure: String,
    must_be: String,
    holds: bool,
}

impl Report {
    /// A figure that may be anything.
    pub(crate) fn tell(&mut self, what: &str, figure: impl fmt::Display) {
        self.hold(what, figure, "", true);
    }

    /// A figure and what it has to be.
    pub(crate) fn hold(&mut self, what: &str, figure: impl fmt::Display, must_be: impl fmt::Display, holds: bool) {
        self.rows.push(Row {
            what: what.to_owned(),
            figure: figure.to_string(),
            must_be: must_be.to_string(),
            holds,
        });
    }

    /// A figure that has to be this one.
    pub(crate) fn equal<T: PartialEq + fmt::Display>(&mut self, what: &str, figure: T, expected: T) {
        let holds = figure == expected;
        self.hold(what, figure, expected, holds);
    }

    /// Returns whether all rows hold.
    pub(crate) fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.holds)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | figure | must be | |\n|---|---|---|---|")?;
        for row in &self.rows {
            let verdict = match (row.holds, row.must_be.is_empty()) {
                (false, _) => "**violated**",
                (true, true) => "",
                (true, false) => "holds",
            };
            writeln!(f, "| {} | {} | {} | {verdict} |", row.what, row.figure, row.must_be)?;
        }
        Ok(())
    }
}

/// The slope of `y` over `x`, by least squares.
pub(crate) fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.iter().fold(0.0, |count, _| count + 1.0);
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let together: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let alone: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if alone > 0.0 { together / alone } else { 0.0 }
}
