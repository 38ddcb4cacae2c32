//! A model of two stages, encoder and decoder, written with kernels: streams in any company against each one's own sums,
//! under one lease, and every refusal by its message.

use crate::Open;
use crate::definitions::seated;
use crate::sessions::{N, bytes, numbers, said};
use lanes_core::DType;
use lanes_core::inference::ModelContext;
use lanes_core::lanes::{LanesBuilder, Outputs, Staged, StagedStream, Value};
use lanes_core::session::{Index, Kernel, LanedBuilder};

const LANES: u32 = 4;

/// A running sum from `numbers(N, initial)` on, and its product with the input.
fn stage(context: &ModelContext, name: &str, initial: usize) -> LanesBuilder {
    let images = context.compile(&[seated("mul", "scalar.mulf"), seated("add", "scalar.addf")]).unwrap();
    let mut images = images.into_iter().map(Kernel::new);
    let (mul, add) = (images.next().unwrap(), images.next().unwrap());
    let mut model = LanedBuilder::new(name);
    let x = model.input("x", DType::F32, &[N]).unwrap();
    let h = model.state("h", DType::F32, &[N], Some(bytes(&numbers(N, initial)).into())).unwrap();
    let y = model.output("y", DType::F32, &[N]).unwrap();
    let (seats, commands) = (&[Index::Seats], model.commands());
    commands.dispatch(&add, seats, seats, &[h.read.read(), x.read(), h.next.write()]).unwrap();
    commands.dispatch(&mul, seats, seats, &[h.next.read(), x.read(), y.write()]).unwrap();
    let planned = model.build().unwrap().planned(context.device().unwrap()).unwrap();
    LanesBuilder::new(planned).checkpoints(1)
}

fn staged(open: Open<'_>) -> Staged {
    let context = ModelContext::new(open(None));
    let stages = vec![("encoder", stage(&context, "encoder", 1)), ("decoder", stage(&context, "decoder", 2))];
    Staged::build(LANES, stages).unwrap()
}

/// The sums of one stream.
#[derive(Clone)]
struct Sums([Vec<f32>; 2]);

impl Sums {
    fn fresh() -> Self {
        Self([numbers(N, 1), numbers(N, 2)])
    }

    fn encode(&mut self, x: &[f32]) -> Vec<f32> {
        self.step(0, x)
    }

    fn decode(&mut self, x: &[f32]) -> Vec<f32> {
        self.step(1, x)
    }

    fn step(&mut self, stage: usize, x: &[f32]) -> Vec<f32> {
        self.0[stage].iter_mut().zip(x).for_each(|(h, x)| *h += x);
        self.0[stage].iter().zip(x).map(|(h, x)| h * x).collect()
    }
}

fn values(outputs: &Outputs) -> Vec<f32> {
    outputs.get::<f32>(0).unwrap().to_vec()
}

fn call(stream: &StagedStream, stage: &str, x: &[f32]) -> Vec<f32> {
    values(&stream.stage(stage).unwrap().call_blocking(&[Value::new(&[N], x)]).unwrap())
}

/// Two calls of the encoder for one of the decoder, as a recogniser makes them, and what both stages gave.
fn round(stream: &StagedStream, sums: &mut Sums, seed: usize) {
    for step in 0..2 {
        let x = numbers(N, seed + step);
        let hidden = call(stream, "encoder", &x);
        assert_eq!(hidden, sums.encode(&x), "encoder, round {seed}");
        if step == 1 {
            assert_eq!(call(stream, "decoder", &hidden), sums.decode(&hidden), "decoder, round {seed}");
        }
    }
}

fn taken(staged: &Staged) -> [u32; 2] {
    ["encoder", "decoder"].map(|name| staged.stage(name).unwrap().stats().lanes_taken)
}

/// A stream holds one lane of every stage or none; what is done to it is done to every stage.
pub fn one_lease(open: Open<'_>) {
    let staged = staged(open);
    assert_eq!(staged.names().collect::<Vec<_>>(), ["encoder", "decoder"]);
    assert!(staged.stage("joiner").is_none());
    let streams: Vec<_> = (0..2).map(|_| staged.spawn_blocking().unwrap()).collect();
    assert_eq!(taken(&staged), [2, 2]);
    let mut sums = vec![Sums::fresh(); 2];
    std::thread::scope(|scope| {
        for (at, (stream, sums)) in streams.iter().zip(&mut sums).enumerate() {
            scope.spawn(move || (0..8).for_each(|turn| round(stream, sums, at * 100 + turn * 2)));
        }
    });
    assert_eq!(streams[0].position(), 8 * 3);

    // A fork goes on from here in both stages, and its origin does not notice.
    let kept = streams[0].checkpoint_blocking().unwrap();
    let no_more = "all 1 checkpoints are held; the builder's `checkpoints` or LANES_CHECKPOINTS makes room";
    assert_eq!(said(streams[1].checkpoint_blocking()), no_more);
    let fork = streams[0].fork_blocking().unwrap();
    let mut forked = sums[0].clone();
    round(&fork, &mut forked, 500);
    assert_eq!(said(streams[0].fork_many_blocking(2)), "2 lanes were asked for, and 1 of 4 are free");
    assert_eq!(taken(&staged), [3, 3], "all or none, in every stage");
    let last = staged.spawn_blocking().unwrap();
    assert_eq!(said(staged.spawn_blocking()), "1 lane was asked for, and 0 of 4 are free");
    let mut behind = sums[0].clone();
    round(&streams[0], &mut behind, 600);
    streams[0].rollback_blocking(&kept).unwrap();
    assert_eq!(streams[0].position(), 8 * 3);
    round(&streams[0], &mut sums[0], 700);
    streams[1].reset();
    round(&streams[1], &mut Sums::fresh(), 800);

    // One blob for both; what it restores takes one place.
    let snapshot = fork.snapshot_blocking().unwrap();
    assert_eq!(said(staged.restore_blocking(&snapshot)), "1 lane was asked for, and 0 of 4 are free");
    drop(last);
    let restored = staged.restore_blocking(&snapshot).unwrap();
    round(&restored, &mut forked.clone(), 900);
    round(&fork, &mut forked, 900);
    drop((streams, fork, kept));
    assert_eq!(taken(&staged), [1, 1]);
    drop(restored);
    assert_eq!(taken(&staged), [0, 0]);
}

/// What is of other stages is refused in words, and leaves no lane taken.
pub fn refusals(open: Open<'_>) {
    let (staged, other) = (staged(open), self::staged(open));
    let (stream, foreign) = (staged.spawn_blocking().unwrap(), other.spawn_blocking().unwrap());
    assert!(stream.stage("joiner").is_none());
    let checkpoint = foreign.checkpoint_blocking().unwrap();
    let expected = "the checkpoint belongs to another runnable than the stream on lane0";
    assert_eq!(said(stream.rollback_blocking(&checkpoint)), expected);
    let snapshot = stream.snapshot_blocking().unwrap();
    assert_eq!(other.restore_blocking(&snapshot).unwrap().position(), 0, "the same stages elsewhere");
    let single = stream.stage("encoder").unwrap().snapshot_blocking().unwrap();
    let expected = format!("not a snapshot: {} bytes, which do not begin as one does", single.len());
    assert_eq!(said(staged.restore_blocking(&single)), expected);
    let (cut, whole) = (&snapshot[..snapshot.len() - 1], snapshot.len());
    let expected = format!("the snapshot was cut or extended: {} bytes, and {whole} were written", whole - 1);
    assert_eq!(said(staged.restore_blocking(cut)), expected);
    let mut altered = snapshot.clone();
    altered[whole / 2] ^= 1;
    assert_eq!(said(staged.restore_blocking(&altered)), "the snapshot was altered: its checksum does not match");

    // Its second stage is another model: the first is not left with a lane.
    let context = ModelContext::new(open(None));
    let stages = vec![("encoder", stage(&context, "encoder", 1)), ("decoder", stage(&context, "joiner", 2))];
    let third = Staged::build(LANES, stages).unwrap();
    let error = said(third.restore_blocking(&snapshot));
    assert!(
        error.starts_with("the snapshot is of model decoder (") && error.contains("this is model joiner ("),
        "{error}"
    );
    assert_eq!(taken(&third), [0, 0]);
    let encoder = vec![("encoder", stage(&context, "encoder", 1))];
    let expected = "the snapshot is malformed: 2 stages, and the model has 1";
    assert_eq!(said(Staged::build(LANES, encoder).unwrap().restore_blocking(&snapshot)), expected);
    drop(staged);
    assert_eq!(said(stream.fork_blocking()), "closed");
}
