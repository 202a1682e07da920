//! Takeover, truncation, recovery and hand-over, each without one of its safeguards.
//!
//! Each test pins the promise that breaks first, and the shortest way there.

use super::property::{CLOSE_IS_LAST, CURRENT_READS, FLOOR_FIRST, NOTHING_LOST, ONE_BATCH, RECOVERED_PREFIX};
use super::state::Budget;
use super::variant::Variant;
use super::{QUIET, assert_breaks, assert_breaks_later};

#[test]
fn a_store_that_ignores_the_condition_replaces_a_batch() {
    let budget = Budget { commands: 1, ..QUIET };
    let steps = [
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "C: puts its open",
        "store: executes the put of 1 by C: open",
    ];
    assert_breaks(Variant::PutOverwrites, budget, FLOOR_FIRST, &steps);
}

#[test]
fn without_listing_the_floors_a_late_candidate_owns_a_number_of_the_past() {
    let budget = Budget { commands: 1, floors: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "store: executes the put of 1 by A: command 0",
        "A: the response of its put arrives: created",
        "A: snapshot and floor at 2",
        "A: deletes batch 1",
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "B: the response of its put arrives: created",
    ];
    assert_breaks(Variant::FloorsNotListed, budget, ONE_BATCH, &steps);
}

#[test]
fn floors_listed_before_the_put_miss_a_truncation() {
    let budget = Budget { commands: 1, floors: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "store: executes the put of 1 by A: command 0",
        "A: the response of its put arrives: created",
        "B: puts its open",
        "A: snapshot and floor at 2",
        "A: deletes batch 1",
        "store: executes the put of 1 by B: open",
        "B: the response of its put arrives: created",
    ];
    assert_breaks(Variant::FloorsListedBeforePut, budget, ONE_BATCH, &steps);
}

#[test]
fn without_the_tenure_object_a_paused_owner_appends_where_the_log_was_truncated() {
    let budget = Budget { commands: 1, floors: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "B: the response of its put arrives: created",
        "B: lists the floors after its open",
        "B: snapshot and floor at 2",
        "B: deletes batch 0",
        "B: deletes batch 1",
        "store: executes the put of 1 by A: command 0",
        "A: the response of its put arrives: created",
    ];
    assert_breaks(Variant::TenureDeleted, budget, ONE_BATCH, &steps);
}

#[test]
fn without_the_tenure_object_a_paused_owner_serves_a_read() {
    let budget = Budget { reads: 1, floors: 1, ..QUIET };
    let steps = [
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "A: a read arrives",
        "B: the response of its put arrives: created",
        "B: lists the floors after its open",
        "B: snapshot and floor at 2",
        "B: deletes batch 0",
        "B: deletes batch 1",
        "A: HEAD is executed",
        "A: the response of the HEAD arrives",
    ];
    assert_breaks(Variant::TenureDeleted, budget, CURRENT_READS, &steps);
}

#[test]
fn a_deletion_before_its_floor_leaves_a_hole() {
    let budget = Budget { commands: 1, floors: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "store: executes the put of 1 by A: command 0",
        "A: the response of its put arrives: created",
        "A: snapshot and floor at 2",
        "A: deletes batch 1",
    ];
    assert_breaks(Variant::FloorAfterDeletion, budget, FLOOR_FIRST, &steps);
}

#[test]
fn an_old_floor_deleted_first_leaves_a_hole() {
    let budget = Budget { commands: 2, floors: 2, ..QUIET };
    let steps = [
        "A: a command arrives",
        "store: executes the put of 1 by A: command 0",
        "A: the response of its put arrives: created",
        "A: a command arrives",
        "store: executes the put of 2 by A: command 1",
        "A: snapshot and floor at 2",
        "A: the response of its put arrives: created",
        "A: deletes batch 1",
        "A: snapshot and floor at 3",
    ];
    assert_breaks(Variant::OldFloorDeletedFirst, budget, FLOOR_FIRST, &steps);
}

#[test]
fn a_follower_that_lists_no_floors_after_reading_follows_a_late_candidate() {
    let budget = Budget { commands: 1, floors: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "store: executes the put of 1 by A: command 0",
        "A: the response of its put arrives: created",
        "A: snapshot and floor at 2",
        "A: deletes batch 1",
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "C: reads the next batch",
    ];
    assert_breaks(Variant::FloorsNotListedAfterRead, budget, RECOVERED_PREFIX, &steps);
}

#[test]
fn a_follower_that_lists_no_floors_after_reading_loses_a_batch_as_the_next_owner() {
    let budget = Budget { commands: 1, floors: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "store: executes the put of 1 by A: command 0",
        "A: the response of its put arrives: created",
        "A: snapshot and floor at 2",
        "A: deletes batch 1",
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "C: reads the next batch",
        "C: puts its open",
        "store: executes the put of 2 by C: open",
        "C: the response of its put arrives: created",
        "C: lists the floors after its open",
    ];
    assert_breaks_later(Variant::FloorsNotListedAfterRead, budget, NOTHING_LOST, &steps);
}

#[test]
fn a_deposed_writer_that_keeps_its_state_is_ahead_of_the_log() {
    let budget = Budget { commands: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "store: executes the put of 1 by A: command 0",
        "A: reads the object back",
    ];
    assert_breaks(Variant::StateKept, budget, RECOVERED_PREFIX, &steps);
}

#[test]
fn a_command_beside_open_is_acknowledged_below_a_floor() {
    let budget = Budget { commands: 2, floors: 1, ..QUIET };
    let steps = [
        "B: puts its open",
        "A: a command arrives",
        "store: executes the put of 1 by A: command 1",
        "A: the response of its put arrives: created",
        "A: snapshot and floor at 2",
        "A: deletes batch 1",
        "store: executes the put of 1 by B: open and command 0",
        "B: the response of its put arrives: created",
    ];
    assert_breaks(Variant::OpenWithCommand, budget, ONE_BATCH, &steps);
}

#[test]
fn without_a_record_of_the_hand_over_both_owners_append() {
    let budget = Budget { commands: 2, floors: 1, closes: 1, ..QUIET };
    let steps = [
        "A: tells B to go on",
        "B: a command arrives",
        "A: a command arrives",
        "store: executes the put of 1 by A: command 1",
        "A: the response of its put arrives: created",
        "A: snapshot and floor at 2",
        "A: deletes batch 1",
        "store: executes the put of 1 by B: command 0",
        "B: the response of its put arrives: created",
    ];
    assert_breaks(Variant::HandOverWithoutRecord, budget, ONE_BATCH, &steps);
}

#[test]
fn a_command_behind_a_close_is_decided_by_nobody() {
    let budget = Budget { commands: 1, closes: 1, ..QUIET };
    let steps = [
        "A: puts close to C",
        "store: executes the put of 1 by A: close to C",
        "A: the response of its put arrives: created",
        "A: a command arrives",
        "store: executes the put of 2 by A: command 0",
    ];
    assert_breaks(Variant::DecidesBehindClose, budget, CLOSE_IS_LAST, &steps);
}

#[test]
fn a_hand_over_that_is_taken_back_needs_an_open() {
    let budget = Budget { commands: 1, closes: 1, ..QUIET };
    let steps = [
        "A: puts close to C",
        "store: executes the put of 1 by A: close to C",
        "A: the response of its put arrives: created",
        "A: goes on after its close",
        "A: a command arrives",
        "store: executes the put of 2 by A: command 0",
    ];
    assert_breaks(Variant::HandOverTakenBack, budget, CLOSE_IS_LAST, &steps);
}
