//! The target of an operator's act, for the log: the handler names it, the observer writes it.
//!
//! A refused act is logged as well, with what its request named.

use std::sync::{Arc, OnceLock};

use kernel::{AgentName, Identity, LeaseId, LeaseView, Namespace, Party, Pause, Paused, Scope};

/// All namespaces or identities, in the log.
const ALL: &str = "*";

/// The target; a part that does not apply is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ActTarget {
    /// `*` for all.
    pub(crate) namespace: Option<String>,
    /// The holder, or the identity that is named; `*` for all.
    pub(crate) identity: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) lease: Option<LeaseId>,
    /// The first resource of the lease, as in `KEY:orders`.
    pub(crate) resource: Option<String>,
    /// The number of its resources.
    pub(crate) resources: Option<usize>,
    /// Whether grants are paused or resumed.
    pub(crate) paused: Option<bool>,
}

/// Where the handler of a request leaves the target.
#[derive(Clone, Default)]
pub(crate) struct TargetSlot(Arc<OnceLock<ActTarget>>);

impl TargetSlot {
    /// Names the target; the first name counts.
    pub(crate) fn name(&self, target: ActTarget) {
        let _ = self.0.set(target);
    }

    pub(crate) fn get(&self) -> Option<&ActTarget> {
        self.0.get()
    }
}

impl ActTarget {
    pub(crate) fn lease(view: &LeaseView) -> ActTarget {
        ActTarget {
            namespace: Some(view.namespace.as_str().to_string()),
            identity: Some(view.identity.as_str().to_string()),
            agent: view.details.agent.as_ref().map(|agent| agent.as_str().to_string()),
            lease: Some(view.id),
            resource: view.members.first().map(|member| member.resource.as_str().to_string()),
            resources: Some(view.members.len()),
            paused: None,
        }
    }

    /// A lease of which the operator may not know more.
    pub(crate) fn unknown_lease(id: LeaseId) -> ActTarget {
        ActTarget { lease: Some(id), ..ActTarget::default() }
    }

    pub(crate) fn namespace(namespace: &Namespace) -> ActTarget {
        ActTarget { namespace: Some(namespace.as_str().to_string()), ..ActTarget::default() }
    }

    pub(crate) fn agent(namespace: &Namespace, agent: &AgentName, paused: Option<bool>) -> ActTarget {
        let agent = Some(agent.as_str().to_string());
        ActTarget { agent, paused, ..ActTarget::namespace(namespace) }
    }

    pub(crate) fn party(party: &Party) -> ActTarget {
        match party {
            Party::Identity(namespace, identity) => {
                let identity = Some(identity.as_str().to_string());
                ActTarget { identity, ..ActTarget::namespace(namespace) }
            }
            Party::Agent(namespace, agent) => ActTarget::agent(namespace, agent, None),
        }
    }

    pub(crate) fn pause(pause: &Pause) -> ActTarget {
        match &pause.whom {
            Paused::Agent(namespace, agent) => ActTarget::agent(namespace, agent, Some(pause.paused)),
            Paused::Scope(scope) => ActTarget::scope(scope, Some(pause.paused)),
        }
    }

    pub(crate) fn scope(scope: &Scope, paused: Option<bool>) -> ActTarget {
        ActTarget {
            namespace: Some(scope.namespace.as_ref().map_or(ALL, Namespace::as_str).to_string()),
            identity: Some(scope.identity.as_ref().map_or(ALL, Identity::as_str).to_string()),
            paused,
            ..ActTarget::default()
        }
    }
}
