//! Contractions, as Loom: every element of the result is a sum in one order, whatever the number of rows.
//!
//! ```text
//! workgroup: a tile of rows and columns        subgroup c: chunk c of k        work-item: its columns, all rows
//!   a block of k at a time:  weights to registers ── operands of the rows to workgroup memory ── multiply and add
//!   at the end:              sums of the chunks to workgroup memory ── added, ascending ── bias, activation, store
//! ```
//!
//! - K is cut as [`SUMS`] says, then come bias and activation. The number of rows chooses how many share a workgroup, and never
//!   the order of a sum.
//! - Operands are found where they lie, so a convolution's patches are never written out.
//! - Not here: launch, operands and results (`writer`); what goes on with the sums in the same kernel (`cell`); tensor cores, and operands
//!   of fewer than 32 bits (`matrices`).

pub(crate) mod cell;

use self::cell::Cell;
use crate::writer::{Extent, Hand, LANES, Seating, Terms, Text, Writer, line};
use lanes_core::device::Sums;
use lanes_core::plan::Contraction;
use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

/// The most columns of a work-item.
const COLUMNS_MAX: usize = 4;

/// What a workgroup takes besides its products (to start, to wait for memory, to add the sums), in multiply-adds of all runs of one row
/// and column: some 2 µs on an H200, where 1000 of them take a sixth.
const ROUND: usize = 12_288;

/// The most rows of a work-item.
const ROWS_MAX: usize = 16;

/// Sums of a work-item from which on no weights are loaded before they are needed: registers would not do.
const SUMS_MOST: usize = 64;

/// Operands of a subgroup's rows up to which those of a whole chunk are read at once.
const STAGED_MOST: usize = 16 * LANES;

/// Sums of a work-item up to which weights are loaded [`FEW`] terms at a time, always those behind the ones that are multiplied, and 64
/// registers do: so a multiprocessor has room for two workgroups, of which the next kernel's loads while this one's ends.
const SUMS_FEW: usize = 8;

/// Terms whose weights such a work-item loads at once.
const FEW: usize = 16;

/// 16 runs, or as many of at least 8 terms as there are, so that one row keeps a multiprocessor busy. The weights of a block lie in
/// registers.
pub(crate) const SUMS: Sums = Sums { runs_max: 16, run_min: 8, block_max: 32, run_step: 1 };

/// The rows and columns of the weights as they lie in memory: of whole runs, and of whole vectors where work-items may have more
/// than one column.
fn packed(k: usize, n: usize) -> [usize; 2] {
    let [runs, blocks, block] = SUMS.cut(k);
    [runs * blocks * block, if n >= 2 * LANES { n.next_multiple_of(COLUMNS_MAX) } else { n }]
}

/// `weights` of `k` rows and `n` columns as kernels read them, zeros where there are none.
pub(crate) fn packed_bytes(weights: &[f32], k: usize, n: usize) -> Cow<'_, [u8]> {
    let [rows, columns] = packed(k, n);
    if (rows, columns) == (k, n) {
        return Cow::Borrowed(bytemuck::cast_slice(weights));
    }
    let mut packed = vec![0; rows * columns * 4];
    for (to, from) in packed.chunks_exact_mut(columns * 4).zip(weights.chunks_exact(n)) {
        to[..n * 4].copy_from_slice(bytemuck::cast_slice(from));
    }
    Cow::Owned(packed)
}

/// Rows and columns of the tiles, the largest first.
const TILES: [(usize, usize); 9] = [(16, 4), (8, 4), (16, 2), (8, 2), (16, 1), (8, 1), (4, 1), (2, 1), (1, 1)];

/// What a workgroup computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    /// Rows, all of each work-item.
    rows: usize,
    /// Columns of a work-item; its subgroup has [`LANES`] times as many.
    columns: usize,
}

impl Tile {
    /// The tile, of those that `rows` rows and the columns fill, that is done first. A multiprocessor takes one workgroup at a time (a
    /// work-item of most tiles needs more than 64 registers), so time is in rounds of as many workgroups as there are `units`; a
    /// round takes what its products take, and [`ROUND`] besides. Of equals the largest: it reads weights the fewest times.
    ///
    /// `asked` are rows and columns that somebody wants to know the time of; powers of two, as many as there is a kernel for.
    pub fn of(contraction: &Contraction, rows: usize, units: usize, asked: Option<(usize, usize)>) -> Self {
        if let Some((rows, columns)) = asked {
            let columns = if contraction.n >= 2 * LANES { columns.clamp(1, COLUMNS_MAX) } else { 1 };
            return Self { rows: rows.clamp(1, ROWS_MAX).next_power_of_two(), columns: columns.next_power_of_two() };
        }
        let fills = |tile: &Self| {
            tile.rows <= rows.max(1)
                // Those of the last workgroup that there are not are computed too.
                && (tile.columns == 1 || contraction.n.next_multiple_of(LANES * tile.columns) * 3 <= contraction.n * 4)
        };
        let takes = |tile: &Self| {
            let groups = rows.div_ceil(tile.rows) * contraction.n.div_ceil(LANES * tile.columns);
            groups.div_ceil(units.max(1)) * (ROUND + tile.rows * tile.columns * contraction.k())
        };
        let tiles = TILES.map(|(rows, columns)| Self { rows, columns });
        tiles.into_iter().filter(fills).min_by_key(takes).unwrap_or(Self { rows: 1, columns: 1 })
    }
}

/// The text of `contraction` in workgroups of `tile`, for turns of `seating`, its kernel called `contract`. Launch arguments:
/// the seats; a buffer for each term, whole storages with `seat_elements[term]` elements a seat (0 where one value serves all);
/// weights as [`packed_bytes`] makes them; bias, if there is one; the result's storage, of `out_seat_elements` a seat (0 likewise); with
/// a `cell`, whose weights lie [`cell::side_by_side`], a buffer for each of its [`cell::places`]; the packed rows of each of `hands`; the
/// turn's block, if any of these lies in a state. Workload: the seats. `None` for an activation that this has no form for.
pub(crate) fn text(
    contraction: &Contraction,
    seat_elements: &[usize],
    out_seat_elements: usize,
    tile: Tile,
    seating: Seating<'_>,
    cell: Option<Cell<'_>>,
    hands: &[Hand],
) -> Option<String> {
    let writer = Writer {
        contraction,
        first_term: 0,
        seat_elements,
        out_seat_elements,
        seating,
        cell,
        hands,
        text: String::new(),
    };
    let mut text = Text { writer, tile };
    text.head();
    let (chunks, view) = (text.cut()[0], text.sums());
    let extent = text.extent();
    text.writer.meet_early(extent);
    text.chunk();
    text.hold();
    text.writer.meet_operands(extent);
    text.writer.meet(extent, &Text::<Tile>::sum(chunks, &view))?;
    Some(text.writer.text)
}

impl Text<'_, Tile> {
    /// Chunks, blocks of a chunk, terms of a block.
    fn cut(&self) -> [usize; 3] {
        SUMS.cut(self.contraction.k())
    }

    /// Terms of the rows that lie in workgroup memory at once: a chunk's where that is little, so that they are waited for once.
    fn staged_depth(&self) -> usize {
        let [_, blocks, block] = self.cut();
        if self.tile.rows * blocks * block <= STAGED_MOST { blocks * block } else { block }
    }

    /// Elements between the rows of the operands in workgroup memory: 16 bytes more than the rows, where that keeps rows apart
    /// that would meet in a bank.
    fn pitch(&self) -> usize {
        if self.tile.rows >= 8 { self.tile.rows + 4 } else { self.tile.rows }
    }

    /// Columns of a workgroup.
    fn width(&self) -> usize {
        LANES * self.tile.columns
    }

    /// Elements between the sums of a work-item's columns, so that neither who writes nor who reads them meet in a bank.
    fn apart(&self) -> usize {
        if self.tile.columns == 1 { LANES } else { LANES + LANES / self.tile.columns }
    }

    /// The view of the chunks' sums.
    fn sums(&self) -> String {
        format!("view<{}x{}x{}x{}xf32>", self.cut()[0], self.tile.rows, self.tile.columns, self.apart())
    }

    fn extent(&self) -> Extent {
        Extent { rows: self.tile.rows, columns: self.width(), items: self.cut()[0] * LANES, together: 1 }
    }

    /// Launch, views, and what a work-item is.
    fn head(&mut self) {
        let Contraction { terms, n, .. } = self.contraction;
        let [chunks, ..] = self.cut();
        let (rows, pitch, k, depth) = (self.tile.rows, self.pitch(), self.contraction.k(), self.staged_depth());
        let [k_packed, columns] = packed(k, *n);
        let extent = self.extent();
        let lefts: Vec<String> = (0..terms.len()).map(|at| format!("left{at}")).collect();
        self.begin(extent, &lefts);
        for (name, value) in [
            ("each", self.tile.columns),
            ("lastcolumn", columns - self.tile.columns),
            ("depth", k),
            ("lastk", k - 1),
            ("chunklength", self.cut()[1] * self.cut()[2]),
        ] {
            self.index(name, value);
        }
        line!(self, "  %ahead = index.mul %lane, %each : index");
        line!(self, "  %column = index.add %firstcolumn, %ahead : index");
        line!(self, "  %firstk = index.mul %subgroup, %chunklength : index");
        self.term_views();
        self.result_views();
        line!(self, "  %w = buffer.view %weights[%start] : buffer -> view<{k_packed}x{columns}xf32>");
        let bytes = (chunks * depth * pitch).max(chunks * rows * self.tile.columns * self.apart()) * 4;
        line!(self, "  %bytes = index.constant {bytes} : offset");
        line!(self, "  %memory = buffer.alloca<workgroup> align(16) %bytes : buffer");
        line!(self, "  %xs = buffer.view %memory[%start] : buffer -> view<{chunks}x{depth}x{pitch}xf32>");
        let sums = self.sums();
        line!(self, "  %sums = buffer.view %memory[%start] : buffer -> {sums}");
    }

    /// The sums of this subgroup's chunk: `%acc`.
    fn chunk(&mut self) {
        let [chunks, blocks, block] = self.cut();
        let rows = self.tile.rows;
        let has_rest = chunks * blocks * block > self.contraction.k();
        if self.contraction.n.is_multiple_of(self.width()) {
            line!(self, "  %of = index.add %column, %zero : index");
        } else {
            // Past the last columns are multiplied what the last ones are, and nothing is stored.
            line!(self, "  %of = index.min %column, %lastcolumn : index");
        }
        let each = self.tile.columns;
        let ty = format!("vector<{rows}xf32>");
        line!(self, "  %none = vector.splat %nothing : {ty}");
        self.index("blocks", blocks);
        self.index("block", block);
        // As many weights at a time as there is room for in registers, each time those of the products after the next ones.
        // One block alone is loaded whole before anything is waited for.
        let is_ahead = blocks > 1 && rows * each <= SUMS_FEW;
        let together = if is_ahead { FEW / each } else { SUMS.block_max / each };
        let groups: Vec<Range<usize>> =
            (0..block).step_by(together).map(|from| from..block.min(from + together)).collect();
        // The first of a block are loaded before the last products of the one before, or behind them if there are many sums, and of the
        // first block before anything is waited for; sums that leave no registers for them have them at the block's start.
        let firsts = groups[0].clone();
        let carries = rows * each < SUMS_MOST;
        let named = |name: &str| match carries {
            true => firsts.clone().map(|i| format!("%{name}{i}")).collect::<Vec<_>>(),
            false => Vec::new(),
        };
        line!(self, "  %kstart = index.add %firstk, %zero : index");
        if carries {
            self.vectors(firsts.clone(), "early");
        }
        let depth = self.staged_depth();
        let is_whole = depth == blocks * block;
        if is_whole {
            self.stage(has_rest);
            line!(self, "  kernel.barrier<workgroup> scope(subgroup) ordering(acq_rel)");
        }
        let accs = |name: &str, with: &str| (0..each).map(|c| format!("%{name}{c}{with}")).collect::<Vec<_>>();
        let initial = accs("before", " = %none").into_iter();
        let carried = named("wv").into_iter().zip(named("early")).map(|(carried, from)| format!("{carried} = {from}"));
        let carried = initial.chain(carried).collect::<Vec<_>>().join(", ");
        let weight = format!("vector<{each}xf32>");
        let weights = vec![weight.as_str(); named("").len()];
        let types = [vec![ty.as_str(); each], weights.clone()].concat().join(", ");
        let results = [accs("acc", ""), named("unused")].concat().join(", ");
        line!(self, "  {results} = scf.for %at = [%zero to %blocks step %one]({carried} : {types}) -> ({types}) {{");
        line!(self, "  %skipped = index.mul %at, %block : index");
        line!(self, "  %kstart = index.add %firstk, %skipped : index");
        if !carries {
            self.vectors(firsts.clone(), "wv");
        }
        let mut next = named("wv");
        self.weights(firsts.clone());
        if !is_whole {
            self.stage(has_rest);
            line!(self, "  kernel.barrier<workgroup> scope(subgroup) ordering(acq_rel)");
        }
        let view = format!("view<{chunks}x{depth}x{}xf32>", self.pitch());
        for (at, group) in groups.iter().enumerate() {
            if let Some(next) = groups.get(at + 1) {
                self.vectors(next.clone(), "wv");
                self.weights(next.clone());
            } else if is_ahead {
                next = self.next_weights(&firsts, &next);
            }
            for i in group.clone() {
                let mut term = format!("%i{i}");
                if is_whole {
                    line!(self, "  %at{i} = index.add %skipped, {term} : index");
                    term = format!("%at{i}");
                }
                line!(self, "  %x{i} = vector.load %xs[%subgroup, {term}, %zero] : {view} -> {ty}");
                for c in 0..each {
                    let before = if i == 0 { format!("before{c}") } else { format!("acc{c}_{}", i - 1) };
                    line!(self, "  %ws{i}_{c} = vector.splat %w{i}_{c} : {ty}");
                    line!(self, "  %acc{c}_{i} = vector.fmaf %x{i}, %ws{i}_{c}, %{before} : {ty}");
                }
            }
        }
        if blocks > 1 && !is_whole {
            line!(self, "  kernel.barrier<workgroup> scope(subgroup) ordering(acq_rel)");
        }
        if !is_ahead {
            next = self.next_weights(&firsts, &next);
        }
        let yielded = [accs("acc", &format!("_{}", block - 1)), next].concat().join(", ");
        line!(self, "  scf.yield {yielded} : {types}");
        line!(self, "  }}");
    }

    /// The weights of the terms `group` of the next block, or `these` where there is none: their names.
    fn next_weights(&mut self, group: &Range<usize>, these: &[String]) -> Vec<String> {
        if self.cut()[1] == 1 || these.is_empty() {
            return these.to_vec();
        }
        let named = |name: &str| group.clone().map(|i| format!("%{name}{i}")).collect::<Vec<_>>();
        let weights = vec![format!("vector<{}xf32>", self.tile.columns); these.len()].join(", ");
        line!(self, "  %behind = index.add %at, %one : index");
        line!(self, "  %ismore = index.cmp ult, %behind, %blocks : index");
        line!(self, "  {} = scf.if %ismore -> ({weights}) {{", named("next").join(", "));
        line!(self, "  %kstart = index.madd %behind, %block, %firstk : index");
        self.vectors(group.clone(), "more");
        line!(self, "  scf.yield {} : {weights}", named("more").join(", "));
        line!(self, "  }} else {{");
        line!(self, "  scf.yield {} : {weights}", these.join(", "));
        line!(self, "  }}");
        named("next")
    }

    /// `%{name}{i}`: weights of the terms `group` of the block at `%kstart`, of all of an item's columns.
    fn vectors(&mut self, group: Range<usize>, name: &str) {
        let ([k, n], each) = (packed(self.contraction.k(), self.contraction.n), self.tile.columns);
        for i in group {
            self.index(&format!("{name}i{i}"), i);
            line!(self, "  %{name}k{i} = index.add %kstart, %{name}i{i} : index");
            line!(self, "  %{name}{i} = vector.load %w[%{name}k{i}, %of] : view<{k}x{n}xf32> -> vector<{each}xf32>");
        }
    }

    /// `%w{i}_{c}`: the same by columns, of `%wv{i}`, and the numbers `%i{i}`.
    fn weights(&mut self, group: Range<usize>) {
        let each = self.tile.columns;
        group.clone().for_each(|i| self.index(&format!("i{i}"), i));
        for i in group {
            for c in 0..each {
                line!(self, "  %w{i}_{c} = vector.extract %wv{i}[{c}] : vector<{each}xf32> -> f32");
            }
        }
    }

    /// Operands of the workgroup's rows for the block, or the whole chunk, at `%kstart`, into workgroup memory.
    fn stage(&mut self, has_rest: bool) {
        let block = self.staged_depth();
        let mut end = 0;
        let ends: Vec<usize> = self
            .contraction
            .terms
            .iter()
            .map(|term| {
                end += term.k();
                end
            })
            .collect();
        let filled: Vec<usize> = (0..ends.len()).filter(|&at| self.contraction.terms[at].k() > 0).collect();
        // Where blocks lie in one term each, the whole subgroup goes one way, and loads do not wait for each other.
        let is_apart = filled.iter().all(|&at| ends[at].is_multiple_of(block) || ends[at] == end);
        if !is_apart || filled.len() == 1 {
            return self.staged(0, 0, Terms::But(&[]), has_rest);
        }
        for (order, &at) in filled.iter().enumerate() {
            let is_last = order + 1 == filled.len();
            if !is_last {
                self.index(&format!("end{at}"), ends[at]);
                line!(self, "  %here{at} = index.cmp ult, %kstart, %end{at} : index");
                line!(self, "  scf.if %here{at} {{");
            }
            self.staged(at, ends[at] - self.contraction.terms[at].k(), Terms::Alone, has_rest);
            if !is_last {
                line!(self, "  }} else {{");
            }
        }
        for _ in 1..filled.len() {
            line!(self, "  }}");
        }
    }

    /// Operands that lie in `terms` from `at` on: all loads, and then all stores.
    fn staged(&mut self, at: usize, done: usize, terms: Terms<'_>, has_rest: bool) {
        let ([chunks, ..], block) = (self.cut(), self.staged_depth());
        let (all, pitch) = (block * self.tile.rows, self.pitch());
        let view = format!("view<{chunks}x{block}x{pitch}xf32>");
        let loads = all.div_ceil(LANES);
        for j in 0..loads {
            self.index(&format!("j{j}"), j * LANES);
            line!(self, "  %n{j} = index.add %lane, %j{j} : index");
            // Lanes past the end do what the last one does.
            let e = if (j + 1) * LANES > all {
                self.index(&format!("all{j}"), all - 1);
                line!(self, "  %e{j} = index.min %n{j}, %all{j} : index");
                "e"
            } else {
                "n"
            };
            if block == LANES {
                self.index(&format!("r{j}"), j);
                line!(self, "  %c{j} = index.add %lane, %zero : index");
            } else {
                self.index(&format!("deep{j}"), block);
                line!(self, "  %r{j} = index.div %{e}{j}, %deep{j} : index");
                line!(self, "  %c{j} = index.rem %{e}{j}, %deep{j} : index");
            }
            line!(self, "  %row{j}u = index.add %firstrow, %r{j} : index");
            line!(self, "  %row{j} = index.min %row{j}u, %lastrow : index");
            line!(self, "  %kk{j}u = index.add %kstart, %c{j} : index");
            if has_rest {
                line!(self, "  %is{j} = index.cmp ult, %kk{j}u, %depth : index");
                line!(self, "  %kk{j} = index.min %kk{j}u, %lastk : index");
                self.operand(&j.to_string(), at, done, terms, "", 1);
                line!(self, "  %v{j} = scf.select %is{j}, %o{j}, %nothing : f32");
            } else {
                line!(self, "  %kk{j} = index.add %kk{j}u, %zero : index");
                self.operand(&j.to_string(), at, done, terms, "", 1);
            }
        }
        for j in 0..loads {
            let value = if has_rest { "v" } else { "o" };
            line!(self, "  view.store %{value}{j}, %xs[%subgroup, %c{j}, %r{j}] : f32, {view}");
        }
    }

    /// The chunks' sums to workgroup memory.
    fn hold(&mut self) {
        let (rows, view) = (self.tile.rows, self.sums());
        // Until here the same memory held operands.
        line!(self, "  kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
        for c in 0..self.tile.columns {
            self.index(&format!("held{c}"), c);
            for r in 0..rows {
                self.index(&format!("held{c}row{r}"), r);
                line!(self, "  %held{c}_{r} = vector.extract %acc{c}[{r}] : vector<{rows}xf32> -> f32");
                line!(
                    self,
                    "  view.store %held{c}_{r}, %sums[%subgroup, %held{c}row{r}, %held{c}, %lane] : f32, {view}"
                );
            }
        }
        line!(self, "  kernel.barrier<workgroup> scope(workgroup) ordering(acq_rel)");
    }

    /// A [`Summed`](crate::writer::Summed) of one column: those of the chunks added, ascending.
    fn sum(chunks: usize, view: &str) -> impl Fn(&mut Writer<'_>, &str, &str, &str, usize) -> String {
        move |writer, row, column, of, _| {
            line!(writer, "      %c{of} = index.rem {column}, %each : index");
            line!(writer, "      %ofl{of} = index.div {column}, %each : index");
            let mut sum = String::new();
            for chunk in 0..chunks {
                writer.index(&format!("chunk{chunk}of{of}"), chunk);
                let part = format!("%part{chunk}of{of}");
                line!(
                    writer,
                    "      {part} = view.load %sums[%chunk{chunk}of{of}, {row}, %c{of}, %ofl{of}] : {view} -> f32"
                );
                sum = if chunk == 0 {
                    part
                } else {
                    line!(writer, "      %sum{chunk}of{of} = scalar.addf {sum}, {part} : f32");
                    format!("%sum{chunk}of{of}")
                };
            }
            sum
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{self, Takes};
    use lanes_core::plan::{Activation, Precision, StorageId, Term};
    use loom_compiler::ptx::Sm;

    /// Every activation, with and without a bias, shared and per-seat operands: the text compiles, for the oldest GPU too.
    /// With an assembler at hand, the text of every tile is taken, and spills nothing, whether a chunk is a block or more.
    #[test]
    fn an_assembler_takes_every_tile() {
        for k in [512, 2048] {
            let term =
                Term { storage: StorageId(0), offset: 0, position_stride: 0, taps: 1, tap_stride: 0, tap_len: k };
            let contraction = Contraction {
                label: "node".into(),
                terms: vec![term],
                weights: vec![0.0; 1].into(),
                precision: Precision::F32,
                bias: None,
                activation: Activation::Tanh,
                positions: 1,
                n: 2048,
                out: StorageId(1),
                out_offset: 0,
                out_position_stride: 0,
            };
            for (rows, columns) in TILES {
                let target = Sm { architecture: 90, specific: true };
                let takes = Takes { target, version: (8, 0), shared_bytes_max: 227 << 10, overlaps: true };
                let tile = Tile { rows, columns };
                let text = text(&contraction, &[k], 2048, tile, Seating::of(64), None, &[]).expect("it is known");
                let origin = image::text("contract.loom", text, "contract");
                let image =
                    image::of_text(&origin, "node", false, 0b100, &takes).unwrap_or_else(|error| panic!("{error}"));
                image::assemble(&image.text, &target.to_string());
            }
        }
    }

    #[test]
    fn texts_of_contractions_compile() {
        let term = |storage, tap_len| Term {
            storage: StorageId(storage),
            offset: 2,
            position_stride: 3,
            taps: 2,
            tap_stride: 5,
            tap_len,
        };
        for activation in [Activation::None, Activation::Relu, Activation::Sigmoid, Activation::Tanh, Activation::Silu]
        {
            for bias in [false, true] {
                let contraction = Contraction {
                    label: "node".into(),
                    terms: vec![term(0, 4), term(1, 3)],
                    weights: vec![0.0; 14 * 6].into(),
                    precision: Precision::F32,
                    bias: bias.then(|| vec![0.0; 6].into()),
                    activation,
                    positions: 3,
                    n: 6,
                    out: StorageId(2),
                    out_offset: 1,
                    out_position_stride: 7,
                };
                for (target, rows, columns) in [(Sm::LEAST, 1, 1), (Sm::new(90), 2, 1), (Sm::new(90), 16, 1)] {
                    let tile = Tile { rows, columns };
                    let takes = Takes { target, version: (8, 0), shared_bytes_max: 48 << 10, overlaps: false };
                    let text = text(&contraction, &[40, 0], 30, tile, Seating::of(12), None, &[])
                        .expect("the activation is known");
                    let origin = image::text("contract.loom", text, "contract");
                    let image =
                        image::of_text(&origin, "node", false, 0, &takes).unwrap_or_else(|error| panic!("{error}"));
                    let geometry = image.launch.geometry(&[9]).expect("a geometry");
                    assert_eq!(geometry.workgroups, [1, (9 * 3usize).div_ceil(rows) as u32, 1]);
                    assert_eq!(image.parameters.len(), 5 + usize::from(bias));
                    image::assemble(&image.text, &target.to_string());
                }
            }
        }
    }

    /// On 132 multiprocessors.
    #[test]
    fn tiles_fill_whole_rounds() {
        let tile = |k: usize, n: usize, rows| {
            let contraction = Contraction {
                label: "node".into(),
                terms: vec![Term {
                    storage: StorageId(0),
                    offset: 0,
                    position_stride: k,
                    taps: 1,
                    tap_stride: 0,
                    tap_len: k,
                }],
                weights: vec![].into(),
                precision: Precision::F32,
                bias: None,
                activation: Activation::None,
                positions: 1,
                n,
                out: StorageId(1),
                out_offset: 0,
                out_position_stride: n,
            };
            let Tile { rows, columns } = Tile::of(&contraction, rows, 132, None);
            (rows, columns)
        };
        // Squares and cells, as an H200 had them fastest.
        assert_eq!([1, 8, 64].map(|rows| tile(256, 256, rows)), [(1, 1), (1, 1), (4, 1)]);
        assert_eq!(
            [1, 8, 32, 64, 128, 512].map(|rows| tile(512, 2048, rows)),
            [(1, 1), (4, 1), (8, 2), (8, 4), (16, 4), (16, 4)]
        );
        assert_eq!([8, 32, 64, 128].map(|rows| tile(1024, 4096, rows)), [(8, 1), (8, 4), (16, 4), (16, 4)]);
        // 192 workgroups of 4 rows would be two rounds, the second half empty; 160 of 8 by 64 likewise.
        assert_eq!([192, 256].map(|rows| tile(387, 128, rows)), [(8, 1), (8, 1)]);
        assert_eq!(tile(256, 258, 256), (16, 2));
        // Without rows or columns to fill it, no tile is large.
        assert_eq!([(1, 1), (3, 1), (5000, 1)].map(|(rows, n)| tile(128, n, rows)), [(1, 1), (1, 1), (16, 1)]);
    }

    /// Two seats of 3 positions of a term with taps beside one that all seats share, K cut into runs of which the last is short:
    /// every tile gives the bits of the order that [`SUMS`] tells, and touches nothing outside of its buffers.
    #[test]
    fn tiles_add_in_the_order_that_is_told() {
        use loom_compiler::interp::{self, Argument, Limits};
        let (seats, positions, shared_len) = (2usize, 3usize, 90usize);
        // Terms that meet inside of a block, and between two.
        for (tap, n, tiles) in [
            (41, 70, &[(1, 1), (2, 1), (4, 1), (16, 1)][..]),
            (40, 128, &[(8, 2), (8, 4), (16, 4)][..]),
            (40, 101, &[(1, 1), (8, 2), (16, 4)][..]),
        ] {
            let mut bits = 7u32;
            let mut floats = |count: usize| -> Vec<f32> {
                let mut float = || {
                    bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (bits >> 8) as f32 / 8_388_608.0 - 1.0
                };
                (0..count).map(|_| float()).collect()
            };
            let terms = vec![
                Term { storage: StorageId(0), offset: 3, position_stride: 20, taps: 2, tap_stride: 45, tap_len: tap },
                Term {
                    storage: StorageId(1),
                    offset: 1,
                    position_stride: 2,
                    taps: 1,
                    tap_stride: 9,
                    tap_len: 152 - 2 * tap,
                },
            ];
            let k: usize = terms.iter().map(Term::k).sum();
            let (own_len, out_len) = (140, 1 + 2 * 150 + n);
            let contraction = Contraction {
                label: "node".into(),
                terms,
                weights: floats(k * n).into(),
                precision: Precision::F32,
                bias: Some(floats(n).into()),
                activation: Activation::Relu,
                positions,
                n,
                out: StorageId(2),
                out_offset: 1,
                out_position_stride: 150,
            };
            let (own, shared) = (floats(seats * own_len), floats(shared_len));
            let bias = contraction.bias.clone().unwrap_or_default();
            let run = SUMS.run(k);
            let [runs, ..] = SUMS.cut(k);
            assert!(k == 152 && runs > 1 && runs * run > k, "the last run is short: {runs} of {run}");
            let mut expected = vec![9f32; seats * out_len];
            for (seat, position, column) in
                (0..seats).flat_map(|s| (0..positions).flat_map(move |p| (0..n).map(move |c| (s, p, c))))
            {
                let left = |at: usize| match at {
                    at if at < 2 * tap => own[seat * own_len + 3 + position * 20 + at / tap * 45 + at % tap],
                    _ => shared[1 + position * 2 + at - 2 * tap],
                };
                let chain = |from: usize| {
                    (from..k.min(from + run))
                        .fold(0f32, |sum, at| left(at).mul_add(contraction.weights[at * n + column], sum))
                };
                let sum = (0..k).step_by(run).map(chain).reduce(|sum, run| sum + run).unwrap_or_default();
                expected[seat * out_len + 1 + position * 150 + column] = (sum + bias[column]).max(0.0);
            }
            for &(rows, columns) in tiles {
                let text =
                    text(&contraction, &[own_len, 0], out_len, Tile { rows, columns }, Seating::of(5), None, &[])
                        .expect("a text");
                let module = image::text("contract.loom", text, "contract").module().expect("it parses");
                let kernel = module.specialise("contract", &Default::default()).expect("it verifies");
                let geometry = kernel.launch.geometry(&[seats as u64]).expect("a geometry");
                let bytes = |floats: &[f32]| bytemuck::cast_slice::<f32, u8>(floats).to_vec();
                let mut buffers = [
                    bytes(&own),
                    bytes(&shared),
                    packed_bytes(&contraction.weights, k, n).into_owned(),
                    bytes(&bias),
                    bytes(&vec![9.0; seats * out_len]),
                ];
                let mut arguments = vec![Argument::Scalar(seats as u64)];
                arguments.extend(buffers.iter_mut().map(|buffer| Argument::Buffer(buffer)));
                interp::run(&kernel, geometry, &mut arguments, Limits::default())
                    .unwrap_or_else(|fault| panic!("{rows} rows, {columns} columns: {fault}"));
                assert!(buffers[4] == bytes(&expected), "{rows} rows, {columns} columns");
            }
        }
    }
}
