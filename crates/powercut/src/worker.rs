//! The process that is killed: an engine, and clients that keep it busy until the end.
//!
//! Segments and snapshots are as small as they can be, so that the end often comes while one changes into the next,
//! while documents are carried forward, while the floor is raised, while blobs are swept.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;
use engine::clock::MachineClock;
use engine::decider::{Opening, Said};
use engine::documents::Place;
use engine::engine::{Engine, Fatal, Options, Upkeep, Watcher};
use kernel::{
    Action, Answer, Bundle, Command, Commit, Cursor, Event, Held, Identity, LeaseView, Limits, Location, Lsn,
    Member, Outcome, Predicate, Renewal, Span, State, Store, Write,
};
use sim::rng::Rng;
use sim::world::{grant, identity};
use store::StoreError;
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::fs::RealFs;

use crate::line::{Ask, Client, Content, Key, Lease, Line, Told};
use crate::store_in;

/// What a worker is started with.
#[derive(Args)]
pub(crate) struct Job {
    #[arg(long)]
    dir: PathBuf,
    /// None: it opens the store, and waits
    #[arg(long)]
    clients: u32,
    #[arg(long)]
    seed: u64,
}

/// Nothing runs out while a run lasts.
const TTL: Span = Span(30 * 86_400_000);
/// Longer documents are blobs.
const INLINE_MAX: u64 = 60 << 10;
const BLOB_MAX: u64 = 300 << 10;

pub(crate) const LOG: LogOptions = LogOptions { shard: 0, store_id: 1, segment_bytes: 8 << 20 };

struct Watch;

impl Watcher for Watch {
    fn fatal(&self, why: Fatal) {
        let _ = Line::Trouble(why.to_string()).write();
    }

    fn happened(&self, _: &[(Lsn, Vec<Event>)]) {}

    fn upkeep(&self, news: Upkeep) {
        let line = match news {
            Upkeep::Snapshot { moved, .. } => Line::Snapshot { moved },
            Upkeep::Swept(blobs) => Line::Swept(blobs),
            Upkeep::Failed(error) => Line::Trouble(error.to_string()),
        };
        let _ = line.write();
    }
}

/// Works until it is killed, or nobody listens any more.
pub(crate) fn work(job: &Job) -> Result<(), String> {
    let engine = open(&job.dir)?;
    let (term, leases) = look(&engine).ok_or("the engine has ended")?;
    Line::Opened { term }.write().map_err(|error| error.to_string())?;
    std::thread::scope(|scope| {
        for number in (0..job.clients).map(Client) {
            let mine =
                leases.iter().filter(|view| view.identity == number.identity()).map(Mine::of).collect();
            let rng = Rng::new(job.seed ^ u64::from(number.0) << 48);
            let mut at_work = AtWork { engine: &engine, me: number, rng, leases: mine };
            scope.spawn(move || while at_work.one_call().is_some() {});
        }
    });
    // Until whoever started this one is gone.
    io::stdin().read_to_end(&mut Vec::new()).map_err(|error| error.to_string())?;
    Ok(())
}

fn open(dir: &Path) -> Result<Engine, String> {
    let said = |error: StoreError| error.to_string();
    let (log, blob) = store_in(dir);
    let log = DiskLog::open(RealFs, &log, LOG).map_err(said)?.0;
    let blobs = Arc::new(DiskBlobs::open(RealFs, &blob).map_err(said)?);
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let opening = Opening { store, writer: 1, limits: Limits { ttl_max: TTL, ..Limits::default() } };
    let clock = Box::new(MachineClock::new().map_err(|error| error.to_string())?);
    let options = Options {
        snapshot_every: 512 << 10,
        retain: 0,
        sweep_every: Duration::from_millis(20),
        ..Options::default()
    };
    Engine::open(Box::new(log), blobs, clock, &opening, options, Arc::new(Watch))
        .map_err(|error| error.to_string())
}

/// The term, and all leases, once they are durable.
fn look(engine: &Engine) -> Option<(u64, Vec<LeaseView>)> {
    let (send, seen) = channel();
    let look = engine.sequencer().look(Box::new(move |shard| {
        let (kernel, now) = (shard.kernel(), shard.now());
        let term = kernel.tenure().map_or(0, |tenure| tenure.open.term);
        let leases: Vec<LeaseView> =
            kernel.leases_from(Cursor::default(), now).map(|(_, view)| view).collect();
        Box::new(move || drop(send.send((term, leases))))
    }));
    look.ok()?;
    seen.recv().ok()
}

impl Client {
    pub(crate) fn identity(self) -> Identity {
        identity(&format!("client-{}", self.0))
    }
}

/// A lease that a client has.
#[derive(Clone)]
struct Mine {
    held: Held,
    keys: Vec<Key>,
    revoked: bool,
}

impl Mine {
    fn of(view: &LeaseView) -> Mine {
        let client = view.identity.as_str().trim_start_matches("client-").parse().map_or(Client(0), Client);
        let covers = |key: &Key| view.members.iter().any(|member| member.resource == key.name(client));
        Mine {
            held: Held { lease: view.id, epoch: view.epoch },
            keys: Key::all().filter(covers).collect(),
            revoked: view.state == State::Revoking,
        }
    }

    fn lease(&self) -> Lease {
        Lease::from(self.held.lease)
    }
}

struct AtWork<'a> {
    engine: &'a Engine,
    me: Client,
    rng: Rng,
    leases: Vec<Mine>,
}

impl AtWork<'_> {
    /// `None` when there is no going on.
    fn one_call(&mut self) -> Option<()> {
        let free: Vec<Key> = Key::all().filter(|key| self.holding(*key).is_none()).collect();
        if self.leases.is_empty() || (!free.is_empty() && self.rng.one_in(3)) {
            return self.acquire(&free);
        }
        let one = usize::try_from(self.rng.below(self.leases.len() as u64)).expect("below a length");
        let mine = self.leases[one].clone();
        match self.rng.below(12) {
            _ if mine.revoked => self.end(one, Ask::Reclaim(mine.lease()), Action::Reclaim(mine.held.lease)),
            0 => self.end(one, Ask::Release(mine.lease()), Action::Release(mine.held)),
            1 => self.revoke(one, &mine),
            2 => self.renew(&mine),
            _ => self.commit(one, &mine),
        }
    }

    fn holding(&self, key: Key) -> Option<&Mine> {
        self.leases.iter().find(|mine| mine.keys.contains(&key))
    }

    /// Tells what is asked, asks it, and tells what came of it. `None` if nothing did.
    fn call(&self, ask: Ask, action: Action, document: Option<Vec<u8>>) -> Option<Told> {
        Line::Asks(self.me, ask).write().ok()?;
        let command = Command::by(&self.me.identity(), action);
        let outcome = match self.engine.sequencer().call(command, 1, document, None)? {
            Ok(Said::Outcome(outcome)) => outcome,
            Ok(Said::Blocked(blocked)) => return self.wrong(&format!("{blocked:?}")),
            Err(why) => return Self::trouble(format!("not taken: {why:?}")),
        };
        let told = match outcome {
            Outcome::Applied(Answer::Granted(granted), _) => {
                Told::Granted { lease: Lease::from(granted.lease), deadline: granted.deadline.0 }
            }
            Outcome::Applied(Answer::Renewed(renewed), _) => match &renewed[..] {
                [Ok(live)] => Told::Renewed { deadline: live.deadline.0 },
                other => return self.wrong(&format!("{other:?}")),
            },
            Outcome::Applied(Answer::Committed(version), _) => Told::Committed { version: version.0 },
            Outcome::Applied(Answer::Released | Answer::Revoking(_) | Answer::Reclaimed(_), _) => Told::Done,
            other => return self.wrong(&format!("{other:?}")),
        };
        Line::Told(self.me, told).write().ok()?;
        Some(told)
    }

    fn wrong<T>(&self, what: &str) -> Option<T> {
        let _ = Line::Wrong(format!("client {} was told {what}", self.me.0)).write();
        None
    }

    fn trouble<T>(what: String) -> Option<T> {
        let _ = Line::Trouble(what).write();
        None
    }

    /// One key, or two at once.
    fn acquire(&mut self, free: &[Key]) -> Option<()> {
        let mut keys = vec![*self.rng.pick(free), *self.rng.pick(free)];
        keys.sort_unstable();
        keys.dedup();
        let member = |key: &Key| Member { resource: key.name(self.me), predicate: Predicate::Mutates };
        let bundle = Bundle::new(keys.iter().map(member).collect()).expect("one or two keys");
        match self.call(Ask::Acquire(keys.clone()), Action::Acquire(grant(bundle, TTL)), None)? {
            Told::Granted { lease, .. } => {
                let held = Held { lease: lease.id(), epoch: kernel::Epoch::FIRST };
                self.leases.push(Mine { held, keys, revoked: false });
                Some(())
            }
            other => self.wrong(&format!("{other:?}")),
        }
    }

    fn end(&mut self, one: usize, ask: Ask, action: Action) -> Option<()> {
        self.call(ask, action, None)?;
        self.leases.swap_remove(one);
        Some(())
    }

    fn revoke(&mut self, one: usize, mine: &Mine) -> Option<()> {
        self.call(Ask::Revoke(mine.lease()), Action::Revoke(mine.held.lease), None)?;
        self.leases[one].revoked = true;
        Some(())
    }

    fn renew(&self, mine: &Mine) -> Option<()> {
        let action = Action::Renew(vec![Renewal { held: mine.held, ttl: None }]);
        self.call(Ask::Renew(mine.lease()), action, None).map(drop)
    }

    /// The last key's document changes seldom, so that it has to be carried forward.
    fn commit(&mut self, one: usize, mine: &Mine) -> Option<()> {
        let mut key = *self.rng.pick(&mine.keys);
        if key.0 + 1 == Key::COUNT && !self.rng.one_in(20) {
            key = mine.keys[0];
        }
        let as_blob = self.rng.one_in(10);
        let bytes = if as_blob { self.rng.below(BLOB_MAX) } else { self.rng.below(INLINE_MAX) };
        let content = Content { id: self.rng.number(), bytes: usize::try_from(bytes).expect("short") };
        let release = self.rng.one_in(10);
        let ask = Ask::Commit { lease: mine.lease(), key, content, release };
        let slow = self.rng.one_in(3);
        let done = if as_blob { self.upload(ask, mine, slow) } else { self.inline(ask, mine.held) };
        done?;
        if release {
            self.leases.swap_remove(one);
        }
        Some(())
    }

    fn inline(&self, ask: Ask, held: Held) -> Option<Told> {
        let (action, content) = self.writing(&ask, held, Location(0))?;
        self.call(ask, action, Some(content.make()))
    }

    /// If it is slow, sweeps come by between the upload and its commit.
    fn upload(&self, ask: Ask, mine: &Mine, slow: bool) -> Option<Told> {
        let (_, content) = self.writing(&ask, mine.held, Location(0))?;
        let uploaded = || {
            let mut upload = self.engine.uploads().begin()?;
            content.make().chunks(64 << 10).try_for_each(|part| upload.write(part))?;
            upload.finish()
        };
        match uploaded() {
            Ok(pin) => {
                (0..if slow { 20 } else { 0 }).try_for_each(|_| self.renew(mine))?;
                let (action, _) = self.writing(&ask, mine.held, Place::Blob(pin.blob()).location())?;
                self.call(ask, action, None)
            }
            Err(error) => Self::trouble(error.to_string()),
        }
    }

    fn writing(&self, ask: &Ask, held: Held, location: Location) -> Option<(Action, Content)> {
        let Ask::Commit { key, content, release, .. } = ask else { return None };
        let (key, release) = (key.name(self.me), *release);
        let write = Write { held, key, token: None, if_version: None, if_etag: None, release };
        let commit = Commit { write, etag: content.etag(), bytes: content.bytes as u64, location };
        Some((Action::Commit(commit), *content))
    }
}
