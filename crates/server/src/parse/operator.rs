//! The bodies of operators' calls: the party or scope that an action is about.

use api::{Code, Refusal, requests};
use kernel::{Identity, Party, Pause, Paused, Quota, Scope, SetQuota, Span};

use crate::parse;

/// The identity or agent whose leases are revoked.
pub(crate) fn party(body: &requests::Party) -> Result<Party, Refusal> {
    check_one_of(body.identity.is_some(), body.agent_id.is_some())?;
    let namespace = parse::namespace(body.namespace.as_deref())?;
    match (&body.identity, &body.agent_id) {
        (Some(name), _) => Ok(Party::Identity(namespace, identity(name)?)),
        (None, name) => Ok(Party::Agent(namespace, parse::agent(name.as_deref().unwrap_or_default())?)),
    }
}

/// An agent of one namespace, or an identity in one namespace or all.
pub(crate) fn pause(body: &requests::Pause) -> Result<Pause, Refusal> {
    check_one_of(body.identity.is_some(), body.agent_id.is_some())?;
    let namespace = parse::optional_namespace(body.namespace.as_deref())?;
    let whom = if let Some(name) = &body.agent_id {
        let namespace = namespace.map_or_else(|| parse::namespace(None), Ok)?;
        Paused::Agent(namespace, parse::agent(name)?)
    } else {
        let identity = body.identity.as_deref().map(identity).transpose()?;
        Paused::Scope(Scope { namespace, identity })
    };
    Ok(Pause { whom, paused: body.paused })
}

pub(crate) fn quota(body: &requests::Quota) -> Result<SetQuota, Refusal> {
    let namespace = parse::optional_namespace(body.namespace.as_deref())?;
    let identity = body.identity.as_deref().map(identity).transpose()?;
    let quota = Quota {
        leases_max: body.max_leases,
        total_max: body.max_total_ms.map(Span),
        idle_max: body.idle_ms.map(Span),
        acquires_per_second: body.acquires_per_second,
    };
    Ok(SetQuota { scope: Scope { namespace, identity }, quota })
}

fn identity(name: &str) -> Result<Identity, Refusal> {
    Identity::new(name).map_err(|error| Refusal::new(Code::InvalidBody, format!("identity: {error}")))
}

fn check_one_of(identity: bool, agent: bool) -> Result<(), Refusal> {
    if identity == agent {
        return Err(Refusal::new(Code::InvalidBody, "set either identity or agent_id"));
    }
    Ok(())
}
