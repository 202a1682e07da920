//! Executes the tool calls of one connection.

use std::time::Duration;

use api::Code;
use api::agents::{self, Intent, ManifestOutcome, ReconciledLease};
use api::responses::Granted;
use cli::remote::agents::AgentRun;
use cli::remote::documents::edited;
use cli::remote::leases::ReleaseOutcome;
use lockd_client::{AcquireOptions, Client, Conditions, DeclareOutcome, DocumentState, Error, Lease};
use rmcp::model::JsonObject;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinSet;

use super::lease_table::{Handle, LeaseInfo, LeaseSlot, LeaseTable};
use super::messages;
use super::tools::{Acquire, Manifest, Reconcile, Release, StateGet, StateUpdate, ToolName, WhoHolds};
use crate::notice;

/// Maximum size of a document in a tool call: a larger one does not fit into a model's context.
pub(super) const DOCUMENT_BYTES_MAX: usize = 256 << 10;

/// The text of a tool result: success or error.
pub(super) type ToolResult = Result<String, String>;

/// The limits of one connection.
pub(super) struct SessionLimits {
    pub(super) leases_max: u32,
    pub(super) wait_max: Duration,
}

/// One connection of an agent.
pub(super) struct AgentSession {
    client: Client,
    namespace: Option<String>,
    agent: AgentRun,
    leases: LeaseTable,
    limits: SessionLimits,
}

impl AgentSession {
    pub(super) fn new(
        client: Client,
        namespace: Option<String>,
        agent: AgentRun,
        limits: SessionLimits,
    ) -> AgentSession {
        AgentSession { client, namespace, agent, leases: LeaseTable::new(limits.leases_max), limits }
    }

    /// Executes a call. Lost leases are collected afterwards, so that the very next response reports them.
    pub(super) async fn call(&self, tool: ToolName, arguments: JsonObject) -> ToolResult {
        let result = self.execute(tool, arguments).await;
        let lost: String =
            self.leases.take_lost().iter().map(|(info, why)| messages::lost(info, *why)).collect();
        match result {
            Ok(text) => Ok(lost + &text),
            Err(text) => Err(lost + &text),
        }
    }

    async fn execute(&self, tool: ToolName, arguments: JsonObject) -> ToolResult {
        match tool {
            ToolName::Acquire => self.acquire(read(arguments)?).await,
            ToolName::Release => self.release(&read(arguments)?).await,
            ToolName::WhoHolds => self.who_holds(&read(arguments)?).await,
            ToolName::Manifest => self.manifest(read(arguments)?).await,
            ToolName::Reconcile => self.reconcile(read(arguments)?).await,
            ToolName::StateGet => self.state_get(&read(arguments)?).await,
            ToolName::StateUpdate => self.state_update(read(arguments)?).await,
        }
    }

    async fn acquire(&self, args: Acquire) -> ToolResult {
        let options = AcquireOptions {
            namespace: self.namespace.clone(),
            ttl: args.ttl_seconds.map(|seconds| Duration::from_secs(seconds.into())),
            owner: Some(self.agent.agent_id.clone()),
            block: self.wait(args.wait_seconds)?,
            session_id: Some(self.agent.session_id.clone()),
            ..AcquireOptions::default()
        };
        let slot = self.slot()?;
        match self.client.acquire(&args.key, &options).await {
            Ok(lease) => self.track(lease, slot).await.map(|info| messages::granted(&info)),
            Err(error) => self.own_lease_or_refusal(&error, |own| own.key.as_ref() == Some(&args.key)),
        }
    }

    async fn manifest(&self, args: Manifest) -> ToolResult {
        let wait = self.wait(args.wait_seconds)?;
        let intents: Vec<Intent> = args.intents.into_iter().map(Intent::from).collect();
        let manifest = agents::Manifest {
            attempt_id: args.attempt_id,
            ttl_ms: args.ttl_seconds.map(|seconds| i64::from(seconds) * 1000),
            reason: args.reason,
            ..self.agent.manifest(self.namespace.clone(), intents)
        };
        let slot = self.slot()?;
        match self.client.declare(&manifest, wait).await {
            Ok(DeclareOutcome::Granted(lease)) => {
                self.track(lease, slot).await.map(|info| messages::granted(&info))
            }
            Ok(DeclareOutcome::NotGranted(judged)) => {
                Err(messages::judged(&judged, &self.to_release(&judged)))
            }
            Err(error) => self.own_lease_or_refusal(&error, |_| false),
        }
    }

    /// The result for a refused request. If a lease of this connection conflicts, it is returned when it is what was
    /// requested, and named otherwise.
    fn own_lease_or_refusal(&self, error: &Error, is_same: impl Fn(&Granted) -> bool) -> ToolResult {
        let own = error.refusal().filter(|refusal| refusal.error == Code::AlreadyHeld);
        let own = own.and_then(|refusal| refusal.hints.lease.as_deref());
        match own.and_then(|own| self.leases.find(|granted| granted.public_id == own)) {
            Some(info) if is_same(&info.granted) => Ok(messages::granted(&info)),
            Some(info) => Err(messages::own_conflict(&info)),
            None => Err(messages::refused(error)),
        }
    }

    /// The leases of this connection that must be released first, as the wait-die verdict lists them.
    fn to_release(&self, judged: &ManifestOutcome) -> Vec<LeaseInfo> {
        let mut live = self.leases.live();
        live.retain(|info| judged.release.contains(&info.granted.public_id));
        live
    }

    async fn track(&self, lease: Lease, slot: LeaseSlot) -> Result<LeaseInfo, String> {
        match self.leases.add(lease, slot) {
            Ok(info) => Ok(info),
            Err((lease, _slot)) => {
                // If the release fails the lease expires.
                let _ = lease.release().await;
                Err("REFUSED: the connection is closing, no lease is held.".into())
            }
        }
    }

    fn slot(&self) -> Result<LeaseSlot, String> {
        let full = || messages::lease_limit(self.limits.leases_max, &self.leases.live());
        self.leases.slot().ok_or_else(full)
    }

    fn wait(&self, seconds: Option<u64>) -> Result<Duration, String> {
        let wait = Duration::from_secs(seconds.unwrap_or_default());
        let max = self.limits.wait_max;
        let too_long = || {
            format!(
                "REFUSED: wait_seconds is at most {}. NEXT: call again with that value, repeatedly if necessary.\n",
                max.as_secs()
            )
        };
        (wait <= max).then_some(wait).ok_or_else(too_long)
    }

    async fn release(&self, args: &Release) -> ToolResult {
        let handles = match args.handle {
            Some(handle) => vec![handle],
            None => self.leases.live().iter().map(|info| info.handle).collect(),
        };
        if handles.is_empty() {
            return Ok("This connection holds no lease, so nothing was released.\n".into());
        }
        let (mut text, mut failed) = (String::new(), false);
        for handle in handles {
            let answer = self.release_one(handle).await;
            failed |= answer.is_err();
            text += answer.as_deref().unwrap_or_else(|text| text);
        }
        if failed { Err(text) } else { Ok(text) }
    }

    async fn release_one(&self, handle: Handle) -> ToolResult {
        let taken = self.leases.take(handle);
        let (lease, _slot) = taken.ok_or_else(|| messages::no_handle(handle, &self.leases.live()))?;
        if let Some(lost) = lease.why_lost() {
            return Ok(format!("handle={handle} was lost before you released it: {lost}.\n"));
        }
        let lease_id = lease.credential().to_string();
        lease.release().await.map_err(|error| messages::not_released(handle, &error))?;
        if let Some(what) = ReleaseOutcome::read(&self.client, &lease_id).await.ended_before() {
            return Ok(format!("LOST: handle={handle}: {what}. Do not use its resources any more.\n"));
        }
        Ok(format!("RELEASED handle={handle}. Do not use its resources any more.\n"))
    }

    async fn who_holds(&self, args: &WhoHolds) -> ToolResult {
        let name = match args.object.strip_prefix("FILE:") {
            Some(path) if !path.starts_with('/') => format!("FILE:{}/{path}", self.agent.root),
            _ => args.object.clone(),
        };
        let state = self.client.resource(&name, self.namespace.as_deref()).await;
        let state = state.map_err(|error| messages::refused(&error))?;
        Ok(messages::resource(&state, &self.leases.live()))
    }

    async fn reconcile(&self, args: Reconcile) -> ToolResult {
        let own: Vec<LeaseInfo> = self.leases.live();
        let rebind = args.lease_ids.is_some();
        let lease_ids =
            args.lease_ids.unwrap_or_else(|| own.iter().map(|info| info.granted.lease_id.clone()).collect());
        if lease_ids.is_empty() {
            return Ok("This connection holds no lease.\n".into());
        }
        if lease_ids.len() > self.limits.leases_max as usize {
            return Err(format!("REFUSED: at most {} lease_ids per call.\n", self.limits.leases_max));
        }
        let (namespace, agent_id) = (self.namespace.clone(), Some(self.agent.agent_id.clone()));
        let request = agents::Reconcile { namespace, agent_id, lease_ids, rebind: Some(rebind) };
        let found = self.client.reconcile(&request).await.map_err(|error| messages::refused(&error))?;
        let mut text = String::new();
        for one in &found {
            text += &self.settle(one, &own).await;
        }
        Ok(text)
    }

    /// Reports one lease. A valid lease of this agent that is not yet in the table is added to it.
    async fn settle(&self, found: &ReconciledLease, own: &[LeaseInfo]) -> String {
        if let Some(info) = own.iter().find(|info| info.granted.lease_id == found.lease_id) {
            return if found.valid { messages::held(info) } else { messages::no_longer_held(found) };
        }
        let Some(slot) = self.leases.slot() else {
            return messages::lease_limit(self.limits.leases_max, own);
        };
        match self.client.resume(found).await {
            Ok(Some(lease)) => match self.track(lease, slot).await {
                Ok(info) => messages::granted(&info),
                Err(text) => text,
            },
            Ok(None) => messages::no_longer_held(found),
            Err(error) => messages::refused(&error),
        }
    }

    async fn state_get(&self, args: &StateGet) -> ToolResult {
        let under = self.over_key(&args.key);
        let read = match &under {
            Some(info) => self.read_held(&args.key, info).await,
            None => self.client.read_public_state(&args.key, self.namespace.as_deref()).await,
        };
        let state = read.map_err(|error| messages::refused(&error))?;
        fits(state.document.as_deref().map_or(0, <[u8]>::len))?;
        Ok(messages::document(&state, under.as_ref()))
    }

    async fn read_held(&self, key: &str, info: &LeaseInfo) -> Result<DocumentState, Error> {
        self.client.read_state(key, Some(&info.granted.namespace), &info.granted.lease_id).await
    }

    async fn state_update(&self, args: StateUpdate) -> ToolResult {
        let info = self.over_key(&args.key).ok_or_else(|| messages::key_not_held(&args.key))?;
        let (document, if_version) = self.new_document(&args, &info).await?;
        fits(document.len())?;
        let conditions = Conditions {
            fencing_token: Some(info.granted.fencing_token),
            if_version,
            release: args.release,
            ..Conditions::default()
        };
        let Granted { namespace, lease_id, .. } = &info.granted;
        let update = self.client.update_state(&args.key, Some(namespace), lease_id, document, &conditions);
        let committed = update.await.map_err(|error| messages::refused(&error))?;
        if args.release {
            // Released with the write already; the release on drop has no effect.
            drop(self.leases.take(info.handle));
        }
        Ok(messages::committed(&committed, args.release.then_some(info.handle)))
    }

    /// The new document, and the version that it must replace.
    async fn new_document(
        &self,
        args: &StateUpdate,
        info: &LeaseInfo,
    ) -> Result<(Vec<u8>, Option<u64>), String> {
        match (&args.document, &args.edits) {
            // A string is JSON text, which keeps numbers that a parsed value would round.
            (Some(Value::String(text)), None) => Ok((text.clone().into_bytes(), args.if_version)),
            (Some(document), None) => Ok((document.to_string().into_bytes(), args.if_version)),
            (None, Some(edits)) => {
                let read = self.read_held(&args.key, info).await;
                let read = read.map_err(|error| messages::refused(&error))?;
                let document = edited(&read.document.unwrap_or_default(), edits);
                let document = document.map_err(|failure| messages::invalid(&failure.message))?;
                Ok((document, args.if_version.or(Some(read.version))))
            }
            _ => Err(messages::invalid("pass either document or edits: one of them, and not both")),
        }
    }

    /// The live lease that covers a key.
    fn over_key(&self, key: &str) -> Option<LeaseInfo> {
        self.leases.find(|granted| {
            let mut members = granted.resources.iter().flatten();
            granted.key.as_deref() == Some(key)
                || members.any(|member| member.kind == "KEY" && member.name == key)
        })
    }

    /// Releases all leases, including those in flight, within the given time.
    pub(super) async fn end(&self, within: Duration) {
        let all = async {
            let mut going: JoinSet<_> = self.leases.close().into_iter().map(release_on_exit).collect();
            while going.join_next().await.is_some() {}
            self.leases.all_free().await;
        };
        if tokio::time::timeout(within, all).await.is_err() {
            notice("not all leases could be released in time; the rest will expire");
        }
    }
}

async fn release_on_exit((lease, _slot): (Lease, LeaseSlot)) {
    let name = lease.granted().public_id.clone();
    if let Err(error) = lease.release().await {
        notice(&format!("a lease could not be released and will expire: {error}: public_id={name}"));
    }
}

fn read<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, String> {
    let arguments = Value::Object(arguments);
    T::deserialize(&arguments).map_err(|error| {
        let what = error.to_string();
        match invalid_field::<T>(&arguments, &what) {
            Some(field) => messages::invalid(&format!("{field}: {what}")),
            None => messages::invalid(&what),
        }
    })
}

/// The field whose value is refused: the one without which the refusal is another. Refusals of names have the name in them.
fn invalid_field<'a, T: DeserializeOwned>(arguments: &'a Value, what: &str) -> Option<&'a str> {
    let arguments = arguments.as_object()?;
    let is_refused_for = |field: &&String| {
        let mut others = arguments.clone();
        others.remove(field.as_str());
        serde_json::from_value::<T>(others.into()).err().is_none_or(|error| error.to_string() != what)
    };
    if what.starts_with("unknown field") {
        return None;
    }
    arguments.keys().find(is_refused_for).map(String::as_str)
}

fn fits(bytes: usize) -> Result<(), String> {
    if bytes <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "REFUSED: the document has {bytes} bytes, the limit is {DOCUMENT_BYTES_MAX}. NEXT: store less in it, or use `lockd \
         client get` and `lockd client update` with a file.\n"
    ))
}
