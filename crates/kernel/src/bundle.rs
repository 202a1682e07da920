//! Bundles: the resources of one lease, granted as a whole or not at all.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::fmt;

use crate::predicate::Predicate;
use crate::resource::ResourceName;

/// One resource of a lease, with the holder's intention.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The resource.
    pub resource: ResourceName,
    /// The intention.
    pub predicate: Predicate,
}

impl Member {
    /// Whether two leases with these members would conflict.
    pub fn conflicts_with(&self, other: &Member) -> bool {
        !self.predicate.compatible(other.predicate) && self.resource.overlaps(&other.resource)
    }
}

/// The members of one lease: 1 to [`Bundle::MAX_MEMBERS`], each resource once.
///
/// Members of one bundle may overlap (`/dir/*` and `/dir/a`): a lease never conflicts with itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle(Vec<Member>);

/// Why a list of members is not a valid bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleError {
    /// The list is empty.
    Empty,
    /// The list has more than [`Bundle::MAX_MEMBERS`] members.
    TooMany,
    /// This resource is listed twice.
    Duplicate(ResourceName),
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BundleError::Empty => write!(f, "no resources: a lease needs at least one"),
            BundleError::TooMany => write!(f, "too many resources: max={}", Bundle::MAX_MEMBERS),
            BundleError::Duplicate(name) => write!(f, "resource is listed twice: resource={name}"),
        }
    }
}

impl core::error::Error for BundleError {}

impl Bundle {
    /// The maximum number of members of a lease.
    pub const MAX_MEMBERS: usize = 128;

    /// Keeps the order of the members; rejects duplicate resources.
    pub fn new(members: Vec<Member>) -> Result<Bundle, BundleError> {
        let bundle = Bundle::bounded(members)?;
        match bundle.duplicate() {
            Some(name) => Err(BundleError::Duplicate(name.clone())),
            None => Ok(bundle),
        }
    }

    /// A plain acquire: one key, exclusive.
    pub fn of_key(key: ResourceName) -> Bundle {
        Bundle(alloc::vec![Member { resource: key, predicate: Predicate::Mutates }])
    }

    /// A manifest: a resource that is named twice becomes one member with a predicate that covers both.
    pub fn merged(intents: Vec<Member>) -> Result<Bundle, BundleError> {
        let mut position: BTreeMap<ResourceName, usize> = BTreeMap::new();
        let mut members: Vec<Member> = Vec::new();
        for intent in intents {
            match position.entry(intent.resource.clone()) {
                Entry::Vacant(free) => {
                    free.insert(members.len());
                    members.push(intent);
                }
                Entry::Occupied(taken) => {
                    let member = &mut members[*taken.get()];
                    member.predicate = member.predicate.merge(intent.predicate);
                }
            }
        }
        Bundle::bounded(members)
    }

    /// The members, in the order in which they were given.
    pub fn members(&self) -> &[Member] {
        &self.0
    }

    /// How many claim sets a lease over this bundle joins: one for each member and one for each directory
    /// above it.
    pub(crate) fn weight(&self) -> usize {
        self.0.iter().map(|member| member.resource.weight()).sum()
    }

    /// Whether two leases with these bundles would conflict.
    pub fn conflicts_with(&self, other: &Bundle) -> bool {
        self.0.iter().any(|mine| other.0.iter().any(|theirs| mine.conflicts_with(theirs)))
    }

    fn bounded(members: Vec<Member>) -> Result<Bundle, BundleError> {
        match members.len() {
            0 => Err(BundleError::Empty),
            n if n > Bundle::MAX_MEMBERS => Err(BundleError::TooMany),
            _ => Ok(Bundle(members)),
        }
    }

    fn duplicate(&self) -> Option<&ResourceName> {
        let mut names: Vec<&ResourceName> = self.0.iter().map(|member| &member.resource).collect();
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;

    fn member(predicate: Predicate, text: &str) -> Member {
        Member { resource: ResourceName::parse(text, None).unwrap(), predicate }
    }

    #[test]
    fn empty_oversized_and_duplicate_bundles_are_rejected() {
        assert_eq!(Bundle::new(vec![]), Err(BundleError::Empty));
        let many = |n| (0..n).map(|i| member(Predicate::Consumes, &format!("KEY:k{i}"))).collect::<Vec<_>>();
        assert!(Bundle::new(many(128)).is_ok());
        assert_eq!(Bundle::new(many(129)), Err(BundleError::TooMany));
        let twice = vec![member(Predicate::Consumes, "FILE:/a/b"), member(Predicate::Mutates, "FILE:/a//b")];
        assert!(matches!(Bundle::new(twice), Err(BundleError::Duplicate(_))));
    }

    #[test]
    fn a_manifest_that_names_an_object_twice_merges_the_predicates() {
        let merged = Bundle::merged(vec![
            member(Predicate::Consumes, "FILE:/a"),
            member(Predicate::Deletes, "FILE:/b"),
            member(Predicate::Renames, "FILE:/b"),
            member(Predicate::Provides, "FILE:/a"),
        ])
        .unwrap();
        let expected = [member(Predicate::Provides, "FILE:/a"), member(Predicate::Mutates, "FILE:/b")];
        assert_eq!(merged.members(), expected);
    }

    #[test]
    fn members_conflict_if_names_overlap_and_predicates_are_incompatible() {
        let write = member(Predicate::Mutates, "FILE:/a/b");
        assert!(write.conflicts_with(&member(Predicate::Consumes, "FILE:/a/*")));
        assert!(!write.conflicts_with(&member(Predicate::Consumes, "FILE:/c/*")));
        assert!(!member(Predicate::Provides, "KEY:k").conflicts_with(&member(Predicate::Consumes, "KEY:k")));
    }
}
