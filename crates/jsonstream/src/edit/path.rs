//! Paths into a document: names and indexes, and their syntax.
//!
//! **Invariant.** A path has at least one step and at most [`STEPS_MAX`], and no empty name. Its display form parses to
//! the same path.

use std::fmt;

/// Maximum number of steps of a path.
pub const STEPS_MAX: usize = 128;

/// A path to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path(Vec<Step>);

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// `a`: the member of an object.
    Name(String),
    /// `[0]`: counted from the first element.
    Index(u32),
    /// `[-1]`: counted from the end; 1 is the last element.
    FromEnd(u32),
    /// `[+]`: a new last element.
    Append,
}

impl Path {
    /// Parses a path, or returns why it is invalid.
    pub(super) fn parse(text: &str) -> Result<Path, &'static str> {
        let (first, mut rest) = first_step(text)?;
        let mut steps = vec![first];
        while !rest.is_empty() {
            if steps.len() == STEPS_MAX {
                return Err("path has too many steps");
            }
            let (step, behind) = further_step(rest)?;
            steps.push(step);
            rest = behind;
        }
        Ok(Path(steps))
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The steps to the container, and the step within it.
    pub(super) fn split_last(&self) -> (&[Step], &Step) {
        let (last, parents) = self.0.split_last().expect("a path has at least one step");
        (parents, last)
    }

    pub(super) fn appends(&self) -> bool {
        self.0.contains(&Step::Append)
    }
}

fn first_step(text: &str) -> Result<(Step, &str), &'static str> {
    match text.strip_prefix('[') {
        Some(inside) => index(inside),
        None => name(text),
    }
}

fn further_step(text: &str) -> Result<(Step, &str), &'static str> {
    match text.split_at_checked(1) {
        Some((".", rest)) => name(rest),
        Some(("[", inside)) => index(inside),
        _ => Err("only . or [ can follow ]"),
    }
}

/// A name, up to the next dot or bracket.
fn name(text: &str) -> Result<(Step, &str), &'static str> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    let mut end = text.len();
    while let Some((at, char)) = chars.next() {
        match char {
            '.' | '[' => {
                end = at;
                break;
            }
            '\\' => name.push(escaped(chars.next())?),
            ']' | '=' => return Err("] and = in a name need a backslash"),
            _ => name.push(char),
        }
    }
    if name.is_empty() { Err("path has an empty name") } else { Ok((Step::Name(name), &text[end..])) }
}

fn escaped(next: Option<(usize, char)>) -> Result<char, &'static str> {
    let char = next.map(|(_, char)| char).filter(char::is_ascii_punctuation);
    char.ok_or("only punctuation can follow a backslash")
}

/// An index, after its opening bracket.
fn index(text: &str) -> Result<(Step, &str), &'static str> {
    let (inside, rest) = text.split_once(']').ok_or("[ without ]")?;
    let step = match inside.split_at_checked(1) {
        Some(("+", "")) => Some(Step::Append),
        Some(("-", back)) => count(back).filter(|back| *back > 0).map(Step::FromEnd),
        _ => count(inside).map(Step::Index),
    };
    Ok((step.ok_or("index is neither a number nor +")?, rest))
}

fn count(digits: &str) -> Option<u32> {
    let plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain)
}

/// Displays the first steps of a path.
pub(super) struct DisplayPath<'a>(pub(super) &'a [Step]);

impl fmt::Display for DisplayPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Name(name) => show_name(name, index == 0, f)?,
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::FromEnd(back) => write!(f, "[-{back}]")?,
                Step::Append => f.write_str("[+]")?,
            }
        }
        Ok(())
    }
}

fn show_name(name: &str, first: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(if first { "" } else { "." })?;
    for char in name.chars() {
        f.write_str(if matches!(char, '.' | '[' | ']' | '=' | '\\') { "\\" } else { "" })?;
        write!(f, "{char}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(name: &str) -> Step {
        Step::Name(name.to_owned())
    }

    #[test]
    fn paths_are_read() {
        let read = |text: &str| Path::parse(text).expect(text).0;
        assert_eq!(read("a"), [named("a")]);
        assert_eq!(read("a.b.c"), [named("a"), named("b"), named("c")]);
        assert_eq!(read(r"a\.b"), [named("a.b")]);
        assert_eq!(read(r"a\\.b"), [named(r"a\"), named("b")]);
        assert_eq!(read(r"\[0\].\=\:\+"), [named("[0]"), named("=:+")]);
        assert_eq!(read("[0]"), [Step::Index(0)]);
        assert_eq!(
            read("a[0][-1].b[+]"),
            [named("a"), Step::Index(0), Step::FromEnd(1), named("b"), Step::Append]
        );
        assert_eq!(read("x y.é-1:2"), [named("x y"), named("é-1:2")]);
        assert_eq!(read("4294967295"), [named("4294967295")]);
        assert_eq!(read("[4294967295]"), [Step::Index(u32::MAX)]);
    }

    #[test]
    fn invalid_paths_are_refused() {
        for text in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a.[0]",
            "[",
            "a[",
            "a[0",
            "a[]",
            "a[x]",
            "a[-]",
            "a[-0]",
            "a[01]",
            "a[+1]",
            "a[--1]",
            "a[0]b",
            "a]",
            "]",
            "a=b",
            r"a\",
            r"a\b",
            r"\é",
            "[4294967296]",
            "a[ 0]",
            "[0]é",
            "a[-01]",
        ] {
            assert!(Path::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn steps_are_accepted_up_to_the_limit() {
        assert_eq!(Path::parse(&vec!["a"; STEPS_MAX].join(".")).expect("a path").0.len(), STEPS_MAX);
        assert!(Path::parse(&vec!["a"; STEPS_MAX + 1].join(".")).is_err());
        assert!(Path::parse(&"[0]".repeat(STEPS_MAX + 1)).is_err());
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            "[a-b.\\[\\]=\\\\:+é -]{1,5}".prop_map(Step::Name),
            any::<u32>().prop_map(Step::Index),
            (1..u32::MAX).prop_map(Step::FromEnd),
            Just(Step::Append),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn displayed_paths_parse_to_themselves(steps in prop::collection::vec(step(), 1..6)) {
            let shown = DisplayPath(&steps).to_string();
            prop_assert_eq!(Path::parse(&shown), Ok(Path(steps)));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-b0-9.\\[\\]=\\\\:+é-]{0,12}") {
            if let Ok(path) = Path::parse(&text) {
                prop_assert_eq!(Path::parse(&DisplayPath(path.steps()).to_string()), Ok(path));
            }
        }
    }
}
