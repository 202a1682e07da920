//! What callers are told about appends and reads, and which blobs are collected, each without one of its safeguards.
//!
//! Each test pins the promise that breaks first, and the shortest way there.

use super::property::{BLOBS_KEPT, CURRENT_READS, ONE_BATCH, REFUSED_NOT_LOGGED};
use super::state::Budget;
use super::variant::Variant;
use super::{QUIET, assert_breaks};

#[test]
fn a_woken_owner_that_confirms_nothing_serves_a_stale_read() {
    let budget = Budget { reads: 1, ..QUIET };
    let steps = ["B: puts its open", "store: executes the put of 1 by B: open", "A: a read arrives"];
    assert_breaks(Variant::ReadUnconfirmed, budget, CURRENT_READS, &steps);
}

#[test]
fn a_head_from_before_the_request_confirms_nothing() {
    let budget = Budget { reads: 1, ..QUIET };
    let steps = [
        "A: HEAD is executed",
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "A: a read arrives",
        "A: the response of the HEAD arrives",
    ];
    assert_breaks(Variant::HeadServesLaterRequest, budget, CURRENT_READS, &steps);
}

#[test]
fn an_append_from_before_the_request_confirms_nothing() {
    let budget = Budget { commands: 1, reads: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "store: executes the put of 1 by A: command 0",
        "B: reads the next batch",
        "B: lists the floors after reading",
        "B: puts its open",
        "store: executes the put of 2 by B: open",
        "A: a read arrives",
        "A: the response of its put arrives: created",
    ];
    assert_breaks(Variant::AppendServesLaterRequest, budget, CURRENT_READS, &steps);
}

#[test]
fn a_head_behind_an_undecided_append_confirms_nothing() {
    let budget = Budget { commands: 1, reads: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "store: executes the put of 1 by A: command 0",
        "A: a read arrives",
        "A: HEAD is executed",
        "A: the response of the HEAD arrives",
    ];
    assert_breaks(Variant::HeadWhileUndecided, budget, CURRENT_READS, &steps);
}

#[test]
fn a_denied_head_confirms_nothing() {
    let budget = Budget { reads: 1, ..QUIET };
    let steps = [
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "A: a read arrives",
        "A: HEAD is denied",
        "A: the response of the HEAD arrives",
    ];
    assert_breaks(Variant::DeniedConfirms, budget, CURRENT_READS, &steps);
}

#[test]
fn a_reformed_batch_leaves_the_first_one_in_the_log() {
    let budget = Budget { commands: 2, timeouts: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "A: its put times out",
        "A: a command arrives",
        "A: reads the object back",
        "store: executes a late put of 1 by A: command 0",
        "store: executes the put of 1 by A: command 1",
        "A: reads the object back",
    ];
    assert_breaks(Variant::BatchReformed, budget, REFUSED_NOT_LOGGED, &steps);
}

#[test]
fn a_reformed_batch_of_the_same_writer_is_acknowledged_in_place_of_the_first() {
    let budget = Budget { commands: 2, timeouts: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "A: its put times out",
        "A: a command arrives",
        "A: reads the object back",
        "store: executes a late put of 1 by A: command 0",
        "store: executes the put of 1 by A: command 1",
        "A: reads the object back",
    ];
    assert_breaks(Variant::BatchReformedSameWriter, budget, ONE_BATCH, &steps);
}

#[test]
fn a_timeout_is_no_failure() {
    let budget = Budget { commands: 1, timeouts: 1, ..QUIET };
    let steps =
        ["A: a command arrives", "A: its put times out", "store: executes a late put of 1 by A: command 0"];
    assert_breaks(Variant::TimeoutIsFailure, budget, REFUSED_NOT_LOGGED, &steps);
}

#[test]
fn a_conflict_does_not_mean_that_the_number_is_taken() {
    let budget = Budget { commands: 1, timeouts: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "A: its put times out",
        "A: reads the object back",
        "store: executes a late put of 1 by A: command 0",
        "store: answers 409 to the put of 1 by A: command 0",
    ];
    assert_breaks(Variant::ConflictIsTaken, budget, REFUSED_NOT_LOGGED, &steps);
}

#[test]
fn without_reading_back_an_own_success_is_refused() {
    let budget = Budget { commands: 1, timeouts: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "A: its put times out",
        "A: reads the object back",
        "store: executes a late put of 1 by A: command 0",
        "store: executes the put of 1 by A: command 0",
        "A: reads the object back",
    ];
    assert_breaks(Variant::ExistsIsAnothers, budget, REFUSED_NOT_LOGGED, &steps);
}

#[test]
fn without_reading_back_the_object_of_another_is_acknowledged() {
    let budget = Budget { commands: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "store: executes the put of 1 by A: command 0",
        "A: reads the object back",
    ];
    assert_breaks(Variant::ExistsIsOwn, budget, ONE_BATCH, &steps);
}

/// The first version of the protocol did this, and answered 503 for a command that is in the log. A's put had landed; its
/// successor B truncated; C, a follower that had not read for long, put its `open` at the free number, where A found it.
#[test]
fn below_a_floor_the_object_of_another_does_not_refuse_the_own_batch() {
    let budget = Budget { commands: 1, timeouts: 1, floors: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "A: its put times out",
        "store: executes a late put of 1 by A: command 0",
        "B: reads the next batch",
        "B: lists the floors after reading",
        "B: puts its open",
        "store: executes the put of 2 by B: open",
        "B: the response of its put arrives: created",
        "B: lists the floors after its open",
        "B: snapshot and floor at 3",
        "B: deletes batch 1",
        "C: puts its open",
        "store: executes the put of 1 by C: open",
        "A: reads the object back",
    ];
    assert_breaks(Variant::AnothersBelowFloor, budget, REFUSED_NOT_LOGGED, &steps);
}

#[test]
fn an_undecided_writer_that_stands_down_refuses_what_is_in_the_log() {
    let budget = Budget { commands: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "store: executes the put of 1 by A: command 0",
        "B: reads the next batch",
        "B: lists the floors after reading",
        "B: puts its open",
        "store: executes the put of 2 by B: open",
        "B: the response of its put arrives: created",
        "B: lists the floors after its open",
        "A: stands down",
    ];
    assert_breaks(Variant::StandsDownUndecided, budget, REFUSED_NOT_LOGGED, &steps);
}

#[test]
fn a_deposed_owner_collects_the_blob_of_its_successor() {
    let budget = Budget { commands: 1, collections: 1, ..QUIET };
    let steps = [
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "B: the response of its put arrives: created",
        "B: lists the floors after its open",
        "B: a command arrives",
        "store: executes the put of 2 by B: command 0",
        "A: collects blobs",
    ];
    assert_breaks(Variant::NewerTermCollected, budget, BLOBS_KEPT, &steps);
}

#[test]
fn a_blob_is_collected_while_its_commit_is_undecided() {
    let budget = Budget { commands: 1, collections: 1, ..QUIET };
    let steps = ["A: a command arrives", "store: executes the put of 1 by A: command 0", "A: collects blobs"];
    assert_breaks(Variant::PinsIgnored, budget, BLOBS_KEPT, &steps);
}

#[test]
fn the_blob_of_an_older_term_is_collected_after_its_commit() {
    let budget = Budget { commands: 1, collections: 1, ..QUIET };
    let steps = [
        "A: a command arrives",
        "B: puts its open",
        "store: executes the put of 1 by B: open",
        "store: executes the put of 1 by A: command 0",
        "A: reads the object back",
        "B: the response of its put arrives: created",
        "B: lists the floors after its open",
        "B: commits blob 0 again",
        "store: executes the put of 2 by B: command 0",
        "B: collects blobs",
    ];
    assert_breaks(Variant::OlderTermCommitted, budget, BLOBS_KEPT, &steps);
}
