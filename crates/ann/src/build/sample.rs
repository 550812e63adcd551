//! The first pass over the stream: a sample to train on, and held-out points that play the queries.
//!
//! Both are drawn evenly and without repetition (Knuth, volume 2, algorithm S), and no point is in both.

use crate::build::batch::Batch;
use crate::build::calibrate::HeldOut;
use crate::build::plan::Plan;
use crate::build::work::{Phase, Work};
use crate::format::buffer::Buffer;
use crate::format::compact::{Compact, Scales};
use crate::source::Source;
use ramekin_base::{Error, Result, Rng};

/// Takes the sample and the held-out points.
pub(crate) fn draw(
    source: &mut dyn Source,
    plan: &Plan,
    work: &Work<'_>,
    batch: &mut Batch,
) -> Result<(Compact, HeldOut)> {
    let dim = plan.dim;
    let mut rng = Rng::new(work.seed ^ 0x73616d706c65);
    let mut sample: Option<Compact> = None;
    let mut held = HeldOut {
        rows: Vec::with_capacity(plan.held_out),
        vectors: Buffer::new(&work.account, plan.held_out * dim)?,
        dim,
    };
    let mut seen = 0;
    source.rewind()?;
    while batch.read(source, seen, plan)? {
        let Batch { rows, vectors, .. } = &mut *batch;
        plan.full_vectors.view(vectors);
        let sample = match &mut sample {
            Some(sample) => sample,
            none => none.insert(Compact::new(&work.account, scales(vectors, dim), plan.sample)?),
        };
        for (row, x) in rows.iter().zip(vectors.chunks_exact(dim)) {
            let left = (plan.count - seen) as u64;
            seen += 1;
            if rng.below(left) < (plan.held_out - held.len()) as u64 {
                let at = held.len() * dim;
                held.vectors[at..at + dim].copy_from_slice(x);
                held.rows.push(*row);
                // A tiny set is too small to keep anything out of training.
                if plan.sample < plan.count / 2 {
                    continue;
                }
            }
            if rng.below(left) < (plan.sample - sample.len()) as u64 {
                sample.push(x);
            }
        }
        work.step(Phase::Sample, seen, plan.count)?;
    }
    match sample {
        Some(sample) if seen == plan.count => Ok((sample, held)),
        _ => Err(Error::bug(format!("the source promised {} vectors and gave {seen}", plan.count))),
    }
}

fn scales(vectors: &[f32], dim: usize) -> Scales {
    let mut squares = vec![0f64; dim];
    for x in vectors.chunks_exact(dim) {
        for (square, x) in squares.iter_mut().zip(x) {
            *square += f64::from(*x) * f64::from(*x);
        }
    }
    Scales::from_squares(&squares, vectors.len() / dim)
}
