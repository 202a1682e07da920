//! Does what an agent asks for.

use std::time::Duration;

use api::Code;
use api::agents::{self, Intent, Judged, Reconciled};
use api::tell::Granted;
use cli::remote::agents::Agent;
use cli::remote::documents::edited;
use client::{Client, Conditions, Declared, Error, Lease, Options};
use rmcp::model::JsonObject;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::held::{Handle, Held, Seen, Slot};
use super::messages;
use super::tools::{Acquire, Manifest, Reconcile, Release, StateGet, StateUpdate, Verb, WhoHolds};
use crate::say;

/// The longest document that is read or written here: a model has no room for more.
pub(super) const DOCUMENT_BYTES_MAX: usize = 256 << 10;

/// What an agent is told: it was done, or it was not.
pub(super) type Answer = Result<String, String>;

/// What one connection may use.
pub(super) struct Limits {
    pub(super) leases_max: u32,
    pub(super) wait_max: Duration,
}

/// One connection.
pub(super) struct Desk {
    client: Client,
    namespace: Option<String>,
    agent: Agent,
    held: Held,
    limits: Limits,
}

impl Desk {
    pub(super) fn new(client: Client, namespace: Option<String>, agent: Agent, limits: Limits) -> Desk {
        Desk { client, namespace, agent, held: Held::new(limits.leases_max), limits }
    }

    /// Does it. What was lost is looked for when it is done, so that the answer which says so is the next to go out.
    pub(super) async fn call(&self, verb: Verb, arguments: JsonObject) -> Answer {
        let answer = self.work(verb, arguments).await;
        let lost: String =
            self.held.take_lost().iter().map(|(seen, why)| messages::lost(seen, *why)).collect();
        match answer {
            Ok(text) => Ok(lost + &text),
            Err(text) => Err(lost + &text),
        }
    }

    async fn work(&self, verb: Verb, arguments: JsonObject) -> Answer {
        match verb {
            Verb::Acquire => self.acquire(read(arguments)?).await,
            Verb::Release => self.release(&read(arguments)?).await,
            Verb::WhoHolds => self.who_holds(&read(arguments)?).await,
            Verb::Manifest => self.manifest(read(arguments)?).await,
            Verb::Reconcile => self.reconcile(read(arguments)?).await,
            Verb::StateGet => self.state_get(&read(arguments)?).await,
            Verb::StateUpdate => self.state_update(read(arguments)?).await,
        }
    }

    async fn acquire(&self, args: Acquire) -> Answer {
        let options = Options {
            namespace: self.namespace.clone(),
            ttl: args.ttl_seconds.map(|seconds| Duration::from_secs(seconds.into())),
            owner: Some(self.agent.agent_id.clone()),
            block: self.wait(args.wait_seconds)?,
            session_id: Some(self.agent.session_id.clone()),
            ..Options::default()
        };
        let slot = self.slot()?;
        match self.client.acquire(&args.key, &options).await {
            Ok(lease) => self.keep(lease, slot).await.map(|seen| messages::granted(&seen)),
            Err(error) => self.own(&error, |own| own.key.as_ref() == Some(&args.key)),
        }
    }

    async fn manifest(&self, args: Manifest) -> Answer {
        let patience = self.wait(args.wait_seconds)?;
        let intents: Vec<Intent> = args.intents.into_iter().map(Intent::from).collect();
        let manifest = agents::Manifest {
            attempt_id: args.attempt_id,
            ttl_ms: args.ttl_seconds.map(|seconds| i64::from(seconds) * 1000),
            reason: args.reason,
            ..self.agent.manifest(self.namespace.clone(), intents)
        };
        let slot = self.slot()?;
        match self.client.declare(&manifest, patience).await {
            Ok(Declared::Granted { lease, attempt_id }) => {
                let granted = self.keep(lease, slot).await.map(|seen| messages::granted(&seen))?;
                Ok(format!("{granted}attempt_id={attempt_id}\n"))
            }
            Ok(Declared::Not(judged)) => Err(messages::judged(&judged, &self.to_release(&judged))),
            Err(error) => self.own(&error, |_| false),
        }
    }

    /// If what this connection has is in the way, that is what was asked for, or it is told which it is.
    fn own(&self, error: &Error, is_same: impl Fn(&Granted) -> bool) -> Answer {
        let own = error.refusal().filter(|refusal| refusal.error == Code::AlreadyHeld);
        let own = own.and_then(|refusal| refusal.hints.lease.as_deref());
        match own.and_then(|own| self.held.find(|granted| granted.public_id == own)) {
            Some(seen) if is_same(&seen.granted) => Ok(messages::granted(&seen)),
            Some(seen) => Err(messages::in_its_own_way(&seen)),
            None => Err(messages::refused(error)),
        }
    }

    /// The session's leases that have to be given back first, as the agent knows them.
    fn to_release(&self, judged: &Judged) -> Vec<Seen> {
        let mut live = self.held.live();
        live.retain(|seen| judged.release.contains(&seen.granted.public_id));
        live
    }

    async fn keep(&self, lease: Lease, slot: Slot) -> Result<Seen, String> {
        match self.held.keep(lease, slot) {
            Ok(seen) => Ok(seen),
            Err((lease, _slot)) => {
                // What cannot be given back runs out by itself.
                let _ = lease.release().await;
                Err("REFUSED: the connection is ending, and nothing is held.".into())
            }
        }
    }

    fn slot(&self) -> Result<Slot, String> {
        let full = || messages::full(self.limits.leases_max, &self.held.live());
        self.held.slot().ok_or_else(full)
    }

    fn wait(&self, seconds: Option<u64>) -> Result<Duration, String> {
        let wait = Duration::from_secs(seconds.unwrap_or_default());
        let most = self.limits.wait_max;
        let too_long = || {
            format!(
                "REFUSED: wait_seconds is at most {}. NEXT: call again with that, and again if need be.\n",
                most.as_secs()
            )
        };
        (wait <= most).then_some(wait).ok_or_else(too_long)
    }

    async fn release(&self, args: &Release) -> Answer {
        let handles = match args.handle {
            Some(handle) => vec![handle],
            None => self.held.live().iter().map(|seen| seen.handle).collect(),
        };
        if handles.is_empty() {
            return Ok("Nothing is held by this connection, so nothing was released.\n".into());
        }
        let (mut text, mut failed) = (String::new(), false);
        for handle in handles {
            let answer = self.give_up(handle).await;
            failed |= answer.is_err();
            text += answer.as_deref().unwrap_or_else(|text| text);
        }
        if failed { Err(text) } else { Ok(text) }
    }

    async fn give_up(&self, handle: Handle) -> Answer {
        let taken = self.held.take(handle);
        let (lease, _slot) = taken.ok_or_else(|| messages::no_handle(handle, &self.held.live()))?;
        if let Some(lost) = lease.why_lost() {
            return Ok(format!("handle={handle} was lost before you released it: {lost}.\n"));
        }
        lease.release().await.map_err(|error| messages::not_released(handle, &error))?;
        Ok(format!("RELEASED handle={handle}. Do not touch what it covered any more.\n"))
    }

    async fn who_holds(&self, args: &WhoHolds) -> Answer {
        let name = match args.object.strip_prefix("FILE:") {
            Some(path) if !path.starts_with('/') => format!("FILE:{}/{path}", self.agent.root),
            _ => args.object.clone(),
        };
        let state = self.client.resource(&name, self.namespace.as_deref()).await;
        let state = state.map_err(|error| messages::refused(&error))?;
        Ok(messages::resource(&state, &self.held.live()))
    }

    async fn reconcile(&self, args: Reconcile) -> Answer {
        let own: Vec<Seen> = self.held.live();
        let rebind = args.lease_ids.is_some();
        let lease_ids =
            args.lease_ids.unwrap_or_else(|| own.iter().map(|seen| seen.granted.lease_id.clone()).collect());
        if lease_ids.is_empty() {
            return Ok("Nothing is held by this connection.\n".into());
        }
        if lease_ids.len() > self.limits.leases_max as usize {
            return Err(format!("REFUSED: at most {} lease_ids at once.\n", self.limits.leases_max));
        }
        let (namespace, agent_id) = (self.namespace.clone(), Some(self.agent.agent_id.clone()));
        let ask = agents::Reconcile { namespace, agent_id, lease_ids, rebind: Some(rebind) };
        let found = self.client.reconcile(&ask).await.map_err(|error| messages::refused(&error))?;
        let mut text = String::new();
        for one in &found {
            text += &self.settle(one, &own).await;
        }
        Ok(text)
    }

    /// What is true of one lease. If it is this agent's, and not yet this connection's, it is from here on.
    async fn settle(&self, found: &Reconciled, own: &[Seen]) -> String {
        if let Some(seen) = own.iter().find(|seen| seen.granted.lease_id == found.lease_id) {
            return if found.valid { messages::held(seen) } else { messages::gone(found) };
        }
        let Some(slot) = self.held.slot() else { return messages::full(self.limits.leases_max, own) };
        match self.client.resume(found).await {
            Ok(Some(lease)) => match self.keep(lease, slot).await {
                Ok(seen) => messages::granted(&seen),
                Err(text) => text,
            },
            Ok(None) => messages::gone(found),
            Err(error) => messages::refused(&error),
        }
    }

    async fn state_get(&self, args: &StateGet) -> Answer {
        let under = self.over_key(&args.key);
        let read = match &under {
            Some(seen) => self.client.get_state(&args.key, &seen.granted.lease_id).await,
            None => self.client.get_public_state(&args.key, self.namespace.as_deref()).await,
        };
        let state = read.map_err(|error| messages::refused(&error))?;
        fits(state.document.as_deref().map_or(0, <[u8]>::len))?;
        Ok(messages::document(&state, under.as_ref()))
    }

    async fn state_update(&self, args: StateUpdate) -> Answer {
        let seen = self.over_key(&args.key).ok_or_else(|| messages::no_lease_of(&args.key))?;
        let (document, if_version) = self.new_document(&args, &seen).await?;
        fits(document.len())?;
        let conditions = Conditions {
            fencing_token: Some(seen.granted.fencing_token),
            if_version,
            release: args.release,
            ..Conditions::default()
        };
        let update = self.client.update_state(&args.key, &seen.granted.lease_id, document, &conditions);
        let committed = update.await.map_err(|error| messages::refused(&error))?;
        if args.release {
            // It is given back already: whoever drops it gives it back again, which does nothing.
            drop(self.held.take(seen.handle));
        }
        Ok(messages::committed(&committed, args.release.then_some(seen.handle)))
    }

    /// The document, and the version that it is to replace.
    async fn new_document(&self, args: &StateUpdate, seen: &Seen) -> Result<(Vec<u8>, Option<u64>), String> {
        match (&args.document, &args.edits) {
            (Some(document), None) => Ok((document.clone().into_bytes(), args.if_version)),
            (None, Some(edits)) => {
                let read = self.client.get_state(&args.key, &seen.granted.lease_id).await;
                let read = read.map_err(|error| messages::refused(&error))?;
                let document = edited(&read.document.unwrap_or_default(), edits);
                let document = document.map_err(|(_, what)| messages::invalid(&what))?;
                Ok((document, args.if_version.or(Some(read.version))))
            }
            _ => Err(messages::invalid("either document or edits, and not both")),
        }
    }

    /// The lease that covers a key.
    fn over_key(&self, key: &str) -> Option<Seen> {
        self.held.find(|granted| {
            let mut members = granted.resources.iter().flatten();
            granted.key.as_deref() == Some(key)
                || members.any(|member| member.kind == "KEY" && member.name == key)
        })
    }

    /// Gives everything back, also what is still on its way, for as long as there is time.
    pub(super) async fn end(&self, within: Duration) {
        let all = async {
            let mut going: JoinSet<_> = self.held.close().into_iter().map(give_back).collect();
            while going.join_next().await.is_some() {}
            self.held.all_free().await;
        };
        if tokio::time::timeout(within, all).await.is_err() {
            say("not all leases could be given back in time; they run out by themselves");
        }
    }
}

async fn give_back((lease, _slot): (Lease, Slot)) {
    let name = lease.granted().public_id.clone();
    if let Err(error) = lease.release().await {
        say(&format!("a lease could not be given back, and runs out by itself: {error}: public_id={name}"));
    }
}

fn read<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, String> {
    serde_json::from_value(arguments.into()).map_err(|error| messages::invalid(&error.to_string()))
}

fn fits(bytes: usize) -> Result<(), String> {
    if bytes <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "REFUSED: the document has {bytes} bytes, and {DOCUMENT_BYTES_MAX} fit here. NEXT: keep less in it, or use `lockd client get` \
         and `lockd client update` with a file.\n"
    ))
}
