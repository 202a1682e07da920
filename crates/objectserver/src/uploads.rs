//! Multipart uploads, and the uncommitted blocks of Azure, which are an upload that begins with its first block.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::body::Bytes;

use crate::call::ChosenPart;
use crate::outcome::Refusal;

/// An upload that was begun and neither completed nor aborted.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) key: String,
    /// Wall-clock time since the Unix epoch.
    pub(crate) begun: Duration,
    pub(crate) parts: BTreeMap<String, Part>,
}

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) etag: String,
    pub(crate) body: Bytes,
}

impl Upload {
    pub(crate) fn new(key: &str, begun: Duration) -> Self {
        Self { key: key.to_owned(), begun, parts: BTreeMap::new() }
    }

    /// The content that the chosen parts make up. `smallest` bounds every part but the last.
    pub(crate) fn assemble(&self, chosen: &[ChosenPart], smallest: usize) -> Result<Bytes, Refusal> {
        let parts = chosen.iter().map(|chosen| self.part(chosen)).collect::<Result<Vec<_>, _>>()?;
        let all_but_last = parts.split_last().map_or(&[][..], |split| split.1);
        if all_but_last.iter().any(|part| part.body.len() < smallest) {
            return Err(Refusal::PartTooSmall);
        }
        if let [only] = parts.as_slice() {
            return Ok(only.body.clone());
        }
        let bodies: Vec<&[u8]> = parts.iter().map(|part| part.body.as_ref()).collect();
        Ok(Bytes::from(bodies.concat()))
    }

    fn part(&self, chosen: &ChosenPart) -> Result<&Part, Refusal> {
        let part = self.parts.get(&chosen.name).ok_or(Refusal::InvalidPart)?;
        let unquoted = |etag: &str| etag.trim_matches('"').to_owned();
        match &chosen.etag {
            Some(etag) if unquoted(etag) != unquoted(&part.etag) => Err(Refusal::InvalidPart),
            _ => Ok(part),
        }
    }
}

/// The upload id under which Azure's uncommitted blocks of a blob are kept.
pub(crate) fn blocks_of(key: &str) -> String {
    format!("blocks of {key}")
}
