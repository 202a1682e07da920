//! A progress bar on standard error, where there is someone to see it.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use worktree::tree::Progress;

/// A bar that counts bytes, or nothing.
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar if standard error is a terminal and people are meant to read.
    pub(crate) fn new(what: &'static str, json: bool) -> Self {
        if json || !std::io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden() };
        }
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}")
            .expect("the template is a constant that parses");
        Self { bar: ProgressBar::new(0).with_style(style).with_message(what) }
    }
}

impl Progress for Bar {
    fn begin(&self, _files: u64, bytes: u64) {
        self.bar.reset();
        self.bar.set_length(bytes);
    }

    fn file_done(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
