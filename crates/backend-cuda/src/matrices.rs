//! Contractions of operands rounded to bfloat16, as Loom for tensor cores: every element of the result is a sum in one order,
//! whatever the number of rows.
//!
//! ```text
//! pack:      terms of each row ──rounded──> [row, k]: rows
//! contract:  weights [column, k] ─┐ by stages, ring in     ┌─> fragments lhs ─┐
//!            rows       [row, k] ─┘ workgroup memory ──────┴─> fragments rhs ─┴─> sums [column, row] ──> bias, activation, store
//! ```
//!
//! - The weights are the left operand: the side of 16, filled from one row up. Rows are the right one's columns.
//! - Rows are rounded and written out once, by a launch before or by whoever makes them: what a workgroup of the product takes, hundreds
//!   take.
//! - K is filled up with zeros to whole stages and cut into runs as [`SUMS`] says, whose products of [`DEPTH`] terms ascend: a
//!   chain each. Few rows have a subgroup for each run, so that chains are short; many take the runs in turn. Hardware adds the
//!   terms of a product in an order of its own, the same for every column. The number of rows chooses the tile, and never the
//!   order.
//! - While one stage is multiplied, copies of those behind it are under way. Those of the first weights begin before the rows are made.
//! - Text and layout are one for every tile, so that what holds on the interpreter holds wherever a product is a product.
//! - Not here: 32-bit operands (`contract`).

use crate::contract::cell::Cell;
use crate::image::Takes;
use crate::writer::{Extent, Hand, LANES, Seating, Terms, Text, Writer, lanes_type, line, step};
use lanes_core::device::Sums;
use lanes_core::plan::{Contraction, Term, bf16_bits};
use std::fmt::Write;

/// Rows and columns of a fragment of sums.
pub(crate) const SIDE: usize = 16;

/// Terms of one product.
const DEPTH: usize = 32;

/// Terms of a stage: runs are of whole ones, and K is filled up to them.
const STAGE: usize = 64;

/// Terms that are copied at once: 16 bytes.
const PIECE: usize = 8;

/// Work-items of a workgroup that packs.
const PACKERS: usize = 256;

/// Up to four chains of whole stages: a quarter of what a product waits for the one before it, and large tiles have registers for
/// two sums of each.
pub(crate) const SUMS: Sums = Sums { runs_max: 4, run_min: STAGE, block_max: usize::MAX, run_step: STAGE };

/// Terms of a row as it is packed.
const fn row(k: usize) -> usize {
    k.next_multiple_of(STAGE)
}

/// Terms of a run of k, and how many runs there are.
fn run(k: usize) -> usize {
    SUMS.run(k).min(row(k))
}

fn runs(k: usize) -> usize {
    SUMS.cut(k)[0]
}

/// Bytes of a row as [`pack_text`] writes it.
pub(crate) fn row_bytes(contraction: &Contraction) -> usize {
    row(contraction.k()) * 2
}

/// Whether so many terms of k from `start` on are whole pieces of a packed row.
pub(crate) const fn in_pieces(start: usize, terms: usize) -> bool {
    start.is_multiple_of(PIECE) && terms.is_multiple_of(PIECE)
}

/// What of the packed rows of `consumer` another contraction writes, which makes the values of its `term` from its own column, or unit,
/// `from` on.
pub(crate) fn hand(consumer: &Contraction, term: usize, result: usize, from: usize) -> Hand {
    let start = consumer.terms[..term].iter().map(Term::k).sum();
    Hand { result, from, count: consumer.terms[term].tap_len, start, row: row(consumer.k()) }
}

/// `weights` of `k` rows and `n` columns, rounded, as kernels read them: tiles of 16 columns by 64 terms, tile after tile along k,
/// in each a column after the other; zeros where there are none.
pub(crate) fn packed_bytes(weights: &[f32], k: usize, n: usize) -> Vec<u8> {
    let depth = row(k);
    let mut packed = Vec::with_capacity(n.next_multiple_of(SIDE) * depth * 2);
    for (tile, at) in (0..n.div_ceil(SIDE)).flat_map(|tile| (0..depth / STAGE).map(move |at| (tile, at))) {
        for column in tile * SIDE..(tile + 1) * SIDE {
            for term in at * STAGE..(at + 1) * STAGE {
                let weight = if term < k && column < n { bf16_bits(weights[term * n + column]) } else { 0 };
                packed.extend_from_slice(&weight.to_le_bytes());
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
    /// Subgroups over rows. Those of a ring copy at most as many rows, and columns, at once as there are.
    across: usize,
    /// Stages of a ring.
    stages: usize,
    /// Whether each run has subgroups, and a ring, of its own.
    beside: bool,
    /// What it costs, in ns: to start and end; for as many workgroups as there is room for; for each stage of these; for a million bytes
    /// that are copied, whoever copies them.
    costs: [usize; 4],
}

/// Workgroup memory that every GPU has.
const SHARED_BYTES: u64 = 48 << 10;

/// From the smallest to the largest, those of subgroups that multiply together last. Costs are of an H200: fitted to the times of 36 shapes
/// (256 × 256, 512 × 2048 and 1024 × 4096, 8 to 4,096 rows); those of one row, of 128 × 128 and of 192 × 64 are set by a few times each. Of the
/// tiles that were timed at all 36 it chooses the fastest but for 0.8 % in the mean, and 13 % at most (96 rows of 512 × 2048).
pub(crate) const TILES: [Tile; 18] = {
    const fn beside([rows, columns]: [usize; 2], stages: usize, costs: [usize; 4]) -> Tile {
        Tile { rows, columns, down: 1, across: 1, stages, beside: true, costs }
    }
    const fn tile([rows, columns]: [usize; 2], [down, across]: [usize; 2], stages: usize, costs: [usize; 4]) -> Tile {
        Tile { rows, columns, down, across, stages, beside: false, costs }
    }
    const fn four([rows, columns]: [usize; 2], stages: usize, costs: [usize; 4]) -> Tile {
        Tile { rows, columns, down: 4, across: 1, stages, beside: true, costs }
    }
    [
        beside([1, 16], 8, [960, 0, 0, 285]),
        beside([1, 32], 4, [1020, 0, 0, 265]),
        beside([16, 16], 2, [1119, 0, 0, 191]),
        beside([16, 32], 4, [976, 0, 7, 219]),
        beside([16, 64], 4, [1073, 0, 55, 177]),
        beside([32, 32], 4, [1073, 0, 42, 176]),
        beside([32, 64], 3, [1296, 0, 44, 257]),
        beside([64, 64], 3, [1027, 1061, 0, 192]),
        tile([64, 64], [2, 2], 7, [1021, 866, 108, 153]),
        tile([128, 64], [2, 4], 3, [1809, 728, 283, 121]),
        tile([128, 128], [2, 4], 3, [0, 2900, 780, 40]),
        tile([32, 64], [4, 1], 16, [1205, 0, 125, 103]),
        tile([64, 64], [4, 1], 8, [905, 844, 115, 60]),
        tile([64, 64], [4, 1], 6, [1588, 113, 124, 83]),
        tile([128, 64], [4, 1], 8, [1118, 1469, 89, 85]),
        tile([128, 64], [4, 1], 4, [1762, 129, 188, 73]),
        tile([192, 64], [4, 1], 3, [1000, 3500, 400, 20]),
        four([32, 64], 4, [787, 1024, 57, 75]),
    ]
};

/// The most workgroups of a multiprocessor that are counted on.
const RESIDENT_MOST: usize = 2;

/// Registers of a multiprocessor, and those of a work-item besides sums.
const REGISTERS: usize = 65_536;
const REGISTERS_BESIDES: usize = 80;

/// What a row of an item's units takes behind the products of a wave, in ns: operands that are waited for, logistic functions, and stores.
const UNIT: usize = 250;

impl Tile {
    /// The tile that is done first with `rows` rows, of a contraction that so many columns of a unit go on with, if any do, on as many
    /// `multiprocessors`. Workgroup memory is at most what the GPU `takes`, which rings of fewer stages fit and the smallest tiles
    /// never pass.
    pub fn of(
        contraction: &Contraction,
        of_unit: Option<usize>,
        rows: usize,
        multiprocessors: usize,
        takes: &Takes,
    ) -> Self {
        let (k, multiprocessors) = (contraction.k(), multiprocessors.max(1));
        let room = usize::try_from(takes.shared_bytes_max.max(SHARED_BYTES)).unwrap_or(usize::MAX);
        let cost = |tile: &Self| {
            let groups = rows.div_ceil(tile.rows) * contraction.n.div_ceil(tile.columns);
            let items = tile.rings(k) * tile.down * tile.across * LANES;
            let sums = if tile.beside { 1 } else { 2 } * tile.rows * tile.columns;
            let by_registers = REGISTERS / (items * REGISTERS_BESIDES + sums);
            let resident = by_registers.min(room / tile.memory(k)).clamp(1, RESIDENT_MOST);
            let (waves, stages) = (groups.div_ceil(multiprocessors * resident), row(k) / STAGE);
            let units = of_unit.map_or(0, |columns| (tile.rows * tile.columns / columns.max(1)).div_ceil(items));
            let copied = groups * (tile.rows + tile.columns) * row(k) * 2;
            let [start, wave, stage, copies] = tile.costs;
            start + waves * (wave + stages * stage + units * UNIT) + copied.saturating_mul(copies) / 1_000_000
        };
        // Of equal ones the smaller; one row has tiles of its own, which read it once for all columns.
        let suits = |tile: &&Self| {
            let fills = (tile.rows == 1) == (rows == 1) && tile.rows < 2 * rows.next_multiple_of(SIDE);
            fills && tile.divides(k) && (takes.multiplies_in_groups() || !tile.is_grouped())
        };
        let fitted = |tile: &Self| {
            let stages = (2..=tile.stages).rev();
            stages.map(|stages| Self { stages, ..*tile }).find(|tile| tile.memory(k) <= room)
        };
        TILES.iter().filter(suits).filter_map(fitted).min_by_key(cost).unwrap_or(TILES[2])
    }

    /// Whether each subgroup of a ring has columns of its own and all rows: what hardware multiplies for four subgroups at once.
    const fn is_grouped(&self) -> bool {
        self.across == 1 && self.down * SIDE == self.columns && self.down.is_multiple_of(4)
    }

    /// The smallest of subgroups that multiply together, of one ring.
    pub fn grouped() -> Option<Self> {
        TILES.into_iter().find(|tile| tile.is_grouped() && !tile.beside)
    }

    /// Whether rings whose subgroups wait for those of others have as many stages each.
    pub fn divides(&self, k: usize) -> bool {
        !self.beside || self.down * self.across == 1 || (row(k) / STAGE).is_multiple_of(self.turns_of_ring(k))
    }

    /// Terms between rows, and columns, in workgroup memory: 16 bytes more than a stage, so that the eight that are read at once are in
    /// banks of their own; where subgroups multiply together, none, as the hardware wants them.
    const fn pitch(&self) -> usize {
        if self.is_grouped() { STAGE } else { STAGE + PIECE }
    }

    /// What workgroup memory begins at a multiple of, in bytes: eight columns as the hardware wants them.
    const fn align(&self) -> usize {
        if self.is_grouped() { 8 * STAGE * 2 } else { 16 }
    }

    /// Stages of K that go through one ring; the last may have fewer.
    fn turns_of_ring(&self, k: usize) -> usize {
        if self.beside { run(k) / STAGE } else { row(k) / STAGE }
    }

    /// Stages that are copied before the first product: all, where there is room for all.
    fn ahead(&self, k: usize) -> usize {
        let turns = self.turns_of_ring(k);
        if turns <= self.stages { turns } else { self.stages - 1 }
    }

    /// Stages of a ring.
    fn ring(&self, k: usize) -> usize {
        self.stages.min(self.turns_of_ring(k))
    }

    /// Rings, each with subgroups of its own.
    fn rings(&self, k: usize) -> usize {
        if self.beside { runs(k) } else { 1 }
    }

    /// Rows of sums: whole fragments.
    const fn summed(&self) -> usize {
        self.rows.next_multiple_of(SIDE)
    }

    /// Columns between rows of sums, likewise.
    const fn width(&self) -> usize {
        self.columns + 4
    }

    /// Bytes of workgroup memory. Sums lie where stages did.
    fn memory(&self, k: usize) -> usize {
        let staged = self.ring(k) * (self.rows + self.columns) * self.pitch() * 2;
        self.rings(k) * staged.max(self.summed() * self.width() * 4)
    }

    /// Fragments of a subgroup over columns and over rows.
    fn fragments(&self) -> [usize; 2] {
        [self.columns / self.down / SIDE, (self.rows / self.across).div_ceil(SIDE)]
    }
}

/// Rows to be packed.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    pub contraction: &'a Contraction,
    /// Elements of a seat, or a state's row, of the storage of each term; 0 where one value serves all.
    pub seat_elements: &'a [usize],
    /// Terms that others write, not all.
    pub handed: &'a [usize],
}

impl Packed<'_> {
    /// Pieces of a row that others write: the first, and how many; and the start of a term that is looked at.
    fn others(&self) -> (Vec<(usize, usize)>, usize) {
        let (mut others, mut there, mut done) = (Vec::new(), 0, 0);
        for (at, term) in self.contraction.terms.iter().enumerate() {
            if self.handed.contains(&at) {
                others.push((done / PIECE, term.k() / PIECE));
            } else {
                there = done;
            }
            done += term.k();
        }
        (others, there)
    }

    /// Pieces of a row that are written. What fills it up behind its last piece is zero from the start.
    fn pieces(&self) -> usize {
        let (others, _) = self.others();
        self.contraction.k().div_ceil(PIECE) - others.iter().map(|(_, count)| count).sum::<usize>()
    }
}

/// The text that packs all `rows` in one launch, for turns of `seating`, its kernel called `pack`. Rows are zero before its first launch.
/// Launch arguments: the seats; for each of `rows` a buffer for each term, whole storages, and its rows of [`row_bytes`]; the turn's
/// block, if a term is a state. Workload: the seats.
pub(crate) fn pack_text(rows: &[Packed<'_>], seating: Seating<'_>) -> String {
    let mut text = String::from("kernel.def export(\"pack\") @pack(%seats: index) {\n");
    let constant = |name: &str, value: usize| format!("  %{name} = index.constant {value} : index\n");
    // Pieces of a seat, of the rows that have the most.
    let most = rows.iter().map(|packed| packed.pieces() * packed.contraction.positions).max().unwrap_or(0);
    for (name, value) in [("one", 1), ("size", PACKERS), ("less", PACKERS - 1), ("each", rows.len()), ("most", most)] {
        text += &constant(name, value);
    }
    text += "  %all = index.mul %seats, %most : index\n";
    text += "  %padded = index.add %all, %less : index\n  %groups = index.div %padded, %size : index\n";
    text += "  kernel.launch.config workgroups(%groups, %each, %one) workgroup_size(%size, %one, %one) : index\n";
    let (mut arguments, mut writers, mut terms) = (String::new(), Vec::new(), 0);
    for (number, &Packed { contraction, seat_elements, .. }) in rows.iter().enumerate() {
        writers.push(Writer {
            contraction,
            first_term: terms,
            seat_elements,
            out_seat_elements: 0,
            seating,
            cell: None,
            hands: &[],
            text: String::new(),
        });
        let own = terms..terms + contraction.terms.len();
        terms = own.end;
        arguments.extend(own.map(|at| format!("%left{at}: buffer, ")));
        arguments += &format!("%packed{number}: buffer, ");
    }
    let block = writers.iter().map(Writer::block_argument).find(|argument| !argument.is_empty()).unwrap_or_default();
    let arguments = arguments.trim_end_matches(", ");
    text += &format!("}} launch(%given: index, {arguments}{block}) {{\n  %which = kernel.workgroup.id<y> : index\n");
    for (number, (packed, mut writer)) in rows.iter().zip(writers).enumerate() {
        if rows.len() > 1 {
            text += &constant(&format!("number{number}"), number);
            text += &format!("  %is{number} = index.cmp eq, %which, %number{number} : index\n");
            text += &format!("  scf.if %is{number} {{\n");
        }
        pack(&mut writer, packed, number, most);
        text += &writer.text;
        if rows.len() > 1 {
            text += "  }\n";
        }
    }
    text + "  kernel.return\n}\n"
}

/// What packs `packed`, the rows of this `number` of its launch, which has items for `most` pieces of a seat.
fn pack(text: &mut Writer<'_>, packed: &Packed<'_>, number: usize, most: usize) {
    let &Packed { contraction, seat_elements, handed } = packed;
    let (k, row, pieces) = (contraction.k(), row(contraction.k()), packed.pieces());
    let together = if is_aligned(contraction, seat_elements) { 4 } else { 1 };
    let (others, there) = packed.others();
    text.seats();
    text.term_views();
    let view = format!("view<[%rows]x{row}xbf16>");
    line!(text, "  %x = buffer.view %packed{number}[%start] : buffer -> {view}");
    for (name, value) in [("size", PACKERS), ("pieces", pieces), ("piece", PIECE), ("k", k), ("there", there)] {
        text.index(name, value);
    }
    line!(text, "  %item = kernel.workitem.id<x> : index");
    line!(text, "  %group = kernel.workgroup.id<x> : index");
    // Of whole workgroups, so that it is counted in 32 bits where that is enough.
    let last = (most * text.seating.max_seats).next_multiple_of(PACKERS);
    line!(text, "  %number = index.madd %group, %size, %item : index");
    line!(text, "  %e = index.assume %number [range(%number, 0, {last})] : index");
    line!(text, "  %row = index.div %e, %pieces : index");
    line!(text, "  %own = index.rem %e, %pieces : index");
    let mut piece = "%own".to_owned();
    for (at, (first, count)) in others.iter().enumerate() {
        text.index(&format!("others{at}"), *first);
        text.index(&format!("skipped{at}"), *count);
        line!(text, "  %ahead{at} = index.cmp ult, {piece}, %others{at} : index");
        line!(text, "  %behind{at} = index.add {piece}, %skipped{at} : index");
        line!(text, "  %piece{at} = scf.select %ahead{at}, {piece}, %behind{at} : index");
        piece = format!("%piece{at}");
    }
    line!(text, "  %to = index.mul {piece}, %piece : index");
    line!(text, "  %live = index.cmp ult, %row, %rows : index");
    line!(text, "  scf.if %live {{");
    let ty = lanes_type(together);
    if together > 1 {
        line!(text, "  %nothings = vector.splat %nothing : {ty}");
    }
    let nothing = if together == 1 { "nothing" } else { "nothings" };
    let loads = PIECE / together;
    for j in 0..loads {
        text.index(&format!("j{j}"), j * together);
        line!(text, "  %kk{j}u = index.add %to, %j{j} : index");
        line!(text, "  %is{j} = index.cmp ult, %kk{j}u, %k : index");
        // Where zeros are wanted, something that is there is looked at.
        line!(text, "  %kk{j} = scf.select %is{j}, %kk{j}u, %there : index");
        line!(text, "  %row{j} = index.min %row, %lastrow : index");
        text.operand(&j.to_string(), 0, 0, Terms::But(handed), "", together);
        line!(text, "  %v{j} = scf.select %is{j}, %o{j}, %{nothing} : {ty}");
    }
    for j in 0..loads {
        if together == 1 {
            line!(text, "  %h{j} = scalar.fptrunc %v{j} : f32 to bf16");
            line!(text, "  view.store %h{j}, %x[%row, %kk{j}u] : bf16, {view}");
        } else {
            line!(text, "  %h{j} = vector.fptrunc %v{j} : {ty} to vector<{together}xbf16>");
            line!(text, "  vector.store %h{j}, %x[%row, %kk{j}u] : vector<{together}xbf16>, {view}");
        }
    }
    line!(text, "  }}");
}

/// The text of `contraction` in workgroups of `tile`, for turns of `seating`, its kernel called `contract`. Launch arguments:
/// the seats; rows as [`pack_text`] writes them; the rest as of [`contract::text`](crate::contract::text), `cell` and `hands` too, with
/// weights as [`packed_bytes`] makes them. Workload: the seats. `None` for an activation that this has no form for.
pub(crate) fn text(
    contraction: &Contraction,
    out_seat_elements: usize,
    tile: Tile,
    seating: Seating<'_>,
    cell: Option<Cell<'_>>,
    hands: &[Hand],
) -> Option<String> {
    let writer = Writer {
        contraction,
        first_term: 0,
        seat_elements: &[],
        out_seat_elements,
        seating,
        cell,
        hands,
        text: String::new(),
    };
    let mut text = Text { writer, tile };
    text.head();
    text.places();
    let (rings, [view, _], extent) = (text.rings(), text.sums_views(), text.extent());
    text.writer.meet_early(extent);
    let sums = text.products();
    text.hold(&sums);
    text.writer.meet(extent, &Text::<Tile>::sum(rings, &view))?;
    Some(text.writer.text)
}

/// Whether four terms that begin at a multiple of four lie in one piece at a multiple of 16 bytes, for every row.
fn is_aligned(contraction: &Contraction, seat_elements: &[usize]) -> bool {
    let positions = contraction.positions;
    let of_term = |(term, seat): (&Term, &usize)| {
        let parts =
            [*seat, term.offset, step(positions, term.position_stride), step(term.taps, term.tap_stride), term.tap_len];
        parts.iter().all(|part| part.is_multiple_of(4))
    };
    contraction.terms.iter().zip(seat_elements).all(of_term)
}

/// What is copied of a stage: rows or weights, which are lines of it.
struct Copied {
    name: &'static str,
    lines: usize,
    /// Lines that all items copy at once, and how many times that.
    step: usize,
    times: usize,
    /// The views copied from and to. Of one rank, with what changes from time to time along axes of its own, so that it is a constant.
    views: [String; 2],
}

impl Text<'_, Tile> {
    fn ring(&self) -> usize {
        self.tile.ring(self.contraction.k())
    }

    /// Terms of a row.
    fn row(&self) -> usize {
        row(self.contraction.k())
    }

    fn rings(&self) -> usize {
        self.tile.rings(self.contraction.k())
    }

    /// Work-items of a ring.
    const fn workers(&self) -> usize {
        self.tile.down * self.tile.across * LANES
    }

    /// Work-items.
    fn items(&self) -> usize {
        self.rings() * self.workers()
    }

    fn extent(&self) -> Extent {
        let Tile { rows, columns, .. } = self.tile;
        Extent { rows, columns, items: self.items(), together: 4 }
    }

    /// Lines that are copied at once.
    fn step(&self) -> usize {
        self.workers() / (STAGE / PIECE)
    }

    fn rows_copied(&self) -> Copied {
        let (lines, step, pitch, ring) = (self.tile.rows, self.step(), self.tile.pitch(), self.ring());
        let (times, whole) = (lines.div_ceil(step), step.min(lines));
        let views = [
            format!("view<1x1x{times}x{whole}x{}xbf16>", self.row()),
            format!("view<{ring}x1x{times}x{whole}x{pitch}xbf16>"),
        ];
        Copied { name: "x", lines, step, times, views }
    }

    fn weights_copied(&self) -> Copied {
        let (lines, step, pitch, ring) = (self.tile.columns, self.step(), self.tile.pitch(), self.ring());
        let part = step.min(SIDE);
        let (tiles, parts, stages) = (lines / SIDE, SIDE / part, self.row() / STAGE);
        let views = [
            format!("view<{tiles}x{stages}x{parts}x{part}x{STAGE}xbf16>"),
            format!("view<{ring}x{tiles}x{parts}x{part}x{pitch}xbf16>"),
        ];
        Copied { name: "w", lines, step, times: lines.div_ceil(step), views }
    }

    /// The views of rows and of weights that the fragments of a subgroup are read by: stages, fragments, a tile.
    fn staged_views(&self) -> [String; 2] {
        let (ring, depth, [down, across]) = (self.ring(), STAGE, self.tile.fragments());
        [
            format!("view<{ring}x{across}x{depth}x{SIDE}xbf16, %byrow>"),
            format!("view<{ring}x{down}x{SIDE}x{depth}xbf16, %bycolumn>"),
        ]
    }

    /// The view of sums as they are read, and as fragments write them.
    fn sums_views(&self) -> [String; 2] {
        let (summed, width) = (self.tile.summed(), self.tile.width());
        [
            format!("view<{}x{summed}x{width}xf32>", self.rings()),
            format!("view<{}x{summed}xf32, %sumsby>", self.tile.columns),
        ]
    }

    /// Launch and views.
    fn head(&mut self) {
        let Tile { rows, columns, .. } = self.tile;
        let extent = self.extent();
        self.begin(extent, &["left".to_owned()]);
        self.result_views();
        let [down, across] = self.tile.fragments();
        // One row is every column of a fragment.
        let (pitch, line) = (self.tile.pitch(), if rows == 1 { 0 } else { self.tile.pitch() });
        for (name, value) in [
            ("side", SIDE),
            ("product", DEPTH),
            ("subacross", self.tile.across),
            ("owncolumns", down * SIDE),
            ("ownrows", across * SIDE),
            ("columnbytes", pitch * 2),
            ("linebytes", line * 2),
            ("rowbytes", self.row() * 2),
            ("tilebytes", self.row() * SIDE * 2),
            ("tiles", columns / SIDE),
            ("ringrows", self.ring() * rows * pitch * 2),
            ("ringcolumns", self.ring() * columns * pitch * 2),
            ("ringsums", self.tile.summed() * self.tile.width() * 4),
            ("allringrows", self.rings() * self.ring() * rows * pitch * 2),
            ("subofring", self.workers() / LANES),
        ] {
            self.index(name, value);
        }
        line!(self, "  %ofring = index.div %subgroup, %subofring : index");
        line!(self, "  %part = index.rem %subgroup, %subofring : index");
        line!(self, "  %partdown = index.div %part, %subacross : index");
        line!(self, "  %partacross = index.rem %part, %subacross : index");
        line!(self, "  %partcolumn = index.mul %partdown, %owncolumns : index");
        line!(self, "  %partrow = index.mul %partacross, %ownrows : index");
        line!(self, "  %firsttile = index.mul %ofcolumns, %tiles : index");
        let bytes = self.tile.memory(self.contraction.k());
        line!(self, "  %bytes = index.constant {bytes} : offset");
        let align = self.tile.align();
        line!(self, "  %memory = buffer.alloca<workgroup> align({align}) %bytes : buffer");
        for (name, strides) in [
            ("byrow", format!("{}, {}, 1, {line}", rows * pitch, SIDE * line)),
            ("bycolumn", format!("{}, {}, {pitch}, 1", columns * pitch, SIDE * pitch)),
            ("sumsby", format!("1, {}", self.tile.width())),
        ] {
            line!(self, "  %{name} = encoding.layout.strided [{strides}] : encoding<layout>");
        }
        // Where those of the workgroup, of the ring, and of the subgroup, begin.
        for (name, of, each, from) in [
            ("ownx", "firstrow", "rowbytes", "zero"),
            ("ownw", "firsttile", "tilebytes", "zero"),
            ("ringx", "ofring", "ringrows", "zero"),
            ("ringw", "ofring", "ringcolumns", "allringrows"),
            ("subx", "partrow", "linebytes", "ringxi"),
            ("subw", "partcolumn", "columnbytes", "ringwi"),
            ("rings", "ofring", "ringsums", "zero"),
        ] {
            line!(self, "  %{name}i = index.madd %{of}, %{each}, %{from} : index");
            line!(self, "  %{name} = index.cast %{name}i : index to offset");
        }
        let ([xf, wf], [sums, made]) = (self.staged_views(), self.sums_views());
        for (copied, buffer) in [(self.rows_copied(), "left"), (self.weights_copied(), "weights")] {
            let (name, [from, to]) = (copied.name, copied.views);
            line!(self, "  %{name} = buffer.view %{buffer}[%own{name}] : buffer -> {from}");
            line!(self, "  %{name}s = buffer.view %memory[%ring{name}] : buffer -> {to}");
        }
        line!(self, "  %xf = buffer.view %memory[%subx] : buffer -> {xf}");
        line!(self, "  %wf = buffer.view %memory[%subw] : buffer -> {wf}");
        line!(self, "  %sums = buffer.view %memory[%start] : buffer -> {sums}");
        line!(self, "  %sf = buffer.view %memory[%rings] : buffer -> {made}");
        line!(self, "  %zeros = vector.splat %nothing : vector<8xf32>");
        line!(self, "  %none = vector.fragment<init> %zeros shape [%side, %side] : vector<8xf32>");
    }

    /// What a work-item copies.
    fn places(&mut self) {
        for (name, value) in [
            ("each", STAGE / PIECE),
            ("piece", PIECE),
            ("stage", STAGE),
            ("ring", self.ring()),
            ("alltiles", self.contraction.n.div_ceil(SIDE)),
        ] {
            self.index(name, value);
        }
        line!(self, "  %worker = index.madd %part, %lanes, %lane : index");
        line!(self, "  %line = index.div %worker, %each : index");
        line!(self, "  %q = index.rem %worker, %each : index");
        line!(self, "  %term = index.mul %q, %piece : index");
        // Whose lines are of a tile of weights behind the first.
        let part = self.step().min(SIDE);
        self.index("linesofpart", part);
        line!(self, "  %skippedtiles = index.div %line, %linesofpart : index");
        line!(self, "  %inpart = index.rem %line, %linesofpart : index");
        for copied in [self.rows_copied(), self.weights_copied()] {
            let name = copied.name;
            // Those that have no line name the last, and copy nothing.
            self.index(&format!("{name}last"), copied.lines.min(copied.step) - 1);
            line!(self, "  %line{name} = index.min %line, %{name}last : index");
            line!(self, "  %has{name} = index.cmp ule, %line, %{name}last : index");
            for j in 0..copied.times {
                let of = format!("{name}{j}");
                self.index(&format!("j{of}"), j);
                if name == "x" {
                    // Rows that there are not are not copied: what they would be multiplied to is not stored.
                    self.index(&format!("skip{of}"), j * copied.step);
                    line!(self, "  %rowof{of} = index.add %firstrow, %skip{of} : index");
                    line!(self, "  %row{of} = index.add %rowof{of}, %line : index");
                    line!(self, "  %is{of} = index.cmp ult, %row{of}, %rows : index");
                } else {
                    // Nor columns past the last tile's.
                    let (tile, part) = (j * copied.step / SIDE, j * copied.step % SIDE / copied.step);
                    self.index(&format!("tileof{of}"), tile);
                    self.index(&format!("part{of}"), part);
                    line!(self, "  %tile{of} = index.add %tileof{of}, %skippedtiles : index");
                    line!(self, "  %intile{of} = index.add %firsttile, %tile{of} : index");
                    line!(self, "  %is{of} = index.cmp ult, %intile{of}, %alltiles : index");
                }
                line!(self, "  %live{of} = scalar.andi %is{of}, %has{name} : i1");
            }
        }
    }

    /// `%stage{tag}`: which of K's stages `%{stage}` of the ring is, and where an item's terms of it are.
    fn stage(&mut self, tag: &str, stage: &str) {
        line!(self, "  %stage{tag} = index.add %firststage, %{stage} : index");
        line!(self, "  %k{tag} = index.madd %stage{tag}, %stage, %term : index");
    }

    /// Tokens of copies of what `copied` has of a stage into slot `%{slot}` of the ring, where `%{more}` says so.
    fn copies(&mut self, copied: &Copied, tag: &str, slot: &str, more: Option<&str>) -> Vec<String> {
        let Copied { name, times, views: [from, to], .. } = copied;
        let piece = format!("view<1x1x1x1x{PIECE}xbf16>");
        // Of whole tiles every piece is of use.
        let is_whole = *name == "w" && self.contraction.n.is_multiple_of(self.tile.columns);
        let mut tokens = Vec::new();
        for j in 0..*times {
            let (of, own) = (format!("{name}{j}{tag}"), format!("{name}{j}"));
            let (source, target) = if *name == "x" {
                (
                    format!("%zero, %zero, %j{own}, %line{name}, %k{tag}"),
                    format!("%{slot}, %zero, %j{own}, %line{name}, %term"),
                )
            } else {
                (
                    format!("%tile{own}, %stage{tag}, %part{own}, %inpart, %term"),
                    format!("%{slot}, %tile{own}, %part{own}, %inpart, %term"),
                )
            };
            line!(self, "  %src{of} = view.subview %{name}[{source}] : {from} -> {piece}");
            line!(self, "  %dst{of} = view.subview %{name}s[{target}] : {to} -> {piece}");
            let condition = match (is_whole, more) {
                (true, None) => None,
                (true, Some(more)) => Some(format!("%{more}")),
                (false, None) => Some(format!("%live{own}")),
                (false, Some(more)) => {
                    line!(self, "  %if{of} = scalar.andi %live{own}, %{more} : i1");
                    Some(format!("%if{of}"))
                }
            };
            let (masked, mask, mask_type) = match condition {
                Some(condition) => (".mask", format!(", {condition}"), ", i1"),
                None => ("", String::new(), ""),
            };
            line!(
                self,
                "  %token{of} = kernel.async.copy{masked} %src{of} to %dst{of}{mask} {{cache_scope = cu, cache_temporal = regular, \
                 direction = global_to_workgroup}} : {piece} to {piece}{mask_type} -> kernel.async.token"
            );
            tokens.push(format!("%token{of}"));
        }
        tokens
    }

    /// `%group{tag}` of the copies of `tokens`.
    fn group(&mut self, tag: &str, tokens: &[String]) {
        let types = vec!["kernel.async.token"; tokens.len()].join(", ");
        line!(self, "  %group{tag} = kernel.async.group {} : {types} -> kernel.async.group", tokens.join(", "));
    }

    /// Names of the fragments of sums of a subgroup.
    fn sums(&self, name: &str) -> Vec<String> {
        let [down, across] = self.tile.fragments();
        (0..down).flat_map(|m| (0..across).map(move |r| format!("%{name}m{m}r{r}"))).collect()
    }

    /// The sums of this subgroup: their names.
    fn products(&mut self) -> Vec<String> {
        let (k, rings) = (self.contraction.k(), self.rings());
        let (turns, of_run, of_ring) = (row(k) / STAGE, run(k) / STAGE, self.tile.turns_of_ring(k));
        let ahead = self.tile.ahead(k);
        for (name, value) in [
            ("allturns", turns),
            ("ofrun", of_run),
            ("ofringturns", of_ring),
            ("ahead", ahead),
            ("round", self.ring() - ahead),
            ("runs", runs(k)),
        ] {
            self.index(name, value);
        }
        // The stages of this ring: the first, and how many.
        line!(self, "  %firststage = index.mul %ofring, %ofringturns : index");
        if turns == rings * of_ring {
            self.index("turns", of_ring);
        } else {
            line!(self, "  %restturns = index.sub %allturns, %firststage : index");
            line!(self, "  %turns = index.min %restturns, %ofringturns : index");
        }
        // The last ring may have fewer stages than are under way.
        let is_short = turns - (rings - 1) * of_ring < ahead;
        // Weights first: nobody writes them, so they are on their way before the rows are made.
        let mut tokens = Vec::new();
        for s in 0..ahead {
            let tag = s.to_string();
            self.index(&format!("s{s}"), s);
            if is_short {
                line!(self, "  %isstage{s} = index.cmp ult, %s{s}, %turns : index");
            }
            self.stage(&tag, &format!("s{s}"));
            let more = is_short.then(|| format!("isstage{s}"));
            tokens.extend(self.copies(&self.weights_copied(), &tag, &format!("s{s}"), more.as_deref()));
        }
        let extent = self.extent();
        // Before anybody is waited for, if that may be: each looks for its row first, and then for what lies there.
        let is_early = self.writer.has_all();
        if is_early {
            self.writer.meet_operands(extent);
        }
        for s in 0..ahead {
            let more = is_short.then(|| format!("isstage{s}"));
            tokens.extend(self.copies(&self.rows_copied(), &s.to_string(), &format!("s{s}"), more.as_deref()));
            self.group(&s.to_string(), &tokens);
            tokens.clear();
        }
        if !is_early {
            self.writer.meet_operands(extent);
        }
        (0..self.tile.fragments()[0]).for_each(|m| self.index(&format!("m{m}"), m));
        (0..self.tile.fragments()[1]).for_each(|r| self.index(&format!("r{r}"), r));
        (0..STAGE / DEPTH).for_each(|d| self.index(&format!("d{d}"), d * DEPTH));
        // Groups of the copies under way, the oldest first.
        let groups = |name: &str| (0..ahead).map(|at| format!("%{name}{at}")).collect::<Vec<_>>();
        if rings == runs(k) {
            let under_way = [&groups("group")[..], &["%zero".to_owned()]].concat();
            return self.chain("", &under_way, ["zero", "turns"]).0;
        }
        // What a sum from minus zero begins with has its own sign.
        line!(self, "  %minus = scalar.constant -0.0 : f32");
        line!(self, "  %minuses = vector.splat %minus : vector<8xf32>");
        line!(self, "  %less = vector.fragment<init> %minuses shape [%side, %side] : vector<8xf32>");
        let (totals, before) = (self.sums("total"), self.sums("totalbefore"));
        let carried = [groups("outer"), vec!["%outerslot".to_owned()]].concat();
        let given = [groups("group"), vec!["%zero".to_owned()]].concat();
        let initial = before.iter().map(|name| format!("{name} = %less"));
        let initial = initial.chain(carried.iter().zip(&given).map(|(name, from)| format!("{name} = {from}")));
        let initial = initial.collect::<Vec<_>>().join(", ");
        let results = [&totals[..], &groups("last"), &["%lastslot".to_owned()]].concat().join(", ");
        let types = self.carried_types(before.len());
        line!(self, "  {results} = scf.for %nth = [%zero to %runs step %one]({initial} : {types}) -> ({types}) {{");
        line!(self, "  %runfrom = index.mul %nth, %ofrun : index");
        line!(self, "  %runfull = index.add %runfrom, %ofrun : index");
        line!(self, "  %runto = index.min %runfull, %turns : index");
        let (sums, under_way) = self.chain("in", &carried, ["runfrom", "runto"]);
        let added = self.sums("added");
        for ((added, before), sum) in added.iter().zip(&before).zip(&sums) {
            line!(self, "  {added} = vector.addf {before}, {sum} : vector<8xf32>");
        }
        line!(self, "  scf.yield {} : {types}", [added, under_way].concat().join(", "));
        line!(self, "  }}");
        totals
    }

    /// Types of so many sums, of the groups under way, and of a slot.
    fn carried_types(&self, sums: usize) -> String {
        let ahead = self.tile.ahead(self.contraction.k());
        let types = [vec!["vector<8xf32>"; sums], vec!["kernel.async.group"; ahead], vec!["index"]];
        types.concat().join(", ")
    }

    /// The sums of a chain over stages `from` to `to` of the ring, what is `given` under way and its slot, and likewise what is behind
    /// it; names end in `tag`.
    fn chain(&mut self, tag: &str, given: &[String], [from, to]: [&str; 2]) -> (Vec<String>, Vec<String>) {
        let k = self.contraction.k();
        let (of_ring, ahead) = (self.tile.turns_of_ring(k), self.tile.ahead(k));
        let [down, across] = self.tile.fragments();
        let numbered = |name: &str| (0..ahead).map(|at| format!("%{name}{tag}{at}")).collect::<Vec<_>>();
        let (acc, before) = (self.sums("acc"), self.sums("before"));
        let (carried, mut behind) = ([numbered("carried"), vec!["%slot".to_owned()]].concat(), numbered("behind"));
        behind.push(format!("%slotbehind{tag}"));
        let initial = before.iter().map(|name| format!("{name} = %none"));
        let initial = initial.chain(carried.iter().zip(given).map(|(name, from)| format!("{name} = {from}")));
        let initial = initial.collect::<Vec<_>>().join(", ");
        let types = self.carried_types(acc.len());
        let results = [&acc[..], &behind].concat().join(", ");
        line!(self, "  {results} = scf.for %at = [%{from} to %{to} step %one]({initial} : {types}) -> ({types}) {{");
        line!(self, "  kernel.async.wait {} {{newer_groups = {}}} : kernel.async.group", carried[0], ahead - 1);
        // Copies of this stage are seen by all, and the stage before is read by nobody any more.
        let scope = if self.workers() == LANES { "subgroup" } else { "workgroup" };
        line!(self, "  kernel.barrier<workgroup> scope({scope}) ordering(acq_rel)");
        line!(self, "  %slotmore = index.add %slot, %one : index");
        line!(self, "  %isin = index.cmp ult, %slotmore, %ring : index");
        line!(self, "  %slotthen = scf.select %isin, %slotmore, %zero : index");
        let [rows, weights] = self.staged_views();
        let operand = format!("vector<{DEPTH}xbf16>");
        let mut sums = before;
        for d in 0..STAGE / DEPTH {
            for m in 0..down {
                let at = format!("%wf[%slot, %m{m}, %zero, %d{d}] shape [%side, %product]");
                line!(self, "  %lf{d}_{m} = vector.fragment.load<lhs> {at} : {weights} -> {operand}");
            }
            for r in 0..across {
                let at = format!("%xf[%slot, %r{r}, %d{d}, %zero] shape [%product, %side]");
                line!(self, "  %rf{d}_{r} = vector.fragment.load<rhs> {at} : {rows} -> {operand}");
            }
            if d == 0 && !self.tile.is_grouped() {
                // Behind the first loads, which products wait for.
                self.refill(ahead < of_ring);
            }
            let after = self.sums(&format!("sum{d}"));
            for (at, (before, after)) in sums.iter().zip(&after).enumerate() {
                let (m, r) = (at / across, at % across);
                line!(
                    self,
                    "  {after} = vector.mma %lf{d}_{m}, %rf{d}_{r}, {before} : {operand}, {operand}, vector<8xf32>"
                );
            }
            sums = after;
        }
        if self.tile.is_grouped() {
            // While these products are under way.
            self.refill(ahead < of_ring);
        }
        let more = ["%groupnext".to_owned(), "%slotthen".to_owned()];
        let yielded = [&sums[..], &carried[1..ahead], &more].concat().join(", ");
        line!(self, "  scf.yield {yielded} : {types}");
        line!(self, "  }}");
        (acc, behind)
    }

    /// `%groupnext`: the stage behind those under way, if there are `more`, into the slot of the one that was multiplied last.
    fn refill(&mut self, more: bool) {
        if !more {
            line!(self, "  %groupnext = kernel.async.group -> kernel.async.group");
            return;
        }
        line!(self, "  %then = index.add %at, %ahead : index");
        line!(self, "  %morenext = index.cmp ult, %then, %turns : index");
        line!(self, "  %isback = index.cmp uge, %slot, %round : index");
        line!(self, "  %slotback = index.sub %slot, %round : index");
        line!(self, "  %slotahead = index.add %slot, %ahead : index");
        line!(self, "  %slotnext = scf.select %isback, %slotback, %slotahead : index");
        self.stage("next", "then");
        let mut tokens = Vec::new();
        for copied in [self.rows_copied(), self.weights_copied()] {
            tokens.extend(self.copies(&copied, "next", "slotnext", Some("morenext")));
        }
        self.group("next", &tokens);
    }

    /// Sums to workgroup memory.
    fn hold(&mut self, sums: &[String]) {
        // Until here the same memory held stages.
        line!(self, "  kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
        let ([_, made], [_, across]) = (self.sums_views(), self.tile.fragments());
        for (at, sum) in sums.iter().enumerate() {
            let (m, r) = (at / across, at % across);
            self.index(&format!("along{at}"), m * SIDE);
            self.index(&format!("across{at}"), r * SIDE);
            line!(self, "  %sumcolumn{at} = index.add %partcolumn, %along{at} : index");
            line!(self, "  %sumrow{at} = index.add %partrow, %across{at} : index");
            let to = format!("%sf[%sumcolumn{at}, %sumrow{at}] shape [%side, %side]");
            line!(self, "  vector.fragment.store<result> {sum}, {to} : vector<8xf32>, {made}");
        }
        line!(self, "  kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
    }

    /// A [`Summed`](crate::writer::Summed).
    fn sum(rings: usize, view: &str) -> impl Fn(&mut Writer<'_>, &str, &str, &str, usize) -> String {
        move |writer, row, column, of, together| {
            let (load, add) = if together == 1 { ("view.load", "scalar.addf") } else { ("vector.load", "vector.addf") };
            let ty = lanes_type(together);
            let mut sum = format!("%sum{of}_0");
            for ring in 0..rings {
                writer.index(&format!("sumof{of}_{ring}"), ring);
                line!(
                    writer,
                    "      %sum{of}_{ring} = {load} %sums[%sumof{of}_{ring}, {row}, {column}] : {view} -> {ty}"
                );
            }
            for ring in 1..rings {
                line!(writer, "      %sums{of}_{ring} = {add} {sum}, %sum{of}_{ring} : {ty}");
                sum = format!("%sums{of}_{ring}");
            }
            sum
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;
    use crate::image;
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
            // Several columns may be stored at once, or not.
            out_offset: if n.is_multiple_of(4) { 4 } else { 1 },
            out_position_stride: if n.is_multiple_of(4) { n + 8 } else { n + 5 },
        };
        let out_len = contraction.out_offset + (POSITIONS - 1) * contraction.out_position_stride + n;
        Case { contraction, seat_elements: [own, 0], data: [floats(SEATS * own), floats(shared)], out_len }
    }

    impl Case {
        /// The result in the order that [`SUMS`] tells, each product exact and each addition rounded, by conversions of another
        /// crate; 9 where nothing is written.
        fn expected(&self) -> Vec<f32> {
            let Contraction { terms, weights, bias, n, out_offset, out_position_stride, .. } = &self.contraction;
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
                expected[seat * self.out_len + out_offset + position * out_position_stride + column] = result;
            }
            expected
        }

        fn text(&self, tile: Tile) -> String {
            // For more rows than any tile has, so that no piece is known to be of none.
            text(&self.contraction, self.out_len, tile, Seating::of(99), None, &[]).expect("the activation is known")
        }

        /// The result by the interpreter, which multiplies fragments as chains of fused multiply-adds.
        fn run(&self, tile: Tile) -> Vec<f32> {
            let bytes = |floats: &[f32]| bytemuck::cast_slice::<f32, u8>(floats).to_vec();
            let Contraction { weights, bias, n, .. } = &self.contraction;
            let mut terms = [bytes(&self.data[0]), bytes(&self.data[1])];
            let mut rows = vec![0; SEATS * POSITIONS * row_bytes(&self.contraction)];
            let mut out = bytes(&vec![9.0; SEATS * self.out_len]);
            let pack = packing(&self.contraction, &self.seat_elements, &[], 5);
            launch("pack", pack, terms.iter_mut().chain([&mut rows]));
            let mut weights = packed_bytes(weights, self.contraction.k(), *n);
            let mut bias = bytes(bias.as_deref().unwrap_or_default());
            launch("contract", self.text(tile), [&mut rows, &mut weights, &mut bias, &mut out]);
            out.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
        }
    }

    fn packing(contraction: &Contraction, seat_elements: &[usize], handed: &[usize], most: usize) -> String {
        pack_text(&[Packed { contraction, seat_elements, handed }], Seating::of(most))
    }

    fn launch<'a>(name: &str, text: String, buffers: impl IntoIterator<Item = &'a mut Vec<u8>>) {
        let module = image::text("contract.loom", text.clone(), name).module();
        let module = module.unwrap_or_else(|error| panic!("{error}\n{text}"));
        let kernel = module.specialise(name, &Default::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let geometry = kernel.launch.geometry(&[SEATS as u64]).expect("a geometry");
        let mut arguments = vec![Argument::Scalar(SEATS as u64)];
        arguments.extend(buffers.into_iter().map(|buffer| Argument::Buffer(buffer)));
        interp::run(&kernel, geometry, &mut arguments, Limits::default()).unwrap_or_else(|fault| panic!("{fault}"));
    }

    /// Every tile gives the bits of the order that is told, and touches nothing outside of its buffers: K of one stage and of
    /// several, the last filled up; terms that meet inside of a step and inside of four; columns past the last.
    #[test]
    fn tiles_add_in_the_order_that_is_told() {
        for (terms, n) in
            [([1, 3, 2], 5), ([2, 40, 72], 70), ([2, 41, 70], 33), ([3, 100, 352], 40), ([1, 300, 277], 20)]
        {
            let case = case(terms, n, Activation::Relu);
            let expected = case.expected();
            for tile in TILES.into_iter().filter(|tile| tile.divides(case.contraction.k())) {
                let found = case.run(tile);
                let differs = found.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
                if let Some(at) = differs {
                    panic!("{terms:?} to {n} in {tile:?}: element {at} is {}, not {}", found[at], expected[at]);
                }
            }
        }
    }

    /// What one contraction hands to another is what the other would pack: in one run and in two, with zeros between, from a column other
    /// than the first on, and stored one by one or several at once.
    #[test]
    fn rows_that_are_handed_on_are_those_that_are_packed() {
        let bytes = |floats: &[f32]| bytemuck::cast_slice::<f32, u8>(floats).to_vec();
        for (n, from, count, rest) in
            [(40, 0, 40, 24), (64, 0, 64, 64), (40, 8, 24, 8), (64, 0, 64, 0), (70, 5, 56, 56)]
        {
            let case = case([2, 40, 72], n, Activation::Relu);
            let maker = &case.contraction;
            let term = |storage, offset, position_stride, tap_len| Term {
                storage: StorageId(storage),
                offset,
                position_stride,
                taps: 1,
                tap_stride: 0,
                tap_len,
            };
            let made = term(2, maker.out_offset + from, maker.out_position_stride, count);
            let shared = term(1, 4, 4, rest);
            let orders = if rest == 0 { vec![vec![made]] } else { vec![vec![made, shared], vec![shared, made]] };
            for terms in orders {
                let at = usize::from(terms[0] == shared);
                let seat_elements: &[usize] = match (at, rest) {
                    (_, 0) => &[case.out_len],
                    (0, _) => &[case.out_len, 0],
                    _ => &[0, case.out_len],
                };
                let reader = Contraction { terms, n: 8, ..maker.clone() };
                assert!(in_pieces(at * rest, count));
                let hands = [hand(&reader, at, 0, from)];
                let mut memory = [bytes(&case.data[0]), bytes(&case.data[1]), bytes(&vec![9.0; SEATS * case.out_len])];
                let mut bias = bytes(maker.bias.as_deref().unwrap_or_default());
                let mut rows = vec![0; SEATS * POSITIONS * row_bytes(maker)];
                launch("pack", packing(maker, &case.seat_elements, &[], 5), memory[..2].iter_mut().chain([&mut rows]));
                let mut packed = vec![0; SEATS * POSITIONS * row_bytes(&reader)];
                let mut found = packed.clone();
                let suited = TILES.iter().filter(|tile| tile.divides(maker.k()));
                let kinds = suited.map(|tile| Some(*tile)).chain([None]);
                for tile in kinds {
                    let (text, mut weights) = match tile {
                        Some(tile) => (
                            text(maker, case.out_len, tile, Seating::of(5), None, &hands),
                            packed_bytes(&maker.weights, maker.k(), n),
                        ),
                        None => {
                            let tile = contract::Tile::of(maker, 2, 132, None);
                            let text = contract::text(
                                maker,
                                &case.seat_elements,
                                case.out_len,
                                tile,
                                Seating::of(5),
                                None,
                                &hands,
                            );
                            (text, contract::packed_bytes(&maker.weights, maker.k(), n).into_owned())
                        }
                    };
                    let [own, other, out] = &mut memory;
                    let lefts = if tile.is_some() { vec![&mut rows] } else { vec![own, &mut *other] };
                    let after = [&mut weights, &mut bias, &mut *out, &mut found];
                    launch("contract", text.expect("the activation is known"), lefts.into_iter().chain(after));
                    let whole = packing(&reader, seat_elements, &[], 5);
                    let terms = if at == 0 { [&mut *out, other] } else { [other, out] };
                    let [first, second] = terms;
                    let mut lefts = vec![&mut *first];
                    if reader.terms.len() > 1 {
                        lefts.push(&mut *second);
                    }
                    launch("pack", whole, lefts.into_iter().chain([&mut packed]));
                    if reader.terms.len() > 1 {
                        let rest = packing(&reader, seat_elements, &[at], 5);
                        launch("pack", rest, [first, second, &mut found]);
                    }
                    assert!(found == packed, "{n} columns, {from} and {count} on, {tile:?}");
                    found.fill(0);
                }
            }
        }
    }

    const fn takes(shared_bytes_max: u64) -> Takes {
        let target = Sm { architecture: 90, specific: true };
        Takes { target, version: (8, 0), shared_bytes_max, overlaps: true }
    }

    /// Rows of several contractions, of as many pieces and positions as each has, by one launch: what a launch for each packs.
    #[test]
    fn rows_of_several_are_packed_at_once() {
        let bytes = |floats: &[f32]| bytemuck::cast_slice::<f32, u8>(floats).to_vec();
        let cases = [
            case([2, 40, 72], 8, Activation::None),
            case([1, 3, 2], 8, Activation::None),
            case([1, 300, 277], 8, Activation::None),
        ];
        let mut memory: Vec<Vec<u8>> = Vec::new();
        let mut expected = Vec::new();
        for case in &cases {
            let rows = vec![0; SEATS * POSITIONS * row_bytes(&case.contraction)];
            let mut own = [bytes(&case.data[0]), bytes(&case.data[1]), rows];
            let at = memory.len();
            memory.extend(own.iter().cloned());
            launch("pack", packing(&case.contraction, &case.seat_elements, &[], 5), own.iter_mut());
            expected.push((at + 2, own[2].clone()));
        }
        let all = cases.iter().map(|Case { contraction, seat_elements, .. }| Packed {
            contraction,
            seat_elements,
            handed: &[],
        });
        launch("pack", pack_text(&all.collect::<Vec<_>>(), Seating::of(5)), memory.iter_mut());
        for (at, rows) in expected {
            assert!(rows.iter().any(|byte| *byte != 0) && memory[at] == rows, "buffer {at}");
        }
    }

    /// The text of every tile becomes products of tensor cores, with operands in loads of 16 bytes, for every activation.
    #[test]
    fn texts_become_products_of_matrices() {
        for activation in [Activation::None, Activation::Relu, Activation::Sigmoid, Activation::Tanh, Activation::Silu]
        {
            let case = case([2, 40, 432], 130, activation);
            let k = case.contraction.k();
            assert_eq!((k, row(k)), (512, 512));
            let takes = Takes { target: Sm::new(90), version: (8, 0), shared_bytes_max: 227 << 10, overlaps: true };
            let ptx = |name: &str, text: String| {
                let origin = image::text("contract.loom", text, name);
                image::of_text(&origin, "node", false, 0b1100, &takes).unwrap_or_else(|error| panic!("{error}"))
            };
            // Rows are read and written in pieces, and packed whole.
            let pack = ptx("pack", packing(&case.contraction, &case.seat_elements, &[], 9));
            assert_eq!(pack.launch.geometry(&[9]).expect("a geometry").workgroups, [9 * 3 * 64 / 256 + 1, 1, 1]);
            assert!(pack.text.contains("ld.global.v4.b32") && !pack.text.contains("ld.global.b32"), "{}", pack.text);
            for tile in TILES {
                let image = ptx("contract", case.text(tile));
                let geometry = image.launch.geometry(&[9]).expect("a geometry");
                let groups = [130usize.div_ceil(tile.columns) as u32, (9 * POSITIONS).div_ceil(tile.rows) as u32, 1];
                assert_eq!(geometry.workgroups, groups);
                let count = |what: &str| image.text.matches(what).count();
                // Of 16 terms; loops of few turns are written out.
                let ([down, across], steps) = (tile.fragments(), STAGE / 16);
                let products = count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
                assert!(products > 0 && products.is_multiple_of(steps * down * across * 2), "{tile:?}");
                let fragments = products / (down * across * 2) * (down + across);
                assert_eq!(count("ldmatrix.sync.aligned.m8n8.x4.shared.b16"), fragments, "{tile:?}");
                // All that is staged is copied in pieces of 16 bytes, the rows and the weights of a stage together.
                let workers = tile.down * tile.across * LANES;
                let pieces = |lines: usize| (lines * STAGE / PIECE).div_ceil(workers);
                let copies = pieces(tile.rows) + pieces(tile.columns);
                let copied = count("cp.async.cg.shared.global");
                assert!(copied >= copies * tile.ahead(k) && copied.is_multiple_of(copies), "{tile:?}: {copied}");
                // Weights, which nobody writes, before the rows are there, and nothing else.
                let (early, _) = image.text.split_once("griddepcontrol.wait").expect("it waits");
                assert_eq!(early.matches("cp.async.cg").count(), pieces(tile.columns) * tile.ahead(k), "{tile:?}");
                assert!(!early.contains("cp.async.wait"), "{tile:?}: {early}");
                assert_eq!(copied, count("cp.async.") - count("cp.async.commit") - count("cp.async.wait"), "{tile:?}");
                // The bias is there when sums are.
                assert_eq!(
                    (count("ld.global"), early.matches("ld.global").count()),
                    (1, 1),
                    "{tile:?}: {}",
                    image.text
                );
                assert!(!image.text.contains("shfl"), "{tile:?}: {}", image.text);
            }
        }
    }

    /// Where the GPU has products of four subgroups, the tiles for them have no others: an instruction for each 16 terms of a stage, of all
    /// rows at once, and no copy of these in registers.
    #[test]
    fn grouped_tiles_multiply_four_subgroups_at_once() {
        let case = case([2, 40, 432], 130, Activation::Tanh);
        for tile in TILES.iter().filter(|tile| tile.is_grouped()) {
            let origin = image::text("contract.loom", case.text(*tile), "contract");
            let image = image::of_text(&origin, "node", false, 0b1100, &takes(227 << 10));
            let image = image.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(image.target, Sm { architecture: 90, specific: true });
            let count = |what: &str| image.text.matches(what).count();
            let products = count(&format!("wgmma.mma_async.sync.aligned.m64n{}k16.f32.bf16.bf16", tile.rows));
            assert!(products > 0 && products.is_multiple_of(STAGE / 16), "{tile:?}: {products}");
            assert_eq!(count("wgmma.mma_async"), products, "{tile:?}");
            assert_eq!((count("mma.sync"), count("ldmatrix")), (0, products), "{tile:?}");
            // Once a stage, and before every barrier.
            assert_eq!(count("wgmma.wait_group"), products / (STAGE / 16), "{tile:?}");
            assert_eq!(count("fence.proxy.async"), count("bar.sync"), "{tile:?}");
        }
    }

    /// With an assembler at hand, the text of every tile is taken, for GPUs where kernels overlap and others, and spills nothing.
    #[test]
    fn an_assembler_takes_every_tile() {
        let case = case([2, 40, 432], 130, Activation::Tanh);
        for (target, overlaps) in [("sm_80", false), ("sm_90a", true), ("sm_120", true)] {
            let sm = Sm::parse(target).expect("a target");
            let takes = Takes { target: sm, version: (9, 0), shared_bytes_max: 227 << 10, overlaps };
            let tiles = TILES.iter().filter(|tile| takes.multiplies_in_groups() || !tile.is_grouped());
            let texts = tiles.map(|tile| ("contract", case.text(*tile)));
            let pack = packing(&case.contraction, &case.seat_elements, &[], 9);
            for (name, text) in texts.chain([("pack", pack)]) {
                let origin = image::text("contract.loom", text, name);
                let image = image::of_text(&origin, "node", false, 0b1100, &takes);
                let image = image.unwrap_or_else(|error| panic!("{error}"));
                image::assemble(&image.text, target);
            }
        }
    }

    /// What fills up the last stage is zero; every weight has its place.
    #[test]
    fn weights_lie_in_tiles() {
        let (k, n) = (150, 18);
        assert_eq!(row(k), 192);
        let weights: Vec<f32> = (0..k * n).map(|at| (at % 251) as f32 + 1.0).collect();
        let packed: Vec<u16> = packed_bytes(&weights, k, n).chunks_exact(2).map(bytemuck::pod_read_unaligned).collect();
        assert_eq!(packed.len(), 2 * SIDE * 192);
        let mut places = vec![0f32; packed.len()];
        for (row, column) in (0..k).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let tile = column / SIDE * (192 / STAGE) + row / STAGE;
            places[(tile * SIDE + column % SIDE) * STAGE + row % STAGE] = weights[row * n + column];
        }
        let found: Vec<f32> = packed.into_iter().map(|bits| half::bf16::from_bits(bits).to_f32()).collect();
        assert_eq!(found, places);
    }

    /// One row has tiles of its own; many rows and columns have large ones.
    #[test]
    fn tiles_grow_with_what_there_is() {
        let of = |n: usize, rows: usize| {
            let contraction = Contraction { n, ..case([1, 4, 4], 8, Activation::None).contraction };
            Tile::of(&contraction, None, rows, 132, &takes(227 << 10))
        };
        for n in [8, 256, 2048, 4096] {
            assert_eq!(of(n, 1).rows, 1, "{n}");
            assert!(of(n, 2).rows > 1, "{n}");
        }
        // A GPU with little workgroup memory gets what fits, whatever K.
        for k in [40, 512, 2048, 8192] {
            let contraction = Contraction { n: 4096, ..case([1, 4, k - 4], 8, Activation::None).contraction };
            for rows in [1, 2, 40, 600] {
                let tile = Tile::of(&contraction, None, rows, 132, &takes(0));
                assert!(tile.memory(k) <= 48 << 10, "{rows} rows of {k}: {tile:?}");
            }
        }
        assert!(of(256, 8).columns <= 32);
        assert!(of(4096, 512).rows >= 64);
    }
}
