//! When replays and their commands ran, as a file that Perfetto and Chrome's tracing page open.
//!
//! - A traced round is one replay (track `turns`), then its commands one by one (track `commands`): what a plan takes
//!   and what its parts take, side by side.
//! - Times are the host's, from before a submission to after its end: a device that keeps time of its own is not asked.
//! - Bounded: past the most events the oldest go, and the file says how many went.
//! - A file is written whole or not at all: under another name first, then renamed.
//! - Not here: distributions (`measure`), spans of turns as they are served (`tracing`, in `lanes`).

use super::Session;
use crate::device::DeviceError;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, process};

/// Events of traced replays, the latest ones.
#[derive(Clone, Debug)]
pub struct Trace {
    origin: Instant,
    events_max: usize,
    events: VecDeque<Event>,
    dropped: u64,
}

#[derive(Clone, Debug)]
struct Event {
    name: Arc<str>,
    is_turn: bool,
    start: Duration,
    length: Duration,
}

impl Trace {
    /// Keeps at most `events_max` events.
    pub fn new(events_max: usize) -> Self {
        Self { origin: Instant::now(), events_max, events: VecDeque::new(), dropped: 0 }
    }

    /// Events it has.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Events that went because there were too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn push(&mut self, name: &Arc<str>, is_turn: bool, start: Instant) {
        let (start, length) = (start.saturating_duration_since(self.origin), start.elapsed());
        self.events.push_back(Event { name: Arc::clone(name), is_turn, start, length });
        while self.events.len() > self.events_max {
            self.events.pop_front();
            self.dropped += 1;
        }
    }

    /// As text in the trace event format (JSON object form, complete events, microseconds).
    pub fn json(&self) -> String {
        let mut text = format!(
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"clock\":\"host\",\"dropped_events\":\"{}\"}},\"traceEvents\":[",
            self.dropped
        );
        for (thread, name) in [(1, "turns"), (2, "commands")] {
            let _ = writeln!(
                text,
                "{{\"ph\":\"M\",\"pid\":1,\"tid\":{thread},\"name\":\"thread_name\",\"args\":{{\"name\":\"{name}\"}}}},"
            );
        }
        for event in &self.events {
            let (thread, category) = if event.is_turn { (1, "turn") } else { (2, "command") };
            let micros = |time: Duration| format!("{}.{:03}", time.as_micros(), time.as_nanos() % 1000);
            let _ = writeln!(
                text,
                "{{\"ph\":\"X\",\"pid\":1,\"tid\":{thread},\"cat\":\"{category}\",\"name\":\"{}\",\"ts\":{},\"dur\":{}}},",
                Escaped(&event.name),
                micros(event.start),
                micros(event.length)
            );
        }
        // The last comma.
        text.truncate(text.len() - 2);
        text.push_str("]}\n");
        text
    }

    /// Writes the text to `path`, whole or not at all.
    ///
    /// # Errors
    /// Those of the file system; what was at `path` is then still there.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        static SAVED: AtomicU64 = AtomicU64::new(0);
        let mut name = path.file_name().ok_or_else(|| io::Error::other("a trace is saved to a file name"))?.to_owned();
        name.push(format!(".{}-{}.part", process::id(), SAVED.fetch_add(1, Ordering::Relaxed)));
        let part = path.with_file_name(name);
        let write = || {
            let mut file = fs::File::create_new(&part)?;
            file.write_all(self.json().as_bytes())?;
            file.sync_all()?;
            fs::rename(&part, path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&part)))
    }
}

/// A string within a JSON string.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '"' | '\\' => write!(f, "\\{c}"),
            c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c)),
            c => f.write_char(c),
        })
    }
}

impl Session {
    /// Traces `rounds` replays of the plan recorded under `key`, each followed by its commands one by one.
    ///
    /// # Errors
    /// Nothing recorded, and whatever fails when it runs; the events until then are in `trace`.
    pub fn trace(&self, key: &str, rounds: usize, trace: &mut Trace) -> Result<(), DeviceError> {
        let mut apart = self.apart(key)?;
        let name: Arc<str> = Arc::from(key);
        for _ in 0..rounds {
            let start = Instant::now();
            self.note(self.replay(key)?.wait())?;
            trace.push(&name, true, start);
            for (label, ready) in &mut apart.0 {
                let start = Instant::now();
                self.note(self.submit(ready)?.wait())?;
                trace.push(label, false, start);
            }
        }
        Ok(())
    }
}
