//! Vectors from a seed: a mixture of clusters, with a spectrum that falls off as that of real embeddings does.
//!
//! ```text
//!   centre of a cluster + spread x normal, each dimension scaled by 1 / sqrt(1 + i/8), then length 1
//! ```
//!
//! For trying things out. It is easier than real text and says nothing about recall there.

use ramekin_base::{Error, Result, Rng};
use ramekin_vecmath::normalise;

/// Points a cluster, about.
const CLUSTER: usize = 64;
/// How far points lie from their centre, as a share of the centre's own length.
const SPREAD: f32 = 0.7;

/// What `--synthetic N,DIM,SEED` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synthetic {
    pub rows: usize,
    pub dim: usize,
    pub seed: u64,
}

impl std::str::FromStr for Synthetic {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers: Vec<Option<u64>> = text.split(',').map(|part| part.trim().replace('_', "").parse().ok()).collect();
        match numbers[..] {
            [Some(rows @ 1..=1_000_000_000), Some(dim @ 1..=65_536), Some(seed)] => {
                Ok(Self { rows: rows as usize, dim: dim as usize, seed })
            }
            _ => Err(Error::invalid(format!(
                "'{text}' is not N,DIM,SEED: three whole numbers, such as 100000,100,1; N from 1 to 10^9, DIM to 65,536"
            ))),
        }
    }
}

impl Synthetic {
    /// `rows + queries` vectors, the queries last: held out, of the same clusters.
    pub fn draw(self, queries: usize) -> Vec<f32> {
        let (total, dim) = (self.rows + queries, self.dim);
        let clusters = (self.rows / CLUSTER).max(1);
        let scale: Vec<f32> = (0..dim).map(|i| 1.0 / (1.0 + i as f32 / 8.0).sqrt()).collect();
        let mut out = Vec::with_capacity(total * dim);
        let mut rng = Rng::new(self.seed);
        for _ in 0..total {
            // A centre is drawn anew from its number, so that none needs to be kept.
            let mut centre = Rng::new(self.seed ^ (rng.below(clusters as u64) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let start = out.len();
            out.extend(scale.iter().map(|scale| scale * (centre.normal() + SPREAD * rng.normal())));
            if !normalise(&mut out[start..]) {
                out[start] = 1.0;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_unit_vectors() {
        let asked: Synthetic = "200, 10,3".parse().unwrap();
        let (one, two) = (asked.draw(5), asked.draw(5));
        assert!(one == two && one.len() == 205 * 10);
        assert!(one.chunks(10).all(|row| (ramekin_vecmath::norm(row) - 1.0).abs() < 1e-4));
        assert!(Synthetic { seed: 4, ..asked }.draw(5) != one);
    }

    #[test]
    fn what_is_not_three_numbers_is_refused() {
        for text in ["", "100", "100,10", "0,10,1", "10,0,1", "a,b,c", "1,2,3,4", "1,70000,1"] {
            assert!(text.parse::<Synthetic>().unwrap_err().message().contains("N,DIM,SEED"), "{text}");
        }
    }
}
