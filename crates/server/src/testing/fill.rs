//! Very many rows of each kind, for tests and benchmarks of lists.

use engine::waiters::{Wait, WaiterConnection};
use engine::{ReplyTo, Submission};
use kernel::{
    Action, AgentName, Bundle, Command, Identity, LeaseRequest, Namespace, OnExpiry, Pause, Paused,
    ResourceName, Scope, Shard, Span,
};

use crate::backend::shards::Backend;

/// Adds `many` agents with a lease each, waiters and quotas in the namespace `default`, and as many namespaces with a
/// lease each. Returns when all of it is submitted, not when it is decided.
pub fn fill(backend: &Backend, many: usize) {
    let default = Namespace::new("default").expect("valid");
    let (shard, connection) = (backend.shard_of(&default), WaiterConnection::default());
    for n in 0..many {
        let agent = Some(format!("agent-{n:06}"));
        submit(backend, shard, Action::Acquire(request(&default, &format!("k{n}"), agent)), None);
        submit(backend, shard, Action::Acquire(request(&default, "k0", None)), Some(&connection));
        let scope = Scope { identity: Identity::new(&format!("identity-{n}")).ok(), namespace: None };
        submit(backend, shard, Action::Pause(Pause { whom: Paused::Scope(scope), paused: true }), None);
        // One less: `default` is a namespace as well.
        if n + 1 < many {
            let other = Namespace::new(&format!("namespace-{n}")).expect("valid");
            submit(backend, backend.shard_of(&other), Action::Acquire(request(&other, "k", None)), None);
        }
    }
}

fn submit(backend: &Backend, shard: Shard, action: Action, wait: Option<&WaiterConnection>) {
    let identity = Identity::new("ada").expect("valid");
    let wait = wait.map(|connection| Wait { timeout: Span(300_000), connection: connection.clone() });
    let to: ReplyTo = Box::new(|_, delivery| delivery.confirm());
    let submission = Submission { wait, ..Submission::new(Command::by(&identity, action), to) };
    backend.engine(shard).sequencer().submit(submission);
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
