//! Proof of durability: flushes that a server's processes request per cycle of one client, counted by `strace`.
//!
//! With one client no flush is shared: a system that confirms after a flush needs one for each commit.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::server::Server;
use crate::system::{Error, Result};
use crate::usage;

const CALLS: &str = "trace=fsync,fdatasync,msync,sync_file_range,syncfs";
const CYCLES: u32 = 50;

/// Flushes per cycle. Takes about a second.
pub async fn per_cycle(server: &Server) -> Result<f64> {
    let pid = server.pid().ok_or_else(|| Error::failed("no process"))?;
    let mut client = server.connect(Duration::from_secs(60)).await?;
    let ttl = Duration::from_secs(60);
    for _ in 0..5 {
        let lease = client.acquire("flushes", ttl).await?;
        client.release(lease).await?;
    }
    let output = tempfile::NamedTempFile::new()?;
    let mut tracer = attach(pid, output.path())?;
    tokio::time::sleep(Duration::from_millis(700)).await;
    for _ in 0..CYCLES {
        let lease = client.acquire("flushes", ttl).await?;
        client.release(lease).await?;
    }
    stop(&mut tracer).await?;
    Ok(count(&std::fs::read_to_string(output.path())?) as f64 / f64::from(CYCLES))
}

fn attach(pid: u32, output: &std::path::Path) -> Result<Child> {
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-e", CALLS, "-o"]).arg(output);
    for pid in usage::tree(pid) {
        command.args(["-p", &pid.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|error| Error::Failed(format!("strace: {error}")))
}

async fn stop(tracer: &mut Child) -> Result<()> {
    if let Some(pid) = i32::try_from(tracer.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::INT);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while tracer.try_wait()?.is_none() {
        if Instant::now() > deadline {
            tracer.kill()?;
            tracer.wait()?;
            return Err(Error::failed("strace did not end"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Sums the column `calls` of the table that `strace -c` prints.
fn count(table: &str) -> u64 {
    let rows = table.lines().filter(|line| {
        let call = line.split_whitespace().last().unwrap_or_default();
        call.contains("sync") && !line.contains("total")
    });
    rows.filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_a_table_are_summed() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n \
            90.00    0.010000         100       100           fdatasync\n \
            10.00    0.001000         100         7         1 fsync\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.011000                   107         1 total\n";
        assert_eq!(count(table), 107);
        assert_eq!(count(""), 0);
    }
}
