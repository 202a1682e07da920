//! Stale writers are refused, and so are files that cannot be fenced.

use super::*;

fn invalid<T: std::fmt::Debug>(what: Result<T, Error>, because: &str) {
    match what {
        Err(Error::Invalid(text)) => assert!(text.contains(because), "{text}"),
        other => panic!("{other:?} instead of {because}"),
    }
}

#[test]
fn a_stale_writer_is_refused_and_leaves_no_trace() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = file(dir.path());
    assert_eq!(file.read(), Ok(None));
    file.write(Token(5), b"five").expect("the first");
    file.write(Token(6), b"six").expect("a newer one");
    let stale = Err(Error::Stale { current: Some(Token(6)) });
    assert_eq!(file.write(Token(5), b"late"), stale);
    assert_eq!(file.remove(Token(5)), stale);
    assert_eq!(file.claim(Token(5)).map(drop), stale);
    assert_eq!(file.read(), Ok(Some(version(6, 2, b"six"))));
    file.write(Token(6), b"again").expect("the same holder");
    assert_eq!(file.read(), Ok(Some(version(6, 3, b"again"))));
}

#[test]
fn an_older_token_is_refused_after_a_claim_even_if_nothing_was_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = file(dir.path());
    assert_eq!(file.claim(Token(7)), Ok(None), "there is no content, and it is claimed");
    assert_eq!(file.write(Token(6), b"late"), Err(Error::Stale { current: Some(Token(7)) }));
    file.write(Token(7), b"seven").expect("it is ours");
    assert_eq!(file.claim(Token(8)), Ok(Some(b"seven".to_vec())));
    assert_eq!(file.write(Token(7), b"late"), Err(Error::Stale { current: Some(Token(8)) }));
}

#[test]
fn a_removed_file_keeps_its_token() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = file(dir.path());
    file.write(Token(5), b"five").expect("the first");
    file.remove(Token(6)).expect("a newer one");
    assert_eq!(file.read().expect("readable").expect("a version").content, None);
    assert_eq!(file.write(Token(5), b"back"), Err(Error::Stale { current: Some(Token(6)) }));
}

#[test]
fn foreign_content_is_neither_read_nor_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("state");
    let file = file(dir.path());
    for bytes in [b"".as_slice(), b"plain", &[b'x'; 200]] {
        std::fs::write(&path, bytes).expect("writable");
        invalid(file.read(), "does not begin");
        invalid(file.write(Token(9), b"mine"), "does not begin");
        assert_eq!(std::fs::read(&path).expect("readable"), bytes);
    }
    std::fs::remove_file(&path).expect("it is there");
    file.write(Token(9), b"mine").expect("nothing is there");
    let mut bytes = std::fs::read(&path).expect("readable");
    *bytes.last_mut().expect("some") ^= 1;
    std::fs::write(&path, &bytes).expect("writable");
    invalid(file.write(Token(10), b"over it"), "checksum");
    std::fs::File::create(&path).expect("writable").set_len(1 << 30).expect("a hole");
    invalid(file.read(), "too long");
}

#[test]
fn only_files_in_directories_are_guarded() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| FencedFile::open(dir.path().join(name));
    for name in ["..", "sub/..", ".", "state/", ""] {
        invalid(at(name), "name of a file");
    }
    invalid(FencedFile::open("/"), "name of a file");
    assert!(matches!(at("nowhere/state"), Err(Error::Unavailable(_))));

    std::fs::create_dir(dir.path().join("subdir")).expect("writable");
    invalid(at("subdir").expect("a name").write(Token(1), b""), "not a regular file");
    std::os::unix::fs::symlink("elsewhere", dir.path().join("link")).expect("writable");
    invalid(at("link").expect("a name").write(Token(1), b""), "symbolic link");
    assert!(!dir.path().join("elsewhere").exists());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("writable");
    invalid(at("pipe").expect("a name").read(), "not a regular file");
    let long = "x".repeat(250);
    assert!(matches!(at(&long).expect("a name").write(Token(1), b""), Err(Error::Unavailable(_))));
}

#[test]
fn a_link_that_was_planted_beside_the_file_is_not_followed() {
    let dir = tempfile::tempdir().expect("a directory");
    let victim = dir.path().join("victim");
    std::fs::write(&victim, b"precious").expect("writable");
    std::os::unix::fs::symlink(&victim, dir.path().join(".state.fence-temp")).expect("writable");
    file(dir.path()).write(Token(1), b"one").expect("the link is put away");
    assert_eq!(std::fs::read(&victim).expect("readable"), b"precious");
    std::fs::remove_file(dir.path().join(".state.fence-lock")).expect("it is there");
    std::os::unix::fs::symlink(&victim, dir.path().join(".state.fence-lock")).expect("writable");
    assert!(matches!(file(dir.path()).write(Token(2), b"two"), Err(Error::Unavailable(_))));
}

#[test]
fn permissions_stay_as_they_were_set() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    let (path, file) = (dir.path().join("state"), file(dir.path()));
    file.write(Token(1), b"secret").expect("the first");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("ours");
    file.write(Token(2), b"still").expect("newer");
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o640);
}

#[test]
fn it_stays_with_its_directory_when_that_is_moved() {
    let dir = tempfile::tempdir().expect("a directory");
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    std::fs::create_dir(&old).expect("writable");
    let file = file(&old);
    file.write(Token(1), b"one").expect("the first");
    std::fs::rename(&old, &new).expect("writable");
    std::fs::create_dir(&old).expect("writable");
    file.write(Token(2), b"two").expect("newer");
    assert_eq!(super::file(&new).read(), Ok(Some(version(2, 2, b"two"))));
    assert_eq!(super::file(&old).read(), Ok(None));
}

#[test]
fn a_filesystem_of_a_network_is_known_by_its_number() {
    use crate::file::local::is_network_filesystem;
    let (nfs, cifs_in_32_bits, ext4, tmpfs) =
        (0x6969, i128::from(0xff53_4d42_u32.cast_signed()), 0xef53, 0x0102_1994);
    assert!(is_network_filesystem(nfs) && is_network_filesystem(cifs_in_32_bits));
    assert!(!is_network_filesystem(ext4) && !is_network_filesystem(tmpfs));
}
