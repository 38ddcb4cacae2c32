//! Which model a plan and its signature are: a hash of all that decides what states mean and what is computed of them.
//!
//! - The same file gives the same identity in every process and on every device: nothing goes in that depends on either.
//! - Every list goes in with its length and every choice with a number, so that no two plans are written alike.
//! - A kernel goes in as it was written ([`SourceDigest`]), never as it was compiled: builds of the compiler come and go, and
//!   each backend has its own.
//! - What was written down once stays readable: `an_identity_lasts` fails where any of this changes.

use super::{Activation, Argument, Command, Contraction, Plan, Precision, Region, Scalar, Storage, StorageId, Term};
use crate::lanes::Identity;
use crate::plan::Access;
use crate::{Port, Scope, Signature, StateKind, StateSpec};
use loom_compiler::ir::SourceDigest;
use sha2::{Digest, Sha256};

/// The identity of the model that `plan` and `signature` are. Reads every constant once.
pub fn identity(plan: &Plan, signature: &Signature) -> Identity {
    let mut hash = Hash(Sha256::new());
    hash.signature(signature);
    hash.plan(plan);
    hash.0.finalize().into()
}

struct Hash(Sha256);

impl Hash {
    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn numbers(&mut self, numbers: &[usize]) {
        self.number(numbers.len() as u64);
        numbers.iter().for_each(|number| self.number(*number as u64));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn list<T>(&mut self, list: &[T], mut one: impl FnMut(&mut Self, &T)) {
        self.number(list.len() as u64);
        list.iter().for_each(|item| one(self, item));
    }

    fn signature(&mut self, signature: &Signature) {
        let Signature { name, inputs, outputs, states } = signature;
        self.text(name);
        self.list(inputs, Self::port);
        self.list(outputs, Self::port);
        self.list(states, Self::state);
    }

    fn port(&mut self, port: &Port) {
        let Port { name, dtype, shape, scope } = port;
        self.text(name);
        self.text(dtype.name());
        self.numbers(shape);
        self.number(match scope {
            Scope::Seat => 0,
            Scope::Turn => 1,
        });
    }

    fn state(&mut self, state: &StateSpec) {
        let StateSpec { input, output, dtype, lane_shape, initial, kind } = state;
        self.text(input);
        self.text(output);
        self.text(dtype.name());
        self.numbers(lane_shape);
        self.number(initial.is_some().into());
        self.bytes(initial.as_deref().unwrap_or_default());
        self.number(match kind {
            StateKind::Replaced => 0,
        });
    }

    fn plan(&mut self, plan: &Plan) {
        // Epilogues say nothing that commands do not.
        let Plan { name, storages, kernels, commands, epilogues: _ } = plan;
        self.text(name);
        self.list(storages, Self::storage);
        self.list(kernels, |hash, kernel| {
            let SourceDigest(digest) = kernel.source;
            hash.bytes(&digest);
        });
        self.list(commands, Self::command);
    }

    fn storage(&mut self, storage: &Storage) {
        let (kind, at, bytes) = match storage {
            Storage::Constant { label, bytes } => {
                self.number(0);
                self.text(label);
                return self.bytes(bytes);
            }
            Storage::Input { port, bytes } => (1, *port, *bytes),
            Storage::SharedInput { port, bytes } => (2, *port, *bytes),
            Storage::Output { port, bytes } => (3, *port, *bytes),
            Storage::State { state, bytes } => (4, *state, *bytes),
            Storage::Scratch { bytes } => (5, 0, *bytes),
            Storage::Resident { binding, bytes } => (6, *binding, *bytes),
        };
        self.number(kind);
        self.numbers(&[at, bytes]);
    }

    fn place(&mut self, (storage, region): (StorageId, Region)) {
        let Region { offset, row_bytes, stride, rows } = region;
        self.numbers(&[storage.0 as usize, offset, row_bytes, stride, rows]);
    }

    fn command(&mut self, command: &Command) {
        match command {
            Command::Dispatch { label, kernel, workload, arguments } => {
                self.number(0);
                self.text(label);
                self.number(kernel.0.into());
                self.list(workload, |hash, scalar| hash.scalar(*scalar));
                self.list(arguments, Self::argument);
            }
            Command::Contract(contraction) => {
                match contraction.precision {
                    Precision::F32 => self.number(1),
                    Precision::Bf16 => self.number(6),
                }
                self.contraction(contraction);
            }
            Command::Copy { from, to } => {
                self.number(2);
                self.place(*from);
                self.place(*to);
            }
            Command::Fill { to, pattern } => {
                self.number(3);
                self.place(*to);
                self.number((*pattern).into());
            }
            Command::Gather { state, row, to } => {
                self.number(4);
                self.place((*state, *row));
                self.place(*to);
            }
            Command::Scatter { from, state, row } => {
                self.number(5);
                self.place(*from);
                self.place((*state, *row));
            }
        }
    }

    fn scalar(&mut self, scalar: Scalar) {
        match scalar {
            Scalar::Bits(bits) => {
                self.number(0);
                self.number(bits);
            }
            Scalar::Seats => self.number(1),
        }
    }

    fn argument(&mut self, argument: &Argument) {
        match argument {
            Argument::Buffer { storage, window, uses } => {
                self.number(0);
                self.number(storage.0.into());
                self.numbers(&window.as_ref().map_or(Vec::new(), |window| vec![window.start, window.end]));
                self.list(uses, |hash, (region, access)| {
                    hash.place((*storage, *region));
                    hash.number(match access {
                        Access::Read => 0,
                        Access::Write => 1,
                        Access::ReadWrite => 2,
                        Access::Accumulate => 3,
                    });
                });
            }
            Argument::Scalar(scalar) => {
                self.number(1);
                self.scalar(*scalar);
            }
        }
    }

    fn contraction(&mut self, contraction: &Contraction) {
        let Contraction { label, terms, weights, bias, activation, positions, n, out, out_offset, .. } = contraction;
        self.text(label);
        self.list(terms, |hash, term| {
            let Term { storage, offset, position_stride, taps, tap_stride, tap_len } = *term;
            hash.numbers(&[storage.0 as usize, offset, position_stride, taps, tap_stride, tap_len]);
        });
        self.bytes(bytemuck::cast_slice(weights));
        self.number(bias.is_some().into());
        self.bytes(bytemuck::cast_slice(bias.as_deref().unwrap_or_default()));
        self.number(match activation {
            Activation::None => 0,
            Activation::Relu => 1,
            Activation::Sigmoid => 2,
            Activation::Tanh => 3,
            Activation::Silu => 4,
        });
        self.numbers(&[*positions, *n, out.0 as usize, *out_offset, contraction.out_position_stride]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use loom_compiler::{CpuImage, compile_cpu};
    use std::collections::{BTreeMap, HashSet};
    use std::sync::Arc;

    fn example() -> (Plan, Signature) {
        let port = |name: &str| Port { name: name.into(), dtype: DType::F32, shape: vec![2], scope: Scope::Seat };
        let state = StateSpec {
            input: "h".into(),
            output: "h_out".into(),
            dtype: DType::F32,
            lane_shape: vec![2],
            initial: None,
            kind: StateKind::Replaced,
        };
        let (inputs, outputs, states) = (vec![port("x")], vec![port("y")], vec![state]);
        let signature = Signature { name: "m".into(), inputs, outputs, states };
        let mut plan = Plan { name: "p".into(), ..Plan::default() };
        let x = plan.storage(Storage::Input { port: 0, bytes: 8 });
        let out = plan.storage(Storage::Output { port: 0, bytes: 8 });
        plan.storage(Storage::Constant { label: "c".into(), bytes: [1, 2].as_slice().into() });
        plan.commands.push(Command::Contract(Contraction {
            label: "dense".into(),
            terms: vec![Term { storage: x, offset: 0, position_stride: 0, taps: 1, tap_stride: 0, tap_len: 2 }],
            weights: Arc::from([1.0; 4]),
            precision: Precision::F32,
            bias: None,
            activation: Activation::None,
            positions: 1,
            n: 2,
            out,
            out_offset: 0,
            out_position_stride: 2,
        }));
        plan.commands.push(Command::Fill { to: (out, Region::contiguous(0, 4)), pattern: 7 });
        (plan, signature)
    }

    /// One difference at a time, of every kind that a plan or a signature can have, and no two hash alike.
    #[test]
    fn whatever_differs_is_another_model() {
        type Edit = fn(&mut Plan, &mut Signature);
        fn contraction(plan: &mut Plan) -> &mut Contraction {
            match &mut plan.commands[0] {
                Command::Contract(contraction) => contraction,
                other => unreachable!("{other:?}"),
            }
        }
        let edits: [Edit; 25] = [
            |_, _| {},
            |plan, _| plan.name = "q".into(),
            |_, signature| signature.name = "n".into(),
            |_, signature| signature.inputs[0].name = "z".into(),
            |_, signature| signature.inputs[0].dtype = DType::I32,
            |_, signature| signature.inputs[0].shape = vec![2, 1],
            |_, signature| signature.inputs[0].scope = Scope::Turn,
            |_, signature| signature.outputs.clear(),
            |_, signature| signature.states[0].input = "g".into(),
            |_, signature| signature.states[0].output = "g".into(),
            |_, signature| signature.states[0].lane_shape = vec![1, 2],
            |_, signature| signature.states[0].initial = Some([0; 8].as_slice().into()),
            |_, signature| signature.states[0].initial = Some([1; 8].as_slice().into()),
            |plan, _| plan.storages[0] = Storage::SharedInput { port: 0, bytes: 8 },
            |plan, _| plan.storages[2] = Storage::Constant { label: "d".into(), bytes: [1, 2].as_slice().into() },
            |plan, _| plan.storages[2] = Storage::Constant { label: "c".into(), bytes: [1, 3].as_slice().into() },
            |plan, _| contraction(plan).weights = Arc::from([1.0, 1.0, 1.0, -1.0]),
            |plan, _| contraction(plan).bias = Some(Arc::from([0.0, 0.0])),
            |plan, _| contraction(plan).activation = Activation::Tanh,
            |plan, _| contraction(plan).precision = Precision::Bf16,
            |plan, _| contraction(plan).terms[0].offset = 1,
            |plan, _| contraction(plan).label = "wide".into(),
            |plan, _| plan.commands[1] = Command::Fill { to: (StorageId(1), Region::contiguous(0, 4)), pattern: 8 },
            |plan, _| plan.commands[1] = Command::Fill { to: (StorageId(1), Region::contiguous(4, 4)), pattern: 7 },
            |plan, _| plan.commands.swap(0, 1),
        ];
        let identities = edits.map(|edit| {
            let (mut plan, mut signature) = example();
            edit(&mut plan, &mut signature);
            identity(&plan, &signature)
        });
        assert_eq!(identities.iter().collect::<HashSet<_>>().len(), edits.len(), "{identities:?}");
        let (plan, signature) = example();
        assert_eq!(identity(&plan, &signature), identities[0]);
    }

    const SCALE: &str = r#"
config.def @scale.by = 2 : index

kernel.def export("scale") @up(%seats: index) {
  %one = index.constant 1 : index
  kernel.launch.config workgroups(%seats, %one, %one) workgroup_size(%one, %one, %one) : index
} launch(%seats: index, %x: buffer) {
  %zero = index.constant 0 : offset
  %view = buffer.view %x[%zero] : buffer -> view<[%seats]xi32>
  %item = kernel.workitem.dispatch.id<x> : index
  %by = config.get @scale.by : index
  %factor = index.cast %by : index to i32
  %before = view.load %view[%item] : view<[%seats]xi32> -> i32
  %after = scalar.muli %before, %factor : i32
  view.store %after, %view[%item] : i32, view<[%seats]xi32>
  kernel.return
}

kernel.def @down(%seats: index) {
  kernel.launch.config workgroups(%seats, 1, 1) workgroup_size(1, 1, 1) : index
} launch(%seats: index, %x: buffer) {
  kernel.return
}
"#;

    fn image(name: &str, text: &str, kernel: &str, config: &[(&str, &str)]) -> CpuImage {
        let config = config.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect::<BTreeMap<_, _>>();
        compile_cpu(name, text, kernel, &config).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The identity of the example with `image` as its kernel.
    fn with(image: CpuImage) -> Identity {
        let (mut plan, signature) = example();
        plan.kernel(Arc::new(image));
        identity(&plan, &signature)
    }

    /// Snapshots that were taken years ago carry this. Whoever has to change it gives up all of them, and raises the
    /// format of snapshots.
    #[test]
    fn an_identity_lasts() {
        let hex = |digest: &[u8]| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let kernel = image("scale.loom", SCALE, "scale", &[("scale.by", "3")]);
        // By another SHA-256: of the text, `up`, `scale.by` and `3`, each after its length in 8 bytes.
        let digest = "70d3eec396437b470faadfd40462ae00225979aa7d5b8c66f0e58605aa64efd2";
        assert_eq!(hex(&kernel.source.0), digest);
        assert_eq!(hex(&with(kernel)), "8be6c05a642b1df900a552b39e248f53caae89683e57447f165d467244535614");
    }

    /// What is not what a kernel was written as does not show: its file, by which name it was asked for, how config is
    /// spelled, what the text does not declare, and all that a compiler makes of it.
    #[test]
    fn a_kernel_is_what_was_written() {
        let bound = || image("a.loom", SCALE, "scale", &[("scale.by", "3")]);
        let identity = with(bound());
        let mut otherwise = bound();
        otherwise.launch = image("a.loom", SCALE, "down", &[]).launch;
        otherwise.name.clear();
        let same = [
            bound(),
            image("b.loom", SCALE, "@up", &[("scale.by", "3")]),
            image("a.loom", SCALE, "up", &[("@scale.by", "3"), ("scale", "4"), ("up", "5")]),
            image("a.loom", SCALE, "up", &[("@scale.by", "4"), ("scale.by", "3")]),
            CpuImage::decode(&bound().encode().unwrap()).unwrap(),
            otherwise,
        ];
        for (at, image) in same.into_iter().enumerate() {
            assert_eq!(with(image), identity, "{at}");
        }
        let others = [
            identity,
            with(image("a.loom", SCALE, "scale", &[])),
            with(image("a.loom", SCALE, "scale", &[("scale.by", "4")])),
            with(image("a.loom", SCALE, "down", &[("scale.by", "3")])),
            with(image("a.loom", &SCALE.replace("muli", "addi"), "scale", &[("scale.by", "3")])),
            with(image("a.loom", &SCALE.replace("constant 1 :", "constant 2 :"), "scale", &[("scale.by", "3")])),
        ];
        assert_eq!(others.iter().collect::<HashSet<_>>().len(), others.len(), "{others:?}");
    }
}
