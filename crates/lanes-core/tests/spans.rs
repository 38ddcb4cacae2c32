//! Hosts that collect spans are told of every call and every turn.

use lanes_core::device::DeviceError;
use lanes_core::lanes::{Capacity, LanedModel, LanesBuilder, Refusal, SeatRows, Value};
use lanes_core::{DType, Port, Scope, Signature};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Gives its input back.
struct Echo {
    signature: Signature,
    bytes: Vec<u8>,
}

impl LanedModel for Echo {
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn prepare(&mut self, capacity: Capacity) -> Result<(), DeviceError> {
        self.bytes = vec![0; capacity.max_seats as usize * 4];
        Ok(())
    }
    fn input_mut(&mut self, _: usize) -> &mut [u8] {
        &mut self.bytes
    }
    fn run(&mut self, _: &[SeatRows], _: &mut Vec<Refusal>) -> Result<(), DeviceError> {
        Ok(())
    }
    fn output(&self, _: usize) -> &[u8] {
        &self.bytes
    }
    fn device_bytes(&self) -> u64 {
        0
    }
}

/// What a span said and how often it was entered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    entered: u32,
    exited: u32,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

#[derive(Clone, Default)]
struct Collector(Arc<(AtomicU64, Mutex<BTreeMap<u64, Seen>>)>);

impl Collector {
    fn of(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        change(self.0.1.lock().unwrap().entry(id.into_u64()).or_default());
    }

    fn named(&self, name: &str) -> Vec<Seen> {
        self.0.1.lock().unwrap().values().filter(|seen| seen.name == name).cloned().collect()
    }
}

impl Subscriber for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = Id::from_u64(self.0.0.fetch_add(1, Ordering::Relaxed) + 1);
        self.of(&id, |seen| {
            seen.name = attributes.metadata().name();
            attributes.record(seen);
        });
        id
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, id: &Id) {
        self.of(id, |seen| seen.entered += 1);
    }
    fn exit(&self, id: &Id) {
        self.of(id, |seen| seen.exited += 1);
    }
}

#[test]
fn every_call_and_every_turn_is_a_span() {
    let port = |name: &str| Port { name: name.into(), dtype: DType::F32, shape: vec![1], scope: Scope::Seat };
    let (inputs, outputs) = (vec![port("x")], vec![port("y")]);
    let signature = Signature { name: "echo".into(), inputs, outputs, states: Vec::new() };
    let collector = Collector::default();
    tracing::subscriber::set_global_default(collector.clone()).unwrap();
    let runnable = LanesBuilder::new(Echo { signature, bytes: Vec::new() }).lanes(3).build().unwrap();
    let first = runnable.spawn_blocking().unwrap();
    let stream = runnable.spawn_blocking().unwrap();
    let value = [Value::new(&[1], &[1.5f32])];
    for _ in 0..5 {
        stream.call_blocking(&value).unwrap();
        let mut call = pin!(first.call(&value));
        while call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            std::thread::yield_now();
        }
    }
    let turns = runnable.stats().turns;
    drop((first, stream, runnable));
    let calls = collector.named("call");
    let lane = |lane: &str| {
        let fields = BTreeMap::from([("model", "echo".to_string()), ("lane", lane.to_string())]);
        calls.iter().filter(|seen| seen.fields == fields && seen.entered > 0 && seen.entered == seen.exited).count()
    };
    assert_eq!((calls.len(), lane("0"), lane("1")), (10, 5, 5), "{calls:?}");
    let seen = collector.named("turn");
    assert_eq!(seen.len() as u64, turns);
    let seats: u32 = seen.iter().map(|turn| turn.fields["seats"].parse::<u32>().unwrap()).sum();
    assert_eq!(seats, 10);
}
