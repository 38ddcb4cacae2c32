//! tract's own best at a batch of streams: one plan, one thread, every stream in every turn, states fed back.
//!
//! `frames, states --one turn of batch N--> outputs; each state output is the same state's input of the next turn`
//!
//! - Nothing of serving is timed: no queue, no stacking of rows, no stream that comes or goes.
//! - `PlanKind::Fixed` builds the plan for exactly N seats, which is what tract runs fastest; a server whose turns vary
//!   would need a plan per width, or `PlanKind::Symbolic`.
//! - Not here: which tensors a model has (`preset`), and whether the answers are right; that they are finite is checked.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tract_core::internal::*;
use tract_onnx::prelude::InferenceModelExt;

use crate::TRACT_VERSION;
use crate::preset::{Dim, Feed, Preset, shape};
use crate::stats::{Samples, thread_cpu, us};

/// Turns of generated input; the run goes round them, so that making input is not timed and states do not settle.
const FRAMES: usize = 16;
/// Timed turns at least, however short the time asked for.
const TURNS_MIN: usize = 5;
/// Timed turns at most: each leaves a sample of 16 bytes.
const TURNS_MAX: usize = 2_000_000;

/// What the plan knows of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanKind {
    /// Its extent.
    Fixed,
    /// That it is one symbol everywhere.
    Symbolic,
}

impl PlanKind {
    /// Both.
    pub const ALL: [PlanKind; 2] = [PlanKind::Fixed, PlanKind::Symbolic];

    /// As `--plan` spells it.
    pub fn name(self) -> &'static str {
        match self {
            PlanKind::Fixed => "fixed",
            PlanKind::Symbolic => "symbolic",
        }
    }
}

/// What to run.
#[derive(Debug)]
pub struct Step {
    /// The ONNX file.
    pub model: PathBuf,
    /// What its inputs are.
    pub preset: Preset,
    /// Seats of every turn.
    pub batch: usize,
    /// How long to take samples, after a warm-up of a fifth of it.
    pub measure_for: Duration,
    /// What the plan knows of `batch`.
    pub plan: PlanKind,
}

/// Runs `bench` and reports
/// `{"peer","version","model","preset","plan","session","batch","frame_ms","turns","wall_s","turn_us","us_per_seat","cpu_us_per_seat","realtime_streams"}`:
/// `us_per_seat` is wall time over all timed turns and their seats, `realtime_streams` how many streams that keeps up with.
///
/// # Errors
/// What tract reports for the file, a model that does not fit the preset, or an answer that is not finite.
pub fn run(bench: &Step) -> TractResult<Value> {
    let model = bench.model.display().to_string();
    let mut turns = Turns::load(&bench.model, &bench.preset, bench.batch, bench.plan)
        .with_context(|| model.clone())?;
    turns.run_for(bench.measure_for / 5)?;
    let (start, cpu_start) = (Instant::now(), thread_cpu());
    let samples = turns.run_for(bench.measure_for)?;
    let (wall, cpu) = (
        start.elapsed(),
        thread_cpu()
            .zip(cpu_start)
            .map(|(end, start)| end.saturating_sub(start)),
    );
    turns.check_answers()?;

    let seats = (samples.len() * bench.batch) as f64;
    let us_per_seat = us(wall) / seats;
    Ok(json!({
        "peer": "tract-step",
        "version": TRACT_VERSION,
        "model": model,
        "preset": bench.preset.name,
        "plan": bench.plan.name(),
        "session": turns.session.name(),
        "batch": bench.batch,
        "frame_ms": bench.preset.frame_ms,
        "turns": samples.len(),
        "wall_s": wall.as_secs_f64(),
        "turn_us": Samples::new(samples).map(|samples| samples.to_json()),
        "us_per_seat": us_per_seat,
        "cpu_us_per_seat": cpu.map(|cpu| us(cpu) / seats),
        "realtime_streams": bench.preset.frame_ms * 1e3 / us_per_seat,
    }))
}

/// Where an input's next value comes from.
#[derive(Debug)]
enum Source {
    /// Generated, one tensor for each turn of a round.
    Frames(Vec<TValue>),
    /// This output of the turn before.
    Output(usize),
    /// Never changes.
    Constant,
}

/// A plan and what its next turn will be fed.
struct Turns {
    session: Session,
    batch: usize,
    /// In the order of the plan's inputs, as `next` is.
    sources: Vec<Source>,
    next: TVec<TValue>,
    outputs: TVec<TValue>,
    taken: usize,
}

impl Turns {
    fn load(path: &Path, preset: &Preset, batch: usize, plan: PlanKind) -> TractResult<Turns> {
        // Shapes that an exporter wrote down are one batch's; tract infers them anew from the inputs' facts.
        let onnx = tract_onnx::onnx()
            .with_ignore_value_info(true)
            .with_ignore_output_shapes(true);
        let mut model = onnx.model_for_path(path)?;
        let seats = match plan {
            PlanKind::Fixed => batch.to_dim(),
            PlanKind::Symbolic => model.symbols.sym("N").to_dim(),
        };
        let names = |outlets: &[OutletId]| -> Vec<String> {
            let name = |outlet: &OutletId| {
                model
                    .outlet_label(*outlet)
                    .unwrap_or(&model.node(outlet.node).name)
            };
            outlets
                .iter()
                .map(|outlet| name(outlet).to_owned())
                .collect()
        };
        let (inputs, outputs) = (
            names(model.input_outlets()?),
            names(model.output_outlets()?),
        );
        for input in preset.inputs {
            let optional = matches!(input.feed, Feed::Constant(_));
            ensure!(
                optional || inputs.iter().any(|name| name == input.name),
                "preset {} needs an input `{}`, the model has {inputs:?}",
                preset.name,
                input.name
            );
        }

        let (mut sources, mut next) = (Vec::new(), tvec!());
        for (at, name) in inputs.iter().enumerate() {
            let input = preset
                .inputs
                .iter()
                .find(|input| input.name == name)
                .with_context(|| {
                    let known = preset
                        .inputs
                        .iter()
                        .map(|input| input.name)
                        .collect::<Vec<_>>();
                    format!(
                        "the model has an input `{name}`, preset {} knows {known:?}",
                        preset.name
                    )
                })?;
            let (fact, source, first) = match input.feed {
                Feed::Frame(dims) => {
                    let frames = frames(&shape(dims, batch))?;
                    let first = frames[0].clone();
                    (
                        f32::fact(dims_with(dims, &seats)),
                        Source::Frames(frames),
                        first,
                    )
                }
                Feed::State { dims, from } => {
                    let output = outputs
                        .iter()
                        .position(|output| output == from)
                        .with_context(|| {
                            format!(
                                "preset {} needs an output `{from}`, the model has {outputs:?}",
                                preset.name
                            )
                        })?;
                    let zeros = Tensor::zero::<f32>(&shape(dims, batch))?.into_tvalue();
                    (
                        f32::fact(dims_with(dims, &seats)),
                        Source::Output(output),
                        zeros,
                    )
                }
                Feed::Constant(value) => {
                    let value = tensor0(value);
                    (
                        TypedFact::try_from(value.clone().into_arc_tensor())?,
                        Source::Constant,
                        value.into_tvalue(),
                    )
                }
            };
            model.set_input_fact(at, fact.into())?;
            sources.push(source);
            next.push(first);
        }
        for at in 0..outputs.len() {
            model.set_output_fact(at, Default::default())?;
        }
        Turns::new(model.into_typed()?, batch, sources, next)
    }

    fn new(
        model: TypedModel,
        batch: usize,
        sources: Vec<Source>,
        next: TVec<TValue>,
    ) -> TractResult<Turns> {
        let session = Session::new(model.into_optimized()?.into_runnable()?)?;
        Ok(Turns {
            session,
            batch,
            sources,
            next,
            outputs: tvec!(),
            taken: 0,
        })
    }

    /// Takes turns until `time` is over, between [`TURNS_MIN`] and [`TURNS_MAX`] of them, and returns how long each took.
    fn run_for(&mut self, time: Duration) -> TractResult<Vec<Duration>> {
        let (start, mut samples) = (Instant::now(), Vec::with_capacity(1 << 16));
        while samples.len() < TURNS_MIN || (start.elapsed() < time && samples.len() < TURNS_MAX) {
            let turn = Instant::now();
            self.take()?;
            samples.push(turn.elapsed());
        }
        Ok(samples)
    }

    /// Runs one turn and gets the next one's inputs ready.
    fn take(&mut self) -> TractResult<()> {
        self.outputs = self.session.run(self.next.clone())?;
        self.taken += 1;
        for (value, source) in self.next.iter_mut().zip(&self.sources) {
            match source {
                Source::Frames(frames) => *value = frames[self.taken % frames.len()].clone(),
                Source::Output(at) => *value = self.outputs[*at].clone(),
                Source::Constant => {}
            }
        }
        Ok(())
    }

    /// Whether the last turn answered every seat, with finite values.
    fn check_answers(&self) -> TractResult<()> {
        for (at, output) in self.outputs.iter().enumerate() {
            let values = output.try_as_plain_ram()?;
            let values = values.as_slice::<f32>()?;
            ensure!(
                output.shape().contains(&self.batch) && values.iter().all(|x| x.is_finite()),
                "output {at} of turn {} has shape {:?}, or a value that is not finite, for {} seats",
                self.taken,
                output.shape(),
                self.batch
            );
        }
        Ok(())
    }
}

/// How turns follow each other in tract. An op that keeps something between the turns of a session may prefer it to the
/// state it is fed (`Scan` and `GruSeq` do, unless the optimiser took them apart), and then the fed states would be timed
/// but not used. So such a plan gets a new session every turn; any other keeps one, with the scratch that it has made.
enum Session {
    Kept(TypedSimpleState),
    PerTurn(Arc<TypedRunnableModel>),
}

impl Session {
    fn new(plan: Arc<TypedRunnableModel>) -> TractResult<Session> {
        let state = plan.spawn()?;
        let keeps_nothing = state.op_states.iter().all(Option::is_none);
        Ok(if keeps_nothing {
            Session::Kept(state)
        } else {
            Session::PerTurn(plan)
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Session::Kept(_) => "kept",
            Session::PerTurn(_) => "per_turn",
        }
    }

    fn run(&mut self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        match self {
            Session::Kept(state) => state.run(inputs),
            Session::PerTurn(plan) => plan.run(inputs),
        }
    }
}

fn dims_with(dims: &[Dim], seats: &TDim) -> TVec<TDim> {
    dims.iter()
        .map(|dim| match dim {
            Dim::Batch => seats.clone(),
            Dim::Of(extent) => extent.to_dim(),
        })
        .collect()
}

/// A round of frames like quiet audio: uniform in ±0.1, other values for every seat and turn, the same in every run.
fn frames(shape: &[usize]) -> TractResult<Vec<TValue>> {
    let mut state = 1u32;
    let mut values = std::iter::repeat_with(|| {
        // Numerical Recipes' quick generator (Press et al., 2nd ed., 7.1); its upper bits are good enough here.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * 0.2
    });
    let len = shape.iter().product();
    let frame = |_| {
        let frame: Vec<f32> = values.by_ref().take(len).collect();
        Ok(Tensor::from_shape(shape, &frame)?.into_tvalue())
    };
    (0..FRAMES).map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sum' = sum + input`, as seats of 3 values, its batch on axis 0.
    fn running_sum(batch: usize) -> TractResult<TypedModel> {
        let mut model = TypedModel::default();
        let fact = f32::fact([batch, 3]);
        let input = model.add_source("input", fact.clone())?;
        let sum = model.add_source("sum", fact)?;
        let next = model.wire_node("next", tract_core::ops::math::add(), &[input, sum])?;
        model.select_output_outlets(&next)?;
        Ok(model)
    }

    fn turns(batch: usize) -> Turns {
        let frames = frames(&[batch, 3]).unwrap();
        let next = tvec!(
            frames[0].clone(),
            Tensor::zero::<f32>(&[batch, 3]).unwrap().into_tvalue()
        );
        Turns::new(
            running_sum(batch).unwrap(),
            batch,
            vec![Source::Frames(frames), Source::Output(0)],
            next,
        )
        .unwrap()
    }

    /// After k turns the state is the sum of the first k frames, going round; in f64 here, within k roundings of f32.
    #[test]
    fn each_turn_is_fed_its_frame_and_the_state_before() {
        let (batch, count) = (4, FRAMES + 3);
        let mut turns = turns(batch);
        for _ in 0..count {
            turns.take().unwrap();
        }
        let mut expected = vec![0f64; batch * 3];
        let round = frames(&[batch, 3]).unwrap();
        for turn in 0..count {
            let frame = round[turn % FRAMES].try_as_plain_ram().unwrap();
            for (sum, x) in expected.iter_mut().zip(frame.as_slice::<f32>().unwrap()) {
                *sum += f64::from(*x);
            }
        }
        let found = turns.outputs[0].try_as_plain_ram().unwrap();
        for (found, expected) in found.as_slice::<f32>().unwrap().iter().zip(expected) {
            let tolerance = count as f64 * f64::from(f32::EPSILON);
            assert!(
                (f64::from(*found) - expected).abs() <= tolerance,
                "{found} for {expected}"
            );
        }
    }

    #[test]
    fn frames_differ_between_turns_and_seats_and_stay_quiet() {
        let round = frames(&[2, 50]).unwrap();
        let mut seats: Vec<Vec<f32>> = Vec::new();
        for frame in &round {
            let values = frame.try_as_plain_ram().unwrap();
            seats.extend(
                values
                    .as_slice::<f32>()
                    .unwrap()
                    .chunks(50)
                    .map(<[f32]>::to_vec),
            );
        }
        assert!(seats.iter().flatten().all(|x| x.abs() <= 0.1));
        for (at, seat) in seats.iter().enumerate() {
            assert!(
                !seats[..at].contains(seat),
                "seat {at} repeats an earlier one"
            );
        }
    }

    #[test]
    fn a_short_run_still_takes_the_fewest_turns() {
        assert_eq!(turns(1).run_for(Duration::ZERO).unwrap().len(), TURNS_MIN);
    }

    #[test]
    fn an_answer_that_is_not_finite_is_refused() {
        let mut turns = turns(2);
        turns.take().unwrap();
        assert!(turns.check_answers().is_ok());
        turns.next[0] = tensor2(&[[1f32, 2.0, 3.0], [4.0, f32::NAN, 6.0]]).into_tvalue();
        turns.take().unwrap();
        let error = turns.check_answers().unwrap_err().to_string();
        assert!(error.contains("output 0 of turn 2"), "{error}");
    }
}
