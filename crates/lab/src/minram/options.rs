//! What is asked of a run, checked before anything is started.

use super::figures::Outcome;
use crate::dataset::DatasetRequest;
use crate::server::Recipe;
use ramekin_base::{Error, Result, Size};
use ramekin_vecmath::Metric;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Which page cache is dropped before a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCache {
    /// All of the machine, where that is permitted; the data files in any case.
    All,
    /// The data files alone.
    Files,
    /// Nothing: what earlier runs read may be found again.
    Keep,
}

/// How queries are asked.
#[derive(Debug, Clone, Default)]
pub struct Search {
    pub ef: Option<u32>,
    pub rescore: Option<bool>,
    pub oversampling: Option<f64>,
    pub with_payload: bool,
}

impl Search {
    /// `params` of a query.
    pub fn params(&self) -> Value {
        let mut params = Map::new();
        let mut quantization = Map::new();
        self.ef.map(|ef| params.insert("hnsw_ef".to_owned(), json!(ef)));
        self.rescore.map(|rescore| quantization.insert("rescore".to_owned(), json!(rescore)));
        self.oversampling.map(|times| quantization.insert("oversampling".to_owned(), json!(times)));
        if !quantization.is_empty() {
            params.insert("quantization".to_owned(), quantization.into());
        }
        params.into()
    }
}

/// Where the least limit is looked for, and what serving means.
#[derive(Debug, Clone)]
pub struct Find {
    pub low: u64,
    pub high: u64,
    pub step: u64,
    pub rate: f64,
    pub recall: f64,
}

impl Find {
    /// Whether this is serving, and why or why not.
    pub fn judge(&self, outcome: &Outcome) -> (bool, String) {
        match outcome {
            Outcome::Failed(why) => (false, why.clone()),
            Outcome::Served(run) => {
                let (rate, recall) = (run.seen.rate(), run.seen.recall());
                let text = format!("{rate:.1} requests/s, recall {recall:.4}");
                (rate >= self.rate && recall >= self.recall, text)
            }
        }
    }
}

/// Everything that `ramekin lab minram` is told.
#[derive(Debug, Clone)]
pub struct Options {
    pub asked: DatasetRequest,
    pub metric: Metric,
    pub out: PathBuf,
    pub recipe: Recipe,
    /// The cgroup gets B + max(8 MiB, B/16), as our own server is promised to fit.
    pub with_margin: bool,
    pub memory: Vec<u64>,
    pub find: Option<Find>,
    pub search: Search,
    pub connections: usize,
    pub seconds: f64,
    pub repeats: u64,
    pub warm_up: usize,
    pub page_cache: PageCache,
    pub payload_bytes: usize,
    /// More of the request that makes the collection: a JSON object.
    pub create: Map<String, Value>,
    pub batch_bytes: usize,
    pub upload_memory: u64,
    pub patience: Duration,
    pub disk_file: u64,
    pub disk_seconds: f64,
    pub reuse: bool,
}

impl Options {
    /// The limit of the cgroup for a memory that is given to the server.
    pub fn limit(&self, memory: u64) -> u64 {
        if self.with_margin { memory + ramekin_node::budget_margin(memory) } else { memory }
    }

    pub fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::invalid(text));
        if self.memory.is_empty() && self.find.is_none() {
            return wrong("nothing to measure: give --memory SIZE,SIZE,... or --find LOW,HIGH, or both".to_owned());
        }
        if let Some(find) = &self.find
            && (find.low == 0 || find.low > find.high || find.step == 0)
        {
            return wrong(format!(
                "--find {},{} by {}: LOW must be above 0 and not above HIGH",
                Size(find.low),
                Size(find.high),
                Size(find.step)
            ));
        }
        if let Some(memory) = self.memory.iter().find(|memory| **memory == 0) {
            return wrong(format!("--memory {memory}: a limit must be above 0"));
        }
        if self.connections == 0 || self.connections > 1024 || self.repeats == 0 || self.repeats > 1000 {
            return wrong("--connections may be 1 to 1024, --repeats 1 to 1000".to_owned());
        }
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            return wrong("--seconds must be above 0 and at most 86400".to_owned());
        }
        Ok(())
    }
}

/// `LOW,HIGH` as sizes.
pub fn range(text: &str) -> Result<(u64, u64)> {
    let Some((low, high)) = text.split_once(',') else {
        return Err(Error::invalid(format!("'{text}' is not LOW,HIGH, such as 16MiB,256MiB")));
    };
    Ok((Size::parse(low)?.0, Size::parse(high)?.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Seen;
    use crate::minram::figures::Run;

    #[test]
    fn params_hold_what_was_asked_and_nothing_else() {
        assert_eq!(Search::default().params(), json!({}));
        let all = Search { ef: Some(64), rescore: Some(false), oversampling: Some(2.5), with_payload: true };
        assert_eq!(all.params(), json!({"hnsw_ef": 64, "quantization": {"rescore": false, "oversampling": 2.5}}));
    }

    #[test]
    fn serving_is_a_rate_and_a_recall() {
        let find = Find { low: 1, high: 2, step: 1, rate: 100.0, recall: 0.9 };
        let outcome = |answered, found| {
            let seen = Seen { seconds: 1.0, answered, found, wanted: 100, ..Seen::default() };
            Outcome::Served(Box::new(Run { seen, ..Run::default() }))
        };
        assert!(find.judge(&outcome(100, 90)).0);
        assert!(!find.judge(&outcome(99, 90)).0 && !find.judge(&outcome(100, 89)).0);
        assert!(!find.judge(&outcome(0, 0)).0);
        assert_eq!(find.judge(&Outcome::Failed("gone".to_owned())), (false, "gone".to_owned()));
        assert_eq!(range("1KiB,2KiB").unwrap(), (1024, 2048));
        assert!(range("1KiB").is_err() && range("x,y").is_err());
    }
}
