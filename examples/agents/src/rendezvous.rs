//! The rendezvous of the agents between their read and their write, where a race does the most harm.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::ExampleResult;
use crate::tree::Agent;

/// An event of an agent's process.
enum ProcessEvent {
    /// It has read its files, and waits to continue.
    Waiting(usize),
    /// Its output has ended.
    Ended(usize),
}

struct AgentProcess {
    name: &'static str,
    process: Child,
    input: ChildStdin,
}

/// Holds the agents at the rendezvous until all are waiting, or until no agent has arrived for `timeout`, and lets them
/// continue together. Returns when all have ended. With `must_meet`, it is an error if they never wait at once.
pub(crate) fn host(
    agents: Vec<(&'static Agent, Child)>,
    timeout: Duration,
    must_meet: bool,
) -> ExampleResult {
    let (send, receive) = channel();
    let mut running: Vec<AgentProcess> = Vec::new();
    for (number, (agent, mut process)) in agents.into_iter().enumerate() {
        let (input, output) = (process.stdin.take().expect("piped"), process.stdout.take().expect("piped"));
        let send = send.clone();
        std::thread::spawn(move || listen(number, BufReader::new(output), &send));
        running.push(AgentProcess { name: agent.name, process, input });
    }
    let (mut waiting, mut ended) = (Vec::new(), 0);
    while ended < running.len() {
        match receive.recv_timeout(timeout) {
            Ok(ProcessEvent::Waiting(number)) => waiting.push(number),
            Ok(ProcessEvent::Ended(number)) => {
                ended += 1;
                let status = running[number].process.wait()?;
                if !status.success() {
                    return Err(format!("{} failed: {status}", running[number].name).into());
                }
            }
            Err(RecvTimeoutError::Timeout) if must_meet => return Err("the agents did not meet".into()),
            Err(RecvTimeoutError::Timeout) => resume(&mut running, &mut waiting)?,
            Err(RecvTimeoutError::Disconnected) => {
                unreachable!("this function holds a sender")
            }
        }
        if waiting.len() == running.len() {
            resume(&mut running, &mut waiting)?;
        }
    }
    Ok(())
}

fn resume(running: &mut [AgentProcess], waiting: &mut Vec<usize>) -> ExampleResult {
    waiting.sort_unstable();
    let names: Vec<&str> = waiting.iter().map(|number| running[*number].name).collect();
    match names.as_slice() {
        [] => {}
        [alone] => println!("{alone} has read, waits alone, and writes"),
        several => println!("{} have read, wait together, and write", several.join(", ")),
    }
    for number in waiting.drain(..) {
        writeln!(running[number].input, "continue")?;
    }
    Ok(())
}

fn listen(number: usize, output: impl BufRead, send: &Sender<ProcessEvent>) {
    for _ in output.lines().map_while(Result::ok) {
        // Fails after `host` has returned, when events no longer matter.
        let _ = send.send(ProcessEvent::Waiting(number));
    }
    let _ = send.send(ProcessEvent::Ended(number));
}
