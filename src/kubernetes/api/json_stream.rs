//! Cuts JSON into objects as it arrives: neither a page of a list nor an object of a tenant has to fit into memory.

use super::failure::{ApiError, Failure};

/// The text of an object.
#[derive(Debug)]
pub(crate) struct ObjectText {
    /// The JSON: of all of it, or the [`Outline`] of an object that is longer than [`MAX_OBJECT`].
    pub(crate) json: String,
    /// True if `json` is all of it.
    pub(crate) is_whole: bool,
}

/// A reader of an object, or of an event of a watch with an object in it.
#[derive(Debug, Default)]
pub(crate) struct ObjectReader {
    /// All of it; empty if it is too long.
    text: Vec<u8>,
    outline: Outline,
    is_too_long: bool,
}

impl ObjectReader {
    /// Returns whether it has taken nothing but white space.
    pub(crate) fn is_blank(&self) -> bool {
        !self.is_too_long && self.text.trim_ascii().is_empty()
    }

    /// Takes bytes up to the first of `ends` that is not inside the object. Returns their number.
    pub(crate) fn take(&mut self, bytes: &[u8], ends: &[u8]) -> usize {
        let mut rest = bytes;
        while let [next, ..] = rest
            && !(self.outline.is_between() && ends.contains(next))
        {
            let taken = self.outline.take(rest);
            rest = rest.get(taken..).unwrap_or_default();
        }
        let taken = bytes.len() - rest.len();
        self.is_too_long |= self.text.len() + taken > MAX_OBJECT;
        match self.is_too_long {
            true => self.text = Vec::new(),
            false => self.text.extend_from_slice(bytes.get(..taken).unwrap_or_default()),
        }
        taken
    }

    /// Returns the text.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub(crate) fn finish(self) -> Result<ObjectText, ApiError> {
        let is_whole = !self.is_too_long;
        let text = if is_whole { self.text } else { self.outline.text };
        let json = String::from_utf8(text).map_err(|error| ApiError::caused(Failure::Malformed, &error))?;
        Ok(ObjectText { json, is_whole })
    }
}

/// JSON of which the outermost object, its `metadata`, its `items` and the `object` of an event have their contents. All
/// other objects and arrays are empty.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    /// The JSON so far.
    pub(crate) text: Vec<u8>,
    /// The objects and arrays that are open.
    depth: usize,
    /// Those whose contents are kept.
    kept: usize,
    is_in_string: bool,
    is_escaped: bool,
    has_items: bool,
}

impl Outline {
    /// Returns whether the next byte is of `items`, and not of an object in it that was not taken from there.
    pub(crate) fn is_in_items(&self) -> bool {
        self.has_items && self.depth == 2
    }

    fn is_between(&self) -> bool {
        self.depth == 0 && !self.is_in_string
    }

    /// Takes bytes, and returns their number: at least one, if there is one.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> usize {
        let is_skipped = self.is_in_string && self.depth != self.kept && !self.is_escaped;
        let plain = bytes
            .iter()
            .position(|byte| !is_skipped || matches!(byte, b'"' | b'\\'));
        let plain = plain.unwrap_or(bytes.len());
        match bytes.first() {
            Some(byte) if plain == 0 => {
                self.take_one(*byte);
                1
            }
            _ => plain,
        }
    }

    fn take_one(&mut self, byte: u8) {
        let was_kept = self.depth == self.kept;
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => self.is_in_string = !self.is_in_string,
            b'{' | b'[' if !self.is_in_string => {
                self.kept += usize::from(was_kept && self.keeps(byte));
                self.depth += 1;
            }
            b'}' | b']' if !self.is_in_string => {
                self.kept = self.kept.saturating_sub(usize::from(was_kept));
                self.depth = self.depth.saturating_sub(1);
                self.has_items &= self.depth > 1;
            }
            _ => {}
        }
        // No outline is as long, unless it is no JSON.
        if (was_kept || self.depth == self.kept) && self.text.len() < MAX_OBJECT {
            self.text.push(byte);
        }
    }

    /// Returns whether the contents of the object or array that begins with `byte` are kept.
    fn keeps(&mut self, byte: u8) -> bool {
        let before = self.text.trim_ascii_end().strip_suffix(b":").unwrap_or_default();
        let is_value_of = |key: &[u8]| before.trim_ascii_end().ends_with(key);
        if byte == b'[' {
            self.has_items = self.depth == 1 && is_value_of(br#""items""#);
            return self.has_items;
        }
        self.depth == 0 || is_value_of(br#""metadata""#) || is_value_of(br#""object""#)
    }
}

/// In bytes. Etcd takes at most 1.5 MiB, without the escapes of JSON.
pub(crate) const MAX_OBJECT: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads a value that arrives in pieces of that length, up to a comma after it.
    fn read(json: &str, length: usize) -> ObjectText {
        let mut reader = ObjectReader::default();
        let mut rest = json.as_bytes();
        loop {
            let piece = &rest[..length.min(rest.len())];
            let taken = reader.take(piece, b",]");
            rest = &rest[taken..];
            if taken < piece.len() || rest.is_empty() {
                return reader.finish().unwrap();
            }
        }
    }

    #[test]
    fn an_object_that_is_too_long_has_an_outline_wherever_its_name_is() {
        let long = "é\\\"}]{[,".repeat(MAX_OBJECT / 8);
        let spec = format!(r#""spec":{{"metadata":{{"name":"no"}},"ports":[{{"a":"{long}"}},2]}}"#);
        for metadata in [
            format!(r#"{{"name":"a","uid":"u", "annotations":{{"x":"{long}","name":"no"}}}}"#),
            format!(r#"{{"annotations": {{"x":"{long}"}},"labels":{{"name":"no"}},"uid":"u","name":"a"}}"#),
        ] {
            for json in [
                format!(r#" {{"kind":"K","metadata" : {metadata},{spec}}} ,next"#),
                format!(r#"{{{spec},"metadata":{metadata}}}]"#),
                format!(r#"{{"type":"ADDED","object":{{{spec},"metadata":{metadata}}}}}"#),
            ] {
                let ObjectText { json, is_whole } = read(&json, 1000);
                let value: serde_json::Value = serde_json::from_str(&json).unwrap();
                let object = value.get("object").unwrap_or(&value);
                assert_eq!((object["metadata"]["name"].as_str(), is_whole), (Some("a"), false));
                assert_eq!(object["metadata"]["uid"], "u");
                assert_eq!(object["metadata"]["annotations"], serde_json::json!({}));
                assert!(json.len() < 200, "{json}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_value_ends_where_it_ends_however_it_arrives(text in r#"[\\"{}\[\],:é ]{0,12}"#, length in 1_usize..9) {
            let value = serde_json::json!({"a": [text, {&text: 1}], &text: {}, "metadata": {"items": [text, [{}]]}});
            let json = value.to_string();
            for next in [",{}", "]", ""] {
                let read = read(&format!("{json}{next}"), length);
                prop_assert!(read.is_whole);
                prop_assert_eq!(&read.json, &json);
            }
        }
    }
}
