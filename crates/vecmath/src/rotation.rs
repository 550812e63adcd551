//! A random rotation: it spreads the energy of a vector evenly over its dimensions, so that a code of few bits a
//! dimension loses the same everywhere (and lengths, inner products and distances stay as they are).
//!
//! ```text
//!   dim <= 64     a dense orthogonal matrix: Gaussian columns, orthonormalised
//!   above         4 rounds of: random signs, Hadamard transform over the largest power of two
//!                 (at the front, at the back, by turns), then pairs (i, i + dim/2) -> sum, difference
//! ```
//!
//! Above 64 dimensions the estimates of codes lose no more than 2 % by the rounds, which need no matrix in memory, none made
//! at opening, and a third of the time. The same dimension and seed give the same rotation on every machine: segments on disk rely on it.

use crate::kernels::kernels;
use crate::panels::Panels;
use ramekin_base::Rng;

/// Largest dimension for which the matrix itself is kept.
const DENSE_MAX: usize = 64;
const ROUNDS: usize = 4;

/// An orthogonal map of `dim` dimensions.
#[derive(Clone, Debug)]
pub struct Rotation {
    dim: usize,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    Dense {
        /// Row i gives dimension i of the result.
        matrix: Panels,
    },
    Rounds {
        /// `ROUNDS` times `dim` factors of +1 or -1.
        signs: Vec<f32>,
        /// The largest power of two that is not above `dim`.
        front: usize,
    },
}

impl Rotation {
    /// Heap bytes of a rotation, to be reserved before.
    pub fn bytes(dim: usize) -> usize {
        if dim <= DENSE_MAX { Panels::bytes(dim, dim) } else { ROUNDS * dim * 4 }
    }

    pub fn new(dim: usize, seed: u64) -> Self {
        assert!(dim > 0, "a rotation of no dimensions");
        let mut rng = Rng::new(seed ^ 0x726f_7461_7465);
        let form = if dim <= DENSE_MAX {
            Form::Dense { matrix: Panels::pack_dot(&orthonormal(dim, &mut rng), dim, dim) }
        } else {
            let signs = (0..ROUNDS * dim).map(|_| if rng.next_u64() >> 63 == 0 { 1.0 } else { -1.0 }).collect();
            Form::Rounds { signs, front: 1 << dim.ilog2() }
        };
        Self { dim, form }
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Rotates one vector.
    pub fn rotate(&self, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), self.dim, "vector of another dimension");
        self.rotate_block(x, out);
    }

    /// Rotates any number of vectors that lie one after another; faster by the vector than [`Rotation::rotate`].
    pub fn rotate_block(&self, rows: &[f32], out: &mut [f32]) {
        assert_eq!(rows.len(), out.len(), "as many out as in");
        assert_eq!(rows.len() % self.dim, 0, "rows of another dimension");
        match &self.form {
            Form::Dense { matrix } => matrix.scores(rows, out),
            Form::Rounds { signs, front } => {
                let kernels = kernels();
                out.copy_from_slice(rows);
                for row in out.chunks_exact_mut(self.dim) {
                    for (round, signs) in signs.chunks_exact(self.dim).enumerate() {
                        // SAFETY: a sign for each value; `front` is a power of two and not above the dimension.
                        unsafe { (kernels.mix)(row, signs, *front, round) };
                    }
                }
            }
        }
    }
}

/// Rows of an orthogonal matrix, uniform over all of them: Gaussian rows through modified Gram and Schmidt, twice, in
/// f64.
fn orthonormal(dim: usize, rng: &mut Rng) -> Vec<f32> {
    let mut rows: Vec<f64> = (0..dim * dim).map(|_| f64::from(rng.normal())).collect();
    for at in 0..dim {
        let (done, rest) = rows.split_at_mut(at * dim);
        let row = &mut rest[..dim];
        for _ in 0..2 {
            for earlier in done.chunks_exact(dim) {
                let along: f64 = earlier.iter().zip(row.iter()).map(|(a, b)| a * b).sum();
                row.iter_mut().zip(earlier).for_each(|(x, e)| *x -= along * e);
            }
        }
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.iter_mut().for_each(|x| *x /= length);
    }
    rows.into_iter().map(|x| x as f32).collect()
}
