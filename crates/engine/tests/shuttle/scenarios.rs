//! The scenarios. Each is small: a few threads, a few commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use engine::{Authorization, Decision, OnDecided, ReplyTo, Submission, Unavailable};
use kernel::{Action, Close, Command, Granted, Outcome, Span};
use shuttle::sync::mpsc::channel;
use sim::fixture::{grant, held, identity, key};
use store::Seq;

use crate::explore;
use crate::world::{LogKind, Request, World, granted, is_stopped};

/// The number of scenarios below.
pub(crate) const COUNT: usize = 15;

fn release(world: &World, name: &str, lease: &Granted) -> Request {
    world.submit(name, Action::Release(held(lease)), None)
}

/// Clients that acquire and release the same key; every request gets its reply.
fn take_turns(kind: LogKind) {
    let world = World::new(kind);
    let clients: Vec<_> = ["ada", "bob", "eve"]
        .into_iter()
        .map(|name| {
            world.spawn(move |world| {
                let lease = world.acquire(name, "k", 60_000).granted();
                assert!(release(world, name, &lease).reply().is_some_and(|reply| reply.is_ok()));
            })
        })
        .collect();
    for client in clients {
        client.join().expect("no panic");
    }
    world.close();
}

#[test]
fn every_submitter_gets_its_reply() {
    explore(|| take_turns(LogKind::Slow));
}

#[test]
fn every_submitter_gets_its_reply_where_appends_are_instant() {
    explore(|| take_turns(LogKind::Instant));
}

/// Several commands of one thread at once: more than one turn's worth, and no other thread submits.
#[test]
fn commands_that_arrive_together_are_all_decided() {
    explore(|| {
        let world = World::new(LogKind::Instant);
        let other = world.spawn(|world| {
            let requests = ["a", "b", "c"].map(|resource| world.acquire("bob", resource, 60_000));
            for request in &requests {
                request.granted();
            }
        });
        let requests = ["d", "e", "f"].map(|resource| world.acquire("ada", resource, 60_000));
        for request in &requests {
            request.granted();
        }
        other.join().expect("no panic");
        world.close();
    });
}

/// A waiter is granted what expires, though no thread submits anything.
#[test]
fn what_is_due_is_done_in_time() {
    explore(|| {
        let world = World::new(LogKind::Slow);
        world.acquire("ada", "long", 60_000).granted();
        let holder = world.spawn(|world| {
            world.acquire("ada", "k", 100).granted();
        });
        holder.join().expect("no panic");
        let waiter = world.acquire("bob", "k", 60_000);
        let clock = world.spawn(|world| world.advance(101));
        waiter.granted();
        clock.join().expect("no panic");
        world.close();
    });
}

/// The first in the queue disconnects while the holder releases: the second is granted the lease.
#[test]
fn a_waiter_that_disconnects_makes_way() {
    explore(|| {
        let world = World::new(LogKind::Slow);
        let lease = world.acquire("ada", "k", 60_000).granted();
        let gone = world.acquire("bob", "k", 60_000);
        let next = world.acquire("eve", "k", 60_000);
        let connection = gone.connection.clone();
        let hangs_up = world.spawn(move |world| {
            drop(gone);
            world.sequencer().disconnect(connection);
        });
        release(&world, "ada", &lease);
        next.granted();
        hangs_up.join().expect("no panic");
        world.close();
    });
}

/// A grant whose reply is lost is undone, also while nothing else happens, and the waiter is granted the lease.
#[test]
fn a_grant_that_is_not_delivered_is_undone() {
    explore(|| {
        let world = World::new(LogKind::Slow);
        let (send, lost) = channel();
        let to: ReplyTo = Box::new(move |_, delivery| send.send(delivery).expect("the scenario listens"));
        let action = Action::Acquire(grant(key("k"), Span(60_000)));
        world.sequencer().submit(Submission::new(Command::by(&identity("ada"), action), to));
        let delivery = lost.recv().expect("granted");
        let waiter = world.acquire("bob", "k", 60_000);
        assert!(world.query().is_some());
        let connection = world.spawn(move |_| drop(delivery));
        waiter.granted();
        connection.join().expect("no panic");
        world.close();
    });
}

/// Queries, floors and commands at the same time.
#[test]
fn queries_and_maintenance_run_beside_commands() {
    explore(|| {
        let world = World::new(LogKind::Slow);
        let maintenance = world.spawn(|world| {
            world.sequencer().raise_floor(Seq(0));
            assert!(world.query().is_some());
        });
        let client = world.spawn(|world| {
            world.acquire("ada", "k", 60_000).granted();
        });
        assert!(world.query().is_some());
        client.join().expect("no panic");
        maintenance.join().expect("no panic");
        world.close();
    });
}

/// A log without space takes commands again after truncation.
#[test]
fn space_that_returns_is_noticed() {
    explore(|| {
        let world = World::new(LogKind::Full);
        world.sequencer().raise_floor(Seq(0));
        let client = world.spawn(|world| {
            while granted(world.acquire("ada", "k", 60_000).reply().as_ref()).is_none() {
                world.advance(300);
            }
        });
        client.join().expect("no panic");
        world.close();
    });
}

/// The owner closes it while clients submit and wait: all get a reply.
#[test]
fn closing_leaves_no_caller_without_a_reply() {
    explore(|| {
        let world = World::new(LogKind::Slow);
        let clients: Vec<_> = ["ada", "bob"]
            .into_iter()
            .map(|name| {
                world.spawn(move |world| {
                    let reply = world.acquire(name, "k", 60_000).reply();
                    assert!(granted(reply.as_ref()).is_some() || is_stopped(reply.as_ref()), "{reply:?}");
                })
            })
            .collect();
        world.sequencer().close();
        for client in clients {
            client.join().expect("no panic");
        }
        world.close();
    });
}

/// The owner hands the log over while clients submit and wait: all get a reply, and nothing follows the last record.
#[test]
fn a_hand_over_is_the_last_record_and_leaves_no_caller_without_a_reply() {
    explore(|| {
        let world = World::new(LogKind::Slow);
        let clients: Vec<_> = ["ada", "bob"]
            .into_iter()
            .map(|name| {
                world.spawn(move |world| {
                    let reply = world.acquire(name, "k", 60_000).reply();
                    assert!(granted(reply.as_ref()).is_some() || is_stopped(reply.as_ref()), "{reply:?}");
                })
            })
            .collect();
        assert!(world.sequencer().hand_over(Close { to: Some(7) }));
        assert!(!world.sequencer().hand_over(Close { to: None }), "it is not taken back");
        world.sequencer().wait_until_ended();
        for client in clients {
            client.join().expect("no panic");
        }
        let logged = world.logged();
        assert_eq!(logged.iter().position(|name| *name == "close"), Some(logged.len() - 1), "{logged:?}");
        world.close();
    });
}

/// A panic without the panic hook, which prints the schedule.
fn panic_quietly() {
    std::panic::resume_unwind(Box::new("in a batch"));
}

/// A batch panics while others submit: it ends, is reported once, and nothing is decided from the state that it left.
#[test]
fn a_panic_ends_it() {
    explore(|| {
        let world = World::surviving_panics(LogKind::Slow);
        let is_broken = Arc::new(AtomicBool::new(false));
        let is_used = Arc::new(AtomicBool::new(false));
        let (broken, used) = (Arc::clone(&is_broken), Arc::clone(&is_used));
        let client = world.spawn(move |world| {
            for resource in ["m", "n"] {
                let (broken, used) = (Arc::clone(&broken), Arc::clone(&used));
                let looks: OnDecided = Box::new(move |_, _, _| {
                    used.fetch_or(broken.load(Ordering::Relaxed), Ordering::Relaxed);
                });
                let action = Action::Acquire(grant(key(resource), Span(60_000)));
                let _ = world.submit("bob", action, Some(looks)).reply();
            }
        });
        let panics = world.spawn(move |world| {
            let panics: OnDecided = Box::new(move |_, _, _| {
                is_broken.store(true, Ordering::Relaxed);
                panic_quietly();
            });
            let action = Action::Acquire(grant(key("k"), Span(60_000)));
            let _ = world.submit("ada", action, Some(panics));
        });
        client.join().expect("no panic");
        panics.join().expect("no panic");
        while !world.sequencer().has_ended() {
            shuttle::thread::yield_now();
        }
        assert_eq!(*world.ended.lock().unwrap_or_else(PoisonError::into_inner), Some(true));
        assert!(!is_used.load(Ordering::Relaxed), "a command was decided from a state that a panic left");
        world.close();
    });
}

fn ends(kind: LogKind, fails: bool) {
    let world = World::new(kind);
    let clients: Vec<_> = ["ada", "bob"]
        .into_iter()
        .map(|name| {
            world.spawn(move |world| {
                let reply = world.acquire(name, name, 60_000).reply();
                assert!(fails || reply.is_some(), "a deposed writer replies");
            })
        })
        .collect();
    // A query that saw a state which is never durable has no result, and its caller must not wait for one.
    let reader = world.spawn(|world| {
        let _ = world.query();
    });
    reader.join().expect("no panic");
    for client in clients {
        client.join().expect("no panic");
    }
    let ended = *world.ended.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(ended.is_none_or(|failed| failed == fails), "{ended:?}");
    world.close();
}

#[test]
fn a_failed_append_ends_it() {
    explore(|| ends(LogKind::Fails(1), true));
}

#[test]
fn a_lost_log_ends_it_with_a_reply_to_every_caller() {
    explore(|| ends(LogKind::Taken(1), false));
}

/// The same bytes are appended again until the outcome is known.
#[test]
fn an_undecided_append_is_repeated() {
    explore(|| {
        let world = World::new(LogKind::Undecided(0));
        let client = world.spawn(|world| {
            world.acquire("ada", "k", 60_000).granted();
        });
        let clock = world.spawn(|world| {
            while !world.sequencer().health().is_undecided {
                shuttle::thread::yield_now();
            }
            world.advance(300);
        });
        client.join().expect("no panic");
        clock.join().expect("no panic");
        world.close();
    });
}

/// A reload withdraws the authorization of a client whose commands are being decided, and one of which waits. Once the
/// turn has passed, which is what `Engine::pass_turn` does, nothing is granted to the client.
#[test]
fn nothing_is_granted_once_a_withdrawn_authorization_has_passed_a_turn() {
    explore(|| {
        let world = World::new(LogKind::Slow);
        let lease = world.acquire("ada", "k", 60_000).granted();
        // The model checker's: a reload can be between the check of the authorization and the decision.
        let is_passed = Arc::new(shuttle::sync::atomic::AtomicBool::new(false));
        let authorization = Authorization::new();
        let (of_client, passed) = (authorization.clone(), Arc::clone(&is_passed));
        let client = world.spawn(move |world| {
            let requests = ["k", "a", "b"].map(|resource| {
                let passed = Arc::clone(&passed);
                let check: OnDecided = Box::new(move |_, _, decision| {
                    let is_granted = matches!(decision, Decision::Outcome(Outcome::Applied(..)));
                    assert!(!(is_granted && passed.load(Ordering::Relaxed)), "granted after the reload");
                });
                let action = Action::Acquire(grant(key(resource), Span(60_000)));
                world.submit_as("eve", &of_client, action, Some(check))
            });
            for request in &requests[1..] {
                let reply = request.reply();
                let is_withdrawn = matches!(reply, Some(Err(Unavailable::Withdrawn)));
                assert!(is_withdrawn || granted(reply.as_ref()).is_some(), "{reply:?}");
            }
        });
        let reload = world.spawn(move |world| {
            authorization.withdraw();
            world.sequencer().inspect(|_| ());
            is_passed.store(true, Ordering::Relaxed);
        });
        release(&world, "ada", &lease);
        client.join().expect("no panic");
        reload.join().expect("no panic");
        world.close();
    });
}
