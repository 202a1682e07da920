//! Where agents meet between their read and their write: the worst moment there is.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::Done;
use crate::tree::Agent;

/// What an agent's process does.
enum News {
    /// It has read, and waits for the others.
    Here(usize),
    /// Its output is over.
    Ended(usize),
}

struct Guest {
    name: &'static str,
    process: Child,
    door: ChildStdin,
}

/// Keeps whoever comes until all are here, or until nobody has come for as long as `patience`, and lets them go on
/// together. Returns when all have ended. With `must_meet`, it is an error if they were not all here at once.
pub(crate) fn host(agents: Vec<(&'static Agent, Child)>, patience: Duration, must_meet: bool) -> Done {
    let (tell, told) = channel();
    let mut guests: Vec<Guest> = Vec::new();
    for (number, (agent, mut process)) in agents.into_iter().enumerate() {
        let (door, says) = (process.stdin.take().expect("piped"), process.stdout.take().expect("piped"));
        let tell = tell.clone();
        std::thread::spawn(move || listen(number, BufReader::new(says), &tell));
        guests.push(Guest { name: agent.name, process, door });
    }
    let (mut here, mut ended) = (Vec::new(), 0);
    while ended < guests.len() {
        match told.recv_timeout(patience) {
            Ok(News::Here(number)) => here.push(number),
            Ok(News::Ended(number)) => {
                ended += 1;
                let status = guests[number].process.wait()?;
                if !status.success() {
                    return Err(format!("{} failed: {status}", guests[number].name).into());
                }
            }
            Err(RecvTimeoutError::Timeout) if must_meet => return Err("they did not meet".into()),
            Err(RecvTimeoutError::Timeout) => let_go(&mut guests, &mut here)?,
            Err(RecvTimeoutError::Disconnected) => {
                unreachable!("this one is told by itself, if by nobody else")
            }
        }
        if here.len() == guests.len() {
            let_go(&mut guests, &mut here)?;
        }
    }
    Ok(())
}

fn let_go(guests: &mut [Guest], here: &mut Vec<usize>) -> Done {
    here.sort_unstable();
    let names: Vec<&str> = here.iter().map(|number| guests[*number].name).collect();
    match names.as_slice() {
        [] => {}
        [alone] => println!("{alone} has read, meets nobody, and writes"),
        several => println!("{} have read, meet, and write", several.join(", ")),
    }
    for number in here.drain(..) {
        writeln!(guests[number].door, "go on")?;
    }
    Ok(())
}

fn listen(number: usize, says: impl BufRead, tell: &Sender<News>) {
    for _ in says.lines().map_while(Result::ok) {
        // Nobody listens any more: then it is over anyway.
        let _ = tell.send(News::Here(number));
    }
    let _ = tell.send(News::Ended(number));
}
