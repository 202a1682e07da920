//! What the commands of one identity may delay those of another by.

use std::sync::mpsc::SyncSender;

use engine::internals::sequencer::QUEUE_MAX;
use engine::{Decision, Unavailable};
use kernel::Outcome;

use crate::deadline::{DEADLINE, eventually};
use crate::sequencer::{ReplyReceiver, acquire, gated_log, granted, reply, start, submit};

/// Appends are not held back from now on.
fn open_gate(permit: SyncSender<()>) {
    std::thread::spawn(move || while permit.send(()).is_ok() {});
}

/// A client that filled the queue kept every other client out of it.
#[test]
fn in_a_full_queue_the_identity_with_the_most_commands_loses_its_last() {
    let (log, arrived, permit) = gated_log();
    let sequencer = start(log);
    arrived.recv_timeout(DEADLINE).expect("the open is being appended");
    let of_ada: Vec<_> =
        (0..3 * QUEUE_MAX).map(|n| submit(&sequencer, "ada", acquire(&format!("k{n}")))).collect();
    let busy = || of_ada.iter().filter(|ada| matches!(ada.try_recv(), Ok(Err(Unavailable::Busy)))).count();
    assert!(busy() >= QUEUE_MAX);
    let of_bob: Vec<_> = (0..10).map(|n| submit(&sequencer, "bob", acquire(&format!("b{n}")))).collect();
    assert_eq!(busy(), of_bob.len(), "as many of ada's were refused as there are of bob's");
    open_gate(permit);
    for bob in &of_bob {
        granted(bob);
    }
}

/// A client with thousands of commands in flight delayed the single command of another by all of them.
#[test]
fn a_command_waits_for_a_few_of_another_identity_and_not_for_all() {
    let (log, arrived, permit) = gated_log();
    let sequencer = start(log);
    arrived.recv_timeout(DEADLINE).expect("the open is being appended");
    let of_ada: Vec<_> =
        (0..QUEUE_MAX).map(|n| submit(&sequencer, "ada", acquire(&format!("k{n}")))).collect();
    let of_bob = submit(&sequencer, "bob", acquire("b"));
    // The open, the batch that formed behind it, and the one with bob's command.
    for _ in 0..3 {
        permit.send(()).expect("the log waits");
    }
    let of_bob = reply(&of_bob);
    let before = of_ada.iter().filter(|ada| matches!(ada.try_recv(), Ok(Ok(_)))).count();
    open_gate(permit);
    assert!(matches!(of_bob, Ok(Ok(Decision::Outcome(Outcome::Applied(..))))), "{of_bob:?}");
    assert!((1..=2 * 1024).contains(&before), "{before}");
}

/// A batch took a thousand commands of one client, and another's reply waited until all of them were decided and answered.
#[test]
fn a_batch_has_few_commands_while_two_identities_send_them() {
    let (log, arrived, permit) = gated_log();
    let sequencer = start(log);
    arrived.recv_timeout(DEADLINE).expect("the open is being appended");
    let both: Vec<ReplyReceiver> = (0..400)
        .map(|n| submit(&sequencer, if n % 2 == 0 { "ada" } else { "bob" }, acquire(&format!("k{n}"))))
        .collect();
    // The open, and the batch that formed behind it: no append had ended before, so that none counts as slow.
    for _ in 0..2 {
        permit.send(()).expect("the log waits");
    }
    let mut replies = 0;
    eventually("the first batch is answered", || {
        replies += both.iter().filter(|reply| matches!(reply.try_recv(), Ok(Ok(_)))).count();
        replies >= 32
    });
    arrived.recv_timeout(DEADLINE).expect("the first batch");
    arrived.recv_timeout(DEADLINE).expect("the second one waits for its permit");
    replies += both.iter().filter(|reply| matches!(reply.try_recv(), Ok(Ok(_)))).count();
    open_gate(permit);
    assert_eq!(replies, 32, "of 400 commands that had arrived");
}
