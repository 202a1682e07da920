//! Many shards share few threads.

use std::sync::Arc;

use engine::internals::engine::PanicOnFailure;
use engine::{Engine, Executor, MachineClock, Options, TenureConfig, Workers};
use kernel::{Action, Command, Limits, Shard, Slots, Span, Store};
use sim::fixture::{grant, identity, key};
use store::memory::{MemoryBlobs, MemoryLog};

const SHARDS: u32 = 1000;

/// Each shard had three threads of its own: a thousand shards could not be started on most machines.
#[test]
fn a_thousand_shards_serve_on_few_threads() {
    let workers = Workers::default();
    let executor: Arc<dyn Executor> = Arc::new(workers.clone());
    let open = |shard| {
        let store = Store { shard: Shard(shard), shards: SHARDS, hash_seed: 1 };
        let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: Slots::ALL };
        let clock = Box::new(MachineClock::new().expect("Linux"));
        let (log, blobs) = (Box::new(MemoryLog::default()), Arc::new(MemoryBlobs::default()));
        Engine::open(log, blobs, clock, &tenure, Options::default(), Arc::new(PanicOnFailure), &executor)
            .expect("an empty store")
    };
    let engines: Vec<Engine> = (0..SHARDS).map(open).collect();
    for engine in &engines {
        let acquire = Action::Acquire(grant(key("k"), Span(60_000)));
        let reply = engine.sequencer().call(Command::by(&identity("ada"), acquire), 0, None, None);
        assert!(reply.expect("running").is_ok());
    }
    assert!(workers.threads() <= 32, "{} threads", workers.threads());
}
