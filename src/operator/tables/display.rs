//! Values as shown to an operator on a terminal. In text from a peer, control characters are escaped.

use crate::base::text::escaped;

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

#[cfg(test)]
mod tests {
    use super::*;

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
