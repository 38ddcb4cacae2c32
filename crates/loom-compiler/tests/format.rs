//! Formatting changes layout alone, once, and to the same text whatever the layout was.

mod common;

use std::fmt::Write as _;

use common::layout::formatted;
use common::programs::ALL;
use common::single;
use proptest::prelude::*;

/// Another layout of a canonical text: each run of space and each place beside punctuation is drawn from `draws`. Whether
/// a comment has a line of its own stays.
fn scramble(text: &str, mut draws: impl FnMut(usize) -> usize) -> String {
    const SPACES: [&str; 6] = [" ", "\n", "\t", "\r\n", "  \n \n", "   "];
    let bytes = text.as_bytes();
    let mut out = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'"' => {
                let mut end = at + 1;
                while bytes[end] != b'"' {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                end + 1
            }
            b'/' => at + text[at..].find('\n').unwrap() + 1,
            b' ' | b'\n' => {
                let end = at + bytes[at..].iter().take_while(|byte| b" \n".contains(byte)).count();
                let beside = |byte: u8| b"(){}[]<=:,|".contains(&byte);
                let bare = end == bytes.len() || beside(bytes[at - 1]) || beside(bytes[end]);
                if bytes.get(end) == Some(&b'/') {
                    // A line feed before a comment is all that says where it belongs.
                    out += if text[at..end].contains('\n') { "\n\t" } else { "\t " };
                } else if !bare || draws(2) == 0 {
                    out += SPACES[draws(SPACES.len())];
                }
                at = end;
                continue;
            }
            byte => {
                // An arrow is one token, and a name would take its dash.
                let open = b"(){}[]<=:,|".contains(&byte);
                let next = bytes.get(at + 1).copied().unwrap_or(b' ');
                let close = b")}],|:".contains(&next);
                out.push(char::from(byte));
                at += 1;
                if (open || close) && !b" \n".contains(&next) && draws(4) == 0 {
                    out += SPACES[draws(SPACES.len())];
                }
                continue;
            }
        };
        out += &text[at..end];
        at = end;
    }
    out
}

/// The corpus: the shared kernels, and one text of what they do not use.
fn corpus() -> Vec<String> {
    ALL.iter().map(|(text, _)| (*text).to_owned()).chain([WIDE.to_owned()]).collect()
}

/// One of each layout that the language has. It is canonical as it stands.
const WIDE: &str = r#"// A file begins with words.
//
// And more.
#packed = #family<width=4, mode=fast>
amdgpu.target<gfx11-generic> @t {subgroup_size = 32} // behind a record
target.generic<reference> @u {abi = "a  b // \" c", list = [1, -2], nested = {deep = #enc<a=1>}}
config.decl @rows.width : %v: index where [range(%v, 1, 4096), multiple_of(%v, 2)]
config.def @x.y = -3 : i32

// Its own.
func.def pure inline @f(%a: f32, %b: vector<2x4xf32>) -> (f32, vector<2x4xf32>) {
  func.return %a, %b : f32, vector<2x4xf32>
}

func.def @empty() {}

kernel.def target(@t) export("k") @k(%n: index, %m: index) {
  %one = index.constant 1 : index
  kernel.launch.config workgroups(%n, %one, %one) workgroup_size(%one, 4, 1) : index
} launch(%n: index, %b: buffer) where [ge(%n, 0)] { // behind a brace
  // first
  %base = index.constant 0 : offset
  %m = index.assume %n [range(%n, 0, 7)] : index
  %view = buffer.view %b[%base] : buffer -> view<[%m]x4xf32, #dense>
  %l = encoding.layout.strided [%m, 1] : encoding<layout>
  %r, %s = scf.for %i = [0 to %m step 1](%p = %m, %q = %m : index, index) -> (index, index) unroll(2) {
    %x = scalar.addf<reassoc|nnan> %f, %f : f32 loc("file.py":3:4)
    scf.yield %q, %p : index, index
  }
  scf.switch %m -> (f32) {
    // the first case
    case 0 {
      scf.yield %a : f32
    }
    case 3 { // the second
      scf.if %c {
        scf.yield
      } else {
        scf.yield
        // last of a region
      }
    }
    default {
      scf.yield %a : f32
    }
    // last of the cases
  }
  %y = scf.lookup %m {0 = (%x, %y), 2 = (%u, %v)} default(%p, %q) : index, f32
  %w = scf.while(%st = %m : i32) -> (i32) {
    scf.condition %go, %st : i1, i32
  } do(%st: i32) {
    scf.yield %st : i32
  }
  view.store %x, %view[%m, 0] {align = 4} : f32, view<[%m]x4xf32, %l>
  cfg.region %m {
    cfg.cond_br %c, ^then, ^else
  ^then:
    cfg.br ^else(%m: i32)
  ^else(%z: i32, %zz: vector<4xf32>):
    kernel.return
  }
  kernel.return
  // before the end
}

// At the end.
"#;

#[test]
fn what_is_canonical_stays() {
    assert_eq!(formatted(WIDE).unwrap(), WIDE);
    // Kernels written by hand differ only in what lines are blank.
    for (text, _) in ALL {
        let formatted = formatted(text).unwrap();
        let lines = |text: &str| text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(text), lines(&formatted));
    }
    assert_eq!(formatted("").unwrap(), "");
    assert_eq!(formatted(" \n\t").unwrap(), "");
    assert_eq!(formatted("\n\n  // alone  ").unwrap(), "// alone\n");
}

#[test]
fn layout_is_chosen() {
    let gives = |source: &str, expected: &str| assert_eq!(formatted(source).unwrap(), expected);
    gives(
        "func.def@f(%a:f32)->(f32){func.return%a:f32}",
        "func.def @f(%a: f32) -> (f32) {\n  func.return %a : f32\n}\n",
    );
    // What stands in a shape is text: an extent of 0 and a type, and not a hexadecimal number.
    gives(
        "func.decl @f(%a: view< 0 x [ %n ] // rows\n x f32 , #dense >)",
        "// rows\nfunc.decl @f(%a: view<0x[%n]xf32, #dense>)\n",
    );
    gives("func.decl @f() {a = other<0 x f32>}", "func.decl @f() {a = other<0 x f32>}\n");
    // No shape: two numbers do not become one.
    gives("func.decl @f(%a: vector<1 2xf32>)", "func.decl @f(%a: vector<1 2 xf32>)\n");
    // Comments inside a line go above it, in order, and into the region that the line closes.
    gives(
        "func.def @f() { // a\n x.y %a, // b\n %b // c\n // d\n} // e\n else { // f\n} // g",
        "func.def @f() { // a\n  // b\n  x.y %a, %b // c\n  // d\n  // e\n} else { // f\n} // g\n",
    );
    gives(
        "config.def @a = 1 : i32\nfunc.def @f() {\n\n\n x.y\n\n x.y }\n\n\n\nconfig.def @b = 1 : i32\n\n\nconfig.def @c = 1 : i32 ",
        "config.def @a = 1 : i32\n\nfunc.def @f() {\n  x.y\n  x.y\n}\n\nconfig.def @b = 1 : i32\nconfig.def @c = 1 : i32\n",
    );
    gives("func.decl @f()\r\n\r\n// a\r\n\r\nfunc.decl @g()\r\n", "func.decl @f()\n// a\nfunc.decl @g()\n");
}

#[test]
fn nesting_to_the_limit_is_formatted() {
    for (open, close, depth) in
        [("scf.if %t {", "}", 60), ("scf.switch %t { case 0 {x.y ", "}}", 30), ("x.y (", ")", 60)]
    {
        let body = format!("%t = scalar.constant true : i1\n{}{}", open.repeat(depth), close.repeat(depth));
        assert!(formatted(&single("", &body)).is_some());
    }
}

/// Pieces that texts are made of; the first ones are rare together and matter to layout.
const PIECES: [&str; 44] = [
    "// c\n",
    "\n// d\n",
    "\n",
    "\n\n",
    "{",
    "}",
    "{}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    "|",
    "->",
    ":",
    ",",
    "=",
    "^l",
    "^l:",
    "case 0",
    "else",
    "do",
    "loc(\"f\":3:4)",
    "%a",
    "%a =",
    "@k",
    "#e",
    "0",
    "-1",
    "0x7f",
    "1.5",
    "-inf",
    "\"s // \\\"\"",
    "f32",
    "view<[%a]x4xf32>",
    "vector<",
    "2 x",
    "xf32",
    "scf.if",
    "scf.yield",
    "index.add",
    "func.def",
    "kernel.return",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_layout_gives_one_text(which in 0..6usize, draws in prop::collection::vec(any::<u8>(), 64..512)) {
        let text = formatted(&corpus()[which]).unwrap();
        let mut draws = draws.iter().cycle();
        let other = scramble(&text, |below| usize::from(*draws.next().unwrap()) % below);
        prop_assert_eq!(formatted(&other), Some(text), "{}", other);
    }

    /// A canonical text with pieces put in, and words dropped or doubled.
    #[test]
    fn edits(which in 0..6usize, edits in prop::collection::vec((any::<u16>(), 0..PIECES.len() + 2), 1..5)) {
        let corpus = corpus();
        let mut words: Vec<&str> = corpus[which].split_inclusive([' ', '\n', ',', '(', ')', '<', '>', '[', ']']).collect();
        for (at, edit) in edits {
            let at = usize::from(at) % words.len();
            match edit.checked_sub(2) {
                Some(piece) => words.insert(at, PIECES[piece]),
                None if edit == 0 => drop(words.remove(at)),
                None => words.insert(at, words[at]),
            }
        }
        formatted(&words.concat());
    }

    #[test]
    fn soups(picks in prop::collection::vec((0..PIECES.len(), any::<bool>()), 0..40)) {
        let mut source = String::new();
        for (pick, space) in picks {
            let _ = write!(source, "{}{}", PIECES[pick], if space { " " } else { "" });
        }
        formatted(&source);
        formatted(&format!("func.def @f() {{ {source} }}"));
        formatted(&format!("scf.if {source} }}"));
    }
}
