//! Label selectors as the API server reads them: `a=b`, `a!=b`, `a`, `!a`, `a in (b,c)`, `a notin (b,c)`, with commas.

use serde_json::Value;

/// The requirements of a label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    values: Option<Vec<String>>,
    is_negated: bool,
}

impl Selector {
    /// `None` when it is malformed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let requirements = split(text);
        let wanted = requirements.iter().filter(|requirement| !requirement.is_empty());
        wanted
            .map(|requirement| Requirement::parse(requirement))
            .collect::<Option<_>>()
            .map(Self)
    }

    /// An object whose labels are no map of strings has no labels.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0
            .iter()
            .all(|requirement| requirement.matches(labels[requirement.key.as_str()].as_str()))
    }
}

/// At commas, except for those in parentheses.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for character in text.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(character);
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

impl Requirement {
    fn parse(text: &str) -> Option<Self> {
        let new = |key: &str, values: Option<&str>, is_negated| {
            let key = key.trim();
            let values = values.map(|values| values.split(',').map(|value| value.trim().to_owned()).collect());
            let is_word = !key.is_empty() && !key.contains([' ', '(', ')', '=', '!']);
            is_word.then(|| Self {
                key: key.to_owned(),
                values,
                is_negated,
            })
        };
        let listed = |values: &'_ str| values.trim().strip_prefix('(')?.strip_suffix(')').map(str::to_owned);
        if let Some((key, values)) = text.split_once(" notin ") {
            return new(key, Some(&listed(values)?), true);
        }
        if let Some((key, values)) = text.split_once(" in ") {
            return new(key, Some(&listed(values)?), false);
        }
        if let Some((key, value)) = text.split_once("!=") {
            return new(key, Some(value), true);
        }
        if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
            return new(key, Some(value), false);
        }
        match text.strip_prefix('!') {
            Some(key) => new(key, None, true),
            None => new(text, None, false),
        }
    }

    fn matches(&self, label: Option<&str>) -> bool {
        let is_listed = match (&self.values, label) {
            (Some(values), Some(label)) => values.iter().any(|value| value == label),
            (Some(_), None) => false,
            (None, label) => label.is_some(),
        };
        is_listed != self.is_negated
    }
}
