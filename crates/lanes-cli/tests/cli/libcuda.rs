//! A driver's library for a machine without a GPU, built by `driver` as `libcuda.so.1`: what is wrong with it the environment says.
//!
//! - `DRIVER_VERSION`, `DRIVER_DEVICES` and `DRIVER_ARCHITECTURE`: 12080, 1 and 90 if not given.
//! - `DRIVER_FAILS=cuInit:100,cuMemAlloc_v2:2`: what calls answer instead of doing anything.
//! - Built with `--cfg half` it lacks all that has to do with graphs.
//! - Its memory is the host's. A graph does what `carry` says of it, so that turns end; other kernels do nothing.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

type Status = c_uint;
type Handle = *mut c_void;

fn number(name: &str, otherwise: c_int) -> c_int {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// What `DRIVER_FAILS` says of a call; 0 if nothing.
fn failure(call: &str) -> Status {
    let all = std::env::var("DRIVER_FAILS").unwrap_or_default();
    let mut pairs = all.split(',').filter_map(|pair| pair.split_once(':'));
    pairs.find(|(name, _)| *name == call).and_then(|(_, status)| status.parse().ok()).unwrap_or(0)
}

/// Zeroed memory that is never given back.
fn memory(len: usize) -> u64 {
    let words = Box::leak(vec![0u128; len.div_ceil(16) + 16].into_boxed_slice());
    (words.as_ptr() as u64).next_multiple_of(256)
}

fn some() -> Handle {
    std::ptr::without_provenance_mut(64)
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            #[allow(non_snake_case, clippy::missing_safety_doc)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> Status {
                let status = failure(stringify!($name));
                if status == 0 {
                    // SAFETY: callers give what `cuda.h` asks for.
                    #[allow(unused_unsafe)]
                    unsafe { $body }
                }
                status
            }
        )*
    };
}

calls! {
    cuInit(_flags: c_uint) {}
    cuDriverGetVersion(to: *mut c_int) { *to = number("DRIVER_VERSION", 12_080) }
    cuDeviceGetCount(to: *mut c_int) { *to = number("DRIVER_DEVICES", 1) }
    cuDeviceGet(to: *mut c_int, at: c_int) { *to = at }
    cuDeviceGetName(to: *mut c_char, _len: c_int, _device: c_int) {
        c"Pretended".to_bytes_with_nul().iter().enumerate().for_each(|(at, &byte)| *to.add(at) = byte as c_char);
    }
    cuDeviceTotalMem_v2(to: *mut usize, _device: c_int) { *to = 1 << 36 }
    cuDeviceGetAttribute(to: *mut c_int, which: c_uint, _device: c_int) {
        let architecture = number("DRIVER_ARCHITECTURE", 90);
        *to = match which { 75 => architecture / 10, 76 => architecture % 10, 16 => 132, _ => 227 << 10 };
    }
    cuDevicePrimaryCtxRetain(to: *mut Handle, _device: c_int) { *to = some() }
    cuDevicePrimaryCtxRelease_v2(_device: c_int) {}
    cuCtxSetCurrent(_context: Handle) {}
    cuStreamCreate(to: *mut Handle, _flags: c_uint) { *to = some() }
    cuStreamDestroy_v2(_stream: Handle) {}
    cuStreamSynchronize(_stream: Handle) {}
    cuStreamQuery(_stream: Handle) {}
    cuEventCreate(to: *mut Handle, _flags: c_uint) { *to = some() }
    cuEventDestroy_v2(_event: Handle) {}
    cuEventRecord(_event: Handle, _stream: Handle) {}
    cuEventSynchronize(_event: Handle) {}
    cuEventElapsedTime(to: *mut f32, _from: Handle, _to: Handle) { *to = 0.25 }
    cuMemAlloc_v2(to: *mut u64, len: usize) { *to = memory(len) }
    cuMemFree_v2(_at: u64) {}
    cuMemHostAlloc(to: *mut Handle, len: usize, _flags: c_uint) { *to = memory(len) as Handle }
    cuMemFreeHost(_at: Handle) {}
    cuMemcpyAsync(to: u64, from: u64, len: usize, _stream: Handle) { copied(to, from, len) }
    cuMemcpyHtoDAsync_v2(to: u64, from: Handle, len: usize, _stream: Handle) { copied(to, from as u64, len) }
    cuMemcpyDtoHAsync_v2(to: Handle, from: u64, len: usize, _stream: Handle) { copied(to as u64, from, len) }
    cuMemsetD8Async(at: u64, byte: u8, len: usize, _stream: Handle) { (at as *mut u8).write_bytes(byte, len) }
    cuLinkCreate_v2(_count: c_uint, _options: *mut c_uint, _values: *mut Handle, to: *mut Handle) { *to = some() }
    cuLinkAddData_v2(
        _state: Handle, _kind: c_uint, _text: Handle, _len: usize, _name: *const c_char, _count: c_uint,
        _options: *mut c_uint, _values: *mut Handle
    ) {}
    cuLinkComplete(_state: Handle, to: *mut Handle, len: *mut usize) {
        let binary: &[u8] = b"\x7fELF, and the rest of a binary";
        (*to, *len) = (binary.as_ptr() as Handle, binary.len());
    }
    cuLinkDestroy(_state: Handle) {}
    cuModuleLoadDataEx(
        to: *mut Handle, _image: Handle, _count: c_uint, _options: *mut c_uint, _values: *mut Handle
    ) { *to = some() }
    cuModuleUnload(_module: Handle) {}
    cuModuleGetFunction(to: *mut Handle, _module: Handle, name: *const c_char) {
        *to = Box::into_raw(Box::new(CStr::from_ptr(name).to_string_lossy().into_owned())).cast();
    }
    cuFuncSetAttribute(_function: Handle, _which: c_uint, _value: c_int) {}
}

/// # Safety
/// Both stretches are there, and lie apart.
unsafe fn copied(to: u64, from: u64, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
}

#[cfg(not(half))]
mod graphs {
    use super::*;
    use std::ffi::c_ulonglong;

    /// What `cuda.h` calls `CUDA_KERNEL_NODE_PARAMS_v1`.
    #[repr(C)]
    pub struct Launch {
        function: *const String,
        sizes: [c_uint; 7],
        parameters: *const *const u64,
        extra: Handle,
    }

    calls! {
        cuGraphCreate(to: *mut Handle, _flags: c_uint) {
            *to = Box::into_raw(Box::new(Vec::<Vec<u64>>::new())).cast();
        }
        cuGraphDestroy(_graph: Handle) {}
        cuGraphAddEmptyNode(to: *mut Handle, _graph: Handle, _after: *const Handle, _count: usize) { *to = some() }
        cuGraphAddKernelNode(
            to: *mut Handle, graph: *mut Vec<Vec<u64>>, _after: *const Handle, _count: usize, launch: *const Launch
        ) {
            *to = some();
            if *(*launch).function == "carry" {
                (*graph).push((0..16).map(|at| **(*launch).parameters.add(at)).collect());
            }
        }
        cuGraphAddMemcpyNode(
            to: *mut Handle, _graph: Handle, _after: *const Handle, _count: usize, _copy: Handle, _context: Handle
        ) { *to = some() }
        cuGraphInstantiateWithFlags(to: *mut Handle, graph: Handle, _flags: c_ulonglong) { *to = graph }
        cuGraphLaunch(graph: *mut Vec<Vec<u64>>, _stream: Handle) {
            for carried in &*graph {
                let [from, to, number, tick, ranges @ ..] = &carried[..] else { continue };
                for range in ranges {
                    let (start, units) = (range & 0xffff_ffff, range >> 32);
                    copied(to + start * 16, from + start * 16, units as usize * 16);
                }
                if *tick != 0 {
                    copied(*tick, *number, 4);
                }
            }
        }
        cuGraphExecDestroy(_graph: Handle) {}
    }
}

/// The name or the words of a status.
unsafe fn said(status: Status, to: *mut *const c_char, all: [&'static CStr; 5]) -> Status {
    let at = [2, 100, 700, 801, 804].iter().position(|known| *known == status);
    let Some(at) = at else { return 1 };
    // SAFETY: a place for one pointer.
    unsafe { *to = all[at].as_ptr() };
    0
}

#[allow(non_snake_case, clippy::missing_safety_doc)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(status: Status, to: *mut *const c_char) -> Status {
    let names =
        [c"OUT_OF_MEMORY", c"NO_DEVICE", c"ILLEGAL_ADDRESS", c"NOT_SUPPORTED", c"COMPAT_NOT_SUPPORTED_ON_DEVICE"];
    // SAFETY: the caller's place.
    unsafe { said(status, to, names) }
}

#[allow(non_snake_case, clippy::missing_safety_doc)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(status: Status, to: *mut *const c_char) -> Status {
    let words = [c"out of memory", c"no device", c"an illegal address", c"not supported", c"not on this device"];
    // SAFETY: the caller's place.
    unsafe { said(status, to, words) }
}
