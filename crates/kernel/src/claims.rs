//! The leases with a claim on one place: a resource, a subtree, or all beneath a directory.
//!
//! Almost always there is one, and it is kept inline. Several are kept in order of class, then age,
//! so that the oldest of each class is at hand however many share the place.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::lease::{LeaseRef, Leases};
use crate::predicate::Class;
use crate::units::{Age, Lsn, Time};

#[derive(Default)]
pub(crate) enum ClaimSet {
    #[default]
    None,
    One(Class, LeaseRef),
    /// Boxed, since it is rare, and a node must be small.
    #[expect(
        clippy::box_collection,
        reason = "a map takes 24 bytes, a box 8, and there are millions of nodes"
    )]
    Many(Box<BTreeMap<Claim, LeaseRef>>),
}

/// Orders claims. A lease with two members of one class on one place has one claim there.
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

    /// Nothing, if it is gone already: the claim of two members goes with the first. The lease must
    /// be as old as it was when the claim was made.
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
                    let (claim, holder) = claims.first_key_value().expect("one claim is left");
                    *self = ClaimSet::One(claim.class, *holder);
                }
            }
        }
    }

    /// The claims of one class, the oldest first.
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

    /// The claims that a new one of `class` would clash with: class by class, the oldest first.
    pub(crate) fn conflicting_with(&self, class: Class) -> impl Iterator<Item = LeaseRef> {
        let clashing = Class::ALL.into_iter().filter(move |held| class.conflicts_with(*held));
        clashing.flat_map(|held| self.of_class(held))
    }

    /// All claims, class by class, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Class, LeaseRef)> {
        Class::ALL.into_iter().flat_map(|class| self.of_class(class).map(move |lease| (class, lease)))
    }
}
