//! A kernel with a log to stamp commands with, for tests and benchmarks that are not about stamping.

use kernel::{
    Action, Answer, Bundle, Command, Grant, Granted, Held, Identity, Kernel, Limits, Lsn, Member, Namespace,
    OnExpiry, Open, Outcome, Predicate, Rejection, ResourceName, Span, Store, Time,
};

/// An opened kernel, the position of its last record, and the time.
pub struct World {
    /// The kernel.
    pub kernel: Kernel,
    /// The last position that was tried.
    pub lsn: Lsn,
    /// The stamp of what comes next.
    pub now: Time,
}

impl World {
    /// Opened at time 0, somewhere in the millions of millions, as a real log is.
    pub fn new(limits: Limits) -> World {
        World::by_rules(kernel::KERNEL_VERSION, limits)
    }

    /// Likewise, by the rules of an earlier build.
    pub fn by_rules(kernel_version: u32, limits: Limits) -> World {
        let open = Open {
            store: Store { shards: 1, hash_seed: 0x5eed, ..Store::default() },
            writer: 1,
            term: 1,
            boot_id: 0,
            boot_clock: Span(0),
            kernel_version,
            limits,
        };
        let mut world = World { kernel: Kernel::new(), lsn: Lsn(1_700_000_000_000_000), now: Time(0) };
        let opened = world.apply(&Command::internal(Action::Open(open)));
        assert!(matches!(opened, Outcome::Applied(Answer::Opened, _)), "limits that make sense open a log");
        world
    }

    /// The next record.
    pub fn apply(&mut self, command: &Command) -> Outcome {
        self.lsn.0 += 1;
        self.kernel.apply(self.lsn, self.now, command)
    }

    /// What `who` asks for.
    pub fn by(&mut self, who: &str, action: Action) -> Outcome {
        self.apply(&Command::by(&identity(who), action))
    }

    /// A tick, if anything is due.
    pub fn tick(&mut self) -> Outcome {
        self.apply(&Command::internal(Action::Tick))
    }

    /// A lease over the bundle in the default namespace.
    pub fn acquire(&mut self, who: &str, bundle: Bundle, ttl: Span) -> Result<Granted, Rejection> {
        match self.by(who, Action::Acquire(grant(bundle, ttl))) {
            Outcome::Applied(Answer::Granted(granted), _) => Ok(granted),
            Outcome::Rejected(rejection) => Err(rejection),
            other => unreachable!("an acquire is granted or refused: {other:?}"),
        }
    }
}

/// The plainest request for a lease.
pub fn grant(bundle: Bundle, ttl: Span) -> Grant {
    Grant {
        namespace: default_namespace(),
        bundle,
        ttl,
        on_expiry: OnExpiry::Free,
        owner: None,
        agent: None,
        session: None,
        attempt: None,
        reason: None,
        metadata: None,
    }
}

/// The namespace that is meant where none is named.
pub fn default_namespace() -> Namespace {
    Namespace::new("default").expect("a valid name")
}

/// An identity of that name.
pub fn identity(name: &str) -> Identity {
    Identity::new(name).expect("a valid name")
}

/// A key alone, exclusively.
pub fn key(name: &str) -> Bundle {
    Bundle::of_key(ResourceName::key(name).expect("a valid key"))
}

/// One resource with a predicate.
pub fn one(predicate: Predicate, resource: &str) -> Bundle {
    Bundle::new(vec![member(predicate, resource)]).expect("one member")
}

/// A member of a bundle.
pub fn member(predicate: Predicate, resource: &str) -> Member {
    Member { resource: ResourceName::parse(resource, None).expect("a valid name"), predicate }
}

/// The credential that a grant issued.
pub fn held(granted: &Granted) -> Held {
    Held { lease: granted.lease, epoch: granted.epoch }
}
