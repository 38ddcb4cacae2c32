//! 64 callers over 4 slots, with everything that can go wrong going wrong now and then.
//!
//! - Half of the callers are threads that block, half are tasks that take turns on two threads.
//! - Each inference ends in exactly one way, which is counted; an answer that is given is right.
//! - Slots are given in the order in which they were asked for, exactly: who is dropped is skipped.
//! - A pool whose slots have all failed is prepared anew, as a host would.
//! - From the environment: `LANES_CROWD` is how many inferences (2,000 unless set).

use crate::Open;
use crate::faulty::FaultyDevice;
use crate::pools::{LONG, N, model, round};
use crate::random::Random;
use crate::sessions::bytes;
use crate::tasks::{Woken, run_all, yield_now};
use lanes_core::DType;
use lanes_core::device::{Completion, DeviceError, Placement, Purpose};
use lanes_core::inference::{Acquired, Descriptor, Inference, ModelContext, Outputs, Place, PreparedModel, Tensor};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const SLOTS: usize = 4;
const THREADS: usize = 32;
const TASKS: usize = 32;
const TASK_THREADS: usize = 2;
/// Different inputs.
const ROUNDS: usize = 64;

/// How inferences ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// With the right answer.
    pub right: usize,
    /// Cancelled before they began.
    pub cancelled: usize,
    /// Because the device was made to fail.
    pub faults: usize,
    /// Because an input had failed.
    pub upstream: usize,
    /// Nobody looked.
    pub forgotten: usize,
    /// Waits that were given up, besides.
    pub left: usize,
    /// Outputs that were kept for a while, among the right ones.
    pub kept: usize,
    /// Pools prepared.
    pub pools: usize,
}

struct Crowd {
    context: ModelContext,
    pool: Mutex<(usize, PreparedModel)>,
    rounds: Vec<([Vec<u8>; 2], Vec<f32>)>,
    failed: Tensor,
    left: AtomicUsize,
    tally: Mutex<Tally>,
    places: Mutex<BTreeMap<usize, Vec<Place>>>,
    kept: mpsc::SyncSender<(Tensor, usize)>,
}

impl Crowd {
    fn pool(&self) -> (usize, PreparedModel) {
        self.pool.lock().unwrap().clone()
    }

    /// A slot was refused: `cause` is a fault, and the pool that had it is replaced.
    fn refused(&self, generation: usize, cause: &DeviceError) {
        assert!(matches!(cause, DeviceError::Fault { .. }), "{cause}");
        let mut pool = self.pool.lock().unwrap();
        if pool.0 == generation {
            *pool = (generation + 1, model(&self.context, SLOTS));
            self.tally.lock().unwrap().pools += 1;
        }
    }

    fn given(&self, generation: usize, slot: &Acquired) {
        self.places.lock().unwrap().entry(generation).or_default().push(slot.place());
    }

    /// Submits round `at` in one of several ways.
    fn submit(&self, slot: Acquired, at: usize, random: &mut Random) -> Result<Inference, DeviceError> {
        let ([x, b], _) = &self.rounds[at];
        let desc = || Descriptor::new(DType::F32, &[N]).unwrap();
        match random.below(3) {
            0 => slot.submit_host(&[x, b]),
            1 => slot.submit_with(|port, into| into.copy_from_slice([x, b][port])),
            _ => {
                let up = |bytes: &[u8]| Tensor::upload_bytes(&self.context, desc(), bytes);
                slot.submit(&[&up(x)?, &up(b)?])
            }
        }
    }

    /// Looks at what an inference gave.
    fn ended(&self, ended: Result<Outputs, DeviceError>, at: usize, is_cancelled: bool, random: &mut Random) {
        let tally = |count: fn(&mut Tally)| count(&mut self.tally.lock().unwrap());
        let mut outputs = match ended {
            Ok(outputs) => outputs,
            Err(DeviceError::Cancelled) if is_cancelled => return tally(|tally| tally.cancelled += 1),
            Err(DeviceError::Fault { .. }) => return tally(|tally| tally.faults += 1),
            Err(cause) => panic!("{cause}"),
        };
        let y = &self.rounds[at].1;
        match random.below(4) {
            0 => {
                outputs.fetch().unwrap();
                assert_eq!(outputs.get::<f32>(0), Some(&y[..]), "round {at}");
            }
            1 => {
                tally(|tally| tally.kept += 1);
                // Somebody else keeps it for a while, and looks at it then.
                self.kept.send((outputs.tensor(0).unwrap(), at)).unwrap();
            }
            _ => {
                let mut into = [0; N * 4];
                outputs.read_into(&mut [&mut into]).unwrap();
                assert_eq!(into, bytes(y)[..], "round {at}");
            }
        }
        tally(|tally| tally.right += 1);
    }

    fn upstream(&self, ended: Result<Outputs, DeviceError>) {
        match ended {
            Err(DeviceError::Upstream(_)) => self.tally.lock().unwrap().upstream += 1,
            // The device may fail it first.
            Err(DeviceError::Fault { .. }) => self.tally.lock().unwrap().faults += 1,
            other => panic!("{other:?}"),
        }
    }

    fn forgotten(&self) {
        self.tally.lock().unwrap().forgotten += 1;
    }

    /// Whether there is another inference to make.
    fn more(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Waits for a slot for a moment only.
    fn leave(&self, pool: &PreparedModel) {
        let woken = Arc::new(Woken::default());
        let mut wait = pin!(pool.acquire());
        if wait.as_mut().poll(&mut Context::from_waker(&Waker::from(woken))).is_pending() {
            self.tally.lock().unwrap().left += 1;
        }
    }

    fn thread(&self, seed: u64) {
        let mut random = Random(seed);
        while self.more() {
            let at = random.below(ROUNDS);
            let slot = loop {
                let (generation, pool) = self.pool();
                if random.one_in(16) {
                    self.leave(&pool);
                }
                match pool.acquire_blocking() {
                    Ok(slot) => {
                        self.given(generation, &slot);
                        break slot;
                    }
                    Err(cause) => self.refused(generation, &cause),
                }
            };
            if random.one_in(32) {
                let failing = slot.submit(&[&self.failed, &self.failed]).unwrap();
                self.upstream(failing.wait());
                continue;
            }
            let mut inference = self.submit(slot, at, &mut random).unwrap();
            let is_cancelled = random.one_in(8);
            if is_cancelled {
                inference.cancel();
            }
            match random.below(8) {
                0 => self.forgotten(),
                1 | 2 => {
                    let ended = inference.wait_timeout(LONG).expect("it ends");
                    self.ended(ended, at, is_cancelled, &mut random);
                }
                _ => self.ended(inference.wait(), at, is_cancelled, &mut random),
            }
        }
    }

    async fn task(self: Arc<Self>, seed: u64) {
        let mut random = Random(seed);
        while self.more() {
            let at = random.below(ROUNDS);
            let slot = loop {
                let (generation, pool) = self.pool();
                if random.one_in(8) {
                    // It stands in the line for a few turns of the others, and goes.
                    let mut wait = pool.acquire();
                    let patience = random.below(4);
                    let mut found = None;
                    for _ in 0..=patience {
                        found = std::future::poll_fn(|context| {
                            Poll::Ready(match Pin::new(&mut wait).poll(context) {
                                Poll::Ready(found) => Some(found),
                                Poll::Pending => None,
                            })
                        })
                        .await;
                        if found.is_some() {
                            break;
                        }
                        yield_now().await;
                    }
                    match found {
                        Some(Ok(slot)) => {
                            self.given(generation, &slot);
                            break slot;
                        }
                        Some(Err(cause)) => self.refused(generation, &cause),
                        None => self.tally.lock().unwrap().left += 1,
                    }
                    continue;
                }
                match pool.acquire().await {
                    Ok(slot) => {
                        self.given(generation, &slot);
                        break slot;
                    }
                    Err(cause) => self.refused(generation, &cause),
                }
            };
            if random.one_in(32) {
                let failing = slot.submit(&[&self.failed, &self.failed]).unwrap();
                self.upstream(failing.await);
                continue;
            }
            let mut inference = self.submit(slot, at, &mut random).unwrap();
            let is_cancelled = random.one_in(8);
            if is_cancelled {
                inference.cancel();
            }
            if random.one_in(8) {
                drop(inference);
                self.forgotten();
            } else {
                self.ended((&mut inference).await, at, is_cancelled, &mut random);
            }
        }
    }
}

/// Runs `count` inferences; `seed` says what happens to which.
pub fn crowd(open: Open<'_>, count: usize, seed: u64) -> Tally {
    let device = Arc::new(FaultyDevice::new(open(None)));
    let context = ModelContext::new(Arc::<FaultyDevice>::clone(&device));
    let buffer = context.device().unwrap().allocate("failed", Purpose::State, Placement::Device, N as u64 * 4).unwrap();
    let desc = Descriptor::new(DType::F32, &[N]).unwrap();
    let cause = DeviceError::Fault { at: "maker".into(), what: "on purpose".into() };
    let failed = Tensor::wrap(&context, &buffer, 0, desc, Some(&Completion::ready(Err(cause)))).unwrap();
    let first = model(&context, SLOTS);
    device.fail_randomly(seed, 400);
    let (kept, keeper) = mpsc::sync_channel::<(Tensor, usize)>(64);
    let rounds = (0..ROUNDS).map(|at| {
        let (inputs, y) = round(at);
        (inputs.map(|input| bytes(&input)), y)
    });
    let crowd = Arc::new(Crowd {
        context,
        pool: Mutex::new((0, first)),
        rounds: rounds.collect(),
        failed,
        left: AtomicUsize::new(count),
        tally: Mutex::new(Tally { pools: 1, ..Tally::default() }),
        places: Mutex::default(),
        kept,
    });
    let (over, ends) = mpsc::channel::<()>();
    let mut threads = 0;
    let mut spawn = |work: Box<dyn FnOnce() + Send>| {
        threads += 1;
        let over = over.clone();
        std::thread::spawn(move || {
            work();
            over.send(()).unwrap();
        });
    };
    for at in 0..THREADS {
        let crowd = Arc::clone(&crowd);
        spawn(Box::new(move || crowd.thread(seed.wrapping_mul(1000) + at as u64)));
    }
    for thread in 0..TASK_THREADS {
        let crowd = Arc::clone(&crowd);
        spawn(Box::new(move || {
            let tasks = (thread..TASKS).step_by(TASK_THREADS);
            let task = |at: usize| -> Pin<Box<dyn Future<Output = ()>>> {
                Box::pin(Arc::clone(&crowd).task(seed.wrapping_mul(1000) + (THREADS + at) as u64))
            };
            run_all(tasks.map(task).collect());
        }));
    }
    let looked = {
        let rounds: Vec<Vec<f32>> = crowd.rounds.iter().map(|round| round.1.clone()).collect();
        std::thread::spawn(move || {
            let mut looked = 0;
            while let Ok((tensor, at)) = keeper.recv() {
                std::thread::sleep(Duration::from_micros(100));
                assert_eq!(tensor.download::<f32>().wait().unwrap(), rounds[at], "kept of round {at}");
                looked += 1;
            }
            looked
        })
    };
    // A caller that panics or hangs is not waited for: the threads are left, and the test fails.
    drop(over);
    for at in 0..threads {
        let limit = LONG * (1 + count as u32 / 10_000);
        assert!(ends.recv_timeout(limit).is_ok(), "{} of {threads} threads of callers hang or failed", threads - at);
    }
    let Ok(crowd) = Arc::try_unwrap(crowd) else { panic!("all callers have gone") };
    let (pool, tally) = (crowd.pool.into_inner().unwrap().1, crowd.tally.into_inner().unwrap());
    drop(crowd.kept);
    assert_eq!(looked.join().expect("what was kept is as it was"), tally.kept);
    let Tally { right, cancelled, faults, upstream, forgotten, .. } = tally;
    assert_eq!(right + cancelled + faults + upstream + forgotten, count, "{tally:?}");
    let began = Instant::now();
    while !pool.is_idle() {
        assert!(began.elapsed() < LONG, "a slot was lost: {tally:?}");
        std::thread::yield_now();
    }
    assert_eq!(pool.waiting(), 0);
    for (generation, mut places) in crowd.places.into_inner().unwrap() {
        places.sort_by_key(|place| place.given);
        let unfair = places.windows(2).find(|pair| pair[0].given >= pair[1].given || pair[0].asked >= pair[1].asked);
        assert_eq!(unfair, None, "pool {generation}");
    }
    tally
}

/// The crowd as large as the environment says.
pub fn crowded(open: Open<'_>) {
    let count = std::env::var("LANES_CROWD").ok().and_then(|count| count.parse().ok()).unwrap_or(2000);
    let began = Instant::now();
    let tally = crowd(open, count, 11);
    println!("{count} inferences in {:?}: {tally:?}", began.elapsed());
    assert!(tally.right > count / 2, "{tally:?}");
    assert!(tally.cancelled > 0 && tally.left > 0 && tally.kept > 0 && tally.upstream > 0, "{tally:?}");
}
