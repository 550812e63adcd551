//! What the pieces mean, at whatever level the machine offers: estimates meet the truth, packings come back.

use ramekin_base::Rng;
use ramekin_vecmath::*;

const DIMS: [usize; 9] = [1, 2, 3, 25, 100, 257, 768, 1536, 3000];

fn gaussian(count: usize, rng: &mut Rng) -> Vec<f32> {
    (0..count).map(|_| rng.normal()).collect()
}

fn widths() -> impl Iterator<Item = Width> {
    (1..=8).map(|bits| Width::new(bits).expect("1 to 8 are allowed"))
}

#[test]
fn a_rotation_keeps_inner_products_and_is_the_same_each_time() {
    let mut rng = Rng::new(1);
    for dim in DIMS {
        let rotation = Rotation::new(dim, 7);
        let (a, b) = (gaussian(dim, &mut rng), gaussian(dim, &mut rng));
        let (mut ra, mut rb, mut again) = (vec![0.0; dim], vec![0.0; dim], vec![0.0; dim]);
        rotation.rotate(&a, &mut ra);
        rotation.rotate(&b, &mut rb);
        let tolerance = 1e-4 * norm(&a) * norm(&b);
        assert!((dot(&a, &b) - dot(&ra, &rb)).abs() < tolerance, "dim {dim}");
        assert!((norm(&a) - norm(&ra)).abs() < 1e-4 * norm(&a), "dim {dim}");
        Rotation::new(dim, 7).rotate(&a, &mut again);
        assert_eq!(ra, again);
    }
}

#[test]
fn a_rotation_spreads_a_single_dimension() {
    for dim in [100, 256, 257, 300, 768, 1000, 3000] {
        let rotation = Rotation::new(dim, 3);
        for at in [0, dim / 2, dim - 1] {
            let mut x = vec![0.0; dim];
            x[at] = 1.0;
            let mut out = vec![0.0; dim];
            rotation.rotate(&x, &mut out);
            let largest = out.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            assert!(largest < 6.0 / (dim as f32).sqrt(), "dim {dim}: {largest}");
        }
    }
}

#[test]
fn codes_point_along_the_residual_and_estimate_without_bias() {
    let mut rng = Rng::new(2);
    // The cosines that a normal residual of many dimensions reaches (1 bit: sqrt(2 / pi)).
    let least = [0.79, 0.93, 0.98, 0.993, 0.998, 0.9994, 0.9998, 0.99993];
    for width in widths() {
        let dim = 768;
        let mut encoder = Encoder::new(dim);
        let mut code = vec![0; code_bytes(width, dim)];
        let (mut error, mut size) = (0.0f64, 0.0f64);
        for _ in 0..200 {
            let (r, q, c) = (gaussian(dim, &mut rng), gaussian(dim, &mut rng), gaussian(dim, &mut rng));
            let found = encoder.encode(width, &r, &c, &mut code);
            assert!(found.cosine > least[width.bits() as usize - 1] - 0.03, "{width:?} {}", found.cosine);
            let mut query = QueryCodes::new(dim);
            query.prepare(&q);
            let exact = dot_f32(width, &code, &q);
            let spread = norm(&q) * (norm(&r) / found.f);
            assert!((query.dot(width, &code) - exact).abs() < 0.01 * spread, "{width:?}");
            assert!((dot_f32(width, &code, &c) - found.along).abs() < 1e-3 * spread);
            assert!((found.f * dot_f32(width, &code, &r) / found.norm_squared - 1.0).abs() < 1e-3);
            error += f64::from(found.f * exact - dot(&q, &r));
            size += f64::from(norm(&q) * norm(&r));
        }
        assert!((error / size).abs() < 0.01, "{width:?} {}", error / size);
    }
}

#[test]
fn codes_err_little_more_than_the_best_there_are() {
    let mut rng = Rng::new(8);
    // Mean sine between residual and code at 100 dimensions, the best of 400 scales each: .338, .185, .0242, .0059.
    for (bits, most) in [(2, 0.341), (3, 0.187), (6, 0.0250), (8, 0.0063)] {
        let width = Width::new(bits).expect("1 to 8 are allowed");
        let mut code = vec![0; code_bytes(width, 100)];
        let mut sum = 0.0;
        for _ in 0..500 {
            let found = Encoder::new(100).encode(width, &gaussian(100, &mut rng), &[0.0; 100], &mut code);
            sum += (1.0 - f64::from(found.cosine).powi(2)).sqrt();
        }
        assert!(sum / 500.0 < most, "{bits} bits: {}", sum / 500.0);
    }
}

#[test]
fn a_code_decodes_to_what_was_packed() {
    let mut rng = Rng::new(3);
    for dim in DIMS {
        for width in widths() {
            let r = gaussian(dim, &mut rng);
            let mut code = vec![0; code_bytes(width, dim)];
            assert!(code.len() * 8 <= dim * width.bits() as usize + 24, "not tight");
            let found = Encoder::new(dim).encode(width, &r, &r, &mut code);
            let mut values = vec![0.0; dim];
            decode(width, &code, &mut values);
            for (x, value) in r.iter().zip(&values) {
                assert!((*value > 0.0) == (*x >= 0.0), "dim {dim} {width:?}: {x} became {value}");
            }
            assert!((dot(&r, &values) - found.along).abs() <= 1e-4 * found.along.abs());
        }
    }
}

#[test]
fn residuals_without_length_or_bounds_give_no_nonsense() {
    for x in [0.0, f32::MAX, 1e-30, f32::MIN_POSITIVE / 4.0] {
        for width in widths() {
            let r = vec![x; 10];
            let mut code = vec![0; code_bytes(width, 10)];
            let found = Encoder::new(10).encode(width, &r, &[1.0; 10], &mut code);
            assert!(found.f.is_finite() && found.cosine.is_finite() && found.norm_squared.is_finite(), "{x} {found:?}");
        }
    }
}

#[test]
fn blocks_scan_as_single_codes_do() {
    let mut rng = Rng::new(4);
    for dim in DIMS {
        let bytes = code_bytes(Width::ONE, dim);
        let mut encoder = Encoder::new(dim);
        let (mut codes, mut fs, mut ks) = (vec![0; bytes * 70], vec![], vec![]);
        for code in codes.chunks_exact_mut(bytes) {
            let found = encoder.encode(Width::ONE, &gaussian(dim, &mut rng), &vec![0.0; dim], code);
            fs.push(found.f);
            ks.push(rng.normal());
        }
        let linear = Linear::fit(&fs, &ks);
        let steps: Vec<_> = fs.iter().zip(&ks).map(|(f, k)| linear.quantise(*f, *k)).collect();
        let (f16s, k16s): (Vec<u16>, Vec<u16>) = steps.iter().copied().unzip();
        let mut blocks = vec![0; 3 * block_bytes(dim)];
        for (at, block) in blocks.chunks_exact_mut(block_bytes(dim)).enumerate() {
            let range = at * 32..(at * 32 + 32).min(70);
            let code = &codes[range.start * bytes..range.end * bytes];
            pack_block(dim, code, &f16s[range.clone()], &k16s[range.clone()], block);
            let mut back = vec![0; bytes];
            for lane in 0..range.len() {
                assert_eq!(unpack_lane(dim, block, lane, &mut back), steps[range.start + lane]);
                assert_eq!(back, codes[(range.start + lane) * bytes..][..bytes]);
            }
        }
        let q = gaussian(dim, &mut rng);
        let mut query = QueryCodes::new(dim);
        query.prepare(&q);
        let mut probe = Probe { linear, base: 0.5, slack: 0.0, threshold: f32::NEG_INFINITY };
        let mut found = Survivors::default();
        query.scan(&blocks, 5..70, &probe, &mut found);
        assert_eq!(found.places, (5..70).collect::<Vec<u32>>());
        for (place, estimate) in found.places.iter().zip(&found.estimates) {
            let at = *place as usize;
            let exact = 0.5 + fs[at] * dot_f32(Width::ONE, &codes[at * bytes..][..bytes], &q) + ks[at];
            assert!((exact - estimate).abs() < 0.05 * norm(&q) * norm(&q) + 0.05, "dim {dim}: {exact} {estimate}");
            let (one, margin) =
                query.scan_one(&blocks[at / 32 * block_bytes(dim)..][..block_bytes(dim)], at % 32, &probe);
            assert!((one - estimate).abs() <= 1e-4 * (1.0 + one.abs()) && margin == 0.0);
        }
        let mut sorted = found.estimates.clone();
        sorted.sort_by(f32::total_cmp);
        probe.threshold = sorted[30];
        query.scan(&blocks, 5..70, &probe, &mut found);
        assert!(found.estimates[65..].iter().all(|e| *e > sorted[30]));
        let above = sorted.iter().filter(|e| **e > sorted[30]).count();
        assert_eq!(found.len(), 65 + above);
    }
}

#[test]
fn centroids_in_bytes_score_as_floats_do() {
    let mut rng = Rng::new(5);
    for (k, dim) in [(1, 1), (17, 25), (100, 100), (33, 768)] {
        let centroids = gaussian(k * dim, &mut rng);
        let bias: Vec<f32> = centroids.chunks(dim).map(|c| dot(c, c) / 2.0).collect();
        let shape = Centroids8::new(k, dim);
        let mut packed = vec![0; shape.bytes()];
        shape.pack(&centroids, &bias, &mut packed);
        let q = gaussian(dim, &mut rng);
        let (mut room, mut out) = (vec![], vec![0.0; k]);
        shape.scores(&q, &packed, &mut room, &mut out);
        let mut back = vec![0.0; dim];
        for (at, ((c, bias), score)) in centroids.chunks(dim).zip(&bias).zip(&out).enumerate() {
            let exact = dot(&q, c) - bias;
            let one = shape.along(&q, &packed, at) - bias;
            shape.unpack(&packed, at, &mut back);
            assert!((dot(&q, &back) - bias - one).abs() < 1e-4 * norm(&q) * norm(c) + 1e-4 * bias);
            assert!((one - score).abs() < 0.01 * norm(&q) * norm(c) + 1e-4 * bias);
            assert!((exact - score).abs() < 0.02 * norm(&q) * norm(c) + 1e-4 * bias, "{exact} {score}");
        }
    }
}

#[test]
fn panels_find_the_nearest() {
    let mut rng = Rng::new(6);
    for (rows, k, dim) in [(1, 1, 1), (7, 31, 2), (50, 70, 25), (40, 100, 100), (13, 33, 768)] {
        let (x, c) = (gaussian(rows * dim, &mut rng), gaussian(k * dim, &mut rng));
        let (mut best, mut scores) = (vec![0; rows], vec![0.0; rows]);
        Panels::pack(&c, k, dim).assign(&x, &mut best, &mut scores);
        for (row, (best, score)) in x.chunks(dim).zip(best.iter().zip(&scores)) {
            let distances: Vec<f32> = c.chunks(dim).map(|c| l2_squared(row, c)).collect();
            let nearest = distances.iter().copied().fold(f32::INFINITY, f32::min);
            let tolerance = 1e-3 + 1e-4 * nearest;
            assert!(distances[*best as usize] <= nearest + tolerance);
            assert!((dot(row, row) - 2.0 * score - nearest).abs() <= tolerance);
        }
    }
}

#[test]
fn the_best_are_found_in_order() {
    let scores = [1.0, f32::NAN, 3.0, 3.0, -1.0, f32::NEG_INFINITY];
    let mut out = vec![];
    select_best(&scores, 3, &mut out);
    assert_eq!(out, [2, 3, 0]);
    select_best(&scores, 10, &mut out);
    assert_eq!(out, [2, 3, 0, 4, 1, 5]);
    select_best(&scores, 0, &mut out);
    assert!(out.is_empty());
}
