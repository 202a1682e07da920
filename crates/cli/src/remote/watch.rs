//! `watch`: prints the changes of a key.
//!
//! [`KeySource`] produces the states of the key, today by polling. [`KeyWatcher`] does not depend on that, so a
//! subscription can replace it.

use std::time::Duration;

use api::responses::Described;
use lockd_client::{Client, Error, Kind};
use serde::Serialize;

use super::args::{Common, Until, Watch};
use super::environment::key;
use super::events::EventFilter;
use super::views::{describe_or_none, unused_key};
use super::{CommandResult, Failure, Output, client_failure, prepare, usage_error};
use crate::exit_codes;
use crate::output::{event_text, write_stdout};
use crate::stderr::notice;
use crate::times::now;
use crate::untrusted::{escape, quote, word};

/// Timeout of one poll; `--timeout` limits the whole watch.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs until the `--until` condition holds, `--timeout` passes, or the reader closes the pipe.
pub(crate) async fn watch(common: &Common, args: &Watch) -> CommandResult {
    if let Some(prefix) = &args.prefix {
        return watch_prefix(common, prefix, args).await;
    }
    let key = &key(args.key.as_deref())?;
    // One attempt per poll: the watch itself retries, and reports the outage.
    let client = prepare(&common.connection)?
        .answer_timeout(RESPONSE_TIMEOUT)
        .tries(1)
        .build()
        .map_err(client_failure)?;
    let source = KeySource { client, common, key, every: args.every, pause: Duration::ZERO };
    let mut watcher = KeyWatcher { output: common.output, until: args.until, last: None, unreachable: None };
    let end = watcher.follow(source);
    match args.follow.timeout {
        None => end.await,
        Some(span) => match tokio::time::timeout(span, end).await {
            Ok(done) => done,
            Err(_) => watcher.timed_out(),
        },
    }
}

/// The events of all keys that begin with a prefix.
async fn watch_prefix(common: &Common, prefix: &str, args: &Watch) -> CommandResult {
    if matches!(args.until, Some(Until::Free | Until::Held)) {
        let what = "--until free and --until held are about one key; with --prefix use --until changed";
        return Err(usage_error(what));
    }
    let client = prepare(&common.connection)?.build().map_err(client_failure)?;
    let once = args.until == Some(Until::Changed);
    EventFilter { prefix: Some(prefix), once, span: args.follow.timeout }.follow(&client, common, None).await
}

/// Polls the key.
struct KeySource<'a> {
    client: Client,
    common: &'a Common,
    key: &'a str,
    every: Duration,
    /// Delay before the next poll.
    pause: Duration,
}

impl KeySource<'_> {
    /// The current state of the key, changed or not.
    async fn next(&mut self) -> Result<WatchedKey, Error> {
        tokio::time::sleep(self.pause).await;
        self.pause = self.every;
        let key = self.key;
        let known = describe_or_none(&self.client, self.common, key).await?;
        Ok(WatchedKey::new(known.is_some(), known.unwrap_or_else(|| unused_key(self.common, key))))
    }
}

/// The fields whose change is printed; a renewal changes none. The JSON form is stable: fields are added, never renamed.
#[derive(PartialEq, Eq, Serialize)]
struct WatchedKey {
    key: String,
    namespace: String,
    held: bool,
    /// The identity of the holder.
    holder: Option<String>,
    owner: Option<String>,
    /// The lease's public id.
    public_id: Option<String>,
    state: Option<String>,
    fencing_token: Option<u64>,
    version: u64,
    state_etag: String,
    waiters: u64,
    /// Whether the server has a record of the key.
    known: bool,
}

impl WatchedKey {
    fn new(known: bool, key: Described) -> WatchedKey {
        let (public_id, owner) = key.lease.map(|lease| (lease.lease_id, lease.owner)).unzip();
        let holder = key.holder.filter(|_| public_id.is_some());
        WatchedKey {
            key: key.key,
            namespace: key.namespace,
            held: public_id.is_some(),
            holder,
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

    /// One output line; `first` marks the first state of the watch.
    fn line(&self, output: Output, first: bool) -> String {
        #[derive(Serialize)]
        struct Timestamped<'a> {
            time: String,
            #[serde(flatten)]
            state: &'a WatchedKey,
        }
        let text = || escape(&format!("{} {}", now(), self.text(first))) + "\n";
        event_text(output, &Timestamped { time: now(), state: self }, text)
    }

    fn text(&self, first: bool) -> String {
        let WatchedKey { version, waiters, .. } = self;
        let key = word(&self.key);
        match (&self.owner, &self.public_id) {
            (Some(owner), Some(public_id)) => {
                let (owner, state) = (quote(owner), self.state.as_deref().unwrap_or_default());
                let holder = word(self.holder.as_deref().unwrap_or_default());
                format!(
                    "held key={key} holder={holder} owner={owner} public_id={public_id} state={state} version={version} waiters={waiters}"
                )
            }
            // Later an unknown key may be one whose record was garbage-collected.
            _ if first && !self.known => format!("free, never used: key={key}"),
            _ => format!("free key={key} version={version} waiters={waiters}"),
        }
    }
}

struct KeyWatcher {
    output: Output,
    until: Option<Until>,
    last: Option<WatchedKey>,
    /// The failure of the last poll, if it failed.
    unreachable: Option<Failure>,
}

impl KeyWatcher {
    async fn follow(&mut self, mut source: KeySource<'_>) -> CommandResult {
        loop {
            match source.next().await {
                Ok(state) => {
                    if self.unreachable.take().is_some() {
                        notice("lockd", "the server is reachable again");
                    }
                    if self.is_reached(state)? {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == Kind::Unavailable => {
                    self.note_unreachable(client_failure(error));
                }
                Err(error) => return Err(client_failure(error)),
            }
        }
    }

    /// Prints a changed state, and returns whether the watch is over.
    fn is_reached(&mut self, state: WatchedKey) -> Result<bool, Failure> {
        let (first, changed) = (self.last.is_none(), self.last.as_ref() != Some(&state));
        if changed && !write_stdout(state.line(self.output, first).as_bytes())? {
            return Ok(true);
        }
        let reached = match self.until {
            None => false,
            Some(Until::Free) => !state.held,
            Some(Until::Held) => state.held,
            Some(Until::Changed) => changed && !first,
        };
        self.last = Some(state);
        Ok(reached)
    }

    /// Reports an outage once, until the server is reachable again.
    fn note_unreachable(&mut self, failure: Failure) {
        if self.unreachable.is_none() {
            notice("lockd", &format!("{}; retrying", failure.message));
        }
        self.unreachable = Some(failure);
    }

    fn timed_out(self) -> CommandResult {
        match (self.unreachable, self.last, self.until) {
            (Some(failure), ..) => Err(failure),
            (None, None, _) => {
                Err(Failure::new(exit_codes::UNAVAILABLE, "the server did not respond before --timeout"))
            }
            (None, Some(_), None) => Ok(()),
            (None, Some(_), Some(_)) => {
                Err(Failure::new(exit_codes::FAILED, "the --until condition was not met before --timeout"))
            }
        }
    }
}
