//! Tables of text: columns that are aligned, and fit the terminal.

use rustix::termios::tcgetwinsize;
use unicode_width::UnicodeWidthStr;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// Whether it has numbers, which stand to the right.
    pub is_number: bool,
    /// Columns with a larger value are left out first where there is no room for all; those with 0 stay.
    pub spare: u8,
}

/// Rows of as many cells as there are columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of rows whose cells can be printed as they are. A column whose cells are all empty is left out.
    pub fn new(columns: &[Column], rows: &[Vec<String>]) -> Self {
        let has_words =
            |at: &usize| rows.is_empty() || rows.iter().any(|row| row.get(*at).is_some_and(|cell| !cell.is_empty()));
        let kept: Vec<usize> = (0..columns.len()).filter(has_words).collect();
        let pick = |row: &Vec<String>| kept.iter().filter_map(|at| row.get(*at).cloned()).collect();
        Self {
            columns: kept.iter().filter_map(|at| columns.get(*at).copied()).collect(),
            rows: rows.iter().map(pick).collect(),
        }
    }

    /// The lines, each with its end. None is wider than `width` cells of the terminal: first columns are left out, then the
    /// widest of those that are left is cut.
    pub fn render(mut self, width: Option<usize>) -> String {
        let mut widths = self.widths();
        if let Some(width) = width {
            while total(&widths) > width && self.drop_one() {
                widths = self.widths();
            }
            while total(&widths) > width {
                let texts = self
                    .columns
                    .iter()
                    .zip(&mut widths)
                    .filter(|(column, _)| !column.is_number);
                let Some((_, widest)) = texts
                    .max_by_key(|(_, width)| **width)
                    .filter(|(_, width)| **width > NARROWEST)
                else {
                    break;
                };
                *widest -= 1;
            }
        }
        let head = self.columns.iter().map(|column| column.head.to_owned()).collect();
        let rows = std::iter::once(&head).chain(&self.rows);
        rows.map(|row| self.line(row, &widths)).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let widest = |(at, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            cells
                .map(|cell| width(cell))
                .max()
                .unwrap_or_default()
                .max(column.head.len())
        };
        self.columns.iter().enumerate().map(widest).collect()
    }

    /// Leaves out the column that is missed least. Whether there was one.
    fn drop_one(&mut self) -> bool {
        let spare = self.columns.iter().enumerate().filter(|(_, column)| column.spare > 0);
        let Some((at, _)) = spare.max_by_key(|(_, column)| column.spare) else {
            return false;
        };
        self.columns.remove(at);
        for row in &mut self.rows {
            row.remove(at);
        }
        true
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, column), room) in row.iter().zip(&self.columns).zip(widths) {
            if !line.is_empty() {
                line.push_str(GAP);
            }
            let cell = cut(cell, *room);
            let blank = " ".repeat(room.saturating_sub(width(&cell)));
            match column.is_number {
                true => line.extend([blank.as_str(), &cell]),
                false => line.extend([cell.as_str(), &blank]),
            }
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

/// The width of the terminal that the output goes to; `None` if that is none.
pub fn terminal_width() -> Option<usize> {
    let size = tcgetwinsize(std::io::stdout()).ok()?;
    // A terminal that does not know its size says 0.
    Some(size.ws_col.into()).filter(|columns| *columns > 0)
}

fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
}

/// In cells of a terminal: letters of East Asia take two.
fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// The beginning of a text, with `…` where it goes on.
fn cut(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut short = String::new();
    for character in text.chars() {
        short.push(character);
        if width(&short) >= room {
            short.pop();
            break;
        }
    }
    short.push('…');
    short
}

const GAP: &str = "  ";
/// Of a column that is cut.
const NARROWEST: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column {
            head: "NAME",
            is_number: false,
            spare: 0,
        },
        Column {
            head: "USER",
            is_number: false,
            spare: 0,
        },
        Column {
            head: "BYTES",
            is_number: true,
            spare: 0,
        },
        Column {
            head: "SOFTWARE",
            is_number: false,
            spare: 1,
        },
    ];

    fn table(rows: &[[&str; 4]]) -> Table {
        let row = |row: &[&str; 4]| row.map(str::to_owned).to_vec();
        Table::new(&COLUMNS, &rows.iter().map(row).collect::<Vec<_>>())
    }

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let rows = [["a", "", "1", "x"], ["日本", "", "23", "y"]];
        assert_eq!(
            table(&rows).render(None),
            "NAME  BYTES  SOFTWARE\na         1  x\n日本     23  y\n"
        );
        assert_eq!(table(&[]).render(None), "NAME  USER  BYTES  SOFTWARE\n");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let rows = [["a-long-name-of-a-target", "u", "123456789", "OpenSSH"]];
        for width in 20..60 {
            for line in table(&rows).render(Some(width)).lines() {
                assert!(super::width(line) <= width.max(6 + 4 + 9 + 4), "{width}: {line:?}");
            }
        }
        let narrow = table(&rows).render(Some(30));
        assert_eq!(
            narrow,
            "NAME           USER      BYTES\na-long-name-…  u     123456789\n"
        );
    }
}
