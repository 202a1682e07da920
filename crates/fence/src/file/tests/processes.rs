//! Real processes: killed before each call, and racing each other.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::*;

const PART: &str = "FENCE_TEST_PART";
const DIR: &str = "FENCE_TEST_DIR";
const WRITERS: u64 = 4;
const WRITES: u64 = 60;

/// Starts this test binary as a child process that plays `part`.
fn start(part: &str, number: u64, dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["file::tests::processes::part", "--exact", "--nocapture", "--test-threads=1"])
        .env(PART, format!("{part} {number}"))
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts again")
}

/// The entry point of child processes; does nothing in a normal test run.
#[test]
fn part() {
    let (Ok(part), Some(dir)) = (std::env::var(PART), std::env::var_os(DIR)) else { return };
    let (part, number) = part.split_once(' ').expect("two words");
    let (number, file) = (number.parse().expect("a number"), file(&PathBuf::from(dir)));
    match part {
        "die" => die(&file, number),
        "race" => {
            for (revision, token) in race(&file, number) {
                println!("\napplied {revision} {token}");
            }
        }
        other => panic!("no such part: {other}"),
    }
}

/// Is killed before the given call, while it holds the lock.
fn die(file: &FencedFile, call: u64) {
    let hooked = HookedDir::new(&file.dir, |number| {
        if number as u64 == call {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
        }
        Ok(())
    });
    let _ = write(&hooked, 6, b"new");
}

#[test]
fn a_writer_killed_at_any_call_leaves_a_complete_version_and_a_free_lock() {
    for call in 0..=6 {
        let dir = tempfile::tempdir().expect("a directory");
        let file = file(dir.path());
        file.write(Token(5), b"old").expect("the first");
        let status = start("die", call, dir.path()).wait().expect("a child");
        assert_eq!(status.success(), call == 6, "killed before call {call}: {status}");
        let (found, renamed) = (file.read(), call > 4);
        let whole = if renamed { version(6, 2, b"new") } else { version(5, 1, b"old") };
        assert_eq!(found, Ok(Some(whole)), "killed before call {call}");
        if renamed {
            assert_eq!(file.write(Token(5), b"late"), Err(Error::Stale { current: Some(Token(6)) }));
        }
        file.write(Token(7), b"next").expect("the lock is free");
        let left: Vec<_> = std::fs::read_dir(dir.path()).expect("readable").collect();
        assert_eq!(left.len(), 2, "the file and its lock: {left:?}");
    }
}

/// Writes under random tokens. Returns the applied writes as (revision, token).
fn race(file: &FencedFile, seed: u64) -> Vec<(u64, u64)> {
    let mut applied = Vec::new();
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for round in 0..WRITES {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Tokens grow with each round, and overlap with those of other writers.
        let token = 1 + round + random % 20;
        let result = match random >> 61 {
            0 => change(&file.dir, Token(token), Change::Claim),
            1 => change(&file.dir, Token(token), Change::Remove),
            _ => write(&file.dir, token, format!("{token} {seed}").as_bytes()),
        };
        match result {
            Ok(version) => {
                assert_eq!(version.token, Token(token));
                applied.push((version.revision, token));
            }
            Err(Error::Stale { current }) => assert!(current > Some(Token(token)), "{current:?} {token}"),
            Err(other) => panic!("{other}"),
        }
    }
    applied
}

/// The revisions of applied writes are dense and unique, and tokens never decrease with them.
fn check(mut applied: Vec<(u64, u64)>, file: &FencedFile) {
    applied.sort_unstable();
    for (index, pair) in applied.windows(2).enumerate() {
        assert_eq!(pair[0].0, index as u64 + 1, "two writes of one revision, or none");
        assert!(pair[0].1 <= pair[1].1, "token {} after {}", pair[1].1, pair[0].1);
    }
    let last = applied.last().expect("some were applied");
    let found = file.read().expect("readable").expect("a version");
    assert_eq!((found.revision, found.token.0), *last);
    assert_eq!(found.revision, applied.len() as u64);
    assert_eq!(Some(last.1), applied.iter().map(|(_, token)| *token).max());
}

#[test]
fn tokens_never_decrease_whatever_processes_race() {
    let dir = tempfile::tempdir().expect("a directory");
    let children: Vec<Child> = (1..=WRITERS).map(|seed| start("race", seed, dir.path())).collect();
    let mut applied = Vec::new();
    for mut child in children {
        let mut output = String::new();
        child.stdout.take().expect("piped").read_to_string(&mut output).expect("text");
        assert!(child.wait().expect("a child").success(), "{output}");
        for line in output.lines().filter_map(|line| line.strip_prefix("applied ")) {
            let (revision, token) = line.split_once(' ').expect("two numbers");
            applied.push((revision.parse().expect("a number"), token.parse().expect("a number")));
        }
    }
    check(applied, &file(dir.path()));
}

#[test]
fn tokens_never_decrease_whatever_threads_race() {
    let dir = tempfile::tempdir().expect("a directory");
    let shared = file(dir.path());
    let applied = std::thread::scope(|scope| {
        // Some threads share one `FencedFile`, some have their own.
        let shared = &shared;
        let own = || file(dir.path());
        let threads = (1..=WRITERS).map(|seed| {
            let own = (seed % 2 == 0).then(own);
            scope.spawn(move || race(own.as_ref().unwrap_or(shared), seed))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    check(applied, &shared);
}
