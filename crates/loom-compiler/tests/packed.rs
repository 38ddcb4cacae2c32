//! Packed lanes against values worked out by hand: what a wrong sign, format, order, tie or width would change.

mod common;

use common::{single, specialise};
use loom_compiler::interp::{self, Argument, Limits};
use loom_compiler::launch::Geometry;

/// The 32-bit elements that `body` stores through `%out`, a view of four.
fn stored(body: &str) -> [i32; 4] {
    let body = format!("%out = buffer.view %y[%base] : buffer -> view<4xi32>\n{body}");
    let kernel = specialise(&single("%y: buffer", &body), "k", &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let mut bytes = [0u8; 16];
    let geometry = Geometry { workgroups: [1; 3], workgroup_size: kernel.workgroup_size };
    interp::run(&kernel, geometry, &mut [Argument::Buffer(&mut bytes)], Limits::default()).unwrap();
    let mut words = bytes.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap()));
    std::array::from_fn(|_| words.next().unwrap())
}

/// `%name`, a vector of i32 with these lanes.
fn words(name: &str, lanes: &[i64]) -> String {
    let each = lanes.iter().enumerate().map(|(at, lane)| format!("%{name}{at} = scalar.constant {lane} : i32\n"));
    let names: Vec<String> = (0..lanes.len()).map(|at| format!("%{name}{at}")).collect();
    let each: String = each.collect();
    format!("{each}%{name} = vector.from_elements {} : vector<{}xi32>\n", names.join(", "), lanes.len())
}

fn refused(body: &str, says: &str) {
    let errors = specialise(&single("%y: buffer", body), "k", &[]).map(drop).expect_err("it is refused").to_string();
    assert!(errors.contains(says), "{errors}");
}

/// The first word of `dot*<ab>` is the first operand's. All bits of `a` are ones, every part of `b` is 2.
#[test]
fn each_factor_has_its_own_sign() {
    let bytes = "%a = vector.constant -1 : vector<4xi8>\n%b = vector.constant 2 : vector<4xi8>\n\
                 %acc = vector.constant 1 : vector<1xi32>\n";
    let nibbles = "%a = vector.constant -1 : vector<1xi32>\n%b = vector.constant 572662306 : vector<1xi32>\n\
                   %acc = vector.constant 1 : vector<1xi32>\n";
    for (operands, op, types, expected) in [
        (bytes, "dot4i<u8s8>", "vector<4xi8>, vector<4xi8>, vector<1xi32>", 1 + 4 * 255 * 2),
        (bytes, "dot4i<s8u8>", "vector<4xi8>, vector<4xi8>, vector<1xi32>", 1 - 4 * 2),
        (nibbles, "dot8i4<u4s4>", "vector<1xi32>", 1 + 8 * 15 * 2),
        (nibbles, "dot8i4<s4u4>", "vector<1xi32>", 1 - 8 * 2),
    ] {
        let body = format!(
            "{operands}%r = vector.{op} %a, %b, %acc : {types}\nvector.store %r, %out[0] : vector<1xi32>, view<4xi32>"
        );
        assert_eq!(stored(&body)[0], expected, "{op}");
    }
}

/// 0x38 is 1 as E4M3 and 1/2 as E5M2, 0x44 is 3 and 4; 0x40 is 2 as E4M3, 0x3c is 1 as E5M2. Four of a word make a sum.
#[test]
fn eight_bit_floats_have_the_format_and_the_lane_they_are_in() {
    let dot = |a: &[i64], b: &[i64]| {
        let n = a.len();
        let body = format!(
            "{}{}%acc = vector.constant 0.0 : vector<{n}xf32>\n\
             %s = vector.dot4f8<fp8bf8> %a, %b, %acc : vector<{n}xi32>, vector<{n}xf32>\n\
             %r = vector.bitcast %s : vector<{n}xf32> to vector<{n}xi32>\n\
             vector.store %r, %out[0] : vector<{n}xi32>, view<4xi32>",
            words("a", a),
            words("b", b)
        );
        stored(&body).map(|word| f32::from_bits(word as u32))
    };
    assert_eq!(dot(&[0x3838_3838], &[0x4444_4444])[0], 16.0);
    assert_eq!(dot(&[0x3838_3838, 0x4040_4040], &[0x3c3c_3c3c; 2])[..2], [4.0, 8.0]);
}

#[test]
fn fields_keep_their_sign_and_their_width() {
    let body = "%x = vector.constant -1 : vector<1xi8>\n\
                %s = vector.bitfield.extracts %x {offset = 0, width = 4} : vector<1xi8> -> vector<1xi32>\n\
                %u = vector.bitfield.extractu %x {offset = 0, width = 8} : vector<1xi8> -> vector<1xi32>\n\
                %f = vector.constant 255 : vector<1xi32>\n%z = vector.constant 0 : vector<1xi32>\n\
                %i = vector.bitfield.insert %f into %z {offset = 4, width = 4} : vector<1xi32>, vector<1xi32>\n\
                %p = vector.bitunpacks<4> %x : vector<1xi8> -> vector<2xi32>\n\
                %h = vector.slice %p[1] : vector<2xi32> -> vector<1xi32>\n\
                vector.store %s, %out[0] : vector<1xi32>, view<4xi32>\nvector.store %u, %out[1] : vector<1xi32>, view<4xi32>\n\
                vector.store %i, %out[2] : vector<1xi32>, view<4xi32>\nvector.store %h, %out[3] : vector<1xi32>, view<4xi32>";
    assert_eq!(stored(body), [-1, 255, 0xf0, -1]);
}

/// Thresholds 1 and 2: of a value on the first, and of a NaN.
#[test]
fn bins_say_where_ties_and_nans_go() {
    for (options, expected) in [
        ("nan = zero, tie = lower", [0, 0]),
        ("nan = max, tie = lower", [0, 2]),
        ("nan = zero, tie = upper", [1, 0]),
        ("nan = max, tie = upper", [1, 2]),
    ] {
        let body = format!(
            "%one = scalar.constant 1.0 : f32\n%two = scalar.constant 2.0 : f32\n%nan = scalar.constant nan : f32\n\
             %x = vector.from_elements %one, %nan : vector<2xf32>\n%t = vector.from_elements %one, %two : vector<2xf32>\n\
             %q = vector.table.quantize %x, %t {{{options}}} : vector<2xf32>, vector<2xf32> -> vector<2xi32>\n\
             vector.store %q, %out[0] : vector<2xi32>, view<4xi32>"
        );
        assert_eq!(stored(&body)[..2], expected, "{options}");
    }
}

/// 0 + 1e8 − 1e8 + 1 is 1; from the other end it is 0, for 1 is lost beside 1e8.
#[test]
fn rows_are_added_from_the_first() {
    let body = "%big = scalar.constant 1.0e8 : f32\n%less = scalar.constant -1.0e8 : f32\n%one = scalar.constant 1.0 : f32\n\
                %v = vector.from_elements %big, %big, %less, %less, %one, %one : vector<3x2xf32>\n\
                %z = vector.constant 0.0 : vector<2xf32>\n\
                %s = vector.reduce.axes<addf> %v, %z axes [0] : vector<3x2xf32>, vector<2xf32>\n\
                %r = vector.bitcast %s : vector<2xf32> to vector<2xi32>\n\
                vector.store %r, %out[0] : vector<2xi32>, view<4xi32>";
    assert_eq!(stored(body)[..2], [1.0f32.to_bits() as i32; 2]);
}

#[test]
fn shapes_and_widths_that_do_not_fit_are_refused() {
    refused(
        "%a = vector.constant 1 : vector<2x4xi8>\n%acc = vector.constant 1 : vector<3x1xi32>\n\
         %r = vector.dot4i<s8s8> %a, %a, %acc : vector<2x4xi8>, vector<2x4xi8>, vector<3x1xi32>",
        "a quarter as many i32",
    );
    refused(
        "%f = vector.constant 1 : vector<1xi8>\n%b = vector.constant 1 : vector<1xi32>\n\
         %r = vector.bitfield.insert %f into %b {offset = 0, width = 16} : vector<1xi8>, vector<1xi32>",
        "i8 has no 16 bits",
    );
    refused(
        "%t = vector.constant 0.0 : vector<512xf32>\n%i = vector.constant 0 : vector<1xi8>\n\
         %r = vector.table.lookup %t[%i] : vector<512xf32>, vector<1xi8> -> vector<1xf32>",
        "do not reach 512 entries",
    );
    refused(
        "%x = vector.constant 0.0 : vector<1xf32>\n%t = vector.constant 0.0 : vector<256xf32>\n\
         %r = vector.table.quantize %x, %t : vector<1xf32>, vector<256xf32> -> vector<1xi8>",
        "257 bins do not fit i8",
    );
}
