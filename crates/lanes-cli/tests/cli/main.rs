//! The built binary, as a script sees it: what it prints, where, and how it ends.

mod common;
mod contract;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod driver;
mod exact;
mod hostile;
mod inspect;
mod loom;
mod loom_cases;
mod said;
