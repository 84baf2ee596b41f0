//! Tables of text: columns that are aligned, lines that fit the terminal, and cells: amounts, times, and escaped texts.

use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::base::authority::short_host;
use crate::base::text::escaped;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    head: &'static str,
    content: Content,
    /// True if only wide tables have it.
    is_wide: bool,
}

/// The content of a column, by which its cells are aligned and shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Words that are never shortened.
    Text,
    /// Numbers, aligned right.
    Number,
    /// Names, of which the longest ones are cut.
    Name,
    /// Names of targets, which lose `static/` and the domain of the cluster first.
    Target,
    /// Sentences, which the end of the line may cut.
    Sentence,
}

impl Column {
    pub(super) const fn text(head: &'static str) -> Self {
        Self::new(head, Content::Text)
    }

    pub(super) const fn number(head: &'static str) -> Self {
        Self::new(head, Content::Number)
    }

    pub(super) const fn name(head: &'static str) -> Self {
        Self::new(head, Content::Name)
    }

    pub(super) const fn target(head: &'static str) -> Self {
        Self::new(head, Content::Target)
    }

    pub(super) const fn sentence(head: &'static str) -> Self {
        Self::new(head, Content::Sentence)
    }

    const fn new(head: &'static str, content: Content) -> Self {
        Self {
            head,
            content,
            is_wide: false,
        }
    }

    pub(super) const fn wide(self) -> Self {
        Self { is_wide: true, ..self }
    }
}

/// A table, whose rows have one cell per column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    is_wide: bool,
}

impl Table {
    /// Creates a table of rows whose cells can be printed as they are. A column with only empty cells is left out.
    pub(super) fn new(columns: &[Column], rows: &[Vec<String>], is_wide: bool) -> Self {
        let has_words =
            |at: usize| rows.is_empty() || rows.iter().any(|row| row.get(at).is_some_and(|cell| !cell.is_empty()));
        let numbered = columns.iter().copied().enumerate();
        let (kept, columns): (Vec<_>, Vec<_>) = numbered
            .filter(|(at, column)| (is_wide || !column.is_wide) && has_words(*at))
            .unzip();
        let pick = |row: &Vec<String>| kept.iter().filter_map(|at| row.get(*at).cloned()).collect();
        let rows = rows.iter().map(pick).collect();
        Self { columns, rows, is_wide }
    }

    /// Returns the lines, each with a line feed. Unless the table is wide, they fit `width` cells: names are shortened, so that
    /// the columns after them are seen, and the lines are cut.
    pub fn render(&self, width: Option<usize>) -> String {
        let heads = self.columns.iter().map(|column| column.head.to_owned()).collect();
        let mut rows: Vec<_> = std::iter::once(heads).chain(self.rows.iter().cloned()).collect();
        let width = width.filter(|_| !self.is_wide).unwrap_or(usize::MAX);
        let mut widths = self.widths(&rows);
        if line_width(&widths) > width {
            for (column, cell) in rows.iter_mut().flat_map(|row| self.columns.iter().zip(row)) {
                if column.content == Content::Target {
                    *cell = short_name(cell);
                }
            }
            widths = self.widths(&rows);
            self.cut_cells(&mut rows, &mut widths, width);
        }
        rows.iter()
            .map(|row| cut(&self.line(row, &widths), width) + "\n")
            .collect()
    }

    /// Returns the width of the widest cell of each column.
    fn widths(&self, rows: &[Vec<String>]) -> Vec<usize> {
        let widest = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width()).max();
        (0..self.columns.len()).filter_map(widest).collect()
    }

    /// Cuts sentences and names, the longest first, until the lines fit or all are at their least width.
    fn cut_cells(&self, rows: &mut [Vec<String>], widths: &mut [usize], width: usize) {
        for (of_names, least) in LEAST_WIDTHS {
            let is_cut = |column: &Column| match column.content {
                Content::Name | Content::Target => of_names,
                Content::Sentence => !of_names,
                Content::Text | Content::Number => false,
            };
            while line_width(widths) > width {
                let cut = self
                    .columns
                    .iter()
                    .zip(widths.iter_mut())
                    .filter(|(column, _)| is_cut(column));
                match cut.map(|(_, width)| width).max().filter(|width| **width > least) {
                    Some(widest) => *widest -= 1,
                    None => break,
                }
            }
        }
        for row in rows {
            for (cell, room) in row.iter_mut().zip(&*widths) {
                *cell = cut(cell, *room);
            }
        }
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().zip(&self.columns).zip(widths).map(|((cell, column), room)| {
            // East Asian characters take two cells of the terminal.
            let blank = " ".repeat(room.saturating_sub(cell.width()));
            match column.content {
                Content::Number => blank + cell,
                Content::Text | Content::Name | Content::Target | Content::Sentence => cell.clone() + &blank,
            }
        });
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    }
}

/// Returns the width of the terminal on stdout; `None` if stdout is no terminal, or the width is unknown.
pub fn terminal_width() -> Option<usize> {
    let size = tcgetwinsize(std::io::stdout()).ok()?;
    // A terminal of unknown size reports 0.
    Some(size.ws_col.into()).filter(|columns| *columns > 0)
}

/// Returns the width of a line of columns with these widths.
fn line_width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
}

/// Returns the text, cut to `room` cells with a final `…` if it is longer.
fn cut(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.to_owned();
    }
    let mut taken = 0;
    let fits = |character: &char| {
        taken += character.width().unwrap_or_default();
        taken < room
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Returns the name of a target without `static/`, and without the domain of a cluster (`.svc.cluster.local`).
fn short_name(name: &str) -> String {
    let name = name.strip_prefix("static/").unwrap_or(name);
    let (host, port) = name.rsplit_once(':').map_or((name, ""), |(host, _)| {
        (host, name.get(host.len()..).unwrap_or_default())
    });
    format!("{}{port}", short_host(host))
}

/// Returns foreign text with control characters as escapes of Rust.
pub fn escape(text: &str) -> String {
    escaped(text)
}

/// Returns bytes with three digits, by 1,024: `0`, `999`, `1.21K`, `34.5M`.
pub fn bytes(bytes: u64) -> String {
    if bytes < 1000 {
        return bytes.to_string();
    }
    let mut unit = 0_u32;
    // From 999.5 of a unit on, the next larger unit is used.
    while unit < 6 && u128::from(bytes) * 2 >= 1999 << (10 * unit) {
        unit += 1;
    }
    let letter = ["", "K", "M", "G", "T", "P", "E"]
        .get(unit as usize)
        .copied()
        .unwrap_or_default();
    let hundredths = (u128::from(bytes) * 100) >> (10 * unit);
    match hundredths {
        0..1000 => format!("{}.{:02}{letter}", hundredths / 100, hundredths % 100),
        1000..10_000 => format!("{}.{}{letter}", hundredths / 100, hundredths % 100 / 10),
        _ => format!("{}{letter}", hundredths / 100),
    }
}

/// Returns a time in its two largest units: `0s`, `59s`, `2m05s`, `3h12m`, `12d4h`.
pub fn span(millis: u64) -> String {
    let seconds = millis / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

const GAP: &str = "  ";
/// The widths to which the cells of names (`true`) and sentences are cut, one after the other.
const LEAST_WIDTHS: [(bool, usize); 4] = [(false, 24), (true, 16), (false, 10), (true, 8)];

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::text("NAME"),
        Column::text("USER"),
        Column::number("BYTES"),
        Column::text("SOFTWARE").wide(),
    ];

    fn table(rows: &[[&str; 4]], is_wide: bool) -> Table {
        let row = |row: &[&str; 4]| row.map(str::to_owned).to_vec();
        Table::new(&COLUMNS, &rows.iter().map(row).collect::<Vec<_>>(), is_wide)
    }

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let rows = [["a", "", "1", "x"], ["日本", "", "23", "y"]];
        assert_eq!(
            table(&rows, false).render(None),
            "NAME  BYTES\na         1\n日本     23\n"
        );
        assert_eq!(
            table(&rows, true).render(Some(10)),
            "NAME  BYTES  SOFTWARE\na         1  x\n日本     23  y\n"
        );
        assert_eq!(table(&[], true).render(None), "NAME  USER  BYTES  SOFTWARE\n");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let rows = [["日本-long-name-of-a-target", "u", "123456789", "OpenSSH"]];
        for width in 1..60 {
            for line in table(&rows, false).render(Some(width)).lines() {
                assert!(line.width() <= width, "{width}: {line:?}");
            }
        }
        let narrow = table(&rows, false).render(Some(10));
        assert_eq!(narrow, "NAME     …\n日本-long…\n");
    }

    #[test]
    fn names_lose_a_prefix_and_a_domain_before_letters_and_no_number_is_lost() {
        const WITH_TARGET: [Column; 4] = [
            Column::target("TARGET"),
            Column::name("USER"),
            Column::number("BYTES"),
            Column::sentence("WHY"),
        ];
        let row = [
            "static/build.team.svc.cluster.local:22",
            "alice@example.com",
            "123",
            "because of many words",
        ];
        let table = Table::new(&WITH_TARGET, &[row.map(str::to_owned).to_vec()], false);
        for (width, line) in [
            (
                200,
                "static/build.team.svc.cluster.local:22  alice@example.com    123  because of many words",
            ),
            (70, "build.team:22  alice@example.com    123  because of many words"),
            (50, "build.team:22  alice@example.c…    123  because o…"),
            (45, "build.team:…  alice@examp…    123  because o…"),
        ] {
            assert_eq!(table.render(Some(width)).lines().nth(1), Some(line), "{width}");
        }
        for (name, short) in [
            ("static/[2001:db8::1]:22", "[2001:db8::1]:22"),
            ("devbox.team.svc:22", "devbox.team.svc:22"),
            ("static/build.team.svc.cluster.local:22", "build.team:22"),
            ("team/devbox", "team/devbox"),
            ("devbox.svc.example:22", "devbox.svc.example:22"),
        ] {
            assert_eq!(short_name(name), short);
        }
    }

    #[test]
    fn bytes_have_three_digits() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "0.97K"),
            (1024, "1.00K"),
            (1_535_000, "1.46M"),
            (52_428_800, "50.0M"),
            (1_047_527_424, "999M"),
            (1_073_741_824, "1.00G"),
            (u64::MAX, "15.9E"),
        ] {
            assert_eq!(bytes(number), text, "{number}");
        }
    }

    #[test]
    fn spans_have_two_units() {
        for (millis, text) in [
            (0, "0s"),
            (999, "0s"),
            (59_999, "59s"),
            (125_000, "2m05s"),
            (11_520_000, "3h12m"),
            (1_051_200_000, "12d4h"),
            (u64::MAX, "213503982334d14h"),
        ] {
            assert_eq!(span(millis), text, "{millis}");
        }
    }

    #[test]
    fn a_terminal_obeys_no_foreign_text() {
        assert_eq!(escape("a\u{1b}[31mb\r\n\u{202e}ü"), "a\\u{1b}[31mb\\r\\n\\u{202e}ü");
    }
}
