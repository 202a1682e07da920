//! A store in a bucket: requests, throughput and latency, beside a driver that keeps one object per key and replaces it on
//! condition, as lock recipes on object stores do. The object store is in this process, with a fixed latency.
//!
//! `cargo bench -p lockd-bucket --bench figures`; arguments after `--` select parts by name (`cycles`, `limit`, `latency`, `start`);
//! `LATENCY_MS` sets the latency, 30 by default.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bucket::{Bucket, BucketOptions, BucketUrl, Operation};
use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{
    Decision, Delivery, Engine, Executor, MachineClock, Options, ReplyTo, Submission, TenureConfig, Workers,
};
use kernel::{
    Action, Command, Commit, Credential, Etag, Identity, Limits, Location, Outcome, ResourceName, Response,
    Span, Store, Write,
};
use objectserver::{Dialect, Fault, ObjectServer, Operation as Received, ServerOptions};
use sim::fixture::{grant, held, identity, key};
use store::object::{
    MemoryObjects, ObjectBlobs, ObjectLog, ObjectOptions, Objects, RetryPolicy, UploadOptions, WriterId,
};

const CREDENTIALS: &str = r#"echo '{"Version":1,"AccessKeyId":"id","SecretAccessKey":"secret"}'"#;
const DOCUMENT: usize = 200;

fn main() {
    let picked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let parts: [(&str, fn()); 4] =
        [("cycles", cycles), ("limit", limit), ("latency", latency), ("start", start)];
    for (name, part) in parts {
        if picked.is_empty() || picked.iter().any(|picked| picked == name) {
            part();
        }
    }
}

fn latency_ms() -> u64 {
    std::env::var("LATENCY_MS").map_or(30, |ms| ms.parse().expect("milliseconds"))
}

fn object_server(latency_ms: u64) -> ObjectServer {
    let latency = Duration::from_millis(latency_ms);
    ObjectServer::start(ServerOptions { latency, ..ServerOptions::new(Dialect::S3, "locks") })
        .expect("a port")
}

fn client(server: &ObjectServer) -> Bucket {
    let options = BucketOptions {
        region: Some("us-east-1".into()),
        endpoint: Some(server.endpoint()),
        credential_process: Some(CREDENTIALS.into()),
        ..BucketOptions::default()
    };
    Bucket::new(&BucketUrl::parse("s3://locks/bench").expect("a URL"), &options).expect("options")
}

struct Quiet;

impl EngineObserver for Quiet {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn maintained(&self, _: MaintenanceEvent) {}
}

fn open(objects: Arc<dyn Objects>, policy: RetryPolicy, options: Options) -> Engine {
    let writer = u128::from(std::process::id()) << 64 | Instant::now().elapsed().as_nanos();
    let log = ObjectOptions { recent_bytes: 4 << 20, ..ObjectOptions::new(0, 9, WriterId(writer)) };
    let log = ObjectLog::open(Arc::clone(&objects), log, policy.clone()).expect("a log");
    let blobs = Arc::new(ObjectBlobs::new(objects, policy, UploadOptions::parts_of(5 << 20)));
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
    let executor: Arc<dyn Executor> = Arc::new(Workers::default());
    let clock = Box::new(MachineClock::new().expect("Linux"));
    Engine::open(Box::new(log), blobs, clock, &tenure, options, Arc::new(Quiet), &executor).expect("opened")
}

/// One caller that acquires a key, writes its document, and releases it.
struct Cycle {
    identity: Identity,
    key: ResourceName,
    acquire: Command,
    held: Option<Credential>,
    left: usize,
}

impl Cycle {
    fn new(caller: usize, rounds: usize) -> Cycle {
        let (name, identity) = (format!("key-{caller:06}"), identity(&format!("caller-{caller}")));
        let acquire = Command::by(&identity, Action::Acquire(grant(key(&name), Span(60_000))));
        let key = ResourceName::key(&name).expect("a name");
        Cycle { identity, key, acquire, held: None, left: rounds }
    }

    /// The next command, with its document.
    fn next(&mut self, decision: Option<Decision>) -> Option<(Command, Option<Vec<u8>>)> {
        match decision {
            None => {}
            Some(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) => {
                let credential = held(&granted);
                self.held = Some(credential);
                return Some((self.commit(credential), Some(vec![b'7'; DOCUMENT])));
            }
            Some(Decision::Outcome(Outcome::Applied(Response::Committed { .. }, _))) => {
                let credential = self.held.take().expect("it was granted");
                return Some((Command::by(&self.identity, Action::Release(credential)), None));
            }
            Some(Decision::Outcome(Outcome::Applied(Response::Released, _))) => self.left -= 1,
            Some(other) => panic!("{other:?}"),
        }
        (self.left > 0).then(|| (self.acquire.clone(), None))
    }

    fn commit(&self, credential: Credential) -> Command {
        let write = Write {
            held: credential,
            key: self.key.clone(),
            token: None,
            if_version: None,
            if_etag: None,
            release: false,
        };
        let commit =
            Commit { write, etag: Etag([7; 32]), bytes: DOCUMENT as u64, location: Location::default() };
        Command::by(&self.identity, Action::Commit(commit))
    }
}

/// Callers as tasks of one loop, like the connections of a server. Returns the time.
fn drive(engine: &Engine, callers: usize, rounds: usize) -> Duration {
    let (send, receive) = channel();
    let submit = |caller: usize, (command, document): (Command, Option<Vec<u8>>)| {
        let send = send.clone();
        let to: ReplyTo =
            Box::new(move |reply, delivery: Delivery| delivery.settle(send.send((caller, reply)).is_ok()));
        engine.sequencer().submit(Submission { document, ..Submission::new(command, to) });
    };
    let begin = Instant::now();
    let mut cycles: Vec<Cycle> = (0..callers).map(|caller| Cycle::new(caller, rounds)).collect();
    for (caller, cycle) in cycles.iter_mut().enumerate() {
        submit(caller, cycle.next(None).expect("at least one round"));
    }
    let mut left = callers;
    while left > 0 {
        let (caller, reply) = receive.recv().expect("a reply");
        match cycles[caller].next(Some(reply.expect("accepted"))) {
            Some(command) => submit(caller, command),
            None => left -= 1,
        }
    }
    begin.elapsed()
}

/// The least that a lock per object needs: one conditional put each for acquire, update and release. `reads`: a get before the
/// acquire, which a caller needs to see whether another one holds the lock.
fn drive_objects(client: &Bucket, phase: &str, callers: usize, rounds: usize, reads: bool) -> Duration {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let run = move || {
                for put in 0..rounds * 3 {
                    let name = format!("cas/{phase}/{caller}/{put}");
                    if reads && put % 3 == 0 {
                        client.get(&name).expect_err("a free name");
                    }
                    client.put_if_absent(&name, &[b'7'; DOCUMENT + 100]).expect("a free name");
                }
            };
            std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, run).expect("a thread");
        }
    });
    begin.elapsed()
}

fn cycles() {
    println!("acquire + update + release, {} ms a request", latency_ms());
    compare(&[(64, 15), (2048, 6)], None);
}

/// The same with the writes that S3 takes, of all that it takes at least in one prefix.
fn limit() {
    println!("acquire + update + release, {} ms a request, at most {S3_PUTS} puts a second", latency_ms());
    compare(&[(2048, 6)], Some(S3_PUTS));
}

/// S3 takes at least this many writes per second and prefix, by its documentation.
const S3_PUTS: u32 = 3500;

fn compare(sizes: &[(usize, usize)], puts_per_second: Option<u32>) {
    for &(callers, rounds) in sizes {
        let server = object_server(latency_ms());
        if let Some(limit) = puts_per_second {
            server.add_fault(Fault::rate_limited(limit).on(&[Received::Put]));
        }
        let client = client(&server);
        let engine = open(Arc::new(client.clone()), client.retry_policy(), Options::default());
        drive(&engine, callers, 1);
        let before = client.counts().total();
        let took = drive(&engine, callers, rounds);
        let done = callers * rounds;
        let requests = (client.counts().total() - before) as f64 / done as f64 * 1000.0;
        let rate = done as f64 / took.as_secs_f64();
        drive_objects(&client, "first", callers, 1, false);
        let beside = done as f64 / drive_objects(&client, "measured", callers, rounds, false).as_secs_f64();
        let reading = done as f64 / drive_objects(&client, "reading", callers, rounds, true).as_secs_f64();
        println!(
            "{callers:5} callers: {rate:8.0} cycles/s, {requests:6.1} requests per 1,000 cycles; an object per key: \
             {beside:8.0} cycles/s, 3000 requests; ratio {:.2}, {:.0} times fewer requests",
            rate / beside,
            3000.0 / requests
        );
        println!("      with a get before each acquire: {reading:8.0} cycles/s; ratio {:.2}", rate / reading);
    }
}

/// In milliseconds.
fn percentile(mut times: Vec<Duration>, percent: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100].as_secs_f64() * 1000.0
}

/// Acquires of one caller, and of a thousand that arrive at random, in units of a put.
fn latency() {
    let server = object_server(latency_ms());
    let client = client(&server);
    let put = |n: usize| {
        let begin = Instant::now();
        client.put_if_absent(&format!("put/{n}"), &[7; 300]).expect("a free name");
        begin.elapsed()
    };
    for n in 1000..1005 {
        put(n);
    }
    let puts: Vec<Duration> = (0..40).map(put).collect();
    let put_p50 = percentile(puts, 50);
    let engine = open(Arc::new(client.clone()), client.retry_policy(), Options::default());
    let acquire = |n: usize| Cycle::new(n, 1).next(None).expect("an acquire").0;
    let alone: Vec<Duration> = (0..40)
        .map(|n| {
            let begin = Instant::now();
            engine.sequencer().call(acquire(n), 0, None, None).expect("running").expect("accepted");
            begin.elapsed()
        })
        .collect();
    let (send, receive) = channel();
    let mut random = 88_172_645_463_325_252_u64;
    for n in 0..1000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_micros(random % 4000));
        let (send, begin) = (send.clone(), Instant::now());
        let to: ReplyTo = Box::new(move |_, delivery: Delivery| {
            delivery.confirm();
            let _ = send.send(begin.elapsed());
        });
        engine.sequencer().submit(Submission::new(acquire(100 + n), to));
    }
    let arrivals: Vec<Duration> = receive.iter().take(1000).collect();
    let (alone, p50, p99) =
        (percentile(alone, 50), percentile(arrivals.clone(), 50), percentile(arrivals, 99));
    println!("put p50 {put_p50:.1} ms; acquire of one caller {alone:.1} ms, ratio {:.2}", alone / put_p50);
    println!("1,000 random arrivals, 500/s: p50 {p50:.1} ms, ratio {:.2}; p99 {p99:.1} ms", p50 / put_p50);
}

/// A cold start with 100,000 batches behind it, 15 ms a request.
fn start() {
    let objects = MemoryObjects::default();
    let shared: Arc<dyn Objects> = Arc::new(objects.clone());
    let options = Options { snapshot_batches: 4096, ..Options::default() };
    let engine = open(shared, RetryPolicy::without_pause(1), options.clone());
    drive(&engine, 1, 33_400);
    drop(engine);
    let server = object_server(15);
    let (mut after, mut batches) = (String::new(), 0);
    loop {
        let page = objects.list("", &after).expect("a list");
        for name in &page.names {
            batches += usize::from(name.starts_with("log/"));
            server.insert("locks", &format!("bench/{name}"), objects.get(name).expect("listed"));
        }
        let Some(last) = page.names.last().filter(|_| page.more) else { break };
        after.clone_from(last);
    }
    let client = client(&server);
    let begin = Instant::now();
    let engine = open(Arc::new(client.clone()), client.retry_policy(), options);
    let opened = begin.elapsed();
    engine
        .sequencer()
        .call(Cycle::new(7, 1).next(None).expect("one").0, 0, None, None)
        .expect("running")
        .expect("ok");
    let counts = client.counts();
    println!(
        "cold start with {batches} batches, 15 ms a request: opened after {:.2} s, first grant after {:.2} s; {} gets, {} \
         lists; replayed {} records",
        opened.as_secs_f64(),
        begin.elapsed().as_secs_f64(),
        counts.get(Operation::Get),
        counts.get(Operation::List),
        engine.recovery().records
    );
}
