//! Very many rows of each kind, for tests and benchmarks of lists.

use engine::waiters::{Wait, WaiterConnection};
use engine::{ReplyTo, Submission, Unavailable};
use kernel::{
    Action, AgentName, Bundle, Command, Identity, LeaseRequest, Namespace, OnExpiry, Pause, Paused,
    ResourceName, Scope, Shard, Span,
};

use crate::backend::shards::Backend;

/// Adds `many` agents with a lease each, waiters and quotas in the namespace `default`, and as many namespaces with a
/// lease each. Returns when all of it is decided, except the waiters, which are submitted.
pub fn fill(backend: &Backend, many: usize) {
    let default = Namespace::new("default").expect("valid");
    let (shard, connection) = (backend.shard_of(&default), WaiterConnection::default());
    for n in 0..many {
        let agent = Some(format!("agent-{n:06}"));
        submit(backend, shard, Action::Acquire(request(&default, &format!("k{n}"), agent)), None);
        submit(backend, shard, Action::Acquire(request(&default, "k0", None)), Some(&connection));
        let scope = Scope { identity: Identity::new(&format!("identity-{n}")).ok(), namespace: None };
        let pause = Action::Pause(Pause { whom: Paused::Scope(scope), paused: true });
        backend.shards().for_each(|shard| submit(backend, shard, pause.clone(), None));
        // One less: `default` is a namespace as well.
        if n + 1 < many {
            let other = Namespace::new(&format!("namespace-{n}")).expect("valid");
            submit(backend, backend.shard_of(&other), Action::Acquire(request(&other, "k", None)), None);
        }
    }
}

/// Submits a command again while the shard's inbox is full.
fn submit(backend: &Backend, shard: Shard, action: Action, wait: Option<&WaiterConnection>) {
    let identity = Identity::new("ada").expect("valid");
    let wait = wait.map(|connection| Wait { timeout: Span(300_000), connection: connection.clone() });
    let command = Command::by(&identity, action);
    loop {
        let (send, replies) = std::sync::mpsc::sync_channel(1);
        let to: ReplyTo = Box::new(move |reply, delivery| {
            delivery.confirm();
            let _ = send.send(matches!(reply, Err(Unavailable::Busy)));
        });
        let submission = Submission { wait: wait.clone(), ..Submission::new(command.clone(), to) };
        backend.engine(shard).expect("this process owns the store").sequencer().submit(submission);
        // A waiter has no reply. A full inbox refuses at once.
        let is_refused =
            if wait.is_some() { replies.try_recv() == Ok(true) } else { replies.recv() == Ok(true) };
        if !is_refused {
            return;
        }
        std::thread::yield_now();
    }
}

fn request(namespace: &Namespace, key: &str, agent: Option<String>) -> LeaseRequest {
    LeaseRequest {
        namespace: namespace.clone(),
        bundle: Bundle::of_key(ResourceName::key(key).expect("valid")),
        ttl: Span(300_000),
        on_expiry: OnExpiry::Free,
        owner: None,
        agent: agent.map(|name| AgentName::new(&name).expect("valid")),
        session: None,
        attempt: None,
        reason: None,
        metadata: None,
    }
}
