//! What the texts of contractions have in common: their launch, where operands lie, and what becomes of a sum.
//!
//! - Rows are seats by positions. Operands are found where they lie; those of 32 bits are never written out as patches.
//! - How sums are made, and where they wait for what becomes of them, is for each kind of products to say (`contract`, `matrices`).

use crate::contract::cell::{self, Cell};
use crate::queue::BLOCK_HEAD;
use lanes_core::plan::{Activation, Contraction, Epilogue, Operand, StorageId, Term};
use std::fmt::Write;
use std::ops::{Deref, DerefMut, Range};

/// A line of a [`Writer`].
macro_rules! line {
    ($to:expr, $($what:tt)*) => {{
        let text = &mut $to.text;
        // Writing to a string does not fail.
        let _ = writeln!(text, $($what)*);
    }};
}
pub(crate) use line;

/// The most workgroups along y and z (CUDA programming guide, technical specifications per compute capability).
pub(crate) const GRID_YZ_MAX: u32 = 65_535;

/// Work-items of a subgroup.
pub(crate) const LANES: usize = 32;

/// Who may sit in a turn, and where their states lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seating<'a> {
    pub max_seats: usize,
    /// Rows of every state.
    pub rows: usize,
    /// Storages that are states: elements of the row that a seat reads, or writes, whatever the seat's number.
    pub states: &'a [StorageId],
    /// Whether the turn's rows, and what lies in those that are read, are there before the kernel may begin.
    pub is_there: bool,
}

#[cfg(test)]
impl Seating<'_> {
    /// So many, none of whose storages is a state.
    pub const fn of(max_seats: usize) -> Self {
        Self { max_seats, rows: 1, states: &[], is_there: false }
    }
}

/// Which of a seat's two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Read,
    Written,
}

/// Bit n for launch argument n of a kernel of `contraction`, and `epilogue`, if nobody writes it while the kernel, or one before it, runs:
/// weights and bias, and what of `lefts`, storages of operands, and of the epilogue's is there.
pub(crate) fn constants(
    contraction: &Contraction,
    lefts: &[Option<StorageId>],
    epilogue: Option<&Epilogue>,
    hands: usize,
    seating: Seating<'_>,
) -> u64 {
    let is_there = |storage: StorageId| seating.is_there && seating.states.contains(&storage);
    let mut arguments = vec![false];
    arguments.extend(lefts.iter().map(|left| left.is_some_and(is_there)));
    arguments.push(true);
    arguments.extend(contraction.bias.iter().map(|_| true));
    arguments.push(false);
    if let Some(epilogue) = epilogue {
        let results = epilogue.results.len();
        let places = cell::places(epilogue).enumerate();
        arguments.extend(places.map(|(at, place)| at >= results && is_there(place.storage)));
    }
    arguments.resize(arguments.len() + hands, false);
    arguments.push(seating.is_there);
    arguments.iter().take(64).enumerate().fold(0, |bits, (at, &is_constant)| bits | u64::from(is_constant) << at)
}

/// A kernel of a contraction, or of what packs its rows, being written.
pub(crate) struct Writer<'a> {
    pub contraction: &'a Contraction,
    /// Which argument its first term is, of those of all whose rows one launch packs.
    pub first_term: usize,
    /// Elements of a seat, or a state's row, of the storage of each term; 0 where one value serves all. Empty where terms are not looked at.
    pub seat_elements: &'a [usize],
    /// Likewise of the result's.
    pub out_seat_elements: usize,
    pub seating: Seating<'a>,
    pub cell: Option<Cell<'a>>,
    /// Who else gets the results, rounded: a buffer each, after all others.
    pub hands: &'a [Hand],
    pub text: String,
}

/// A text of a contraction whose workgroups compute a `tile`.
pub(crate) struct Text<'a, T> {
    pub writer: Writer<'a>,
    pub tile: T,
}

impl<'a, T> Deref for Text<'a, T> {
    type Target = Writer<'a>;

    fn deref(&self) -> &Writer<'a> {
        &self.writer
    }
}

impl<T> DerefMut for Text<'_, T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.writer
    }
}

/// Packed rows of a contraction of rounded operands that another writes a term of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hand {
    /// Which result of a cell.
    pub result: usize,
    /// The first column, or unit, of the term, and how many.
    pub from: usize,
    pub count: usize,
    /// The first of them in k.
    pub start: usize,
    /// Terms of a packed row.
    pub row: usize,
}

/// Which terms operands are looked for in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Terms<'a> {
    /// All but these, which are not all.
    But(&'a [usize]),
    /// The one that is named first.
    Alone,
}

/// What a workgroup computes, as a launch and its end see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub rows: usize,
    pub columns: usize,
    /// Work-items.
    pub items: usize,
    /// How many columns an item may take at once.
    pub together: usize,
}

impl Writer<'_> {
    pub fn index(&mut self, name: &str, value: usize) {
        line!(self, "  %{name} = index.constant {value} : index");
    }

    pub fn is_state(&self, storage: StorageId) -> bool {
        self.seating.states.contains(&storage)
    }

    /// Whether it touches states, and so is told the turn's rows: a buffer behind all others.
    fn is_by_row(&self) -> bool {
        let terms = self.contraction.terms.iter().zip(self.seat_elements).map(|(term, _)| term.storage);
        let places = self.cell.iter().flat_map(|cell| cell::places(cell.epilogue)).map(|place| place.storage);
        terms.chain(places).any(|storage| self.is_state(storage))
    }

    /// The argument that tells the turn's rows, if there is one.
    pub fn block_argument(&self) -> &'static str {
        if self.is_by_row() { ", %turn: buffer" } else { "" }
    }

    /// `%{name}`: a row of seat `%{seat}`.
    pub fn row(&mut self, name: &str, seat: &str, row: Row) {
        let Seating { max_seats, rows, .. } = self.seating;
        let first = BLOCK_HEAD / 4 + if row == Row::Read { 0 } else { max_seats };
        let words = self.words();
        self.index(&format!("{name}first"), first);
        line!(self, "  %{name}at = index.add %{seat}, %{name}first : index");
        line!(self, "  %{name}word = view.load %words[%{name}at] : {words} -> i32");
        line!(self, "  %{name}any = index.cast %{name}word : i32 to index");
        line!(self, "  %{name} = index.assume %{name}any [range(%{name}any, 0, {})] : index", rows - 1);
    }

    /// `%occupied`: how many seats the turn has.
    pub fn occupied(&mut self) {
        let (most, words) = (self.seating.max_seats, self.words());
        line!(self, "  %occupiedword = view.load %words[%zero] : {words} -> i32");
        line!(self, "  %occupiedany = index.cast %occupiedword : i32 to index");
        line!(self, "  %occupied = index.assume %occupiedany [range(%occupiedany, 1, {most})] : index");
    }

    /// The type of `%words`, the turn's block.
    fn words(&self) -> String {
        format!("view<{}xi32>", BLOCK_HEAD / 4 + 2 * self.seating.max_seats)
    }

    /// The elements of `storage` that `last` is the end of, for a seat, a row, or for all.
    pub fn length(&mut self, name: &str, storage: StorageId, elements: usize, last: usize) {
        let (count, each) = match elements {
            0 => ("one", last),
            _ if self.is_state(storage) => ("staterows", elements),
            _ => ("seats", elements),
        };
        line!(self, "  %{name}each = index.constant {each} : index");
        line!(self, "  %{name}length = index.mul %{count}, %{name}each : index");
    }

    /// Launch and arguments: the seats, `lefts`, weights, bias, the result, and what a cell touches. After it there are `%seats`,
    /// `%rows`, `%firstrow`, `%firstcolumn` (those of the workgroup), `%lane`, `%subgroup`, and some numbers.
    pub fn begin(&mut self, extent: Extent, lefts: &[String]) {
        let Contraction { bias, positions, n, .. } = self.contraction;
        line!(self, "kernel.def export(\"contract\") @contract(%seats: index) {{");
        for (name, value) in [
            ("one", 1),
            ("positions", *positions),
            ("less", extent.rows - 1),
            ("together", extent.rows),
            ("across", n.div_ceil(extent.columns)),
            ("size", extent.items),
        ] {
            self.index(name, value);
        }
        line!(self, "  %rows = index.mul %seats, %positions : index");
        line!(self, "  %padded = index.add %rows, %less : index");
        line!(self, "  %down = index.div %padded, %together : index");
        // Neighbours have the same rows, and weights side by side; where there are more rows than y has room for, the other way round.
        let is_tall = positions.saturating_mul(self.seating.max_seats).div_ceil(extent.rows) > GRID_YZ_MAX as usize;
        let grid = if is_tall { "%down, %across" } else { "%across, %down" };
        line!(self, "  kernel.launch.config workgroups({grid}, %one) workgroup_size(%size, %one, %one) : index");
        let lefts: String = lefts.iter().map(|left| format!("%{left}: buffer, ")).collect();
        let bias_argument = if bias.is_some() { "%bias: buffer, " } else { "" };
        let hands = (0..self.hands.len()).map(|at| format!(", %hand{at}: buffer"));
        let more = self.cell_arguments() + &hands.collect::<String>() + self.block_argument();
        line!(self, "}} launch(%given: index, {lefts}%weights: buffer, {bias_argument}%out: buffer{more}) {{");
        self.seats();
        for (name, value) in [("width", extent.columns), ("together", extent.rows)] {
            self.index(name, value);
        }
        line!(self, "  %subgroup = kernel.subgroup.id : index");
        let [x, y] = if is_tall { ["rows", "columns"] } else { ["columns", "rows"] };
        line!(self, "  %of{x} = kernel.workgroup.id<x> : index");
        line!(self, "  %of{y} = kernel.workgroup.id<y> : index");
        line!(self, "  %firstrow = index.mul %ofrows, %together : index");
        line!(self, "  %firstcolumn = index.mul %ofcolumns, %width : index");
    }

    /// `%seats` and `%rows` of a launch, and some numbers.
    pub fn seats(&mut self) {
        // So that rows and what they begin at are counted in 32 bits where that is enough.
        line!(self, "  %seats = index.assume %given [range(%given, 1, {})] : index", self.seating.max_seats);
        line!(self, "  %start = index.constant 0 : offset");
        for (name, value) in [("zero", 0), ("one", 1), ("positions", self.contraction.positions), ("lanes", LANES)] {
            self.index(name, value);
        }
        line!(self, "  %nothing = scalar.constant 0.0 : f32");
        line!(self, "  %rows = index.mul %seats, %positions : index");
        line!(self, "  %lastrow = index.sub %rows, %one : index");
        line!(self, "  %lane = kernel.subgroup.lane.id : index");
        if self.is_by_row() {
            let words = self.words();
            self.index("staterows", self.seating.rows);
            line!(self, "  %words = buffer.view %turn[%start] : buffer -> {words}");
        }
    }

    /// `%view{at}` of the storage of each term.
    pub fn term_views(&mut self) {
        let Contraction { terms, positions, .. } = self.contraction;
        for (at, term) in terms.iter().enumerate() {
            self.length(&format!("left{at}"), term.storage, self.seat_elements[at], last(term, *positions));
            let argument = self.first_term + at;
            line!(self, "  %view{at} = buffer.view %left{argument}[%start] : buffer -> view<[%left{at}length]xf32>");
        }
    }

    /// Views of the result, the bias, and what a cell touches.
    pub fn result_views(&mut self) {
        let Contraction { bias, positions, n, out, out_offset, out_position_stride, .. } = self.contraction;
        let out_last = out_offset + positions.saturating_sub(1) * step(*positions, *out_position_stride) + n;
        self.length("out", *out, self.out_seat_elements, out_last);
        line!(self, "  %result = buffer.view %out[%start] : buffer -> view<[%outlength]xf32>");
        if bias.is_some() {
            line!(self, "  %b = buffer.view %bias[%start] : buffer -> view<{n}xf32>");
        }
        self.cell_views();
        for (at, hand) in self.hands.iter().enumerate() {
            line!(self, "  %handed{at} = buffer.view %hand{at}[%start] : buffer -> view<[%rows]x{}xbf16>", hand.row);
        }
    }

    /// Hands `value` on, that of `%ofrow{i}` and of `at` on, `together` side by side, where it is `result` of a cell; a row has
    /// `count` of them.
    pub fn hand_on(&mut self, result: usize, i: usize, value: &str, at: &str, count: usize, together: usize) {
        for (n, hand) in self.hands.iter().enumerate().filter(|(_, hand)| hand.result == result) {
            // As many as are stored at once, where they lie so.
            let is_one = [hand.from, hand.count, hand.start].iter().all(|part| part.is_multiple_of(together));
            let (width, is_whole) = (if is_one { together } else { 1 }, hand.from == 0 && hand.count == count);
            let (kind, store, ty, rounded) = match width {
                1 => ("scalar", "view.store", "f32".to_owned(), "bf16".to_owned()),
                _ => ("vector", "vector.store", lanes_type(width), format!("vector<{width}xbf16>")),
            };
            for part in 0..together / width {
                let of = format!("{n}of{part}");
                for (name, value) in
                    [("handfrom", hand.from), ("handcount", hand.count), ("handstart", hand.start), ("handpart", part)]
                {
                    self.index(&format!("{name}{of}"), value);
                }
                line!(self, "      %handat{of} = index.add {at}, %handpart{of} : index");
                line!(self, "      %handof{of} = index.sub %handat{of}, %handfrom{of} : index");
                if !is_whole {
                    // Those before the first wrap round.
                    line!(self, "      %hashand{of} = index.cmp ult, %handof{of}, %handcount{of} : index");
                    line!(self, "      scf.if %hashand{of} {{");
                }
                line!(self, "      %handk{of} = index.add %handof{of}, %handstart{of} : index");
                let mut one = value.to_owned();
                if width < together {
                    one = format!("%handone{of}");
                    line!(self, "      {one} = vector.extract {value}[{part}] : {} -> f32", lanes_type(together));
                }
                line!(self, "      %handbits{of} = {kind}.fptrunc {one} : {ty} to {rounded}");
                let row = hand.row;
                line!(
                    self,
                    "      {store} %handbits{of}, %handed{n}[%ofrow{i}, %handk{of}] : {rounded}, view<[%rows]x{row}xbf16>"
                );
                if !is_whole {
                    line!(self, "      }}");
                }
            }
        }
    }

    /// `%o{name}{deep}`, `together` numbers: operand `%kk{name}` of row `%row{name}`, or as many from there on, of one of `terms`
    /// from `at` on; terms before have `done` of k.
    pub fn operand(&mut self, name: &str, at: usize, done: usize, terms: Terms<'_>, deep: &str, together: usize) {
        let ty = lanes_type(together);
        let term = &self.contraction.terms[at];
        let end = done + term.k();
        let is_looked_in = |at: &usize| match terms {
            Terms::But(others) => !others.contains(at),
            Terms::Alone => true,
        };
        if !is_looked_in(&at) {
            return self.operand(name, at + 1, end, terms, deep, together);
        }
        let behind = at + 1..self.contraction.terms.len();
        let is_last = matches!(terms, Terms::Alone) || !behind.into_iter().any(|at| is_looked_in(&at));
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
        line!(self, "  %seat{of} = index.div %row{name}, %positions : index");
        line!(self, "  %position{of} = index.rem %row{name}, %positions : index");
        let mut from = format!("seat{of}");
        if self.is_state(term.storage) {
            from = format!("read{of}");
            self.row(&from, &format!("seat{of}"), Row::Read);
        }
        line!(self, "  %s{of} = index.mul %{from}, %elements{of} : index");
        line!(self, "  %a{of} = index.add %s{of}, %offset{of} : index");
        line!(self, "  %b{of} = index.madd %position{of}, %ofposition{of}, %a{of} : index");
        line!(self, "  %kt{of} = index.sub %kk{name}, %done{of} : index");
        if term.taps > 1 {
            line!(self, "  %tap{of} = index.div %kt{of}, %taplength{of} : index");
            line!(self, "  %in{of} = index.rem %kt{of}, %taplength{of} : index");
            line!(self, "  %c{of} = index.madd %tap{of}, %oftap{of}, %b{of} : index");
            line!(self, "  %from{of} = index.add %c{of}, %in{of} : index");
        } else {
            line!(self, "  %from{of} = index.add %b{of}, %kt{of} : index");
        }
        let value = if is_last { format!("o{name}{deep}") } else { format!("load{of}") };
        let (load, from) = if together == 1 {
            ("view.load", format!("from{of}"))
        } else {
            // What whoever asks for several has found.
            line!(self, "  %whole{of} = index.assume %from{of} [multiple_of(%from{of}, {together})] : index");
            ("vector.load", format!("whole{of}"))
        };
        line!(self, "  %{value} = {load} %view{at}[%{from}] : view<[%left{at}length]xf32> -> {ty}");
        if !is_last {
            line!(self, "  scf.yield %load{of} : {ty}");
            line!(self, "  }} else {{");
            let deeper = format!("{deep}n");
            self.operand(name, at + 1, end, terms, &deeper, together);
            line!(self, "  scf.yield %o{name}{deeper} : {ty}");
            line!(self, "  }}");
        }
    }

    /// Who takes what of the sums, and what is read for that which nobody writes: before the products, so that it is there behind them.
    pub fn meet_early(&mut self, extent: Extent) {
        let across = self.across(extent);
        self.index("acrossrow", across);
        line!(self, "  %mine = index.mul %subgroup, %lanes : index");
        line!(self, "  %item = index.add %mine, %lane : index");
        if self.is_even(extent) {
            line!(self, "  %l = index.rem %item, %acrossrow : index");
            line!(self, "  %ownrow = index.div %item, %acrossrow : index");
            self.thing(extent);
        }
    }

    /// Of what the rows of an item are made besides sums, where that is little: before the sums are there.
    pub fn meet_operands(&mut self, extent: Extent) {
        if self.is_soon(extent) {
            self.rows(extent, "", 0..self.passes(extent));
        }
    }

    /// Whether all that a cell is made of besides sums is there before the kernel may begin.
    pub fn has_all(&self) -> bool {
        let is_there = |operand: &Operand| match operand {
            Operand::Memory(elements) => self.is_state(elements.storage),
            Operand::Columns(_) => true,
        };
        self.seating.is_there && self.cell.is_some_and(|cell| cell.epilogue.operands.iter().all(is_there))
    }

    /// What becomes of the sums, each by one of the workgroup's items, and the end. `None` for an activation that this has no form for.
    pub fn meet(&mut self, extent: Extent, sum: &Summed<'_>) -> Option<()> {
        let passes = self.passes(extent);
        if !self.is_even(extent) {
            for (name, value) in [("all", extent.rows * self.across(extent)), ("size", extent.items)] {
                self.index(name, value);
            }
            line!(self, "  scf.for %e = [%item to %all step %size] {{");
            line!(self, "  %ownrow = index.div %e, %acrossrow : index");
            line!(self, "  %l = index.rem %e, %acrossrow : index");
            self.thing(extent);
            self.rows(extent, "", 0..1);
            self.made(extent, 0..1, sum)?;
            line!(self, "  }}");
        } else if self.is_soon(extent) {
            self.made(extent, 0..passes, sum)?;
        } else {
            for (name, value) in [("passes", passes), ("atonce", PASSES)] {
                self.index(name, value);
            }
            line!(self, "  scf.for %pass = [%zero to %passes step %atonce] {{");
            self.rows(extent, "%pass", 0..PASSES);
            self.made(extent, 0..PASSES, sum)?;
            line!(self, "  }}");
        }
        line!(self, "  kernel.return");
        line!(self, "}}");
        Some(())
    }

    /// Things of a row of sums that an item takes one of: columns, several together, or units.
    fn across(&self, extent: Extent) -> usize {
        match self.cell {
            Some(cell) => extent.columns * cell.epilogue.units / self.contraction.n,
            None => extent.columns / self.together(extent),
        }
    }

    /// Columns that are stored at once.
    fn together(&self, extent: Extent) -> usize {
        let Contraction { positions, n, out_offset, out_position_stride, .. } = self.contraction;
        let parts = [*n, self.out_seat_elements, *out_offset, step(*positions, *out_position_stride)];
        if parts.iter().all(|part| part.is_multiple_of(extent.together)) { extent.together } else { 1 }
    }

    /// Whether an item has the same of every row.
    fn is_even(&self, extent: Extent) -> bool {
        extent.items.is_multiple_of(self.across(extent))
    }

    /// How many rows an item has.
    fn passes(&self, extent: Extent) -> usize {
        (extent.rows * self.across(extent)).div_ceil(extent.items)
    }

    /// Whether an item has so few rows that what they need besides sums finds room in registers while products are made.
    fn is_soon(&self, extent: Extent) -> bool {
        self.is_even(extent) && self.passes(extent) <= PASSES
    }

    /// What an item needs of its thing `%l`, whatever the row.
    fn thing(&mut self, extent: Extent) {
        match self.cell {
            Some(cell) => self.unit(cell),
            None => self.columns(extent),
        }
    }

    /// `%tilerow{i}`, `%ofrow{i}`, and whether there is that row and the thing, `%live{i}`: rows of an item by number, from `from`
    /// on. What is read of rows that there are not is of the last.
    fn rows(&mut self, extent: Extent, from: &str, numbers: Range<usize>) {
        let apart = extent.items / self.across(extent);
        for (name, value) in [("lastofrows", extent.rows - 1), ("apart", apart.max(1))] {
            self.index(name, value);
        }
        for i in numbers.clone() {
            self.index(&format!("number{i}"), i);
            let number = if from.is_empty() { format!("%number{i}") } else { format!("%numbered{i}") };
            if !from.is_empty() {
                line!(self, "  {number} = index.add {from}, %number{i} : index");
            }
            line!(self, "  %own{i} = index.madd {number}, %apart, %ownrow : index");
            line!(self, "  %tilerow{i} = index.min %own{i}, %lastofrows : index");
            line!(self, "  %isown{i} = index.cmp ule, %own{i}, %lastofrows : index");
            line!(self, "  %wanted{i} = index.add %firstrow, %tilerow{i} : index");
            line!(self, "  %isthere{i} = index.cmp ult, %wanted{i}, %rows : index");
            line!(self, "  %ofrow{i} = index.min %wanted{i}, %lastrow : index");
            line!(self, "  %isrow{i} = scalar.andi %isown{i}, %isthere{i} : i1");
            line!(self, "  %live{i} = scalar.andi %isrow{i}, %isthing : i1");
            line!(self, "  %seat{i} = index.div %ofrow{i}, %positions : index");
            line!(self, "  %position{i} = index.rem %ofrow{i}, %positions : index");
        }
        if let Some(cell) = self.cell {
            self.state_rows(cell, numbers.clone());
            numbers.for_each(|i| self.operands(cell, i));
        }
    }

    /// What becomes of the sums of rows of an item: of those that there are not something too, which is not stored, so that all are
    /// made at once and none waits for another.
    fn made(&mut self, extent: Extent, numbers: Range<usize>, sum: &Summed<'_>) -> Option<()> {
        let sums: Vec<_> = numbers.clone().map(|i| self.summed(extent, i, sum)).collect();
        let mut all = Vec::new();
        for (i, sums) in numbers.clone().zip(&sums) {
            all.push(match self.cell {
                Some(cell) => self.units_made(cell, i, sums),
                None => vec![self.columns_made(extent, i, &sums[0])?],
            });
        }
        for (i, made) in numbers.zip(&all) {
            line!(self, "  scf.if %live{i} {{");
            match self.cell {
                Some(cell) => self.units_stored(cell, i, made),
                None => self.columns_stored(extent, i, &made[0]),
            }
            line!(self, "  }}");
        }
        Some(())
    }

    /// The sums of the thing `%l` in row `%tilerow{i}`.
    fn summed(&mut self, extent: Extent, i: usize, sum: &Summed<'_>) -> Vec<String> {
        let row = format!("%tilerow{i}");
        let Some(cell) = self.cell else {
            return vec![sum(self, &row, "%first", &format!("of{i}"), self.together(extent))];
        };
        let groups = self.contraction.n / cell.epilogue.units;
        // Of the columns of a unit as many as may be at once.
        let together = if extent.together > 1 { groups } else { 1 };
        let mut sums = Vec::with_capacity(groups);
        for at in 0..groups / together {
            self.index(&format!("group{at}of{i}"), at);
            line!(self, "  %beside{at}of{i} = index.add %first, %group{at}of{i} : index");
            let sum = sum(self, &row, &format!("%beside{at}of{i}"), &format!("{at}of{i}"), together);
            if together == 1 {
                sums.push(sum);
                continue;
            }
            for group in 0..groups {
                line!(self, "  %of{group}of{i} = vector.extract {sum}[{group}] : vector<{together}xf32> -> f32");
                sums.push(format!("%of{group}of{i}"));
            }
        }
        sums
    }

    /// `%first`, the first of an item's columns in the workgroup, `%to`, the same of all, whether there are these, and their bias `%plus`.
    fn columns(&mut self, extent: Extent) {
        let Contraction { bias, n, .. } = self.contraction;
        let together = self.together(extent);
        for (name, value) in [("columns", *n), ("beside", together), ("lastcolumns", n - together)] {
            self.index(name, value);
        }
        line!(self, "  %first = index.mul %l, %beside : index");
        line!(self, "  %to = index.add %firstcolumn, %first : index");
        line!(self, "  %isthing = index.cmp ult, %to, %columns : index");
        if bias.is_some() {
            let (ty, load) = (lanes_type(together), if together == 1 { "view.load" } else { "vector.load" });
            line!(self, "  %biasat = index.min %to, %lastcolumns : index");
            line!(self, "  %plus = {load} %b[%biasat] : view<{n}xf32> -> {ty}");
        }
    }

    /// What is made of the columns of row `%ofrow{i}`, whose sums are `sum`.
    fn columns_made(&mut self, extent: Extent, i: usize, sum: &str) -> Option<String> {
        let Contraction { bias, activation, .. } = self.contraction;
        let together = self.together(extent);
        let ty = lanes_type(together);
        let mut sum = sum.to_owned();
        if bias.is_some() {
            let add = if together == 1 { "scalar.addf" } else { "vector.addf" };
            line!(self, "  %biased{i} = {add} {sum}, %plus : {ty}");
            sum = format!("%biased{i}");
        }
        if together == 1 || *activation == Activation::None {
            let (steps, result) = activated(*activation, &sum, &format!("of{i}"))?;
            self.text.push_str(&steps);
            return Some(result);
        }
        let mut results = Vec::new();
        for at in 0..together {
            let of = format!("{at}of{i}");
            line!(self, "  %sumone{of} = vector.extract {sum}[{at}] : {ty} -> f32");
            let (steps, result) = activated(*activation, &format!("%sumone{of}"), &of)?;
            self.text.push_str(&steps);
            results.push(result);
        }
        line!(self, "  %activated{i} = vector.from_elements {} : {ty}", results.join(", "));
        Some(format!("%activated{i}"))
    }

    fn columns_stored(&mut self, extent: Extent, i: usize, made: &str) {
        let Contraction { positions, n, out_offset, out_position_stride, .. } = self.contraction;
        let together = self.together(extent);
        for (name, value) in [
            ("outelements", self.out_seat_elements),
            ("outoffset", *out_offset),
            ("outstride", step(*positions, *out_position_stride)),
        ] {
            self.index(name, value);
        }
        let (ty, store) = (lanes_type(together), if together == 1 { "view.store" } else { "vector.store" });
        line!(self, "    %outseat = index.mul %seat{i}, %outelements : index");
        line!(self, "    %at1 = index.add %outseat, %outoffset : index");
        line!(self, "    %at2 = index.madd %position{i}, %outstride, %at1 : index");
        line!(self, "    %into = index.add %at2, %to : index");
        line!(self, "    {store} {made}, %result[%into] : {ty}, view<[%outlength]xf32>");
        self.hand_on(0, i, made, "%to", *n, together);
    }
}

/// Writes how the sums of a row of the workgroup are found, as many side by side as it is told last, from a column of the workgroup on, and
/// tells the name of what they are in, a vector if there are several. It is told the row and the column first; the names that it takes
/// end in what it is told between.
pub(crate) type Summed<'s> = dyn Fn(&mut Writer<'_>, &str, &str, &str, usize) -> String + 's;

/// The most rows of an item that are looked at together.
const PASSES: usize = 4;

/// The type of so many operands side by side.
pub(crate) fn lanes_type(together: usize) -> String {
    if together == 1 { "f32".to_owned() } else { format!("vector<{together}xf32>") }
}

/// One past the last element of a storage that all seats share which `term` reads.
fn last(term: &Term, positions: usize) -> usize {
    term.offset
        + positions.saturating_sub(1) * step(positions, term.position_stride)
        + term.taps.saturating_sub(1) * step(term.taps, term.tap_stride)
        + term.tap_len
}

/// The distance of one of `count` to the next: nothing where there is no next, whatever the plan says.
pub(crate) fn step(count: usize, stride: usize) -> usize {
    if count > 1 { stride } else { 0 }
}

/// What applies `activation` to `x`, and what the result is called; the names that it takes end in `of`.
fn activated(activation: Activation, x: &str, of: &str) -> Option<(String, String)> {
    let steps = match activation {
        Activation::None => return Some((String::new(), x.to_owned())),
        Activation::Relu => {
            format!(
                "    %low{of} = scalar.cmpf ole, {x}, %nothing : f32\n    %y{of} = scf.select %low{of}, %nothing, {x} : f32\n"
            )
        }
        Activation::Sigmoid => format!("    %y{of} = scalar.logisticf {x} : f32\n"),
        Activation::Tanh => format!("    %y{of} = scalar.tanhf {x} : f32\n"),
        Activation::Silu => format!("    %y{of} = scalar.siluf {x} : f32\n"),
        // The enum may grow.
        _ => return None,
    };
    Some((steps, format!("%y{of}")))
}
