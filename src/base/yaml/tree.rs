//! Reads YAML into a tree of texts, lists and maps with their positions.
//!
//! The tree is built from the parser's events, because a serde reader of YAML would stop at the first fault, read `010`
//! as a number and merge duplicate keys. Scalars stay text until `de` reads them.

use std::collections::HashMap;

use granit_parser::{Event, Marker, Options, Parser, ScalarStyle, Span};

use super::diagnostic::{Diagnostics, Position};
use crate::base::text::escaped;

/// One value of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// The position where it begins.
    pub(crate) position: Position,
    /// The value itself.
    pub(crate) value: Value,
}

/// The value of a [`Node`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// A value whose fault has been reported.
    Faulty,
    /// A scalar, numbers included.
    Text(Scalar),
    /// A list.
    List(Vec<Node>),
    /// A map in the order of the file, duplicate keys included.
    Map(Vec<Entry>),
}

/// A single value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scalar {
    /// Its text, without quotes.
    pub(crate) text: String,
    /// True if it is a quoted or block scalar, and so always a text (YAML 1.2.2 section 10.3.2).
    pub(crate) is_quoted: bool,
}

impl Value {
    /// Returns its kind, in the words of error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null | Self::Faulty => "nothing",
            Self::Text(_) => "a single value",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    /// Returns whether the value, or one in it, is invalid.
    pub(crate) fn has_faults(&self) -> bool {
        match self {
            Self::Faulty => true,
            Self::Null | Self::Text(_) => false,
            Self::List(items) => items.iter().any(|item| item.value.has_faults()),
            Self::Map(entries) => entries.iter().any(|entry| entry.value.value.has_faults()),
        }
    }
}

/// One `key: value` of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The key.
    pub(crate) key: String,
    /// The position of the key.
    pub(crate) position: Position,
    /// The value.
    pub(crate) value: Node,
}

impl Entry {
    /// Returns the position of a single value; of any other, that of its key.
    pub(crate) fn value_position(&self) -> Position {
        match self.value.value {
            Value::Text(_) => self.value.position,
            Value::Null | Value::Faulty | Value::List(_) | Value::Map(_) => self.position,
        }
    }
}

/// Reads the tree of the only document in `text`. `None` after a fault that ends the reading, such as a syntax error.
///
/// An empty document is a fault: most programs truncate a file before they write it, and a reload at that moment would
/// remove every target.
pub(crate) fn read(text: &str, diagnostics: &Diagnostics) -> Option<Node> {
    let roots = read_all(text, &CONFIGURATION, diagnostics)?;
    let root = roots.into_iter().next().filter(|root| root.value != Value::Null);
    if root.is_none() {
        diagnostics.fault(Position::START, "", EMPTY);
    }
    root
}

/// The bounds of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The most documents.
    pub(crate) documents: usize,
    /// The most levels of nested lists and maps.
    pub(crate) depth: usize,
    /// The most bytes of memory that all nodes take, estimated.
    pub(crate) weight: usize,
}

/// Reads the trees of all documents in `text`. `None` after a fault that ends the reading, such as a syntax error.
pub(crate) fn read_all(text: &str, bounds: &Bounds, diagnostics: &Diagnostics) -> Option<Vec<Node>> {
    let mut builder = Builder {
        diagnostics,
        bounds,
        roots: Vec::new(),
        open: Vec::new(),
        anchors: HashMap::new(),
        weight: 0,
    };
    for event in Parser::new_from_str_with_options(text, parser_options(bounds.depth)) {
        let (event, span) = match event {
            Ok(read) => read,
            Err(error) => {
                let reason = format!("not YAML: {}", escaped(&error.info()));
                diagnostics.fault(position(error.marker()), "", reason);
                return None;
            }
        };
        match builder.take(event, &span) {
            Step::Continue => {}
            Step::End => break,
            Step::Abort => return None,
        }
    }
    Some(builder.roots)
}

/// Converts a position of the parser, which counts lines from 1 and columns from 0.
fn position(marker: &Marker) -> Position {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    Position {
        line: number(marker.line()).max(1),
        column: number(marker.col()).saturating_add(1),
    }
}

fn parser_options(depth: usize) -> Options {
    let mut options = Options::default();
    // With the parser's feature for comments, which another crate may enable, comments are events.
    options.set_emit_comments(false);
    options.flow_nesting_limit = depth;
    options.block_nesting_limit = depth;
    options
}

/// The reader's next step after an event.
enum Step {
    /// Takes the next event.
    Continue,
    /// Ends with the tree so far.
    End,
    /// Ends without a tree, after a fault.
    Abort,
}

struct Builder<'a> {
    diagnostics: &'a Diagnostics,
    bounds: &'a Bounds,
    /// The complete documents.
    roots: Vec<Node>,
    open: Vec<OpenNode>,
    /// The anchored nodes, by the number that the parser gives to `&name`.
    anchors: HashMap<usize, Node>,
    /// The bytes of memory that all nodes so far take, estimated.
    weight: usize,
}

/// A list or map whose end has not been read yet.
struct OpenNode {
    position: Position,
    anchor: usize,
    value: OpenValue,
}

enum OpenValue {
    List(Vec<Node>),
    Map(Vec<Entry>, NextNode),
}

/// The role of the next node in a map.
enum NextNode {
    Key,
    ValueOf(String, Position),
    /// The value of an invalid key.
    Ignored,
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, span: &Span) -> Step {
        let position = position(&span.start);
        match event {
            Event::DocumentStart(..) => {
                // An anchor is of its document alone (YAML 1.2.2 section 9.1).
                self.anchors.clear();
                if self.roots.len() >= self.bounds.documents {
                    let reason = match self.bounds.documents {
                        1 => "a second document: there may be only one",
                        _ => "too many documents",
                    };
                    self.fault(position, reason);
                    return Step::End;
                }
                Step::Continue
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(position, tag.is_some());
                let value = if style == ScalarStyle::Plain && NULLS.contains(&text.as_ref()) {
                    Value::Null
                } else {
                    Value::Text(Scalar {
                        text: text.into_owned(),
                        is_quoted: style != ScalarStyle::Plain,
                    })
                };
                self.finish(Node { position, value }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_tag(position, tag.is_some());
                self.begin(position, anchor, OpenValue::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_tag(position, tag.is_some());
                self.begin(position, anchor, OpenValue::Map(Vec::new(), NextNode::Key))
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, position),
            // Events without a node.
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentEnd
            | Event::Anchor(..)
            | Event::UnresolvedAlias(_)
            | _ => Step::Continue,
        }
    }

    fn begin(&mut self, position: Position, anchor: usize, value: OpenValue) -> Step {
        self.open.push(OpenNode {
            position,
            anchor,
            value,
        });
        Step::Continue
    }

    fn end(&mut self) -> Step {
        let Some(open) = self.open.pop() else {
            return Step::Abort;
        };
        let value = match open.value {
            OpenValue::List(items) => Value::List(items),
            OpenValue::Map(entries, _) => Value::Map(entries),
        };
        let node = Node {
            position: open.position,
            value,
        };
        self.finish(node, open.anchor)
    }

    fn alias(&mut self, anchor: usize, position: Position) -> Step {
        let Some(node) = self.anchors.get(&anchor) else {
            // The parser has resolved the name, so the anchored node is still open and contains this alias.
            self.fault(position, "an alias inside the value that it refers to");
            return self.add(Node {
                position,
                value: Value::Null,
            });
        };
        // Weighed before the copy, because aliases of aliases grow exponentially ("billion laughs").
        self.weight = self.weight.saturating_add(weight(&node.value));
        if self.weight > self.bounds.weight {
            return self.too_heavy(position);
        }
        let value = node.value.clone();
        self.add(Node { position, value })
    }

    /// Stores a complete node under its anchor, and adds it to the list or map that contains it.
    fn finish(&mut self, node: Node, anchor: usize) -> Step {
        let weighs = match &node.value {
            Value::Text(scalar) => scalar.text.len() + NODE_WEIGHT,
            Value::Null | Value::Faulty | Value::List(_) | Value::Map(_) => NODE_WEIGHT,
        };
        let copied = if anchor == 0 { 0 } else { weight(&node.value) };
        self.weight = self.weight.saturating_add(weighs).saturating_add(copied);
        if self.weight > self.bounds.weight {
            return self.too_heavy(node.position);
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        self.add(node)
    }

    fn add(&mut self, node: Node) -> Step {
        let Some(open) = self.open.last_mut() else {
            self.roots.push(node);
            return Step::Continue;
        };
        match &mut open.value {
            OpenValue::List(items) => items.push(node),
            OpenValue::Map(entries, expected) => {
                let Node { position, value } = node;
                *expected = match (std::mem::replace(expected, NextNode::Key), value) {
                    (NextNode::Key, Value::Text(key)) => NextNode::ValueOf(key.text, position),
                    (NextNode::Key, Value::Null | Value::Faulty | Value::List(_) | Value::Map(_)) => {
                        self.diagnostics.fault(position, "", "a key must be a name");
                        NextNode::Ignored
                    }
                    (NextNode::ValueOf(key, at), value) => {
                        entries.push(Entry {
                            key,
                            position: at,
                            value: Node { position, value },
                        });
                        NextNode::Key
                    }
                    (NextNode::Ignored, _) => NextNode::Key,
                };
            }
        }
        Step::Continue
    }

    fn refuse_tag(&self, position: Position, tagged: bool) {
        if tagged {
            self.fault(position, "tags such as `!!str` are not supported");
        }
    }

    fn too_heavy(&self, position: Position) -> Step {
        self.fault(position, "too many values, or aliases that expand to too many");
        Step::Abort
    }

    fn fault(&self, position: Position, reason: &str) {
        self.diagnostics.fault(position, "", reason);
    }
}

/// Returns the bytes of memory that a value takes, estimated.
fn weight(value: &Value) -> usize {
    NODE_WEIGHT
        + match value {
            Value::Null | Value::Faulty => 0,
            Value::Text(scalar) => scalar.text.len(),
            Value::List(items) => items.iter().map(|item| weight(&item.value)).sum(),
            Value::Map(entries) => entries
                .iter()
                .map(|entry| NODE_WEIGHT + entry.key.len() + weight(&entry.value.value))
                .sum(),
        }
}

const EMPTY: &str = "empty, like a file that is still being written; write `{}` for the defaults";

/// The texts of null (YAML 1.2.2 section 10.3.2).
const NULLS: [&str; 5] = ["", "~", "null", "Null", "NULL"];

/// A configuration needs five levels, and 20,000 targets weigh about 16 MiB.
pub(crate) const CONFIGURATION: Bounds = Bounds {
    documents: 1,
    depth: 32,
    weight: 16 << 20,
};
const NODE_WEIGHT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the tree in a form to compare: `{key@line:column: value@line:column, …}`, `[value@line:column, …]`.
    fn printed(value: &Value) -> String {
        let node = |node: &Node| format!("{}@{}", printed(&node.value), node.position);
        match value {
            Value::Null | Value::Faulty => "null".to_owned(),
            Value::Text(Scalar { text, is_quoted: true }) => format!("{text:?}"),
            Value::Text(Scalar { text, is_quoted: false }) => text.clone(),
            Value::List(items) => {
                let items: Vec<String> = items.iter().map(node).collect();
                format!("[{}]", items.join(", "))
            }
            Value::Map(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|entry| format!("{}@{}: {}", entry.key, entry.position, node(&entry.value)))
                    .collect();
                format!("{{{}}}", entries.join(", "))
            }
        }
    }

    fn outcome(text: &str) -> String {
        let diagnostics = Diagnostics::default();
        let tree = read(text, &diagnostics)
            .map(|root| printed(&root.value))
            .unwrap_or_default();
        match diagnostics.finish(None, ()) {
            Ok(_) => tree,
            Err(report) => format!("{tree} ! {report}"),
        }
    }

    #[test]
    fn scalars_stay_text_and_every_node_has_its_position() {
        for (text, tree) in [
            ("{}\n", "{}"),
            ("\u{feff}a: 1\r\nb: 2\r\n", "{a@1:1: 1@1:4, b@2:1: 2@2:4}"),
            (
                "a: 010\nb: off\nc: 'null'\nd: null\ne:\n",
                "{a@1:1: 010@1:4, b@2:1: off@2:4, c@3:1: \"null\"@3:4, d@4:1: null@4:4, e@5:1: null@5:2}",
            ),
            ("a: \"1\"\nb: |\n  1\n", "{a@1:1: \"1\"@1:4, b@2:1: \"1\\n\"@3:3}"),
            ("a:\n  - x\n  - y: 1\n", "{a@1:1: [x@2:5, {y@3:5: 1@3:8}@3:5]@2:3}"),
            ("a: [x,\n  y]\n", "{a@1:1: [x@1:5, y@2:3]@1:4}"),
            ("a: 1\na: 2\n", "{a@1:1: 1@1:4, a@2:1: 2@2:4}"),
            ("é: [ü, x]\n", "{é@1:1: [ü@1:5, x@1:8]@1:4}"),
            (
                "a: &x {y: 1}\nb: *x\n",
                "{a@1:1: {y@1:8: 1@1:11}@1:7, b@2:1: {y@1:8: 1@1:11}@2:4}",
            ),
        ] {
            assert_eq!(outcome(text), tree, "{text:?}");
        }
    }

    #[test]
    fn an_empty_file_is_refused() {
        for text in ["", "\n \n", "# only a comment\n", "---\n", "~", "null\n", "\u{feff}"] {
            assert_eq!(outcome(text), format!(" ! 1:1: error: {EMPTY}"), "{text:?}");
        }
    }

    #[test]
    fn each_fault_has_its_position() {
        for (text, expected) in [
            (
                "a: 1\n---\nb: 2\n",
                "{a@1:1: 1@1:4} ! 2:1: error: a second document: there may be only one",
            ),
            (
                "a: !!str 1\n",
                "{a@1:1: 1@1:10} ! 1:10: error: tags such as `!!str` are not supported",
            ),
            (
                "a: 1\n? [b]\n: 2\n",
                "{a@1:1: 1@1:4} ! 2:3: error: a key must be a name",
            ),
            ("~: 1\na: 2\n", "{a@2:1: 2@2:4} ! 1:1: error: a key must be a name"),
            (
                "a: &x\n  - *x\n",
                "{a@1:1: [null@2:5]@2:3} ! 2:5: error: an alias inside the value that it refers to",
            ),
        ] {
            assert_eq!(outcome(text), expected, "{text:?}");
        }
        for (text, start) in [
            ("a: 1\nb: [1\n", " ! 2:4: error: not YAML: "),
            ("a: 1\nb: *x\n", " ! 2:4: error: not YAML: "),
            ("a: *\u{1b}[1m\n", " ! 1:"),
            ("a: 1\nb:\n\tc: 2\n", " ! 3:"),
            (&"[".repeat(100_000), " ! 1:"),
            (&"a: {".repeat(100_000), " ! 1:"),
            (&"- ".repeat(100_000), " ! 1:"),
        ] {
            let outcome = outcome(text);
            assert!(outcome.starts_with(start), "{outcome}");
            assert!(outcome.contains(": error: not YAML: "), "{outcome}");
            assert!(!outcome.contains('\u{1b}'), "{outcome}");
        }
    }

    #[test]
    fn aliases_cannot_expand_without_bound() {
        let mut lists = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let inner = vec![format!("*a{}", level - 1); 9].join(", ");
            lists.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
        }
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), "*a, ".repeat(100_000));
        let chain: String = (1..3_000)
            .map(|level| format!("- &a{level} [*a{}]\n", level - 1))
            .collect();
        for bomb in [lists, text, format!("- &a0 [x]\n{chain}")] {
            let outcome = outcome(&bomb);
            assert!(
                outcome.ends_with("too many values, or aliases that expand to too many"),
                "{outcome}"
            );
        }
    }
}
