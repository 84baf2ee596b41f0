//! Tables of text: columns that are aligned, lines that fit the terminal, and cells: amounts, times, and escaped texts.

use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::base::text::escaped;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    head: &'static str,
    /// True if it has numbers, which are aligned right.
    is_number: bool,
    /// True if only wide tables have it.
    is_wide: bool,
}

impl Column {
    pub(super) const fn text(head: &'static str) -> Self {
        Self {
            head,
            is_number: false,
            is_wide: false,
        }
    }

    pub(super) const fn number(head: &'static str) -> Self {
        Self {
            is_number: true,
            ..Self::text(head)
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

    /// Returns the lines, each with a line feed. Unless the table is wide, they are cut to `width` cells.
    pub fn render(&self, width: Option<usize>) -> String {
        let heads: Vec<_> = self.columns.iter().map(|column| column.head.to_owned()).collect();
        let rows = || std::iter::once(&heads).chain(&self.rows);
        let widest = |at: usize| rows().filter_map(|row| row.get(at)).map(|cell| cell.width()).max();
        let widths: Vec<_> = (0..heads.len()).filter_map(widest).collect();
        let width = width.filter(|_| !self.is_wide).unwrap_or(usize::MAX);
        rows().map(|row| cut(self.line(row, &widths), width) + "\n").collect()
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().zip(&self.columns).zip(widths).map(|((cell, column), room)| {
            // East Asian characters take two cells of the terminal.
            let blank = " ".repeat(room.saturating_sub(cell.width()));
            match column.is_number {
                true => blank + cell,
                false => cell.clone() + &blank,
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

/// Returns the text, cut to `room` cells with a final `…` if it is longer.
fn cut(text: String, room: usize) -> String {
    if text.width() <= room {
        return text;
    }
    let mut taken = 0;
    let fits = |character: &char| {
        taken += character.width().unwrap_or_default();
        taken < room
    };
    text.chars().take_while(fits).chain(['…']).collect()
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
