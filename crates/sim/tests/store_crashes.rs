//! The power fails at every call of a scripted workload, one after the other. What was acknowledged must
//! be there when the power is back, and the store must go on.
#![allow(missing_docs, reason = "a test has no public items")]

use std::path::Path;

use sim::disk::{Fate, SimFs};
use sim::rng::Rng;
use store::conformance::{append_next, check, fill};
use store::disk::{Cut, DiskBlobs, DiskLog, LogOptions};
use store::{BlobName, BlobStore, ErrorKind, LogStore, Seq, StoreError};

const OPTIONS: LogOptions =
    LogOptions { shard: 0, store_id: 9, segment_bytes: LogOptions::SEGMENT_BYTES_MIN };
const DISK_FULL: i32 = 28;

/// What the store has said is so, and what it was doing last.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    next: u64,
    floor: u64,
    /// The floor that was being raised when the power failed.
    raising: u64,
}

fn open(fs: &SimFs) -> Result<(DiskLog<SimFs>, Option<Cut>), StoreError> {
    DiskLog::open(fs.clone(), Path::new("/store/log"), OPTIONS)
}

/// Appends, begins segments, drops old ones and opens again, until it is done or the power is.
fn use_log(fs: &SimFs, said: &mut Said) -> Result<(), StoreError> {
    let (mut log, _) = open(fs)?;
    for step in 0..120 {
        append_next(&mut log)?;
        said.next = log.bounds().next.0;
        if step % 17 == 16 {
            said.raising = said.next - 5;
            log.raise_floor(Seq(said.raising))?;
            said.floor = said.raising;
        }
        if step % 25 == 24 {
            log = open(fs)?.0;
            assert_eq!((log.bounds().floor.0, log.bounds().next.0), (said.floor, said.next));
        }
    }
    Ok(())
}

/// After a crash: everything that was said is so, at most one batch more, and the log goes on.
fn check_log(fs: &SimFs, said: Said, story: &str) {
    let (mut log, cut) = open(fs).unwrap_or_else(|error| panic!("{story}: {error}"));
    let bounds = log.bounds();
    assert!((said.next..=said.next + 1).contains(&bounds.next.0), "{story}: said {said:?}, found {bounds:?}");
    assert!([said.floor, said.raising].contains(&bounds.floor.0), "{story}: said {said:?}, found {bounds:?}");
    if let Some(cut) = cut {
        assert_eq!(
            (cut.seq, bounds.next),
            (Seq(said.next), Seq(said.next)),
            "{story}: only the last can be torn"
        );
    }
    check(&log);
    fill(&mut log, bounds.next.0 + 40);
    check(&log);
    let (log, cut) = open(fs).unwrap_or_else(|error| panic!("{story}: {error}"));
    assert_eq!((log.bounds().next.0, cut), (bounds.next.0 + 40, None), "{story}");
}

#[test]
fn a_log_survives_a_crash_at_every_call() {
    let calm = SimFs::new(Fate::default());
    use_log(&calm, &mut Said::default()).expect("nothing goes wrong");
    assert!(calm.calls() > 300, "the workload makes {} calls", calm.calls());
    for crash_at in 0..calm.calls() {
        let fs = SimFs::new(Fate { crash_at: Some(crash_at), fail_at: None });
        let mut said = Said::default();
        assert!(use_log(&fs, &mut said).is_err(), "the power fails at call {crash_at}");
        for seed in 0..12 {
            let story = format!("crash at call {crash_at}, seed {seed}");
            check_log(&fs.after_crash(&mut Rng::new(seed), Fate::default()), said, &story);
        }
    }
}

/// Recovery itself may be cut short, again and again.
#[test]
fn a_log_survives_crashes_during_its_recovery() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut said = Said::default();
        let mut fs = SimFs::new(Fate { crash_at: Some(rng.below(400)), fail_at: None });
        let _ = use_log(&fs, &mut said);
        for _ in 0..4 {
            let fate = Fate { crash_at: Some(rng.below(30)), fail_at: None };
            fs = fs.after_crash(&mut rng, fate);
            // Whether it gets through or not, nothing that was said may be lost.
            drop(open(&fs));
        }
        check_log(&fs.after_crash(&mut rng, Fate::default()), said, &format!("seed {seed}"));
    }
}

/// A full disk is no reason to lose anything: what cannot be reserved is refused, and later it can.
#[test]
fn a_full_disk_at_any_call_of_a_reservation_harms_nothing() {
    for fail_at in 0..40 {
        let fs = SimFs::new(Fate { crash_at: None, fail_at: Some((fail_at, DISK_FULL)) });
        let Ok((mut log, _)) = open(&fs) else { continue };
        match log.reserve(1000) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
                log.reserve(1000).expect("there is room again");
            }
        }
        assert!(log.room().spare && log.room().bytes >= 1000);
    }
}

/// A sync that fails leaves nobody knowing what is on disk: the log must not pretend to know.
#[test]
fn after_a_failed_append_the_log_takes_no_more_until_it_is_opened_again() {
    const IO_ERROR: i32 = 5;
    let mut failures = 0;
    for fail_at in 0..60 {
        let fs = SimFs::new(Fate { crash_at: None, fail_at: Some((fail_at, IO_ERROR)) });
        let Ok((mut log, _)) = open(&fs) else { continue };
        let failed =
            (0..20).find_map(|_| append_next(&mut log).err().map(|error| (error, log.bounds().next)));
        let Some((_, next)) = failed.filter(|(error, _)| error.what.contains("appending")) else { continue };
        failures += 1;
        assert!(append_next(&mut log).is_err(), "call {fail_at}");
        let said = Said { next: next.0, ..Said::default() };
        check_log(&fs.after_crash(&mut Rng::new(fail_at), Fate::default()), said, &format!("call {fail_at}"));
    }
    assert!(failures > 5, "{failures}");
}

#[test]
fn a_blob_is_there_whole_or_not_at_all_whenever_the_power_fails() {
    let name = BlobName::new("doc/1-7").expect("a name");
    let contents: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let use_blobs = |fs: &SimFs| -> Result<(), StoreError> {
        let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob"))?;
        let mut writer = blobs.create(&name)?;
        contents.chunks(300).try_for_each(|part| writer.write(part))?;
        writer.finish().map(drop)
    };
    let calm = SimFs::new(Fate::default());
    use_blobs(&calm).expect("nothing goes wrong");
    for crash_at in 0..=calm.calls() {
        let fs = SimFs::new(Fate { crash_at: Some(crash_at), fail_at: None });
        let finished = use_blobs(&fs).is_ok();
        for seed in 0..20 {
            let story = format!("crash at call {crash_at}, seed {seed}");
            let fs = fs.after_crash(&mut Rng::new(seed), Fate::default());
            let blobs = DiskBlobs::open(fs, Path::new("/store/blob")).expect("a directory");
            match blobs.read(&name, 0, 2000) {
                Ok(bytes) => assert_eq!(bytes, contents, "{story}"),
                Err(error) => assert!(error.kind == ErrorKind::Gone && !finished, "{story}: {error}"),
            }
        }
    }
}
