//! `ramekin limits`: the table of `base`, and what follows from a budget.

use crate::exit::Failure;
use ramekin_base::limits::{TABLE, body_max, connections_max, payload_max};
use ramekin_base::{Result, Size};
use ramekin_node::budget_margin;
use serde_json::json;
use std::fmt::Write;

pub fn run(arguments: &clap::ArgMatches) -> Result<(), Failure> {
    let budget = match arguments.get_one::<String>("memory") {
        Some(text) => Some(Size::parse(text).map_err(|error| Failure::usage(error.at("--memory")))?.0),
        None => None,
    };
    let rows = rows(budget);
    if arguments.get_flag("json") {
        let list: Vec<_> =
            rows.iter().map(|(name, value, text)| json!({"name": name, "value": value, "meaning": text})).collect();
        return crate::print(&format!("{:#}\n", serde_json::Value::from(list)));
    }
    let width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value, meaning) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<width$}  {value:>12}  {meaning}");
    }
    crate::print(&out)
}

fn rows(budget: Option<u64>) -> Vec<(String, u64, String)> {
    let mut rows: Vec<_> =
        TABLE.iter().map(|(name, value, text)| (name.to_lowercase(), *value, text.trim().to_owned())).collect();
    if let Some(budget) = budget {
        let of = format!("with a budget of {}", Size(budget));
        rows.push(("body_max_now".to_owned(), body_max(budget), format!("Largest request body {of}, bytes.")));
        let payload = payload_max(budget) as u64;
        rows.push((
            "payload_max_now".to_owned(),
            payload,
            format!("Largest payload of one point {of}, bytes of JSON."),
        ));
        let places = connections_max(budget) as u64;
        rows.push(("connections_max_now".to_owned(), places, format!("Open connections of a door {of}.")));
        let cgroup = budget + budget_margin(budget);
        rows.push(("cgroup_least".to_owned(), cgroup, format!("Least limit of the memory cgroup {of}, bytes.")));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_from_the_budget() {
        let rows = rows(Some(127 << 20));
        let value = |name: &str| rows.iter().find(|row| row.0 == name).map(|row| row.1);
        assert_eq!(value("cgroup_least"), Some(135 << 20));
        assert_eq!(value("body_max_now"), Some((127 << 20) / 4));
        assert_eq!(value("payload_max_now"), Some((127 << 20) / 16));
        assert_eq!(value("queue_max"), Some(1024));
        assert_eq!(value("connections_max_now"), Some(127 * 16));
    }
}
