//! Power cuts: a disk that keeps synced data, and any subset of the rest.

use std::cell::RefCell;

use super::*;
use crate::file::read_version;

/// A directory with two names, and its durable state.
#[derive(Clone, Default)]
struct Disk {
    /// Every file ever created: its bytes, and whether they are durable.
    files: Vec<(Vec<u8>, bool)>,
    /// As processes see them.
    names: Names,
    durable: Names,
    /// Changes to names since the directory was synced.
    pending: Vec<NameChange>,
}

#[derive(Clone, Copy, Default)]
struct Names {
    file: Option<usize>,
    temp: Option<usize>,
}

#[derive(Clone, Copy)]
enum NameChange {
    Temp(Option<usize>),
    /// The temporary file gets the file's name, atomically.
    Rename(usize),
}

impl Names {
    fn apply(&mut self, change: NameChange) {
        match change {
            NameChange::Temp(temp) => self.temp = temp,
            NameChange::Rename(file) => *self = Names { file: Some(file), temp: None },
        }
    }
}

impl Disk {
    fn rename(&mut self, change: NameChange) {
        self.names.apply(change);
        self.pending.push(change);
    }

    /// Every content that the file may have after a power cut now.
    fn after_a_cut(&self) -> Vec<Option<Vec<u8>>> {
        let mut found = Vec::new();
        // Any of the pending changes may have reached the disk without the others.
        for kept in 0..1_usize << self.pending.len() {
            let mut names = self.durable;
            let changes = self.pending.iter().enumerate().filter(|(index, _)| kept & (1 << index) != 0);
            changes.for_each(|(_, change)| names.apply(*change));
            match names.file.map(|file| &self.files[file]) {
                None => found.push(None),
                Some((bytes, true)) => found.push(Some(bytes.clone())),
                Some((bytes, false)) => {
                    found.extend(
                        [0, bytes.len() / 2, bytes.len()].map(|length| Some(bytes[..length].to_vec())),
                    );
                    found.push(Some(vec![0; bytes.len()]));
                }
            }
        }
        found
    }
}

/// The disk, for `calls` more calls; then the process is killed or the power fails.
struct Machine<'a> {
    disk: &'a RefCell<Disk>,
    calls: Cell<usize>,
}

impl Machine<'_> {
    fn call(&self) -> io::Result<()> {
        let left = self.calls.get().checked_sub(1).ok_or_else(|| io::Error::other("killed"))?;
        self.calls.set(left);
        Ok(())
    }
}

impl FileOps for Machine<'_> {
    type WriteLock = ();
    type Temp = usize;

    fn lock(&self) -> Result<(), Error> {
        Ok(())
    }

    fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        self.call().map_err(|cause| crate::file::unavailable("read", &cause))?;
        let disk = self.disk.borrow();
        Ok(disk.names.file.map(|file| disk.files[file].0.clone()))
    }

    fn write_temp(&self, bytes: &[u8]) -> io::Result<usize> {
        self.call()?;
        let mut disk = self.disk.borrow_mut();
        let file = disk.files.len();
        disk.files.push((bytes.to_vec(), false));
        if disk.names.temp.is_some() {
            disk.rename(NameChange::Temp(None));
        }
        disk.rename(NameChange::Temp(Some(file)));
        Ok(file)
    }

    fn sync_temp(&self, temp: &usize) -> io::Result<()> {
        self.call()?;
        self.disk.borrow_mut().files[*temp].1 = true;
        Ok(())
    }

    fn rename_temp(&self) -> io::Result<()> {
        self.call()?;
        let mut disk = self.disk.borrow_mut();
        let temp = disk.names.temp.ok_or(io::ErrorKind::NotFound)?;
        disk.rename(NameChange::Rename(temp));
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.call()?;
        let mut disk = self.disk.borrow_mut();
        disk.durable = disk.names;
        disk.pending.clear();
        Ok(())
    }

    fn remove_temp(&self) -> io::Result<()> {
        self.call()?;
        let mut disk = self.disk.borrow_mut();
        disk.names.temp.ok_or(io::ErrorKind::NotFound)?;
        disk.rename(NameChange::Temp(None));
        Ok(())
    }
}

/// Writes with each token, with or without a read before; stops after `calls` calls. Returns the newest version that a
/// result revealed.
fn run(disk: &RefCell<Disk>, tokens: &[u64], reads: bool, calls: usize) -> Option<Version> {
    let machine = Machine { disk, calls: Cell::new(calls) };
    let mut revealed = None;
    for token in tokens {
        if reads && let Ok(Some(version)) = read_version(&machine) {
            revealed = Some(version);
        }
        match write(&machine, *token, format!("by {token}").as_bytes()) {
            Ok(version) => revealed = Some(version),
            // The refusal reveals the newer version.
            Err(Error::Stale { .. }) => {
                let endless = Machine { disk, calls: Cell::new(usize::MAX) };
                revealed =
                    endless.read().expect("readable").map(|bytes| Version::parse(bytes).expect("whole"));
            }
            Err(_) => {}
        }
    }
    revealed
}

/// Every state after a power cut is a complete version, not older than the newest revealed one.
fn check(disk: &Disk, revealed: Option<&Version>, story: &str) {
    for found in disk.after_a_cut() {
        let found =
            found.map(|bytes| Version::parse(bytes).unwrap_or_else(|error| panic!("{story}: {error}")));
        let revision = |version: Option<&Version>| version.map_or(0, |version| version.revision);
        assert!(
            revision(found.as_ref()) >= revision(revealed),
            "{story}: revealed {revealed:?}, found {found:?}"
        );
        let token = |version: Option<&Version>| version.map_or(0, |version| version.token.0);
        assert!(token(found.as_ref()) >= token(revealed), "{story}: revealed {revealed:?}, found {found:?}");
    }
}

/// A process is killed at any call; another starts, and the power fails at any of its calls.
#[test]
fn after_a_kill_and_a_power_cut_at_any_calls_a_version_is_complete_and_no_revealed_one_is_lost() {
    let (mut cuts, scripts) = (0, [[1, 2, 2], [3, 2, 3], [5, 4, 6]]);
    for (first, second, reads) in scripts.into_iter().flat_map(|first| {
        scripts.into_iter().flat_map(move |second| [false, true].map(|reads| (first, second, reads)))
    }) {
        for (killed, cut) in (0..=24).flat_map(|killed| (0..=24).map(move |cut| (killed, cut))) {
            let disk = RefCell::new(Disk::default());
            let revealed = run(&disk, &first, false, killed);
            let later = run(&disk, &second, reads, cut);
            let revealed = [revealed, later].into_iter().flatten().max_by_key(|version| version.revision);
            let story = format!("{first:?} killed at {killed}, {second:?} cut at {cut}, reads={reads}");
            check(&disk.borrow(), revealed.as_ref(), &story);
            cuts += disk.borrow().after_a_cut().len();
        }
    }
    assert!(cuts > 5_000, "{cuts} states were checked");
}
