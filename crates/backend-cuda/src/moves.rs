//! Copies, gathers, scatters and fills of strided runs: PTX of our own, since rows are looked up in the parameter block.
//!
//! ```text
//! x: 256 units of a seat's runs a block, a unit being the widest that divides every offset     y: seats     z: which of the moves
//! ```
//!
//! - A unit is 1 to 16 bytes. One module has an entry for each.
//! - Moves that wait for the same are one launch, of at most [`MOVES_MOST`].
//! - What is small of a turn's staging is *carried* between host and device by a kernel, all of it by one: a node of the driver's
//!   own for each would cost more than the bytes. On the way back it then says to the host that the turn has ended.
//! - Not here: runs that all lie end to end and are the host's (`plan` copies those by nodes of the driver's own).

use crate::image::Modules;
use crate::sys::{Address, Context, Function, Node};
use lanes_core::device::DeviceError;
use std::ops::Range;
use std::sync::Arc;

/// Work-items of a block.
const BLOCK: usize = 256;

/// The most blocks along y. Seats beyond go round again.
const GRID_Y_MAX: usize = 65_535;

/// The most moves of one launch.
pub(crate) const MOVES_MOST: usize = 16;

/// Parameters of a move.
const MOVE: [(&str, usize); 9] = [
    ("from", 8),
    ("to", 8),
    ("length", 4),
    ("total", 4),
    ("from_stride", 8),
    ("to_stride", 8),
    ("from_seat", 8),
    ("to_seat", 8),
    ("kind", 4),
];

/// The most ranges that one launch carries.
pub(crate) const RANGES_MAX: usize = 12;

/// The most bytes that are carried one way: beyond it the driver's own copies are faster.
pub(crate) const CARRIED_MAX: usize = 64 << 10;

/// What carried ranges start at multiples of, in bytes, and are moved by.
pub(crate) const CARRIED_UNIT: usize = 16;

/// Work-items of the one block that carries back and then says so.
const LAST_BLOCK: usize = 1024;

/// Which seats a move is of, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Every seat's own bytes.
    Seats,
    /// From the row that each seat reads.
    Gather,
    /// To the row that each seat writes, of the turn's seats only.
    Scatter,
    /// From the first seat to those of the bucket past the turn's.
    Pad,
}

/// Runs moved for each seat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub kind: Kind,
    /// First byte of the first run of seat or row 0.
    pub from: Address,
    pub to: Address,
    /// Length and number of runs.
    pub row_bytes: usize,
    pub rows: usize,
    /// Bytes between runs.
    pub from_stride: usize,
    pub to_stride: usize,
    /// Bytes between seats or rows.
    pub from_seat: usize,
    pub to_seat: usize,
}

impl Moved {
    /// The exponent of the widest unit.
    fn exponent(&self) -> u32 {
        let strides = if self.rows > 1 { self.from_stride | self.to_stride } else { 0 };
        unit(self.from.address | self.to.address, self.row_bytes | strides | self.from_seat | self.to_seat, 4)
    }
}

/// A pattern repeated over runs of each seat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    pub to: Address,
    pub row_bytes: usize,
    pub rows: usize,
    pub to_stride: usize,
    pub to_seat: usize,
    pub pattern: u32,
}

/// The entries of the module.
pub(crate) struct Movers {
    /// By the exponent of the unit.
    copies: [Function; 5],
    fills: [Function; 3],
    carry: Function,
}

/// Which way what is carried goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// To the device.
    Up,
    /// To the host, all but what is carried having ended. Then `number`, a word of the device, is written to `tick`, one of the host.
    Down { number: Address, tick: Address },
}

impl Movers {
    /// Compiled for this device; moves may begin early, and wait, where it `overlaps`.
    pub fn load(context: &Arc<Context>, modules: &Modules, overlaps: bool) -> Result<Self, DeviceError> {
        let module = modules.load(context, "moves", &text(overlaps))?;
        let entry = |name: &str| module.function(name, 0, overlaps);
        let [c1, c2, c4, c8, c16] = [1, 2, 4, 8, 16].map(|unit| entry(&format!("copy_{unit}")));
        let [f1, f2, f4] = [1, 2, 4].map(|unit| entry(&format!("fill_{unit}")));
        let carry = entry("carry")?;
        Ok(Self { copies: [c1?, c2?, c4?, c8?, c16?], fills: [f1?, f2?, f4?], carry })
    }

    /// The launch that carries `ranges` of two memories that are laid out alike, whole units of each: what lies behind a range up to
    /// the next multiple of [`CARRIED_UNIT`] is carried too. `None` if there are too many, or one starts too far behind.
    pub fn carried(&self, way: Way, host: Address, device: Address, ranges: &[Range<usize>]) -> Option<Node<'_>> {
        let mut packed = packed(ranges)?;
        packed.resize(RANGES_MAX, 0);
        let (from, to, number, tick, blocks, block) = match way {
            Way::Up => {
                let units: usize = ranges.iter().map(|range| range.len().div_ceil(CARRIED_UNIT)).sum();
                (host, device, 0, 0, units.div_ceil(BLOCK).clamp(1, GRID_Y_MAX), BLOCK)
            }
            // One block, whose items wait for each other.
            Way::Down { number, tick } => (device, host, number.address, tick.address, 1, LAST_BLOCK),
        };
        let mut parameters = vec![from.address, to.address, number, tick];
        parameters.extend(packed);
        let (grid, block) = ([blocks as u32, 1, 1], [block as u32, 1, 1]);
        Some(Node::Launch { function: &self.carry, grid, block, shared_bytes: 0, parameters })
    }

    /// The launch that does them all for `seats` seats; the block is at `block`, made for `max_seats`.
    pub fn moved(
        &self,
        moves: &[Moved],
        block: Address,
        seats: usize,
        max_seats: usize,
    ) -> Result<Node<'_>, DeviceError> {
        let moves: Vec<&Moved> = moves.iter().filter(|moved| moved.row_bytes > 0 && moved.rows > 0).collect();
        if moves.is_empty() {
            return Ok(Node::Nothing);
        }
        assert!(moves.len() <= MOVES_MOST, "{} moves of one launch", moves.len());
        let exponent = moves.iter().map(|moved| moved.exponent()).min().unwrap_or(0);
        let mut parameters = vec![block.address, seats as u64, max_seats as u64];
        let mut blocks = [1, 1, moves.len() as u32];
        for moved in &moves {
            let run = moved.row_bytes >> exponent;
            let ([x, y, _], total) = grid(run, moved.rows, seats)?;
            blocks = [x.max(blocks[0]), y, blocks[2]];
            parameters.extend([
                moved.from.address,
                moved.to.address,
                run as u64,
                total,
                moved.from_stride as u64,
                moved.to_stride as u64,
                moved.from_seat as u64,
                moved.to_seat as u64,
                match moved.kind {
                    Kind::Seats => 0,
                    Kind::Gather => 1,
                    Kind::Scatter => 2,
                    Kind::Pad => 4,
                },
            ]);
        }
        parameters.resize(3 + MOVES_MOST * MOVE.len(), 0);
        let function = &self.copies[exponent as usize];
        Ok(Node::Launch { function, grid: blocks, block: [BLOCK as u32, 1, 1], shared_bytes: 0, parameters })
    }

    /// The launch that fills for `seats` seats.
    pub fn filled(&self, filled: &Filled, seats: usize) -> Result<Node<'_>, DeviceError> {
        let Filled { to, row_bytes, rows, to_stride, to_seat, pattern } = *filled;
        if row_bytes == 0 || rows == 0 {
            return Ok(Node::Nothing);
        }
        let stride = if rows > 1 { to_stride } else { 0 };
        let exponent = unit(to.address, row_bytes | stride | to_seat, 2);
        let run = row_bytes >> exponent;
        let (grid, total) = grid(run, rows, seats)?;
        let parameters =
            vec![to.address, run as u64, total, to_stride as u64, to_seat as u64, seats as u64, pattern.into()];
        let function = &self.fills[exponent as usize];
        Ok(Node::Launch { function, grid, block: [BLOCK as u32, 1, 1], shared_bytes: 0, parameters })
    }
}

/// Start and length of each range as a launch is given them; `None` as for [`Movers::carried`].
fn packed(ranges: &[Range<usize>]) -> Option<Vec<u64>> {
    let pack = |range: &Range<usize>| {
        assert!(range.start.is_multiple_of(CARRIED_UNIT), "carried ranges start at whole units");
        let (start, units) = (range.start / CARRIED_UNIT, range.len().div_ceil(CARRIED_UNIT));
        // The number of the unit behind the last is one of 32 bits.
        u32::try_from(start.checked_add(units)?).ok()?;
        Some(start as u64 | (units as u64) << 32)
    };
    ranges.iter().map(pack).collect::<Option<Vec<u64>>>().filter(|packed| packed.len() <= RANGES_MAX)
}

/// The exponent of the widest unit, at most `most`, that divides all of them.
fn unit(addresses: u64, lengths: usize, most: u32) -> u32 {
    (addresses | lengths as u64).trailing_zeros().min(most)
}

/// Blocks for `rows` runs of `run` units of every seat, and how many units a seat has.
fn grid(run: usize, rows: usize, seats: usize) -> Result<([u32; 3], u64), DeviceError> {
    let total = run.checked_mul(rows).filter(|&total| u32::try_from(total).is_ok_and(|total| total < u32::MAX - 255));
    let total = total.ok_or_else(|| DeviceError::TooLarge {
        what: "what is moved of one seat, in units".into(),
        bytes: (run as u64).saturating_mul(rows as u64),
        limit: u64::from(u32::MAX - 256),
    })?;
    Ok(([total.div_ceil(BLOCK) as u32, seats.clamp(1, GRID_Y_MAX) as u32, 1], total as u64))
}

/// The module's text. Where one launch `overlaps` another, entries wait for what comes before.
fn text(overlaps: bool) -> String {
    let (version, target) = if overlaps { ("7.8", "sm_90") } else { ("7.0", "sm_75") };
    let mut text = format!(".version {version}\n.target {target}\n.address_size 64\n");
    let wait = if overlaps { "  griddepcontrol.wait;\n  griddepcontrol.launch_dependents;\n" } else { "" };
    for (unit, kind, registers) in [
        (1, "u8", "%v0"),
        (2, "u16", "%v0"),
        (4, "u32", "%v0"),
        (8, "u64", "%w0"),
        (16, "v4.u32", "{%v0, %v1, %v2, %v3}"),
    ] {
        text.push_str(&copy(unit, kind, registers, wait));
    }
    for (unit, kind) in [(1, "u8"), (2, "u16"), (4, "u32")] {
        text.push_str(&fill(unit, kind, wait));
    }
    text.push_str(&carry(wait));
    text
}

/// Units of ranges from one memory to another, where they lie alike; then, where a tick is given, the number for it, once all units
/// are seen by the host.
fn carry(wait: &str) -> String {
    let ranges: Vec<usize> = (0..RANGES_MAX).collect();
    let declared = ranges.iter().map(|at| format!(",\n  .param .u64 carry_range{at}")).collect::<String>();
    // `volatile` is relaxed at system scope: one of the two memories is the host's.
    let moved = ranges.iter().map(|at| {
        format!(
            "  ld.param.u64 %at, [carry_range{at}];
  mov.b64 {{%start, %units}}, %at;
  mov.u32 %unit, %first;
  bra.uni look{at};
move{at}:
  add.u32 %there, %start, %unit;
  mul.wide.u32 %at, %there, {CARRIED_UNIT};
  add.u64 %source, %from, %at;
  add.u64 %target, %to, %at;
  ld.volatile.global.v4.u32 {{%v0, %v1, %v2, %v3}}, [%source];
  st.volatile.global.v4.u32 [%target], {{%v0, %v1, %v2, %v3}};
  add.u32 %unit, %unit, %step;
look{at}:
  setp.lt.u32 %p, %unit, %units;
  @%p bra move{at};
"
        )
    });
    let moved = moved.collect::<String>();
    format!(
        ".visible .entry carry(
  .param .u64 carry_from,
  .param .u64 carry_to,
  .param .u64 carry_number,
  .param .u64 carry_tick{declared}
)
{{
  .reg .pred %p;
  .reg .b32 %first, %block, %width, %step, %start, %units, %unit, %there, %v<4>;
  .reg .b64 %from, %to, %at, %source, %target, %number, %tick;
{wait}  ld.param.u64 %from, [carry_from];
  ld.param.u64 %to, [carry_to];
  mov.u32 %block, %ctaid.x;
  mov.u32 %width, %ntid.x;
  mov.u32 %first, %tid.x;
  mad.lo.u32 %first, %block, %width, %first;
  mov.u32 %step, %nctaid.x;
  mul.lo.u32 %step, %step, %width;
{moved}  ld.param.u64 %tick, [carry_tick];
  setp.eq.u64 %p, %tick, 0;
  @%p bra done;
  ld.param.u64 %number, [carry_number];
  ld.volatile.global.u32 %v0, [%number];
  // The block's bytes come before the barrier, and with it before what its first item releases: the order is cumulative (PTX ISA,
  // memory consistency model, causality order).
  bar.sync 0;
  setp.ne.u32 %p, %first, 0;
  @%p bra done;
  st.release.sys.global.u32 [%tick], %v0;
done:
  ret;
}}
"
    )
}

/// Where a unit lies in its seat, from the item's number: its run, and its place there.
fn place(stride: &str, unit: usize, result: &str) -> String {
    format!(
        "  mul.wide.u32 {result}, %column, {unit};\n  cvt.u64.u32 %wide, %run;\n  mad.lo.u64 {result}, %wide, {stride}, {result};\n"
    )
}

/// The start of an entry that has loaded `%total` and `%length`: returns for items past the end, and finds run and column.
fn head(entry: &str) -> String {
    format!(
        "  mov.u32 %block, %ctaid.x;\n  mov.u32 %item, %tid.x;\n  mad.lo.u32 %item, %block, {BLOCK}, %item;\n  \
         setp.ge.u32 %p, %item, %total;\n  @%p ret;\n  div.u32 %run, %item, %length;\n  mul.lo.u32 %column, %run, %length;\n  \
         sub.u32 %column, %item, %column;\n  mov.u32 %seat, %ctaid.y;\n  mov.u32 %step, %nctaid.y;\n  \
         ld.param.u32 %seats, [{entry}_seats];\n"
    )
}

const REGISTERS: &str = "  .reg .pred %p;\n  .reg .b32 %block, %item, %total, %length, %run, %column, %seat, %step, %seats;\n  \
                         .reg .b64 %wide;\n";

/// The type of a parameter of `bytes`.
fn type_of(bytes: usize) -> &'static str {
    if bytes == 8 { "u64" } else { "u32" }
}

fn copy(unit: usize, kind: &str, registers: &str, wait: &str) -> String {
    let entry = format!("copy_{unit}");
    let each =
        |at: usize| MOVE.map(|(name, bytes)| format!(",\n  .param .{} {entry}_{name}_{at}", type_of(bytes))).concat();
    let parameters: String = (0..MOVES_MOST).map(each).collect();
    // The parameters of the move that this block is of: uniform branches, and none for the first.
    let load = |at: usize| {
        MOVE.map(|(name, bytes)| format!("  ld.param.{} %{name}, [{entry}_{name}_{at}];\n", type_of(bytes))).concat()
    };
    let next = |at: usize| match at + 1 == MOVES_MOST {
        true => format!("{}chosen:\n", load(at)),
        false => {
            format!("  setp.ne.u32 %p, %move, {at};\n  @%p bra not_{at};\n{}  bra.uni chosen;\nnot_{at}:\n", load(at))
        }
    };
    let chosen: String = (0..MOVES_MOST).map(next).collect();
    let (head, source, target) =
        (head(&entry), place("%from_stride", unit, "%source"), place("%to_stride", unit, "%target"));
    format!(
        ".visible .entry {entry}(
  .param .u64 {entry}_block,
  .param .u32 {entry}_seats,
  .param .u32 {entry}_most{parameters}
)
{{
{REGISTERS}  .reg .pred %gathers, %scatters, %pads, %skip, %less;
  .reg .b32 %move, %kind, %bits, %most, %live, %read_row, %written_row, %v<4>;
  .reg .b64 %from, %to, %from_stride, %to_stride, %from_seat, %to_seat, %source, %target, %blocks, %at, %w<1>, %read, %write;
{wait}  mov.u32 %move, %ctaid.z;
{chosen}{head}{source}{target}  add.u64 %from, %from, %source;
  add.u64 %to, %to, %target;
  ld.param.u64 %blocks, [{entry}_block];
  ld.param.u32 %most, [{entry}_most];
  and.b32 %bits, %kind, 1;
  setp.ne.u32 %gathers, %bits, 0;
  and.b32 %bits, %kind, 2;
  setp.ne.u32 %scatters, %bits, 0;
  and.b32 %bits, %kind, 4;
  setp.ne.u32 %pads, %bits, 0;
  mov.u32 %live, %seats;
  setp.ne.u32 %p, %kind, 0;
  @%p ld.global.u32 %live, [%blocks];
  mul.wide.u32 %wide, %most, 4;
  add.u64 %read, %blocks, 16;
  add.u64 %write, %read, %wide;
next:
  setp.ge.u32 %p, %seat, %seats;
  @%p ret;
  setp.lt.u32 %less, %seat, %live;
  not.pred %skip, %less;
  and.pred %skip, %skip, %scatters;
  and.pred %less, %less, %pads;
  or.pred %skip, %skip, %less;
  @%skip bra over;
  mov.u32 %read_row, %seat;
  mov.u32 %written_row, %seat;
  mul.wide.u32 %wide, %seat, 4;
  add.u64 %at, %read, %wide;
  @%gathers ld.global.u32 %read_row, [%at];
  add.u64 %at, %write, %wide;
  @%scatters ld.global.u32 %written_row, [%at];
  @%pads mov.u32 %read_row, 0;
  cvt.u64.u32 %wide, %read_row;
  mad.lo.u64 %at, %wide, %from_seat, %from;
  ld.global.{kind} {registers}, [%at];
  cvt.u64.u32 %wide, %written_row;
  mad.lo.u64 %at, %wide, %to_seat, %to;
  st.global.{kind} [%at], {registers};
over:
  add.u32 %seat, %seat, %step;
  bra next;
}}
"
    )
}

fn fill(unit: usize, kind: &str, wait: &str) -> String {
    let entry = format!("fill_{unit}");
    let (head, to) = (head(&entry), place("%to_stride", unit, "%to"));
    format!(
        ".visible .entry {entry}(
  .param .u64 {entry}_to,
  .param .u32 {entry}_length,
  .param .u32 {entry}_total,
  .param .u64 {entry}_to_stride,
  .param .u64 {entry}_to_seat,
  .param .u32 {entry}_seats,
  .param .u32 {entry}_pattern
)
{{
{REGISTERS}  .reg .b32 %shift, %value;
  .reg .b64 %to, %to_stride, %base, %at, %toseat;
{wait}  ld.param.u32 %total, [{entry}_total];
  ld.param.u32 %length, [{entry}_length];
  ld.param.u64 %to_stride, [{entry}_to_stride];
{head}{to}  ld.param.u64 %base, [{entry}_to];
  add.u64 %to, %to, %base;
  ld.param.u64 %toseat, [{entry}_to_seat];
  ld.param.u32 %value, [{entry}_pattern];
  mul.lo.u32 %shift, %column, {bits};
  and.b32 %shift, %shift, 31;
  shr.u32 %value, %value, %shift;
next:
  setp.ge.u32 %p, %seat, %seats;
  @%p ret;
  cvt.u64.u32 %wide, %seat;
  mad.lo.u64 %at, %wide, %toseat, %to;
  st.global.{kind} [%at], %value;
  add.u32 %seat, %seat, %step;
  bra next;
}}
",
        bits = unit * 8
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_divide_all_that_is_moved() {
        assert_eq!(unit(0x100, 32 | 64, 4), 4);
        assert_eq!(unit(0x100, 24, 4), 3);
        assert_eq!(unit(0x102, 32, 4), 1);
        assert_eq!(unit(0x100, 7, 4), 0);
        assert_eq!(unit(0x100, 64, 2), 2);
    }

    #[test]
    fn grids_cover_every_unit_and_refuse_what_has_too_many() {
        assert_eq!(grid(3, 100, 7).unwrap(), ([2, 7, 1], 300));
        assert_eq!(grid(256, 1, 100_000).unwrap(), ([1, 65_535, 1], 256));
        assert!(matches!(grid(1 << 31, 2, 1), Err(DeviceError::TooLarge { .. })));
        assert!(matches!(grid(usize::MAX, 2, 1), Err(DeviceError::TooLarge { .. })));
    }

    /// Starts and lengths in units, both in one word, and blocks enough for all; what does not fit is not carried.
    #[test]
    fn ranges_are_packed_by_units() {
        assert_eq!(packed(&[0..40, 256..256, 512..513]), Some(vec![3 << 32, 16, 32 | 1 << 32]));
        assert_eq!(packed(&vec![0..16; RANGES_MAX + 1]), None);
        // The number of the unit behind the last is one of 32 bits.
        let one = |number: usize| packed(&vec![16 * number..16 * number + 16; 1]);
        assert_eq!(one((1 << 32) - 2), Some(vec![0xffff_fffe | 1 << 32]));
        assert_eq!(one((1 << 32) - 1), None);
    }

    /// With an assembler at hand, every target takes the text.
    #[test]
    fn an_assembler_takes_the_text() {
        for (overlaps, targets) in
            [(false, &["sm_75", "sm_80", "sm_90", "sm_90a", "sm_120"][..]), (true, &["sm_90", "sm_90a", "sm_120"])]
        {
            targets.iter().for_each(|target| crate::image::assemble(&text(overlaps), target));
        }
    }

    /// Every register that the text names is declared, and every parameter that it loads: what an assembler says first.
    #[test]
    fn the_text_names_nothing_that_it_does_not_declare() {
        let text = text(true);
        assert_eq!(text.matches(".visible .entry").count(), 9);
        assert_eq!(text.matches("griddepcontrol.wait").count(), 9);
        for entry in text.split(".visible .entry ").skip(1) {
            for used in entry.split('[').skip(1).filter_map(|rest| rest.split(']').next()) {
                assert!(used.starts_with('%') || entry.contains(&format!(" {used}")), "{used}");
            }
        }
    }
}
