//! Many creators of one object at once: exactly one wins.
//!
//! **Invariant.** A round passes if at most one create succeeded, at least two were decided, and the
//! object is the winner's. Undecided creators are judged by reading the object, as a log does it.

use std::fmt::Write as _;

use futures_util::future::join_all;
use store::object::{ObjectsError, ObjectsErrorKind};

use super::CheckName;
use super::session::{Finding, Session};

/// The response to one create.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Created,
    Exists,
    Conflict,
    /// No response, or one that decides nothing.
    Undecided(String),
}

/// Whose object is stored after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Nothing,
    Creator(usize),
    Foreign,
}

impl From<Result<(), ObjectsError>> for Answer {
    fn from(result: Result<(), ObjectsError>) -> Answer {
        match result {
            Ok(()) => Answer::Created,
            Err(error) if error.kind == ObjectsErrorKind::Taken => Answer::Exists,
            Err(error) if error.kind == ObjectsErrorKind::Conflict => Answer::Conflict,
            Err(error) => Answer::Undecided(error.to_string()),
        }
    }
}

pub(super) async fn racing_creators(session: &Session) -> Finding {
    let (rounds, creators) = session.depth.race();
    let mut undecided = 0;
    for round in 0..rounds {
        session.progress(CheckName::RacingCreators);
        match one_round(session, round, creators).await {
            Ok(without_answer) => undecided += without_answer,
            Err(why) => return Finding::failed(format!("{why} round={round}")),
        }
    }
    let mut what = format!("of {creators} creators at once exactly one has won, in {rounds} rounds");
    if session.client_count() > 1 {
        let _ = write!(what, " through {} addresses", session.client_count());
    }
    if undecided > 0 {
        let _ =
            write!(what, "; {undecided} had no response that decides, and were judged by reading the object");
    }
    Finding::passed(what)
}

/// Returns the number of creates that were not decided.
async fn one_round(session: &Session, round: u32, creators: usize) -> Result<usize, String> {
    let name = session.name(&format!("race/{round}"));
    let bytes: Vec<String> =
        (0..creators).map(|creator| format!("creator {creator} of round {round}")).collect();
    let creates: Vec<_> =
        bytes.iter().enumerate().map(|(creator, bytes)| session.create(creator, &name, bytes)).collect();
    let answers: Vec<Answer> = join_all(creates).await.into_iter().map(Answer::from).collect();
    let reader = usize::try_from(round).unwrap_or_default();
    let stored = session.read(reader, &name).await.map_err(|error| error.to_string())?;
    let stored = match stored {
        None => Stored::Nothing,
        Some(stored) => {
            bytes.iter().position(|bytes| bytes.as_bytes() == stored).map_or(Stored::Foreign, Stored::Creator)
        }
    };
    judge(&answers, stored)
}

/// Judges a round. Returns the number of creates that were not decided.
fn judge(answers: &[Answer], stored: Stored) -> Result<usize, String> {
    let won: Vec<usize> = (0..answers.len()).filter(|creator| answers[*creator] == Answer::Created).collect();
    let undecided: Vec<&String> = answers
        .iter()
        .filter_map(|answer| match answer {
            Answer::Undecided(why) => Some(why),
            _ => None,
        })
        .collect();
    let (creators, answered) = (answers.len(), answers.len() - undecided.len());
    match (won.as_slice(), stored) {
        ([_, _, ..], _) => Err(format!("{} of {creators} creates of one object succeeded", won.len())),
        _ if answered < 2 => {
            let why = undecided.first().map_or("", |why| why.as_str());
            Err(format!(
                "only {answered} of {creators} creates had a response that decides, which proves nothing: {why}"
            ))
        }
        (_, Stored::Nothing) => {
            Err("creates of an object were decided, and the object is missing".to_string())
        }
        (_, Stored::Foreign) => Err("the object is that of none of its creators".to_string()),
        ([winner], Stored::Creator(stored)) if *winner != stored => {
            Err("the object is that of another creator than the one whose create succeeded".to_string())
        }
        _ => Ok(undecided.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undecided() -> Answer {
        Answer::Undecided("no response".into())
    }

    #[test]
    fn a_round_is_judged_by_statuses_and_what_is_stored() {
        use Answer::{Conflict, Created, Exists};
        for (answers, stored, expected) in [
            (vec![Created, Exists, Exists], Stored::Creator(0), Ok(0)),
            (vec![Conflict, Created, Conflict], Stored::Creator(1), Ok(0)),
            (vec![Exists, undecided(), Exists], Stored::Creator(1), Ok(1)),
            (vec![Exists, Conflict, Conflict], Stored::Creator(1), Ok(0)),
            (vec![Created, Exists, Created], Stored::Creator(0), Err("2 of 3")),
            (vec![Created, undecided(), undecided()], Stored::Creator(0), Err("only 1 of 3")),
            (vec![undecided(), undecided()], Stored::Nothing, Err("only 0 of 2")),
            (vec![Created, Exists], Stored::Creator(1), Err("another creator")),
            (vec![Created, Exists], Stored::Nothing, Err("missing")),
            (vec![Exists, Exists], Stored::Foreign, Err("none of its creators")),
        ] {
            match (judge(&answers, stored), expected) {
                (Ok(count), Ok(expected)) => assert_eq!(count, expected, "{answers:?}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{answers:?} {why}"),
                (judged, expected) => panic!("{answers:?} {judged:?} {expected:?}"),
            }
        }
    }
}
