//! The members of a JSON object, written one by one: the form in which an access line is handed to the log.

use std::fmt::{self, Write as _};

use serde::Serialize;

/// Members of a JSON object (RFC 8259 section 4), each with a comma in front of it.
///
/// A key is given with its punctuation, as by [`members!`]: it is one piece of memory to copy.
#[derive(Debug)]
pub(super) struct Members(Vec<u8>);

/// Writes each member by the method of [`Members`] that its kind names.
macro_rules! members {
    ($to:expr; $($kind:ident $key:literal = $value:expr,)*) => {
        $($to.$kind(concat!(",\"", $key, "\":"), $value);)*
    };
}
pub(super) use members;

impl Members {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(USUAL_BYTES))
    }

    /// A string that may have any characters.
    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.json(key, value);
    }

    /// A number, or true or false.
    pub(super) fn plain(&mut self, key: &str, value: impl Serialize) {
        self.json(key, &value);
    }

    /// The string as which the value shows itself; an empty one for `None`. It may have any characters.
    pub(super) fn display(&mut self, key: &str, value: Option<impl fmt::Display>) {
        match value {
            Some(value) => self.json(key, &value.to_string()),
            None => self.json(key, ""),
        }
    }

    /// The same without escaping, for addresses and ids: only for what cannot have a quotation mark, a backslash or a control.
    pub(super) fn display_unescaped(&mut self, key: &str, value: Option<impl fmt::Display>) {
        self.0.extend_from_slice(key.as_bytes());
        self.0.push(b'"');
        if let Some(value) = value {
            // Writing to memory does not fail.
            write!(Text(&mut self.0), "{value}").ok();
        }
        self.0.push(b'"');
    }

    /// All of them.
    pub(super) fn as_str(&self) -> &str {
        // They are UTF-8, since each piece is.
        str::from_utf8(&self.0).unwrap_or_default()
    }

    fn json(&mut self, key: &str, value: &(impl Serialize + ?Sized)) {
        self.0.extend_from_slice(key.as_bytes());
        // Writing to memory does not fail, and neither does a string or a number.
        serde_json::to_writer(&mut self.0, value).ok();
    }
}

/// Text is appended to the bytes.
struct Text<'a>(&'a mut Vec<u8>);

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Most lines are shorter. A larger piece of memory would not come from a thread's own stock of glibc.
const USUAL_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn members_are_those_of_a_json_object() {
        let mut members = Members::new();
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        members! { members;
            text "said" = "a\"b\\c\n\u{1}\u{7f}é\u{2028}",
            text "empty" = "",
            plain "most" = u64::MAX,
            plain "port" = 22_u16,
            plain "milliseconds" = 0.25_f64,
            plain "whole" = 0.0_f64,
            plain "resumable" = true,
            display "software" = Some("say \"x\""),
            display "nothing" = None::<&str>,
            display_unescaped "address" = Some(address),
            display_unescaped "absent" = None::<IpAddr>,
            text "long" = &"x".repeat(2 * USUAL_BYTES),
        }
        let object = format!("{{{}}}", members.as_str().strip_prefix(',').unwrap());
        let read: serde_json::Value = serde_json::from_str(&object).unwrap();
        let expected = serde_json::json!({
            "said": "a\"b\\c\n\u{1}\u{7f}é\u{2028}",
            "empty": "",
            "most": u64::MAX,
            "port": 22,
            "milliseconds": 0.25,
            "whole": 0.0,
            "resumable": true,
            "software": "say \"x\"",
            "nothing": "",
            "address": "192.0.2.1",
            "absent": "",
            "long": "x".repeat(2 * USUAL_BYTES),
        });
        assert_eq!(read, expected);
    }
}
