//! The record of issued certificates: where it is, and what it says about a name.

use std::path::{Path, PathBuf};

use identity::{IssuedCertificate, IssuedRecord, TrustAnchors};

use super::args::RecordSource;
use super::ca::ca_files;
use crate::notice;

/// All recorded certificates of these CAs, from every record that exists where one may be.
pub(super) fn read(
    source: &RecordSource,
    identity_file: Option<&Path>,
    anchors: Option<&TrustAnchors>,
) -> Result<Vec<IssuedCertificate>, String> {
    let places = places(source, identity_file);
    let mut found: Option<Vec<IssuedCertificate>> = None;
    for place in &places {
        let Some(record) = IssuedRecord::read(place)? else { continue };
        warn_of_unreadable(place, &record);
        let all = found.get_or_insert_default();
        let is_new = |one: &IssuedCertificate| !all.iter().any(|known| known.serial == one.serial);
        let new: Vec<IssuedCertificate> = record.certificates.into_iter().filter(is_new).collect();
        all.extend(new);
    }
    let of_these =
        |one: &IssuedCertificate| anchors.is_none_or(|all| all.iter().any(|ca| ca.serial() == one.ca));
    let found = found.ok_or_else(|| {
        let searched: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let what = "no record of issued certificates; name it with --issued, or the CA file with --ca-in";
        format!("{what}: searched={}", searched.join(","))
    })?;
    Ok(found.into_iter().filter(of_these).collect())
}

fn places(source: &RecordSource, identity_file: Option<&Path>) -> Vec<PathBuf> {
    if let Some(issued) = &source.issued {
        return vec![issued.clone()];
    }
    let ca_files = source.ca_in.iter().cloned().chain(identity_file.into_iter().flat_map(ca_files));
    let mut places: Vec<PathBuf> = ca_files.map(|file| IssuedRecord::path_beside(&file)).collect();
    places.dedup();
    places
}

fn warn_of_unreadable(place: &Path, record: &IssuedRecord) {
    if !record.unreadable.is_empty() {
        let lines: Vec<String> = record.unreadable.iter().map(ToString::to_string).collect();
        let what = "note: lines of the record cannot be read and are skipped";
        notice(&format!("{what}: file={} lines={}", place.display(), lines.join(",")));
    }
}
