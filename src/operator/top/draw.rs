//! Draws what `top` shows: a line of totals, a line for each replica that does not answer, the table, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;

use super::model::{Mode, Model, TREND};
use crate::daemon::admin::api::Tunnel;
use crate::operator::replicas::Of;
use crate::operator::tables::columns::{Column, Table};
use crate::operator::tables::formatting::{bytes, foreign, span};

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let faults = faults(model);
    let shown_faults = faults.len().min(MOST_FAULTS);
    let heights = [1, 1, u16::try_from(shown_faults).unwrap_or_default()].map(Constraint::Length);
    let heights = heights.into_iter().chain([Constraint::Min(1), Constraint::Length(1)]);
    let areas = Layout::vertical(heights).split(frame.area());
    let [top, trend, failed, table, foot] = areas.as_ref() else {
        return;
    };
    model.room = usize::from(table.height).saturating_sub(1).max(1);
    line(frame, *top, totals(model), Modifier::BOLD);
    line(
        frame,
        *trend,
        history(model, usize::from(trend.width)),
        Modifier::empty(),
    );
    for (at, fault) in faults.into_iter().take(shown_faults).enumerate() {
        line(frame, row(*failed, at), fault, Modifier::BOLD);
    }
    rows(frame, *table, model);
    line(frame, *foot, footer(model), Modifier::empty());
}

fn totals(model: &Model) -> String {
    let shown = model.shown();
    let sum = |rate: fn(&Tunnel) -> u64| shown.iter().map(|row| rate(&row.item)).fold(0, u64::saturating_add);
    let (down, up) = (
        sum(|tunnel| tunnel.sent_per_second),
        sum(|tunnel| tunnel.received_per_second),
    );
    let answering = model.replicas.iter().filter(|state| state.answers()).count();
    let of = match shown.len() == model.count() {
        true => String::new(),
        false => format!(" of {}", model.count()),
    };
    format!(
        "{}{of} tunnels, {answering} of {} replicas, down {}/s, up {}/s, by {}",
        shown.len(),
        model.replicas.len(),
        bytes(down),
        bytes(up),
        model.sort().label()
    )
}

/// The rate of all tunnels over time, the newest to the right.
fn history(model: &Model, width: usize) -> String {
    let skipped = model.total.len().saturating_sub(width);
    bars(model.total.iter().skip(skipped).copied())
}

/// Bars as high as their share of the highest.
fn bars(samples: impl Iterator<Item = u64>) -> String {
    let samples: Vec<u64> = samples.collect();
    let highest = samples.iter().copied().max().unwrap_or_default().max(1);
    let bar = |sample: &u64| {
        let height = (u128::from(*sample) * 8).div_ceil(u128::from(highest));
        BARS.get(usize::try_from(height).unwrap_or(8)).copied().unwrap_or(' ')
    };
    samples.iter().map(bar).collect()
}

fn faults(model: &Model) -> Vec<String> {
    let replicas = model.replicas.iter().filter_map(|state| {
        let error = state.error.as_ref()?;
        Some(format!("{}: {}", foreign(&state.replica), foreign(error)))
    });
    let finding = model.error.iter().map(|error| foreign(error));
    finding.chain(replicas).collect()
}

fn rows(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let shown = model.shown();
    let has_names = model.replicas.len() > 1;
    let cells = shown
        .iter()
        .map(|row| cells(row, has_names, &bars(model.trend(&row.item.tunnel_id))));
    let table = Table::new(&COLUMNS, &cells.collect::<Vec<_>>()).render(Some(area.width.into()));
    let mut lines = table.lines();
    let head = lines.next().unwrap_or_default();
    line(frame, row(area, 0), head.to_owned(), Modifier::UNDERLINED);
    let at = model.at(&shown);
    // The selected row is always in view, with the rows of its page.
    let first = at - at % model.room;
    for (number, text) in lines.enumerate().skip(first).take(model.room) {
        let style = if number == at {
            Modifier::REVERSED
        } else {
            Modifier::empty()
        };
        line(frame, row(area, 1 + number - first), text.to_owned(), style);
    }
}

fn cells(row: &Of<Tunnel>, has_names: bool, trend: &str) -> Vec<String> {
    let Of { replica, item } = row;
    vec![
        foreign(&item.tunnel_id),
        if has_names { foreign(replica) } else { String::new() },
        item.client_address.to_string(),
        foreign(&item.user_name),
        foreign(&row.target()),
        span(item.age_ms),
        span(item.idle_ms),
        bytes(item.sent_per_second),
        bytes(item.received_per_second),
        format!("{trend:>TREND$}"),
        bytes(item.bytes_sent),
        bytes(item.bytes_received),
        foreign(&item.client_software),
    ]
}

fn footer(model: &Model) -> String {
    match &model.mode {
        Mode::Ask(id) => model.question(id),
        Mode::Type => format!("/{}_  Enter keeps the filter, Esc clears it", foreign(&model.words)),
        Mode::Browse if !model.message.is_empty() => foreign(&model.message),
        Mode::Browse if !model.is_known => "asking ...".to_owned(),
        Mode::Browse => {
            let filter = match model.words.is_empty() {
                true => String::new(),
                false => format!("  filter: {}", foreign(&model.words)),
            };
            format!("q quit  / filter  b r a i sort  x end{filter}")
        }
    }
}

fn row(area: Rect, at: usize) -> Rect {
    let at = u16::try_from(at).unwrap_or(u16::MAX);
    let y = area.y.saturating_add(at).min(area.bottom().saturating_sub(1));
    Rect {
        y,
        height: 1.min(area.height),
        ..area
    }
}

fn line(frame: &mut Frame<'_>, area: Rect, text: String, modifier: Modifier) {
    frame.render_widget(Line::styled(text, Style::new().add_modifier(modifier)), area);
}

const fn column(head: &'static str, is_number: bool, spare: u8) -> Column {
    Column { head, is_number, spare }
}

const COLUMNS: [Column; 13] = [
    column("ID", false, 0),
    column("REPLICA", false, 0),
    column("CLIENT", false, 0),
    column("USER", false, 0),
    column("TARGET", false, 0),
    column("AGE", true, 3),
    column("IDLE", true, 1),
    column("DOWN/S", true, 0),
    column("UP/S", true, 0),
    column("TREND", false, 2),
    column("DOWN", true, 4),
    column("UP", true, 4),
    column("SOFTWARE", false, 5),
];
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Replicas without an answer that have a line.
const MOST_FAULTS: usize = 5;

#[cfg(test)]
mod tests {
    use super::super::model::tests::{model, tunnel};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(width: u16, height: u16, model: &mut Model) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn rows_and_the_replica_that_does_not_answer_are_shown() {
        let mut model = model(&[tunnel("0000-1", "one:22", 2048), tunnel("0000-2", "two:22", 0)]);
        let screen = drawn(110, 8, &mut model);
        for words in [
            "2 tunnels, 1 of 2 replicas, down 2.00K/s, up 0/s, by age",
            "two: cannot be reached: refused",
            "0000-1  one      192.0.2.1  static/one:22  1m05s",
            "2.00K",
            "x\\u{1b}[2J",
            "q quit  / filter",
        ] {
            assert!(screen.contains(words), "{words} is not in\n{screen}");
        }
    }

    #[test]
    fn it_is_drawn_on_every_size_of_a_terminal() {
        let tunnels: Vec<_> = (0..50)
            .map(|number| tunnel(&format!("0000-{number}"), "t:22", number))
            .collect();
        let mut model = model(&tunnels);
        for (width, height) in [(1, 1), (2, 3), (20, 4), (80, 24), (300, 100)] {
            drawn(width, height, &mut model);
        }
    }

    #[test]
    fn bars_are_shares_of_the_highest() {
        assert_eq!(bars([0, 1, 50, 100].into_iter()), " ▁▄█");
        assert_eq!(bars([0, 0].into_iter()), "  ");
        assert_eq!(bars([u64::MAX].into_iter()), "█");
    }
}
