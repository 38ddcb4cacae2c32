//! Which model a plan and its signature are: a hash of all that decides what states mean and what is computed of them.
//!
//! - The same file gives the same identity in every process and on every device: nothing goes in that depends on either.
//! - Every list goes in with its length and every choice with a number, so that no two plans are written alike.
//! - A kernel goes in as its compiled form prints. Another compiler may print it otherwise; that refuses a snapshot that
//!   would have fitted, and never takes one that would not.

use super::{Activation, Argument, Command, Contraction, Plan, Region, Scalar, Storage, StorageId, Term};
use crate::lanes::Identity;
use crate::plan::Access;
use crate::{Port, Scope, Signature, StateKind, StateSpec};
use sha2::{Digest, Sha256};
use std::fmt::{self, Write};

/// The identity of the model that `plan` and `signature` are. Reads every constant once.
pub fn identity(plan: &Plan, signature: &Signature) -> Identity {
    let mut hash = Hash(Sha256::new());
    hash.signature(signature);
    hash.plan(plan);
    hash.0.finalize().into()
}

struct Hash(Sha256);

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

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
        let Plan { name, storages, kernels, commands } = plan;
        self.text(name);
        self.list(storages, Self::storage);
        self.list(kernels, |hash, kernel| {
            // A hash takes any text.
            let _ = write!(hash, "{kernel:?}");
            hash.number(u64::MAX);
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
                self.number(1);
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
                self.number(if window.is_some() { 2 } else { 0 });
                if let Some(window) = window {
                    self.numbers(&[window.start, window.end]);
                }
                self.number(storage.0.into());
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
    use std::collections::HashSet;
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
        let edits: [Edit; 24] = [
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
}
