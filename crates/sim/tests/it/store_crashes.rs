//! A power failure at every call of a scripted workload, one run per call. Acknowledged data must survive, and the
//! store must continue to work.

use std::path::Path;

use sim::disk::{FaultPlan, SimFs};
use sim::rng::Rng;
use store::conformance::{append_next, check, fill};
use store::disk::{DiskBlobs, DiskLog, LogOptions, TornTail};
use store::fs::Fs;
use store::{BlobName, BlobStore, ErrorKind, LogStore, Seq, StoreError};

const OPTIONS: LogOptions =
    LogOptions { shard: 0, store_id: 9, segment_bytes: LogOptions::SEGMENT_BYTES_MIN };
const DISK_FULL: i32 = 28;

/// The acknowledged bounds of the log, and the operation in progress.
#[derive(Clone, Copy, Debug, Default)]
struct Acknowledged {
    next: u64,
    floor: u64,
    /// The floor that was being raised when the power failed.
    raising: u64,
}

fn open(fs: &SimFs) -> Result<(DiskLog<SimFs>, Option<TornTail>), StoreError> {
    DiskLog::open(fs.clone(), Path::new("/store/log"), OPTIONS)
}

/// Appends, begins and drops segments, and reopens the log, until it is done or the power fails.
fn use_log(fs: &SimFs, acknowledged: &mut Acknowledged) -> Result<(), StoreError> {
    let (mut log, _) = open(fs)?;
    for step in 0..120 {
        append_next(&mut log)?;
        acknowledged.next = log.bounds().next.0;
        if step % 17 == 16 {
            acknowledged.raising = acknowledged.next - 5;
            log.raise_floor(Seq(acknowledged.raising))?;
            acknowledged.floor = acknowledged.raising;
        }
        if step % 25 == 24 {
            log = open(fs)?.0;
            assert_eq!((log.bounds().floor.0, log.bounds().next.0), (acknowledged.floor, acknowledged.next));
        }
    }
    Ok(())
}

/// After a crash everything acknowledged is there, at most one batch more, and the log continues to work.
fn check_log(fs: &SimFs, acknowledged: Acknowledged, context: &str) {
    let (mut log, cut) = open(fs).unwrap_or_else(|error| panic!("{context}: {error}"));
    let bounds = log.bounds();
    assert!(
        (acknowledged.next..=acknowledged.next + 1).contains(&bounds.next.0),
        "{context}: expected {acknowledged:?}, found {bounds:?}"
    );
    assert!(
        [acknowledged.floor, acknowledged.raising].contains(&bounds.floor.0),
        "{context}: expected {acknowledged:?}, found {bounds:?}"
    );
    if let Some(cut) = cut {
        assert_eq!(
            (cut.seq, bounds.next),
            (Seq(acknowledged.next), Seq(acknowledged.next)),
            "{context}: only the last can be torn"
        );
    }
    check(&log);
    fill(&mut log, bounds.next.0 + 40);
    check(&log);
    let (log, cut) = open(fs).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!((log.bounds().next.0, cut), (bounds.next.0 + 40, None), "{context}");
}

#[test]
fn a_log_survives_a_crash_at_every_call() {
    let fault_free = SimFs::new(FaultPlan::default());
    use_log(&fault_free, &mut Acknowledged::default()).expect("no fault");
    assert!(fault_free.calls() > 300, "the workload makes {} calls", fault_free.calls());
    for crash_at in 0..fault_free.calls() {
        let fs = SimFs::new(FaultPlan { crash_at: Some(crash_at), fail_at: None });
        let mut acknowledged = Acknowledged::default();
        assert!(use_log(&fs, &mut acknowledged).is_err(), "the power fails at call {crash_at}");
        for seed in 0..12 {
            let context = format!("crash at call {crash_at}, seed {seed}");
            check_log(&fs.after_crash(&mut Rng::new(seed), FaultPlan::default()), acknowledged, &context);
        }
    }
}

/// Recovery itself may crash, repeatedly.
#[test]
fn a_log_survives_crashes_during_its_recovery() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut acknowledged = Acknowledged::default();
        let mut fs = SimFs::new(FaultPlan { crash_at: Some(rng.below(400)), fail_at: None });
        let _ = use_log(&fs, &mut acknowledged);
        for _ in 0..4 {
            let plan = FaultPlan { crash_at: Some(rng.below(30)), fail_at: None };
            fs = fs.after_crash(&mut rng, plan);
            // It may succeed or crash; no acknowledged data may be lost.
            drop(open(&fs));
        }
        check_log(&fs.after_crash(&mut rng, FaultPlan::default()), acknowledged, &format!("seed {seed}"));
    }
}

/// A full disk loses no data: the reservation fails, and a later one succeeds.
#[test]
fn a_full_disk_at_any_call_of_a_reservation_loses_nothing() {
    for fail_at in 0..40 {
        let fs = SimFs::new(FaultPlan { crash_at: None, fail_at: Some((fail_at, DISK_FULL)) });
        let Ok((mut log, _)) = open(&fs) else { continue };
        match log.reserve() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
                log.reserve().expect("there is space again");
            }
        }
        assert!(log.capacity().spare && log.capacity().bytes >= 1000);
    }
}

/// After a failed sync the contents of the disk are unknown: the log must not accept further appends.
#[test]
fn after_a_failed_append_the_log_rejects_appends_until_it_is_reopened() {
    const IO_ERROR: i32 = 5;
    let mut failures = 0;
    for fail_at in 0..60 {
        let fs = SimFs::new(FaultPlan { crash_at: None, fail_at: Some((fail_at, IO_ERROR)) });
        let Ok((mut log, _)) = open(&fs) else { continue };
        let failed =
            (0..20).find_map(|_| append_next(&mut log).err().map(|error| (error, log.bounds().next)));
        let Some((_, next)) = failed.filter(|(error, _)| error.what.contains("appending")) else { continue };
        failures += 1;
        assert!(append_next(&mut log).is_err(), "call {fail_at}");
        let acknowledged = Acknowledged { next: next.0, ..Acknowledged::default() };
        check_log(
            &fs.after_crash(&mut Rng::new(fail_at), FaultPlan::default()),
            acknowledged,
            &format!("call {fail_at}"),
        );
    }
    assert!(failures > 5, "{failures}");
}

#[test]
fn a_crash_at_any_call_leaves_a_blob_complete_or_absent() {
    // One part, and several parts that are synced while more is written.
    for length in [1000, (4 << 20) + 1000] {
        let contents: Vec<u8> = (0..=250).cycle().take(length).collect();
        check_complete_or_absent(&contents);
    }
}

fn check_complete_or_absent(contents: &[u8]) {
    let name = BlobName::new("doc/1-7").expect("a name");
    let use_blobs = |fs: &SimFs| -> Result<(), StoreError> {
        let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob"))?;
        let mut writer = blobs.create(&name)?;
        contents.chunks(contents.len() / 3).try_for_each(|part| writer.write(part))?;
        writer.finish().map(drop)
    };
    let fault_free = SimFs::new(FaultPlan::default());
    use_blobs(&fault_free).expect("no fault");
    for crash_at in 0..=fault_free.calls() {
        let fs = SimFs::new(FaultPlan { crash_at: Some(crash_at), fail_at: None });
        let finished = use_blobs(&fs).is_ok();
        for seed in 0..20 {
            let context = format!("{} bytes, crash at call {crash_at}, seed {seed}", contents.len());
            let fs = fs.after_crash(&mut Rng::new(seed), FaultPlan::default());
            let blobs = DiskBlobs::open(fs, Path::new("/store/blob")).expect("a directory");
            match blobs.read(&name, 0, 5 << 20) {
                Ok(bytes) => assert!(bytes == contents, "{context}"),
                Err(error) => assert!(error.kind == ErrorKind::Gone && !finished, "{context}: {error}"),
            }
        }
    }
}

/// Creates blobs, deletes one and lists them; `acknowledged` records which exist and which do not.
fn use_blobs(fs: &SimFs, acknowledged: &mut Vec<(&'static str, bool)>) -> Result<(), StoreError> {
    let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob"))?;
    for name in ["doc/1-7", "doc/2", "snapshot/0/1"] {
        let mut writer = blobs.create(&blob_name(name))?;
        contents(name).chunks(300).try_for_each(|part| writer.write(part))?;
        writer.finish()?;
        acknowledged.push((name, true));
    }
    acknowledged.retain(|(name, _)| *name != "doc/2");
    blobs.delete(&blob_name("doc/2"))?;
    acknowledged.push(("doc/2", false));
    blobs.list("").map(drop)
}

fn blob_name(name: &str) -> BlobName {
    BlobName::new(name).expect("a valid name")
}

/// Different for every name.
fn contents(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(1000).collect()
}

/// Listed blobs are complete, and match what was acknowledged. Unfinished uploads are gone, and their names free.
fn check_blobs(fs: &SimFs, acknowledged: &[(&'static str, bool)], context: &str) {
    let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob")).expect("a directory");
    let listed = blobs.list("").expect("a list");
    for name in &listed {
        assert_eq!(blobs.read(name, 0, 2000).expect("listed"), contents(name.as_str()), "{context}: {name}");
    }
    for (name, there) in acknowledged {
        assert_eq!(listed.contains(&blob_name(name)), *there, "{context}: {name} in {listed:?}");
    }
    assert_eq!(fs.list(Path::new("/store/blob/tmp")).expect("a directory"), [""; 0], "{context}");
    let mut writer =
        blobs.create(&blob_name("next")).expect("no temporary file of an earlier process remains");
    writer.write(&contents("next")).expect("there is space");
    writer.finish().expect("a free name");
}

#[test]
fn created_and_deleted_blobs_are_complete_or_absent_after_any_crash() {
    let fault_free = SimFs::new(FaultPlan::default());
    use_blobs(&fault_free, &mut Vec::new()).expect("no fault");
    for crash_at in 0..=fault_free.calls() {
        let fs = SimFs::new(FaultPlan { crash_at: Some(crash_at), fail_at: None });
        let mut acknowledged = Vec::new();
        let _ = use_blobs(&fs, &mut acknowledged);
        for seed in 0..20 {
            let context = format!("crash at call {crash_at}, seed {seed}");
            check_blobs(&fs.after_crash(&mut Rng::new(seed), FaultPlan::default()), &acknowledged, &context);
        }
    }
}

/// Without free file descriptors a directory could not be listed, and counted as a blob itself: the blobs in it
/// were missing from the list, as if they had been lost.
#[test]
fn a_list_of_blobs_is_complete_or_fails() {
    const NO_DESCRIPTORS: i32 = 24;
    let fault_free = SimFs::new(FaultPlan::default());
    use_blobs(&fault_free, &mut Vec::new()).expect("no fault");
    let before = fault_free.calls();
    let whole = DiskBlobs::open(fault_free.clone(), Path::new("/store/blob"))
        .expect("open")
        .list("")
        .expect("a list");
    for fail_at in before..fault_free.calls() {
        let fs = SimFs::new(FaultPlan { crash_at: None, fail_at: Some((fail_at, NO_DESCRIPTORS)) });
        use_blobs(&fs, &mut Vec::new()).expect("no fault yet");
        match DiskBlobs::open(fs, Path::new("/store/blob")).and_then(|blobs| blobs.list("")) {
            Ok(listed) => panic!("call {fail_at} failed unnoticed: {listed:?} of {whole:?}"),
            Err(error) => assert_eq!(error.kind, ErrorKind::NoSpace, "{error}"),
        }
    }
}

/// The operating system reports lost writes once; the next sync succeeds. A blob with a hole must not be published.
#[test]
fn a_blob_of_which_a_part_failed_cannot_be_finished() {
    const IO_ERROR: i32 = 5;
    let long = vec![7; (4 << 20) + 1];
    let create_blob = |plan| {
        let fs = SimFs::new(plan);
        let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob")).expect("no fault yet");
        let writer = blobs.create(&blob_name("doc/1")).expect("no fault yet");
        (fs, blobs, writer)
    };
    let (fault_free, blobs, mut writer) = create_blob(FaultPlan::default());
    let before = fault_free.calls();
    writer.write(&long).expect("no fault");
    assert_eq!(fault_free.calls() - before, 4, "three parts, and the sync of the first of them");
    let written = fault_free.calls();
    writer.finish().expect("no fault");
    assert_eq!(blobs.list("").expect("a list"), [blob_name("doc/1")]);
    // `finish` syncs the last two parts.
    for fail_at in before..written + 2 {
        let (_, blobs, mut writer) =
            create_blob(FaultPlan { crash_at: None, fail_at: Some((fail_at, IO_ERROR)) });
        let failed = writer.write(&long).is_err();
        assert_eq!(failed, fail_at < written, "call {fail_at}");
        assert!(!failed || writer.write(b"more").is_err(), "call {fail_at}");
        assert!(writer.finish().is_err(), "call {fail_at}");
        assert_eq!(blobs.list("").expect("a list"), []);
    }
}
