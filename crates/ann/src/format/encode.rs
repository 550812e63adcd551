//! The codes of one list: residuals to its centroid, rotated, at every width.
//!
//! ```text
//!   x - c ──rotate──► r ──► 1 bit   blocks of 32 with their factors
//!                       ├─► 3 bits  records: code, f, k
//!                       └─► 6 bits  records: code, f, k
//!
//!   rank score s(q, x):   Dot, Cosine  <q, x>            Euclid  <q, x> - |x|^2 / 2
//!   its estimate:         base + f <Pq, code> + k
//!   base                  <q, c>                                 <q, c> - |c|^2 / 2
//!   k                     <c, r> - f <Pc, code>                  - |r|^2 / 2 - f <Pc, code>
//! ```
//!
//! Manhattan distance survives no rotation: there each dimension of `x - c` is one byte in steps of the list.

use crate::format::layout::{InvertedList, Span, WIDTHS};
use ramekin_vecmath::{
    BLOCK, Encoder, Linear, Metric, QueryCodes, Rotation, Width, block_bytes, code_bytes, dot, pack_block, record_bytes,
};

/// What the codes of an index depend on.
#[derive(Clone, Copy)]
pub(crate) struct Coding<'a> {
    pub(crate) metric: Metric,
    pub(crate) dim: usize,
    /// Absent for Manhattan.
    pub(crate) rotation: Option<&'a Rotation>,
}

/// Codes of lists one after another, as they will lie in their sections (but for gaps at page ends).
#[derive(Default)]
pub(crate) struct Coded {
    /// Blocks of one-bit codes.
    pub(crate) blocks: Vec<u8>,
    /// Records of 3 bits (Manhattan: of 8).
    pub(crate) narrow: Vec<u8>,
    /// Records of 6 bits.
    pub(crate) wide: Vec<u8>,
    /// For each list that was coded, where it begins in the three.
    pub(crate) starts: Vec<[usize; 3]>,
}

impl Coded {
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.narrow.clear();
        self.wide.clear();
        self.starts.clear();
    }
}

pub(crate) fn widths() -> [Width; 3] {
    [Width::ONE, Width::THREE, Width::SIX]
}

const _: () = assert!(WIDTHS[0] == 1 && WIDTHS[1] == 3 && WIDTHS[2] == 6);

/// How the factors of one width of a list are packed.
pub(crate) fn linear(spans: &[Span; 2]) -> Linear {
    Linear { f_min: spans[0].least, f_step: spans[0].step, k_min: spans[1].least, k_step: spans[1].step }
}

/// Encodes lists; one a thread.
pub(crate) struct Coder<'a> {
    coding: Coding<'a>,
    encoder: Encoder,
    centre: Vec<f32>,
    residuals: Vec<f32>,
    rotated: Vec<f32>,
    ones: Vec<u8>,
    /// Factors of every width, vector after vector.
    f: [Vec<f32>; 3],
    k: [Vec<f32>; 3],
}

impl<'a> Coder<'a> {
    pub(crate) fn new(coding: Coding<'a>) -> Self {
        let dim = coding.dim;
        Self {
            coding,
            encoder: Encoder::new(dim),
            centre: vec![0.0; dim],
            residuals: vec![0.0; BLOCK * dim],
            rotated: vec![0.0; BLOCK * dim],
            ones: Vec::new(),
            f: Default::default(),
            k: Default::default(),
        }
    }

    /// Bytes that a coder holds for lists of up to `rows` vectors.
    pub(crate) fn bytes(dim: usize, rows: usize) -> usize {
        (2 * BLOCK + 2) * dim * 4 + rows * (24 + dim.div_ceil(8))
    }

    /// Appends the codes of one list's vectors, and writes into `list` how they are packed.
    pub(crate) fn encode(&mut self, vectors: &[f32], centroid: &[f32], list: &mut InvertedList, out: &mut Coded) {
        out.starts.push([out.blocks.len(), out.narrow.len(), out.wide.len()]);
        match self.coding.rotation {
            Some(rotation) => self.encode_rotated(rotation, vectors, centroid, list, out),
            None => encode_bytes(vectors, centroid, list, out),
        }
    }

    fn encode_rotated(
        &mut self,
        rotation: &Rotation,
        vectors: &[f32],
        centroid: &[f32],
        list: &mut InvertedList,
        out: &mut Coded,
    ) {
        let dim = self.coding.dim;
        let widths = widths();
        let lengths = widths.map(|width| code_bytes(width, dim));
        let starts = [0, out.narrow.len(), out.wide.len()];
        rotation.rotate(centroid, &mut self.centre);
        self.ones.clear();
        self.f.iter_mut().chain(&mut self.k).for_each(Vec::clear);
        let (mut squares, mut most) = (0f64, 0f32);
        for block in vectors.chunks(BLOCK * dim) {
            let residuals = &mut self.residuals[..block.len()];
            for (x, residual) in block.chunks_exact(dim).zip(residuals.chunks_exact_mut(dim)) {
                residual.iter_mut().zip(x.iter().zip(centroid)).for_each(|(r, (x, c))| *r = x - c);
            }
            rotation.rotate_block(residuals, &mut self.rotated[..block.len()]);
            let both = residuals.chunks_exact(dim).zip(self.rotated.chunks_exact(dim));
            for (residual, rotated) in both {
                let square = dot(residual, residual);
                squares += f64::from(square);
                most = most.max(square);
                let constant = match self.coding.metric {
                    Metric::Euclid => -square / 2.0,
                    _ => dot(centroid, residual),
                };
                for (at, width) in widths.into_iter().enumerate() {
                    let records = match at {
                        0 => &mut self.ones,
                        1 => &mut out.narrow,
                        _ => &mut out.wide,
                    };
                    let from = records.len();
                    records.resize(from + lengths[at], 0);
                    let found = self.encoder.encode(width, rotated, &self.centre, &mut records[from..]);
                    if at > 0 {
                        records.extend_from_slice(&[0; 4]);
                    }
                    self.f[at].push(found.f);
                    self.k[at].push(constant - found.f * found.along);
                }
            }
        }
        list.spread = (squares / f64::from(list.count)).sqrt() as f32;
        list.radius = most.sqrt();
        for at in 0..3 {
            let line = Linear::fit(&self.f[at], &self.k[at]);
            list.factors[at] =
                [Span { least: line.f_min, step: line.f_step }, Span { least: line.k_min, step: line.k_step }];
            let factors = self.f[at].iter().zip(&self.k[at]).map(|(f, k)| line.quantise(*f, *k));
            if at == 0 {
                put_blocks(dim, &self.ones, factors, &mut out.blocks);
                continue;
            }
            let records = if at == 1 { &mut out.narrow } else { &mut out.wide };
            let records = records[starts[at]..].chunks_exact_mut(record_bytes(widths[at], dim));
            for (record, (f, k)) in records.zip(factors) {
                record[lengths[at]..lengths[at] + 2].copy_from_slice(&f.to_le_bytes());
                record[lengths[at] + 2..].copy_from_slice(&k.to_le_bytes());
            }
        }
    }
}

/// Lays one-bit codes and their factors into blocks.
fn put_blocks(dim: usize, ones: &[u8], factors: impl Iterator<Item = (u16, u16)>, blocks: &mut Vec<u8>) {
    let mut factors = factors;
    for codes in ones.chunks(BLOCK * code_bytes(Width::ONE, dim)) {
        let count = codes.len() / code_bytes(Width::ONE, dim);
        let (mut f, mut k) = ([0u16; BLOCK], [0u16; BLOCK]);
        for (lane, pair) in factors.by_ref().take(count).enumerate() {
            (f[lane], k[lane]) = pair;
        }
        let from = blocks.len();
        blocks.resize(from + block_bytes(dim), 0);
        pack_block(dim, codes, &f[..count], &k[..count], &mut blocks[from..]);
    }
}

/// Largest distance, in steps, of a dimension from the centroid.
const BYTE_REACH: f32 = 127.0;
/// The byte of a dimension that equals the centroid's.
const BYTE_CENTRE: f32 = 128.0;

fn encode_bytes(vectors: &[f32], centroid: &[f32], list: &mut InvertedList, out: &mut Coded) {
    let (mut far, mut squares, mut most) = (0f32, 0f64, 0f32);
    for x in vectors.chunks_exact(centroid.len()) {
        let mut square = 0f32;
        for (x, c) in x.iter().zip(centroid) {
            far = far.max((x - c).abs());
            square += (x - c) * (x - c);
        }
        squares += f64::from(square);
        most = most.max(square);
    }
    let step = far / BYTE_REACH;
    list.spread = (squares / f64::from(list.count)).sqrt() as f32;
    list.radius = most.sqrt();
    list.factors[0][0] = Span { least: 0.0, step };
    for x in vectors.chunks_exact(centroid.len()) {
        out.narrow.extend(x.iter().zip(centroid).map(|(x, c)| to_byte(x - c, step)));
    }
}

/// The byte of a distance from the centroid.
#[inline]
pub(crate) fn to_byte(distance: f32, step: f32) -> u8 {
    if step > 0.0 { (distance / step + BYTE_CENTRE).round().clamp(0.0, 255.0) as u8 } else { BYTE_CENTRE as u8 }
}

/// A query's bytes in a list of Manhattan codes; returns the part of the distance that lies outside of the bytes'
/// reach, which is the same for every vector of the list.
pub(crate) fn query_bytes(query: &[f32], centroid: &[f32], step: f32, out: &mut Vec<u8>) -> f32 {
    out.clear();
    let reach = BYTE_REACH * step;
    let mut outside = 0.0;
    out.extend(query.iter().zip(centroid).map(|(q, c)| {
        let distance = q - c;
        let inside = distance.clamp(-reach, reach);
        outside += (distance - inside).abs();
        to_byte(inside, step)
    }));
    outside
}

/// The standard error of an estimate is about this times `f |q - c|`, at every width: codes are rounded evenly, and an
/// even rounding errs by `1 / sqrt(12)` of its step.
pub(crate) const ERROR: f32 = 0.3;

/// The estimate of one record of width `WIDTHS[width]`.
pub(crate) fn estimate(codes: &QueryCodes, width: usize, record: &[u8], list: &InvertedList, shared_term: f32) -> f32 {
    let bits = widths()[width];
    let bytes = code_bytes(bits, codes.dim());
    estimate_of(codes.dot(bits, &record[..bytes]), &record[bytes..], &list.factors[width], shared_term)
}

/// The estimate of a record of which the product with the query is known.
#[inline]
pub(crate) fn estimate_of(product: f32, factors: &[u8], spans: &[Span; 2], shared_term: f32) -> f32 {
    // Not fused: without the right processor flags a fused step is a call.
    let number =
        |at: usize, span: &Span| span.least + f32::from(u16::from_le_bytes([factors[at], factors[at + 1]])) * span.step;
    shared_term + (number(0, &spans[0]) * product + number(2, &spans[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramekin_base::Rng;
    use ramekin_vecmath::{QueryCodes, l1, sad, scan::Probe};

    fn random(count: usize, rng: &mut Rng) -> Vec<f32> {
        (0..count).map(|_| rng.normal()).collect()
    }

    /// Estimates at each width against the true rank score: unbiased, with an error of about 0.3 f |q - c|.
    #[test]
    fn estimates_follow_the_rank_score() {
        for (metric, dim) in [(Metric::Dot, 96), (Metric::Euclid, 100), (Metric::Cosine, 7)] {
            let mut rng = Rng::new(5);
            let rotation = Rotation::new(dim, 1);
            let coding = Coding { metric, dim, rotation: Some(&rotation) };
            let (centroid, query) = (random(dim, &mut rng), random(dim, &mut rng));
            let count = 70;
            let vectors: Vec<f32> = (0..count)
                .flat_map(|_| random(dim, &mut rng))
                .zip(centroid.iter().cycle())
                .map(|(x, c)| x * 0.5 + c)
                .collect();
            let (mut list, mut out) = (InvertedList { count, ..InvertedList::default() }, Coded::default());
            Coder::new(coding).encode(&vectors, &centroid, &mut list, &mut out);
            let mut rotated = vec![0.0; dim];
            rotation.rotate(&query, &mut rotated);
            let mut codes = QueryCodes::new(dim);
            codes.prepare(&rotated);
            let mut base = dot(&query, &centroid);
            if metric == Metric::Euclid {
                base -= dot(&centroid, &centroid) / 2.0;
            }
            let centroid_distance: f32 =
                query.iter().zip(&centroid).map(|(q, c)| (q - c) * (q - c)).sum::<f32>().sqrt();
            for (at, width) in widths().into_iter().enumerate() {
                let line = linear(&list.factors[at]);
                let (mut sum, mut squares) = (0f32, 0f32);
                for (index, x) in vectors.chunks_exact(dim).enumerate() {
                    let truth = dot(&query, x) - if metric == Metric::Euclid { dot(x, x) / 2.0 } else { 0.0 };
                    let (estimate, f) = if at == 0 {
                        let probe = Probe { linear: line, base, slack: 1.0, threshold: f32::MIN };
                        let block = &out.blocks[index / BLOCK * block_bytes(dim)..][..block_bytes(dim)];
                        codes.scan_one(block, index % BLOCK, &probe)
                    } else {
                        let records = if at == 1 { &out.narrow } else { &out.wide };
                        let (mut estimate, mut margin) = ([0.0], [0.0]);
                        codes.estimate(width, records, &[index as u32], &line, base, 1.0, &mut estimate, &mut margin);
                        (estimate[0], margin[0])
                    };
                    let error = (estimate - truth) / (f * centroid_distance);
                    sum += error;
                    squares += error * error;
                }
                let (mean, deviation) = (sum / count as f32, (squares / count as f32).sqrt());
                assert!(
                    mean.abs() < 0.15 && (0.1..0.6).contains(&deviation),
                    "{metric:?} {width:?} {mean} {deviation}"
                );
            }
        }
    }

    #[test]
    fn bytes_follow_the_manhattan_distance() {
        let (dim, count, mut rng) = (33, 50u32, Rng::new(6));
        let (centroid, query) = (random(dim, &mut rng), random(dim, &mut rng));
        let vectors = random(dim * count as usize, &mut rng);
        let (mut list, mut out) = (InvertedList { count, ..InvertedList::default() }, Coded::default());
        Coder::new(Coding { metric: Metric::Manhattan, dim, rotation: None })
            .encode(&vectors, &centroid, &mut list, &mut out);
        let step = list.factors[0][0].step;
        let mut bytes = Vec::new();
        let outside = query_bytes(&query, &centroid, step, &mut bytes);
        for (x, code) in vectors.chunks_exact(dim).zip(out.narrow.chunks_exact(dim)) {
            let (truth, estimate) = (l1(&query, x), outside + step * sad(&bytes, code) as f32);
            assert!((truth - estimate).abs() < step * dim as f32 * 0.3, "{truth} {estimate}");
        }
    }
}
