//! A plot as SVG, by hand: requests a second over the memory limit, both logarithmic, recall beside each point.
//!
//! ```text
//!   10,000 ┤            ●─────● .98
//!    1,000 ┤      ●.97           │ least to most
//!      100 ┤  ●.95
//!          └──┬─────┬─────┬─────
//!            32    64   128 MiB
//! ```
//!
//! Each text has a box, and is written only where that meets no other one (`plot/labels.rs`).

mod labels;

use crate::statistics::{Spread, grouped};
use labels::{Anchor, Area, Labels, Text};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
/// Left, right, top, bottom of what is drawn in.
const FRAME: [f64; 4] = [92.0, 730.0, 56.0, 380.0];
const BLUE: &str = "#1f6feb";
const GREY: &str = "#ddd";
const DARK: &str = "#333";
const RED: &str = "#c00";
/// Radius of a point.
const RADIUS: f64 = 4.0;
const MIB: f64 = (1 << 20) as f64;
/// What stands between two powers of two, the fewest first: the axis takes the first that gives it some ticks.
const BETWEEN: [&[f64]; 4] =
    [&[1.0], &[1.0, 1.5], &[1.0, 1.25, 1.5, 1.75], &[1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875]];
const TICKS_LEAST: usize = 3;

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

/// Limits from the left edge to the right one, MiB: a little more than was measured.
fn limits(points: &[Point]) -> (f64, f64) {
    let all = points.iter().map(|point| point.limit.max(1) as f64 / MIB);
    let (low, high) = all.fold((f64::MAX, f64::MIN), |(low, high), limit| (low.min(limit), high.max(limit)));
    if low > high {
        return (1.0, 2.0);
    }
    // One point alone stands between half and twice its limit.
    let room = (high / low).powf(0.08).max(if high > low { 1.05 } else { 2.0 });
    (low / room, high * room)
}

/// Round numbers in a range, some of them at least if it is not empty.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let powers = low.log2().floor() as i32..=high.log2().ceil() as i32;
    let of = |between: &[f64]| -> Vec<f64> {
        let all = powers.clone().flat_map(|power| between.iter().map(move |part| part * 2f64.powi(power)));
        all.filter(|tick| (low..=high).contains(tick)).collect()
    };
    let mut found = Vec::new();
    for between in BETWEEN {
        found = of(between);
        if found.len() >= TICKS_LEAST {
            break;
        }
    }
    found
}

/// A number with as many digits behind the point as it has, three at most.
fn short(number: f64) -> String {
    let digits = (0..3).find(|digits| (number * 10f64.powi(*digits)).fract() == 0.0).unwrap_or(3);
    grouped(number, digits as usize)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Where numbers stand in the picture.
struct Scale {
    decades: (i32, i32),
    limits: (f64, f64),
}

impl Scale {
    fn x(&self, mib: f64) -> f64 {
        let [left, right, ..] = FRAME;
        let (low, high) = self.limits;
        left + (right - left) * (mib / low).ln() / (high / low).ln()
    }

    fn y(&self, rate: f64) -> f64 {
        let [.., top, bottom] = FRAME;
        let (low, high) = self.decades;
        let share = (rate.max(1e-9).log10() - f64::from(low)) / f64::from(high - low);
        bottom - (bottom - top) * share.clamp(0.0, 1.0)
    }
}

/// The picture. Points without an answer stand on the lower edge as crosses.
pub fn svg(title: &str, points: &[Point]) -> String {
    let (mut out, labels) = drawn(title, points);
    for text in labels.texts() {
        let Text { x, y, size, anchor, colour, turned, text } = text;
        let turn = if *turned { format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"") } else { String::new() };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{}\" fill=\"{colour}\"{turn}>{}</text>",
            anchor.name(),
            escape(text)
        );
    }
    out + "</svg>\n"
}

/// All but the texts, and these with their places.
fn drawn(title: &str, points: &[Point]) -> (String, Labels) {
    let [left, right, top, bottom] = FRAME;
    let scale = Scale { decades: decades(points), limits: limits(points) };
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    let mut labels = Labels::new(Area { x: [0.0, WIDTH], y: [0.0, HEIGHT] });
    labels.put(Text::new(left, 28.0, title).size(15.0).fitting(WIDTH - left));
    axes(&mut out, &mut labels, &scale);
    let mut ordered = points.to_vec();
    ordered.sort_by_key(|point| point.limit);
    let at = |point: &Point| (scale.x(point.limit as f64 / MIB), scale.y(point.rate.median));
    let (served, silent): (Vec<&Point>, Vec<&Point>) = ordered.iter().partition(|point| point.rate.median > 0.0);
    let path: Vec<(f64, f64)> = served.iter().map(|point| at(point)).collect();
    let corners: Vec<String> = path.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{BLUE}\" stroke-width=\"2\"/>",
        corners.join(" ")
    );
    path.windows(2).for_each(|two| labels.keep_off_line(two[0], two[1]));
    for (point, (x, y)) in served.iter().zip(&path) {
        let (from, to) = (scale.y(point.rate.least), scale.y(point.rate.most));
        line(&mut out, (*x, from), (*x, to), BLUE);
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{RADIUS}\" fill=\"{BLUE}\"/>");
        labels.keep_off(Area { x: [x - RADIUS, x + RADIUS], y: [y - RADIUS, y + RADIUS] });
        labels.keep_off_line((*x, from), (*x, to));
    }
    for point in silent {
        let (x, y) = (at(point).0, bottom - 8.0);
        line(&mut out, (x - RADIUS, y - RADIUS), (x + RADIUS, y + RADIUS), RED);
        line(&mut out, (x - RADIUS, y + RADIUS), (x + RADIUS, y - RADIUS), RED);
        labels.keep_off(Area { x: [x - RADIUS, x + RADIUS], y: [y - RADIUS, y + RADIUS] });
    }
    // The ends first, which say most.
    let inner = 1..path.len().saturating_sub(1);
    let ends = [0, path.len().saturating_sub(1)];
    let turns = ends.into_iter().take(path.len().min(2)).chain(inner);
    let within = Area { x: [left, right + 30.0], y: [top - 16.0, bottom] };
    for turn in turns {
        labels.overhead(path[turn], RADIUS, within, &format!("{:.3}", served[turn].recall));
    }
    (out, labels)
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>");
}

fn axes(out: &mut String, labels: &mut Labels, scale: &Scale) {
    let [left, right, top, bottom] = FRAME;
    let (low, high) = scale.decades;
    for decade in low..=high {
        let y = scale.y(10f64.powi(decade));
        line(out, (left, y), (right, y), GREY);
        let digits = usize::try_from(-decade).unwrap_or(0);
        labels.put(Text::new(left - 8.0, y + 4.0, &grouped(10f64.powi(decade), digits)).anchored(Anchor::End));
    }
    for tick in ticks(scale.limits) {
        let x = scale.x(tick);
        line(out, (x, bottom), (x, bottom + 5.0), DARK);
        labels.put(Text::new(x, bottom + 20.0, &short(tick)).anchored(Anchor::Middle));
    }
    line(out, (left, bottom), (right, bottom), DARK);
    line(out, (left, top), (left, bottom), DARK);
    labels.put(Text::new((left + right) / 2.0, bottom + 42.0, "memory, MiB").anchored(Anchor::Middle));
    let middle = (top + bottom) / 2.0;
    labels.put(Text::new(14.0, middle, "requests/s; overhead the points: recall@10").anchored(Anchor::Middle).turned());
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
    }

    #[test]
    fn twice_the_memory_is_as_far_everywhere() {
        let scale = Scale { decades: (0, 1), limits: (16.0, 1024.0) };
        let steps = [32.0, 64.0, 512.0].map(|mib| scale.x(2.0 * mib) - scale.x(mib));
        assert!(steps.iter().all(|step| (step - steps[0]).abs() < 1e-9), "{steps:?}");
    }

    #[test]
    fn ticks_are_round_and_some() {
        assert_eq!(ticks((20.0, 300.0)), [32.0, 64.0, 128.0, 256.0]);
        assert_eq!(ticks((20.0, 70.0)), [24.0, 32.0, 48.0, 64.0]);
        assert_eq!(ticks((100.0, 135.0)), [104.0, 112.0, 120.0, 128.0]);
        assert_eq!(short(1024.0) + &short(2.5), "1,0242.5");
        for (low, high) in [(1.0, 2.0), (3.0, 3.3), (9.0, 70_000.0)] {
            assert!(!ticks((low, high)).is_empty(), "{low} to {high}");
        }
    }

    #[test]
    fn no_text_meets_another_and_all_are_in_the_picture() {
        let mut rng = ramekin_base::Rng::new(7);
        for round in 0..300 {
            let count = rng.below(40) as usize;
            let narrow = round % 3 == 0;
            let points: Vec<Point> = (0..count)
                .map(|_| {
                    let limit = if narrow { 120 + rng.below(12) } else { 8 << rng.below(12) };
                    let rate = if rng.below(8) == 0 { 0.0 } else { 10f64.powi(rng.below(5) as i32) * 1.7 };
                    point(limit, rate, 0.95)
                })
                .collect();
            let (_, labels) = drawn("queries a second of a collection over the memory that it was given", &points);
            let areas: Vec<Area> = labels.texts().iter().map(Text::area).collect();
            for (at, area) in areas.iter().enumerate() {
                assert!(area.x[0] >= 0.0 && area.x[1] <= WIDTH && area.y[0] >= 0.0 && area.y[1] <= HEIGHT, "{area:?}");
                for other in &areas[..at] {
                    assert!(!area.meets(other), "round {round}: {area:?} and {other:?}");
                }
            }
        }
    }

    #[test]
    fn a_plain_curve_keeps_all_its_labels() {
        let curve: Vec<Point> = [24, 32, 56, 64, 127, 256, 560, 1024]
            .into_iter()
            .enumerate()
            .map(|(at, limit)| point(limit, 300.0 * 1.8f64.powi(at as i32), 0.95))
            .collect();
        let text = svg("ramekin plan: queries/s over the budget", &curve);
        assert_eq!(text.matches(">0.950<").count(), curve.len());
    }
}
