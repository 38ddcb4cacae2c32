//! What proofs and measurements on hardware do by themselves, past all that serves: bare launches, a kernel that traps.

use super::{Context, Function, Graph, Interface, Memory, Module, Node};
use lanes_core::device::DeviceError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `step` adds one to a word, `hang` traps.
const TEXT: &str = "
.version 7.0
.target sm_75
.address_size 64
.visible .entry step(.param .u64 step_at)
{
  .reg .b64 %at;
  .reg .b32 %value;
  ld.param.u64 %at, [step_at];
  ld.global.u32 %value, [%at];
  add.u32 %value, %value, 1;
  st.global.u32 [%at], %value;
  ret;
}
.visible .entry hang()
{
  trap;
}
";

impl Context {
    fn entry(self: &Arc<Self>, name: &str) -> Result<(Arc<Module>, Function), DeviceError> {
        let module = Arc::new(self.module("instruments", TEXT)?);
        let function = module.function(name, 0, false)?;
        Ok((module, function))
    }

    /// A graph of `kernels` kernels, each after the one before, which add one to the first word of `at`.
    fn chained(self: &Arc<Self>, at: &Memory, kernels: usize) -> Result<Graph, DeviceError> {
        let (_module, function) = self.entry("step")?;
        let node = |before: usize| {
            let parameters = vec![at.base().address];
            let launch = Node::Launch { function: &function, grid: [1; 3], block: [1; 3], shared_bytes: 0, parameters };
            (launch, before.checked_sub(1).into_iter().collect())
        };
        let nodes: Vec<_> = (0..kernels).map(node).collect();
        // SAFETY: one word of memory that whoever launches it keeps, and that is nobody else's.
        unsafe { self.graph("a chain", &nodes) }
    }

    /// Host time of `rounds` rounds of what no turn can do without: `bytes` bytes up, a graph of one kernel, as many down, and the wait
    /// for the end.
    pub fn bare_turns(self: &Arc<Self>, bytes: usize, rounds: usize) -> Result<Vec<Duration>, DeviceError> {
        let host = self.allocate("a bare turn", bytes, true)?;
        let device = self.allocate("a bare turn", bytes, false)?;
        let graph = self.chained(&device, 1)?;
        let (up, down, stream) = (host.base().address, device.base().address, self.handles.stream);
        let mut taken = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let began = Instant::now();
            let pinned = std::ptr::with_exposed_provenance_mut(up as usize);
            // SAFETY: both memories have `bytes` bytes and outlive the wait, and nobody else has them.
            unsafe {
                let copied = |call: &Interface| (call.copy_up)(down, pinned, bytes, stream);
                self.call("cuMemcpyHtoDAsync", "a bare turn", 0, copied)?;
                self.call("cuGraphLaunch", "a bare turn", 0, |call| (call.graph_launch)(graph.exec, stream))?;
                let copied = |call: &Interface| (call.copy_down)(pinned, down, bytes, stream);
                self.call("cuMemcpyDtoHAsync", "a bare turn", 0, copied)?;
            }
            self.wait(stream, "a bare turn")?;
            taken.push(began.elapsed());
        }
        Ok(taken)
    }

    /// What a graph of `kernels` kernels in a row takes by the device's clock.
    pub fn bare_chain(self: &Arc<Self>, kernels: usize, samples: usize) -> Result<Vec<Duration>, DeviceError> {
        let word = self.allocate("a chain", 4, false)?;
        let graph = self.chained(&word, kernels)?;
        // SAFETY: the word is this function's.
        unsafe { self.timed("a chain", &graph, samples) }
    }

    /// What the driver's copy of `bytes` bytes from device memory to device memory takes by the device's clock.
    pub fn bare_copy(self: &Arc<Self>, bytes: usize, samples: usize) -> Result<Vec<Duration>, DeviceError> {
        let [from, to] = [self.allocate("a copy", bytes, false)?, self.allocate("a copy", bytes, false)?];
        let copy = Node::Copy { to: to.base(), from: from.base(), bytes };
        // SAFETY: both memories have as many bytes, and are this function's.
        unsafe {
            let graph = self.graph("a copy", &[(copy, Vec::new())])?;
            self.timed("a copy", &graph, samples)
        }
    }

    /// Bytes of the device that nobody holds, other processes included.
    pub fn free_bytes(&self) -> Result<u64, DeviceError> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: places for two numbers.
        let asked = |call: &Interface| unsafe { (call.memory_info)(&mut free, &mut total) };
        self.call("cuMemGetInfo", "a report", 0, asked)?;
        Ok(free as u64)
    }

    /// Launches a kernel that traps, between the turns begun before and those begun after. Nobody waits for it.
    pub fn trap(self: &Arc<Self>) -> Result<(), DeviceError> {
        let (_module, function) = self.entry("hang")?;
        let parameters = Vec::new();
        let node = Node::Launch { function: &function, grid: [1; 3], block: [1; 3], shared_bytes: 0, parameters };
        // SAFETY: it touches nothing.
        let graph = unsafe { self.graph("a trap", &[(node, Vec::new())]) }?;
        let stream = self.handles.stream;
        // SAFETY: as above. What is launched is kept by the driver until it has run.
        self.call("cuGraphLaunch", "a trap", 0, |call| unsafe { (call.graph_launch)(graph.exec, stream) })?;
        // A lost context frees nothing, and neither is to be taken back while it is on its way.
        std::mem::forget((graph, function));
        Ok(())
    }
}
