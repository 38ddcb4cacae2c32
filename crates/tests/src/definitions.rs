//! Definitions: frozen, instantiated, chained, and served by lanes.

use crate::Open;
use crate::sessions::{N, bytes, elementwise, floats, kernels, numbers, said, session};
use lanes_core::DType;
use lanes_core::compile::KernelSource;
use lanes_core::device::DeviceError;
use lanes_core::inference::ModelContext;
use lanes_core::lanes::{LanesBuilder, Value};
use lanes_core::plan::Activation;
use lanes_core::session::{Definition, Index, Interface, Kernel, LanedBuilder, Product, Session};
use std::sync::Arc;

/// `y = relu(x · w)` over one row of `k`, through a scratch region; `n` columns.
fn layer(session: &Session, name: &str, k: usize, n: usize, w: &Arc<[f32]>) -> Definition {
    let (x, y) = (session.allocate("x", k * 4).unwrap(), session.allocate("y", n * 4).unwrap());
    let weights = session.weights_f32("w", Arc::clone(w)).unwrap();
    session
        .record(name, |commands| {
            let sum = commands.scratch("sum", n * 4)?;
            commands.contract(&Product::new(&x, &weights, &sum).activation(Activation::Relu))?;
            commands.copy(&sum, &y)
        })
        .unwrap();
    let interface = Interface::new().input("x", DType::F32, &[1, k], &x).output("y", DType::F32, &[n], &y);
    session.freeze(name, interface).unwrap()
}

fn relu(x: &[f32], w: &[f32]) -> Vec<f32> {
    let n = w.len() / x.len();
    let sum = |c: usize| x.iter().enumerate().map(|(i, x)| f64::from(*x) * f64::from(w[i * n + c])).sum::<f64>();
    (0..n).map(|c| sum(c).max(0.0) as f32).collect()
}

/// Two models recorded as one plan: the output of the first is the input of the second, where it lies.
pub fn fragments(open: Open<'_>) {
    let home = session(open);
    let (w, v): (Arc<[f32]>, Arc<[f32]>) = (numbers(12 * 20, 1).into(), numbers(20 * 8, 2).into());
    let (encoder, decoder) = (layer(&home, "encoder", 12, 20, &w), layer(&home, "decoder", 20, 8, &v));
    assert_eq!(encoder.names().collect::<Vec<_>>(), [("x", 48), ("y", 80)]);
    // The definitions outlive the session that they come from; another of the same device uses them.
    let device = Arc::clone(home.device());
    drop(home);
    let session = Session::builder("test").device(device).open().unwrap();
    let (x, y) = (session.allocate("x", 48).unwrap(), session.allocate("y", 64).unwrap());
    let middle = session.allocate("middle", 160).unwrap().slice(32..112).unwrap();
    let half = y.slice(32..64).unwrap();
    session
        .record("both", |commands| {
            commands.fragment(&encoder, &[("x", &x), ("y", &middle)])?;
            commands.fragment(&decoder, &[("y", &half), ("x", &middle)])
        })
        .unwrap();
    let profile = session.profile("both", 1).unwrap();
    let labels: Vec<_> = profile.commands.iter().map(|(label, _)| label.as_str()).collect();
    assert_eq!(labels, ["encoder/product with w", "copy", "decoder/product with w", "copy"], "and no copy between");
    for seed in 3..6 {
        let value = numbers(12, seed);
        session.upload(&x, &bytes(&value)).unwrap();
        session.replay("both").unwrap().wait().unwrap();
        let hidden = relu(&value, &w);
        let expected = relu(&hidden, &v);
        assert_eq!(floats(&session, &middle), hidden);
        assert_eq!(floats(&session, &y), [vec![0.0; 8], expected].concat());
    }
    // What lies between may be scratch, and one definition may be used more than once, as an instance too.
    let square: Arc<[f32]> = numbers(12 * 12, 7).into();
    let twice = layer(&session, "square", 12, 12, &square);
    let out = session.allocate("out", 48).unwrap();
    session
        .record("twice", |commands| {
            let between = commands.scratch("between", 48)?;
            commands.fragment(&twice, &[("x", &x), ("y", &between)])?;
            commands.fragment(&twice, &[("x", &between), ("y", &out)])
        })
        .unwrap();
    let one = session.instantiate("one", &twice).unwrap();
    let value = numbers(12, 9);
    session.upload(&x, &bytes(&value)).unwrap();
    session.upload(one.region("x").unwrap(), &bytes(&value)).unwrap();
    session.replay("twice").unwrap().wait().unwrap();
    session.replay(one.key()).unwrap().wait().unwrap();
    let once = relu(&value, &square);
    assert_eq!(floats(&session, one.region("y").unwrap()), once);
    assert_eq!(floats(&session, &out), relu(&once, &square));
    assert_eq!(said(one.region("z")), "invalid: one has no region z; it has x, y");
}

/// Names and bindings that do not fit are refused by name.
pub fn refusals(open: Open<'_>) {
    let session = session(open);
    let (_, add) = kernels(&session);
    let [x, y, z] = ["x", "y", "z"].map(|label| session.allocate(label, N * 4).unwrap());
    let w = session.weights("w", bytes(&numbers(N, 1))).unwrap();
    session.record("add", |c| c.dispatch(&add, &[N], &[N], &[x.read(), w.read(), y.write()])).unwrap();
    let frozen = |interface| said(session.freeze("add", interface));
    let input = |name: &str, region: &_| Interface::new().input(name, DType::F32, &[N], region);
    assert_eq!(said(session.freeze("no", Interface::new())), "invalid: nothing is recorded as no in session test");
    assert_eq!(frozen(input("in", &z)), "invalid: in of add: nothing recorded touches region z");
    assert_eq!(frozen(input("in", &w)), "invalid: in of add: region w is no memory that is kept or handed over");
    assert_eq!(
        frozen(Interface::new().input("in", DType::F32, &[4], &x.slice(0..16).unwrap())),
        "invalid: in of add: part of region x, and a name is for all of it"
    );
    assert_eq!(
        frozen(Interface::new().input("in", DType::F64, &[N], &x)),
        "invalid: in of add: 800 bytes, and region x has 400"
    );
    assert_eq!(frozen(input("a", &x).output("b", DType::F32, &[N], &x)), "invalid: b of add: region x is a already");
    assert_eq!(frozen(input("a", &x).output("a", DType::F32, &[N], &y)), "invalid: a of add: the name is taken");
    let state = |initial: usize| {
        let initial = Some(Arc::from(vec![0; initial]));
        Interface::new().state("h", DType::F32, &[N], initial, (&x, &y))
    };
    assert_eq!(frozen(state(3)), "invalid: initial value of h of add is 3 bytes, not 400");

    let definition = session.freeze("add", input("in", &x).output("out", DType::F32, &[N], &y)).unwrap();
    let bound = |bindings: &[(&str, &_)]| said(session.record("no", |c| c.fragment(&definition, bindings)));
    assert_eq!(bound(&[("in", &x), ("sum", &y)]), "invalid: definition add has no region sum; it has in, out");
    assert_eq!(bound(&[("in", &x)]), "invalid: out of definition add has no region");
    assert_eq!(bound(&[("in", &x), ("in", &x)]), "invalid: in of definition add is bound twice");
    assert_eq!(
        bound(&[("in", &x), ("out", &y.slice(0..16).unwrap())]),
        "invalid: out of definition add is 400 bytes from a multiple of 16 on, and region y is 16 from byte 0 on"
    );
    let wide = session.allocate("wide", N * 8).unwrap();
    assert_eq!(
        bound(&[("in", &x), ("out", &wide.slice(4..N * 4 + 4).unwrap())]),
        "invalid: out of definition add is 400 bytes from a multiple of 16 on, and region wide is 400 from byte 4 on"
    );
    assert_eq!(
        bound(&[("in", &x), ("out", &w)]),
        "invalid: plan no: command 0 (add/add) writes storage 1, a constant: it is only read"
    );
    assert!(bound(&[("in", &x), ("out", &x)]).contains("another of its operands touches"));
    let other = Session::builder("other").device(open(None)).open().unwrap();
    let far = other.allocate("far", N * 4).unwrap();
    assert_eq!(bound(&[("in", &far), ("out", &y)]), "invalid: region far is of session other, not of session test");

    // For lanes, what is kept between replays must be a state, and a kernel sees whole seats.
    let planned = |definition: &Definition| said(definition.planned(Arc::clone(session.device())));
    let kept = session.freeze("add", Interface::new().output("out", DType::F32, &[N], &y)).unwrap();
    assert_eq!(
        planned(&kept),
        "invalid: plan add: command 0 (add) reads byte 0 of storage 0 before anything writes it"
    );
    let part = x.slice(0..N * 4 - 16).unwrap();
    session.record("part", |c| c.dispatch(&add, &[8usize], &[8usize], &[part.read(), w.read(), y.write()])).unwrap();
    let part = session.freeze("part", input("in", &x).output("out", DType::F32, &[N], &y)).unwrap();
    assert_eq!(
        planned(&part),
        "invalid: add of part sees bytes 0..384 of x, which has a value a seat: kernels see all of it"
    );
}

/// However often a definition is used on a device, its weights are there once, and they go with the last use.
pub fn weights(open: Open<'_>) {
    let session = session(open);
    let (mul, _) = kernels(&session);
    let before = session.device().memory().used.weights;
    assert_eq!(before, 0);
    let (k, n) = (64, 128);
    let x = session.allocate("x", k * 4).unwrap();
    let (y, z) = (session.allocate("y", n * 4).unwrap(), session.allocate("z", n * 4).unwrap());
    let (w, scale) =
        (session.weights_f32("w", numbers(k * n, 1)).unwrap(), session.weights("s", bytes(&numbers(n, 2))).unwrap());
    session
        .record("one", |commands| {
            commands.contract(&Product::new(&x, &w, &y))?;
            commands.dispatch(&mul, &[n], &[n], &[y.read(), scale.read(), z.write()])
        })
        .unwrap();
    let once = session.device().memory().used.weights;
    assert!(once >= (k * n * 4 + n * 4) as u64, "{once} bytes of weights");
    let interface = Interface::new().input("x", DType::F32, &[k], &x).output("z", DType::F32, &[n], &z);
    let definition = session.freeze("one", interface).unwrap();
    let other = Session::builder("other").device(Arc::clone(session.device())).open().unwrap();
    for at in 0..4 {
        for session in [&session, &other] {
            let key = format!("slot {at}");
            let instance = session.instantiate(&key, &definition).unwrap();
            session.upload(instance.region("x").unwrap(), &bytes(&numbers(k, at))).unwrap();
            session.replay(&key).unwrap().wait().unwrap();
            let (value, w) = (numbers(k, at), numbers(k * n, 1));
            let sum = |c: usize| (0..k).map(|i| f64::from(value[i]) * f64::from(w[i * n + c])).sum::<f64>();
            let expected: Vec<f32> = numbers(n, 2).iter().enumerate().map(|(c, s)| sum(c) as f32 * s).collect();
            assert_eq!(floats(session, instance.region("z").unwrap()), expected);
        }
    }
    assert_eq!(session.device().memory().used.weights, once, "nine executables, one set of weights");
    let device = Arc::clone(session.device());
    drop(session);
    assert_eq!(device.memory().used.weights, once, "the other session still has them");
    drop(other);
    assert_eq!(device.memory().used.weights, 0);
}

/// Kernel `name` over the seats of a turn: `y[s, i] = <op>(a[s, i], b[s, i])` for `i` below [`N`].
pub(crate) fn seated(name: &str, op: &str) -> KernelSource {
    let each = elementwise(name, op);
    let head = "(%seats: index)";
    let text = each.text.replace("(%n: index)", head).replace("(%n: index, ", "(%seats: index, ");
    // Both regions are told seats, and work on elements.
    let count = format!("  %width = index.constant {N} : index\n  %n = index.mul %seats, %width : index\n");
    let text = text.replace("  %one = index", &format!("{count}  %one = index"));
    let text = text.replace("  %zero = index", &format!("{count}  %zero = index"));
    KernelSource::new(each.name, text, name)
}

/// A running sum and its product with the input, written with kernels: streams in any company, each against its own.
pub fn laned(open: Open<'_>) {
    let context = ModelContext::new(open(None));
    let images = context.compile(&[seated("mul", "scalar.mulf"), seated("add", "scalar.addf")]).unwrap();
    let [mul, add] = [0, 1].map(|at: usize| Kernel::new(Arc::clone(&images[at])));
    let build = || {
        let mut model = LanedBuilder::new("sums");
        let x = model.input("x", DType::F32, &[N])?;
        let h = model.state("h", DType::F32, &[N], Some(bytes(&numbers(N, 50)).into()))?;
        let y = model.output("y", DType::F32, &[N])?;
        let (seats, commands) = (&[Index::Seats], model.commands());
        commands.dispatch(&add, seats, seats, &[h.read.read(), x.read(), h.next.write()])?;
        commands.dispatch(&mul, seats, seats, &[h.next.read(), x.read(), y.write()])?;
        model.build()
    };
    let definition: Definition = build().unwrap();
    let runnable = LanesBuilder::new(definition.planned(context.device().unwrap()).unwrap()).lanes(4).build().unwrap();
    let streams: Vec<_> = (0..4).map(|_| runnable.spawn_blocking().unwrap()).collect();
    std::thread::scope(|scope| {
        for (at, stream) in streams.iter().enumerate() {
            scope.spawn(move || {
                let mut h = numbers(N, 50);
                for turn in 0..20 {
                    let x = numbers(N, at * 100 + turn);
                    h.iter_mut().zip(&x).for_each(|(h, x)| *h += x);
                    let expected: Vec<f32> = h.iter().zip(&x).map(|(h, x)| h * x).collect();
                    let outputs = stream.call_blocking(&[Value::new(&[N], &x)]).unwrap();
                    assert_eq!(outputs.get::<f32>(0), Some(&expected[..]), "stream {at}, turn {turn}");
                }
            });
        }
    });
    // The same definition in a session, where it has one seat and the state is where it was left.
    let session = Session::builder("test").context(context).open().unwrap();
    let instance = session.instantiate("sums", &definition).unwrap();
    let x = numbers(N, 3);
    session.upload(instance.region("x").unwrap(), &bytes(&x)).unwrap();
    session.replay("sums").unwrap().wait().unwrap();
    let h: Vec<f32> = numbers(N, 50).iter().zip(&x).map(|(h, x)| h + x).collect();
    assert_eq!(floats(&session, instance.region("h_next").unwrap()), h);
    let unused = |mut model: LanedBuilder| {
        model.input("x", DType::F32, &[N])?;
        model.build()
    };
    let refused: Result<_, DeviceError> = unused(LanedBuilder::new("idle"));
    assert_eq!(said(refused), "invalid: x of idle: nothing recorded touches region x");
    let mut wide = LanedBuilder::new("wide");
    assert!(said(wide.input("x", DType::F32, &[usize::MAX, 2])).contains("x of shape"));
    assert_eq!(said(wide.input("x", DType::F32, &[0])), "invalid: region x of 0 bytes: memory has at least one");
}
