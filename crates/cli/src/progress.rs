//! A progress bar on standard error, if that is a terminal, for work that takes longer than a second.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// Delay before the bar appears: shorter transfers show none.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// A progress bar that counts bytes.
pub struct ByteProgress {
    bar: ProgressBar,
    /// False if standard error is no terminal or the output is JSON: then nothing is drawn.
    visible: bool,
}

impl ByteProgress {
    /// A bar labelled `what`; it stays hidden unless standard error is a terminal and `json` is false.
    pub fn new(what: &'static str, json: bool) -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}")
            .expect("the template is a constant that parses");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let visible = !json && std::io::stderr().is_terminal();
        Self { bar: bar.with_style(style).with_message(what), visible }
    }

    /// Begins to count up to this many bytes.
    pub fn begin(&self, bytes: u64) {
        self.bar.set_draw_target(ProgressDrawTarget::hidden());
        self.bar.reset();
        self.bar.set_length(bytes);
    }

    /// Begins to count bytes whose number is not known.
    pub fn begin_unknown(&self) {
        self.begin(0);
        self.bar.unset_length();
        let style = ProgressStyle::with_template("{msg} {spinner} {bytes} {bytes_per_sec}");
        self.bar.set_style(style.expect("the template is a constant that parses"));
    }

    /// Counts bytes. The bar is cleared once all of them are counted.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        if self.bar.length().is_some_and(|length| self.bar.position() >= length) {
            // Clears the line for the output that follows.
            self.bar.finish_and_clear();
        } else if self.visible && self.bar.is_hidden() && self.bar.elapsed() > SHOWN_AFTER {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

/// A progress bar that counts things, such as requests.
pub struct CountProgress {
    bar: ProgressBar,
    visible: bool,
}

impl CountProgress {
    /// A bar labelled `what`; it stays hidden unless standard error is a terminal and the output is for people.
    pub fn new(what: &'static str, output: Output) -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}")
            .expect("the template is a constant that parses");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let visible = output == Output::Text && std::io::stderr().is_terminal();
        Self { bar: bar.with_style(style).with_message(what), visible }
    }

    /// Shows `done` of `all`.
    pub fn set(&self, done: u64, all: u64) {
        self.bar.set_length(all.max(done));
        self.bar.set_position(done);
        if self.visible && self.bar.is_hidden() && self.bar.elapsed() > SHOWN_AFTER {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for CountProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl worktree::tree::Progress for ByteProgress {
    fn begin(&self, _files: u64, bytes: u64) {
        ByteProgress::begin(self, bytes);
    }

    fn file_done(&self, bytes: u64) {
        self.advance(bytes);
    }
}

impl lockd_client::TransferProgress for ByteProgress {
    fn begin(&self, bytes: u64) {
        ByteProgress::begin(self, bytes);
    }

    fn begin_unknown(&self) {
        ByteProgress::begin_unknown(self);
    }

    fn moved(&self, bytes: u64) {
        self.advance(bytes);
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for ByteProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
