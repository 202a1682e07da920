//! `edit`: opens the document in an editor.
//!
//! **Invariant.** Edited text is never lost: it stays in a file until it is committed or discarded by the user, and a
//! failure names the file. It is committed only on top of the version that was shown.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use cli::remote::documents::{commit, failed_file};
use cli::remote::{CommandResult, Failure, Output, client_failure, failed, usage_error};
use jsonstream::{Limits, compact};
use lockd_client::{Client, Conditions, DocumentState};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::LockcEditArgs;
use crate::context::ContextStore;
use crate::entry::LeaseEntry;
use crate::format::Format;
use crate::leases::{connect_current, forget_if_expired};
use crate::notice;

pub(crate) async fn edit(store: &ContextStore, output: Output, args: &LockcEditArgs) -> CommandResult {
    let (client, entry) = connect_current(store, args.key.as_deref())?;
    let read =
        client.read_state(&entry.key, Some(&entry.namespace), &entry.lease_id).await.map_err(client_failure);
    let read = forget_if_expired(store, &entry, read)?;
    let before = read.document.as_deref().unwrap_or(b"{}");
    let draft = Draft::make(store.folder()?, &entry, args.format, &args.format.write_indented(before)?)?;
    let session = EditSession { store, client, entry, draft };
    let done = session.work(output, args.format, &read).await;
    if done.is_err() && session.draft.is_worth_keeping() {
        notice(&format!("your edit is kept in a file: path={}", session.draft.path.display()));
    } else {
        session.draft.remove();
    }
    done
}

/// A running edit.
struct EditSession<'a> {
    store: &'a ContextStore,
    client: Client,
    entry: LeaseEntry,
    draft: Draft,
}

impl EditSession<'_> {
    async fn work(&self, output: Output, format: Format, read: &DocumentState) -> CommandResult {
        let document = loop {
            self.open_editor().await?;
            let text = self.draft.read()?;
            if text.trim_ascii().is_empty() {
                return Err(Failure::new(1, "the text is empty, nothing was committed"));
            }
            match parsed(format, text) {
                Ok(document) => break document,
                Err(failure) if self.ask_to_retry(&failure.message).await => {}
                Err(failure) => return Err(failure),
            }
        };
        if read.document.as_deref() == Some(document.as_slice()) || !self.draft.is_changed() {
            notice("no change, nothing was committed");
            return Ok(());
        }
        let lease = self.entry.credential();
        let conditions = Conditions {
            fencing_token: lease.fencing_token,
            if_version: Some(read.version),
            ..Conditions::default()
        };
        let done = commit(&self.client, output, &lease, document, &conditions).await;
        forget_if_expired(self.store, &self.entry, done).map(drop)
    }

    async fn open_editor(&self) -> CommandResult {
        // SIGINT and SIGQUIT are meant for the editor in the foreground; the handlers keep them from ending this process.
        let listening = [SignalKind::interrupt(), SignalKind::quit()].map(signal);
        let (mut command, name) = editor(&self.draft.path);
        let ended = self.renewing_while(move || command.status()).await?;
        drop(listening);
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let what =
                    format!("the editor failed, nothing was committed: {}", exit_status(status, &name));
                Err(Failure::new(1, what))
            }
            Err(error) => Err(failed("starting the editor", &error)),
        }
    }

    /// Offers to edit again; false if standard input or error is no terminal.
    async fn ask_to_retry(&self, what: &str) -> bool {
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return false;
        }
        notice(what);
        let answer = self.renewing_while(|| {
            let mut line = String::new();
            drop(write!(io::stderr(), "edit again? [Y/n] "));
            // End of input counts as no.
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

    /// Runs blocking work and renews the lease concurrently. If the lease is lost, the commit fails.
    async fn renewing_while<T: Send + 'static>(
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

    /// Renews the lease and records it in the context; otherwise another terminal would drop the lease as expired.
    async fn renew(&self) {
        let ttl = self.entry.ttl();
        if let Ok(extended) = self.client.keepalive(&self.entry.lease_id, Some(ttl)).await {
            let noted = self.store.change(|context| {
                if let Some(kept) = context.get_mut(&self.entry.lease_id) {
                    kept.extend(&extended, ttl);
                }
                Ok(())
            });
            // No message: the editor owns the screen, and the lease is renewed either way.
            drop(noted);
        }
    }
}

/// The edited text as compact JSON.
fn parsed(format: Format, text: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let json = format.read(text)?;
    compact(&json, Limits { bytes_max: u64::MAX }).map_err(|error| usage_error(error.to_string()))
}

/// The editor command. It may have arguments, so a shell parses it.
fn editor(file: &Path) -> (Command, String) {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let editor = named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(|| OsString::from("vi"));
    let mut script = editor.clone();
    script.push(" \"$@\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg("sh").arg(file);
    (command, editor.to_string_lossy().into_owned())
}

fn exit_status(status: ExitStatus, editor: &str) -> String {
    format!("{status} editor={editor:?}")
}

/// The file that is edited, with mode 0600.
struct Draft {
    path: PathBuf,
    before: Vec<u8>,
}

impl Draft {
    fn make(folder: &Path, entry: &LeaseEntry, format: Format, text: &[u8]) -> Result<Draft, Failure> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let key: String = entry.key.chars().take(40).map(plain).collect();
        // Never reuses the draft of an earlier process with the same pid: it may be unsaved work.
        for attempt in 0..1000 {
            let name = format!("edit-{key}-{}-{attempt}.{}", std::process::id(), format.extension());
            let path = folder.join(name);
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(mut file) => {
                    file.write_all(text).map_err(|error| failed_file("writing", &path, &error))?;
                    return Ok(Draft { path, before: text.to_vec() });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed_file("creating", &path, &error)),
            }
        }
        Err(Failure::new(1, format!("too many old edit files; remove some: path={}", folder.display())))
    }

    fn read(&self) -> Result<Vec<u8>, Failure> {
        std::fs::read(&self.path).map_err(|error| failed_file("reading", &self.path, &error))
    }

    /// Whether the text differs from the original. A draft that exists but cannot be read counts as changed.
    fn is_changed(&self) -> bool {
        std::fs::read(&self.path).map_or(self.path.exists(), |text| text != self.before)
    }

    fn is_worth_keeping(&self) -> bool {
        let is_blank = || std::fs::read(&self.path).is_ok_and(|text| text.trim_ascii().is_empty());
        self.is_changed() && !is_blank()
    }

    fn remove(&self) {
        // Best effort: the draft is no longer needed.
        let _ = std::fs::remove_file(&self.path);
    }
}
