//! The day that the build script writes into the engine.

#[allow(dead_code, reason = "only a part of the script is tested")]
#[path = "../../build.rs"]
mod script;

use script::{RELEASE_DAY, build_day};

const NOW: u64 = 30_000 * 86_400;

/// It was the day on which the script ran: the same sources gave other bytes on another day.
#[test]
fn the_day_is_that_of_the_variable_then_of_the_commit_then_of_the_release() {
    let commit = Some(25_000 * 86_400 + 86_399);
    assert_eq!(build_day(Some("1792800000\n"), commit, NOW), Ok(20_750));
    assert_eq!(build_day(None, commit, NOW), Ok(25_000));
    assert_eq!(
        build_day(None, commit, NOW + 10 * 86_400),
        Ok(25_000),
        "it does not depend on the day of the build"
    );
    assert_eq!(build_day(None, None, NOW), Ok(RELEASE_DAY));
}

#[test]
fn a_commit_in_the_future_and_a_variable_that_is_no_number_are_not_believed() {
    assert_eq!(build_day(None, Some(NOW + 1), NOW), Ok(RELEASE_DAY));
    for bad in ["", "yesterday", "-1", "1.5"] {
        let error = build_day(Some(bad), None, NOW).expect_err(bad);
        assert!(error.contains("SOURCE_DATE_EPOCH"), "{error}");
    }
}
