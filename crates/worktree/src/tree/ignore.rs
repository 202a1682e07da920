//! `.jvsignore`: names that snapshots leave out.
//!
//! One pattern a line, with the meaning that it has in a `.gitignore`: the last pattern that matches decides, `!`
//! takes a name back, a trailing `/` restricts a pattern to directories, and a pattern with another `/` is
//! relative to the worktree's root, while one without matches the last component anywhere. `*` and `?` match no
//! `/`, `**` does; `[a-z]` and `[!a-z]` match one byte. Nothing below an ignored directory is looked at, so it
//! cannot be taken back.
//!
//! **Invariant.** Matching takes time proportional to pattern and path, and both are bounded.

use rustix::fs::OFlags;
use rustix::io::{Errno, read};

use super::{RelPath, Root};
use crate::error::{Error, ErrorContext, Result};

/// The name of the file in a worktree's root.
const FILE: &str = ".jvsignore";
/// The largest file, in bytes.
const BYTES_MAX: usize = 64 * 1024;
/// The number of patterns at most.
const PATTERNS_MAX: usize = 1000;

/// The patterns of one worktree.
#[derive(Debug, Default)]
pub(crate) struct IgnoreRules {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    pattern: Vec<Token>,
    /// Matches the whole path, and not only its last component.
    whole_path: bool,
    only_dirs: bool,
    takes_back: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `*`
    Some,
    /// `**/`: any number of directories.
    Dirs,
    /// `**` elsewhere.
    All,
    /// `[a-z]`
    Class {
        ranges: Vec<(u8, u8)>,
        negated: bool,
    },
}

impl IgnoreRules {
    /// The rules of the worktree below `root`.
    pub(crate) fn of(root: &Root) -> Result<Self> {
        let path = RelPath::ROOT.join(FILE.as_bytes());
        let file = match root.open_at(&path, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(Errno::NOENT) => return Ok(Self::default()),
            other => other.doing("open", FILE.as_ref())?,
        };
        let mut text = vec![0; BYTES_MAX + 1];
        let mut len = 0;
        loop {
            match read(&file, &mut text[len..]).doing("read", FILE.as_ref())? {
                0 => break,
                more => len += more,
            }
        }
        if len > BYTES_MAX {
            return Err(Error::invalid(format!(
                "the file is too large; the maximum is {BYTES_MAX} bytes: file={FILE}"
            )));
        }
        Self::parse(&text[..len])
    }

    fn parse(text: &[u8]) -> Result<Self> {
        let mut rules = Vec::new();
        for (line, pattern) in text.split(|byte| *byte == b'\n').enumerate() {
            let pattern = pattern.trim_ascii_end();
            if pattern.is_empty() || pattern.starts_with(b"#") {
                continue;
            }
            let rule = Rule::parse(pattern).ok_or_else(|| {
                Error::invalid(format!(
                    "the pattern has an open `[` or is empty: file={FILE} line={}",
                    line + 1
                ))
            })?;
            rules.push(rule);
        }
        if rules.len() > PATTERNS_MAX {
            return Err(Error::invalid(format!(
                "too many patterns; the maximum is {PATTERNS_MAX}: file={FILE}"
            )));
        }
        Ok(Self { rules })
    }

    /// Whether snapshots leave out the name.
    pub(crate) fn ignores(&self, path: &RelPath, is_dir: bool) -> bool {
        let applies = |rule: &&Rule| {
            let text = if rule.whole_path { path.as_bytes() } else { path.name() };
            (is_dir || !rule.only_dirs) && matches(&rule.pattern, text)
        };
        self.rules.iter().rev().find(applies).is_some_and(|rule| !rule.takes_back)
    }
}

impl Rule {
    fn parse(pattern: &[u8]) -> Option<Self> {
        let (takes_back, pattern) = match pattern.strip_prefix(b"!") {
            Some(rest) => (true, rest),
            None => (false, pattern),
        };
        let (only_dirs, pattern) = match pattern.strip_suffix(b"/") {
            Some(rest) => (true, rest),
            None => (false, pattern),
        };
        let whole_path = pattern.contains(&b'/');
        let pattern = pattern.strip_prefix(b"/").unwrap_or(pattern);
        let tokens = tokens(pattern)?;
        (!tokens.is_empty()).then_some(Self { pattern: tokens, whole_path, only_dirs, takes_back })
    }
}

fn tokens(mut text: &[u8]) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    while let [first, rest @ ..] = text {
        let (token, after) = match (first, rest) {
            (b'*', [b'*', b'/', after @ ..]) => (Token::Dirs, after),
            (b'*', [b'*', after @ ..]) => (Token::All, after),
            (b'*', after) => (Token::Some, after),
            (b'?', after) => (Token::One, after),
            (b'[', after) => class(after)?,
            (b'\\', [escaped, after @ ..]) => (Token::Byte(*escaped), after),
            (byte, after) => (Token::Byte(*byte), after),
        };
        tokens.push(token);
        text = after;
    }
    Some(tokens)
}

/// The class that follows a `[`, and the text behind its `]`.
fn class(text: &[u8]) -> Option<(Token, &[u8])> {
    let (negated, text) = match text {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let mut ranges = Vec::new();
    let mut at = text;
    loop {
        at = match at {
            [b']', after @ ..] if !ranges.is_empty() => {
                return Some((Token::Class { ranges, negated }, after));
            }
            [first, b'-', last, after @ ..] if *last != b']' => {
                ranges.push((*first, *last));
                after
            }
            [one, after @ ..] => {
                ranges.push((*one, *one));
                after
            }
            [] => return None,
        };
    }
}

/// Whether the whole of `text` matches. `reach[n]`: the tokens so far match the first `n` bytes.
fn matches(pattern: &[Token], text: &[u8]) -> bool {
    let mut reach = vec![false; text.len() + 1];
    reach[0] = true;
    for token in pattern {
        let mut next = vec![false; text.len() + 1];
        let mut open = false;
        for at in 0..=text.len() {
            let before = at.checked_sub(1).map(|at| text[at]);
            let one = |fits: bool| fits && at > 0 && reach[at - 1];
            next[at] = match token {
                Token::Byte(byte) => one(before == Some(*byte)),
                Token::One => one(before.is_some_and(|byte| byte != b'/')),
                Token::Class { ranges, negated } => one(before.is_some_and(|byte| {
                    let listed = ranges.iter().any(|(first, last)| (*first..=*last).contains(&byte));
                    byte != b'/' && listed != *negated
                })),
                Token::Some => {
                    open = reach[at] || (open && before != Some(b'/'));
                    open
                }
                Token::All => {
                    open |= reach[at];
                    open
                }
                Token::Dirs => {
                    let here = reach[at] || (open && before == Some(b'/'));
                    open |= reach[at];
                    here
                }
            };
        }
        reach = next;
    }
    reach[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ignored(rules: &str, path: &str) -> bool {
        let rules = IgnoreRules::parse(rules.as_bytes()).expect("valid rules");
        let (path, is_dir) = path.strip_suffix('/').map_or((path, false), |dir| (dir, true));
        rules.ignores(&RelPath::ROOT.join(path.as_bytes()), is_dir)
    }

    #[test]
    fn patterns_mean_what_they_mean_in_a_gitignore() {
        for (rules, path, expected) in [
            ("*.o", "a.o", true),
            ("*.o", "dir/a.o", true),
            ("*.o", "a.od", false),
            ("/build", "build", true),
            ("/build", "x/build", false),
            ("build/", "build", false),
            ("build/", "x/build/", true),
            ("/[Ll]ibrary/", "Library/", true),
            ("[!a-c]x", "dx", true),
            ("[!a-c]x", "bx", false),
            ("doc/*.txt", "doc/a.txt", true),
            ("doc/*.txt", "doc/sub/a.txt", false),
            ("doc/**/a.txt", "doc/a.txt", true),
            ("doc/**/a.txt", "doc/x/y/a.txt", true),
            ("doc/**/a.txt", "doc/xa.txt", false),
            ("doc/**", "doc/x/y", true),
            ("**/tmp", "a/b/tmp", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("*.log\n!keep.log", "keep.log", false),
            ("*.log\n!keep.log", "other.log", true),
            ("# comment\n\n\\#x  ", "#x", true),
            ("é", "é", true),
        ] {
            assert_eq!(ignored(rules, path), expected, "{rules:?} {path:?}");
        }
        for wrong in ["[a", "/", "!"] {
            assert!(IgnoreRules::parse(wrong.as_bytes()).is_err(), "accepted {wrong:?}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_longer_than_its_length_allows() {
        let text = "a".repeat(4000);
        assert!(!ignored(&"*a".repeat(200).replace("aa", "a"), &format!("{text}b")));
    }
}
