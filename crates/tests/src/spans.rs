//! What a host that collects `tracing` spans is told: of every call, every turn and every replay. All of it happens on the
//! caller's thread here, so that one thread's subscriber sees it.

use crate::Open;
use crate::plans::recurrent;
use crate::sessions::session;
use lanes_core::lanes::{LanesBuilder, Value};
use lanes_core::planned::PlannedModel;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// Spans as text, `name key=value …`, in the order in which they were made.
#[derive(Clone, Default)]
struct Collector {
    ids: Arc<AtomicU64>,
    made: Arc<Mutex<Vec<String>>>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").expect("text takes text");
    }
}

impl Subscriber for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut text = Text(attributes.metadata().name().to_string());
        attributes.record(&mut text);
        self.made.lock().unwrap().push(text.0);
        Id::from_u64(self.ids.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A span a call, a turn and a replay, each with the names that tell it from others.
pub fn spans(open: Open<'_>) {
    // While one subscriber is all there is, a span that a thread without one meets first is off for good: let there be two.
    let _second = Dispatch::new(Collector::default());
    let collector = Collector::default();
    let made = Arc::clone(&collector.made);
    tracing::subscriber::with_default(collector, || {
        let (plan, signature) = recurrent();
        let model = PlannedModel::new(open(None), plan, signature).expect("the plan fits");
        let runnable = LanesBuilder::new(model).lanes(1).build().expect("it is served");
        let port = &runnable.signature().inputs[0];
        let stream = runnable.spawn_blocking().expect("a lane is free");
        made.lock().unwrap().clear();
        let zeros = vec![0; port.elements() * 4];
        let value = [Value { dtype: port.dtype, shape: &port.shape, bytes: &zeros }];
        (0..2).for_each(|_| drop(stream.call_blocking(&value).expect("it is served")));
        let session = session(open);
        let x = session.allocate("x", 64).unwrap();
        session.record("clear", |commands| commands.fill(&x, 0)).unwrap();
        session.replay("clear").unwrap().wait().unwrap();
    });
    let (call, turn) = ("call model=recurrent lane=0", "turn model=recurrent seats=1");
    let replay = "replay session=session test key=\"clear\"";
    assert_eq!(*made.lock().unwrap(), [call, turn, call, turn, replay]);
}
