//! Applies edits to the text of a document.
//!
//! **Invariant.** The text is valid JSON before and after each edit; only the edited values are replaced, and the commas
//! next to inserted or removed items.

use super::decimal::Decimal;
use super::error::{EditError, EditErrorKind};
use super::path::{DisplayPath, Path, Step};
use super::rfc3339::is_date_time;
use super::syntax::{Action, Edit};
use super::text::{Item, Span, items, names, quoted, root};
use super::{DOCUMENT_BYTES_MAX, EDITS_MAX};
use crate::{Limits, check};

const LIMITS: Limits = Limits { bytes_max: DOCUMENT_BYTES_MAX };

/// Applies the edits to the document in order, and returns its new text. A document of only whitespace is read as `{}`.
/// `now` is the time for `NOW`, in RFC 3339.
pub fn apply(document: &[u8], edits: &[Edit], now: &str) -> Result<Vec<u8>, EditError> {
    let mut text = validated(document)?;
    if edits.len() > EDITS_MAX {
        return Err(EditError::of_document(EditErrorKind::TooMany));
    }
    for edit in edits {
        apply_one(&mut text, edit, now)?;
    }
    check(&text, LIMITS).map_err(|error| EditError::of_document(EditErrorKind::Result(error)))?;
    Ok(text)
}

fn validated(document: &[u8]) -> Result<Vec<u8>, EditError> {
    if document.iter().all(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t')) {
        return Ok(b"{}".to_vec());
    }
    check(document, LIMITS).map_err(|error| EditError::of_document(EditErrorKind::Document(error)))?;
    Ok(document.to_vec())
}

fn apply_one(text: &mut Vec<u8>, edit: &Edit, now: &str) -> Result<(), EditError> {
    match &edit.action {
        Action::Set(json) => set(text, &edit.path, json),
        Action::SetNow if is_date_time(now) => set(text, &edit.path, &quoted(now)),
        Action::SetNow => Err(EditError::new(EditErrorKind::Time, now)),
        Action::Add(number) => add(text, &edit.path, *number),
        Action::Remove => remove(text, &edit.path),
    }
}

/// The target of a path.
enum Target<'a> {
    Value(Span),
    /// The innermost existing container, and the steps missing in it.
    Missing(Span, &'a [Step]),
}

fn set(text: &mut Vec<u8>, path: &Path, json: &[u8]) -> Result<(), EditError> {
    match find(text, path.steps())? {
        Target::Value(span) => drop(text.splice(span, json.iter().copied())),
        Target::Missing(container, missing) => {
            let (first, rest) = missing.split_first().expect("at least one step is missing");
            let inner = built(path, rest, json)?;
            insert(text, &container, &item(first, &inner));
        }
    }
    Ok(())
}

fn add(text: &mut Vec<u8>, path: &Path, number: Decimal) -> Result<(), EditError> {
    let error = |kind| EditError::new(kind, DisplayPath(path.steps()));
    let before = match find(text, path.steps())? {
        Target::Missing(..) => Decimal::ZERO,
        Target::Value(span) => {
            let digits = number_text(&text[span]).ok_or_else(|| error(EditErrorKind::NoNumber))?;
            Decimal::parse(digits).ok_or_else(|| error(EditErrorKind::Overflow))?
        }
    };
    let sum = before.plus(number).ok_or_else(|| error(EditErrorKind::Overflow))?;
    set(text, path, sum.to_string().as_bytes())
}

fn number_text(value: &[u8]) -> Option<&str> {
    let number = value.starts_with(b"-") || value.first().is_some_and(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| number)
}

fn remove(text: &mut Vec<u8>, path: &Path) -> Result<(), EditError> {
    let (parents, last) = path.split_last();
    let Target::Value(container) = find(text, parents)? else { return Ok(()) };
    let cuts = if let Step::Name(name) = last {
        require(text, &container, b'{', parents)?;
        cuts(text, &container, |_, item| names(&text[item.key.clone()], name))
    } else {
        let index = position(text, &container, path.steps(), parents.len())?;
        cuts(text, &container, |at, _| at == index)
    };
    *text = without(text, &cuts);
    Ok(())
}

/// Follows the steps as far as values exist.
fn find<'a>(text: &[u8], steps: &'a [Step]) -> Result<Target<'a>, EditError> {
    let mut span = root(text);
    for (at, step) in steps.iter().enumerate() {
        let found = match step {
            Step::Name(name) => {
                require(text, &span, b'{', &steps[..at])?;
                items(text, span.start).filter(|item| names(&text[item.key.clone()], name)).last()
            }
            Step::Append => {
                require(text, &span, b'[', &steps[..at])?;
                None
            }
            Step::Index(_) | Step::FromEnd(_) => {
                items(text, span.start).nth(position(text, &span, steps, at)?)
            }
        };
        match found {
            Some(item) => span = item.value,
            None => return Ok(Target::Missing(span, &steps[at..])),
        }
    }
    Ok(Target::Value(span))
}

/// Refuses a value that is not the container that the next step needs.
fn require(text: &[u8], span: &Span, open: u8, path: &[Step]) -> Result<(), EditError> {
    let kind = if open == b'{' { EditErrorKind::NoObject } else { EditErrorKind::NoArray };
    if text[span.start] == open { Ok(()) } else { Err(EditError::new(kind, DisplayPath(path))) }
}

/// The index of the array element that the step at `at` selects.
fn position(text: &[u8], array: &Span, steps: &[Step], at: usize) -> Result<usize, EditError> {
    require(text, array, b'[', &steps[..at])?;
    let length = items(text, array.start).count();
    let index = match steps[at] {
        Step::Index(index) => Some(index as usize).filter(|index| *index < length),
        Step::FromEnd(back) => length.checked_sub(back as usize),
        Step::Name(_) | Step::Append => None,
    };
    index.ok_or_else(|| EditError::new(EditErrorKind::OutOfRange, DisplayPath(&steps[..=at])))
}

/// A value wrapped in the containers that the steps need.
fn built(path: &Path, steps: &[Step], json: &[u8]) -> Result<Vec<u8>, EditError> {
    if steps.iter().any(|step| matches!(step, Step::Index(_) | Step::FromEnd(_))) {
        return Err(EditError::new(EditErrorKind::OutOfRange, DisplayPath(path.steps())));
    }
    let around = |inner: Vec<u8>, step: &Step| match step {
        Step::Name(_) => [b"{", item(step, &inner).as_slice(), b"}"].concat(),
        _ => [b"[", item(step, &inner).as_slice(), b"]"].concat(),
    };
    Ok(steps.iter().rfold(json.to_vec(), around))
}

/// A member or an element.
fn item(step: &Step, json: &[u8]) -> Vec<u8> {
    match step {
        Step::Name(name) => [quoted(name).as_slice(), b":", json].concat(),
        _ => json.to_vec(),
    }
}

/// Appends an item to a container.
fn insert(text: &mut Vec<u8>, container: &Span, item: &[u8]) {
    let (at, comma) = match items(text, container.start).last() {
        Some(last) => (last.whole.end, b",".as_slice()),
        None => (container.start + 1, b"".as_slice()),
    };
    text.splice(at..at, [comma, item].concat());
}

/// The spans to remove from a container, so that the chosen items and their commas are gone.
fn cuts(text: &[u8], container: &Span, chosen: impl Fn(usize, &Item) -> bool) -> Vec<Span> {
    let mut cuts = Vec::new();
    let mut kept_end = None;
    // A run of chosen items that is not followed by a kept item yet.
    let mut run: Option<Span> = None;
    for (index, item) in items(text, container.start).enumerate() {
        if chosen(index, &item) {
            run = Some(run.map_or(item.whole.start, |run| run.start)..item.whole.end);
        } else {
            cuts.extend(run.take().map(|run| run.start..item.whole.start));
            kept_end = Some(item.whole.end);
        }
    }
    cuts.extend(run.map(|run| match kept_end {
        Some(end) => end..run.end,
        None => container.start + 1..container.end - 1,
    }));
    cuts
}

fn without(text: &[u8], cuts: &[Span]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut from = 0;
    for cut in cuts {
        out.extend_from_slice(&text[from..cut.start]);
        from = cut.end;
    }
    out.extend_from_slice(&text[from..]);
    out
}
