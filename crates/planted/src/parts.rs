//! The parts of the test suite that `sim planted` runs, and by which the table of faults says what catches a fault.
//!
//! They are here, and not beside the command, so that their test runs without the faults: a table that names a part that is
//! not here makes the command refuse to start.

/// A part of the test suite, which a fault names in [`Fault::caught_by`](crate::Fault::caught_by).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SuitePart {
    /// `trial`: `sim --hours 0`, the kernel against its model.
    Trial,
    /// `servers`: `sim --steps 0`, whole servers.
    Servers,
    /// `crate/module`: the tests of one module, or `crate/lib` for the unit tests. The module is an integration-test
    /// binary of that name, or a module of the binary `it`.
    Tests(&'static str, &'static str),
}

/// All parts, the fastest first.
pub const PARTS: &[SuitePart] = &[
    SuitePart::Trial,
    SuitePart::Servers,
    SuitePart::Tests("sim", "agents"),
    SuitePart::Tests("kernel", "lib"),
    SuitePart::Tests("kernel", "regressions"),
    SuitePart::Tests("kernel", "pages"),
    SuitePart::Tests("store", "lib"),
    SuitePart::Tests("store", "damage"),
    SuitePart::Tests("store", "eviction"),
    SuitePart::Tests("store", "inspect"),
    SuitePart::Tests("store", "cut"),
    SuitePart::Tests("store", "preparation"),
    SuitePart::Tests("store", "store_file"),
    SuitePart::Tests("engine", "lib"),
    SuitePart::Tests("engine", "shard"),
    SuitePart::Tests("engine", "waiting"),
    SuitePart::Tests("engine", "waiting_cost"),
    SuitePart::Tests("engine", "deadlock"),
    SuitePart::Tests("engine", "attempts"),
    SuitePart::Tests("engine", "batch_bound"),
    SuitePart::Tests("engine", "rates"),
    SuitePart::Tests("engine", "memory"),
    SuitePart::Tests("engine", "authorization"),
    SuitePart::Tests("engine", "sequencer"),
    SuitePart::Tests("engine", "follower"),
    SuitePart::Tests("engine", "linearizable"),
    SuitePart::Tests("engine", "retention"),
    SuitePart::Tests("engine", "checkpointing"),
    SuitePart::Tests("engine", "damaged_snapshots"),
    SuitePart::Tests("engine", "crashes"),
    SuitePart::Tests("backup", "online"),
    SuitePart::Tests("backup", "damage"),
    SuitePart::Tests("backup", "restored"),
    SuitePart::Tests("sim", "object_takeover"),
    SuitePart::Tests("engine", "engine"),
    SuitePart::Tests("engine", "hand_off"),
    SuitePart::Tests("engine", "shuttle"),
    SuitePart::Tests("sim", "store_recovery"),
    SuitePart::Tests("sim", "store_orders"),
    SuitePart::Tests("sim", "store_crashes"),
    SuitePart::Tests("sim", "crash_points"),
    SuitePart::Tests("server", "lib"),
    SuitePart::Tests("server", "reported_times"),
    SuitePart::Tests("server", "dropped_requests"),
    SuitePart::Tests("server", "readiness"),
    SuitePart::Tests("server", "holds"),
    SuitePart::Tests("server", "memory_limits"),
];

impl SuitePart {
    /// The part of this name: `trial`, `servers` or `crate/module`.
    pub fn named(name: &str) -> Option<SuitePart> {
        PARTS.iter().copied().find(|part| match part {
            SuitePart::Trial => name == "trial",
            SuitePart::Servers => name == "servers",
            SuitePart::Tests(package, module) => name.split_once('/') == Some((package, module)),
        })
    }

    /// The arguments of `sim` that run it.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            SuitePart::Trial => &["--seeds", "400", "--hours", "0", "--rounds", "0"],
            SuitePart::Servers => &["--seeds", "400", "--steps", "0", "--hours", "0.05", "--rounds", "0"],
            SuitePart::Tests(..) => &[],
        }
    }
}

impl std::fmt::Display for SuitePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SuitePart::Trial | SuitePart::Servers => write!(f, "sim {}", self.arguments().join(" ")),
            SuitePart::Tests(package, "lib") => write!(f, "cargo test -p lockd-{package} --lib"),
            SuitePart::Tests(package, module) => write!(f, "cargo test -p lockd-{package} {module}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    /// Two faults named parts that were not in the list: the command refused to start, for all faults, and the test that
    /// would have shown it needed a feature that no other test has.
    #[test]
    fn the_table_names_only_parts_of_the_suite() {
        for fault in Fault::ALL {
            assert!(SuitePart::named(fault.caught_by()).is_some(), "{fault:?}: {}", fault.caught_by());
        }
    }

    /// Eight faults had no row in the page: it had not been generated since they were written.
    #[test]
    fn the_page_has_a_row_for_each_fault_with_what_catches_it() {
        let page = include_str!("../../../docs/internals/planted-bugs.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        for fault in Fault::ALL {
            let begin = format!("| `{}` | {} |", fault.name(), fault.effect());
            let row = rows.iter().find(|row| row.starts_with(&begin));
            assert!(
                row.is_some_and(|row| !row.contains("| nothing |")),
                "no row, or another effect: {fault:?}"
            );
        }
        assert_eq!(rows.len(), Fault::ALL.len(), "rows of faults that do not exist");
    }
}
