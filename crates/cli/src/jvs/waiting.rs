//! `--wait`: acquires the lock, waits while another session holds it, and says on standard error for whom.

use std::cell::RefCell;
use std::time::Duration;

use cli::remote::duration;
use cli::stderr::notice;
use cli::times::ms_text;
use cli::untrusted::word;
use cli::wait_notices::StatusLine;
use worktree::error::Result;
use worktree::lock::{AcquireRequest, AcquiredLock};
use worktree::waiting::{WaitRequest, WaitStatus};
use worktree::worktree::Worktree;

use crate::context::RepoContext;

/// The longest wait of `--wait`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    Forever,
    After(Duration),
}

#[derive(clap::Args)]
pub(crate) struct WaitArg {
    /// Wait while another session holds the lock: for this long (as 30s, 5m or 1h), or without a limit if no
    /// duration is given. Waiters on one host get the lock in the order in which they came.
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = FOREVER,
        hide_default_value = true,
        value_parser = wait_limit
    )]
    wait: Option<WaitLimit>,
}

const FOREVER: &str = "forever";

fn wait_limit(text: &str) -> std::result::Result<WaitLimit, String> {
    if text == FOREVER { Ok(WaitLimit::Forever) } else { duration(text).map(WaitLimit::After) }
}

impl WaitArg {
    /// Acquires the lock at once, or waits for it if `--wait` is given.
    pub(crate) fn acquire(
        &self,
        context: &RepoContext,
        worktree: &Worktree,
        request: &AcquireRequest<'_>,
    ) -> Result<AcquiredLock> {
        let Some(limit) = self.wait else { return context.repo.acquire(worktree, request) };
        let limit_ms = match limit {
            WaitLimit::Forever => None,
            WaitLimit::After(limit) => Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        };
        let line = StatusLine::for_stderr();
        let last = RefCell::new(String::new());
        let on_wait = |status: &WaitStatus| {
            let text = describe(status);
            match &line {
                Some(line) => line.show(&text, Duration::from_millis(status.waited_ms)),
                None if *last.borrow() != text => notice("jvs", &text),
                None => {}
            }
            *last.borrow_mut() = text;
        };
        context.repo.acquire_waiting(worktree, request, &WaitRequest { limit_ms, on_wait: &on_wait })
    }
}

fn describe(status: &WaitStatus) -> String {
    let mut text = format!("waiting for the lock: worktree={}", status.lock.worktree_id);
    if let Some(lock) = &status.lock.lock {
        let policy = &lock.policy;
        text = format!(
            "{text} holder={} lease_duration={}",
            word(lock.holder_id.as_str()),
            ms_text(policy.lease_duration_ms())
        );
    }
    if status.position > 1 {
        text = format!("{text} position={}", status.position);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_duration_or_absent() {
        assert!(matches!(wait_limit("forever"), Ok(WaitLimit::Forever)));
        assert!(matches!(wait_limit("1m 30s"), Ok(WaitLimit::After(limit)) if limit.as_secs() == 90));
        assert!(wait_limit("soon").is_err());
    }
}
