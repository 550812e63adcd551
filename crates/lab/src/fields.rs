//! `ramekin lab fields`: does a point have a value of a field? Asked of one point at random and of 64 in a row, in three layouts.
//!
//! ```text
//!   range    each point: where its values stand in a container, and how many      8 bytes and 8 a value
//!   inline   each point: nothing, its one value, or where its values stand        16 bytes, and 8 a value of several
//!   column   codes of a sorted dictionary, bit behind bit                        the bits, and a side table for several
//!
//!   points with one value, few with one (sparse), with one to four (several)
//! ```
//!
//! The published experiment (Qdrant's pull request 8235) checks 100,000 random ids of 40,000,000 points. Each round draws
//! others, as each query does: where the same ones come again, a layout of any size is in the processor's cache. A layout is
//! built, measured and dropped before the next, so that one is in memory at a time. Each check adds to a sum that is compared
//! between the layouts.

use crate::files;
use crate::machine::machine_line;
use crate::minram::Printed;
use crate::progress::Progress;
use crate::statistics::{Spread, grouped};
use crate::table::Table;
use ramekin_base::rng::mix;
use ramekin_base::{Clock, Error, Result, Rng, SystemClock};
use ramekin_fields::column::{self, BLOCK, ColumnValue, Packer};
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Everything that `ramekin lab fields` is told.
#[derive(Debug, Clone)]
pub struct Options {
    pub points: usize,
    /// Points that are checked in a round.
    pub checks: usize,
    /// Different values that the field has.
    pub distinct: Vec<u32>,
    pub rounds: usize,
    pub out: PathBuf,
}

impl Options {
    fn check(&self) -> Result<()> {
        if !(BLOCK..=1 << 31).contains(&self.points) || self.checks < BLOCK || self.rounds == 0 {
            return Err(Error::invalid("--points may be 64 to 2^31, --checks must be 64 and --rounds 1 at least"));
        }
        if self.distinct.is_empty() || self.distinct.iter().any(|distinct| !(1..=1 << 30).contains(distinct)) {
            return Err(Error::invalid("--distinct must name one number at least, each from 1 to 2^30"));
        }
        Ok(())
    }
}

/// Which points have values.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    One,
    Sparse,
    Several,
}

const SHAPES: [(Shape, &str); 3] =
    [(Shape::One, "one value"), (Shape::Sparse, "sparse (1 of 10)"), (Shape::Several, "several (1 to 4)")];

/// Most values of a point.
const SEVERAL: usize = 4;

/// The codes of a point's values into `codes`, and how many they are.
fn codes_of(shape: Shape, distinct: u32, point: usize, codes: &mut [u32; SEVERAL]) -> usize {
    let chance = mix(point as u64 ^ 0x5EED);
    let count = match shape {
        Shape::One => 1,
        Shape::Sparse => usize::from(chance.is_multiple_of(10)),
        Shape::Several => 1 + chance as usize % SEVERAL,
    };
    for (at, code) in codes[..count].iter_mut().enumerate() {
        *code = (mix(chance.wrapping_add(at as u64 + 1)) % u64::from(distinct)) as u32;
    }
    count
}

/// The value of a code: what stands in a payload.
fn value(code: u32) -> i64 {
    i64::from(code) * 10
}

trait Layout {
    const NAME: &str;

    fn build(shape: Shape, distinct: u32, points: usize) -> Self;
    /// Bytes that it takes.
    fn bytes(&self) -> usize;
    /// How many of these points pass.
    fn count(&self, points: &[u32], wanted: &Wanted) -> u64;
    /// How many points of these blocks pass.
    fn count_in(&self, blocks: &[u32], wanted: &Wanted) -> u64;
}

/// A layout that answers for one point after the other.
trait OneByOne {
    fn check(&self, point: usize, wanted: &Wanted) -> bool;

    fn count_one_by_one(&self, points: &[u32], wanted: &Wanted) -> u64 {
        points.iter().map(|point| u64::from(self.check(*point as usize, wanted))).sum()
    }

    fn count_in_one_by_one(&self, blocks: &[u32], wanted: &Wanted) -> u64 {
        let of = |block: usize| (0..BLOCK).map(move |bit| block * BLOCK + bit);
        blocks.iter().flat_map(|block| of(*block as usize)).map(|point| u64::from(self.check(point, wanted))).sum()
    }
}

/// Values from and to, and the same as codes.
struct Wanted {
    values: RangeInclusive<i64>,
    codes: column::Wanted,
}

impl Wanted {
    fn holds(&self, value: i64) -> bool {
        self.values.contains(&value)
    }
}

struct Ranges {
    places: Vec<(u32, u32)>,
    values: Vec<i64>,
}

impl Layout for Ranges {
    const NAME: &str = "range";

    fn build(shape: Shape, distinct: u32, points: usize) -> Self {
        let (mut places, mut values) = (Vec::with_capacity(points), Vec::new());
        let mut codes = [0; SEVERAL];
        for point in 0..points {
            let count = codes_of(shape, distinct, point, &mut codes);
            places.push((values.len() as u32, count as u32));
            values.extend(codes[..count].iter().map(|code| value(*code)));
        }
        values.shrink_to_fit();
        Self { places, values }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.places) + size_of_val(&*self.values)
    }

    fn count(&self, points: &[u32], wanted: &Wanted) -> u64 {
        self.count_one_by_one(points, wanted)
    }

    fn count_in(&self, blocks: &[u32], wanted: &Wanted) -> u64 {
        self.count_in_one_by_one(blocks, wanted)
    }
}

impl OneByOne for Ranges {
    fn check(&self, point: usize, wanted: &Wanted) -> bool {
        let (from, count) = self.places[point];
        self.values[from as usize..(from + count) as usize].iter().any(|value| wanted.holds(*value))
    }
}

enum Inline {
    Nothing,
    One(i64),
    Several(u32, u32),
}

struct Inlines {
    points: Vec<Inline>,
    values: Vec<i64>,
}

impl Layout for Inlines {
    const NAME: &str = "inline";

    fn build(shape: Shape, distinct: u32, points: usize) -> Self {
        let (mut places, mut values) = (Vec::with_capacity(points), Vec::new());
        let mut codes = [0; SEVERAL];
        for point in 0..points {
            places.push(match codes_of(shape, distinct, point, &mut codes) {
                0 => Inline::Nothing,
                1 => Inline::One(value(codes[0])),
                count => {
                    let from = values.len() as u32;
                    values.extend(codes[..count].iter().map(|code| value(*code)));
                    Inline::Several(from, count as u32)
                }
            });
        }
        values.shrink_to_fit();
        Self { points: places, values }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.points) + size_of_val(&*self.values)
    }

    fn count(&self, points: &[u32], wanted: &Wanted) -> u64 {
        self.count_one_by_one(points, wanted)
    }

    fn count_in(&self, blocks: &[u32], wanted: &Wanted) -> u64 {
        self.count_in_one_by_one(blocks, wanted)
    }
}

impl OneByOne for Inlines {
    fn check(&self, point: usize, wanted: &Wanted) -> bool {
        match &self.points[point] {
            Inline::Nothing => false,
            Inline::One(value) => wanted.holds(*value),
            Inline::Several(from, count) => {
                self.values[*from as usize..(from + count) as usize].iter().any(|value| wanted.holds(*value))
            }
        }
    }
}

impl Layout for Packer {
    const NAME: &str = "column";

    fn build(shape: Shape, distinct: u32, points: usize) -> Self {
        let mut packer = Packer::new(distinct, shape == Shape::Sparse, shape == Shape::Several, points);
        let mut codes = [0; SEVERAL];
        for point in 0..points {
            let count = codes_of(shape, distinct, point, &mut codes);
            packer.push(match count {
                0 => ColumnValue::Nothing,
                1 => ColumnValue::One(codes[0]),
                _ => ColumnValue::Many(&codes[..count]),
            });
        }
        packer.end();
        packer
    }

    fn bytes(&self) -> usize {
        Packer::bytes(self)
    }

    fn count(&self, points: &[u32], wanted: &Wanted) -> u64 {
        let (column, mut passed) = (self.column(), [0; 16]);
        let count = |points: &[u32]| {
            let passed = &mut passed[..points.len().div_ceil(BLOCK)];
            column.check(points, &wanted.codes, passed);
            count_ones(passed)
        };
        points.chunks(16 * BLOCK).map(count).sum()
    }

    fn count_in(&self, blocks: &[u32], wanted: &Wanted) -> u64 {
        let column = self.column();
        let count = |blocks: &[u32]| {
            let mut passed = [u64::MAX; BLOCK];
            column.check_some(blocks, &wanted.codes, &mut passed);
            count_ones(&passed[..blocks.len()])
        };
        blocks.chunks(BLOCK).map(count).sum()
    }
}

fn count_ones(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// What one layout did.
struct Measured {
    name: &'static str,
    random_ms: Vec<f64>,
    block_ms: Vec<f64>,
    bytes: usize,
    /// Points that passed: the same in each layout.
    passed: u64,
}

fn measure<L: Layout>(shape: Shape, distinct: u32, options: &Options) -> Measured {
    let layout = L::build(shape, distinct, options.points);
    let mut rng = Rng::new(7);
    let mut draw = |count: usize, of: usize| -> Vec<u32> { (0..count).map(|_| rng.below(of as u64) as u32).collect() };
    let middle = distinct / 2;
    let codes = column::Wanted::new(std::slice::from_ref(&(middle..middle + 1))).unwrap_or_default();
    let wanted = Wanted { values: value(middle)..=value(middle), codes };
    let clock = SystemClock::new();
    let (mut passed, mut random_ms, mut block_ms) = (0, Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let points = draw(options.checks, options.points);
        let blocks = draw(options.checks / BLOCK, options.points / BLOCK);
        let start = clock.now();
        passed += layout.count(&points, &wanted);
        let between = clock.now();
        passed += layout.count_in(&blocks, &wanted);
        random_ms.push((between - start).as_secs_f64() * 1e3);
        block_ms.push((clock.now() - between).as_secs_f64() * 1e3);
    }
    Measured { name: L::NAME, random_ms, block_ms, bytes: layout.bytes(), passed }
}

/// Does all of it.
pub fn fields(options: &Options) -> Result<Printed> {
    options.check()?;
    files::make_folder(&options.out)?;
    let progress = Progress::new();
    let heads = ["values", "distinct", "layout", "random, ms", "of inline", "blocks, ms", "of inline", "bytes/point"];
    let (mut table, mut cells) = (Table::new(heads), Vec::new());
    for (shape, name) in SHAPES {
        for distinct in &options.distinct {
            progress.say(format!("{name}, {distinct} different ones"));
            let all = [
                measure::<Ranges>(shape, *distinct, options),
                measure::<Inlines>(shape, *distinct, options),
                measure::<Packer>(shape, *distinct, options),
            ];
            if all.iter().any(|one| one.passed != all[0].passed) {
                return Err(Error::bug("two layouts of the same values disagree"));
            }
            let inline = &all[1];
            for one in &all {
                let (row, cell) = shown(one, inline, name, *distinct, options.points);
                table.row(row);
                cells.push(cell);
            }
        }
    }
    let title = format!("Is a value among those of a point: {} points", grouped(options.points as f64, 0));
    let lines = [
        format!("machine: {}", machine_line()),
        format!(
            "manner: {} rounds, each of other {} points at random, and of as many in blocks of {BLOCK} at random; median (least to most)",
            options.rounds,
            grouped(options.checks as f64, 0)
        ),
    ];
    let json = json!({"title": title, "points": options.points, "checks": options.checks, "cells": cells});
    let (page, data) = (options.out.join("fields.md"), options.out.join("fields.json"));
    files::write_text(&page, &format!("# {title}\n\n{}\n\n{}", lines.join("  \n"), table.markdown()))?;
    files::write_text(&data, &format!("{json:#}\n"))?;
    let table = format!("{title}\n{}\n\n{}", lines.join("\n"), table.plain());
    Ok(Printed { table, json, files: vec![page, data] })
}

fn shown(one: &Measured, inline: &Measured, name: &str, distinct: u32, points: usize) -> (Vec<String>, Value) {
    let median = |values: &[f64]| Spread::of(values).map_or(f64::NAN, |spread| spread.median);
    let text = |values: &[f64]| Spread::of(values).map_or(String::new(), |spread| spread.text(3));
    let json = |values: &[f64]| Spread::of(values).as_ref().map_or(Value::Null, Spread::json);
    let random = median(&one.random_ms) / median(&inline.random_ms);
    let block = median(&one.block_ms) / median(&inline.block_ms);
    let bytes = one.bytes as f64 / points as f64;
    let row = vec![
        name.to_owned(),
        grouped(f64::from(distinct), 0),
        one.name.to_owned(),
        text(&one.random_ms),
        format!("{random:.2}x"),
        text(&one.block_ms),
        format!("{block:.2}x"),
        grouped(bytes, 2),
    ];
    let cell = json!({
        "values": name, "distinct": distinct, "layout": one.name, "random_ms": json(&one.random_ms),
        "block_ms": json(&one.block_ms), "random_of_inline": random, "block_of_inline": block, "bytes_per_point": bytes,
    });
    (row, cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_agree() {
        let out = tempfile::tempdir().unwrap();
        let options =
            Options { points: 5000, checks: 6400, distinct: vec![1, 3, 300], rounds: 2, out: out.path().to_owned() };
        let printed = fields(&options).unwrap();
        assert_eq!(printed.json["cells"].as_array().unwrap().len(), 27);
        assert!(printed.files.iter().all(|file| file.exists()));
        assert!(fields(&Options { distinct: Vec::new(), ..options }).is_err());
    }
}
