//! A plan for people and for programs: tables, JSON, and the curve as text and as SVG.

use super::{Figures, Plan, Range};
use crate::plot::{Point, svg};
use crate::statistics::{Spread, grouped};
use crate::table::Table;
use ramekin_base::Size;
use serde_json::{Value, json};

/// The plan as tables.
pub fn text(plan: &Plan, disk: &str) -> String {
    let mut structures = Table::new(["structure", "memory", "disk", "at a build's peak", "formula"]);
    let size = |bytes: u64| if bytes == 0 { "-".to_owned() } else { Size(bytes).to_string() };
    for line in &plan.capacity_plan.lines {
        let cells = [size(line.bytes), size(line.disk_bytes), size(line.build_bytes)];
        let cells = [&[line.name.clone()][..], &cells, &[line.formula.to_owned()]].concat();
        structures.row(cells);
    }
    let cache = plan.capacity_plan.cache_bytes;
    let formula = "what is left for pages of what is on disk, once searches have filled it".to_owned();
    structures.row(vec!["cache".to_owned(), size(cache), "-".to_owned(), "-".to_owned(), formula]);
    let mut figures = Table::new(["collection", "points", "memory", "disk", "recall@10", "reads a query", "queries/s"]);
    let rows = plan.collections.iter().chain([&plan.total]);
    for one in rows {
        figures.row(vec![
            one.name.clone(),
            grouped(one.points as f64, 0),
            Size(one.bytes.value as u64).to_string(),
            Size(one.disk_bytes.value as u64).to_string(),
            range(one.recall, 3),
            range(one.reads_per_query, 1),
            range(one.queries_per_second, 0),
        ]);
    }
    let (budget, least) = (Size(plan.budget), Size(plan.total.least_budget));
    let verdict = match plan.total.fits {
        true => format!("fits {budget}; the least budget is {least}"),
        false => format!("does not fit {budget}: the least budget is {least}, and that is what is shown"),
    };
    format!("{}\n{}\n{verdict}\ndisk: {disk}\n", structures.plain(), figures.plain())
}

fn range(range: Range, digits: usize) -> String {
    let number = |value: f64| grouped(value, digits);
    match number(range.low) == number(range.high) {
        true => number(range.value),
        false => format!("{} ({} to {})", number(range.value), number(range.low), number(range.high)),
    }
}

/// The plan as JSON.
pub fn json(plan: &Plan) -> Value {
    let line = |line: &ramekin_vectors::PlanLine| {
        json!({
            "name": line.name, "formula": line.formula, "bytes": line.bytes, "disk_bytes": line.disk_bytes,
            "build_peak_bytes": line.build_bytes,
        })
    };
    json!({
        "budget": plan.budget,
        "collections": plan.collections.iter().map(figures).collect::<Vec<_>>(),
        "total": figures(&plan.total),
        "fits": plan.total.fits,
        "least_budget": plan.total.least_budget,
        "structures": plan.capacity_plan.lines.iter().map(line).collect::<Vec<_>>(),
        "cache_bytes": plan.capacity_plan.cache_bytes,
    })
}

fn figures(one: &Figures) -> Value {
    let range = |range: Range| json!({"value": range.value, "low": range.low, "high": range.high});
    let bytes = |range: Range| json!({"value": range.value as u64, "low": range.low as u64, "high": range.high as u64});
    json!({
        "name": one.name,
        "points": one.points,
        "bytes": bytes(one.bytes),
        "disk_bytes": bytes(one.disk_bytes),
        "build_peak_bytes": bytes(one.build_peak_bytes),
        "recall": range(one.recall),
        "reads_per_query": range(one.reads_per_query),
        "queries_per_second": range(one.queries_per_second),
        "fits": one.fits,
        "least_budget": one.least_budget,
    })
}

/// The curve as a table: a row a budget.
pub fn curve_text(plans: &[Plan]) -> String {
    let mut table = Table::new(["budget", "resident codes", "memory", "recall@10", "reads a query", "queries/s"]);
    for plan in plans {
        let codes = plan.capacity_plan.lines.iter().filter(|line| line.name.ends_with("/codes"));
        table.row(vec![
            Size(plan.budget).to_string(),
            Size(codes.map(|line| line.bytes).sum()).to_string(),
            Size(plan.total.bytes.value as u64).to_string(),
            range(plan.total.recall, 3),
            range(plan.total.reads_per_query, 1),
            range(plan.total.queries_per_second, 0),
        ]);
    }
    table.plain()
}

/// The curve as a picture: queries a second over the budget, recall beside the points.
pub fn curve_svg(plans: &[Plan], title: &str) -> String {
    let point = |plan: &Plan| {
        let Range { value, low, high } = plan.total.queries_per_second;
        Point {
            limit: plan.budget,
            rate: Spread { median: value, least: low, most: high },
            recall: plan.total.recall.value,
        }
    };
    svg(title, &plans.iter().map(point).collect::<Vec<_>>())
}
