//! Draws the results as SVG.

use std::fmt::Write;

use crate::growth::{Curve, Growth, grouped};
use crate::report::{ENVOY, Results, Verdict};
use crate::rows::{Goal, ROWS, Row};

/// The cost of each row as a part of Envoy's: bars, with the goals as ticks and the figures at the right.
///
/// Where more is better the inverse is drawn, so that a shorter bar is better everywhere.
pub(crate) fn ratios(results: &Results) -> String {
    let rows: Vec<_> = ROWS.iter().filter(|row| drawn(row, results)).collect();
    let height = TOP + rows.len() as f64 * ROW + 46.0;
    let mut svg = head(WIDTH, height);
    text(
        &mut svg,
        (16.0, 24.0),
        "title",
        "Cost as a part of Envoy’s: a shorter bar is better",
    );
    legend(&mut svg, results);
    let bottom = TOP + rows.len() as f64 * ROW;
    for tenths in (0..=15_u32).step_by(5) {
        let part = f64::from(tenths) / 10.0;
        let class = if tenths == 10 { "envoy" } else { "grid" };
        line(&mut svg, class, (place(part), TOP - 6.0), (place(part), bottom));
        text(&mut svg, (place(part), bottom + 16.0), "middle", &format!("{part:.1}"));
    }
    text(&mut svg, (place(1.0), TOP - 12.0), "middle", "Envoy");
    text(
        &mut svg,
        (16.0, bottom + 36.0),
        "small",
        "▮ goal     ‡ inverse: more is better there",
    );
    for (number, row) in rows.iter().enumerate() {
        draw_row(&mut svg, results, row, TOP + number as f64 * ROW);
    }
    svg.push_str("</svg>\n");
    svg
}

fn drawn(row: &Row, results: &Results) -> bool {
    results.programs.first().is_some_and(|ours| {
        results
            .of_envoy(row, ours)
            .is_some_and(|ratio| ratio.is_finite() && ratio > 0.0)
    })
}

fn draw_row(svg: &mut String, results: &Results, row: &Row, top: f64) {
    let mark = if row.more { " ‡" } else { "" };
    text(svg, (LEFT - 10.0, top + 15.0), "end", &format!("{}{mark}", row.label));
    let others = results
        .programs
        .iter()
        .enumerate()
        .filter(|(_, program)| *program != ENVOY);
    for (number, (column, program)) in others.enumerate() {
        let Some(ratio) = results.of_envoy(row, program) else {
            continue;
        };
        let cost = if row.more { 1.0 / ratio } else { ratio };
        let (thick, y) = if number == 0 {
            (10.0, top + 3.0)
        } else {
            (4.0, top + 9.0 + 5.0 * number as f64)
        };
        let class = colour(column);
        let width = place(cost) - LEFT;
        writeln!(
            svg,
            r#"<rect class="{class}" x="{LEFT}" y="{y:.1}" width="{width:.1}" height="{thick}"/>"#
        )
        .unwrap();
        if number == 0 {
            let class = if results.verdict(row, program) == Verdict::Missed {
                "end missed"
            } else {
                "end"
            };
            text(svg, (WIDTH - 16.0, top + 14.0), class, &format!("{cost:.2}"));
        }
    }
    if let Goal::OfEnvoy(goal) = row.goal {
        let goal = if row.more { 1.0 / goal } else { goal };
        line(svg, "goal", (place(goal), top + 1.0), (place(goal), top + 15.0));
    }
}

fn legend(svg: &mut String, results: &Results) {
    let mut left = 16.0;
    for (column, program) in results
        .programs
        .iter()
        .enumerate()
        .filter(|(_, program)| *program != ENVOY)
    {
        writeln!(
            svg,
            r#"<rect class="{}" x="{left}" y="36" width="12" height="12"/>"#,
            colour(column)
        )
        .unwrap();
        text(svg, (left + 18.0, 46.0), "small", program);
        left += 150.0;
    }
}

/// One panel for each curve.
pub(crate) fn growth(growth: &Growth) -> String {
    let lines = growth.curves.len().div_ceil(COLUMNS);
    let mut svg = head(WIDTH, lines as f64 * PANEL + 16.0);
    for (number, curve) in growth.curves.iter().enumerate() {
        let left = (number % COLUMNS) as f64 * (WIDTH / COLUMNS as f64);
        panel(&mut svg, curve, left, (number / COLUMNS) as f64 * PANEL);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, curve: &Curve, left: f64, top: f64) {
    let points = || curve.lines.iter().flat_map(|line| &line.points);
    let most = nice(points().map(|(_, figure)| *figure).fold(0.0, f64::max));
    let (first, last) = (points().map(|point| point.0).min(), points().map(|point| point.0).max());
    let (first, last) = (magnitude(first.unwrap_or(1)), magnitude(last.unwrap_or(10)));
    let (width, height, axis) = (WIDTH / COLUMNS as f64 - 72.0, PANEL - 100.0, top + PANEL - 50.0);
    let x = |count| left + 46.0 + (magnitude(count) - first) / (last - first) * width;
    let y = |figure: f64| axis - figure / most * height;
    text(svg, (left + 16.0, top + 24.0), "panel", curve.title);
    for quarter in 0..=4_u32 {
        let figure = most * f64::from(quarter) / 4.0;
        line(svg, "grid", (left + 46.0, y(figure)), (left + 46.0 + width, y(figure)));
        text(svg, (left + 40.0, y(figure) + 4.0), "end", &short(figure));
    }
    for (column, one) in curve.lines.iter().enumerate() {
        let path: Vec<_> = one
            .points
            .iter()
            .map(|(count, figure)| format!("{:.1},{:.1}", x(*count), y(*figure)))
            .collect();
        writeln!(
            svg,
            r#"<polyline class="line {}" points="{}"/>"#,
            colour(column),
            path.join(" ")
        )
        .unwrap();
        for (count, figure) in &one.points {
            writeln!(
                svg,
                r#"<circle class="{}" cx="{:.1}" cy="{:.1}" r="3"/>"#,
                colour(column),
                x(*count),
                y(*figure)
            )
            .unwrap();
        }
        let right = left + 52.0 + 90.0 * column as f64;
        writeln!(
            svg,
            r#"<rect class="{}" x="{right}" y="{}" width="8" height="8"/>"#,
            colour(column),
            top + 32.0
        )
        .unwrap();
        text(svg, (right + 12.0, top + 40.0), "small", &one.program);
    }
    for (count, _) in curve.lines.first().map(|line| &line.points).into_iter().flatten() {
        text(svg, (x(*count), axis + 16.0), "middle", &grouped(*count));
    }
    let over = format!("{}, logarithmic", curve.over);
    text(svg, (left + 46.0 + width / 2.0, axis + 34.0), "middle", &over);
}

/// The next of 1, 2, 4, 6, 8 times a power of ten.
fn nice(figure: f64) -> f64 {
    let power = 10_f64.powf(figure.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= figure).unwrap_or(figure)
}

fn short(figure: f64) -> String {
    if figure == figure.round() {
        format!("{figure:.0}")
    } else {
        format!("{figure:.1}")
    }
}

fn magnitude(count: usize) -> f64 {
    (count as f64).log10()
}

/// Where that part of Envoy's cost is; what is beyond the edge is drawn at the edge.
fn place(part: f64) -> f64 {
    LEFT + part.min(MOST_PART) / MOST_PART * (WIDTH - LEFT - 90.0)
}

fn colour(column: usize) -> &'static str {
    match column {
        0 => "ours",
        1 => "first",
        2 => "second",
        _ => "third",
    }
}

fn head(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n<style>{STYLE}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    )
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    writeln!(svg, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#).unwrap();
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(
        svg,
        r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
    )
    .unwrap();
}

const WIDTH: f64 = 960.0;
const LEFT: f64 = 300.0;
const TOP: f64 = 84.0;
const ROW: f64 = 22.0;
const PANEL: f64 = 250.0;
const COLUMNS: usize = 2;
const MOST_PART: f64 = 1.5;
const STYLE: &str = "text{font:12px sans-serif;fill:#222}.title{font:bold 16px sans-serif}.panel{font:bold 12px \
                     sans-serif}.small{font-size:11px;fill:#555}.missed{font:bold 11px sans-serif;fill:#b3261e}\
                     .end{text-anchor:end}.middle{text-anchor:middle;font-size:11px;fill:#555}\
                     .ours{fill:#1f6feb;stroke:#1f6feb}.first{fill:#d97706;stroke:#d97706}\
                     .second{fill:#8b949e;stroke:#8b949e}.third{fill:#2da44e;stroke:#2da44e}\
                     rect.ours,rect.first,rect.second,rect.third{stroke:none}.line{fill:none;stroke-width:2}\
                     .grid{stroke:#e5e7eb}.envoy{stroke:#d97706;stroke-width:1.5}.goal{stroke:#111;stroke-width:2.5}";
