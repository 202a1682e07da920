//! A manifest: everything that an agent will touch, requested as one lease.

use std::fmt::Display;

use api::{Code, Refusal, agents};
use identity::Right;
use kernel::{
    Age, AgentName, Bundle, LeaseRequest, Member, Namespace, OnExpiry, Reason, ResourceName, SessionName,
    Span,
};

use crate::backend::shards::RequestLimits;
use crate::parse;
use crate::parse::lease_request::{self, invalid};
use crate::peer::Peer;

/// A well-formed manifest, of a peer that may write in its namespace.
pub(crate) struct ManifestRequest {
    pub(crate) namespace: Namespace,
    pub(crate) agent: AgentName,
    session: SessionName,
    bundle: Bundle,
    ttl: Span,
    /// The longest wait; `None`: do not wait.
    pub(crate) wait: Option<Span>,
    reason: Option<Reason>,
}

impl ManifestRequest {
    pub(crate) fn parse(
        settings: &RequestLimits,
        peer: &Peer,
        body: &agents::Manifest,
    ) -> Result<ManifestRequest, Refusal> {
        let namespace = parse::namespace(body.namespace.as_deref())?;
        parse::require_right(peer, &namespace, Right::Write)?;
        let wait = body.wait_ms.filter(|ms| *ms > 0).map(|ms| Span(ms).min(settings.acquire_block));
        let reason = |body: &agents::Manifest| body.reason.as_deref().map(Reason::new).transpose();
        Ok(ManifestRequest {
            agent: parse::agent(&body.agent_id)?,
            session: SessionName::new(&body.session_id).map_err(|error| invalid("session_id", &error))?,
            bundle: bundle(body)?,
            ttl: lease_request::ttl(settings, None, body.ttl_ms)?,
            wait,
            reason: reason(body).map_err(|error| invalid("reason", &error))?,
            namespace,
        })
    }

    /// The lease that is requested, by an attempt of this age.
    pub(crate) fn into_grant(self, age: Age) -> LeaseRequest {
        LeaseRequest {
            namespace: self.namespace,
            bundle: self.bundle,
            ttl: self.ttl,
            on_expiry: OnExpiry::Free,
            owner: None,
            agent: Some(self.agent),
            session: Some(self.session),
            attempt: Some(age),
            reason: self.reason,
            metadata: None,
        }
    }
}

fn bundle(body: &agents::Manifest) -> Result<Bundle, Refusal> {
    if let Some(root) = &body.root {
        check_root(root)?;
    }
    let members = body.intents.iter().map(|intent| member(intent, body.root.as_deref()));
    let members = members.collect::<Result<Vec<Member>, Refusal>>()?;
    Bundle::merged(members).map_err(|error| invalid("intents", &error))
}

/// Checked even if no intent is relative: an invalid root would fail the first manifest with a relative intent.
fn check_root(root: &str) -> Result<(), Refusal> {
    let refuse =
        |why: &dyn Display| Refusal::new(Code::InvalidKey, format!("invalid root: {why}: root={root}"));
    let name = ResourceName::new(ResourceName::FILE, root).map_err(|error| refuse(&error))?;
    if name.name().ends_with('*') { Err(refuse(&"a directory has no '*'")) } else { Ok(()) }
}

fn member(intent: &agents::Intent, root: Option<&str>) -> Result<Member, Refusal> {
    let resource = ResourceName::parse(&intent.object, root)
        .map_err(|error| Refusal::new(Code::InvalidKey, format!("{error}: object={}", intent.object)))?;
    Ok(Member { resource, predicate: lease_request::predicate(&intent.predicate)? })
}
