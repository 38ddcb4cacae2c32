//! Contractions of operands rounded to bfloat16, as Loom for tensor cores: every element of the result is a sum in one order,
//! whatever the number of rows.
//!
//! ```text
//! weights [n, k], tiles of 16×32 in one piece ──> fragment lhs ─┐
//! rows, rounded ──> workgroup memory [row, k] ──> fragment rhs ─┴─> sums [n, row] ──> workgroup memory ──> bias, activation, store
//! ```
//!
//! - The weights are the left operand: the side of 16, filled from one row up. Rows are the right one's columns.
//! - K is cut into runs as [`SUMS`] says, a run into steps of [`DEPTH`], filled up with zeros; steps ascend within a run, sums of runs
//!   are added ascending. A step is one product of the IR, which hardware adds in an order of its own, the same for every column.
//!   The number of rows chooses the tile, and with it whether runs go side by side or one after the other, and never the order.
//! - Text and layout are one for every tile, so that what holds on the interpreter holds wherever a product is a product.
//! - Not here: 32-bit operands (`contract`).

use crate::contract::{activated, last, step};
use lanes_core::device::Sums;
use lanes_core::plan::{Contraction, Term, bf16_bits};

/// Work-items of a subgroup.
const LANES: usize = 32;

/// Rows and columns of a fragment of sums.
const SIDE: usize = 16;

/// Terms of one product.
const DEPTH: usize = 32;

/// The most steps of a block, which is staged at once.
const STEPS_MAX: usize = 4;

/// Four runs, or as many of at least 32 terms as there are.
pub(crate) const SUMS: Sums = Sums { runs_max: 4, run_min: DEPTH, block_max: usize::MAX };

/// How a sum is taken: a function of `k` alone.
#[derive(Clone, Copy, Debug)]
struct Cut {
    runs: usize,
    /// Terms of a run, those that fill up its steps left out.
    run: usize,
    /// Steps of a run, some at the end may be zeros.
    steps: usize,
    /// Steps of a block; a run is of whole blocks.
    block: usize,
}

impl Cut {
    fn of(k: usize) -> Self {
        let [runs, ..] = SUMS.cut(k);
        let run = SUMS.run(k);
        let blocks = run.div_ceil(DEPTH).div_ceil(STEPS_MAX);
        let block = run.div_ceil(DEPTH).div_ceil(blocks);
        Self { runs, run, steps: blocks * block, block }
    }

    /// Terms between rows in workgroup memory: an odd number of steps, so that two rows of 16 bytes a work-item fill all banks.
    fn pitch(&self) -> usize {
        (self.block | 1) * DEPTH
    }
}

/// `weights` of `k` rows and `n` columns, rounded, as kernels read them: tiles of 16 columns by 32 terms, tile after tile along k,
/// in each a column after the other; zeros where there are none.
pub(crate) fn packed_bytes(weights: &[f32], k: usize, n: usize) -> Vec<u8> {
    let Cut { runs, run, steps, .. } = Cut::of(k);
    let mut packed = Vec::with_capacity(n.next_multiple_of(SIDE) * runs * steps * DEPTH * 2);
    for tile in 0..n.div_ceil(SIDE) {
        for (of, at) in (0..runs).flat_map(|of| (0..steps).map(move |at| (of, at))) {
            for column in tile * SIDE..(tile + 1) * SIDE {
                for term in at * DEPTH..(at + 1) * DEPTH {
                    let row = of * run + term;
                    let is_there = term < run && row < k && column < n;
                    let weight = if is_there { bf16_bits(weights[row * n + column]) } else { 0 };
                    packed.extend_from_slice(&weight.to_le_bytes());
                }
            }
        }
    }
    packed
}

/// What a workgroup computes, and by how many subgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    /// Rows: 1, or a multiple of 16 for each subgroup across.
    rows: usize,
    /// Columns: a multiple of 16 for each subgroup down.
    columns: usize,
    /// Subgroups over columns.
    down: usize,
    /// Subgroups over rows.
    across: usize,
    /// Whether runs go side by side, each in subgroups of its own.
    apart: bool,
}

/// Workgroup memory that every GPU has.
const SHARED_BYTES: u64 = 48 << 10;

/// From the smallest to the largest.
const TILES: [Tile; 9] = {
    const fn tile(rows: usize, columns: usize, [down, across]: [usize; 2], apart: bool) -> Tile {
        Tile { rows, columns, down, across, apart }
    }
    [
        tile(1, 16, [1, 1], true),
        tile(1, 32, [2, 1], true),
        tile(16, 16, [1, 1], true),
        tile(16, 32, [2, 1], true),
        tile(32, 32, [2, 1], true),
        tile(32, 64, [2, 1], true),
        tile(64, 64, [2, 2], false),
        tile(64, 128, [4, 2], false),
        tile(128, 128, [2, 4], false),
    ]
};

impl Tile {
    /// The tile that costs the least for `rows` rows on `units` multiprocessors: for each term what a workgroup reads (weights of 2
    /// bytes, rows of 4) and multiplies (about 20 products a byte), as often as multiprocessors take turns, and what it costs to begin.
    /// Of the narrowest two share a multiprocessor without loss; runs one after the other take 1.7 times as long as side by side
    /// (H200, every tile at 1 to 512 rows of three shapes). Workgroup memory is at most `shared_bytes_max`, which the small ones
    /// never pass.
    pub fn of(contraction: &Contraction, rows: usize, units: usize, shared_bytes_max: u64) -> Self {
        let cut = Cut::of(contraction.k());
        let cost = |tile: &Self| {
            let groups = rows.div_ceil(tile.rows) * contraction.n.div_ceil(tile.columns);
            let places = units.max(1) * if tile.columns == SIDE { 2 } else { 1 };
            let group = 2 * tile.columns + 4 * tile.rows + tile.columns * tile.rows / 20 + 64;
            groups.div_ceil(places) * group * if tile.apart { 10 } else { 17 }
        };
        // Of equal ones the smaller; one row has tiles of its own, which read it once for all columns.
        let fits = |tile: &&Self| {
            (tile.rows == 1) == (rows == 1)
                && tile.rows < 2 * rows.next_multiple_of(SIDE)
                && tile.memory(&cut)[2] as u64 <= shared_bytes_max.max(SHARED_BYTES)
        };
        TILES.iter().filter(fits).min_by_key(|tile| cost(tile)).copied().unwrap_or(TILES[2])
    }

    /// Runs that go side by side.
    fn beside(&self, cut: &Cut) -> usize {
        if self.apart { cut.runs } else { 1 }
    }

    /// Blocks of rows in workgroup memory: two where blocks follow one another, so that the next one is read while one is multiplied.
    fn buffers(&self, cut: &Cut) -> usize {
        if self.apart && cut.steps == cut.block { 1 } else { 2 }
    }

    /// Rows of sums in workgroup memory: whole fragments.
    fn summed(&self) -> usize {
        self.rows.next_multiple_of(SIDE)
    }

    /// Columns between them: what keeps the work-items of a fragment in banks of their own.
    fn width(&self) -> usize {
        self.columns + 4
    }

    /// Bytes of workgroup memory for rows, where those for sums begin, and all.
    fn memory(&self, cut: &Cut) -> [usize; 3] {
        let staged = self.beside(cut) * self.buffers(cut) * self.rows * cut.pitch() * 2;
        let summed = self.beside(cut) * self.summed() * self.width() * 4;
        // Sums lie where rows did, or behind them where they grow run by run.
        if self.apart { [staged, 0, staged.max(summed)] } else { [staged, staged, staged + summed] }
    }

    /// Fragments of a subgroup over columns and over rows.
    fn fragments(&self) -> [usize; 2] {
        [self.columns / self.down / SIDE, (self.rows / self.across).div_ceil(SIDE)]
    }
}

/// The text of `contraction` in workgroups of `tile`, for at most `max_seats` seats, its kernel called `contract`: arguments and
/// workload as of [`contract::text`](crate::contract::text), with weights as [`packed_bytes`] makes them. `None` for an activation
/// that this has no form for.
pub(crate) fn text(
    contraction: &Contraction,
    seat_elements: &[usize],
    out_seat_elements: usize,
    tile: Tile,
    max_seats: usize,
) -> Option<String> {
    let (steps, result) =
        activated(contraction.activation, if contraction.bias.is_some() { "%biased" } else { "%sum" })?;
    let cut = Cut::of(contraction.k());
    let mut text = Text {
        contraction,
        seat_elements,
        out_seat_elements,
        tile,
        max_seats,
        cut,
        together: if is_aligned(contraction, seat_elements, &cut) { 4 } else { 1 },
        text: String::new(),
    };
    text.head();
    if tile.apart {
        text.apart()
    } else {
        text.in_turn()
    }
    text.meet(&steps, &result);
    Some(text.text)
}

/// Whether four terms that begin at a multiple of four lie in one piece at a multiple of 16 bytes, for every row.
fn is_aligned(contraction: &Contraction, seat_elements: &[usize], cut: &Cut) -> bool {
    let positions = contraction.positions;
    let of_term = |(term, seat): (&Term, &usize)| {
        let parts =
            [*seat, term.offset, step(positions, term.position_stride), step(term.taps, term.tap_stride), term.tap_len];
        parts.iter().all(|part| part.is_multiple_of(4))
    };
    cut.run.is_multiple_of(4) && contraction.terms.iter().zip(seat_elements).all(of_term)
}

/// A text being written.
struct Text<'a> {
    contraction: &'a Contraction,
    seat_elements: &'a [usize],
    out_seat_elements: usize,
    tile: Tile,
    max_seats: usize,
    cut: Cut,
    /// Terms that are loaded at once.
    together: usize,
    text: String,
}

/// A line of a [`Text`].
macro_rules! line {
    ($to:expr, $($what:tt)*) => {{
        let written = format!($($what)*);
        $to.text.push_str(&written);
        $to.text.push('\n');
    }};
}

impl Text<'_> {
    fn index(&mut self, name: &str, value: usize) {
        line!(self, "  %{name} = index.constant {value} : index");
    }

    /// Subgroups that share the rows of a block.
    fn sharing(&self) -> usize {
        self.tile.down * self.tile.across
    }

    fn beside(&self) -> usize {
        self.tile.beside(&self.cut)
    }

    /// Work-items of a workgroup.
    fn size(&self) -> usize {
        self.beside() * self.sharing() * LANES
    }

    /// The view of rows as they are written, and as a fragment reads them.
    fn rows_views(&self) -> [String; 2] {
        let (parts, block, pitch) =
            (self.beside() * self.tile.buffers(&self.cut), self.cut.block * DEPTH, self.cut.pitch());
        [
            format!("view<{parts}x{}x{pitch}xbf16>", self.tile.rows),
            format!("view<{parts}x{block}x{}xbf16, %byrow>", self.tile.summed()),
        ]
    }

    /// The view of sums as they are read, and as a fragment writes them.
    fn sums_views(&self) -> [String; 2] {
        let (beside, summed, width) = (self.beside(), self.tile.summed(), self.tile.width());
        [
            format!("view<{beside}x{summed}x{width}xf32>"),
            format!("view<{beside}x{}x{summed}xf32, %bycolumn>", self.tile.columns),
        ]
    }

    fn weights_view(&self) -> String {
        let tiles = self.contraction.n.div_ceil(SIDE);
        format!("view<{tiles}x{}x{SIDE}x{DEPTH}xbf16>", self.cut.runs * self.cut.steps)
    }

    /// The elements of a storage that `last` is the end of, for a seat or for all.
    fn length(&mut self, name: &str, elements: usize, last: usize) {
        let (count, each) = if elements == 0 { ("one", last) } else { ("seats", elements) };
        line!(self, "  %{name}each = index.constant {each} : index");
        line!(self, "  %{name}length = index.mul %{count}, %{name}each : index");
    }

    /// Launch, views, and what a work-item is.
    fn head(&mut self) {
        let Contraction { terms, bias, positions, n, out_offset, out_position_stride, .. } = self.contraction;
        let (rows, columns, size) = (self.tile.rows, self.tile.columns, self.size());
        line!(self, "kernel.def export(\"contract\") @contract(%seats: index) {{");
        for (name, value) in [
            ("one", 1),
            ("positions", *positions),
            ("less", rows - 1),
            ("together", rows),
            ("down", n.div_ceil(columns)),
            ("size", size),
        ] {
            self.index(name, value);
        }
        line!(self, "  %rows = index.mul %seats, %positions : index");
        line!(self, "  %padded = index.add %rows, %less : index");
        line!(self, "  %across = index.div %padded, %together : index");
        line!(
            self,
            "  kernel.launch.config workgroups(%across, %down, %one) workgroup_size(%size, %one, %one) : index"
        );
        let lefts: String = (0..terms.len()).map(|at| format!("%left{at}: buffer, ")).collect();
        let bias_argument = if bias.is_some() { "%bias: buffer, " } else { "" };
        line!(self, "}} launch(%given: index, {lefts}%weights: buffer, {bias_argument}%out: buffer) {{");
        // So that rows and what they begin at are counted in 32 bits where that is enough.
        line!(self, "  %seats = index.assume %given [range(%given, 1, {})] : index", self.max_seats);
        line!(self, "  %start = index.constant 0 : offset");
        let [down, across] = self.tile.fragments();
        for (name, value) in [
            ("zero", 0),
            ("one", 1),
            ("positions", *positions),
            ("columns", *n),
            ("width", columns),
            ("lanes", LANES),
            ("side", SIDE),
            ("depth", DEPTH),
            ("together", rows),
            ("sharing", self.sharing()),
            ("subacross", self.tile.across),
            ("tiles", columns / SIDE),
            ("owntiles", down),
            ("ownrows", across * SIDE),
            ("lasttile", n.div_ceil(SIDE) - 1),
            ("steps", self.cut.steps),
            ("block", self.cut.block),
            ("runlength", self.cut.run),
            ("blockterms", self.cut.block * DEPTH),
        ] {
            self.index(name, value);
        }
        line!(self, "  %nothing = scalar.constant 0.0 : f32");
        line!(self, "  %rows = index.mul %seats, %positions : index");
        line!(self, "  %lastrow = index.sub %rows, %one : index");
        line!(self, "  %lane = kernel.subgroup.lane.id : index");
        line!(self, "  %subgroup = kernel.subgroup.id : index");
        line!(self, "  %rowtile = kernel.workgroup.id<x> : index");
        line!(self, "  %columntile = kernel.workgroup.id<y> : index");
        line!(self, "  %firstrow = index.mul %rowtile, %together : index");
        line!(self, "  %firstcolumn = index.mul %columntile, %width : index");
        // Which subgroup of those that share a run, and its place among them.
        line!(self, "  %part = index.rem %subgroup, %sharing : index");
        line!(self, "  %partdown = index.div %part, %subacross : index");
        line!(self, "  %partacross = index.rem %part, %subacross : index");
        line!(self, "  %parttile = index.mul %partdown, %owntiles : index");
        line!(self, "  %partrow = index.mul %partacross, %ownrows : index");
        line!(self, "  %ofpart = index.mul %part, %lanes : index");
        line!(self, "  %worker = index.add %ofpart, %lane : index");
        line!(self, "  %firsttile = index.mul %columntile, %tiles : index");
        line!(self, "  %tile = index.add %firsttile, %parttile : index");
        for m in 0..down {
            self.index(&format!("m{m}"), m);
            line!(self, "  %tile{m}u = index.add %tile, %m{m} : index");
            // Past the last columns are multiplied what the last ones are, and nothing is stored.
            line!(self, "  %tile{m} = index.min %tile{m}u, %lasttile : index");
        }
        for r in 0..across {
            self.index(&format!("across{r}"), r * SIDE);
            line!(self, "  %subrow{r} = index.add %partrow, %across{r} : index");
        }
        for (at, term) in terms.iter().enumerate() {
            self.length(&format!("left{at}"), self.seat_elements[at], last(term, *positions));
            line!(self, "  %view{at} = buffer.view %left{at}[%start] : buffer -> view<[%left{at}length]xf32>");
        }
        let out_last = out_offset + positions.saturating_sub(1) * step(*positions, *out_position_stride) + n;
        self.length("out", self.out_seat_elements, out_last);
        line!(self, "  %result = buffer.view %out[%start] : buffer -> view<[%outlength]xf32>");
        let weights = self.weights_view();
        line!(self, "  %w = buffer.view %weights[%start] : buffer -> {weights}");
        if bias.is_some() {
            line!(self, "  %b = buffer.view %bias[%start] : buffer -> view<{n}xf32>");
        }
        let [_, behind, bytes] = self.tile.memory(&self.cut);
        line!(self, "  %bytes = index.constant {bytes} : offset");
        line!(self, "  %behind = index.constant {behind} : offset");
        line!(self, "  %memory = buffer.alloca<workgroup> align(16) %bytes : buffer");
        // One row is every column of a fragment.
        let (pitch, width) = (self.cut.pitch(), self.tile.width());
        let (between, of_row) = (self.tile.rows * pitch, if rows == 1 { 0 } else { pitch });
        line!(self, "  %byrow = encoding.layout.strided [{between}, 1, {of_row}] : encoding<layout>");
        let between = self.tile.summed() * width;
        line!(self, "  %bycolumn = encoding.layout.strided [{between}, 1, {width}] : encoding<layout>");
        let ([written, read], [sums, made]) = (self.rows_views(), self.sums_views());
        line!(self, "  %xs = buffer.view %memory[%start] : buffer -> {written}");
        line!(self, "  %xf = buffer.view %memory[%start] : buffer -> {read}");
        line!(self, "  %sums = buffer.view %memory[%behind] : buffer -> {sums}");
        line!(self, "  %sf = buffer.view %memory[%behind] : buffer -> {made}");
        line!(self, "  %zeros = vector.splat %nothing : vector<8xf32>");
        line!(self, "  %none = vector.fragment<init> %zeros shape [%side, %side] : vector<8xf32>");
    }

    /// Names of the sums of a subgroup, each with `with` behind it.
    fn sums(&self, name: &str, with: &str) -> String {
        let [down, across] = self.tile.fragments();
        let names = (0..down).flat_map(|m| (0..across).map(move |r| format!("%{name}{m}_{r}{with}")));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Their types.
    fn sums_types(&self) -> String {
        let [down, across] = self.tile.fragments();
        vec!["vector<8xf32>"; down * across].join(", ")
    }

    /// `%acc`: the sums of this subgroup's own run, which others take beside it.
    fn apart(&mut self) {
        line!(self, "  %run = index.div %subgroup, %sharing : index");
        if self.tile.buffers(&self.cut) == 1 {
            line!(self, "  %buffer = index.add %run, %zero : index");
            self.weights("zero");
            self.read("", "run", "zero");
            self.write("", "buffer");
            self.wait();
            self.multiply("none", "acc");
            return;
        }
        self.index("blocks", self.cut.steps / self.cut.block);
        line!(self, "  %two = index.constant 2 : index");
        line!(self, "  %pair = index.mul %run, %two : index");
        self.read("", "run", "zero");
        self.write("", "pair");
        self.wait();
        let (results, carried) = (self.sums("acc", ""), self.sums("before", " = %none : vector<8xf32>"));
        line!(
            self,
            "  {results} = scf.for %at = [%zero to %blocks step %one]({carried}) -> ({}) {{",
            self.sums_types()
        );
        line!(self, "  %odd = index.rem %at, %two : index");
        line!(self, "  %buffer = index.add %pair, %odd : index");
        line!(self, "  %even = index.sub %one, %odd : index");
        line!(self, "  %other = index.add %pair, %even : index");
        self.block();
        line!(self, "  scf.yield {} : {}", self.sums("after", ""), self.sums_types());
        line!(self, "  }}");
    }

    /// The sums of all runs, one after the other, each added to those before it in workgroup memory: registers are few.
    fn in_turn(&mut self) {
        self.index("blocks", self.cut.steps / self.cut.block);
        self.index("runs", self.cut.runs);
        line!(self, "  %two = index.constant 2 : index");
        // What changes no sum that is added to it.
        line!(self, "  %negative = scalar.constant -0.0 : f32");
        line!(self, "  %negatives = vector.splat %negative : vector<8xf32>");
        line!(self, "  %begin = vector.fragment<init> %negatives shape [%side, %side] : vector<8xf32>");
        self.places("zero");
        self.each_sum(|text, m, r, made| {
            let to = format!("%sf[%beside, %subcolumn{m}, %subrow{r}] shape [%side, %side]");
            line!(text, "  vector.fragment.store<result> %begin, {to} : vector<8xf32>, {made}");
        });
        self.read("", "zero", "zero");
        self.write("", "zero");
        self.wait();
        line!(self, "  scf.for %run = [%zero to %runs step %one] {{");
        line!(self, "  %skipped = index.mul %run, %blocks : index");
        let (results, carried) = (self.sums("acc", ""), self.sums("before", " = %none : vector<8xf32>"));
        line!(
            self,
            "  {results} = scf.for %at = [%zero to %blocks step %one]({carried}) -> ({}) {{",
            self.sums_types()
        );
        line!(self, "  %nth = index.add %skipped, %at : index");
        line!(self, "  %buffer = index.rem %nth, %two : index");
        line!(self, "  %other = index.sub %one, %buffer : index");
        self.block();
        line!(self, "  scf.yield {} : {}", self.sums("after", ""), self.sums_types());
        line!(self, "  }}");
        // Nobody else touches the place of a fragment, and a fragment is loaded as it was stored.
        self.each_sum(|text, m, r, made| {
            let at = format!("%sf[%beside, %subcolumn{m}, %subrow{r}] shape [%side, %side]");
            line!(text, "  %total{m}_{r} = vector.fragment.load<init> {at} : {made} -> vector<8xf32>");
            line!(text, "  %sofar{m}_{r} = vector.addf %total{m}_{r}, %acc{m}_{r} : vector<8xf32>");
            line!(text, "  vector.fragment.store<result> %sofar{m}_{r}, {at} : vector<8xf32>, {made}");
        });
        line!(self, "  }}");
    }

    /// Where in workgroup memory a subgroup's sums go: those of run `%{run}` of those that go side by side.
    fn places(&mut self, run: &str) {
        line!(self, "  %beside = index.add %{run}, %zero : index");
        line!(self, "  %partcolumn = index.mul %parttile, %side : index");
        for m in 0..self.tile.fragments()[0] {
            self.index(&format!("along{m}"), m * SIDE);
            line!(self, "  %subcolumn{m} = index.add %partcolumn, %along{m} : index");
        }
    }

    /// Calls `each` for every fragment of sums, with the view that they are written by.
    fn each_sum(&mut self, each: impl Fn(&mut Self, usize, usize, &str)) {
        let ([down, across], [_, made]) = (self.tile.fragments(), self.sums_views());
        for (m, r) in (0..down).flat_map(|m| (0..across).map(move |r| (m, r))) {
            each(self, m, r, &made);
        }
    }

    /// Until the rows that others have written are there, and those that they read may be written over.
    fn wait(&mut self) {
        let scope = if self.sharing() == 1 { "subgroup" } else { "workgroup" };
        line!(self, "  kernel.barrier<workgroup> scope({scope}) ordering(acq_rel)");
    }

    /// `%after`: what block `%at` of run `%run`, whose rows lie in `%buffer`, adds to `%before`; the next block's go to `%other`.
    fn block(&mut self) {
        self.weights("at");
        // Past the last block are read rows that nobody multiplies.
        line!(self, "  %atnext = index.add %at, %one : index");
        if self.tile.apart {
            line!(self, "  %lastblock = index.sub %blocks, %one : index");
            line!(self, "  %blocknext = index.min %atnext, %lastblock : index");
        } else {
            line!(self, "  %ends = index.cmp eq, %atnext, %blocks : index");
            line!(self, "  %runafter = index.add %run, %one : index");
            line!(self, "  %runnext = scf.select %ends, %runafter, %run : index");
            line!(self, "  %blocknext = scf.select %ends, %zero, %atnext : index");
        }
        self.read("next", if self.tile.apart { "run" } else { "runnext" }, "blocknext");
        self.multiply("before", "after");
        self.write("next", "other");
        self.wait();
    }

    /// `%lf`: the weights of the first steps of block `%{at}` of run `%run`, as many as registers hold.
    fn weights(&mut self, at: &str) {
        line!(self, "  %runstep = index.mul %run, %steps : index");
        line!(self, "  %blockstep = index.mul %{at}, %block : index");
        line!(self, "  %firststep = index.add %runstep, %blockstep : index");
        (0..self.ahead().min(self.cut.block)).for_each(|s| self.weights_of(s));
    }

    /// By how many steps weights are loaded ahead: eight fragments, of eight registers each.
    fn ahead(&self) -> usize {
        (8 / self.tile.fragments()[0]).max(1)
    }

    /// The weights of one step.
    fn weights_of(&mut self, s: usize) {
        let view = self.weights_view();
        self.index(&format!("s{s}"), s);
        line!(self, "  %step{s} = index.add %firststep, %s{s} : index");
        for m in 0..self.tile.fragments()[0] {
            let from = format!("%w[%tile{m}, %step{s}, %zero, %zero] shape [%side, %depth]");
            line!(self, "  %lf{s}_{m} = vector.fragment.load<lhs> {from} : {view} -> vector<{DEPTH}xbf16>");
        }
    }

    /// `%{to}`: the products of the block added to `%{from}`, or to `%none`.
    fn multiply(&mut self, from: &str, to: &str) {
        let ([down, across], [_, view]) = (self.tile.fragments(), self.rows_views());
        let operand = format!("vector<{DEPTH}xbf16>");
        for s in 0..self.cut.block {
            self.index(&format!("d{s}"), s * DEPTH);
            for r in 0..across {
                line!(
                    self,
                    "  %rf{s}_{r} = vector.fragment.load<rhs> %xf[%buffer, %d{s}, %subrow{r}] shape [%depth, %side] : {view} -> {operand}"
                );
            }
            for (m, r) in (0..down).flat_map(|m| (0..across).map(move |r| (m, r))) {
                let before = match s {
                    0 if from == "none" => "none".to_owned(),
                    0 => format!("{from}{m}_{r}"),
                    _ => format!("sum{}_{m}_{r}", s - 1),
                };
                let sum = if s + 1 == self.cut.block { format!("{to}{m}_{r}") } else { format!("sum{s}_{m}_{r}") };
                line!(
                    self,
                    "  %{sum} = vector.mma %lf{s}_{m}, %rf{s}_{r}, %{before} : {operand}, {operand}, vector<8xf32>"
                );
            }
            if s + self.ahead() < self.cut.block {
                self.weights_of(s + self.ahead());
            }
        }
    }

    /// Loads of one work-item for a block, and how many pieces there are in all.
    fn loads(&self) -> [usize; 2] {
        let pieces = self.tile.rows * self.cut.block * DEPTH / self.together;
        [pieces.div_ceil(self.sharing() * LANES), pieces]
    }

    /// `%x{next}`: the own part of the rows of block `%{at}` of run `%{run}`.
    fn read(&mut self, next: &str, run: &str, at: &str) {
        let [loads, pieces] = self.loads();
        let (together, each) = (self.together, self.cut.block * DEPTH / self.together);
        for (name, value) in [
            ("each", each),
            ("vector", together),
            ("lastk", self.contraction.k() - together),
            ("k", self.contraction.k()),
            ("lastpiece", pieces - 1),
        ] {
            self.index(&format!("{name}{next}"), value);
        }
        line!(self, "  %inrun{next} = index.mul %{at}, %blockterms : index");
        line!(self, "  %ofrun{next} = index.mul %{run}, %runlength : index");
        let ty = if together == 1 { "f32".to_owned() } else { format!("vector<{together}xf32>") };
        if together > 1 {
            line!(self, "  %nothings{next} = vector.splat %nothing : {ty}");
        }
        let nothing = if together == 1 { "nothing".to_owned() } else { format!("nothings{next}") };
        for j in 0..loads {
            let name = format!("{j}{next}");
            self.index(&format!("j{name}"), j * self.sharing() * LANES);
            line!(self, "  %u{name} = index.add %worker, %j{name} : index");
            // Past the last piece all do what the last one does.
            line!(self, "  %e{name} = index.min %u{name}, %lastpiece{next} : index");
            line!(self, "  %r{name} = index.div %e{name}, %each{next} : index");
            line!(self, "  %c{name} = index.rem %e{name}, %each{next} : index");
            line!(self, "  %term{name} = index.mul %c{name}, %vector{next} : index");
            line!(self, "  %row{name}u = index.add %firstrow, %r{name} : index");
            line!(self, "  %row{name}x = index.min %row{name}u, %lastrow : index");
            line!(self, "  %t{name} = index.add %inrun{next}, %term{name} : index");
            line!(self, "  %kk{name}u = index.add %ofrun{next}, %t{name} : index");
            line!(self, "  %kk{name} = index.min %kk{name}u, %lastk{next} : index");
            self.operand(&name, 0, 0, "", &ty);
            line!(self, "  %inside{name} = index.cmp ult, %t{name}, %runlength : index");
            line!(self, "  %ink{name} = index.cmp ult, %kk{name}u, %k{next} : index");
            line!(self, "  %is{name} = scalar.andi %inside{name}, %ink{name} : i1");
            line!(self, "  %x{name} = scf.select %is{name}, %o{name}, %{nothing} : {ty}");
        }
    }

    /// What [`read`](Self::read) read, rounded, into the part `to` of workgroup memory.
    fn write(&mut self, next: &str, to: &str) {
        let [view, _] = self.rows_views();
        let together = self.together;
        for j in 0..self.loads()[0] {
            let name = format!("{j}{next}");
            if together == 1 {
                line!(self, "  %h{name} = scalar.fptrunc %x{name} : f32 to bf16");
                line!(self, "  view.store %h{name}, %xs[%{to}, %r{name}, %term{name}] : bf16, {view}");
            } else {
                line!(self, "  %h{name} = vector.fptrunc %x{name} : vector<{together}xf32> to vector<{together}xbf16>");
                line!(
                    self,
                    "  vector.store %h{name}, %xs[%{to}, %r{name}, %term{name}] : vector<{together}xbf16>, {view}"
                );
            }
        }
    }

    /// `%o{name}{deep}`: operands from `%kk{name}` on of row `%row{name}x`, of a term from `at` on; terms before have `done` of k.
    fn operand(&mut self, name: &str, at: usize, done: usize, deep: &str, ty: &str) {
        let term = &self.contraction.terms[at];
        let end = done + term.k();
        let is_last = at + 1 == self.contraction.terms.len();
        let of = format!("{name}_{at}");
        if !is_last {
            self.index(&format!("end{of}"), end);
            line!(self, "  %here{of} = index.cmp ult, %kk{name}, %end{of} : index");
            line!(self, "  %o{name}{deep} = scf.if %here{of} -> ({ty}) {{");
        }
        let positions = self.contraction.positions;
        for (part, value) in [
            ("elements", self.seat_elements[at]),
            ("offset", term.offset),
            ("ofposition", step(positions, term.position_stride)),
            ("done", done),
            ("taplength", term.tap_len),
            ("oftap", step(term.taps, term.tap_stride)),
        ] {
            self.index(&format!("{part}{of}"), value);
        }
        line!(self, "  %seat{of} = index.div %row{name}x, %positions : index");
        line!(self, "  %position{of} = index.rem %row{name}x, %positions : index");
        line!(self, "  %s{of} = index.mul %seat{of}, %elements{of} : index");
        line!(self, "  %p{of} = index.mul %position{of}, %ofposition{of} : index");
        line!(self, "  %kt{of} = index.sub %kk{name}, %done{of} : index");
        if term.taps > 1 {
            line!(self, "  %tap{of} = index.div %kt{of}, %taplength{of} : index");
            line!(self, "  %in{of} = index.rem %kt{of}, %taplength{of} : index");
            line!(self, "  %q{of} = index.mul %tap{of}, %oftap{of} : index");
            line!(self, "  %within{of} = index.add %q{of}, %in{of} : index");
        } else {
            line!(self, "  %within{of} = index.add %kt{of}, %zero : index");
        }
        line!(self, "  %a{of} = index.add %s{of}, %offset{of} : index");
        line!(self, "  %b{of} = index.add %a{of}, %p{of} : index");
        line!(self, "  %from{of} = index.add %b{of}, %within{of} : index");
        let value = if is_last { format!("o{name}{deep}") } else { format!("load{of}") };
        let load = if self.together == 1 { "view.load" } else { "vector.load" };
        let index = if self.together == 1 {
            format!("from{of}")
        } else {
            // What is_aligned found.
            line!(self, "  %whole{of} = index.assume %from{of} [multiple_of(%from{of}, {})] : index", self.together);
            format!("whole{of}")
        };
        line!(self, "  %{value} = {load} %view{at}[%{index}] : view<[%left{at}length]xf32> -> {ty}");
        if !is_last {
            line!(self, "  scf.yield %load{of} : {ty}");
            line!(self, "  }} else {{");
            let deeper = format!("{deep}n");
            self.operand(name, at + 1, end, &deeper, ty);
            line!(self, "  scf.yield %o{name}{deeper} : {ty}");
            line!(self, "  }}");
        }
    }

    /// The sums of runs added, where they went side by side, and what is done with the result: `steps` make `result` of `%sum` or
    /// `%biased`.
    fn meet(&mut self, steps: &str, result: &str) {
        let Contraction { bias, positions, n, out_offset, out_position_stride, .. } = self.contraction;
        let ([view, _], size) = (self.sums_views(), self.size());
        if self.tile.apart {
            // Until here the same memory held rows.
            line!(self, "  kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
            self.places("run");
            self.each_sum(|text, m, r, made| {
                let to = format!("%sf[%beside, %subcolumn{m}, %subrow{r}] shape [%side, %side]");
                line!(text, "  vector.fragment.store<result> %acc{m}_{r}, {to} : vector<8xf32>, {made}");
            });
        }
        line!(self, "  kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
        for (name, value) in [
            ("all", self.tile.rows * self.tile.columns),
            ("size", size),
            ("outelements", self.out_seat_elements),
            ("outoffset", *out_offset),
            ("outstride", step(*positions, *out_position_stride)),
        ] {
            self.index(name, value);
        }
        line!(self, "  %mine = index.mul %subgroup, %lanes : index");
        line!(self, "  %item = index.add %mine, %lane : index");
        line!(self, "  scf.for %e = [%item to %all step %size] {{");
        line!(self, "    %r = index.div %e, %width : index");
        line!(self, "    %c = index.rem %e, %width : index");
        line!(self, "    %row = index.add %firstrow, %r : index");
        line!(self, "    %to = index.add %firstcolumn, %c : index");
        line!(self, "    %isrow = index.cmp ult, %row, %rows : index");
        line!(self, "    %iscolumn = index.cmp ult, %to, %columns : index");
        line!(self, "    %live = scalar.andi %isrow, %iscolumn : i1");
        line!(self, "    scf.if %live {{");
        let beside = self.beside();
        for run in 0..beside {
            self.index(&format!("run{run}"), run);
            let of = if beside == 1 { "sum".to_owned() } else { format!("ofrun{run}") };
            line!(self, "      %{of} = view.load %sums[%run{run}, %r, %c] : {view} -> f32");
            if run > 0 {
                let before = if run == 1 { "ofrun0".to_owned() } else { format!("upto{}", run - 1) };
                let sum = if run + 1 == beside { "sum".to_owned() } else { format!("upto{run}") };
                line!(self, "      %{sum} = scalar.addf %{before}, %ofrun{run} : f32");
            }
        }
        if bias.is_some() {
            line!(self, "      %plus = view.load %b[%to] : view<{n}xf32> -> f32");
            line!(self, "      %biased = scalar.addf %sum, %plus : f32");
        }
        self.text.push_str(steps);
        line!(self, "      %seat = index.div %row, %positions : index");
        line!(self, "      %position = index.rem %row, %positions : index");
        line!(self, "      %outseat = index.mul %seat, %outelements : index");
        line!(self, "      %outposition = index.mul %position, %outstride : index");
        line!(self, "      %at1 = index.add %outseat, %outoffset : index");
        line!(self, "      %at2 = index.add %at1, %outposition : index");
        line!(self, "      %into = index.add %at2, %to : index");
        line!(self, "      view.store {result}, %result[%into] : f32, view<[%outlength]xf32>");
        line!(self, "    }}");
        line!(self, "  }}");
        line!(self, "  kernel.return");
        line!(self, "}}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{self, Takes};
    use lanes_core::plan::{Activation, Precision, StorageId};
    use loom_compiler::interp::{self, Argument, Limits};
    use loom_compiler::ptx::Sm;

    /// Two seats of 3 positions: a term with `taps` of `tap` terms beside one of `rest` that all seats share.
    struct Case {
        contraction: Contraction,
        /// Elements of a seat of each term's storage, and their values.
        seat_elements: [usize; 2],
        data: [Vec<f32>; 2],
        out_len: usize,
    }

    const SEATS: usize = 2;
    const POSITIONS: usize = 3;

    fn case([taps, tap, rest]: [usize; 3], n: usize, activation: Activation) -> Case {
        let mut bits = 7u32;
        let mut floats = |count: usize| -> Vec<f32> {
            let mut float = || {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (bits >> 8) as f32 / 8_388_608.0 - 1.0
            };
            (0..count).map(|_| float()).collect()
        };
        // Strides that four terms may be read at once by, where their numbers are multiples of four.
        let (tap_stride, position_stride) = (tap.next_multiple_of(4) + 4, 8);
        let own = 4 + (POSITIONS - 1) * position_stride + (taps - 1) * tap_stride + tap;
        let shared = 4 + (POSITIONS - 1) * 4 + rest;
        let own = own.next_multiple_of(4);
        let terms = vec![
            Term { storage: StorageId(0), offset: 4, position_stride, taps, tap_stride, tap_len: tap },
            Term { storage: StorageId(1), offset: 4, position_stride: 4, taps: 1, tap_stride: 0, tap_len: rest },
        ];
        let k = taps * tap + rest;
        let contraction = Contraction {
            label: "node".into(),
            terms,
            weights: floats(k * n).into(),
            precision: Precision::Bf16,
            bias: Some(floats(n).into()),
            activation,
            positions: POSITIONS,
            n,
            out: StorageId(2),
            out_offset: 1,
            out_position_stride: n + 5,
        };
        let out_len = 1 + (POSITIONS - 1) * (n + 5) + n;
        Case { contraction, seat_elements: [own, 0], data: [floats(SEATS * own), floats(shared)], out_len }
    }

    impl Case {
        /// The result in the order that [`SUMS`] tells, each product exact and each addition rounded, by conversions of another
        /// crate; 9 where nothing is written.
        fn expected(&self) -> Vec<f32> {
            let Contraction { terms, weights, bias, n, .. } = &self.contraction;
            let k = self.contraction.k();
            let (run, rounded) = (SUMS.run(k), |x: f32| half::bf16::from_f32(x).to_f32());
            let mut expected = vec![9f32; SEATS * self.out_len];
            for (seat, position, column) in
                (0..SEATS).flat_map(|s| (0..POSITIONS).flat_map(move |p| (0..*n).map(move |c| (s, p, c))))
            {
                let of_term = |at: usize| {
                    let term = terms[at];
                    let first = seat * self.seat_elements[at] + term.offset + position * term.position_stride;
                    let tap = move |t: usize| (0..term.tap_len).map(move |c| first + t * term.tap_stride + c);
                    (0..term.taps).flat_map(tap).map(|at_| self.data[at][at_]).collect::<Vec<f32>>()
                };
                let left: Vec<f32> = [of_term(0), of_term(1)].concat();
                let chain = |from: usize| {
                    let product = |sum: f32, k: usize| rounded(left[k]).mul_add(rounded(weights[k * n + column]), sum);
                    (from..k.min(from + run)).fold(0f32, product)
                };
                let sum = (0..k).step_by(run).map(chain).reduce(|sum, run| sum + run).unwrap_or_default();
                let sum = sum + bias.as_ref().map_or(0.0, |bias| bias[column]);
                let result = if self.contraction.activation == Activation::Relu { sum.max(0.0) } else { sum };
                expected[seat * self.out_len + 1 + position * (n + 5) + column] = result;
            }
            expected
        }

        fn text(&self, tile: Tile) -> String {
            text(&self.contraction, &self.seat_elements, self.out_len, tile, 5).expect("the activation is known")
        }

        /// The result by the interpreter, which multiplies fragments as chains of fused multiply-adds.
        fn run(&self, tile: Tile) -> Vec<f32> {
            let module = image::text("contract.loom", self.text(tile), "contract").module();
            let module = module.unwrap_or_else(|error| panic!("{tile:?}: {error}"));
            let kernel = module.specialise("contract", &Default::default());
            let kernel = kernel.unwrap_or_else(|error| panic!("{tile:?}: {error}"));
            let geometry = kernel.launch.geometry(&[SEATS as u64]).expect("a geometry");
            let bytes = |floats: &[f32]| bytemuck::cast_slice::<f32, u8>(floats).to_vec();
            let Contraction { weights, bias, n, .. } = &self.contraction;
            let mut buffers = [
                bytes(&self.data[0]),
                bytes(&self.data[1]),
                packed_bytes(weights, self.contraction.k(), *n),
                bytes(bias.as_deref().unwrap_or_default()),
                bytes(&vec![9.0; SEATS * self.out_len]),
            ];
            let mut arguments = vec![Argument::Scalar(SEATS as u64)];
            arguments.extend(buffers.iter_mut().map(|buffer| Argument::Buffer(buffer)));
            interp::run(&kernel, geometry, &mut arguments, Limits::default())
                .unwrap_or_else(|fault| panic!("{tile:?}: {fault}"));
            buffers[4].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
        }
    }

    /// Every tile gives the bits of the order that is told, and touches nothing outside of its buffers: K of one step, of runs with
    /// a last one that is short, of several blocks; terms that meet inside of a step and inside of four; columns past the last.
    #[test]
    fn tiles_add_in_the_order_that_is_told() {
        for (terms, n) in
            [([1, 3, 2], 5), ([2, 40, 72], 70), ([2, 41, 70], 33), ([3, 100, 352], 40), ([1, 300, 277], 20)]
        {
            let case = case(terms, n, Activation::Relu);
            let expected = case.expected();
            for tile in TILES {
                let found = case.run(tile);
                let differs = found.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
                if let Some(at) = differs {
                    panic!("{terms:?} to {n} in {tile:?}: element {at} is {}, not {}", found[at], expected[at]);
                }
            }
        }
    }

    /// The text of every tile becomes products of tensor cores, with operands in loads of 16 bytes, for every activation.
    #[test]
    fn texts_become_products_of_matrices() {
        for activation in [Activation::None, Activation::Relu, Activation::Sigmoid, Activation::Tanh, Activation::Silu]
        {
            let case = case([2, 40, 432], 130, activation);
            let Cut { runs, steps, block, .. } = Cut::of(case.contraction.k());
            assert_eq!((runs, steps, block), (4, 4, 4));
            for tile in TILES {
                let takes = Takes { target: Sm::new(90), version: (8, 0), shared_bytes_max: 227 << 10 };
                let origin = image::text("contract.loom", case.text(tile), "contract");
                let image = image::of_text(&origin, "node", false, &takes).unwrap_or_else(|error| panic!("{error}"));
                let geometry = image.launch.geometry(&[9]).expect("a geometry");
                let groups = [(9 * POSITIONS).div_ceil(tile.rows) as u32, 130usize.div_ceil(tile.columns) as u32, 1];
                assert_eq!(geometry.workgroups, groups);
                let [down, across] = tile.fragments();
                let products = image.text.matches("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32").count();
                assert_eq!(products, block * down * across * 4, "{tile:?}");
                let weights = image.text.matches("ld.global.v4.b32").count();
                assert!(weights >= block * down * 2, "{tile:?}: {weights}");
                let rows = image.text.matches("ld.shared.v4.b32").count();
                // One row is all columns of a fragment.
                assert_eq!(rows, if tile.rows == 1 { block } else { block * across * 2 }, "{tile:?}");
                assert!(!image.text.contains("shfl"), "{tile:?}");
            }
        }
    }

    /// A step is of one run alone, and what fills it up is zero; every weight has its place.
    #[test]
    fn weights_lie_in_tiles() {
        let (k, n) = (150, 18);
        let Cut { runs, run, steps, .. } = Cut::of(k);
        assert_eq!((runs, run, steps), (4, 38, 2));
        let weights: Vec<f32> = (0..k * n).map(|at| (at % 251) as f32 + 1.0).collect();
        let packed: Vec<u16> = packed_bytes(&weights, k, n).chunks_exact(2).map(bytemuck::pod_read_unaligned).collect();
        assert_eq!(packed.len(), 2 * runs * steps * SIDE * DEPTH);
        let mut places = vec![0f32; packed.len()];
        for (row, column) in (0..k).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let (of, term) = (row / run, row % run);
            let tile = column / SIDE * runs * steps + of * steps + term / DEPTH;
            places[(tile * SIDE + column % SIDE) * DEPTH + term % DEPTH] = weights[row * n + column];
        }
        let found: Vec<f32> = packed.into_iter().map(|bits| half::bf16::from_bits(bits).to_f32()).collect();
        assert_eq!(found, places);
    }

    /// One row has tiles of its own; many rows and columns have large ones.
    #[test]
    fn tiles_grow_with_what_there_is() {
        let of = |n: usize, rows: usize| {
            let contraction = Contraction { n, ..case([1, 4, 4], 8, Activation::None).contraction };
            Tile::of(&contraction, rows, 132, 227 << 10)
        };
        for n in [8, 256, 2048, 4096] {
            assert_eq!(of(n, 1).rows, 1, "{n}");
            assert!(of(n, 2).rows > 1, "{n}");
        }
        // A GPU with little workgroup memory gets what fits, whatever K.
        for k in [40, 512, 2048, 8192] {
            let contraction = Contraction { n: 4096, ..case([1, 4, k - 4], 8, Activation::None).contraction };
            for rows in [1, 2, 40, 600] {
                let tile = Tile::of(&contraction, rows, 132, 0);
                assert!(tile.memory(&Cut::of(k))[2] <= 48 << 10, "{rows} rows of {k}: {tile:?}");
            }
        }
        assert_eq!(of(256, 8).columns, 16);
        assert!(of(4096, 512).rows >= 64);
    }
}
