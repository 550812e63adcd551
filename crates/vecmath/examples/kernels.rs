//! What each kernel costs on this machine: `cargo run --release -p ramekin-vecmath --example kernels`.
//!
//! `RAMEKIN_SIMD=plain|avx2|avx512` chooses a level. The best of many short runs is shown, so that a busy machine
//! disturbs little.

use ramekin_base::{Clock, Rng, SystemClock};
use ramekin_vecmath::*;
use std::hint::black_box;

struct Table {
    clock: SystemClock,
}

impl Table {
    /// Runs `work`, which does `count` operations, until the least time no longer falls, and prints a line.
    fn line(&self, name: &str, count: usize, per_op: f64, unit: &str, mut work: impl FnMut()) {
        let mut least = f64::INFINITY;
        let begin = self.clock.now();
        let mut runs = 0;
        while runs < 5 || (self.clock.now() - begin).as_millis() < 400 {
            let start = self.clock.now();
            work();
            least = least.min((self.clock.now() - start).as_secs_f64());
            runs += 1;
        }
        let ns = least * 1e9 / count as f64;
        println!("{name:<44} {ns:>12.2} ns {:>9.1} {unit}", per_op / ns);
    }
}

fn gaussian(count: usize, rng: &mut Rng) -> Vec<f32> {
    (0..count).map(|_| rng.normal()).collect()
}

fn main() -> ramekin_base::Result<()> {
    let wanted = match std::env::var("RAMEKIN_SIMD") {
        Ok(text) => text.parse()?,
        Err(_) => detected(),
    };
    println!("level {} (this machine: {})", force_level(wanted), detected());
    let table = Table { clock: SystemClock::new() };
    #[cfg(target_arch = "x86_64")]
    if detected() == Level::Avx512 {
        // SAFETY: the level was detected.
        table.line("multiply-add in registers, the peak", 120_000, 32.0, "GFLOPS", || unsafe { peak(10_000) });
    }
    for dim in [100, 768] {
        println!("\ndim {dim}");
        floats(&table, dim);
        codes(&table, dim);
        scans(&table, dim);
        scan_lists(&table, dim);
        centroids(&table, dim);
    }
    println!();
    let scores = gaussian(4096, &mut Rng::new(9));
    let mut best = vec![];
    for n in [16, 64, 128] {
        table.line(&format!("select the best {n} of 4,096"), 1, 4096.0 * 4.0, "GB/s", || {
            select_best(black_box(&scores), n, &mut best);
        });
    }
    Ok(())
}

/// 12 independent sums of 16 lanes: what the processor can do at best while this program runs.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn peak(rounds: usize) {
    use std::arch::x86_64::*;
    let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
    let mut sums = [a; 12];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, a, b);
        }
    }
    for sum in sums {
        black_box(_mm512_reduce_add_ps(sum));
    }
}

fn floats(table: &Table, dim: usize) {
    let mut rng = Rng::new(1);
    let (d, rows) = (dim as f64, 256);
    let (q, block) = (gaussian(dim, &mut rng), gaussian(rows * dim, &mut rng));
    let mut out = vec![0.0; rows];
    for (name, one) in [("dot", dot as fn(&[f32], &[f32]) -> f32), ("l2_squared", l2_squared), ("l1", l1)] {
        table.line(name, rows, d * 4.0, "GB/s", || {
            for (x, out) in block.chunks_exact(dim).zip(&mut out) {
                *out = one(black_box(&q), x);
            }
        });
    }
    table.line("score_block, 256 rows", rows, d * 4.0, "GB/s", || {
        score_block(Metric::Dot, black_box(&q), &block, dim, &mut out);
    });
    let (k, rows) = (1024, 96);
    let panels = Panels::pack(&gaussian(k * dim, &mut rng), k, dim);
    let x = gaussian(rows * dim, &mut rng);
    let (mut places, mut scores) = (vec![0; rows], vec![0.0; rows]);
    table.line("assign to 1,024, a row", rows, 2.0 * d * k as f64, "GFLOPS", || {
        panels.assign(black_box(&x), &mut places, &mut scores);
    });
    let mut all = vec![0.0; rows * k];
    table.line("scores of 1,024, a row", rows, 2.0 * d * k as f64, "GFLOPS", || {
        panels.scores(black_box(&x), &mut all);
    });
    let rotation = Rotation::new(dim, 1);
    let mut turned = vec![0.0; dim];
    table.line("rotate one", rows, d * 4.0, "GB/s", || {
        for row in x.chunks_exact(dim) {
            rotation.rotate(black_box(row), &mut turned);
        }
    });
    let mut turned = vec![0.0; rows * dim];
    table.line("rotate_block, a row", rows, d * 4.0, "GB/s", || {
        rotation.rotate_block(black_box(&x), &mut turned);
    });
}

fn codes(table: &Table, dim: usize) {
    let mut rng = Rng::new(2);
    let rows = 256;
    let (r, c) = (gaussian(rows * dim, &mut rng), gaussian(dim, &mut rng));
    let q = gaussian(dim, &mut rng);
    let mut query = QueryCodes::new(dim);
    table.line("prepare a query", 1, dim as f64 * 4.0, "GB/s", || query.prepare(black_box(&q)));
    let mut encoder = Encoder::new(dim);
    for bits in [1, 3, 6, 8] {
        let width = Width::new(bits).unwrap_or(Width::ONE);
        let bytes = code_bytes(width, dim);
        let mut code = vec![0; bytes];
        table.line(&format!("encode, {bits} bits"), rows, dim as f64 * 4.0, "GB/s", || {
            for r in r.chunks_exact(dim) {
                black_box(encoder.encode(width, r, &c, &mut code));
            }
        });
    }
    for bits in [1, 3, 6, 8] {
        let width = Width::new(bits).unwrap_or(Width::ONE);
        let (bytes, stride) = (code_bytes(width, dim), record_bytes(width, dim));
        // 1,000 of 200,000 records by chance, as the survivors of a scan: from memory, not from the cache.
        let count = 200_000;
        let records: Vec<u8> = (0..count * stride).map(|_| rng.next_u64() as u8).collect();
        let mut which: Vec<u32> = (0..1000).map(|_| rng.below(count as u64) as u32).collect();
        which.sort_unstable();
        let (mut estimates, mut margins) = (vec![0.0; 1000], vec![0.0; 1000]);
        let linear = Linear { f_min: 0.0, f_step: 1e-4, k_min: 0.0, k_step: 1e-4 };
        table.line(&format!("dot, {bits} bits, 64 in a run, cached"), 64, bytes as f64, "GB/s", || {
            query.dots(width, black_box(&records[..64 * stride]), stride, &mut estimates[..64]);
        });
        table.line(&format!("dot, {bits} bits, one at a time, cached"), 64, bytes as f64, "GB/s", || {
            for (record, out) in records.chunks_exact(stride).zip(&mut estimates[..64]) {
                *out = query.dot(width, &record[..bytes]);
            }
        });
        table.line(&format!("estimate, {bits} bits, 1,000 of 200,000"), 1000, bytes as f64, "GB/s", || {
            for at in &mut which {
                *at = (*at + 1009) % count as u32;
            }
            query.estimate(width, &records, black_box(&which), &linear, 0.0, 0.1, &mut estimates, &mut margins);
        });
    }
}

fn scans(table: &Table, dim: usize) {
    let mut rng = Rng::new(3);
    let mut query = QueryCodes::new(dim);
    query.prepare(&gaussian(dim, &mut rng));
    let bytes = block_bytes(dim);
    for (name, blocks) in [("scan, 8 blocks, cached", 8), ("scan, 4,000 blocks", 4000)] {
        let data: Vec<u8> = (0..blocks * bytes).map(|_| rng.next_u64() as u8).collect();
        let linear = Linear { f_min: 0.0, f_step: 1e-4, k_min: 0.0, k_step: 1e-4 };
        let mut probe = Probe { linear, base: 0.0, slack: 0.0, threshold: f32::NEG_INFINITY };
        let mut found = Survivors::default();
        for (share, label) in [(0.0, "none pass"), (0.05, "1 in 20 passes"), (1.0, "all pass")] {
            found.clear();
            probe.threshold = f32::NEG_INFINITY;
            query.scan(&data, 0..blocks * BLOCK, &probe, &mut found);
            found.estimates.sort_by(f32::total_cmp);
            let rank = ((1.0 - share) * found.len() as f64) as usize;
            probe.threshold = if share == 1.0 { f32::NEG_INFINITY } else { found.estimates[rank.min(found.len() - 1)] };
            table.line(&format!("{name}, {label}"), blocks * BLOCK, bytes as f64 / BLOCK as f64, "GB/s", || {
                found.clear();
                query.scan(black_box(&data), 0..blocks * BLOCK, &probe, &mut found);
            });
        }
    }
}

/// As a search does it: runs of 8 blocks in 30,000, here and there.
fn scan_lists(table: &Table, dim: usize) {
    let mut rng = Rng::new(5);
    let mut query = QueryCodes::new(dim);
    query.prepare(&gaussian(dim, &mut rng));
    let (bytes, lists) = (8 * block_bytes(dim), 3750);
    let data: Vec<u8> = (0..lists * bytes).map(|_| rng.next_u64() as u8).collect();
    let linear = Linear { f_min: 0.0, f_step: 1e-4, k_min: 0.0, k_step: 1e-4 };
    let probe = Probe { linear, base: 0.0, slack: 0.0, threshold: f32::INFINITY };
    let mut found = Survivors::default();
    let mut list = 0;
    table.line("scan, 64 lists of 8 blocks, far apart", 64 * 256, bytes as f64 / 256.0, "GB/s", || {
        for _ in 0..64 {
            list = (list + 1213) % lists;
            query.scan(black_box(&data[list * bytes..(list + 1) * bytes]), 0..256, &probe, &mut found);
        }
    });
    table.line("the same, the next list fetched ahead", 64 * 256, bytes as f64 / 256.0, "GB/s", || {
        for _ in 0..64 {
            let next = (list + 1213) % lists;
            let (now, next_bytes) = (&data[list * bytes..(list + 1) * bytes], &data[next * bytes..(next + 1) * bytes]);
            query.scan_ahead(black_box(now), next_bytes, 0..256, &probe, &mut found);
            list = next;
        }
    });
}

fn centroids(table: &Table, dim: usize) {
    let mut rng = Rng::new(4);
    for k in [64, 4096] {
        let shape = Centroids8::new(k, dim);
        let mut packed = vec![0; shape.bytes()];
        shape.pack(&gaussian(k * dim, &mut rng), &vec![0.0; k], &mut packed);
        let (q, mut room, mut out) = (gaussian(dim, &mut rng), vec![], vec![0.0; k]);
        table.line(&format!("centroids in int8, all {k}"), 1, shape.bytes() as f64, "GB/s", || {
            shape.scores(black_box(&q), &packed, &mut room, &mut out);
        });
    }
}
