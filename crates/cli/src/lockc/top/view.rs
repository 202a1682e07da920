//! Filter, order and selection of the rows, and their lines on the screen.
//!
//! **What is absent.** The terminal and the server: a key comes in, an act to perform goes out.

use clap::ValueEnum;
use cli::times::ms_text;
use cli::untrusted::escape;

use super::rows::{Snapshot, TopRow};
use super::screen::Key;

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By the name of the resource.
    #[default]
    Resource,
    /// Most waiters first.
    Waiters,
    /// Held longest first.
    Since,
    /// Next deadline first.
    Remaining,
    /// By the name of the holder.
    Holder,
}

impl Sort {
    fn next(self) -> Sort {
        let all = Sort::value_variants();
        let at = all.iter().position(|sort| *sort == self).unwrap_or_default();
        all[(at + 1) % all.len()]
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Resource => "resource",
            Sort::Waiters => "waiters",
            Sort::Since => "since",
            Sort::Remaining => "remaining",
            Sort::Holder => "holder",
        }
    }
}

/// What a user confirmed: the lease, and the token that it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Revoke(String, u64),
    Reclaim(String, u64),
}

impl Act {
    fn question(&self) -> String {
        match self {
            Act::Revoke(lease, token) => format!("revoke token {token} of {lease}? y/n"),
            Act::Reclaim(lease, token) => format!("reclaim what token {token} of {lease} held? y/n"),
        }
    }
}

/// What the next key means.
#[derive(Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Browse,
    Filter,
    Confirm(Act),
}

/// The state of the screen.
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    filter: String,
    sort: Sort,
    /// The lease and the resource that are selected: a row stays selected when others come and go.
    selected: Option<(String, String)>,
    mode: Mode,
    /// The outcome of the last act.
    pub(super) note: String,
    /// Why the rows are out of date.
    pub(super) broken: Option<String>,
}

impl View {
    pub(super) fn new(filter: String, sort: Sort, snapshot: Snapshot) -> View {
        let (mode, note) = (Mode::default(), String::new());
        View { snapshot, filter, sort, selected: None, mode, note, broken: None }
    }

    pub(super) fn update(&mut self, snapshot: Snapshot) {
        (self.snapshot, self.broken) = (snapshot, None);
    }

    /// Whether letters are part of the filter.
    pub(super) fn is_typing(&self) -> bool {
        self.mode == Mode::Filter
    }

    /// The rows that match the filter, in order.
    pub(super) fn rows(&self) -> Vec<&TopRow> {
        let matches = |row: &&TopRow| {
            [row.resource.as_str(), row.party(), &row.holder, &row.namespace]
                .iter()
                .any(|text| text.contains(&self.filter))
        };
        let mut rows: Vec<&TopRow> = self.snapshot.rows.iter().filter(matches).collect();
        rows.sort_by(|a, b| {
            let first = match self.sort {
                Sort::Resource => std::cmp::Ordering::Equal,
                Sort::Waiters => b.waiters.cmp(&a.waiters),
                Sort::Since => a.acquired_at_unix_ms.cmp(&b.acquired_at_unix_ms),
                Sort::Remaining => a.expires_at_unix_ms.cmp(&b.expires_at_unix_ms),
                Sort::Holder => a.party().cmp(b.party()),
            };
            first.then_with(|| (&a.resource, &a.public_id).cmp(&(&b.resource, &b.public_id)))
        });
        rows
    }

    /// Handles a key; an act that was confirmed is returned.
    pub(super) fn press(&mut self, key: Key) -> Option<Act> {
        match std::mem::take(&mut self.mode) {
            Mode::Filter => self.type_filter(key),
            Mode::Confirm(act) => {
                if matches!(key, Key::Character('y' | 'Y')) {
                    return Some(act);
                }
                self.note = "nothing was done".to_string();
            }
            Mode::Browse => self.browse(key),
        }
        None
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Character(letter) => self.filter.push(letter),
            Key::Backspace => drop(self.filter.pop()),
            Key::Escape => self.filter.clear(),
            _ => {}
        }
        if !matches!(key, Key::Enter | Key::Escape) {
            self.mode = Mode::Filter;
        }
    }

    fn browse(&mut self, key: Key) {
        self.note.clear();
        match key {
            Key::Up | Key::Character('k') => self.select(-1),
            Key::Down | Key::Character('j') => self.select(1),
            Key::Character('/') => self.mode = Mode::Filter,
            Key::Character('s') => self.sort = self.sort.next(),
            Key::Escape => self.filter.clear(),
            Key::Character('r') => self.ask(|row| Act::Revoke(row.public_id.clone(), row.fencing_token)),
            Key::Character('c') => self.ask(|row| Act::Reclaim(row.public_id.clone(), row.fencing_token)),
            _ => {}
        }
    }

    fn ask(&mut self, act: impl FnOnce(&TopRow) -> Act) {
        let at = self.selected_index();
        match self.rows().get(at).copied().map(act) {
            Some(act) => self.mode = Mode::Confirm(act),
            None => self.note = "no lease is selected".to_string(),
        }
    }

    fn select(&mut self, by: isize) {
        let rows = self.rows();
        let at = self.selected_index().saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(at).map(|row| (row.public_id.clone(), row.resource.clone()));
    }

    fn selected_index(&self) -> usize {
        let is_selected = |row: &&TopRow| {
            self.selected.as_ref().is_some_and(|(id, name)| row.public_id == *id && row.resource == *name)
        };
        self.rows().iter().position(is_selected).unwrap_or_default()
    }

    /// The lines of the screen, none longer than its width.
    pub(super) fn draw(&self, (width, height): (usize, usize), now_unix_ms: u64) -> Vec<Line> {
        let rows = self.rows();
        let Snapshot { waiters, more, .. } = &self.snapshot;
        let head = format!(
            "lockc top  {} of {} rows{}  waiters {waiters}  sort {}  {}",
            rows.len(),
            self.snapshot.rows.len(),
            if *more { " (more are not read)" } else { "" },
            self.sort.name(),
            match (&self.broken, self.filter.as_str()) {
                (Some(why), _) => format!("DISCONNECTED: {why}"),
                (None, "") => String::new(),
                (None, filter) => format!("filter {filter}"),
            }
        );
        let selected = self.selected_index();
        let space = height.saturating_sub(3).max(1);
        let first = selected.saturating_sub(space - 1);
        let mut lines = vec![Line::plain(&head, width), Line::bold(&columns(HEADS, width), width)];
        let shown = rows.iter().enumerate().skip(first).take(space);
        lines.extend(shown.map(|(at, row)| {
            let line = columns(cells(row, now_unix_ms).each_ref().map(String::as_str), width);
            Line { is_selected: at == selected, ..Line::plain(&line, width) }
        }));
        lines.resize_with(space + 2, Line::default);
        lines.push(Line::plain(&self.footer(), width));
        lines
    }

    fn footer(&self) -> String {
        match &self.mode {
            Mode::Filter => format!("filter: {}_", self.filter),
            Mode::Confirm(act) => act.question(),
            Mode::Browse if self.note.is_empty() => {
                "q quit  / filter  s sort  r revoke  c reclaim  up and down select".to_string()
            }
            Mode::Browse => self.note.clone(),
        }
    }
}

const HEADS: [&str; 7] = ["RESOURCE", "HOLDER", "STATE", "SINCE", "REMAINING", "WAITERS", "TOKEN"];
/// The width of all columns but the first.
const WIDTHS: [usize; 6] = [18, 9, 12, 12, 8, 17];

fn cells(row: &TopRow, now_unix_ms: u64) -> [String; 7] {
    [
        row.resource.clone(),
        row.party().to_string(),
        row.state.clone(),
        ms_text(now_unix_ms.saturating_sub(row.acquired_at_unix_ms) / 1000 * 1000),
        row.remaining(now_unix_ms / 1000 * 1000),
        row.waiters.to_string(),
        row.fencing_token.to_string(),
    ]
}

/// The cells in columns; the first gets what the others leave, and those at the end are left out if that is too little.
fn columns(cells: [&str; 7], width: usize) -> String {
    let mut shown = WIDTHS.len();
    let needed = |shown: usize| WIDTHS[..shown].iter().map(|width| width + 1).sum::<usize>();
    while shown > 1 && needed(shown) + 16 > width {
        shown -= 1;
    }
    let first = width.saturating_sub(needed(shown)).max(1);
    let widths = std::iter::once(first).chain(WIDTHS[..shown].iter().copied());
    cells.iter().zip(widths).map(|(cell, width)| fit(&escape(cell), width)).collect::<Vec<_>>().join(" ")
}

/// A text of exactly this many characters.
fn fit(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return format!("{text}{}", " ".repeat(width - length));
    }
    let cut: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{cut}…")
}

/// A line of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) is_bold: bool,
    pub(super) is_selected: bool,
}

impl Line {
    fn plain(text: &str, width: usize) -> Line {
        Line { text: fit(&escape(text), width).trim_end().to_string(), ..Line::default() }
    }

    fn bold(text: &str, width: usize) -> Line {
        Line { is_bold: true, ..Line::plain(text, width) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(resource: &str, waiters: u64, token: u64) -> TopRow {
        TopRow {
            namespace: "default".into(),
            resource: resource.into(),
            holder: "ada".into(),
            agent_id: None,
            state: "active".into(),
            acquired_at_unix_ms: 1_000_000 - token,
            expires_at_unix_ms: 1_000_000 + token,
            waiters,
            fencing_token: token,
            public_id: format!("L-{token}"),
        }
    }

    fn view() -> View {
        let rows = vec![row("b", 0, 1), row("a", 2, 2), row("\u{1b}[2Jevil\u{202e}", 1, 3)];
        View::new(String::new(), Sort::Resource, Snapshot { rows, more: false, waiters: 3 })
    }

    fn names(view: &View) -> Vec<&str> {
        view.rows().into_iter().map(|row| row.resource.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_filtered_and_one_stays_selected() {
        let mut view = view();
        assert_eq!(names(&view)[1..], ["a", "b"]);
        view.press(Key::Down);
        view.press(Key::Down);
        view.press(Key::Character('s'));
        assert_eq!(names(&view)[0], "a", "most waiters first");
        assert_eq!(view.rows()[view.selected_index()].resource, "b", "still selected");
        for key in [Key::Character('/'), Key::Character('e'), Key::Character('v'), Key::Enter] {
            assert_eq!(view.press(key), None);
        }
        assert_eq!(view.rows().len(), 1);
        view.press(Key::Escape);
        assert_eq!(view.rows().len(), 3);
    }

    #[test]
    fn an_act_names_its_token_and_needs_a_confirmation() {
        let mut view = view();
        view.press(Key::Down);
        assert_eq!(view.press(Key::Character('r')), None);
        let lines = view.draw((120, 10), 1_000_000);
        assert_eq!(lines.last().expect("a footer").text, "revoke token 2 of L-2? y/n");
        assert_eq!(view.press(Key::Character('n')), None);
        view.press(Key::Character('c'));
        assert_eq!(view.press(Key::Character('y')), Some(Act::Reclaim("L-2".into(), 2)));
    }

    #[test]
    fn hostile_names_direct_no_terminal_and_lines_fit_every_width() {
        let view = view();
        for width in [1, 20, 40, 80, 200] {
            let lines = view.draw((width, 8), 1_000_000);
            assert_eq!(lines.len(), 8);
            for line in lines {
                assert!(line.text.chars().count() <= width, "{width}: {}", line.text);
                assert!(!line.text.contains(['\u{1b}', '\u{202e}']), "{}", line.text);
            }
        }
    }
}
