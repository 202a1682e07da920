//! Rules of the bucket that would touch objects of the store behind its back.
//!
//! A batch that begins a tenure is never deleted: its name stays in use for ever, and refuses a deposed owner. A rule that
//! expires it breaks the log, and one that moves it to an archive makes it unreadable.

use store::object::ObjectsErrorKind;

use super::session::{Finding, Session};
use crate::upload_list::element;

/// Objects that no rule may expire or move.
const LOG_NAMES: [&str; 5] = ["log/", "floor/", "index/", "store", "map/"];
/// Objects that no rule may expire: snapshots and documents.
const BLOB_NAMES: [&str; 1] = ["blob/"];

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Expires,
    Moves,
}

/// A rule that is enabled and concerns live objects.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    id: String,
    prefixes: Vec<String>,
    action: Action,
}

pub(super) async fn lifecycle(session: &Session) -> Finding {
    let xml = match session.client(0).bucket_request(&[("lifecycle", "")]).await {
        Ok(Some(xml)) => xml,
        Ok(None) => {
            let what = "rules of Azure belong to the storage account; make sure that none deletes or moves blobs of this \
                        container";
            return Finding::skipped(what);
        }
        Err(error) if error.kind == ObjectsErrorKind::NotFound => {
            return Finding::passed("the bucket has no lifecycle rules");
        }
        Err(error) => {
            let what = "the lifecycle rules cannot be read; make sure that none expires or moves objects of the store";
            return Finding::skipped(format!("{what}: {}", error.what));
        }
    };
    judge(&rules(&xml), &session.url().prefix)
}

fn judge(rules: &[Rule], prefix: &str) -> Finding {
    let touching = |names: &[&str], rule: &Rule| {
        let name = names.iter().map(|name| format!("{prefix}{name}"));
        name.into_iter().any(|name| rule.prefixes.iter().any(|rule| overlaps(rule, &name)))
    };
    for rule in rules {
        let (is_log, is_blob) = (touching(&LOG_NAMES, rule), touching(&BLOB_NAMES, rule));
        let verb = if rule.action == Action::Expires { "expires" } else { "moves" };
        let named = format!("rule={:?} prefixes={:?}", rule.id, rule.prefixes);
        if is_log || (is_blob && rule.action == Action::Expires) {
            let what = format!(
                "a lifecycle rule {verb} objects of the store; restrict it to other prefixes, or remove it"
            );
            return Finding::failed(format!("{what}: {named}"));
        }
        if is_blob {
            let what = "a lifecycle rule moves documents and snapshots; a class that must be restored before reads would \
                        make them unreadable";
            return Finding::warning(format!("{what}: {named}"));
        }
    }
    Finding::passed("no lifecycle rule touches objects of the store")
}

pub(super) async fn versioning(session: &Session) -> Finding {
    match session.client(0).bucket_request(&[("versioning", "")]).await {
        Ok(Some(xml)) if element(&xml, "Status").as_deref() == Some("Enabled") => Finding::warning(
            "the bucket keeps old versions: usable, but objects that lockd deletes stay, and cost, until a rule removes \
             noncurrent versions",
        ),
        Ok(Some(_)) => Finding::passed("the bucket keeps no old versions"),
        Ok(None) => Finding::skipped("versioning of Azure belongs to the storage account"),
        Err(error) => Finding::skipped(format!("the setting cannot be read: {}", error.what)),
    }
}

/// Whether a rule for names with the prefix `rule` concerns objects whose names begin with `name`.
fn overlaps(rule: &str, name: &str) -> bool {
    rule.starts_with(name) || name.starts_with(rule)
}

/// The rules of S3 and of GCS.
fn rules(xml: &str) -> Vec<Rule> {
    let rules = xml.split("<Rule>").skip(1).map(|rest| rest.split("</Rule>").next().unwrap_or(rest));
    rules.filter_map(|rule| if rule.contains("<Action>") { gcs_rule(rule) } else { s3_rule(rule) }).collect()
}

fn s3_rule(rule: &str) -> Option<Rule> {
    // Objects of the store have no tags.
    let is_for_tags = rule.contains("<Tag>");
    if element(rule, "Status").as_deref() != Some("Enabled") || is_for_tags {
        return None;
    }
    let action = if inside(rule, "Expiration").iter().any(|expiration| !is_of_markers(expiration)) {
        Action::Expires
    } else if rule.contains("<Transition>") {
        Action::Moves
    } else {
        return None;
    };
    // Without one, it is for all objects.
    let prefix = inside(rule, "Prefix").first().map_or_else(String::new, |prefix| (*prefix).to_string());
    Some(Rule { id: element(rule, "ID").unwrap_or_default(), prefixes: vec![prefix], action })
}

/// An expiration of delete markers only, which are no objects.
fn is_of_markers(expiration: &str) -> bool {
    expiration.contains("<ExpiredObjectDeleteMarker>")
        && !expiration.contains("<Days>")
        && !expiration.contains("<Date>")
}

fn gcs_rule(rule: &str) -> Option<Rule> {
    let action = if rule.contains("<Delete/>") || rule.contains("<Delete>") {
        Action::Expires
    } else if rule.contains("<SetStorageClass>") {
        Action::Moves
    } else {
        return None;
    };
    // Conditions that concern old versions only.
    let is_of_old = element(rule, "IsLive").as_deref() == Some("false");
    if is_of_old || rule.contains("<NumberOfNewerVersions>") || rule.contains("<DaysSinceNoncurrentTime>") {
        return None;
    }
    let mut prefixes: Vec<String> = inside(rule, "MatchesPrefix").iter().map(ToString::to_string).collect();
    if prefixes.is_empty() {
        prefixes.push(String::new());
    }
    Some(Rule { id: String::new(), prefixes, action })
}

/// The texts of all elements of this name, as they are.
fn inside<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&open).skip(1).filter_map(|rest| rest.split_once(&close).map(|(text, _)| text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Outcome;

    fn s3(status: &str, filter: &str, action: &str) -> String {
        format!(
            "<LifecycleConfiguration><Rule><ID>one</ID>{filter}<Status>{status}</Status>{action}</Rule>\
             </LifecycleConfiguration>"
        )
    }

    const EXPIRES: &str = "<Expiration><Days>30</Days></Expiration>";
    const MOVES: &str = "<Transition><Days>30</Days><StorageClass>GLACIER</StorageClass></Transition>";

    #[test]
    fn rules_that_touch_the_store_are_found() {
        let marker = "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";
        let old =
            "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>";
        let parts = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>7</DaysAfterInitiation>\
                     </AbortIncompleteMultipartUpload>";
        let of = |prefix: &str| format!("<Filter><Prefix>{prefix}</Prefix></Filter>");
        let tagged = "<Filter><And><Prefix></Prefix><Tag><Key>k</Key><Value>v</Value></Tag></And></Filter>";
        for (xml, expected) in [
            (s3("Enabled", "<Filter></Filter>", EXPIRES), Outcome::Failed),
            (s3("Enabled", "<Prefix/>", EXPIRES), Outcome::Failed),
            (s3("Enabled", "<Prefix></Prefix>", MOVES), Outcome::Failed),
            (s3("Enabled", &of("prod/"), EXPIRES), Outcome::Failed),
            (s3("Enabled", &of("pro"), MOVES), Outcome::Failed),
            (s3("Enabled", &of("prod/log/"), EXPIRES), Outcome::Failed),
            (s3("Enabled", &of("prod/log/0/00"), EXPIRES), Outcome::Failed),
            (s3("Enabled", &of("prod/store"), EXPIRES), Outcome::Failed),
            (s3("Enabled", &of("prod/blob/"), EXPIRES), Outcome::Failed),
            (s3("Enabled", &of("prod/blob/"), MOVES), Outcome::Warning),
            (s3("Enabled", &of("prod/probe/"), EXPIRES), Outcome::Passed),
            (s3("Enabled", &of("backups/"), EXPIRES), Outcome::Passed),
            (s3("Enabled", &of("a&amp;b"), EXPIRES), Outcome::Passed),
            (s3("Disabled", &of(""), EXPIRES), Outcome::Passed),
            (s3("Enabled", &of(""), marker), Outcome::Passed),
            (s3("Enabled", &of(""), old), Outcome::Passed),
            (s3("Enabled", &of(""), parts), Outcome::Passed),
            (s3("Enabled", tagged, EXPIRES), Outcome::Passed),
        ] {
            assert_eq!(judge(&rules(&xml), "prod/").outcome, expected, "{xml}");
        }
        let found = judge(&rules(&s3("Enabled", &of("prod/"), EXPIRES)), "prod/");
        assert!(found.what.contains("\"one\"") && found.what.contains("expires"), "{found:?}");
    }

    #[test]
    fn rules_of_gcs_are_read() {
        let rule = |action: &str, condition: &str| {
            format!(
                "<LifecycleConfiguration><Rule><Action>{action}</Action><Condition>{condition}</Condition></Rule>\
                 </LifecycleConfiguration>"
            )
        };
        let of = |prefix: &str| format!("<Age>30</Age><MatchesPrefix>{prefix}</MatchesPrefix>");
        let class = "<SetStorageClass>ARCHIVE</SetStorageClass>";
        for (xml, expected) in [
            (rule("<Delete/>", "<Age>30</Age>"), Outcome::Failed),
            (rule("<Delete/>", &of("prod/floor/")), Outcome::Failed),
            (rule(class, &of("prod/")), Outcome::Failed),
            (rule("<Delete/>", &of("other/")), Outcome::Passed),
            (rule("<Delete/>", "<IsLive>false</IsLive>"), Outcome::Passed),
            (rule("<AbortIncompleteMultipartUpload/>", "<Age>7</Age>"), Outcome::Passed),
        ] {
            assert_eq!(judge(&rules(&xml), "prod/").outcome, expected, "{xml}");
        }
    }
}
