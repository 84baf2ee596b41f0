//! The page `/metrics`, taken apart.

use std::collections::BTreeMap;

/// One scrape.
#[derive(Debug)]
pub(crate) struct Page {
    /// The type of each metric, by its name.
    pub(crate) types: BTreeMap<String, String>,
    /// The value of each series, by its name and labels as they are on the page.
    pub(crate) values: BTreeMap<String, f64>,
}

impl Page {
    /// Takes the text format 0.0.4 apart.
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self {
            types: BTreeMap::new(),
            values: BTreeMap::new(),
        };
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').unwrap();
                page.types.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap();
                page.values.insert(series.to_owned(), value.parse().unwrap());
            }
        }
        page
    }

    /// The value of a series such as `connections_active`, without the prefix; 0 when the page has none.
    pub(crate) fn value(&self, series: &str) -> f64 {
        let value = self.values.get(&format!("switchboard_{series}"));
        value.copied().unwrap_or_default()
    }

    /// The names of the labels with which a metric appears, as on the page.
    pub(crate) fn labels(&self, name: &str) -> Vec<&str> {
        let labelled = self.values.keys().find_map(|series| {
            let labels = series.strip_prefix(name)?.strip_prefix('{')?;
            labels.strip_suffix('}')
        });
        let pairs = labelled.map(|labels| labels.split("\",")).into_iter().flatten();
        pairs
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, _)| name)
            .collect()
    }

    /// The series of a metric that are not zero, with their values.
    pub(crate) fn counted(&self, name: &str) -> Vec<(String, f64)> {
        let prefix = format!("switchboard_{name}{{");
        let series = self.values.iter().filter_map(|(series, &value)| {
            let labels = series.strip_prefix(&prefix)?.strip_suffix('}')?;
            (value != 0.0).then(|| (labels.to_owned(), value))
        });
        series.collect()
    }
}
