//! A plot as SVG, by hand: requests a second (logarithmic) over the memory limit, recall beside each point.
//!
//! ```text
//!   10,000 ┤            ●─────● .98
//!    1,000 ┤      ●.97           │ least to most
//!      100 ┤  ●.95
//!          └──┬───┬─────┬─────
//!            32  64   128 MiB
//! ```

use crate::statistics::{Spread, grouped};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
/// Left, right, top, bottom of what is drawn in.
const FRAME: [f64; 4] = [80.0, 730.0, 56.0, 380.0];

/// One measured limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub limit: u64,
    pub rate: Spread,
    pub recall: f64,
}

/// Whole powers of ten around all rates above zero.
fn decades(points: &[Point]) -> (i32, i32) {
    let rates = points.iter().flat_map(|point| [point.rate.least, point.rate.most]).filter(|rate| *rate > 0.0);
    let (low, high) = rates.fold((f64::MAX, f64::MIN), |(low, high), rate| (low.min(rate), high.max(rate)));
    if low > high {
        return (0, 1);
    }
    let (low, high) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    (low, high.max(low + 1))
}

/// A round step that cuts `most` into at most eight.
fn round_step(most: f64) -> f64 {
    let mut step = 1.0;
    while most / step > 8.0 {
        step *= 2.0;
    }
    step
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The picture. Points without an answer stand on the lower edge as crosses.
pub fn svg(title: &str, points: &[Point]) -> String {
    let [left, right, top, bottom] = FRAME;
    let (low, high) = decades(points);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let most = points.iter().map(|point| mib(point.limit)).fold(1.0, f64::max) * 1.08;
    let x = |bytes: u64| left + (right - left) * mib(bytes) / most;
    let share = |rate: f64| (rate.max(1e-9).log10() - f64::from(low)) / f64::from(high - low);
    let y = |rate: f64| bottom - (bottom - top) * share(rate).clamp(0.0, 1.0);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{left}\" y=\"28\" font-size=\"15\">{}</text>",
        escape(title)
    );
    axes(&mut out, (low, high), most);
    let mut ordered = points.to_vec();
    ordered.sort_by_key(|point| point.limit);
    let served: Vec<&Point> = ordered.iter().filter(|point| point.rate.median > 0.0).collect();
    let path: Vec<String> = served.iter().map(|p| format!("{:.1},{:.1}", x(p.limit), y(p.rate.median))).collect();
    let _ =
        writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"2\"/>", path.join(" "));
    for point in &ordered {
        let (px, py) = (x(point.limit), y(point.rate.median));
        if point.rate.median <= 0.0 {
            let _ = writeln!(
                out,
                "<text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#c00\">x</text>",
                bottom - 4.0
            );
            continue;
        }
        let (from, to) = (y(point.rate.least), y(point.rate.most));
        let _ = writeln!(
            out,
            "<line x1=\"{px:.1}\" y1=\"{from:.1}\" x2=\"{px:.1}\" y2=\"{to:.1}\" stroke=\"#1f6feb\"/>\n\
             <circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"4\" fill=\"#1f6feb\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{:.3}</text>",
            px + 7.0,
            py - 6.0,
            point.recall
        );
    }
    out + "</svg>\n"
}

fn axes(out: &mut String, (low, high): (i32, i32), most: f64) {
    let [left, right, top, bottom] = FRAME;
    let line = |out: &mut String, x1: f64, y1: f64, x2: f64, y2: f64, colour: &str| {
        let _ =
            writeln!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>");
    };
    for decade in low..=high {
        let y = bottom - (bottom - top) * f64::from(decade - low) / f64::from(high - low);
        line(out, left, y, right, y, "#ddd");
        let digits = usize::try_from(-decade).unwrap_or(0);
        let label = grouped(10f64.powi(decade), digits);
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", left - 8.0, y + 4.0);
    }
    let step = round_step(most);
    let mut at = 0.0;
    while at <= most {
        let x = left + (right - left) * at / most;
        line(out, x, bottom, x, bottom + 5.0, "#333");
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at:.0}</text>", bottom + 20.0);
        at += step;
    }
    line(out, left, bottom, right, bottom, "#333");
    line(out, left, top, left, bottom, "#333");
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">memory limit, MiB</text>\n\
         <text x=\"18\" y=\"{:.1}\" transform=\"rotate(-90 18 {:.1})\" text-anchor=\"middle\">requests/s; beside the points: recall@10</text>",
        (left + right) / 2.0,
        bottom + 42.0,
        (top + bottom) / 2.0,
        (top + bottom) / 2.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(limit_mib: u64, rate: f64, recall: f64) -> Point {
        Point { limit: limit_mib << 20, rate: Spread { median: rate, least: rate * 0.9, most: rate * 1.1 }, recall }
    }

    /// Every tag that opens is closed, in order: enough XML for a browser.
    fn well_formed(text: &str) -> bool {
        let mut open = Vec::new();
        for tag in text.split('<').skip(1) {
            let Some((tag, _)) = tag.split_once('>') else { return false };
            if let Some(name) = tag.strip_prefix('/') {
                if open.pop() != Some(name) {
                    return false;
                }
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap());
            }
        }
        open.is_empty()
    }

    #[test]
    fn the_picture_is_well_formed_whatever_was_measured() {
        let some = [point(24, 310.0, 0.951), point(135, 4200.0, 0.97), point(8, 0.0, f64::NAN)];
        let text = svg("a < b & c", &some);
        assert!(well_formed(&text), "{text}");
        assert!(text.contains(">0.951<") && text.contains("a &lt; b &amp; c") && text.contains(">10,000<"));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert_eq!(text.matches("<circle").count(), 2);
        for few in [&some[..1], &some[2..], &[]] {
            let text = svg("t", few);
            assert!(well_formed(&text) && !text.contains("NaN"), "{text}");
        }
    }

    #[test]
    fn a_faster_point_stands_higher() {
        let text = svg("t", &[point(10, 10.0, 0.9), point(20, 1000.0, 0.9)]);
        let heights: Vec<f64> =
            text.split("cy=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect();
        assert!(heights[1] < heights[0]);
        assert_eq!(decades(&[point(1, 10.0, 1.0)]), (0, 2));
        assert_eq!(round_step(135.0), 32.0);
    }
}
