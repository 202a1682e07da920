//! Minimises a failure: removes steps while the rest still fails (delta debugging).
//!
//! Steps carry their own LSN and time stamp, and name leases by LSN, so any of them can be removed without
//! changing the meaning of the others.

use crate::Step;

/// Removes as many steps as possible, in ever smaller chunks, while `fails` holds.
pub fn shrink(steps: &[Step], mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut left = steps.to_vec();
    let mut piece = left.len() / 2;
    while piece > 0 {
        let before = left.len();
        let mut at = 0;
        while at < left.len() {
            let end = (at + piece).min(left.len());
            let without: Vec<Step> = left[..at].iter().chain(&left[end..]).cloned().collect();
            if fails(&without) {
                left = without;
            } else {
                at = end;
            }
        }
        if left.len() == before || piece > left.len() {
            piece = (piece / 2).min(left.len());
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{Action, Command, Lsn, Time};

    fn steps(n: u64) -> Vec<Step> {
        let command = Command::internal(Action::Tick);
        (0..n).map(|lsn| Step { lsn: Lsn(lsn), now: Time(0), command: command.clone() }).collect()
    }

    #[test]
    fn only_the_steps_needed_to_fail_remain() {
        let matters = |steps: &[Step]| {
            let has = |lsn| steps.iter().any(|step| step.lsn == Lsn(lsn));
            has(17) && has(61)
        };
        let left: Vec<u64> = shrink(&steps(100), matters).iter().map(|step| step.lsn.0).collect();
        assert_eq!(left, [17, 61]);
    }

    #[test]
    fn a_failure_that_needs_no_step_shrinks_to_nothing() {
        assert!(shrink(&steps(10), |_| true).is_empty());
    }
}
