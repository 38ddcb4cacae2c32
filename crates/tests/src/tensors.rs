//! Tensors: views, copies, who made them, and every refusal by its message.

use crate::Open;
use crate::sessions::{bytes, numbers, said};
use crate::tasks::{Woken, block_on, poll_once};
use lanes_core::DType;
use lanes_core::device::{Completion, DeviceError, Outcome, Placement, Purpose};
use lanes_core::inference::{Descriptor, Layout, ModelContext, Tensor};
use std::sync::Arc;
use std::task::Poll;

const F32: DType = DType::F32;

fn context(open: Open<'_>) -> ModelContext {
    ModelContext::new(open(None))
}

fn desc(shape: &[usize]) -> Descriptor {
    Descriptor::new(F32, shape).unwrap()
}

fn fault() -> DeviceError {
    DeviceError::Fault { at: "maker".into(), what: "on purpose".into() }
}

const UPSTREAM: &str = "an earlier submission failed: fault in maker: on purpose";

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.download().wait().expect("it arrives")
}

/// What goes up comes down, in every form; the source is free at once.
pub fn round_trips(open: Open<'_>) {
    let context = context(open);
    let mut values = numbers(24, 1);
    let tensor = Tensor::upload(&context, &[2, 3, 4], &values).unwrap();
    let expected = values.clone();
    values.fill(0.0);
    assert_eq!((tensor.dtype(), tensor.shape()), (F32, &[2, 3, 4][..]));
    assert!(tensor.producers().is_empty() && tensor.context().is(&context));
    assert_eq!(floats(&tensor), expected);
    assert_eq!(block_on(tensor.download::<f32>()).unwrap(), expected);
    assert_eq!(block_on(tensor.download_bytes()).unwrap(), bytes(&expected));
    let mut into = vec![0; 96];
    tensor.read_into(&mut into).unwrap();
    assert_eq!(into, bytes(&expected));
    for placement in [Placement::Device, Placement::Upload, Placement::Readback, Placement::Shared] {
        let zeros = Tensor::allocate(&context, "zeros", desc(&[5]), placement).unwrap();
        assert_eq!(floats(&zeros), [0.0; 5], "{placement:?}");
        zeros.copy_from(&Tensor::upload(&context, &[5], &numbers(5, 2)).unwrap()).unwrap().wait().unwrap();
        assert_eq!(floats(&zeros), numbers(5, 2), "{placement:?}");
    }
    // What arrives is what was there when it was asked for.
    let asked = tensor.download::<f32>();
    tensor.copy_from(&Tensor::upload(&context, &[2, 3, 4], &numbers(24, 3)).unwrap()).unwrap().wait().unwrap();
    assert_eq!(asked.wait().unwrap(), expected);
    assert_eq!(floats(&tensor), numbers(24, 3));
    // A buffer of somebody else's becomes a tensor without a copy.
    let device = context.device().unwrap();
    let buffer = device.allocate("theirs", Purpose::State, Placement::Device, 64).unwrap();
    let wrapped = Tensor::wrap(&context, &buffer, 16, desc(&[3, 4]), None).unwrap();
    wrapped.copy_from(&Tensor::upload(&context, &[3, 4], &numbers(12, 4)).unwrap()).unwrap().wait().unwrap();
    let mut raw = vec![0; 64];
    device.read(&buffer, 0, &mut raw).unwrap();
    assert_eq!(raw, bytes(&[&[0.0; 4][..], &numbers(12, 4)].concat()));
}

/// Views are the memory they were cut from, however they are cut; they keep it alive.
pub fn views(open: Open<'_>) {
    let context = context(open);
    let device = context.device().unwrap();
    let before = device.memory().used;
    let values: Vec<f32> = (0..24).map(|at| at as f32).collect();
    let tensor = Tensor::upload(&context, &[4, 6], &values).unwrap();
    let at = |row: usize, column: usize| (row * 6 + column) as f32;
    let rows = tensor.slice(0, 1..3).unwrap();
    assert_eq!((floats(&rows), rows.descriptor().layout()), (values[6..18].to_vec(), Layout::RowMajor));
    let columns = tensor.slice(1, 2..5).unwrap();
    let expected: Vec<f32> = (0..4).flat_map(|row| (2..5).map(move |column| at(row, column))).collect();
    assert_eq!((floats(&columns), columns.descriptor().strides()), (expected, &[6, 1][..]));
    let turned = columns.transpose(&[1, 0]).unwrap();
    let expected: Vec<f32> = (2..5).flat_map(|column| (0..4).map(move |row| at(row, column))).collect();
    assert_eq!((floats(&turned), turned.shape()), (expected.clone(), &[3, 4][..]));
    let mut into = vec![0; 48];
    turned.read_into(&mut into).unwrap();
    assert_eq!(into, bytes(&expected));
    let cube = rows.reshape(&[3, 2, 2]).unwrap().slice(2, 1..2).unwrap();
    assert_eq!(floats(&cube), [7.0, 9.0, 11.0, 13.0, 15.0, 17.0]);
    // A sub-range is written, strided and all, and its neighbours are not.
    let patch = tensor.slice(0, 1..3).unwrap().slice(1, 1..4).unwrap();
    patch.copy_from(&Tensor::upload(&context, &[2, 3], &[-1f32; 6]).unwrap()).unwrap().wait().unwrap();
    let expected = |row: usize, column: usize| {
        if (1..3).contains(&row) && (1..4).contains(&column) { -1.0 } else { at(row, column) }
    };
    let all = |value: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        (0..4).flat_map(|row| (0..6).map(move |column| (row, column))).map(|(row, column)| value(row, column)).collect()
    };
    assert_eq!(floats(&tensor), all(&expected));
    // Within one memory too, where the two lie apart.
    tensor.slice(0, 3..4).unwrap().copy_from(&tensor.slice(0, 0..1).unwrap()).unwrap().wait().unwrap();
    assert_eq!(floats(&tensor.slice(0, 3..4).unwrap()), values[..6]);
    // Dropped but for a view, the memory stays.
    drop((tensor, rows, columns, turned, patch));
    assert_eq!(device.memory().used.staging, before.staging + 96);
    assert_eq!(floats(&cube), [-1.0, -1.0, 11.0, -1.0, -1.0, 17.0]);
    drop(cube);
    assert_eq!(device.memory().used, before);
}

/// Parts one after the other along axis 0, some without rows.
pub fn concatenations(open: Open<'_>) {
    let context = context(open);
    let values = numbers(20, 1);
    let rows = |from: usize, to: usize| Tensor::upload(&context, &[to - from, 4], &values[from * 4..to * 4]).unwrap();
    let (a, b, none) = (rows(0, 2), rows(2, 5), rows(2, 2));
    let whole = Tensor::concat(&context, &[&a, &none, &b]).unwrap();
    assert_eq!((whole.shape(), floats(&whole)), (&[5, 4][..], values.clone()));
    // A part that lies in strides.
    let turned = Tensor::concat(&context, &[&b.transpose(&[1, 0]).unwrap(), &b.transpose(&[1, 0]).unwrap()]).unwrap();
    let once: Vec<f32> =
        (0..4).flat_map(|column| (2..5).map(move |row| row * 4 + column)).map(|at| values[at]).collect();
    assert_eq!((turned.shape(), floats(&turned)), (&[8, 3][..], [once.clone(), once].concat()));
    let other = Tensor::upload(&context, &[1, 3], &[0f32; 3]).unwrap();
    let scalar = Tensor::upload(&context, &[], &[0f32]).unwrap();
    let ints = Tensor::upload(&context, &[1, 4], &[0i32; 4]).unwrap();
    let refused = |parts: &[&Tensor]| said(Tensor::concat(&context, parts));
    assert_eq!(refused(&[]), "invalid: a concatenation of no tensors: it takes at least one");
    for (part, found) in [(&other, "float32 [1, 3]"), (&ints, "int32 [1, 4]"), (&scalar, "float32 []")] {
        assert_eq!(
            refused(&[&a, part]),
            format!("invalid: part 1 of a concatenation is {found}, and part 0 float32 [2, 4]: only axis 0 may differ")
        );
    }
    let foreign = ModelContext::new(open(None));
    let theirs = Tensor::upload(&foreign, &[1, 4], &[0f32; 4]).unwrap();
    assert_eq!(
        refused(&[&a, &theirs]),
        format!("invalid: tensor float32 [1, 4] is of {foreign}, and a concatenation of {context}")
    );
}

/// A device that does not take a copy for every part says how many it has; nothing of the concatenation is left, and it
/// may be made again.
pub fn crowded_concatenations(open: Open<'_>) {
    let context = context(open);
    let device = context.device().unwrap();
    let parts = [1, 2].map(|seed| Tensor::upload(&context, &[2, 4], &numbers(8, seed)).unwrap());
    let buffer = device.allocate("filler", Purpose::State, Placement::Device, 8).unwrap();
    let before = device.memory().used;
    let mut room = 1 << 16;
    for left in [0, 1] {
        // All the places, and then all but one: it is refused before its first copy, and before its second.
        let (held, gate) = Completion::pending();
        let mut queued = Vec::new();
        let busy = loop {
            if queued.len() + left == room {
                break None;
            }
            match device.copy((&buffer, 0), (&buffer, 4), 4, std::slice::from_ref(&held)) {
                Ok(completion) => queued.push(completion),
                Err(DeviceError::Busy { depth }) => break Some(depth),
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(busy, (left == 0).then_some(queued.len()), "the queue has an end, and it stays where it is");
        room = queued.len() + left;
        let refused = said(Tensor::concat(&context, &[&parts[0], &parts[1]]));
        assert_eq!(refused, format!("busy: {room} in flight"));
        gate.complete(Ok(Outcome::default()));
        queued.iter().for_each(|completion| drop(completion.wait().unwrap()));
        let whole = Tensor::concat(&context, &[&parts[0], &parts[1]]).unwrap();
        assert_eq!(floats(&whole), [numbers(8, 1), numbers(8, 2)].concat());
        drop(whole);
        // What was queued of the one refused has ended before the one after it; its memory goes soon.
        crate::pools::until("the memory is given back", || device.memory().used == before);
    }
}

/// Whoever reads a tensor comes after who makes it, and fails with it; it is whole again once it is written anew.
pub fn producers(open: Open<'_>) {
    for ended in [None, Some(fault()), Some(DeviceError::Cancelled), Some(fault().upstream())] {
        let context = context(open);
        let device = context.device().unwrap();
        let buffer = device.allocate("made", Purpose::State, Placement::Device, 64).unwrap();
        let (completion, completer) = Completion::pending();
        let made = Tensor::wrap(&context, &buffer, 0, desc(&[4, 4]), Some(&completion)).unwrap();
        assert!(made.producers().iter().all(|producer| producer.is(&completion)) && made.producers().len() == 1);
        let view = made.slice(1, 1..3).unwrap();
        let target = Tensor::allocate(&context, "target", desc(&[4, 4]), Placement::Device).unwrap();
        let copied = target.copy_from(&made).unwrap();
        let whole = Tensor::concat(&context, &[&view, &view]).unwrap();
        let empty = made.slice(0, 2..2).unwrap();
        let mut downloads = [made.download::<f32>(), view.download(), whole.download(), target.download()];
        let woken = Arc::new(Woken::default());
        assert!(downloads.iter_mut().all(|download| poll_once(download, &woken).is_pending()));
        let mut nothing = empty.download::<f32>();
        assert!(poll_once(&mut nothing, &woken).is_pending() && !copied.is_done() && !whole.producers().is_empty());
        completer.complete(ended.clone().map_or(Ok(Outcome::default()), Err));
        let [all, part, twice, target_bytes] = downloads.map(|download| block_on(download).map_err(|e| e.to_string()));
        let nothing = block_on(nothing).map_err(|error| error.to_string());
        let Some(cause) = ended else {
            assert_eq!((all, part, twice), (Ok(vec![0.0; 16]), Ok(vec![0.0; 8]), Ok(vec![0.0; 16])));
            assert_eq!((target_bytes, nothing), (Ok(vec![0.0; 16]), Ok(vec![])));
            copied.wait().unwrap();
            continue;
        };
        let expected = cause.upstream().to_string();
        for (of, result) in [("it", all), ("a view", part), ("a concatenation", twice), ("nothing of it", nothing)] {
            assert_eq!(result, Err(expected.clone()), "{of}");
        }
        assert_eq!(said(copied.wait()), expected);
        // What was there before a copy that never ran is as it was.
        assert_eq!(target_bytes, Err(expected.clone()), "it was asked for when the copy was on its way");
        assert_eq!(floats(&target), [0.0; 16]);
        assert_eq!((said(made.wait()), said(whole.wait())), (expected.clone(), expected.clone()));
        let mut into = vec![0; 64];
        assert_eq!(said(made.read_into(&mut into)), expected);
        // Overwritten in part, that part is good; overwritten whole, all of it.
        view.copy_from(&Tensor::upload(&context, &[4, 2], &numbers(8, 1)).unwrap()).unwrap().wait().unwrap();
        assert_eq!(floats(&view), numbers(8, 1));
        assert_eq!(said(made.wait()), expected);
        made.copy_from(&Tensor::upload(&context, &[4, 4], &numbers(16, 1)).unwrap()).unwrap().wait().unwrap();
        assert_eq!(floats(&made), numbers(16, 1));
    }
}

/// Tensors without elements open no device, and fail as who made them did.
pub fn empties(open: Open<'_>) {
    // Opened elsewhere, for a buffer to wrap nothing of.
    let buffer = open(None).allocate("some", Purpose::State, Placement::Device, 4).unwrap();
    let context = ModelContext::lazy(|| panic!("nothing here needs a device"));
    let empty = Tensor::upload::<f32>(&context, &[0, 3], &[]).unwrap();
    let zeros = Tensor::allocate(&context, "zeros", desc(&[2, 0]), Placement::Device).unwrap();
    assert_eq!(floats(&empty.reshape(&[5, 0]).unwrap().slice(0, 1..3).unwrap()), [0f32; 0]);
    empty.read_into(&mut []).unwrap();
    empty.wait().unwrap();
    zeros.copy_from(&zeros.clone()).unwrap().wait().unwrap();
    let both = Tensor::concat(&context, &[&empty, &empty.slice(0, 0..0).unwrap()]).unwrap();
    assert_eq!((both.shape(), floats(&both)), (&[0, 3][..], vec![]));
    let failed = Completion::ready(Err(fault()));
    let made = Tensor::wrap(&context, &buffer, 0, desc(&[0, 3]), Some(&failed)).unwrap();
    let views = [
        made.clone(),
        made.slice(1, 0..2).unwrap(),
        made.reshape(&[0]).unwrap(),
        made.transpose(&[1, 0]).unwrap(),
        Tensor::concat(&context, &[&empty, &made]).unwrap(),
    ];
    for view in views {
        assert_eq!(said(view.wait()), UPSTREAM);
        assert_eq!(said(view.download::<f32>().wait()), UPSTREAM);
        assert_eq!(said(view.read_into(&mut [])), UPSTREAM);
        let target = view.descriptor().clone();
        let target = Tensor::allocate(&context, "target", target, Placement::Device).unwrap();
        assert_eq!(said(target.copy_from(&view).unwrap().wait()), UPSTREAM);
    }
    assert!(!context.is_open());
    // A part without rows fails what has some.
    let context = self::context(open);
    let made = Tensor::wrap(&context, &buffer, 0, desc(&[0, 3]), Some(&failed)).unwrap();
    let rows = Tensor::upload(&context, &[2, 3], &numbers(6, 1)).unwrap();
    assert_eq!(said(Tensor::concat(&context, &[&rows, &made]).unwrap().wait()), UPSTREAM);
    let mut pending = Tensor::concat(&context, &[&rows]).unwrap().download::<f32>();
    let woken = Arc::new(Woken::default());
    while !pending.is_ready() {
        std::thread::yield_now();
    }
    assert!(matches!(poll_once(&mut pending, &woken), Poll::Ready(Ok(values)) if values == numbers(6, 1)));
}

/// What does not fit is refused by name, before anything is queued.
pub fn refusals(open: Open<'_>) {
    let context = context(open);
    let device = context.device().unwrap();
    let tensor = Tensor::upload(&context, &[2, 3], &numbers(6, 1)).unwrap();
    let invalid = |what: &str| format!("invalid: {what}");
    assert_eq!(
        said(Tensor::upload(&context, &[2, 3], &[0f32; 5])),
        invalid("20 bytes are uploaded as float32 [2, 3] of 24")
    );
    let strided = Descriptor::strided(F32, &[2, 2], &[3, 1]).unwrap();
    assert_eq!(
        said(Tensor::allocate(&context, "holes", strided.clone(), Placement::Device)),
        invalid("holes of float32 [2, 2] with strides [3, 1]: what is allocated is row-major")
    );
    let buffer = device.allocate("theirs", Purpose::State, Placement::Device, 24).unwrap();
    Tensor::wrap(&context, &buffer, 4, strided.clone(), None).unwrap();
    for (offset, desc, found) in [(8, strided, "float32 [2, 2] of 20"), (2, desc(&[2]), "float32 [2] of 8")] {
        assert_eq!(
            said(Tensor::wrap(&context, &buffer, offset, desc, None)),
            invalid(&format!(
                "{found} bytes from byte {offset} on of a buffer of 24: it starts on a multiple of 4 and ends inside"
            ))
        );
    }
    assert_eq!(said(tensor.download::<i32>().wait()), invalid("float32 [2, 3] is downloaded as int32"));
    assert_eq!(said(tensor.read_into(&mut [0; 20])), invalid("float32 [2, 3] of 24 bytes is read into 20"));
    let other = Tensor::upload(&context, &[3, 2], &numbers(6, 2)).unwrap();
    assert_eq!(said(tensor.copy_from(&other)), invalid("float32 [3, 2] is copied to float32 [2, 3]"));
    let rows = |from: usize| tensor.slice(0, from..from + 1).unwrap();
    let columns = tensor.slice(1, 0..1).unwrap();
    assert_eq!(
        said(columns.transpose(&[1, 0]).unwrap().copy_from(&rows(0).slice(1, 0..2).unwrap())),
        invalid("float32 [1, 2] is copied to float32 [1, 2], and the two share bytes")
    );
    rows(0).copy_from(&rows(1)).unwrap().wait().unwrap();
    // Views that are none.
    assert_eq!(said(tensor.slice(2, 0..1)), invalid("axis 2 of float32 [2, 3] is sliced, and it has 2"));
    assert_eq!(said(tensor.slice(1, 2..4)), invalid("2..4 of axis 1 of float32 [2, 3], which has 3"));
    assert_eq!(said(tensor.reshape(&[7])), invalid("float32 [2, 3] of 6 elements is reshaped to [7] of 7"));
    let turned = tensor.transpose(&[1, 0]).unwrap();
    assert_eq!(
        said(turned.reshape(&[6])),
        invalid("float32 [3, 2] is reshaped to [6], and only what lies end to end can be")
    );
    assert_eq!(
        said(tensor.transpose(&[0, 0])),
        invalid("float32 [2, 3] is transposed by [0, 0], which does not name each axis once")
    );
    assert_eq!(
        said(Descriptor::strided(F32, &[2, 3], &[2, 1])),
        invalid("float32 [2, 3] with strides [2, 1]: two elements share a place")
    );
    let foreign = self::context(open);
    let theirs = Tensor::upload(&foreign, &[2, 3], &numbers(6, 3)).unwrap();
    assert_eq!(
        said(tensor.copy_from(&theirs)),
        invalid(&format!("tensor float32 [2, 3] is of {foreign}, and a copy to float32 [2, 3] of {context}"))
    );
    // Two contexts on one device are two all the same: they may have two budgets.
    let twin = ModelContext::new(device);
    assert!(
        said(Tensor::concat(&twin, &[&tensor])).contains(&format!("is of {context}, and a concatenation of {twin}"))
    );
    assert_ne!(context.to_string(), twin.to_string());
    assert!(tensor.producers().is_empty());
    assert!(matches!(
        Tensor::upload(&ModelContext::new(open(Some(8))), &[3], &[0f32; 3]),
        Err(DeviceError::OverBudget { .. })
    ));
}
