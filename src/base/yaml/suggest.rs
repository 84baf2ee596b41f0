//! Suggestions for the author of a file: the nearest key, and the nearest values that are accepted.

use strsim::damerau_levenshtein;

/// Returns `; did you mean …?` if an unknown key is close to a known one; else nothing.
pub(crate) fn key(given: &str, known: &[&'static str]) -> String {
    question(&nearest(&given.to_lowercase(), known.iter().map(|name| (*name, *name))))
}

/// Returns `; did you mean …?` for a refused text, if one of `words` or an amount is close to it; else nothing.
pub(crate) fn value(given: &str, words: &[&str], accepts: impl Fn(&str) -> bool) -> String {
    let mut meant = synonyms(given);
    if meant.iter().all(|word| !accepts(word)) {
        meant = match number_and_unit(given) {
            Some((number, unit)) => units(number, unit),
            None => nearest_words(given, words),
        };
    }
    meant.retain(|text| accepts(text));
    question(&meant)
}

fn question<T: AsRef<str>>(meant: &[T]) -> String {
    let meant: Vec<_> = meant.iter().map(|text| format!("`{}`", text.as_ref())).collect();
    match meant.len() {
        1..=MAX_SUGGESTIONS => format!("; did you mean {}?", meant.join(" or ")),
        _ => String::new(),
    }
}

/// Returns the words that a spelling of another format may mean: `true` for `yes` of YAML 1.1.
fn synonyms(given: &str) -> Vec<String> {
    let words: &[&str] = match given.to_lowercase().as_str() {
        "true" | "yes" | "y" | "on" | "enabled" => &["true"],
        "false" | "no" | "n" | "disabled" => &["false", "off"],
        "off" | "none" | "never" | "infinite" | "infinity" | "unlimited" | "disable" => &["unlimited", "off", "false"],
        _ => &[],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn nearest_words(given: &str, words: &[&str]) -> Vec<String> {
    let near = nearest(&given.to_lowercase(), words.iter().map(|word| (*word, *word)));
    near.into_iter().map(str::to_owned).collect()
}

/// Returns the whole number that a text begins with, without leading zeros, and the unit after it.
fn number_and_unit(text: &str) -> Option<(&str, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let significant = number.trim_start_matches('0');
    match number {
        "" => None,
        _ if significant.is_empty() => Some(("0", unit.trim())),
        _ => Some((significant, unit.trim())),
    }
}

/// Returns the number with each of the nearest units.
fn units(number: &str, given: &str) -> Vec<String> {
    let with = |unit: &&str| format!("{number}{unit}");
    if given.is_empty() {
        return ["s", "B"].iter().map(with).collect();
    }
    let written = normal(given);
    // `b` is read as bit or as byte, `B` is a byte.
    let may_be_bits = !given.contains('B');
    let names = UNITS.iter().flat_map(|(unit, names)| {
        let known = names
            .split(' ')
            .filter(|name| may_be_bits || !(unit.contains("bit") && name.len() <= 2));
        known.map(|name| (name, *unit))
    });
    nearest(&written, names).iter().map(with).collect()
}

/// Returns a unit in lower case, without spaces, and without `/s` in any of its spellings.
fn normal(unit: &str) -> String {
    let unit = unit.to_lowercase().replace(' ', "");
    let per_second = ["/second", "/sec", "/s"];
    let amount = per_second.iter().find_map(|suffix| unit.strip_suffix(suffix));
    let amount = amount.or_else(|| unit.strip_suffix("ps").filter(|rest| rest.ends_with(['b', 't', 'e'])));
    amount.unwrap_or(&unit).to_owned()
}

/// Returns the values of the names that are nearest to `given`; none if even those are far.
fn nearest<'a, 'b>(given: &str, names: impl Iterator<Item = (&'a str, &'b str)>) -> Vec<&'b str> {
    let length = given.chars().count();
    if length > MAX_CHARS {
        return Vec::new();
    }
    let mut least = (length + 1) / 3;
    let mut found = Vec::new();
    for (name, value) in names {
        let distance = damerau_levenshtein(given, name);
        if distance < least {
            found.clear();
            least = distance;
        }
        if distance == least && !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// The longest text that is compared, in characters: the time of a comparison grows with its length.
const MAX_CHARS: usize = 40;
/// The most suggestions: if more are equally close, none is made.
const MAX_SUGGESTIONS: usize = 2;

/// The units and their names in lower case, without `/s`.
const UNITS: [(&str, &str); 26] = [
    ("ms", "ms msec millis millisecond milliseconds"),
    ("s", "s sec secs second seconds"),
    ("m", "m min mins minute minutes"),
    ("h", "h hr hrs hour hours"),
    ("d", "d day days"),
    ("B", "b byte bytes"),
    ("KB", "k kb kbyte kbytes kilobyte kilobytes"),
    ("MB", "m mb mbyte mbytes megabyte megabytes"),
    ("GB", "g gb gbyte gbytes gigabyte gigabytes"),
    ("KiB", "ki kib kibibyte kibibytes"),
    ("MiB", "mi mib mebibyte mebibytes"),
    ("GiB", "gi gib gibibyte gibibytes"),
    ("bit/s", "b bit bits"),
    ("kbit/s", "k kb kbit kbits kilobit kilobits"),
    ("Mbit/s", "m mb mbit mbits megabit megabits"),
    ("Gbit/s", "g gb gbit gbits gigabit gigabits"),
    ("B/s", "b byte bytes"),
    ("KB/s", "k kb kbyte kbytes kilobyte kilobytes"),
    ("MB/s", "m mb mbyte mbytes megabyte megabytes"),
    ("GB/s", "g gb gbyte gbytes gigabyte gigabytes"),
    ("KiB/s", "ki kib kibibyte kibibytes"),
    ("MiB/s", "mi mib mebibyte mebibytes"),
    ("GiB/s", "gi gib gibibyte gibibytes"),
    ("w", "w week weeks"),
    ("us", "us usec"),
    ("ns", "ns nsec"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::{Rate, Size};
    use crate::base::values;

    #[test]
    fn the_nearest_key_is_suggested() {
        let known = ["max_tunnels", "max_dials", "download", "upload"];
        for (given, expected) in [
            ("max_tunels", "; did you mean `max_tunnels`?"),
            ("maxTunnels", "; did you mean `max_tunnels`?"),
            ("Download", "; did you mean `download`?"),
            ("downlaod", "; did you mean `download`?"),
            ("dwonload", "; did you mean `download`?"),
            ("uplod", "; did you mean `upload`?"),
            ("burst", ""),
            ("x", ""),
            ("", ""),
            (&"download".repeat(100), ""),
        ] {
            assert_eq!(key(given, &known), expected, "{given}");
        }
    }

    #[test]
    fn the_nearest_unit_is_suggested_if_it_is_accepted() {
        let amount = &["unlimited", "off"];
        let rate = |text: &str| text.parse::<Rate>().is_ok();
        for (given, expected) in [
            ("10Mb/s", "; did you mean `10Mbit/s` or `10MB/s`?"),
            ("10mbps", "; did you mean `10Mbit/s` or `10MB/s`?"),
            ("10MBps", "; did you mean `10MB/s`?"),
            ("50MiB", "; did you mean `50MiB/s`?"),
            ("50mib/s", "; did you mean `50MiB/s`?"),
            ("50Mi", "; did you mean `50MiB/s`?"),
            ("8 megabits/s", "; did you mean `8Mbit/s`?"),
            ("8MBit/sec", "; did you mean `8Mbit/s`?"),
            ("none", "; did you mean `unlimited`?"),
            ("unlimitd", "; did you mean `unlimited`?"),
            ("50", ""),
            ("0MB/s", ""),
            ("99999999999GiB/s", ""),
            ("fast", ""),
            ("-1MiB/s", ""),
        ] {
            assert_eq!(value(given, amount, rate), expected, "{given}");
        }
        let size = |text: &str| text.parse::<Size>().is_ok();
        for (given, expected) in [
            ("1mb", "; did you mean `1MB`?"),
            ("1Mb", "; did you mean `1MB`?"),
            ("1Mi", "; did you mean `1MiB`?"),
            ("1MiB/s", "; did you mean `1MiB`?"),
            ("1048576", "; did you mean `1048576B`?"),
            ("unlimited", ""),
        ] {
            assert_eq!(value(given, amount, size), expected, "{given}");
        }
    }

    #[test]
    fn the_nearest_duration_is_suggested_if_it_is_accepted() {
        let amount = &["unlimited", "off"];
        let brief = |text: &str| values::brief_timeout(text).is_ok();
        for (given, expected) in [
            ("10", "; did you mean `10s`?"),
            ("010", "; did you mean `10s`?"),
            ("10sek", "; did you mean `10s`?"),
            ("5 minuets", "; did you mean `5m`?"),
            ("5 Minutes", "; did you mean `5m`?"),
            ("5M", "; did you mean `5m`?"),
            ("05 M", "; did you mean `5m`?"),
            ("5months", ""),
            ("1y", ""),
            ("0s", ""),
            ("61m", ""),
            ("5 parsecs", ""),
            ("99999999999999999999s", ""),
            ("soon", ""),
            ("é", ""),
        ] {
            assert_eq!(value(given, amount, brief), expected, "{given}");
        }
        let or_off = |text: &str| text == "off" || values::timeout(text).is_ok();
        assert_eq!(value("unlimited", amount, or_off), "; did you mean `off`?");
        assert_eq!(value("never", amount, or_off), "; did you mean `off`?");
    }

    #[test]
    fn the_nearest_word_is_suggested() {
        const MODES: [&str; 3] = ["off", "optional", "required"];
        let is_mode = |text: &str| MODES.contains(&text);
        for (given, expected) in [
            ("requird", "; did you mean `required`?"),
            ("Required", "; did you mean `required`?"),
            ("no", "; did you mean `off`?"),
            ("maybe", ""),
        ] {
            assert_eq!(value(given, &MODES, is_mode), expected, "{given}");
        }
        let is_truth = |text: &str| values::boolean(text).is_ok();
        for (given, expected) in [
            ("yes", "; did you mean `true`?"),
            ("True", "; did you mean `true`?"),
            ("off", "; did you mean `false`?"),
            ("flase", "; did you mean `false`?"),
            ("1", ""),
        ] {
            assert_eq!(value(given, &["true", "false"], is_truth), expected, "{given}");
        }
    }
}
