//! Converts YAML to JSON, from the parser's events.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use granit_parser::{Event, Marker, Parser, ScalarStyle, Span, StructureStyle, Tag, YamlVersion, options};
use jsonstream::{DEPTH_MAX, JsonErrorKind, Limits, check};

use crate::error::Error;
use crate::resolve::{Plain, resolve};

/// Maximum total length of expanded aliases, in bytes. Nine lines of aliases can expand to a billion strings.
const ALIAS_BYTES_MAX: usize = 16 << 20;

/// Converts YAML to compact JSON.
///
/// ```
/// assert_eq!(yamljson::to_json(b"a: [no, 1.50, 0x10]\n'1': ~ # nothing\n")?, r#"{"a":["no",1.50,16],"1":null}"#);
/// let refused = yamljson::to_json(b"a: 1\n2: b\n").unwrap_err();
/// assert_eq!(refused.to_string(), "the key is not a string; quote it: line=2 column=1");
/// # Ok::<(), yamljson::Error>(())
/// ```
pub fn to_json(yaml: &[u8]) -> Result<String, Error> {
    let text = std::str::from_utf8(yaml)
        .map_err(|error| Error::in_json("the text is not utf-8", error.valid_up_to()))?;
    // The parser stops at the depth limit of JSON, and reports the position.
    let depth = DEPTH_MAX as usize + 1;
    let options = options! { flow_nesting_limit: depth, block_nesting_limit: depth };
    let mut reader = Reader::default();
    for next in Parser::new_from_str_with_options(text, options) {
        let (event, span) = next.map_err(|error| Error::at(error.info(), *error.marker()))?;
        check_indentation(text, &event, span.start)?;
        reader.take(event, span)?;
    }
    reader.finish()
}

/// Refuses a block collection that is indented with a tab, which the parser accepts in some places.
fn check_indentation(text: &str, event: &Event<'_>, at: Marker) -> Result<(), Error> {
    let (Event::SequenceStart(StructureStyle::Block, ..) | Event::MappingStart(StructureStyle::Block, ..)) =
        event
    else {
        return Ok(());
    };
    let before = at.byte_offset().and_then(|offset| text.get(..offset)).unwrap_or_default();
    if before.chars().rev().take_while(|c| [' ', '\t'].contains(c)).any(|c| c == '\t') {
        return Err(Error::at("a tab cannot indent; use spaces", at));
    }
    Ok(())
}

#[derive(Default)]
struct Reader {
    out: String,
    documents: usize,
    open: Vec<OpenCollection>,
    /// The range in `out` of each finished anchor.
    anchors: BTreeMap<usize, Range<usize>>,
    /// Bytes added by aliases.
    copied: usize,
}

/// A collection that is not closed yet.
struct OpenCollection {
    anchor: usize,
    start: usize,
    kind: CollectionKind,
    empty: bool,
}

enum CollectionKind {
    Sequence,
    /// The keys so far, and whether the next node is a value.
    Mapping(BTreeSet<String>, bool),
}

impl Reader {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Error> {
        let at = span.start;
        match event {
            Event::DocumentStart(_, version) => self.document(version, at),
            Event::Alias(anchor) => self.alias(anchor, at),
            Event::Scalar(text, style, anchor, tag) => {
                let json = scalar(&text, style, tag.as_deref(), at)?;
                if style == ScalarStyle::Plain && text == "<<" && self.expects_key() {
                    return Err(Error::at("JSON has no merge keys; quote it if it is a plain key", at));
                }
                self.node(&json, anchor, at)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.begin('[', CollectionKind::Sequence, anchor, ("seq", tag), at)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.begin('{', CollectionKind::Mapping(BTreeSet::new(), false), anchor, ("map", tag), at)
            }
            Event::SequenceEnd => self.end(']', at),
            Event::MappingEnd => self.end('}', at),
            _ => Ok(()),
        }
    }

    fn document(&mut self, version: Option<YamlVersion>, at: Marker) -> Result<(), Error> {
        self.documents += 1;
        if self.documents > 1 {
            return Err(Error::at("more than one document", at));
        }
        match version {
            None | Some(YamlVersion { major: 1, minor: 2 }) => Ok(()),
            Some(_) => Err(Error::at("only YAML 1.2 is supported; remove the %YAML directive", at)),
        }
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(OpenCollection { kind: CollectionKind::Mapping(_, false), .. }))
    }

    /// Writes a complete node.
    fn node(&mut self, json: &str, anchor: usize, at: Marker) -> Result<(), Error> {
        self.separate(Some(json), at)?;
        let start = self.out.len();
        self.out.push_str(json);
        self.after_node(anchor, start);
        Ok(())
    }

    fn begin(
        &mut self,
        bracket: char,
        kind: CollectionKind,
        anchor: usize,
        (name, tag): (&str, Option<std::borrow::Cow<'_, Tag>>),
        at: Marker,
    ) -> Result<(), Error> {
        if tag.is_some_and(|tag| tag.core_suffix() != Some(name)) {
            return Err(bad_tag(at));
        }
        self.separate(None, at)?;
        self.open.push(OpenCollection { anchor, start: self.out.len(), kind, empty: true });
        self.out.push(bracket);
        Ok(())
    }

    fn end(&mut self, bracket: char, at: Marker) -> Result<(), Error> {
        let Some(OpenCollection { anchor, start, .. }) = self.open.pop() else {
            return Err(Error::at("unexpected end of a collection", at));
        };
        self.out.push(bracket);
        self.after_node(anchor, start);
        Ok(())
    }

    fn alias(&mut self, anchor: usize, at: Marker) -> Result<(), Error> {
        let Some(range) = self.anchors.get(&anchor).cloned() else {
            return Err(Error::at("a node that contains itself cannot be JSON", at));
        };
        self.copied += range.len();
        if self.copied > ALIAS_BYTES_MAX {
            return Err(Error::at("the aliases expand to more than 16 MiB", at));
        }
        let json = self.out[range].to_string();
        self.node(&json, 0, at)
    }

    /// Checks and separates a node before it is written; `None` for a collection.
    fn separate(&mut self, json: Option<&str>, at: Marker) -> Result<(), Error> {
        let Some(open) = self.open.last_mut() else { return Ok(()) };
        let is_key = match &mut open.kind {
            CollectionKind::Sequence => true,
            CollectionKind::Mapping(keys, false) => {
                let key = json.filter(|json| json.starts_with('"'));
                let key = key.ok_or_else(|| Error::at("the key is not a string; quote it", at))?;
                if !keys.insert(key.to_string()) {
                    return Err(Error::at("duplicate key", at));
                }
                true
            }
            CollectionKind::Mapping(_, true) => false,
        };
        if is_key && !open.empty {
            self.out.push(',');
        }
        open.empty = false;
        Ok(())
    }

    /// Records the range of an anchor after its node, and alternates between key and value.
    fn after_node(&mut self, anchor: usize, start: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, start..self.out.len());
        }
        if let Some(OpenCollection { kind: CollectionKind::Mapping(_, is_value), .. }) = self.open.last_mut()
        {
            if !*is_value {
                self.out.push(':');
            }
            *is_value = !*is_value;
        }
    }

    fn finish(self) -> Result<String, Error> {
        if self.documents == 0 {
            return Err(Error::at("the text is empty; write null for an empty value", Marker::new(0, 1, 0)));
        }
        match check(self.out.as_bytes(), Limits { bytes_max: u64::MAX }) {
            Ok(_) => Ok(self.out),
            Err(error) => {
                assert!(error.kind == JsonErrorKind::TooDeep, "the output is JSON: {error}");
                Err(error.into())
            }
        }
    }
}

/// Converts a scalar to JSON.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, at: Marker) -> Result<String, Error> {
    let string = || serde_json::to_string(text).expect("a string");
    let refuse = |what: &str| Err(Error::at(what, at));
    let Some(tag) = tag else {
        if style != ScalarStyle::Plain {
            return Ok(string());
        }
        return match resolve(text) {
            Plain::Text => Ok(string()),
            Plain::Refused(what) => refuse(what),
            other => Ok(other.json()),
        };
    };
    match (tag.core_suffix(), resolve(text)) {
        (Some("str"), _) => Ok(string()),
        (Some("null" | "bool" | "int" | "float"), Plain::Refused(what)) => refuse(what),
        (Some("int"), Plain::Number(number)) if !number.contains(['.', 'e', 'E']) => Ok(number),
        (Some("float"), Plain::Number(number)) => Ok(number),
        (Some("null"), Plain::Null) => Ok("null".into()),
        (Some("bool"), Plain::Bool(bool)) => Ok(bool.to_string()),
        (Some("null" | "bool" | "int" | "float"), _) => refuse("the text does not fit its tag"),
        _ => Err(bad_tag(at)),
    }
}

impl Plain {
    fn json(self) -> String {
        match self {
            Plain::Null => "null".into(),
            Plain::Bool(bool) => bool.to_string(),
            Plain::Number(number) => number,
            Plain::Text | Plain::Refused(_) => unreachable!("the caller handles these"),
        }
    }
}

fn bad_tag(at: Marker) -> Error {
    Error::at("JSON has no type for this tag", at)
}
