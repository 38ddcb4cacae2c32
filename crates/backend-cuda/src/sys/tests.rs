//! What is said where the driver is not as it should be, with one made of functions here.

use super::*;

unsafe extern "C" fn succeeds() -> Status {
    0
}

unsafe extern "C" fn version_11_4(to: *mut c_int) -> Status {
    // SAFETY: a place for one number.
    unsafe { *to = 11_040 };
    0
}

unsafe extern "C" fn version_12_8(to: *mut c_int) -> Status {
    // SAFETY: a place for one number.
    unsafe { *to = 12_080 };
    0
}

unsafe extern "C" fn no_device(_: c_uint) -> Status {
    100
}

unsafe extern "C" fn mismatch(_: c_uint) -> Status {
    803
}

unsafe extern "C" fn unknown_number(_: c_uint) -> Status {
    12_345
}

unsafe extern "C" fn name(status: Status, to: *mut *const c_char) -> Status {
    let name = match status {
        100 => c"CUDA_ERROR_NO_DEVICE",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        _ => return 1,
    };
    // SAFETY: a place for one pointer.
    unsafe { *to = name.as_ptr() };
    0
}

fn said(replaced: &[(&str, *const c_void)], missing: &str) -> String {
    let find = |symbol: &CStr| {
        let symbol = symbol.to_str().expect("symbols are ASCII");
        let known = replaced.iter().find(|(name, _)| *name == symbol).map(|(_, address)| *address);
        (symbol != missing).then(|| known.unwrap_or(succeeds as *const c_void))
    };
    // SAFETY: of the functions found, `start` calls those replaced, whose types are right, and `cuInit`.
    unsafe { Driver::start(&find) }.map(|driver| driver.version.to_string()).unwrap_or_else(|why| why)
}

#[test]
fn a_driver_that_is_not_as_it_should_be_is_named() {
    let good = [
        ("cuDriverGetVersion", version_12_8 as *const c_void),
        ("cuGetErrorName", name as *const c_void),
        ("cuGetErrorString", name as *const c_void),
    ];
    let with = |symbol, function: *const c_void| {
        let mut all = vec![(symbol, function)];
        all.extend(good);
        said(&all, "")
    };
    assert_eq!(said(&good, ""), "12080");
    assert_eq!(
        said(&good, "cuGraphAddKernelNode"),
        "the NVIDIA driver lacks cuGraphAddKernelNode: one for CUDA 12.0 or newer is needed"
    );
    assert_eq!(
        with("cuDriverGetVersion", version_11_4 as *const c_void),
        "the NVIDIA driver is for CUDA 11.4, and 12.0 or newer is needed"
    );
    assert_eq!(
        with("cuInit", no_device as *const c_void),
        "the NVIDIA driver finds no GPU (cuInit says CUDA_ERROR_NO_DEVICE (CUDA_ERROR_NO_DEVICE))"
    );
    assert_eq!(
        with("cuInit", mismatch as *const c_void),
        "the NVIDIA driver does not start: cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"
    );
    // A number that no version of the interface has is said as it is.
    assert_eq!(
        with("cuInit", unknown_number as *const c_void),
        "the NVIDIA driver does not start: cuInit says error 12345"
    );
}
