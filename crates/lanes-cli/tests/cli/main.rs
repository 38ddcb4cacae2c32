//! The built binary, as a script sees it: what it prints, where, and how it ends.

mod common;
mod contract;
mod exact;
mod hostile;
mod inspect;
mod loom;
mod loom_cases;
mod said;
