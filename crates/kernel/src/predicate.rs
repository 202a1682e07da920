//! Predicates: a holder's intended use of a resource, and which uses are compatible.
//!
//! Six predicates fall into three classes by what they conflict with. The relation is symmetric.

/// The intention of one member of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Predicate {
    /// Creates something that others may read: one provider at a time, alongside any readers.
    Provides,
    /// Reads.
    Consumes,
    /// Changes it in place. A plain acquire uses this predicate.
    Mutates,
    /// Deletes it.
    Deletes,
    /// Requires it to exist.
    DependsOn,
    /// Moves it to another name.
    Renames,
}

/// A class of predicates that conflict with the same others. Ordered from weakest to strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Class {
    /// Compatible with readers and one provider.
    Shared,
    /// Compatible with readers, not with another provider.
    Provider,
    /// Compatible with nothing.
    Exclusive,
}

impl Class {
    pub(crate) const ALL: [Class; 3] = [Class::Shared, Class::Provider, Class::Exclusive];

    pub(crate) fn conflicts_with(self, other: Class) -> bool {
        match (self, other) {
            (Class::Provider, Class::Provider) => !planted!(ProvidersShare),
            (Class::Exclusive, _) | (_, Class::Exclusive) => true,
            (Class::Shared | Class::Provider, Class::Shared) | (Class::Shared, Class::Provider) => false,
        }
    }
}

impl Predicate {
    /// All six, in the order of the KLIS-3 lease protocol.
    pub const ALL: [Predicate; 6] = [
        Predicate::Provides,
        Predicate::Consumes,
        Predicate::Mutates,
        Predicate::Deletes,
        Predicate::DependsOn,
        Predicate::Renames,
    ];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Predicate::Provides => "PROVIDES",
            Predicate::Consumes => "CONSUMES",
            Predicate::Mutates => "MUTATES",
            Predicate::Deletes => "DELETES",
            Predicate::DependsOn => "DEPENDS_ON",
            Predicate::Renames => "RENAMES",
        }
    }

    /// The predicate with this name on the wire.
    pub fn parse(text: &str) -> Option<Predicate> {
        Predicate::ALL.into_iter().find(|predicate| predicate.as_str() == text)
    }

    /// Whether two different leases may hold these on one resource at the same time.
    pub fn compatible(self, other: Predicate) -> bool {
        !self.class().conflicts_with(other.class())
    }

    /// Whether it is compatible with no predicate.
    pub fn is_exclusive(self) -> bool {
        self.class() == Class::Exclusive
    }

    /// Whether a holder with this predicate may commit or remove the document.
    pub fn may_write(self) -> bool {
        matches!(self, Predicate::Mutates | Predicate::Deletes)
    }

    /// The weakest predicate that covers both, for a manifest that names an object twice.
    ///
    /// The stricter class covers the weaker one. Two different exclusive predicates do not cover each
    /// other and become MUTATES; of the two shared ones CONSUMES wins, because reading requires existence.
    #[must_use]
    pub fn merge(self, other: Predicate) -> Predicate {
        match (self.class(), other.class()) {
            _ if self == other => self,
            (mine, theirs) if mine > theirs => self,
            (mine, theirs) if mine < theirs => other,
            (Class::Exclusive, _) => Predicate::Mutates,
            _ => Predicate::Consumes,
        }
    }

    pub(crate) fn class(self) -> Class {
        match self {
            Predicate::Consumes | Predicate::DependsOn => Class::Shared,
            Predicate::Provides => Class::Provider,
            Predicate::Mutates | Predicate::Deletes | Predicate::Renames => Class::Exclusive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Predicate::{self, Consumes, Deletes, DependsOn, Mutates, Provides, Renames};

    /// The full table, transcribed from the specification rather than from the code: rows and columns in
    /// the order of `Predicate::ALL`, `+` for compatible.
    const TABLE: [&str; 6] = [
        // PROVIDES CONSUMES MUTATES DELETES DEPENDS_ON RENAMES
        "-+--+-", // PROVIDES
        "++--+-", // CONSUMES
        "------", // MUTATES
        "------", // DELETES
        "++--+-", // DEPENDS_ON
        "------", // RENAMES
    ];

    #[test]
    fn predicates_match_every_cell_of_the_compatibility_table() {
        for (row, mine) in TABLE.iter().zip(Predicate::ALL) {
            for (cell, theirs) in row.bytes().zip(Predicate::ALL) {
                assert_eq!(mine.compatible(theirs), cell == b'+', "{mine:?} with {theirs:?}");
            }
        }
    }

    #[test]
    fn merging_loses_no_protection() {
        for a in Predicate::ALL {
            for b in Predicate::ALL {
                let merged = a.merge(b);
                assert_eq!(merged, b.merge(a));
                for other in Predicate::ALL {
                    let safe = a.compatible(other) && b.compatible(other);
                    assert!(safe || !merged.compatible(other), "{a:?} and {b:?} against {other:?}");
                }
            }
        }
    }

    #[test]
    fn exclusive_predicates_that_differ_become_mutates() {
        assert_eq!(Deletes.merge(Renames), Mutates);
        assert_eq!(Deletes.merge(Mutates), Mutates);
        assert_eq!(Deletes.merge(Provides), Deletes);
        assert_eq!(DependsOn.merge(Consumes), Consumes);
        assert_eq!(Provides.merge(DependsOn), Provides);
    }

    #[test]
    fn names_on_the_wire_round_trip() {
        for predicate in Predicate::ALL {
            assert_eq!(Predicate::parse(predicate.as_str()), Some(predicate));
        }
        assert_eq!(Predicate::parse("mutates"), None);
    }
}
