//! Two writers race for one number while every fifth response is lost: exactly one wins, and neither is told that the
//! number is another's although its own bytes are there.
//!
//! 1,000 runs, or 10,000 with `LOCKD_LONG=1`. A failure prints the seed; `SEED=n` begins with that one.

use std::sync::Arc;

use bucket::{Bucket, Provider};
use objectserver::{Fault, ObjectServer, ServerOptions};
use store::object::{ObjectLog, ObjectOptions, Objects as _, ObjectsErrorKind, RetryPolicy, WriterId};
use store::port::{ErrorKind, LogStore as _, LsnRange, Seq};

use crate::fixture::{BUCKET, client, dialect, size, start_with, stored};

/// Runs on one server: each has a shard of its own, and the server's seed decides which responses are lost.
const RUNS_PER_SERVER: u32 = 50;
/// Servers at the same time.
const LANES: u32 = 4;

fn server(provider: Provider, seed: u64) -> ObjectServer {
    let server = start_with(ServerOptions { seed, ..ServerOptions::new(dialect(provider), BUCKET) });
    // Together every fifth: the connection is closed, or an error takes the place of the response.
    server.add_fault(Fault::response_lost().with_probability(0.12));
    server.add_fault(Fault::error_after(500).with_probability(0.1));
    server
}

/// Appends batch 0 until the outcome is known. Whether the writer has won.
fn append(bucket: &Bucket, shard: u32, writer: u8) -> Result<bool, String> {
    let options = ObjectOptions::new(shard, 7, WriterId(u128::from(writer)));
    let objects = Arc::new(bucket.clone());
    let log = ObjectLog::open(objects, options, RetryPolicy::without_pause(20));
    let mut log = log.map_err(|error| format!("opening: {error}"))?;
    // The other writer was faster, before this one has begun.
    if log.bounds().next > Seq(0) {
        return Ok(false);
    }
    let payload = vec![writer; 40];
    for _ in 0..20 {
        match log.append(Seq(0), LsnRange::new(0, 9), &payload) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind == ErrorKind::Taken => return Ok(false),
            Err(error) if error.kind == ErrorKind::Undecided => {}
            Err(error) => return Err(format!("appending: {error}")),
        }
    }
    Err("undecided after 20 appends".to_string())
}

/// One race. The error is what went wrong.
fn race(bucket: &Bucket, server: &ObjectServer, shard: u32) -> Result<(), String> {
    let results = std::thread::scope(|scope| {
        let writers = [1, 2].map(|writer| scope.spawn(move || append(bucket, shard, writer)));
        writers.map(|writer| writer.join().expect("no panic"))
    });
    let [first, second] = results;
    let won = [first?, second?];
    let object = stored(server, &format!("log/{shard}/{:016x}", 0)).ok_or("the batch is missing")?;
    let holds = |writer: u8| object.windows(40).any(|window| window.iter().all(|byte| *byte == writer));
    match won {
        [true, true] => Err("both writers have won".to_string()),
        [true, false] if holds(1) => Ok(()),
        [false, true] if holds(2) => Ok(()),
        [false, false] => Err("a writer was told that its own batch is another's".to_string()),
        _ => Err("the batch is not that of the writer that was told that it has won".to_string()),
    }
}

/// One race of single creates, without a log. A creator is told "taken" by its first request only if the object is the
/// other's: a client that repeats a create by itself would find its own object.
fn race_once(bucket: &Bucket, server: &ObjectServer, shard: u32) -> Result<(), String> {
    let name = format!("once/{shard}");
    let told = std::thread::scope(|scope| {
        let creators = [[1; 40], [2; 40]].map(|bytes| {
            let name = &name;
            scope.spawn(move || bucket.put_if_absent(name, &bytes).map_err(|error| error.kind))
        });
        creators.map(|creator| creator.join().expect("no panic"))
    });
    let object = stored(server, &name).ok_or("the object is missing")?;
    for (told, own) in told.iter().zip([[1; 40], [2; 40]]) {
        match told {
            Ok(()) if object != own => {
                return Err("a creator has won, and the object is another's".to_string());
            }
            Err(ObjectsErrorKind::Taken) if object == own => {
                return Err("a creator was told that its own object is another's".to_string());
            }
            Ok(())
            | Err(ObjectsErrorKind::Taken | ObjectsErrorKind::TimedOut | ObjectsErrorKind::Unavailable) => {}
            Err(kind) => return Err(format!("a lost response was told as {kind:?}")),
        }
    }
    if told == [Ok(()), Ok(())] { Err("both creators have won".to_string()) } else { Ok(()) }
}

fn races(provider: Provider, seed: u64) {
    let server = server(provider, seed);
    let bucket = client(provider, &server);
    for shard in 0..RUNS_PER_SERVER {
        let raced = race(&bucket, &server, shard).and_then(|()| race_once(&bucket, &server, shard));
        if let Err(why) = raced {
            panic!("{why}: provider={provider:?} SEED={seed} shard={shard}");
        }
    }
    assert!(server.double_wins().is_empty(), "provider={provider:?} SEED={seed}");
    let lost = server.create_attempts().iter().filter(|attempt| attempt.status.is_none()).count();
    assert!(lost > 0, "responses were lost: provider={provider:?} SEED={seed}");
}

#[test]
fn no_writer_is_told_that_its_own_batch_is_anothers_and_no_two_win() {
    let first = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let servers = size(1_000, 10_000) / RUNS_PER_SERVER;
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || {
                for number in (lane..servers).step_by(LANES as usize) {
                    let provider = Provider::ALL[number as usize % Provider::ALL.len()];
                    races(provider, first + u64::from(number));
                }
            });
        }
    });
}
