//! The conformance suite: what holds on every device, one line per backend.
//!
//! ```text
//! plan ──┬── device under test ──┬── equal, bit by bit
//!        └── reference (scalar) ─┘
//! ```
//!
//! - Expectations come from [`mod@reference`], which reads a plan's documentation literally, one seat and one element at a
//!   time, or from f64 where a tolerance is stated.
//! - Random cases come from a seed, which every failure prints.
//! - Not here: how fast anything is, and what only one backend has.

pub mod flight;
pub mod kernels;
pub mod memory;
pub mod plans;
pub mod random;
pub mod reference;
pub mod sessions;
pub mod slots;

use lanes_core::device::Device;
use std::sync::Arc;

/// Opens the device under test anew, with a budget in bytes where one is given.
pub type Open<'a> = &'a dyn Fn(Option<u64>) -> Arc<dyn Device>;

/// One test per part of the suite, each on a device that `$open` (an [`Open`]) has just opened.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $open:expr) => {
        mod $name {
            #[test]
            fn memory_holds_what_was_written() {
                $crate::memory::transfers($open);
            }
            #[test]
            fn budgets_are_charged_first_and_refuse_with_the_arithmetic() {
                $crate::memory::budget($open);
            }
            #[test]
            fn rows_are_copied_filled_and_reset() {
                $crate::memory::rows($open);
            }
            #[test]
            fn slots_are_leased_and_own_what_they_touch() {
                $crate::slots::leases($open);
            }
            #[test]
            fn what_follows_a_failure_is_not_run() {
                $crate::slots::upstream($open);
            }
            #[test]
            fn what_does_not_fit_is_refused() {
                $crate::slots::refusals($open);
            }
            #[test]
            fn slots_are_apart_and_end_in_order() {
                $crate::flight::slots($open);
            }
            #[test]
            fn what_need_not_overlap_is_queued_behind_what_does() {
                $crate::flight::behind($open);
            }
            #[test]
            fn a_slot_dropped_in_flight_comes_back() {
                $crate::flight::dropped($open);
            }
            #[test]
            fn queued_work_can_be_cancelled() {
                $crate::flight::cancelled($open);
            }
            #[test]
            fn what_follows_a_later_failure_is_not_run() {
                $crate::flight::failed($open);
            }
            #[test]
            fn host_calls_come_after_what_was_submitted() {
                $crate::flight::host_calls($open);
            }
            #[test]
            fn work_submitted_without_waiting_is_done_in_order() {
                $crate::flight::random_order($open);
            }
            #[test]
            fn the_queue_is_bounded() {
                $crate::flight::bounded($open);
            }
            #[test]
            fn a_device_dropped_with_work_queued_ends_it() {
                $crate::flight::closed($open);
            }
            #[test]
            fn panics_of_the_host_are_contained() {
                $crate::flight::host_panics($open);
            }
            #[test]
            fn plans_do_what_they_say() {
                $crate::plans::random_plans($open);
            }
            #[test]
            fn a_seat_is_the_same_alone_and_in_company() {
                $crate::plans::company($open);
            }
            #[test]
            fn kernels_compute_what_they_say() {
                $crate::kernels::dispatches($open);
            }
            #[test]
            fn a_fault_fails_its_turn_alone() {
                $crate::kernels::faults($open);
            }
            #[test]
            fn a_session_of_two_kernels_is_recorded_and_replayed() {
                $crate::sessions::two_kernels($open);
            }
            #[test]
            fn contractions_and_activations_are_near_f64() {
                $crate::plans::activations($open);
            }
        }
    };
}
