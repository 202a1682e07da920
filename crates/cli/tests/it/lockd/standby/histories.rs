//! Linearizability over real processes on one bucket, while they are killed, paused, cut off from the store or from their
//! clients, and while the store fails. Their wall clocks are right, an hour fast and an hour slow.
//!
//! Clients send requests to all servers, and retry under the same idempotency key until there is a decision. Then the checker
//! searches for an order of all calls that the specification accepts: nothing acknowledged is lost, nothing is granted
//! twice, no read is stale. Beside them, workers write to a register outside of lockd that checks fencing tokens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use objectserver::{Fault, ObjectServer, Operation};
use rustix::process::Signal;
use serde_json::{Value, json};
use sim::linearizability::explain;
use sim::linearizability::operation::CallResult;
use sim::linearizability::resources::ResourcesModel;
use worktree::clock::{Clock, SystemClock};

use super::super::bucket::{CREDENTIALS, is_ready, object_server, post, wait_ms};
use super::history_client::{Client, History, KEYS};
use super::proxy::Proxy;
use super::{FAST, is_long};
use crate::lockd::serve::Running;
use crate::running::until;

const CLIENTS: u64 = 4;
/// The offsets of the wall clocks. A server refuses to start on the day before it was built.
const CLOCK_OFFSETS_S: [i64; 3] = [0, 3600, -3600];
/// Longer than a takeover.
const PAST_TAKEOVER_MS: u64 = 2500;

/// What happens to the servers while clients work.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// The owner gets SIGKILL, and starts again later.
    Killed,
    /// The owner is stopped for longer than a takeover, and goes on.
    Paused,
    /// The owner cannot reach the store, but its clients and the other servers.
    CutFromStore,
    /// Clients cannot reach the owner; the other servers and the store can.
    CutFromClients,
    /// All servers but one get SIGKILL, and start again at the same time.
    Storm,
    /// The store loses responses, and carries out puts late.
    StoreFails,
}

impl Disturbance {
    const ALL: [Disturbance; 6] = [
        Disturbance::Killed,
        Disturbance::Paused,
        Disturbance::CutFromStore,
        Disturbance::CutFromClients,
        Disturbance::Storm,
        Disturbance::StoreFails,
    ];
}

/// A server, with the ways to the store and to its clients.
struct Member {
    running: Option<Running>,
    to_store: Proxy,
    to_clients: Proxy,
    clock_offset_s: i64,
}

struct Servers {
    objects: ObjectServer,
    members: Vec<Member>,
    /// Replaces the wall clock of the processes.
    clock: PathBuf,
    dir: tempfile::TempDir,
    starts: usize,
}

impl Servers {
    fn start(count: usize) -> Servers {
        let (objects, dir) = (object_server(1), tempfile::tempdir().expect("a directory"));
        let clock = shifted_clock(dir.path());
        let store = objects.endpoint().trim_start_matches("http://").to_string();
        let is_first_hour = SystemClock::new().wall().0 % 86_400_000 < 3_700_000;
        let member = |number: usize| Member {
            running: None,
            to_store: Proxy::start(&store),
            to_clients: Proxy::start("127.0.0.1:1"),
            clock_offset_s: match CLOCK_OFFSETS_S[number % CLOCK_OFFSETS_S.len()] {
                offset if offset < 0 && is_first_hour => 0,
                offset => offset,
            },
        };
        let members = (0..count).map(member).collect();
        let mut servers = Servers { objects, members, clock, dir, starts: 0 };
        (0..count).for_each(|number| servers.run(number));
        servers
    }

    fn run(&mut self, number: usize) {
        self.starts += 1;
        let member = &mut self.members[number];
        let endpoint = format!("http://{}", member.to_store.address);
        let mut args = vec!["--mtls=false", "--store", "s3://locks/test", "--s3-region", "us-east-1"];
        args.extend(["--s3-endpoint", endpoint.as_str(), "--s3-credential-process", CREDENTIALS]);
        args.extend(FAST);
        let (library, offset) = (self.clock.display(), member.clock_offset_s);
        let prelude = format!("export LD_PRELOAD='{library}' CLOCK_OFFSET={offset}");
        let data = self.dir.path().join(self.starts.to_string());
        let running = Running::start_after(&prelude, &data, &args);
        member.to_clients.retarget(&running.address);
        member.running = Some(running);
    }

    fn addresses(&self) -> Vec<String> {
        self.members.iter().map(|member| member.to_clients.address.clone()).collect()
    }

    /// The server that owns the shard, by the records in the bucket.
    fn owner(&self) -> usize {
        let records = self.objects.objects("locks");
        let names = records.keys().filter(|name| name.starts_with("test/servers/"));
        let record = |name: &String| serde_json::from_slice(&self.objects.object("locks", name)?).ok();
        let term = |record: &Value| record["shards"][0]["term"].as_u64();
        let newest = names.filter_map(record).max_by_key(term).expect("a server has announced itself");
        let address =
            newest["address"].as_str().expect("an address").trim_start_matches("http://").to_string();
        let is_owner =
            |member: &Member| member.running.as_ref().is_some_and(|running| running.address == address);
        self.members.iter().position(is_owner).unwrap_or(0)
    }

    fn signal(&self, number: usize, signal: Signal) {
        self.members[number].running.as_ref().expect("it runs").signal(signal);
    }

    fn disturb(&mut self, disturbance: Disturbance) {
        let owner = self.owner();
        match disturbance {
            Disturbance::Killed => {
                self.members[owner].running = None;
                wait_ms(PAST_TAKEOVER_MS);
                self.run(owner);
            }
            Disturbance::Paused => {
                self.signal(owner, Signal::STOP);
                wait_ms(PAST_TAKEOVER_MS);
                self.signal(owner, Signal::CONT);
            }
            Disturbance::CutFromStore => {
                self.members[owner].to_store.cut();
                wait_ms(PAST_TAKEOVER_MS);
                self.members[owner].to_store.heal();
            }
            Disturbance::CutFromClients => {
                self.members[owner].to_clients.cut();
                wait_ms(PAST_TAKEOVER_MS);
                self.members[owner].to_clients.heal();
            }
            Disturbance::Storm => {
                let others: Vec<usize> =
                    (0..self.members.len()).filter(|at| *at != (owner + 1) % self.members.len()).collect();
                for number in &others {
                    self.members[*number].running = None;
                }
                for number in &others {
                    self.run(*number);
                }
            }
            Disturbance::StoreFails => {
                let puts = [Operation::Put];
                self.objects.add_fault(Fault::response_lost().on(&puts).with_probability(0.2));
                self.objects
                    .add_fault(Fault::late(Duration::from_millis(300)).on(&puts).with_probability(0.1));
                wait_ms(PAST_TAKEOVER_MS);
                self.objects.clear_faults();
            }
        }
    }
}

/// A library that moves the wall clock of a process by `CLOCK_OFFSET` seconds.
fn shifted_clock(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
    let code = "#include <stdlib.h>\n#include <sys/syscall.h>\n#include <time.h>\n#include <unistd.h>\n\
        int clock_gettime(clockid_t id, struct timespec *at) {\n\
        int failed = syscall(SYS_clock_gettime, id, at);\n\
        const char *offset = getenv(\"CLOCK_OFFSET\");\n\
        if (!failed && id == CLOCK_REALTIME && offset) at->tv_sec += atol(offset);\n\
        return failed; }\n";
    std::fs::write(&source, code).expect("a file");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-D_GNU_SOURCE", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(built.expect("a C compiler, which the build needs too").success());
    library
}

/// A number outside of lockd that accepts only the highest token that it has seen.
#[derive(Default)]
struct FencedRegister {
    token: u64,
    value: u64,
    accepted: u64,
    /// The tokens of all grants.
    tokens: BTreeSet<u64>,
}

impl FencedRegister {
    fn read(&mut self, token: u64) -> Option<u64> {
        self.token = self.token.max(token);
        (token == self.token).then_some(self.value)
    }

    fn write(&mut self, token: u64, value: u64) {
        if token == self.token {
            self.value = value;
            self.accepted += 1;
        }
    }
}

/// Adds to the register under leases, which expire during takeovers.
fn add_to_register(addresses: &[String], first: usize, register: &Mutex<FencedRegister>, stop: &AtomicBool) {
    for round in first.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let address = &addresses[round % addresses.len()];
        let body = json!({"key": "register", "ttl_seconds": 1, "block_seconds": 1});
        let Some((200, lease)) = post(address, "/v1/acquire", &body) else { continue };
        let token = lease["fencing_token"].as_u64().expect("a token");
        assert!(
            register.lock().expect("not poisoned").tokens.insert(token),
            "a token was given twice: {token}"
        );
        let value = register.lock().expect("not poisoned").read(token);
        wait_ms(3);
        if let Some(value) = value {
            register.lock().expect("not poisoned").write(token, value + 1);
        }
        post(address, "/v1/release", &json!({"lease_id": lease["lease_id"]}));
    }
}

/// Clients work while the servers are disturbed. The number of calls that were judged.
fn round(
    servers: &mut Servers,
    number: u64,
    disturbance: Disturbance,
    register: &Mutex<FencedRegister>,
) -> usize {
    let (history, stop) = (History::new(&format!("round-{number}")), AtomicBool::new(false));
    let addresses = servers.addresses();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let client = Client::new(&addresses, &history, number * CLIENTS + client + 1);
            let stop = &stop;
            scope.spawn(move || client.run(|| stop.load(Ordering::Relaxed)));
        }
        for worker in 0..2 {
            let (addresses, stop) = (&addresses, &stop);
            scope.spawn(move || add_to_register(addresses, worker, register, stop));
        }
        wait_ms(300);
        servers.disturb(disturbance);
        wait_ms(500);
        stop.store(true, Ordering::Relaxed);
    });
    let calls = history.calls();
    let (judged, failed) = (calls.len(), history.failed_tries());
    let granted = calls.iter().filter(|call| matches!(call.op.result, CallResult::Granted { .. })).count();
    println!("{disturbance:?}: {judged} calls, {granted} of them grants, {failed} tries without a decision");
    assert!(granted > 0, "nothing was granted: {disturbance:?}");
    if let Err(why) = explain(&ResourcesModel { resources: KEYS }, calls) {
        panic!("round {number}, {disturbance:?}: {why}");
    }
    judged
}

#[test]
fn histories_are_linearizable_while_servers_are_killed_paused_and_cut_off() {
    let (counts, rounds): (&[usize], usize) = if is_long() { (&[2, 3, 5], 10) } else { (&[3], 1) };
    let (mut number, mut judged) = (0, 0);
    for count in counts {
        let (mut servers, register) = (Servers::start(*count), Mutex::<FencedRegister>::default());
        for disturbance in Disturbance::ALL.repeat(rounds) {
            judged += round(&mut servers, number, disturbance, &register);
            number += 1;
        }
        until("every server is ready", || {
            servers
                .members
                .iter()
                .all(|member| member.running.as_ref().is_some_and(|one| is_ready(&one.address)))
        });
        let register = register.into_inner().expect("not poisoned");
        assert!(register.accepted > 0);
        assert_eq!(register.value, register.accepted, "the register has lost a write");
        assert!(servers.objects.double_wins().is_empty());
        println!("{count} servers: {} writes to the register, none lost", register.accepted);
    }
    println!("{judged} calls are linearizable");
}
