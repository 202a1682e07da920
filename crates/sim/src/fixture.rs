//! A kernel that assigns LSNs and time stamps itself, for tests and benchmarks that are not about either.

use kernel::{
    Action, Bundle, ClockReading, Command, Credential, Granted, Identity, Kernel, LeaseRequest, Limits, Lsn,
    Member, Namespace, OnExpiry, Open, Outcome, Predicate, Rejection, ResourceName, Response, Slots, Span,
    Store, Time,
};

/// An opened kernel, the LSN of its last command, and the current time.
pub struct TestKernel {
    /// The kernel.
    pub kernel: Kernel,
    /// The LSN of the last command, applied or not.
    pub lsn: Lsn,
    /// The time stamp of the next command.
    pub now: Time,
}

impl TestKernel {
    /// Opened at time 0, with an LSN as large as a real log's (microseconds since 1970).
    pub fn new(limits: Limits) -> TestKernel {
        TestKernel::by_rules(kernel::KERNEL_VERSION, limits)
    }

    /// The same with the rules of an earlier kernel version.
    pub fn by_rules(kernel_version: u32, limits: Limits) -> TestKernel {
        let open = Open {
            store: Store { shards: 1, hash_seed: 0x5eed, ..Store::default() },
            writer: 1,
            term: 1,
            clocks: ClockReading::default(),
            kernel_version,
            limits,
            slots: Slots::ALL,
        };
        let mut test_kernel =
            TestKernel { kernel: Kernel::new(), lsn: Lsn(1_700_000_000_000_000), now: Time(0) };
        let opened = test_kernel.apply(&Command::internal(Action::Open(open)));
        assert!(matches!(opened, Outcome::Applied(Response::Opened, _)), "valid limits open a log");
        test_kernel
    }

    /// Applies a command at the next LSN.
    pub fn apply(&mut self, command: &Command) -> Outcome {
        self.lsn.0 += 1;
        self.kernel.apply(self.lsn, self.now, command)
    }

    /// Applies an action of the identity `who`.
    pub fn by(&mut self, who: &str, action: Action) -> Outcome {
        self.apply(&Command::by(&identity(who), action))
    }

    /// Applies a tick.
    pub fn tick(&mut self) -> Outcome {
        self.apply(&Command::internal(Action::Tick))
    }

    /// Acquires a lease over the bundle in the default namespace.
    pub fn acquire(&mut self, who: &str, bundle: Bundle, ttl: Span) -> Result<Granted, Rejection> {
        match self.by(who, Action::Acquire(grant(bundle, ttl))) {
            Outcome::Applied(Response::Granted(granted), _) => Ok(granted),
            Outcome::Rejected(rejection) => Err(rejection),
            other => unreachable!("an acquire is granted or rejected: {other:?}"),
        }
    }
}

/// A lease request with only the required fields set.
pub fn grant(bundle: Bundle, ttl: Span) -> LeaseRequest {
    LeaseRequest {
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

/// The namespace of requests that name none.
pub fn default_namespace() -> Namespace {
    Namespace::new("default").expect("a valid name")
}

/// The identity of this name.
pub fn identity(name: &str) -> Identity {
    Identity::new(name).expect("a valid name")
}

/// A bundle of one key, held exclusively.
pub fn key(name: &str) -> Bundle {
    Bundle::of_key(ResourceName::key(name).expect("a valid key"))
}

/// A bundle of one resource with this predicate.
pub fn one(predicate: Predicate, resource: &str) -> Bundle {
    Bundle::new(vec![member(predicate, resource)]).expect("one member")
}

/// A member of a bundle.
pub fn member(predicate: Predicate, resource: &str) -> Member {
    Member { resource: ResourceName::parse(resource, None).expect("a valid name"), predicate }
}

/// The credential that a grant issued.
pub fn held(granted: &Granted) -> Credential {
    Credential { lease: granted.lease, epoch: granted.epoch }
}
