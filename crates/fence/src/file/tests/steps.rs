//! An error, a kill or a pause before each call.

use std::sync::mpsc;

use super::*;

/// Take a turn, read, write beside, sync it, rename, sync the directory.
const CALLS: usize = 6;
const RENAME: usize = 4;

#[test]
fn an_error_at_any_call_leaves_the_old_version_or_says_that_it_may_not() {
    for failing in 0..=CALLS {
        let dir = tempfile::tempdir().expect("a directory");
        let file = file(dir.path());
        file.write(Token(5), b"old").expect("the first");
        let watched = Watched::new(&file.place, |call| {
            if call == failing { Err(io::Error::other("injected")) } else { Ok(()) }
        });
        let told = write(&watched, 6, b"new");
        let found = file.read().expect("readable").expect("a version");
        match failing {
            0..=RENAME => {
                assert!(matches!(told, Err(Error::Unavailable(_))), "call {failing}: {told:?}");
                assert_eq!(found, version(5, 1, b"old"), "call {failing}");
            }
            5 => {
                assert!(matches!(told, Err(Error::Indeterminate(_))), "{told:?}");
                assert_eq!(found, version(6, 2, b"new"));
            }
            _ => assert_eq!((told, watched.calls.get()), (Ok(found), CALLS), "all calls were tried"),
        }
        assert!(!dir.path().join(".state.fence-temp").exists(), "call {failing} left nothing behind");
        file.write(Token(6), b"again").expect("the way is free");
    }
}

#[test]
fn a_rename_that_was_done_and_reported_as_failed_is_indeterminate() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = file(dir.path());
    let watched = Watched::new(&file.place, |call| {
        if call == RENAME {
            file.place.swap_in()?;
            return Err(io::Error::other("injected"));
        }
        Ok(())
    });
    let told = write(&watched, 6, b"new");
    assert!(matches!(told, Err(Error::Indeterminate(_))), "{told:?}");
    assert_eq!(file.read(), Ok(Some(version(6, 1, b"new"))));
}

/// Check, then write, is what the lock is for: A has read token 5 and is paused, once before each of its calls; B may
/// not write before A is done, and A may not after B.
#[test]
fn nobody_writes_between_the_check_of_another_and_its_write() {
    for paused in 1..CALLS {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state");
        file(dir.path()).write(Token(5), b"old").expect("the first");
        let (at, is_at) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let file = FencedFile::open(path).expect("a directory");
            let watched = Watched::new(&file.place, |call| {
                if call == paused {
                    at.send(()).expect("the test listens");
                    may_go.recv().expect("the test tells");
                }
                Ok(())
            });
            write(&watched, 5, b"A").expect("nobody could come between");
            file.write(Token(5), b"A again")
        });
        is_at.recv().expect("A comes there");
        let hasty = file(dir.path()).patience(Duration::from_millis(20));
        let told = hasty.write(Token(6), b"B");
        assert!(matches!(told, Err(Error::Unavailable(_))), "A is at call {paused}: {told:?}");
        // B waits while A goes on; A's second write comes before or after B's.
        go.send(()).expect("A listens");
        file(dir.path()).write(Token(6), b"B").expect("A gets done");
        let again = writer.join().expect("no panic");
        assert!(matches!(again, Ok(()) | Err(Error::Stale { .. })), "{again:?}");
        let found = file(dir.path()).read().expect("readable").expect("a version");
        assert_eq!((found.token, found.content), (Token(6), Some(b"B".to_vec())), "paused at call {paused}");
    }
}

/// Somebody cleans up and removes the lock's file, just as another has opened it. Whoever then locks the removed file
/// and whoever makes a new one would write at the same time.
#[test]
fn a_lock_that_was_removed_is_no_lock() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = file(dir.path()).place;
    let opened = || place.open_lock().expect("made, if it is missing");
    let (removed, lock) = (opened(), dir.path().join(".state.fence-lock"));
    std::fs::remove_file(&lock).expect("it is there");
    assert!(place.lock(removed).expect("no error").is_none(), "it has no name");
    let removed = opened();
    std::fs::remove_file(&lock).expect("it is there");
    let turn = place.lock(opened()).expect("no error").expect("it is the lock");
    assert!(place.lock(removed).expect("no error").is_none(), "another has the name");
    assert!(place.lock(opened()).expect("no error").is_none(), "it is taken");
    drop(turn);
    assert!(place.lock(opened()).expect("no error").is_some(), "it is free again");
}
