//! N streams over one runnable, driven by one thread: submit what is ready, reap what is done.
//!
//! ```text
//! waiting for a lane --> ready --submit--> in flight --reap--> ready … --last turn--> done
//!                          └─ churn: sits out, or leaves and waits again ─┘
//! ```

use crate::churn::{Churn, Move};
use crate::error::{CliError, CliResult};
use crate::machine;
use crate::quantile::{Samples, micros};
use crate::say::count;
use crate::source::Source;
use lanes::lanes::{Reaped, Reaper, Runnable, Stream, StreamError, Value};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What to drive.
pub struct Drive<'a> {
    /// Serves the calls.
    pub runnable: &'a Runnable,
    /// One per input of the model, in its order.
    pub sources: &'a [Source],
    /// The first stream's number: what its inputs and its churn derive from.
    pub first: usize,
    /// Concurrent streams.
    pub streams: usize,
    /// Calls per stream.
    pub turns: usize,
    /// For churn.
    pub seed: u64,
    /// Probability of a churn move before a call.
    pub churn: f64,
    /// Whether to keep every output.
    pub keep: bool,
    /// Of the outputs from this one on, a stream's last turn alone is kept.
    pub last_from: usize,
    /// Time between a stream's calls; as fast as answers come if `None`.
    pub pace: Option<Duration>,
}

impl Drive<'_> {
    fn kept_turns(&self, output: usize) -> usize {
        if output < self.last_from { self.turns } else { 1 }
    }
}

/// What came of it.
#[derive(Default)]
pub struct Served {
    /// Per output of the model: `[stream, turn, …]` bytes, when kept; `[stream, …]` from `Drive::last_from` on.
    pub outputs: Vec<Vec<u8>>,
    /// Microseconds of each answered call.
    pub latencies: Samples,
    /// Calls made, replays included.
    pub calls: u64,
    /// Calls that failed.
    pub errors: u64,
    /// The first failure, in words.
    pub first_error: Option<String>,
    /// From the first call to the last answer.
    pub wall: Duration,
}

/// One stream's place in its sequence.
struct Client {
    stream: Option<Stream>,
    churn: Churn,
    /// The next turn to call.
    turn: usize,
    /// Turns whose outputs are kept: a replay below it must give the same bits.
    recorded: usize,
    called: bool,
    /// Sits out until so many rounds have passed.
    back_at: u64,
    submitted: Instant,
    due: Instant,
}

struct Driver<'a> {
    drive: &'a Drive<'a>,
    reaper: Reaper,
    clients: Vec<Client>,
    /// Streams that may call now.
    ready: VecDeque<usize>,
    /// Streams without a lane, first come first served.
    waiting: VecDeque<usize>,
    held: u32,
    done: usize,
    /// How often answers came: turns, as one who sits out counts them.
    rounds: u64,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<usize>,
    served: Served,
}

/// Runs every stream to its last turn. `progress` hears of each answered call.
pub fn drive(drive: &Drive<'_>, mut progress: impl FnMut(u64)) -> CliResult<Served> {
    let signature = drive.runnable.signature();
    let outputs: Vec<usize> = signature.outputs.iter().map(lanes::Port::bytes).collect();
    let mut served = Served::default();
    let device_bytes = drive.runnable.device_bytes();
    let per_stream = size_of::<Client>() + 2 * size_of::<usize>();
    machine::claim(&count(drive.streams, "stream"), per_stream as u128 * drive.streams as u128, device_bytes)?;
    if drive.keep || drive.churn > 0.0 {
        let what = format!("the outputs of {} and {}", count(drive.streams, "stream"), count(drive.turns, "turn"));
        let kept = |(at, bytes): (usize, &usize)| *bytes as u128 * drive.streams as u128 * drive.kept_turns(at) as u128;
        machine::claim(&what, outputs.iter().enumerate().map(kept).sum(), device_bytes)?;
        for (at, bytes) in outputs.iter().enumerate() {
            let size = bytes * drive.streams * drive.kept_turns(at);
            // The system may have less to give than it says. Asking first costs nothing; zeroed memory comes untouched.
            Vec::<u8>::new().try_reserve_exact(size).map_err(|why| CliError::usage(format!("{what}: {why}")))?;
            served.outputs.push(vec![0; size]);
        }
    }
    let now = Instant::now();
    let clients = (0..drive.streams)
        .map(|stream| {
            // Paced streams are spread evenly over one period, as unrelated clients are.
            let phase = drive.pace.map_or(Duration::ZERO, |pace| pace.mul_f64(stream as f64 / drive.streams as f64));
            Client {
                stream: None,
                churn: Churn::new(drive.seed, drive.first + stream, drive.churn),
                turn: 0,
                recorded: 0,
                called: false,
                back_at: 0,
                submitted: now,
                due: now + phase,
            }
        })
        .collect();
    let mut driver = Driver {
        drive,
        reaper: drive.runnable.reaper(),
        clients,
        ready: VecDeque::new(),
        waiting: (0..drive.streams).collect(),
        held: 0,
        done: 0,
        rounds: 0,
        inputs: drive.sources.iter().map(|source| vec![0; source.bytes()]).collect(),
        outputs,
        served,
    };
    driver.run(&mut progress)?;
    Ok(driver.served)
}

impl Driver<'_> {
    fn run(&mut self, progress: &mut impl FnMut(u64)) -> CliResult {
        let mut start = None;
        while self.done < self.drive.streams {
            self.seat()?;
            start.get_or_insert_with(Instant::now);
            let next_due = self.submit_ready()?;
            if self.held < self.drive.runnable.lanes() && !self.waiting.is_empty() {
                continue;
            }
            let mut next = match next_due {
                _ if self.reaper.in_flight() == 0 => None,
                Some(due) => self.reaper.next_before(due),
                None => self.reaper.next_blocking(),
            };
            if next.is_some() {
                self.rounds += 1;
            } else if let Some(due) = next_due.filter(|_| self.reaper.in_flight() == 0) {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            // All of a turn's answers before the calls that follow them, so that these share a turn again.
            while let Some(reaped) = next {
                self.reaped(reaped)?;
                next = self.reaper.try_next();
            }
            progress(self.served.calls);
        }
        self.served.wall = start.map_or(Duration::ZERO, |start| start.elapsed());
        Ok(())
    }

    /// Gives free lanes to streams that wait for one.
    fn seat(&mut self) -> CliResult {
        while self.held < self.drive.runnable.lanes() {
            let Some(client) = self.waiting.pop_front() else { return Ok(()) };
            let stream = self
                .drive
                .runnable
                .spawn_blocking()
                .map_err(|why| CliError::failed(format!("spawning stream {client}: {}", chain(&why))))?;
            self.clients[client].stream = Some(stream);
            self.held += 1;
            self.ready.push_back(client);
        }
        Ok(())
    }

    /// Submits every ready stream whose time has come; when the next one is due.
    fn submit_ready(&mut self) -> CliResult<Option<Instant>> {
        let mut next_due: Option<Instant> = None;
        let now = Instant::now();
        for _ in 0..self.ready.len() {
            let Some(at) = self.ready.pop_front() else { break };
            let client = &mut self.clients[at];
            if self.drive.pace.is_some() && client.due > now {
                next_due = Some(next_due.map_or(client.due, |due| due.min(client.due)));
                self.ready.push_back(at);
                continue;
            }
            if client.back_at > self.rounds {
                self.ready.push_back(at);
                continue;
            }
            if client.called && client.turn > 0 && self.drive.churn > 0.0 {
                client.called = false;
                match client.churn.next_move() {
                    Move::Call => {}
                    Move::SitOut(turns) => {
                        client.back_at = self.rounds + u64::from(turns);
                        self.ready.push_back(at);
                        continue;
                    }
                    Move::Rejoin => {
                        client.stream = None;
                        client.turn = 0;
                        self.held -= 1;
                        self.waiting.push_back(at);
                        continue;
                    }
                }
            }
            self.submit(at)?;
        }
        self.reaper.flush();
        if self.reaper.in_flight() == 0 && next_due.is_none() {
            // Nobody is served while all sit out, and turns pass for them all the same.
            self.rounds += 1;
        }
        Ok(next_due)
    }

    fn submit(&mut self, at: usize) -> CliResult {
        let client = &mut self.clients[at];
        let Some(stream) = &client.stream else { return Ok(()) };
        for (source, bytes) in self.drive.sources.iter().zip(&mut self.inputs) {
            source.fill(self.drive.first + at, client.turn, bytes);
        }
        let mut values = Vec::with_capacity(self.inputs.len());
        for (source, bytes) in self.drive.sources.iter().zip(&self.inputs) {
            values.push(Value { dtype: source.dtype, shape: &source.shape, bytes });
        }
        // A paced call is late from the moment it was due, whatever held it up.
        client.submitted = if self.drive.pace.is_some() { client.due } else { Instant::now() };
        match self.reaper.submit(stream, at as u64, &values) {
            Ok(()) => Ok(()),
            Err(StreamError::Busy { .. }) => {
                // Answers in flight make room.
                self.ready.push_front(at);
                Ok(())
            }
            Err(why) => Err(CliError::failed(format!("stream {at}, turn {}: {}", client.turn, chain(&why)))),
        }
    }

    fn reaped(&mut self, reaped: Reaped) -> CliResult {
        let at = reaped.tag as usize;
        let client = &mut self.clients[at];
        self.served.calls += 1;
        self.served.latencies.push(micros(client.submitted.elapsed()));
        let (stream, turn) = (at, client.turn);
        match reaped.result {
            Ok(outputs) => {
                for (port, kept) in self.served.outputs.iter_mut().enumerate() {
                    let (size, turns) = (self.outputs[port], self.drive.kept_turns(port));
                    // The last turn is the last of those kept, and the turns before it are not.
                    let Some(at) = (turn + turns).checked_sub(self.drive.turns) else { continue };
                    let place = &mut kept[(stream * turns + at) * size..][..size];
                    let found = outputs.bytes(port).unwrap_or_default();
                    if turn < client.recorded && *place != *found {
                        let name = &outputs.ports()[port].name;
                        let text =
                            format!("stream {stream}, turn {turn}: output `{name}` has other bits when it is replayed");
                        return Err(CliError::failed(text));
                    }
                    place.copy_from_slice(found);
                }
            }
            Err(why @ StreamError::Closed(_)) => {
                return Err(CliError::failed(format!("stream {stream}, turn {turn}: {}", chain(&why))));
            }
            Err(why) => {
                self.served.errors += 1;
                self.served.first_error.get_or_insert_with(|| format!("stream {stream}, turn {turn}: {}", chain(&why)));
            }
        }
        client.turn += 1;
        client.recorded = client.recorded.max(client.turn);
        client.called = true;
        if let Some(pace) = self.drive.pace {
            client.due += pace;
        }
        if client.turn < self.drive.turns {
            self.ready.push_back(at);
        } else {
            client.stream = None;
            self.held -= 1;
            self.done += 1;
        }
        Ok(())
    }
}

/// An error with its causes, as one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(why) = cause {
        // Some errors repeat their cause.
        let why_text = why.to_string();
        if !text.ends_with(&why_text) {
            text = format!("{text}: {why_text}");
        }
        cause = why.source();
    }
    text
}
