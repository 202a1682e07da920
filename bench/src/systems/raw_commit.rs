//! A ceiling: raw group commit, without a network, a protocol or a decision.
//!
//! A thread per client appends 128 bytes to a preallocated file and waits until a flush covers them; one thread at a time
//! writes and flushes for all that wait. A cycle is two appends, as acquire and release are.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::histogram::Histogram;
use crate::system::{Client, Durability, Environment, Error, Result, System};

/// The name of the ceiling, which the cycle workload runs by itself.
pub const NAME: &str = "raw-commit";
const RECORD: [u8; 128] = [7; 128];
const FILE_BYTES: usize = 64 << 20;

/// The system: it has no server.
pub(super) struct RawCommit;

#[async_trait]
impl System for RawCommit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn durability(&self) -> Durability {
        Durability::Ceiling
    }

    fn about(&self) -> &'static str {
        "a thread per client appends to a preallocated file, one fdatasync per group; no network, no decision"
    }

    fn version(&self, _environment: &Environment) -> Result<String> {
        Ok("fdatasync".to_string())
    }

    /// A process that does nothing, so that starting and ending are as for all others.
    fn command(&self, _environment: &Environment, _folder: &Path, _port: u16) -> Command {
        let mut command = Command::new("sleep");
        command.arg("infinity");
        command
    }

    async fn set_up(&self, _address: &str) -> Result<()> {
        Ok(())
    }

    async fn connect(&self, _address: &str, _session: Duration) -> Result<Box<dyn Client>> {
        Err(Error::unsupported("no server: only bounds acquire + release"))
    }
}

#[derive(Default)]
struct Queue {
    waiting: usize,
    /// Groups that have begun to be written, and those that are durable.
    begun: u64,
    durable: u64,
    flushing: bool,
}

struct Log {
    file: File,
    queue: Mutex<Queue>,
    flushed: Condvar,
}

impl Log {
    /// Appends one record, and returns when it is durable.
    fn commit(&self) -> Result<()> {
        let mut queue = self.queue.lock().map_err(Error::failed)?;
        queue.waiting += 1;
        let group = queue.begun + 1;
        while queue.durable < group {
            if queue.flushing {
                queue = self.flushed.wait(queue).map_err(Error::failed)?;
                continue;
            }
            queue.flushing = true;
            queue.begun += 1;
            let (number, records) = (queue.begun, std::mem::take(&mut queue.waiting));
            drop(queue);
            let offset = (number as usize * RECORD.len()) % (FILE_BYTES / 2);
            self.file.write_all_at(&RECORD.repeat(records), offset as u64)?;
            self.file.sync_data()?;
            queue = self.queue.lock().map_err(Error::failed)?;
            queue.durable = number;
            queue.flushing = false;
            self.flushed.notify_all();
        }
        Ok(())
    }
}

/// Runs cycles of two commits for so long; returns the latencies of the cycles after the warm-up.
pub fn cycles(folder: &Path, clients: usize, warm_up: Duration, measured: Duration) -> Result<Histogram> {
    let file = File::options().create(true).truncate(true).write(true).open(folder.join("raw"))?;
    file.write_all_at(&vec![0; FILE_BYTES], 0)?;
    file.sync_all()?;
    let log = Log { file, queue: Mutex::default(), flushed: Condvar::new() };
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    let client = || -> Result<Histogram> {
        let mut histogram = Histogram::default();
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            log.commit()?;
            log.commit()?;
            if start.duration_since(began) >= warm_up && began.elapsed() < warm_up + measured {
                histogram.record(start.elapsed());
            }
        }
        Ok(histogram)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        std::thread::sleep(warm_up + measured);
        stop.store(true, Ordering::Relaxed);
        let mut all = Histogram::default();
        for thread in threads {
            all.merge(&thread.join().map_err(|_| Error::failed("a thread panicked"))??);
        }
        Ok(all)
    })
}
