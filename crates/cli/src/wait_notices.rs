//! Says on standard error what a command waits for: who holds the lease, and whether the server is there. On a terminal it
//! is one line, with the time of the wait, which is cleared when the wait ends; otherwise a line for each change.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lockd_client::{Wait, WaitObserver, WaitStatus};

use crate::stderr::notice;
use crate::untrusted::{escape, quote, word};

/// Interval between redraws of the line on a terminal.
const REDRAWN_EVERY: Duration = Duration::from_millis(500);

/// A wait of this length that reports to standard error.
pub fn reported(block: Duration) -> Wait {
    Wait { block, on_wait: Some(observer()) }
}

/// Shows each change.
pub fn observer() -> WaitObserver {
    match StatusLine::for_stderr() {
        Some(line) => WaitObserver::new(move |status| line.show(&text(status), status.waited)),
        None => printed(),
    }
}

/// Prints a line for each change. While the server is not there, the reasons alternate: only the first is printed.
fn printed() -> WaitObserver {
    let last: Mutex<Option<String>> = Mutex::new(None);
    WaitObserver::new(move |status| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = kind(status);
        if last.as_ref() != Some(&kind) {
            notice("lockd", &text(status));
            *last = Some(kind);
        }
    })
}

/// A line of a terminal that is redrawn while the wait goes on. Dropping it clears the line.
#[derive(Default)]
pub struct StatusLine(OnceLock<ProgressBar>);

impl StatusLine {
    /// A line on standard error; none if that is not a terminal.
    pub fn for_stderr() -> Option<Self> {
        io::stderr().is_terminal().then(Self::default)
    }

    /// Shows `text` and the time since the wait began, `waited` ago at the first call.
    pub fn show(&self, text: &str, waited: Duration) {
        let bar = self.0.get_or_init(|| {
            let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
            let style = style.expect("the template is a constant that parses");
            let bar = ProgressBar::new_spinner().with_style(style).with_elapsed(waited);
            bar.enable_steady_tick(REDRAWN_EVERY);
            bar
        });
        bar.set_message(escape(text));
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.0.get().into_iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn kind(status: &WaitStatus) -> String {
    if status.unreachable.is_some() { "unreachable".into() } else { text(status) }
}

fn text(status: &WaitStatus) -> String {
    if let Some(why) = &status.unreachable {
        return format!("waiting for the server: {}", escape(why));
    }
    let place = match status.position {
        Some(0) => ", next in the queue".to_string(),
        Some(1) => ", behind 1 waiter".to_string(),
        Some(ahead) => format!(", behind {ahead} waiters"),
        None => String::new(),
    };
    let holder = status.holder.as_deref().map(|holder| format!(" holder={}", word(holder)));
    let owner = status.owner.as_ref().filter(|owner| status.holder.as_ref() != Some(owner));
    let owner = owner.map(|owner| format!(" owner={}", quote(owner)));
    let facts = holder.into_iter().chain(owner).collect::<String>();
    let colon = if facts.is_empty() { "" } else { ":" };
    format!("waiting for the lease{place}{colon}{facts}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_holder_or_why_the_server_is_not_there() {
        let held = WaitStatus {
            holder: Some("ada".into()),
            owner: Some("night job\u{1b}".into()),
            position: Some(2),
            ..WaitStatus::default()
        };
        let line = r#"waiting for the lease, behind 2 waiters: holder=ada owner="night job\u001b""#;
        assert_eq!(text(&held), line);
        let next = WaitStatus { holder: None, owner: None, position: Some(0), ..WaitStatus::default() };
        assert_eq!(text(&next), "waiting for the lease, next in the queue");
        let gone = WaitStatus { unreachable: Some("connection refused".into()), ..held };
        assert_eq!(text(&gone), "waiting for the server: connection refused");
    }
}
