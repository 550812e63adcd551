//! Chance from a seed: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, figure 13).
//!
//! Fast, one word of state, the same numbers on every machine. Not for secrets.

/// A seeded stream of numbers.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

/// The finaliser of SplitMix64: spreads every bit of `x` over the whole word.
pub fn mix(x: u64) -> u64 {
    let mut z = x;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `bound` (0 if `bound` is 0), by multiplication: the bias is below 2^-32 for bounds in use.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal number (Box and Muller 1958).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    /// True with the given chance.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}
