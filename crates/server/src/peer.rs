//! Who is asking, and what it may.

use std::collections::BTreeMap;

use kernel::{Identity, Namespace};

/// Who is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Whose leases are whose.
    pub identity: Identity,
    /// What it is.
    pub role: Role,
    /// What it may, and where.
    pub rights: Rights,
}

/// What somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Holds leases.
    Worker,
    /// May take leases back, and set quotas.
    Operator,
}

/// Something that may be allowed in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// To look at keys and leases, and to read documents under a lease.
    Read,
    /// To take leases and write under them.
    Write,
    /// To read documents without a lease.
    PublicRead,
    /// To leave resources taken after expiry, until an operator frees them.
    ManualHold,
}

/// What is allowed, by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// In every namespace.
    everywhere: Vec<Right>,
    by_namespace: BTreeMap<Namespace, Vec<Right>>,
}

impl Rights {
    /// Everything, everywhere.
    pub fn all() -> Rights {
        let everywhere = vec![Right::Read, Right::Write, Right::PublicRead, Right::ManualHold];
        Rights { everywhere, by_namespace: BTreeMap::new() }
    }

    /// Adds a right in a namespace; in every one if none is named.
    pub fn add(&mut self, namespace: Option<&Namespace>, right: Right) {
        match namespace {
            None => self.everywhere.push(right),
            Some(namespace) => self.by_namespace.entry(namespace.clone()).or_default().push(right),
        }
    }

    /// Is it allowed there?
    pub fn allow(&self, namespace: &Namespace, right: Right) -> bool {
        let there = self.by_namespace.get(namespace);
        self.everywhere.contains(&right) || there.is_some_and(|rights| rights.contains(&right))
    }
}

impl Peer {
    /// Everybody, where nobody is asked who it is: an operator on the same machine, a worker from elsewhere.
    pub fn anonymous(role: Role) -> Peer {
        let identity = Identity::new("anonymous").expect("a valid name");
        Peer { identity, role, rights: Rights::all() }
    }
}
