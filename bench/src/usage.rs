//! CPU time and memory of a process and all its descendants, from `/proc`.
//!
//! CPU time is that of `/proc/PID/stat`: it includes threads and reaped children that have ended, in steps of 10 ms.
//! Left out: shares of the kernel's own threads, which no process owns.

use std::collections::BTreeMap;
use std::time::Duration;

/// CPU time of this process alone.
pub fn own_cpu() -> Duration {
    stat("self").map_or(Duration::ZERO, |stat| stat.cpu)
}

/// CPU time of a process and its descendants.
pub fn tree_cpu(root: u32) -> Duration {
    tree(root).iter().filter_map(|pid| stat(&pid.to_string())).map(|stat| stat.cpu).sum()
}

/// Resident memory of a process and its descendants, in bytes. Pages that processes share are divided among them.
pub fn tree_memory(root: u32) -> u64 {
    tree(root).iter().map(|pid| proportional_memory(*pid)).sum()
}

/// A process and its descendants.
pub fn tree(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return vec![root] };
    for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if let Some(stat) = stat(&pid.to_string()) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        all.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    all
}

struct Stat {
    parent: u32,
    cpu: Duration,
}

fn stat(pid: &str) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name of a program may contain blanks and parentheses: fields are counted after the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Some(Stat { parent: fields.get(1)?.parse().ok()?, cpu: Duration::from_millis(ticks * 10) })
}

fn proportional_memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let pss = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    pss.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194304 1 2 3 4 100 20 3 0 20 0 1 0 5 6 7";
        let stat = parse_stat(text).expect("well-formed");
        assert_eq!((stat.parent, stat.cpu), (7, Duration::from_millis(1230)));
    }

    #[test]
    fn this_process_is_in_its_own_tree() {
        assert!(tree(std::process::id()).contains(&std::process::id()));
        assert!(tree_memory(std::process::id()) > 100_000);
    }
}
