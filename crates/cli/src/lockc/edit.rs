//! `edit`: the document in an editor.
//!
//! **Invariant.** What a person typed is never lost: it is in a file until it is committed or was thrown away on purpose,
//! and a failure says where. It is committed only over the version that the person saw.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use cli::remote::documents::{commit, failed_file};
use cli::remote::{Done, Failure, Output, failed, misused, told};
use client::{Client, Conditions, State};
use jsonstream::{Limits, compact};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Edit;
use crate::context::Store;
use crate::entry::Entry;
use crate::format::Format;
use crate::leases::{forget_if_over, held};
use crate::say;

pub(crate) async fn edit(store: &Store, output: Output, args: &Edit) -> Done {
    let (client, entry) = held(store, args.key.as_deref())?;
    let read = client.get_state(&entry.key, &entry.lease_id).await.map_err(told);
    let read = forget_if_over(store, &entry, read)?;
    let before = read.document.as_deref().unwrap_or(b"{}");
    let draft = Draft::make(store.folder()?, &entry, args.format, &args.format.write_for_people(before)?)?;
    let desk = Desk { store, client, entry, draft };
    let done = desk.work(output, args.format, &read).await;
    if done.is_err() && desk.draft.is_worth_keeping() {
        say(&format!("what you edited is kept: path={}", desk.draft.path.display()));
    } else {
        desk.draft.remove();
    }
    done
}

/// An edit under way.
struct Desk<'a> {
    store: &'a Store,
    client: Client,
    entry: Entry,
    draft: Draft,
}

impl Desk<'_> {
    async fn work(&self, output: Output, format: Format, read: &State) -> Done {
        let document = loop {
            self.open_editor().await?;
            let text = self.draft.read()?;
            if text.trim_ascii().is_empty() {
                return Err((1, "the text is empty: nothing was changed".into()));
            }
            match parsed(format, text) {
                Ok(document) => break document,
                Err((_, what)) if self.again(&what).await => {}
                Err(failure) => return Err(failure),
            }
        };
        if read.document.as_deref() == Some(document.as_slice()) || !self.draft.is_changed() {
            say("nothing was changed");
            return Ok(());
        }
        let held = self.entry.held();
        let conditions = Conditions {
            fencing_token: held.fencing_token,
            if_version: Some(read.version),
            ..Conditions::default()
        };
        let done = commit(&self.client, output, &held, document, &conditions).await;
        forget_if_over(self.store, &self.entry, done).map(drop)
    }

    async fn open_editor(&self) -> Done {
        // An interrupt is the editor's: it is in the foreground. Listening is what keeps it from ending this process.
        let listening = [SignalKind::interrupt(), SignalKind::quit()].map(signal);
        let (mut command, name) = editor(&self.draft.path);
        let ended = self.meanwhile(move || command.status()).await?;
        drop(listening);
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                Err((1, format!("the editor failed: nothing was changed: {}", told_status(status, &name))))
            }
            Err(error) => Err(failed("starting the editor", &error)),
        }
    }

    /// Asks whether to edit again, where there is somebody to ask.
    async fn again(&self, what: &str) -> bool {
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return false;
        }
        say(what);
        let answer = self.meanwhile(|| {
            let mut line = String::new();
            drop(write!(io::stderr(), "edit again? [Y/n] "));
            // At the end of the input nobody says yes.
            match io::stdin().lock().read_line(&mut line) {
                Ok(length) if length > 0 => !line.trim_start().to_ascii_lowercase().starts_with('n'),
                _ => false,
            }
        });
        tokio::select! {
            answer = answer => answer.unwrap_or(false),
            _ = tokio::signal::ctrl_c() => false,
        }
    }

    /// Waits for something slow, and keeps the lease alive. A lease that is lost nonetheless is found out by the commit.
    async fn meanwhile<T: Send + 'static>(
        &self,
        slow: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let mut slow = tokio::task::spawn_blocking(slow);
        loop {
            tokio::select! {
                done = &mut slow => return done.map_err(|error| failed("waiting", &error)),
                () = tokio::time::sleep(self.entry.ttl() / 3) => self.renew().await,
            }
        }
    }

    /// The context learns of it too: another terminal would drop the lease as expired.
    async fn renew(&self) {
        let ttl = self.entry.ttl();
        if let Ok(extended) = self.client.keepalive(&self.entry.lease_id, Some(ttl)).await {
            let noted = self.store.change(|context| {
                if let Some(kept) = context.get_mut(&self.entry.lease_id) {
                    kept.extend(&extended, ttl);
                }
                Ok(())
            });
            // The screen is the editor's; the lease is alive all the same.
            drop(noted);
        }
    }
}

/// Compact JSON.
fn parsed(format: Format, text: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let json = format.read(text)?;
    compact(&json, Limits { bytes_max: u64::MAX }).map_err(|error| misused(error.to_string()))
}

/// The editor may be a command with arguments: a shell takes it apart.
fn editor(file: &Path) -> (Command, String) {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let editor = named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(|| OsString::from("vi"));
    let mut script = editor.clone();
    script.push(" \"$@\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg("sh").arg(file);
    (command, editor.to_string_lossy().into_owned())
}

fn told_status(status: ExitStatus, editor: &str) -> String {
    format!("{status} editor={editor:?}")
}

/// The file that is edited; nobody else may read it.
struct Draft {
    path: PathBuf,
    before: Vec<u8>,
}

impl Draft {
    fn make(folder: &Path, entry: &Entry, format: Format, text: &[u8]) -> Result<Draft, Failure> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let key: String = entry.key.chars().take(40).map(plain).collect();
        // Whatever an earlier process of this number left behind is somebody's work.
        for turn in 0..1000 {
            let name = format!("edit-{key}-{}-{turn}.{}", std::process::id(), format.extension());
            let path = folder.join(name);
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(mut file) => {
                    file.write_all(text).map_err(|error| failed_file("writing", &path, &error))?;
                    return Ok(Draft { path, before: text.to_vec() });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed_file("making", &path, &error)),
            }
        }
        Err((1, format!("too many edits were left behind; remove some: path={}", folder.display())))
    }

    fn read(&self) -> Result<Vec<u8>, Failure> {
        std::fs::read(&self.path).map_err(|error| failed_file("reading", &self.path, &error))
    }

    /// If it cannot be read, somebody may want to know why.
    fn is_changed(&self) -> bool {
        std::fs::read(&self.path).map_or(self.path.exists(), |text| text != self.before)
    }

    fn is_worth_keeping(&self) -> bool {
        let is_blank = || std::fs::read(&self.path).is_ok_and(|text| text.trim_ascii().is_empty());
        self.is_changed() && !is_blank()
    }

    fn remove(&self) {
        // It is of no more use, and for nobody else's eyes.
        let _ = std::fs::remove_file(&self.path);
    }
}
