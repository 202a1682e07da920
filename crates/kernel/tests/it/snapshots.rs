//! The state hash, snapshots, and the tables beneath them.

use kernel::{
    Action, AgentName, Close, Command, Commit, Credential, Cursor, Etag, Granted, KERNEL_VERSION, Kernel,
    LeaseRequest, Limits, Location, Lsn, Namespace, OnExpiry, Outcome, Pause, Paused, Relocation, Removal,
    Renewal, ResourceName, Response, Scope, Snapshot, Span, Store, Time, Version, Write,
};
use sim::fixture::{TestKernel, default_namespace, grant, held, identity, key};

fn granted(world: &mut TestKernel, who: &str, action: Action) -> Granted {
    match world.by(who, action) {
        Outcome::Applied(Response::Granted(granted), _) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

fn write(held: Credential, key: &str) -> Write {
    let key = ResourceName::key(key).expect("valid");
    Write { held, key, token: None, if_version: None, if_etag: None, release: false }
}

fn commit(held: Credential, key: &str) -> Action {
    let (etag, location) =
        (Etag([7; 32]), Location { term: 100, number: 5, random: 1 << 40, ..Location::default() });
    Action::Commit(Commit { write: write(held, key), etag, bytes: 123, location })
}

/// A state with some of everything: ended leases, live ones, a hold, documents, an agent, a policy.
fn populated_world(kernel_version: u32) -> TestKernel {
    let mut world = TestKernel::by_rules(kernel_version, Limits::default());
    world.now = Time(100);
    let hold = LeaseRequest { on_expiry: OnExpiry::Hold(Span(5000)), ..grant(key("held"), Span(1000)) };
    let hold = granted(&mut world, "ada", Action::Acquire(hold));
    let reserved = granted(&mut world, "ada", Action::Reserve(grant(key("reserved"), Span(9000))));
    let agent = Some(AgentName::new("coder").expect("valid"));
    let busy = LeaseRequest { agent, ..grant(key("busy"), Span(9000)) };
    let busy = held(&granted(&mut world, "bob", Action::Acquire(busy)));
    let revoked = granted(&mut world, "eve", Action::Acquire(grant(key("revoked"), Span(9000))));
    let released = granted(&mut world, "eve", Action::Acquire(grant(key("released"), Span(9000))));
    world.now = Time(200);
    let steps = [
        ("ada", Action::Activate(held(&reserved))),
        ("bob", Action::Touch(busy)),
        ("bob", Action::Renew(vec![Renewal { held: busy, ttl: Some(Span(9500)) }])),
        ("bob", commit(busy, "busy")),
        ("bob", Action::Remove(Removal { write: write(busy, "busy") })),
        ("bob", commit(busy, "busy")),
        ("root", Action::Revoke(revoked.lease)),
        ("eve", Action::Release(held(&released))),
        ("root", Action::Pause(Pause { whom: Paused::Scope(Scope::default()), paused: true })),
        ("root", Action::Pause(Pause { whom: Paused::Scope(Scope::default()), paused: false })),
    ];
    for (who, action) in steps {
        let outcome = world.by(who, action);
        assert!(matches!(outcome, Outcome::Applied(..)), "{outcome:?}");
    }
    let relocation = Relocation {
        namespace: default_namespace(),
        key: ResourceName::key("busy").expect("valid"),
        version: Version(3),
        location: Location { term: 90, number: 5, random: 1 << 40, ..Location::default() },
    };
    assert!(matches!(world.by("root", Action::Relocate(relocation)), Outcome::Applied(..)));
    world.now = Time(1200);
    granted(&mut world, "ada", Action::Rebind(held(&hold)));
    world
}

/// The hash of a log must never change, or replicas and snapshots of different builds would disagree. If
/// this fails, rows are hashed differently than before: that requires a new `KERNEL_VERSION`.
#[test]
fn the_same_log_has_the_same_hash_in_every_build() {
    assert_eq!(populated_world(1).kernel.state_hash(), 0xdb25_24e2_d7df_1b20);
    assert_eq!(populated_world(2).kernel.state_hash(), 0xead2_cb7a_933c_e86c);
    let mut world = populated_world(3);
    assert_eq!(world.kernel.state_hash(), 0x1165_8d1f_21d0_aa01);
    for who in ["ada", "bob", "eve"] {
        let party = kernel::Party::Identity(default_namespace(), identity(who));
        world.by("root", Action::RevokeAll(party));
    }
    let leases: Vec<_> =
        world.kernel.leases_from(Cursor::default(), world.now).map(|(_, lease)| lease.id).collect();
    for lease in leases {
        assert!(matches!(world.by("root", Action::Reclaim(lease)), Outcome::Applied(..)));
    }
    let dropped = world.by("root", Action::DropNamespace(default_namespace()));
    assert!(matches!(dropped, Outcome::Applied(Response::Dropped { more: false }, _)), "{dropped:?}");
    assert_eq!(world.kernel.state_hash(), 0x515c_2022_787a_2a19);
    assert!(matches!(
        world.apply(&Command::internal(Action::Close(Close { to: Some(5) }))),
        Outcome::Applied(..)
    ));
    assert_eq!(world.kernel.state_hash(), 0x6c99_8264_efd8_8591);
}

/// Damages a snapshot.
type Damage<'a> = &'a dyn Fn(&mut Snapshot);

#[test]
fn an_inconsistent_snapshot_is_rejected() {
    let snapshot = populated_world(KERNEL_VERSION).kernel.snapshot();
    let restored = Kernel::restore(&snapshot).expect("a kernel wrote it");
    assert_eq!(restored.snapshot(), snapshot);

    let elsewhere = Namespace::new("elsewhere").expect("valid");
    let last = snapshot.last.0;
    let cases: &[(&str, Damage)] = &[
        ("no namespace", &|data| data.namespaces.clear()),
        ("a key in no namespace", &|data| data.keys[0].namespace = elsewhere.clone()),
        ("a lease in no namespace", &|data| data.leases[0].namespace = elsewhere.clone()),
        ("history in no namespace", &|data| data.history[0].namespace = elsewhere.clone()),
        ("no agent", &|data| data.agents.clear()),
        ("a key twice", &|data| data.keys.push(data.keys[0].clone())),
        ("a file as key", &|data| data.keys[0].key = ResourceName::parse("FILE:/a", None).expect("valid")),
        ("a lease beyond the last LSN", &|data| data.leases[0].lsn = Lsn(last + 1)),
        ("a lease twice", &|data| data.leases.push(data.leases[0].clone())),
        ("a lease over nothing", &|data| data.leases[0].members.clear()),
        ("an ended lease beyond the last LSN", &|data| data.history[0].lsn = Lsn(last + 1)),
        ("an ended lease twice", &|data| data.history.push(data.history[0].clone())),
        ("a lease that is both live and ended", &|data| data.history[0].lsn = data.leases[0].lsn),
        ("an ended lease over nothing", &|data| data.history[0].members.clear()),
    ];
    for (what, damage) in cases {
        let mut damaged = snapshot.clone();
        damage(&mut damaged);
        assert!(Kernel::restore(&damaged).is_err(), "{what}");
    }
}

/// A snapshot that had lost rows was restored, and passed the comparison with the live kernel: the running state
/// hash comes from the snapshot itself.
#[test]
fn the_content_digest_depends_on_every_row_and_field() {
    let world = populated_world(KERNEL_VERSION);
    let snapshot = world.kernel.snapshot();
    let digest = world.kernel.content_digest();
    let restored = Kernel::restore(&snapshot).expect("a kernel wrote it");
    assert_eq!(restored.content_digest(), digest, "the same rows in other slab entries");

    let cases: &[(&str, Damage)] = &[
        ("a lease lost", &|data| drop(data.leases.pop())),
        ("an ended lease lost", &|data| drop(data.history.pop())),
        ("a key lost", &|data| data.keys.retain(|key| key.key.name() != "busy")),
        ("a document lost", &|data| data.keys.iter_mut().for_each(|key| key.document = None)),
        ("another version", &|data| data.keys[0].version.0 += 1),
        ("another floor", &|data| data.namespaces[0].floor.0 += 1),
        ("another shard floor", &|data| data.floor.0 += 1),
        ("another time", &|data| data.now.0 += 1),
        ("another deadline", &|data| data.leases[0].deadline.0 += 1),
        ("another TTL", &|data| data.leases[0].ttl.0 += 1),
        ("another time of use", &|data| data.leases[0].active_at.0 += 1),
        ("another token", &|data| data.leases[0].token.0 += 1),
        ("a lease unused", &|data| data.leases.iter_mut().for_each(|lease| lease.used = !lease.used)),
        ("another holder", &|data| data.leases[0].identity = identity("mallory")),
        ("another end", &|data| data.history[0].ended_at.0 += 1),
        ("an agent paused", &|data| data.agents[0].paused = true),
        ("another term", &|data| data.tenure.as_mut().expect("open").open.term += 1),
        ("another running hash", &|data| data.state_hash ^= 1),
    ];
    for (what, damage) in cases {
        let mut damaged = snapshot.clone();
        damage(&mut damaged);
        assert_ne!(damaged, snapshot, "{what}: the case changes nothing");
        if let Ok(kernel) = Kernel::restore(&damaged) {
            assert_ne!(kernel.content_digest(), digest, "{what}");
        }
    }
    assert!(!snapshot.leases.is_empty() && !snapshot.history.is_empty() && !snapshot.agents.is_empty());
}

/// With these seeds, which are the hash function's own constants, a scope or a whole word of a name does
/// not affect the hash: different rows collide in all bits and must still be distinguished.
#[test]
fn names_with_colliding_hashes_are_distinguished() {
    for hash_seed in [0x2545_f491_4f6c_dd1d, 0xd6e8_feb8_6659_fd93] {
        let mut world = TestKernel::new(Limits::default());
        let mut open = world.kernel.tenure().expect("opened").open.clone();
        open.store = Store { hash_seed, ..open.store };
        world.kernel = Kernel::new();
        world.apply(&kernel::Command::internal(Action::Open(open)));

        let mut leases = Vec::new();
        for name in ["aaaa", "bbbb", "cccc"] {
            for namespace in ["namespc1", "namespc2"] {
                let namespace = Namespace::new(namespace).expect("valid");
                let wanted = LeaseRequest { namespace, ..grant(key(name), Span(1000)) };
                leases.push(granted(&mut world, "ada", Action::Acquire(wanted)));
            }
        }
        assert_eq!((world.kernel.counts().namespaces, world.kernel.counts().nodes), (2, 6));
        for (n, lease) in leases.iter().enumerate().rev() {
            let released = world.by("ada", Action::Release(held(lease)));
            assert!(matches!(released, Outcome::Applied(Response::Released, _)), "{released:?}");
            for left in &leases[..n] {
                let namespace = world.kernel.lease(left.lease, world.now).expect("known").namespace;
                let member = &world.kernel.lease(left.lease, world.now).expect("known").members[0];
                let holders = world.kernel.holders(&namespace, &member.resource, world.now);
                assert_eq!(holders.first().map(|view| view.id), Some(left.lease));
            }
        }
        assert_eq!(world.kernel.counts().nodes, 0);
    }
}
