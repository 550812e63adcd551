//! `ramekin memory URL`: the ledger for people, widths aligned, largest first.
//!
//! ```text
//!   budget 128.0 MiB   charged 115.0 MiB   peak 125.0 MiB   unaccounted 1.0 MiB   pressure calm
//!
//!   account                     bytes  of budget                       predicted  formula
//!   vectors/products/codes   75.3 MiB     58.9 %  ##############        75.3 MiB  points x (dim x 6/8 + 4)
//! ```

use crate::client;
use crate::exit::{Exit, Failure};
use ramekin_base::{Error, Result, Size};
use serde::Deserialize;
use std::fmt::Write;
use std::path::Path;

/// Width of a bar that stands for the whole budget.
const BAR: usize = 24;

#[derive(Deserialize)]
struct LedgerResponse {
    result: Ledger,
}

#[derive(Deserialize)]
struct Ledger {
    budget_bytes: u64,
    charged_bytes: u64,
    peak_bytes: u64,
    unaccounted_bytes: i64,
    pressure: String,
    accounts: Vec<Account>,
}

#[derive(Deserialize)]
struct Account {
    name: String,
    bytes: u64,
    predicted_bytes: u64,
    wanted_bytes: Option<u64>,
    formula: String,
}

pub fn run(arguments: &clap::ArgMatches) -> Result<(), Failure> {
    let text = |name: &str| arguments.get_one::<String>(name).cloned();
    let key = text("api-key").or_else(|| std::env::var("RAMEKIN_API_KEY").ok().filter(|key| !key.is_empty()));
    let url = text("url").unwrap_or_default();
    let trusted = text("ca");
    let answer = client::get(&url, "/memory", key.as_deref(), trusted.as_deref().map(Path::new))
        .map_err(|error| Failure::new(Exit::Unanswered, error))?;
    let ledger = read(&answer).map_err(|error| Failure::new(Exit::Unanswered, error.at(&url)))?;
    if arguments.get_flag("json") {
        crate::print(&(String::from_utf8_lossy(&answer).trim_end().to_owned() + "\n"))
    } else {
        crate::print(&table(ledger))
    }
}

fn read(answer: &[u8]) -> Result<Ledger> {
    let wrong = |error: serde_json::Error| Error::malformed(format!("what answers there is not a ledger: {error}"));
    serde_json::from_slice::<LedgerResponse>(answer).map(|answer| answer.result).map_err(wrong)
}

fn signed(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { "-" } else { "" }, Size(bytes.unsigned_abs()))
}

/// Names come from whoever made the collections: nothing in them may move the cursor.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

fn table(mut ledger: Ledger) -> String {
    ledger.accounts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    let mut out = String::new();
    let line = format!(
        "budget {}   charged {}   peak {}   unaccounted {}   pressure {}",
        Size(ledger.budget_bytes),
        Size(ledger.charged_bytes),
        Size(ledger.peak_bytes),
        signed(ledger.unaccounted_bytes),
        plain(&ledger.pressure)
    );
    let total: u64 = ledger.accounts.iter().map(|account| account.bytes).sum();
    let wants = ledger.accounts.iter().any(|account| account.wanted_bytes.is_some());
    let share = |bytes: u64| bytes as f64 / ledger.budget_bytes.max(1) as f64;
    let rows: Vec<[String; 7]> = ledger
        .accounts
        .iter()
        .map(|account| {
            [
                plain(&account.name),
                Size(account.bytes).to_string(),
                format!("{:.1} %", share(account.bytes) * 100.0),
                "#".repeat(((share(account.bytes) * BAR as f64).round() as usize).min(BAR)),
                Size(account.predicted_bytes).to_string(),
                account.wanted_bytes.map(|bytes| Size(bytes).to_string()).unwrap_or_default(),
                plain(&account.formula),
            ]
        })
        .chain([[
            "together".to_owned(),
            Size(total).to_string(),
            format!("{:.1} %", share(total) * 100.0),
            "#".repeat(((share(total) * BAR as f64).round() as usize).min(BAR)),
            String::new(),
            String::new(),
            String::new(),
        ]])
        .collect();
    let head = ["account", "bytes", "of budget", "", "predicted", "wanted", "formula"];
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([head[column].len()]).max().unwrap_or(0)
    };
    let (name, bytes, predicted, wanted) = (width(0), width(1), width(4), width(5));
    let mut row = |cells: [&str; 7]| {
        let want = if wants { format!("  {:>wanted$}", cells[5]) } else { String::new() };
        let text = format!(
            "{:<name$}  {:>bytes$}  {:>9}  {:<BAR$}  {:>predicted$}{want}  {}",
            cells[0], cells[1], cells[2], cells[3], cells[4], cells[6]
        );
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}", text.trim_end());
    };
    row(head);
    for cells in &rows {
        row(cells.each_ref().map(String::as_str));
    }
    format!("{line}\n\n{out}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_largest_first() {
        let ledger = read(
            br#"{"result": {"budget_bytes": 134217728, "charged_bytes": 120586240, "peak_bytes": 131072000,
                "unaccounted_bytes": -1048576, "pressure": "calm", "accounts": [
                {"name": "base", "bytes": 9437184, "predicted_bytes": 9437184, "formula": "code"},
                {"name": "vectors/pro\u001b[2Jducts/codes", "bytes": 79000000, "predicted_bytes": 79000000,
                 "formula": "points x 79", "wanted_bytes": 79000000}]}, "status": "ok", "time": 0.0001}"#,
        )
        .unwrap();
        let text = table(ledger);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "budget 128.0 MiB   charged 115.0 MiB   peak 125.0 MiB   unaccounted -1.0 MiB   pressure calm"
        );
        assert!(lines[3].starts_with("vectors/pro?[2Jducts/codes  75.3 MiB     58.9 %  ##############  "), "{text}");
        assert!(lines[4].starts_with("base                         9.0 MiB      7.0 %  ##  "), "{text}");
        let column = lines[2].find("formula").unwrap();
        assert_eq!(lines[3].find("points x"), Some(column));
        assert_eq!(lines[4].find("code"), Some(column));
        assert!(read(b"{}").is_err() && read(b"<html>").is_err());
    }
}
