//! A progress bar on standard error, where there is someone to see it, for what takes longer than a second.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is done sooner needs no bar.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// A bar that counts bytes, or nothing.
pub struct Bar {
    bar: ProgressBar,
    /// Is there anybody to see it?
    seen: bool,
}

impl Bar {
    /// A bar if standard error is a terminal and people are meant to read.
    pub fn new(what: &'static str, json: bool) -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}")
            .expect("the template is a constant that parses");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        Self { bar: bar.with_style(style).with_message(what), seen: !json && std::io::stderr().is_terminal() }
    }

    fn begin(&self, bytes: u64) {
        self.bar.set_draw_target(ProgressDrawTarget::hidden());
        self.bar.reset();
        self.bar.set_length(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        if self.bar.length().is_some_and(|length| self.bar.position() >= length) {
            // What is printed next is not to share a line with it.
            self.bar.finish_and_clear();
        } else if self.seen && self.bar.is_hidden() && self.bar.elapsed() > SHOWN_AFTER {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl worktree::tree::Progress for Bar {
    fn begin(&self, _files: u64, bytes: u64) {
        Bar::begin(self, bytes);
    }

    fn file_done(&self, bytes: u64) {
        self.advance(bytes);
    }
}

impl client::Progress for Bar {
    fn begin(&self, bytes: u64) {
        Bar::begin(self, bytes);
    }

    fn moved(&self, bytes: u64) {
        self.advance(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
