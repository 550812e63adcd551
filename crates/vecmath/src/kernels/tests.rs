//! Every level against plain code. Integers must be equal; floats may differ by rounding.

use super::{Kernels, at, plain};
use crate::codes::{Encoder, code_bytes, plane_bytes};
use crate::scan::{block_bytes, block_put_factors};
use crate::{BLOCK, Centroids8, Level, Linear, Panels, Probe, QueryCodes, Survivors, Width};
use proptest::prelude::*;
use ramekin_base::Rng;

/// The levels of this machine that differ from plain code.
fn levels() -> impl Iterator<Item = &'static Kernels> {
    [Level::Avx2, Level::Avx512].into_iter().map(at).filter(|table| table.level != Level::Plain)
}

fn dims() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => prop::sample::select(vec![1, 2, 16, 25, 64, 100, 128, 256, 768, 1536, 3000]),
        3 => 1usize..300,
        1 => 4000usize..9000,
    ]
}

fn widths() -> impl Strategy<Value = Width> {
    (1u32..=8).prop_map(|bits| Width::new(bits).unwrap())
}

fn gaussian(count: usize, rng: &mut Rng) -> Vec<f32> {
    (0..count).map(|_| rng.normal()).collect()
}

fn noise(count: usize, rng: &mut Rng) -> Vec<u8> {
    (0..count).map(|_| rng.next_u64() as u8).collect()
}

/// Apart by no more than rounding, for sums of about `dim` terms of size 1.
fn near(a: f32, b: f32, dim: usize) -> bool {
    a == b || (a - b).abs() <= 1e-5 * (dim as f32).sqrt() * 4.0 + 1e-5 * a.abs().max(b.abs())
}

fn query(dim: usize, rng: &mut Rng) -> QueryCodes {
    let mut query = QueryCodes::new(dim);
    query.prepare(&gaussian(dim, rng));
    query
}

fn probe(rng: &mut Rng) -> Probe {
    let linear = Linear { f_min: 0.1, f_step: 1e-5, k_min: rng.normal(), k_step: 1e-5 };
    Probe { linear, base: rng.normal(), slack: 0.5, threshold: rng.normal() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 64 } else { 1024 }))]

    #[test]
    fn distances(dim in dims(), rows in 0usize..10, seed: u64) {
        let mut rng = Rng::new(seed);
        let (a, b) = (gaussian(dim, &mut rng), gaussian(dim, &mut rng));
        let block = gaussian(dim * rows, &mut rng);
        let (x, y) = (noise(dim, &mut rng), noise(dim, &mut rng));
        let plain = &plain::TABLE;
        for table in levels() {
            let halves: Vec<u8> = x.iter().zip(&y).flat_map(|(x, y)| [*x, if y & 0x7C == 0x7C { 0 } else { *y }]).collect();
            for (bytes, unpack, plainly) in [
                (&halves, table.unpack_halves, plain.unpack_halves),
                (&x, table.unpack_bytes, plain.unpack_bytes),
            ] {
                let (mut found, mut wanted) = (vec![1.0; dim], vec![2.0; dim]);
                // SAFETY: the level is there, and the lengths fit.
                unsafe {
                    unpack(bytes, &mut found);
                    plainly(bytes, &mut wanted);
                }
                prop_assert_eq!(found, wanted);
            }
            // SAFETY: the level is there, and the lengths fit.
            unsafe {
                prop_assert!(near((table.dot)(&a, &b), (plain.dot)(&a, &b), dim));
                prop_assert!(near((table.l2_squared)(&a, &b), (plain.l2_squared)(&a, &b), dim));
                prop_assert!(near((table.l1)(&a, &b), (plain.l1)(&a, &b), dim));
                prop_assert_eq!((table.sad)(&x, &y), (plain.sad)(&x, &y));
                for (ours, theirs) in
                    [(table.dot_rows, plain.dot_rows), (table.l2_rows, plain.l2_rows), (table.l1_rows, plain.l1_rows)]
                {
                    let (mut found, mut wanted) = (vec![0.0; rows], vec![0.0; rows]);
                    ours(&a, &block, &mut found);
                    theirs(&a, &block, &mut wanted);
                    prop_assert!(found.iter().zip(&wanted).all(|(a, b)| near(*a, *b, dim)), "{:?} {:?}", found, wanted);
                }
            }
        }
    }

    #[test]
    fn panels(dim in prop_oneof![9 => 1usize..80, 1 => 125usize..300], k in 1usize..110, rows in 0usize..115, seed: u64) {
        let mut rng = Rng::new(seed);
        let (c, x) = (gaussian(k * dim, &mut rng), gaussian(rows * dim, &mut rng));
        let panels = Panels::pack(&c, k, dim);
        for table in levels() {
            let (mut found, mut wanted) = (vec![0.0; rows * k], vec![0.0; rows * k]);
            let (mut places, mut best) = (vec![0; rows], vec![0.0; rows]);
            // SAFETY: the level is there, and the lengths fit.
            unsafe {
                (table.scores)(&panels, &x, &mut found);
                (plain::TABLE.scores)(&panels, &x, &mut wanted);
                (table.assign)(&panels, &x, &mut places, &mut best);
            }
            prop_assert!(found.iter().zip(&wanted).all(|(a, b)| near(*a, *b, dim)));
            for row in 0..rows {
                let scores = &found[row * k..(row + 1) * k];
                let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                prop_assert!(near(best[row], highest, dim), "{} {}", best[row], highest);
                prop_assert!(near(scores[places[row] as usize], highest, dim));
            }
        }
    }

    #[test]
    fn equal_centroids_give_the_lowest(k in 1usize..100, rows in 1usize..30) {
        let panels = Panels::pack(&vec![1.0; k * 3], k, 3);
        for table in levels() {
            let (mut places, mut best) = (vec![9; rows], vec![0.0; rows]);
            // SAFETY: the level is there, and the lengths fit.
            unsafe { (table.assign)(&panels, &vec![1.0; rows * 3], &mut places, &mut best) };
            prop_assert!(places.iter().all(|place| *place == 0));
        }
    }

    #[test]
    fn rounds_of_a_rotation(dim in prop_oneof![1usize..600, Just(768), Just(1536), Just(3000)], round in 0usize..4, seed: u64) {
        let mut rng = Rng::new(seed);
        let row = gaussian(dim, &mut rng);
        let signs: Vec<f32> = (0..dim).map(|_| if rng.chance(0.5) { 1.0 } else { -1.0 }).collect();
        let front = 1 << dim.ilog2();
        for table in levels() {
            let (mut found, mut wanted) = (row.clone(), row.clone());
            // SAFETY: the level is there, and the lengths fit.
            unsafe {
                (table.mix)(&mut found, &signs, front, round);
                (plain::TABLE.mix)(&mut wanted, &signs, front, round);
            }
            prop_assert!(found.iter().zip(&wanted).all(|(a, b)| near(*a, *b, 16)));
        }
    }

    #[test]
    fn making_codes(dim in dims(), width in widths(), scale in 0.1f32..100.0, seed: u64) {
        let mut rng = Rng::new(seed);
        let (r, c) = (gaussian(dim, &mut rng), gaussian(dim, &mut rng));
        let bytes = code_bytes(width, dim);
        let size = dim << width.bits();
        let (mut wanted_levels, mut wanted) = (vec![0; dim], vec![0; bytes]);
        let plain = &plain::TABLE;
        for table in levels() {
            let (mut levels, mut code) = (vec![0; dim], vec![0xAA; bytes]);
            // SAFETY: the level is there, and the lengths fit.
            unsafe {
                let scales = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0].map(|part| part * scale);
                let all = (table.trials)(width, &r, scales).into_iter().zip((plain.trials)(width, &r, scales));
                for (ours, theirs) in all {
                    prop_assert!(near(ours.0, theirs.0, size) && (ours.1 - theirs.1).abs() <= 1e-4 * theirs.1);
                }
                let ours = (table.quantise)(width, &r, &c, scale, &mut levels);
                let theirs = (plain.quantise)(width, &r, &c, scale, &mut wanted_levels);
                prop_assert!(near(ours[0], theirs[0], size) && near(ours[2], theirs[2], size * 4));
                prop_assert!((ours[1] - theirs[1]).abs() <= 1e-4 * theirs[1]);
                prop_assert_eq!(&levels, &wanted_levels);
                (table.pack)(width, &levels, &mut code);
                (plain.pack)(width, &levels, &mut wanted);
            }
            prop_assert_eq!(&code, &wanted);
        }
    }

    #[test]
    fn forms_of_a_query(dim in dims(), seed: u64) {
        let q = gaussian(dim, &mut Rng::new(seed));
        let (mut wanted, mut wanted_tables) = (vec![0; dim], vec![0; dim.div_ceil(4) * 16]);
        // SAFETY: plain code; the lengths fit.
        let sum = unsafe {
            (plain::TABLE.query_tables)(&q, 9.7, &mut wanted_tables);
            (plain::TABLE.query_bytes)(&q, 45.3, &mut wanted)
        };
        for table in levels() {
            let (mut bytes, mut tables) = (vec![0; dim], vec![0; dim.div_ceil(4) * 16]);
            // SAFETY: the level is there, and the lengths fit.
            unsafe {
                prop_assert_eq!((table.query_bytes)(&q, 45.3, &mut bytes), sum);
                (table.query_tables)(&q, 9.7, &mut tables);
                let (ours, theirs) = ((table.query_sizes)(&q), (plain::TABLE.query_sizes)(&q));
                prop_assert_eq!(ours[..2].to_vec(), theirs[..2].to_vec());
                prop_assert!((ours[2] - theirs[2]).abs() < 1e-4 * theirs[2]);
            }
            prop_assert_eq!(&bytes, &wanted);
            prop_assert_eq!(&tables, &wanted_tables);
        }
    }

    #[test]
    fn dots_of_any_bytes(dim in dims(), width in widths(), count in 0usize..14, spare in 0usize..5, seed: u64) {
        let mut rng = Rng::new(seed);
        let query = query(dim, &mut rng);
        let (bytes, kept) = (code_bytes(width, dim), 6);
        let stride = bytes + spare;
        // Exactly as long as it must be: a kernel that reads past it is found by the sanitizer or by a fault.
        let codes = noise(stride * (kept - 1) + bytes, &mut rng).into_boxed_slice();
        let starts: Vec<usize> = (0..count).map(|_| rng.below(kept as u64) as usize * stride).collect();
        let mut wanted = vec![0; count];
        // SAFETY: plain code; all codes lie inside.
        unsafe { (plain::TABLE.dots)(&query, width, &codes, &starts, &mut wanted) };
        for table in levels() {
            let mut sums = vec![0; count];
            // SAFETY: the level is there; all codes lie inside.
            unsafe { (table.dots)(&query, width, &codes, &starts, &mut sums) };
            for (start, sum) in starts.iter().zip(&sums) {
                // SAFETY: as above.
                prop_assert_eq!(unsafe { (table.dot_code)(&query, width, &codes[*start..][..bytes]) }, *sum);
            }
            prop_assert_eq!(&sums, &wanted, "{:?} {}", table.level, plane_bytes(1, dim));
        }
    }

    #[test]
    fn scans(dim in dims(), count in 1usize..5, seed: u64) {
        let mut rng = Rng::new(seed);
        let (query, mut probe) = (query(dim, &mut rng), probe(&mut rng));
        let bytes = block_bytes(dim);
        let blocks = noise(bytes * count, &mut rng).into_boxed_slice();
        let first = rng.below((count * BLOCK) as u64) as usize;
        let lanes = first..first + rng.below((count * BLOCK - first) as u64 + 1) as usize;
        let plain = &plain::TABLE;
        for table in levels() {
            let (mut sums, mut wanted_sums) = ([0; BLOCK], [0; BLOCK]);
            let (mut found, mut wanted) = ([0.0; BLOCK], [0.0; BLOCK]);
            // SAFETY: the level is there, and blocks have their size.
            unsafe {
                for block in blocks.chunks(bytes) {
                    (table.scan_sums)(&query, block, &mut sums);
                    (plain.scan_sums)(&query, block, &mut wanted_sums);
                    prop_assert_eq!(sums, wanted_sums);
                    let mask = (table.scan_block)(&query, block, &probe, &mut found);
                    let wanted_mask = (plain.scan_block)(&query, block, &probe, &mut wanted);
                    prop_assert!(found.iter().zip(&wanted).all(|(a, b)| near(*a, *b, dim * 20)));
                    prop_assert!((mask ^ wanted_mask).count_ones() <= 1, "{mask:x} {wanted_mask:x}");
                }
                let (mut ours, mut theirs) = (Survivors::default(), Survivors::default());
                probe.threshold = found[5];
                (table.scan)(&query, &blocks, &blocks[..bytes / 2], lanes.clone(), &probe, &mut ours);
                (plain.scan)(&query, &blocks, &blocks[..bytes / 2], lanes.clone(), &probe, &mut theirs);
                prop_assert!(ours.places.len().abs_diff(theirs.places.len()) <= 1);
                prop_assert!(ours.places.iter().all(|place| lanes.contains(&(*place as usize))));
                prop_assert!(ours.places.is_sorted() && ours.places.len() == ours.estimates.len());
            }
        }
    }

    #[test]
    fn centroids(dim in prop_oneof![1usize..200, Just(768)], k in 1usize..200, seed: u64) {
        let mut rng = Rng::new(seed);
        let shape = Centroids8::new(k, dim);
        let mut packed = vec![0; shape.bytes()].into_boxed_slice();
        shape.pack(&gaussian(k * dim, &mut rng), &gaussian(k, &mut rng), &mut packed);
        let q = noise(dim.next_multiple_of(4), &mut rng);
        let mut wanted = vec![0.0; k];
        // SAFETY: plain code; the lengths fit.
        unsafe { (plain::TABLE.centroids)(&shape, &q, 0.01, &packed, &mut wanted) };
        for table in levels() {
            let mut found = vec![0.0; k];
            // SAFETY: the level is there, and the lengths fit.
            unsafe { (table.centroids)(&shape, &q, 0.01, &packed, &mut found) };
            prop_assert!(found.iter().zip(&wanted).all(|(a, b)| near(*a, *b, dim)));
        }
    }

    #[test]
    fn one_centroid(fours in 0usize..200, seed: u64) {
        let mut rng = Rng::new(seed);
        let (q, lane) = (gaussian(fours * 4, &mut rng), noise(fours * 64 + 4, &mut rng));
        let q = q.as_chunks::<4>().0;
        // SAFETY: plain code.
        let wanted = unsafe { (plain::TABLE.along)(q, &lane) };
        for table in levels() {
            // SAFETY: the level is there, and the lengths fit.
            prop_assert_eq!(unsafe { (table.along)(q, &lane) }, wanted);
        }
    }

    #[test]
    fn finding_scores(len in 0usize..1500, seed: u64) {
        let mut rng = Rng::new(seed);
        let mut scores = gaussian(len, &mut rng);
        scores.iter_mut().filter(|_| rng.chance(0.01)).for_each(|score| *score = f32::NAN);
        let (mut wanted, mut wanted_best) = (vec![], [0.0; 256]);
        // SAFETY: plain code.
        let groups = unsafe {
            (plain::TABLE.at_least)(&scores, 0.5, &mut wanted);
            (plain::TABLE.group_best)(&scores, &mut wanted_best)
        };
        for table in levels() {
            let (mut found, mut best) = (vec![], [0.0; 256]);
            // SAFETY: the level is there.
            unsafe {
                (table.at_least)(&scores, 0.5, &mut found);
                prop_assert_eq!((table.group_best)(&scores, &mut best), groups);
            }
            prop_assert_eq!(&found, &wanted);
            prop_assert_eq!(best, wanted_best);
        }
    }

    #[test]
    fn the_best_are_the_best(len in 0usize..3000, n in 0usize..300, distinct in 1u64..5000, seed: u64) {
        let mut rng = Rng::new(seed);
        let scores: Vec<f32> = (0..len).map(|_| rng.below(distinct) as f32).collect();
        let mut wanted: Vec<u32> = (0..len as u32).collect();
        wanted.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        wanted.truncate(n);
        let mut found = vec![7];
        crate::select_best(&scores, n, &mut found);
        prop_assert_eq!(&found, &wanted);
        // Without an order, and with all that are as large as the last.
        let least = wanted.last().map(|at| scores[*at as usize]);
        crate::select_unordered(&scores, n, &mut found);
        let as_large = |at: &u32| least.is_some_and(|least| scores[*at as usize] >= least);
        prop_assert_eq!(found, (0..len as u32).filter(as_large).collect::<Vec<_>>());
    }
}

#[test]
fn the_largest_dimension_overflows_no_sum() {
    let dim = ramekin_base::limits::DIM_MAX;
    let mut query = QueryCodes::new(dim);
    query.prepare(&vec![1.0; dim]);
    let width = Width::new(8).unwrap();
    let code = vec![0xFF; code_bytes(width, dim)];
    assert!((query.dot(width, &code) - 127.5 * dim as f32).abs() < 1e-3 * dim as f32);
    let mut block = vec![0xFF; block_bytes(dim)];
    block_put_factors(dim, &[0; 32], &[0; 32], &mut block);
    for table in levels() {
        let mut sums = [0; BLOCK];
        // SAFETY: the level is there, and the block has its size.
        unsafe { (table.scan_sums)(&query, &block, &mut sums) };
        assert!(sums.iter().all(|sum| *sum == 31 * dim as u32 / 4), "{:?} {sums:?}", table.level);
    }
    let mut encoder = Encoder::new(dim);
    let mut code = vec![0; code_bytes(Width::ONE, dim)];
    assert!(encoder.encode(Width::ONE, &vec![1.0; dim], &vec![1.0; dim], &mut code).f.is_finite());
}
