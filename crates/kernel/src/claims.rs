//! Claim sets: the leases with a claim on a resource, on a subtree, or beneath a directory.
//!
//! A set almost always has one claim, stored inline. Several are sorted by class, then age, so that the
//! oldest of each class is found in the same time however many leases share the set.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Bound;

use crate::lease::{LeaseRef, Leases};
use crate::predicate::Class;
use crate::units::{Age, Lsn, Time};

#[derive(Default)]
pub(crate) enum ClaimSet {
    #[default]
    None,
    One(Class, LeaseRef),
    /// Boxed: this variant is rare, and nodes must be small.
    #[expect(
        clippy::box_collection,
        reason = "a map takes 24 bytes, a box 8, and there are millions of nodes"
    )]
    Many(Box<BTreeMap<Claim, LeaseRef>>),
}

/// The sort key of a claim. A lease with two members of one class in one set has one claim there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    class: Class,
    age: Age,
    lsn: Lsn,
}

impl Claim {
    pub(crate) fn of(class: Class, lease: LeaseRef, leases: &Leases) -> Claim {
        let row = &leases[lease];
        Claim { class, age: row.wait_age(), lsn: row.lsn }
    }

    /// Sorts before every claim of its class.
    fn first(class: Class) -> Claim {
        Claim { class, age: Age { at: Time(0), tie: 0 }, lsn: Lsn(0) }
    }
}

impl ClaimSet {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, ClaimSet::None)
    }

    pub(crate) fn insert(&mut self, class: Class, lease: LeaseRef, leases: &Leases) {
        match self {
            ClaimSet::None => *self = ClaimSet::One(class, lease),
            ClaimSet::One(held, holder) if *held == class && *holder == lease => {}
            ClaimSet::One(held, holder) => {
                let first = (Claim::of(*held, *holder, leases), *holder);
                let second = (Claim::of(class, lease, leases), lease);
                *self = ClaimSet::Many(Box::new(BTreeMap::from([first, second])));
            }
            ClaimSet::Many(claims) => {
                claims.insert(Claim::of(class, lease, leases), lease);
            }
        }
    }

    /// Does nothing if the claim is already removed: two members may share one. The lease must have the
    /// same age as when the claim was inserted.
    pub(crate) fn remove(&mut self, class: Class, lease: LeaseRef, leases: &Leases) {
        match self {
            ClaimSet::None => {}
            ClaimSet::One(held, holder) => {
                if *held == class && *holder == lease {
                    *self = ClaimSet::None;
                }
            }
            ClaimSet::Many(claims) => {
                claims.remove(&Claim::of(class, lease, leases));
                if claims.len() == 1 {
                    let (claim, holder) = claims.first_key_value().expect("the set has one claim");
                    *self = ClaimSet::One(claim.class, *holder);
                }
            }
        }
    }

    /// The claims of one class, oldest first.
    pub(crate) fn of_class(&self, class: Class) -> impl Iterator<Item = LeaseRef> {
        let one = match self {
            ClaimSet::One(held, lease) if *held == class => Some(*lease),
            _ => None,
        };
        let many = match self {
            ClaimSet::Many(claims) => Some(claims.range(Claim::first(class)..)),
            _ => None,
        };
        let many = many.into_iter().flatten().take_while(move |(claim, _)| claim.class == class);
        one.into_iter().chain(many.map(|(_, lease)| *lease))
    }

    /// The claims that conflict with a new claim of `class`: class by class, oldest first.
    pub(crate) fn conflicting_with(&self, class: Class) -> impl Iterator<Item = LeaseRef> {
        let clashing = Class::ALL.into_iter().filter(move |held| class.conflicts_with(*held));
        clashing.flat_map(|held| self.of_class(held))
    }

    /// Like [`ClaimSet::conflicting_with`], with the sort keys, from after the claim with a given key.
    pub(crate) fn conflicting_after(
        &self,
        class: Class,
        after: Option<(Class, Age, Lsn)>,
        leases: &Leases,
    ) -> impl Iterator<Item = ((Class, Age, Lsn), LeaseRef)> {
        let key = |claim: Claim| (claim.class, claim.age, claim.lsn);
        let one = match self {
            ClaimSet::One(held, lease) => Some((key(Claim::of(*held, *lease, leases)), *lease)),
            _ => None,
        };
        // The classes that conflict are the last ones: the claims before them are not visited.
        let first = Class::ALL.into_iter().find(|held| class.conflicts_with(*held)).map(Claim::first);
        let from = match after {
            Some((class, age, lsn)) => Bound::Excluded(Claim { class, age, lsn }),
            None => first.map_or(Bound::Unbounded, Bound::Included),
        };
        let many = match self {
            ClaimSet::Many(claims) => Some(claims.range((from, Bound::Unbounded))),
            _ => None,
        };
        let many = many.into_iter().flatten().map(move |(claim, lease)| (key(*claim), *lease));
        let left =
            one.into_iter().filter(move |(claim, _)| after.is_none_or(|after| after < *claim)).chain(many);
        left.filter(move |((held, ..), _)| class.conflicts_with(*held))
    }
}
