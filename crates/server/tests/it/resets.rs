//! Linearizability over HTTP with connections that are reset: clients acquire, write, remove and release under
//! idempotency keys, reset connections at random moments, and retry with the same key until there is a response.
//!
//! A request that was applied, and whose response was lost, must not be applied again by its retry. The history has one
//! call for each request, from its first try to its response: within that time it took effect once.
//!
//! The seed decides the requests and the moments of the resets, the scheduler their order.

mod client;
mod history;

use std::sync::Arc;

use identity::Role;
use lockd_server::testing::Loopback;
use sim::linearizability::explain;
use sim::linearizability::operation::{CallResult, Op};
use sim::linearizability::resources::ResourcesModel;
use tokio::task::JoinSet;

use self::client::Client;
use self::history::History;
use crate::support::within;

const CLIENTS: u64 = 5;
const CALLS: u32 = 40;
const ROUNDS_MAX: u64 = 200;
/// The least number of rounds.
const ROUNDS: u64 = 6;

fn seed() -> u64 {
    std::env::var("LINEAR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// One round of clients on keys of its own.
async fn round(server: &Loopback, number: u64) -> History {
    let history = Arc::new(History::new(number));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut client = Client::new(server.address, Arc::clone(&history), number * CLIENTS + client);
        clients.spawn(async move { client.run(CALLS).await });
    }
    within("all clients are done", clients.join_all()).await;
    Arc::into_inner(history).expect("the clients are done")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn responses_are_linearizable_when_connections_are_reset() {
    let server = Loopback::start(Role::Operator).await;
    let (mut ops, mut resets) = (Vec::<Op>::new(), 0);
    let first = seed() * ROUNDS_MAX;
    for number in first..first + ROUNDS_MAX {
        let history = round(&server, number).await;
        resets += history.resets();
        let calls = history.calls();
        ops.extend(calls.iter().map(|call| call.op.clone()));
        if let Err(why) = explain(&ResourcesModel { resources: history::KEYS }, calls) {
            let seed = seed();
            panic!(
                "round {number}: {why}\nto run the same requests again: \
                 LINEAR_SEED={seed} cargo test -p lockd-server --test it resets"
            );
        }
        // How often clients meet depends on the machine: further rounds, until every kind of response has occurred.
        if number + 1 - first >= ROUNDS && missing_kind(&ops).is_none() {
            break;
        }
    }
    println!("{} calls with {resets} resets are linearizable: seed={}", ops.len(), seed());
    assert_eq!(missing_kind(&ops), None, "no response of this kind: seed={}", seed());
    assert!(resets > 100, "few connections were reset: resets={resets} seed={}", seed());
}

/// The number of a kind of response that has not occurred.
fn missing_kind(ops: &[Op]) -> Option<usize> {
    let kinds: [fn(&Op) -> bool; 6] = [
        |op| matches!(op.result, CallResult::Granted { .. }),
        |op| matches!(op.result, CallResult::Blocked { .. }),
        |op| matches!(op.result, CallResult::ReleasedOrEnded(_)),
        |op| matches!(op.result, CallResult::Committed { .. }),
        |op| matches!(op.result, CallResult::Removed { removed: true, .. }),
        |op| matches!(op.result, CallResult::Read { .. }),
    ];
    kinds.iter().position(|kind| !ops.iter().any(kind))
}
