//! The power fails at every call of a scripted workload, one after the other. What was acknowledged must
//! be there when the power is back, and the store must go on.

use std::path::Path;

use sim::disk::{Fate, SimFs};
use sim::rng::Rng;
use store::conformance::{append_next, check, fill};
use store::disk::{Cut, DiskBlobs, DiskLog, LogOptions};
use store::fs::Fs;
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
    // In one part, and in several that are synced while more is written.
    for length in [1000, (4 << 20) + 1000] {
        let contents: Vec<u8> = (0..=250).cycle().take(length).collect();
        is_whole_or_not_there(&contents);
    }
}

fn is_whole_or_not_there(contents: &[u8]) {
    let name = BlobName::new("doc/1-7").expect("a name");
    let use_blobs = |fs: &SimFs| -> Result<(), StoreError> {
        let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob"))?;
        let mut writer = blobs.create(&name)?;
        contents.chunks(contents.len() / 3).try_for_each(|part| writer.write(part))?;
        writer.finish().map(drop)
    };
    let calm = SimFs::new(Fate::default());
    use_blobs(&calm).expect("nothing goes wrong");
    for crash_at in 0..=calm.calls() {
        let fs = SimFs::new(Fate { crash_at: Some(crash_at), fail_at: None });
        let finished = use_blobs(&fs).is_ok();
        for seed in 0..20 {
            let story = format!("{} bytes, crash at call {crash_at}, seed {seed}", contents.len());
            let fs = fs.after_crash(&mut Rng::new(seed), Fate::default());
            let blobs = DiskBlobs::open(fs, Path::new("/store/blob")).expect("a directory");
            match blobs.read(&name, 0, 5 << 20) {
                Ok(bytes) => assert!(bytes == contents, "{story}"),
                Err(error) => assert!(error.kind == ErrorKind::Gone && !finished, "{story}: {error}"),
            }
        }
    }
}

/// Makes blobs, deletes one and lists them; `said` is which are there and which are not.
fn use_blobs(fs: &SimFs, said: &mut Vec<(&'static str, bool)>) -> Result<(), StoreError> {
    let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob"))?;
    for name in ["doc/1-7", "doc/2", "snapshot/0/1"] {
        let mut writer = blobs.create(&blob_name(name))?;
        contents(name).chunks(300).try_for_each(|part| writer.write(part))?;
        writer.finish()?;
        said.push((name, true));
    }
    said.retain(|(name, _)| *name != "doc/2");
    blobs.delete(&blob_name("doc/2"))?;
    said.push(("doc/2", false));
    blobs.list("").map(drop)
}

fn blob_name(name: &str) -> BlobName {
    BlobName::new(name).expect("a valid name")
}

/// Different for every name.
fn contents(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(1000).collect()
}

/// Whatever is listed is whole, and what was said is so. What was under way is gone, and its number is free.
fn check_blobs(fs: &SimFs, said: &[(&'static str, bool)], story: &str) {
    let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob")).expect("a directory");
    let listed = blobs.list("").expect("a list");
    for name in &listed {
        assert_eq!(blobs.read(name, 0, 2000).expect("listed"), contents(name.as_str()), "{story}: {name}");
    }
    for (name, there) in said {
        assert_eq!(listed.contains(&blob_name(name)), *there, "{story}: {name} in {listed:?}");
    }
    assert_eq!(fs.list(Path::new("/store/blob/tmp")).expect("a directory"), [""; 0], "{story}");
    let mut writer = blobs.create(&blob_name("next")).expect("no name of an earlier process is in the way");
    writer.write(&contents("next")).expect("room");
    writer.finish().expect("a free name");
}

#[test]
fn blobs_that_come_and_go_are_whole_or_not_there_whenever_the_power_fails() {
    let calm = SimFs::new(Fate::default());
    use_blobs(&calm, &mut Vec::new()).expect("nothing goes wrong");
    for crash_at in 0..=calm.calls() {
        let fs = SimFs::new(Fate { crash_at: Some(crash_at), fail_at: None });
        let mut said = Vec::new();
        let _ = use_blobs(&fs, &mut said);
        for seed in 0..20 {
            let story = format!("crash at call {crash_at}, seed {seed}");
            check_blobs(&fs.after_crash(&mut Rng::new(seed), Fate::default()), &said, &story);
        }
    }
}

/// With no descriptors left, a directory could not be listed, and was taken for a blob itself: those in it
/// were missing from the list, as if they had been lost.
#[test]
fn a_list_of_blobs_is_complete_or_fails() {
    const NO_DESCRIPTORS: i32 = 24;
    let calm = SimFs::new(Fate::default());
    use_blobs(&calm, &mut Vec::new()).expect("nothing goes wrong");
    let before = calm.calls();
    let whole =
        DiskBlobs::open(calm.clone(), Path::new("/store/blob")).expect("open").list("").expect("a list");
    for fail_at in before..calm.calls() {
        let fs = SimFs::new(Fate { crash_at: None, fail_at: Some((fail_at, NO_DESCRIPTORS)) });
        use_blobs(&fs, &mut Vec::new()).expect("nothing goes wrong yet");
        match DiskBlobs::open(fs, Path::new("/store/blob")).and_then(|blobs| blobs.list("")) {
            Ok(listed) => panic!("call {fail_at} failed unnoticed: {listed:?} of {whole:?}"),
            Err(error) => assert_eq!(error.kind, ErrorKind::NoSpace, "{error}"),
        }
    }
}

/// The operating system reports once that it lost what was written; the next sync succeeds. A blob with a
/// hole in it must not get its name.
#[test]
fn a_blob_of_which_a_part_failed_cannot_be_finished() {
    const IO_ERROR: i32 = 5;
    let long = vec![7; (4 << 20) + 1];
    let begun = |fate| {
        let fs = SimFs::new(fate);
        let blobs = DiskBlobs::open(fs.clone(), Path::new("/store/blob")).expect("nothing goes wrong yet");
        let writer = blobs.create(&blob_name("doc/1")).expect("nothing goes wrong yet");
        (fs, blobs, writer)
    };
    let (calm, blobs, mut writer) = begun(Fate::default());
    let before = calm.calls();
    writer.write(&long).expect("nothing goes wrong");
    assert_eq!(calm.calls() - before, 4, "three parts, and the sync of the first of them");
    let written = calm.calls();
    writer.finish().expect("nothing goes wrong");
    assert_eq!(blobs.list("").expect("a list"), [blob_name("doc/1")]);
    // The last two parts are synced by whoever finishes.
    for fail_at in before..written + 2 {
        let (_, blobs, mut writer) = begun(Fate { crash_at: None, fail_at: Some((fail_at, IO_ERROR)) });
        let failed = writer.write(&long).is_err();
        assert_eq!(failed, fail_at < written, "call {fail_at}");
        assert!(!failed || writer.write(b"more").is_err(), "call {fail_at}");
        assert!(writer.finish().is_err(), "call {fail_at}");
        assert_eq!(blobs.list("").expect("a list"), []);
    }
}
