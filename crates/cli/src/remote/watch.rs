//! `watch`: follows a key.
//!
//! [`Source`] is where news of the key come from: today from asking again and again. What is done with them does not know
//! that, so that a subscription can take its place.

use std::time::Duration;

use api::tell::Described;
use client::{Client, Error, Kind};
use serde::Serialize;

use super::args::{Common, Output, Until, Watch};
use super::documents::now;
use super::views::{look, unused};
use super::{Done, Failure, is_read, prepare, told};
use crate::stderr::{say, shown};

/// How long one answer may take: `--timeout` is for all of them.
const ANSWER: Duration = Duration::from_secs(10);

/// Until what is waited for is so, the time is over, or nobody reads any more.
pub(crate) async fn watch(common: &Common, args: &Watch) -> Done {
    // One try at a time: it goes on trying by itself, and says so.
    let client = prepare(&common.connection)?.answer_timeout(ANSWER).tries(1).build().map_err(told)?;
    let source = Source { client, common, args, pause: Duration::ZERO };
    let mut follower = Follower { output: common.output, until: args.until, last: None, unreachable: None };
    let end = follower.follow(source);
    match common.connection.timeout {
        None => end.await,
        Some(span) => match tokio::time::timeout(span, end).await {
            Ok(done) => done,
            Err(_) => follower.out_of_time(),
        },
    }
}

/// Where news come from.
struct Source<'a> {
    client: Client,
    common: &'a Common,
    args: &'a Watch,
    /// Before the next question.
    pause: Duration,
}

impl Source<'_> {
    /// The key as it is now, which may be as it was.
    async fn next(&mut self) -> Result<Seen, Error> {
        tokio::time::sleep(self.pause).await;
        self.pause = self.args.every;
        let key = &self.args.named.key;
        let known = look(&self.client, self.common, key).await?;
        Ok(Seen::new(known.is_some(), known.unwrap_or_else(|| unused(self.common, key))))
    }
}

/// What counts as a change; a renewal does not. Programs read it: fields are added, and not renamed.
#[derive(PartialEq, Eq, Serialize)]
struct Seen {
    key: String,
    namespace: String,
    held: bool,
    owner: Option<String>,
    /// Of the lease.
    public_id: Option<String>,
    state: Option<String>,
    fencing_token: Option<u64>,
    version: u64,
    state_etag: String,
    waiters: u64,
    /// Whether the server keeps anything for it.
    known: bool,
}

impl Seen {
    fn new(known: bool, key: Described) -> Seen {
        let (public_id, owner) = key.lease.map(|lease| (lease.lease_id, lease.owner)).unzip();
        Seen {
            key: key.key,
            namespace: key.namespace,
            held: public_id.is_some(),
            owner,
            public_id,
            state: key.state,
            fencing_token: key.fencing_token,
            version: key.version,
            state_etag: key.state_etag,
            waiters: key.waiters,
            known,
        }
    }

    /// `first`: nothing was seen before it.
    fn line(&self, output: Output, first: bool) -> String {
        #[derive(Serialize)]
        struct At<'a> {
            time: String,
            #[serde(flatten)]
            seen: &'a Seen,
        }
        match output {
            Output::Json => {
                serde_json::to_string(&At { time: now(), seen: self }).expect("plain data") + "\n"
            }
            Output::Text => shown(&format!("{} {}", now(), self.text(first))) + "\n",
        }
    }

    fn text(&self, first: bool) -> String {
        let Seen { key, version, waiters, .. } = self;
        match (&self.owner, &self.public_id) {
            (Some(owner), Some(public_id)) => {
                let state = self.state.as_deref().unwrap_or_default();
                format!(
                    "held key={key} owner={owner} public_id={public_id} state={state} version={version} waiters={waiters}"
                )
            }
            // Later on it may be a key whose last trace has gone.
            _ if first && !self.known => format!("free, never used: key={key}"),
            _ => format!("free key={key} version={version} waiters={waiters}"),
        }
    }
}

struct Follower {
    output: Output,
    until: Option<Until>,
    last: Option<Seen>,
    /// Why the last question had no answer.
    unreachable: Option<Failure>,
}

impl Follower {
    async fn follow(&mut self, mut source: Source<'_>) -> Done {
        loop {
            match source.next().await {
                Ok(seen) => {
                    if self.unreachable.take().is_some() {
                        say("lockd", "the server answers again");
                    }
                    if self.is_over(seen)? {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == Kind::Unavailable => self.could_not_ask(told(error)),
                Err(error) => return Err(told(error)),
            }
        }
    }

    /// Prints what is new, and tells whether it is what was waited for.
    fn is_over(&mut self, seen: Seen) -> Result<bool, Failure> {
        let (first, changed) = (self.last.is_none(), self.last.as_ref() != Some(&seen));
        if changed && !is_read(seen.line(self.output, first).as_bytes())? {
            return Ok(true);
        }
        let over = match self.until {
            None => false,
            Some(Until::Free) => !seen.held,
            Some(Until::Held) => seen.held,
            Some(Until::Changed) => changed && !first,
        };
        self.last = Some(seen);
        Ok(over)
    }

    /// Says so once, until it has changed.
    fn could_not_ask(&mut self, failure: Failure) {
        if self.unreachable.is_none() {
            say("lockd", &format!("{}; trying again", failure.1));
        }
        self.unreachable = Some(failure);
    }

    fn out_of_time(self) -> Done {
        match (self.unreachable, self.last, self.until) {
            (Some(failure), ..) => Err(failure),
            (None, None, _) => Err((13, "the server did not answer in time".into())),
            (None, Some(_), None) => Ok(()),
            (None, Some(_), Some(_)) => Err((1, "what was waited for did not happen in time".into())),
        }
    }
}
