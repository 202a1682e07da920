//! An error or a pause before each call.

use std::sync::mpsc;

use super::*;

/// Lock, read, write the temporary file, sync it, rename it, sync the directory.
const CALLS: usize = 6;
const RENAME: usize = 4;

#[test]
fn an_error_at_any_call_leaves_the_old_version_or_says_that_it_may_not() {
    for failing in 0..=CALLS {
        let dir = tempfile::tempdir().expect("a directory");
        let file = file(dir.path());
        file.write(Token(5), b"old").expect("the first");
        let hooked = HookedDir::new(&file.dir, |call| {
            if call == failing { Err(io::Error::other("injected")) } else { Ok(()) }
        });
        let result = write(&hooked, 6, b"new");
        let found = file.read().expect("readable").expect("a version");
        match failing {
            0..=RENAME => {
                assert!(matches!(result, Err(Error::Unavailable(_))), "call {failing}: {result:?}");
                assert_eq!(found, version(5, 1, b"old"), "call {failing}");
            }
            5 => {
                assert!(matches!(result, Err(Error::Indeterminate(_))), "{result:?}");
                assert_eq!(found, version(6, 2, b"new"));
            }
            _ => assert_eq!((result, hooked.calls.get()), (Ok(found), CALLS), "all calls were tried"),
        }
        assert!(!dir.path().join(".state.fence-temp").exists(), "call {failing} left nothing behind");
        file.write(Token(6), b"again").expect("the lock is free");
    }
}

#[test]
fn a_rename_that_was_done_and_reported_as_failed_is_indeterminate() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = file(dir.path());
    let hooked = HookedDir::new(&file.dir, |call| {
        if call == RENAME {
            file.dir.rename_temp()?;
            return Err(io::Error::other("injected"));
        }
        Ok(())
    });
    let result = write(&hooked, 6, b"new");
    assert!(matches!(result, Err(Error::Indeterminate(_))), "{result:?}");
    assert_eq!(file.read(), Ok(Some(version(6, 1, b"new"))));
}

/// The lock makes check and write one step: A has read token 5 and is paused, once before each of its calls; B cannot
/// write before A is done, and A cannot write after B.
#[test]
fn no_write_comes_between_the_check_of_another_writer_and_its_write() {
    for paused in 1..CALLS {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state");
        file(dir.path()).write(Token(5), b"old").expect("the first");
        let (at, is_at) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let file = FencedFile::open(path).expect("a directory");
            let hooked = HookedDir::new(&file.dir, |call| {
                if call == paused {
                    at.send(()).expect("the test listens");
                    may_go.recv().expect("the test tells");
                }
                Ok(())
            });
            write(&hooked, 5, b"A").expect("no other writer got the lock");
            file.write(Token(5), b"A again")
        });
        is_at.recv().expect("A reaches the call");
        let hasty = file(dir.path()).lock_timeout(Duration::from_millis(20));
        let result = hasty.write(Token(6), b"B");
        assert!(matches!(result, Err(Error::Unavailable(_))), "A is at call {paused}: {result:?}");
        // B waits for A; A's second write comes before or after B's.
        go.send(()).expect("A listens");
        file(dir.path()).write(Token(6), b"B").expect("A gets done");
        let again = writer.join().expect("no panic");
        assert!(matches!(again, Ok(()) | Err(Error::Stale { .. })), "{again:?}");
        let found = file(dir.path()).read().expect("readable").expect("a version");
        assert_eq!((found.token, found.content), (Token(6), Some(b"B".to_vec())), "paused at call {paused}");
    }
}

/// A clean-up removes the lock file just after a writer has opened it. A writer with the removed file and a writer with a
/// new one would then write concurrently.
#[test]
fn a_lock_that_was_removed_is_no_lock() {
    let dir = tempfile::tempdir().expect("a directory");
    let local = file(dir.path()).dir;
    let opened = || local.open_lock().expect("created if missing");
    let (removed, lock) = (opened(), dir.path().join(".state.fence-lock"));
    std::fs::remove_file(&lock).expect("it is there");
    assert!(local.try_lock(removed).expect("no error").is_none(), "it has no name");
    let removed = opened();
    std::fs::remove_file(&lock).expect("it is there");
    let guard = local.try_lock(opened()).expect("no error").expect("it is the lock");
    assert!(local.try_lock(removed).expect("no error").is_none(), "another has the name");
    assert!(local.try_lock(opened()).expect("no error").is_none(), "it is taken");
    drop(guard);
    assert!(local.try_lock(opened()).expect("no error").is_some(), "it is free again");
}
