//! Contractions against a plain scalar chain, bit for bit, and against f64.

use super::*;
use lanes_core::plan::{Precision, StorageId};
use proptest::prelude::*;
use std::sync::Arc;

/// Numbers in (-1, 1) with all mantissa bits in use.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn f32(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }

    fn f32s(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.f32()).collect()
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }
}

/// A contraction with operands that fit it.
#[derive(Debug)]
struct Case {
    contraction: Contraction,
    data: Vec<Vec<f32>>,
    seat_strides: Vec<usize>,
    out_seat_stride: usize,
    seats: usize,
}

/// How a case is made: `(taps, tap_len)` of each term.
#[derive(Clone, Debug)]
struct Spec {
    terms: Vec<(usize, usize)>,
    n: usize,
    positions: usize,
    seats: usize,
    bias: bool,
    activation: Activation,
    seed: u64,
}

impl Spec {
    /// One dense term.
    fn dense(k: usize, n: usize, rows: usize) -> Self {
        let activation = Activation::None;
        Self { terms: vec![(1, k)], n, positions: 1, seats: rows, bias: true, activation, seed: (k * n + rows) as u64 }
    }

    fn case(&self) -> Case {
        self.rounded(Precision::F32)
    }

    fn rounded(&self, precision: Precision) -> Case {
        let mut random = Random(self.seed ^ 0x5eed);
        let (mut terms, mut data, mut seat_strides) = (Vec::new(), Vec::new(), Vec::new());
        for (i, &(taps, tap_len)) in self.terms.iter().enumerate() {
            // Strides below the length overlap, as windows do; equal ones join; larger ones are dilated.
            let tap_stride = tap_len + [0, 0, 1, 5][random.below(4)];
            let position_stride = 1 + random.below(2 * taps * tap_len + 1);
            let offset = random.below(9);
            let term = Term { storage: StorageId(i as u32), offset, position_stride, taps, tap_stride, tap_len };
            let reach = offset + (self.positions - 1) * position_stride + (taps - 1) * tap_stride + tap_len;
            let shared = self.terms.len() > 1 && random.below(4) == 0;
            let seat_stride = if shared { 0 } else { reach + random.below(7) };
            data.push(random.f32s((self.seats - 1) * seat_stride + reach));
            seat_strides.push(seat_stride);
            terms.push(term);
        }
        let k: usize = terms.iter().map(Term::k).sum();
        let out_offset = random.below(5);
        let out_position_stride = self.n + [0, 0, 3][random.below(3)];
        let reach = out_offset + (self.positions - 1) * out_position_stride + self.n;
        let contraction = Contraction {
            label: "case".into(),
            terms,
            weights: random.f32s(k * self.n).into(),
            precision,
            bias: self.bias.then(|| random.f32s(self.n).into()),
            activation: self.activation,
            positions: self.positions,
            n: self.n,
            out: StorageId(99),
            out_offset,
            out_position_stride,
        };
        Case { contraction, data, seat_strides, out_seat_stride: reach + random.below(4), seats: self.seats }
    }
}

/// `x` as an operand, by the conversions of another crate.
fn rounded(x: f32, precision: Precision) -> f32 {
    if precision == Precision::Bf16 { half::bf16::from_f32(x).to_f32() } else { x }
}

/// What lies around results, and must stay: a NaN that no sum makes.
const CANARY: u32 = 0x7fc0_beef;

impl Case {
    fn slices(&self) -> Vec<TermSlice<'_>> {
        let both = self.data.iter().zip(&self.seat_strides);
        both.map(|(data, &seat_stride)| TermSlice { data, seat_stride }).collect()
    }

    /// The left operand's elements of one row, in order.
    fn left(&self, seat: usize, position: usize) -> Vec<f32> {
        let mut row = Vec::new();
        for (term, slice) in self.contraction.terms.iter().zip(self.slices()) {
            for tap in 0..term.taps {
                let at =
                    seat * slice.seat_stride + term.offset + position * term.position_stride + tap * term.tap_stride;
                row.extend_from_slice(&slice.data[at..at + term.tap_len]);
            }
        }
        row
    }

    fn out_at(&self, seat: usize, position: usize) -> usize {
        let c = &self.contraction;
        seat * self.out_seat_stride + c.out_offset + position * c.out_position_stride
    }

    fn out_len(&self) -> usize {
        self.out_at(self.seats - 1, self.contraction.positions - 1) + self.contraction.n + 3
    }

    /// The definition, one output after the other; canaries elsewhere.
    fn expected(&self) -> Vec<u32> {
        let c = &self.contraction;
        let mut out = vec![CANARY; self.out_len()];
        for seat in 0..self.seats {
            for position in 0..c.positions {
                let left: Vec<f32> = self.left(seat, position).into_iter().map(|a| rounded(a, c.precision)).collect();
                for column in 0..c.n {
                    let mut sum = 0.0f32;
                    for (k, a) in left.iter().enumerate() {
                        sum = a.mul_add(rounded(c.weights[k * c.n + column], c.precision), sum);
                    }
                    if let Some(bias) = &c.bias {
                        sum += bias[column];
                    }
                    let result = match c.activation {
                        Activation::Relu => loom_compiler::math::maximum(sum, 0.0),
                        Activation::Sigmoid => loom_compiler::math::logistic(sum),
                        Activation::Tanh => loom_compiler::math::tanh(sum),
                        Activation::Silu => loom_compiler::math::silu(sum),
                        _ => sum,
                    };
                    out[self.out_at(seat, position) + column] = result.to_bits();
                }
            }
        }
        out
    }

    fn run(&self, packed: &Packed) -> Vec<u32> {
        let mut out = vec![f32::from_bits(CANARY); self.out_len()];
        packed.run_checked(&self.slices(), self.seats, &mut out, self.out_seat_stride).unwrap();
        out.into_iter().map(f32::to_bits).collect()
    }
}

/// The instruction sets of this machine; the others are named in the test's output.
fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| {
        if !isa.available() {
            println!("skipped: this machine has no {isa}");
        }
        isa.available()
    })
}

/// Every instruction set gives the bits of the definition in every precision, and touches nothing else.
#[track_caller]
fn check(spec: &Spec) {
    for precision in [Precision::F32, Precision::Bf16] {
        let case = spec.rounded(precision);
        let expected = case.expected();
        for isa in isas() {
            let packed = Packed::with_isa(&case.contraction, isa).unwrap();
            let found = case.run(&packed);
            if let Some(at) = (0..expected.len()).find(|&at| found[at] != expected[at]) {
                let show = |bits: u32| format!("{} ({bits:08x})", f32::from_bits(bits));
                let (found, expected) = (show(found[at]), show(expected[at]));
                panic!("{isa} in {precision}: element {at} is {found}, expected {expected}: {spec:?}");
            }
        }
    }
}

fn activations() -> impl Strategy<Value = Activation> {
    use Activation::*;
    prop::sample::select(vec![None, Relu, Sigmoid, Tanh, Silu])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_contraction_is_one_chain_per_output(
        terms in prop::collection::vec((1usize..5, 1usize..40), 1..4),
        n in 1usize..70,
        positions in 1usize..6,
        seats in 1usize..9,
        bias in any::<bool>(),
        activation in activations(),
        seed in any::<u64>(),
    ) {
        check(&Spec { terms, n, positions, seats, bias, activation, seed });
    }
}

#[test]
fn every_row_count_and_tail() {
    for rows in 1..=40 {
        check(&Spec::dense(19, 16 + rows % 17, rows));
        check(&Spec::dense(7, 1 + rows % 3, rows));
    }
    for n in 1..=66 {
        for rows in [1, 2, 3, 5, 8, 13] {
            check(&Spec::dense(11, n, rows));
        }
    }
}

#[test]
fn shapes_of_streaming_models() {
    for (k, n) in [(387, 128), (384, 64), (64, 192), (43, 64), (128, 1), (64, 1), (1, 5), (3, 130), (256, 258)] {
        for rows in [1, 4, 33] {
            check(&Spec::dense(k, n, rows));
        }
    }
}

/// More k than a segment takes, and more terms: sums go through the output, in unequal pieces.
#[test]
fn sums_across_segments_are_still_one_chain() {
    for activation in [Activation::None, Activation::Relu, Activation::Tanh] {
        let spec = Spec { activation, ..Spec::dense(1300, 21, 5) };
        check(&spec);
        check(&Spec { terms: vec![(3, 301), (1, 2), (400, 1)], positions: 3, ..spec.clone() });
        check(&Spec { terms: vec![(1, 5); 19], positions: 2, ..spec });
    }
}

/// More rows than a block takes.
#[test]
fn many_rows() {
    check(&Spec { positions: 7, activation: Activation::Silu, ..Spec::dense(9, 20, 211) });
    check(&Spec::dense(1100, 3, 150));
}

#[test]
fn no_k_at_all_leaves_the_bias() {
    let case = Spec { terms: vec![], activation: Activation::Relu, ..Spec::dense(1, 11, 3) }.case();
    for isa in isas() {
        assert_eq!(case.run(&Packed::with_isa(&case.contraction, isa).unwrap()), case.expected());
    }
}

/// Any seat alone, and any split of rows and columns, writes the same bits as the whole.
#[test]
fn parts_equal_the_whole() {
    let spec = Spec { terms: vec![(3, 8), (1, 21)], positions: 3, ..Spec::dense(1, 75, 11) };
    parts(&spec.rounded(Precision::F32));
    parts(&spec.rounded(Precision::Bf16));
}

fn parts(case: &Case) {
    let expected = case.expected();
    for isa in isas() {
        let packed = Packed::with_isa(&case.contraction, isa).unwrap();
        let pointers: Vec<_> =
            case.slices().iter().map(|t| TermPtr { base: t.data.as_ptr(), seat_stride: t.seat_stride }).collect();
        for rows_at_once in [1, 2, 5, 33] {
            for columns_at_once in [packed.panel(), 3 * packed.panel(), 75] {
                let mut out = vec![f32::from_bits(CANARY); case.out_len()];
                let to = OutPtr { base: out.as_mut_ptr(), seat_stride: case.out_seat_stride };
                for row in (0..33).step_by(rows_at_once) {
                    for column in (0..75).step_by(columns_at_once) {
                        let rows = row..33.min(row + rows_at_once);
                        let columns = column..75.min(column + columns_at_once);
                        // SAFETY: `case` sizes its operands and result for all seats.
                        unsafe { packed.run_part(&pointers, to, rows, columns) }
                    }
                }
                let found: Vec<_> = out.into_iter().map(f32::to_bits).collect();
                assert_eq!(found, expected, "{isa}, {rows_at_once} rows and {columns_at_once} columns at once");
            }
        }
    }
}

/// The chain itself is no further from the true sum than its length allows.
#[test]
fn close_to_f64() {
    for k in [1, 64, 387, 1024] {
        let case = Spec { bias: false, ..Spec::dense(k, 17, 6) }.case();
        let c = &case.contraction;
        for isa in isas() {
            let found = case.run(&Packed::with_isa(c, isa).unwrap());
            for seat in 0..6 {
                let left = case.left(seat, 0);
                for column in 0..17 {
                    let products = left.iter().enumerate().map(|(k, &a)| a as f64 * c.weights[k * 17 + column] as f64);
                    let (sum, size) = products.fold((0.0, 0.0), |(s, m), p| (s + p, m + f64::abs(p)));
                    let found = f32::from_bits(found[case.out_at(seat, 0) + column]) as f64;
                    // Each of k roundings is at most half a unit of a partial sum, which `size` bounds.
                    let bound = k as f64 * size * f32::EPSILON as f64 / 2.0 + f64::MIN_POSITIVE;
                    assert!((found - sum).abs() <= bound, "{isa} k {k}: {found} for {sum}");
                }
            }
        }
    }
}

/// Infinities and NaN end in their own row and column, those of filled-up columns in none; `Relu` keeps NaN and makes
/// -0 into +0.
#[test]
fn special_values_stay_where_they_belong() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let contraction = |weights: Vec<f32>, activation| Contraction {
        label: "special".into(),
        terms: vec![Term { storage: StorageId(0), offset: 0, position_stride: 0, taps: 1, tap_stride: 0, tap_len: 2 }],
        weights: weights.into(),
        precision: Precision::F32,
        bias: None,
        activation,
        positions: 1,
        n: 3,
        out: StorageId(1),
        out_offset: 0,
        out_position_stride: 3,
    };
    let left = [nan, 1.0, inf, 1.0, -inf, 2.0, 1.0, 1.0];
    // A product below the smallest subnormal leaves the sum at -0.
    let tiny = f32::MIN_POSITIVE;
    for isa in isas() {
        let run = |weights, activation| {
            let packed = Packed::with_isa(&contraction(weights, activation), isa).unwrap();
            let mut out = vec![7.0; 12];
            packed.run_checked(&[TermSlice { data: &left, seat_stride: 2 }], 4, &mut out, 3).unwrap();
            out
        };
        let out = run(vec![1.0, 0.0, -1.0, 2.0, 3.0, 4.0], Activation::Relu);
        assert!(out[..3].iter().all(|x| x.is_nan()), "{isa}: {out:?}");
        assert!(out[3] == inf && out[4].is_nan() && out[5] == 0.0, "{isa}: {out:?}");
        assert!(out[6] == 0.0 && out[7].is_nan() && out[8] == inf, "{isa}: {out:?}");
        assert_eq!(out[9..], [3.0, 3.0, 3.0], "{isa}");
        let left_tiny = [tiny, 0.0];
        for (activation, bits) in [(Activation::None, 0x8000_0000u32), (Activation::Relu, 0)] {
            let packed = Packed::with_isa(&contraction(vec![-tiny; 6], activation), isa).unwrap();
            let mut out = [7.0f32; 3];
            packed.run_checked(&[TermSlice { data: &left_tiny, seat_stride: 2 }], 1, &mut out, 3).unwrap();
            // The second product is -0, which added to -0 stays so.
            assert_eq!(out.map(f32::to_bits), [bits; 3], "{isa} {activation:?}");
        }
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let good = Spec { positions: 2, ..Spec::dense(6, 5, 2) }.case();
    let refused = |change: fn(&mut Contraction), what: &str| {
        let mut contraction = good.contraction.clone();
        change(&mut contraction);
        let Err(DeviceError::Invalid { what: found }) = Packed::new(&contraction) else {
            panic!("accepted: {what}");
        };
        assert!(found.contains(what) && found.contains("case"), "{found}");
    };
    refused(|c| c.weights = Arc::new([0.0; 31]), "31 weights, expected 6 x 5");
    refused(|c| c.bias = Some(Arc::new([0.0; 4])), "a bias of 4, expected 5");
    refused(|c| c.n = 0, "no columns");
    refused(|c| c.out_position_stride = 4, "results 4 elements apart, expected at least 5");
    refused(|c| c.terms[0].offset = usize::MAX, "address space");
    refused(|c| c.terms[0].taps = usize::MAX, "address space");
    refused(|c| c.out_offset = usize::MAX / 8, "address space");

    let packed = Packed::new(&good.contraction).unwrap();
    let stride = good.out_seat_stride;
    let mut out = vec![0.0; good.out_len()];
    let slices = good.slices();
    assert!(packed.run_checked(&slices, 2, &mut out, stride).is_ok());
    let mut short = slices.clone();
    short[0].data = &short[0].data[1..];
    assert!(packed.run_checked(&short, 2, &mut out, stride).is_err());
    assert!(packed.run_checked(&[], 2, &mut out, stride).is_err());
    assert!(packed.run_checked(&slices, 3, &mut out, stride).is_err());
    assert!(packed.run_checked(&slices, 2, &mut out, 1).is_err());
    let least = packed.out_extent() + stride;
    assert!(packed.run_checked(&slices, 2, &mut out[..least - 1], stride).is_err());
}

/// The stretches of K name every element of the left operand once, in order.
#[test]
fn segments_cover_k_in_order() {
    let term = |offset, taps, tap_stride, tap_len| Term {
        storage: StorageId(0),
        offset,
        position_stride: 1,
        taps,
        tap_stride,
        tap_len,
    };
    let terms = [term(3, 2, 700, 600), term(0, 3, 4, 4), term(0, 0, 4, 4), term(0, 2, 9, 1)];
    let mut found = Vec::new();
    for segment in pack::segments(&terms) {
        assert_eq!(segment.start, found.len());
        for run in &segment.runs {
            found.extend((0..run.len).map(|i| (segment.terms[run.slot], run.offset + i)));
        }
    }
    let mut expected = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        for tap in 0..term.taps {
            expected.extend((0..term.tap_len).map(|c| (i, tap * term.tap_stride + c)));
        }
    }
    assert_eq!(found, expected);
}

/// One half of the positions with the weights of the other, as a two-dimensional convolution has it.
#[test]
fn weights_are_packed_once() {
    for n in [1, 5, 40] {
        let case = Spec { terms: vec![(1, 9)], positions: 4, ..Spec::dense(1, n, 3) }.case();
        let packed = Packed::new(&case.contraction).unwrap();
        let shared = Packed::sharing(&case.contraction, &packed).unwrap();
        assert!(Arc::ptr_eq(&packed.panels, &shared.panels));
        assert_eq!(case.run(&shared), case.expected());
        let narrower = Spec { terms: vec![(1, 9)], ..Spec::dense(1, n + 1, 3) }.case();
        let error = Packed::sharing(&narrower.contraction, &packed).err().unwrap().to_string();
        assert!(error.ends_with(&format!("9 x {} f32 weights, shared 9 x {n} f32", n + 1)), "{error}");
        let other = Contraction { precision: Precision::Bf16, ..case.contraction.clone() };
        let error = Packed::sharing(&other, &packed).err().unwrap().to_string();
        assert!(error.ends_with(&format!("9 x {n} bf16 weights, shared 9 x {n} f32")), "{error}");
    }
}

/// Rounded weights take half of the memory, but for what keeps panels apart.
#[test]
fn rounded_weights_take_half() {
    let [wide, narrow] = [Precision::F32, Precision::Bf16].map(|precision| {
        let case = Spec::dense(512, 160, 1).rounded(precision);
        Packed::new(&case.contraction).unwrap().weight_bytes()
    });
    assert!(narrow * 100 < wide * 51, "{narrow} bytes, {wide} in f32");
}
