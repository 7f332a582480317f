//! Prometheus text as samples.

use std::collections::BTreeMap;

/// One line of Prometheus text.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the metric.
    pub name: String,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// All samples of one scrape.
#[derive(Debug, Clone, Default)]
pub struct Samples(pub Vec<Sample>);

impl Samples {
    /// Parses Prometheus text; lines that are no samples are left out.
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(sample).collect())
    }

    /// Sum over the samples of `name` that carry all of `labels`; none: nothing.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |s: &&Sample| {
            s.name == name
                && labels
                    .iter()
                    .all(|(k, v)| s.labels.get(*k).is_some_and(|found| found == v))
        };
        let mut found = self.0.iter().filter(has).peekable();
        found.peek()?;
        Some(found.map(|s| s.value).sum())
    }

    /// The samples whose name starts with `prefix`.
    pub fn starting_with<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |s| s.name.starts_with(prefix))
    }
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let (head, value) = line.rsplit_once(' ')?;
    let (name, labels) = match head.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (head, ""),
    };
    let labels = labels.split("\",").filter_map(|pair| {
        let (key, value) = pair.split_once("=\"")?;
        Some((key.to_string(), value.trim_end_matches('"').to_string()))
    });
    Some(Sample {
        name: name.into(),
        labels: labels.collect(),
        value: value.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_label() {
        let text = "# TYPE a counter\na{pod=\"x\",reason=\"cold\"} 3\na{pod=\"y\"} 4\nb{} 1\nb 2\n";
        let samples = Samples::parse(text);
        assert_eq!(samples.sum("a", &[]), Some(7.0));
        assert_eq!(
            samples.sum("a", &[("pod", "x"), ("reason", "cold")]),
            Some(3.0)
        );
        assert_eq!(samples.sum("a", &[("pod", "z")]), None);
        assert_eq!(samples.sum("b", &[]), Some(3.0));
    }
}
