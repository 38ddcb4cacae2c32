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
//! - `loom/*.loom` are texts with cases of their own, which run on any device and on the interpreter.
//! - `kernels/*.loom` are kernels that the tests of several crates run, each against an expectation of its own.
//! - Not here: how fast anything is, and what only one backend has.

pub mod apart;
pub mod counting;
pub mod crowd;
pub mod definitions;
pub mod faulty;
pub mod flight;
pub mod forks;
pub mod kernels;
pub mod loom;
pub mod memory;
pub mod order;
pub mod pipelined;
pub mod plans;
pub mod pools;
pub mod random;
pub mod reference;
pub mod residents;
pub mod rounded;
pub mod sessions;
pub mod slots;
pub mod spans;
pub mod stages;
pub mod tasks;
pub mod tensors;

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
            fn turns_are_timed_where_there_is_a_clock() {
                $crate::slots::timed($open);
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
            fn streams_over_several_slots_are_those_of_one() {
                $crate::pipelined::streams($open);
            }
            #[test]
            fn a_second_slot_is_filled_while_the_first_flies() {
                $crate::pipelined::both_slots($open);
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
            fn kernels_see_their_windows_of_resident_memory() {
                $crate::residents::windows($open);
            }
            #[test]
            fn plans_over_resident_memory_do_what_they_say() {
                $crate::residents::random_plans($open);
            }
            #[test]
            fn what_cannot_be_bound_is_refused() {
                $crate::residents::refusals($open);
            }
            #[test]
            fn bytes_are_copied_between_buffers() {
                $crate::residents::copies($open);
            }
            #[test]
            fn host_visible_memory_is_shown_in_place() {
                $crate::residents::mapped($open);
            }
            #[test]
            fn a_later_fault_fails_its_turn_alone() {
                $crate::kernels::later_faults($open);
            }
            #[test]
            fn a_device_may_be_dropped_by_a_task_it_wakes() {
                $crate::flight::closed_by_its_own_task($open);
            }
            #[test]
            fn a_crowd_waits_in_no_ring() {
                $crate::flight::crowd($open);
            }
            #[test]
            fn plans_do_what_they_say() {
                $crate::plans::random_plans($open);
            }
            #[test]
            fn commands_are_ordered_as_their_bytes_need() {
                $crate::order::random_plans();
            }
            #[test]
            fn scratch_that_is_alive_at_once_lies_apart() {
                $crate::order::scratch();
            }
            #[test]
            fn heads_that_write_columns_are_independent() {
                $crate::order::heads();
            }
            #[test]
            fn a_seat_is_the_same_alone_and_in_company() {
                $crate::plans::company($open);
            }
            #[test]
            fn rounded_plans_do_what_they_say() {
                $crate::rounded::random_plans($open);
            }
            #[test]
            fn rounded_contractions_are_near_f64() {
                $crate::rounded::near($open);
            }
            #[test]
            fn rounded_operands_are_the_same_made_and_copied() {
                $crate::rounded::handed_on($open);
            }

            #[test]
            fn a_rounded_seat_is_the_same_alone_and_in_company() {
                $crate::rounded::company($open);
            }
            #[test]
            fn a_rounded_seat_is_the_same_alone_and_among_hundreds() {
                $crate::rounded::large_company($open);
            }
            #[test]
            fn precisions_that_a_device_lacks_are_refused() {
                $crate::rounded::refusals($open);
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
            fn regions_are_checked_and_bound_to_their_session() {
                $crate::sessions::regions($open);
            }
            #[test]
            fn sessions_open_by_index_for_a_target_and_in_a_context() {
                $crate::sessions::opening($open);
            }
            #[test]
            fn kernels_of_a_session_are_built_side_by_side_and_kept_on_disk() {
                $crate::sessions::building($open);
            }
            #[test]
            fn what_a_kernel_reads_and_writes_is_declared_once() {
                $crate::sessions::updates($open);
            }
            #[test]
            fn an_assertion_that_fails_is_a_fault_with_its_text() {
                $crate::sessions::asserts($open);
            }

            #[test]
            fn launches_take_the_numbers_that_the_kernel_lists() {
                $crate::sessions::launches($open);
            }
            #[test]
            fn recorded_moves_do_what_they_say() {
                $crate::sessions::moves($open);
            }
            #[test]
            fn recorded_products_are_exact_in_whole_numbers() {
                $crate::sessions::products($open);
            }
            #[test]
            fn a_fault_poisons_what_its_plan_writes_until_that_is_written() {
                $crate::sessions::poison($open);
            }
            #[test]
            fn what_a_failed_plan_wrote_is_never_downloaded() {
                $crate::sessions::poison_race($open);
            }
            #[test]
            fn a_session_whose_device_is_lost_says_so_to_everything() {
                $crate::sessions::lost($open);
            }
            #[test]
            fn replays_in_flight_are_ordered_and_bounded() {
                $crate::sessions::in_flight($open);
            }
            #[test]
            fn replays_of_two_threads_share_the_slots() {
                $crate::sessions::crowded_replays($open);
            }
            #[test]
            fn a_reset_keeps_what_runs() {
                $crate::sessions::resets($open);
            }
            #[test]
            fn measurements_run_what_a_replay_runs() {
                $crate::sessions::measures($open);
            }
            #[test]
            fn calls_turns_and_replays_are_spans() {
                $crate::spans::spans($open);
            }
            #[test]
            fn definitions_chain_as_fragments_without_a_copy() {
                $crate::definitions::fragments($open);
            }
            #[test]
            fn definitions_refuse_what_does_not_fit_by_name() {
                $crate::definitions::refusals($open);
            }
            #[test]
            fn instances_of_a_definition_hold_its_weights_once() {
                $crate::definitions::weights($open);
            }
            #[test]
            fn a_laned_model_of_kernels_serves_streams() {
                $crate::definitions::laned($open);
            }
            #[test]
            fn a_stream_holds_one_lane_of_every_stage() {
                $crate::stages::one_lease($open);
            }
            #[test]
            fn what_is_of_other_stages_is_refused() {
                $crate::stages::refusals($open);
            }
            #[test]
            fn tensors_go_up_and_come_down() {
                $crate::tensors::round_trips($open);
            }
            #[test]
            fn views_are_the_memory_they_were_cut_from() {
                $crate::tensors::views($open);
            }
            #[test]
            fn a_concatenation_that_the_device_has_no_room_for_is_busy() {
                $crate::tensors::crowded_concatenations($open);
            }
            #[test]
            fn concatenations_are_copied_on_the_device() {
                $crate::tensors::concatenations($open);
            }
            #[test]
            fn a_reader_of_a_tensor_comes_after_its_makers() {
                $crate::tensors::producers($open);
            }
            #[test]
            fn tensors_without_elements_need_no_device() {
                $crate::tensors::empties($open);
            }
            #[test]
            fn tensors_that_do_not_fit_are_refused_by_name() {
                $crate::tensors::refusals($open);
            }
            #[test]
            fn every_way_in_and_out_of_a_slot_gives_the_same() {
                $crate::pools::inferences($open);
            }
            #[test]
            fn slots_are_built_once_and_apart() {
                $crate::pools::builders($open);
            }
            #[test]
            fn submissions_that_do_not_fit_give_the_slot_back() {
                $crate::pools::refusals($open);
            }
            #[test]
            fn slots_are_given_in_the_order_asked() {
                $crate::pools::line($open);
            }
            #[test]
            fn a_kept_output_keeps_its_slot() {
                $crate::pools::leases($open);
            }
            #[test]
            fn inferences_are_awaited_and_cancelled() {
                $crate::pools::waits($open);
            }
            #[test]
            fn a_slot_that_failed_is_out_of_service() {
                $crate::pools::failures($open);
            }
            #[test]
            fn a_lost_device_ends_every_inference_with_one_cause() {
                $crate::pools::losses($open);
            }
            #[test]
            fn definitions_make_slots() {
                $crate::pools::definitions($open);
            }
            #[test]
            fn a_crowd_over_few_slots_is_served_in_order() {
                $crate::crowd::crowded($open);
            }
            #[test]
            fn cases_of_kernel_texts_pass() {
                $crate::loom::corpus($open);
            }
            #[test]
            fn contractions_and_activations_are_near_f64() {
                $crate::plans::activations($open);
            }
            #[test]
            fn forks_share_a_row_until_they_part() {
                $crate::forks::forks($open);
            }
            #[test]
            fn checkpoints_are_gone_back_to() {
                $crate::forks::checkpoints($open);
            }
            #[test]
            fn snapshots_go_on_elsewhere() {
                $crate::forks::snapshots($open);
            }
            #[test]
            fn snapshots_go_on_on_a_device_of_another_kind() {
                $crate::forks::another_kind($open);
            }
            #[test]
            fn forks_that_have_no_room_are_refused() {
                $crate::forks::refusals($open);
            }
            #[test]
            fn a_thousand_forks_share_one_row() {
                $crate::forks::thousand($open);
            }
        }
    };
}
