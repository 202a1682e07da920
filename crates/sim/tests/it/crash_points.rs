//! A power failure at every call of a scripted workload: grants, commits, a long document, snapshots, relocated
//! documents, deleted segments. The recovered state is the acknowledged one, or one batch later.

use engine::Decision;
use engine::document::DocumentLocation;
use kernel::{Action, Command, Commit, Granted, Location, Outcome, ResourceName, Response, Span, Write};
use sim::disk::{FaultPlan, SimFs};
use sim::fixture::{grant, held, identity, key};
use sim::rng::Rng;
use sim::servers::client::Content;
use sim::servers::clock::{Machine, TrueTime};
use sim::servers::ledger::Ledger;
use sim::servers::server::{Backend, Server, ServerError, ServerRequest, WorldSize};

struct Script<'a> {
    server: Server,
    ledger: &'a mut Ledger,
    rng: Rng,
    next: u64,
}

impl Script<'_> {
    fn submit(&mut self, action: Action, document: Option<Vec<u8>>) -> Result<Option<Response>, ServerError> {
        let command = Command::by(&identity("ada"), action);
        self.next += 1;
        self.server.submit(
            ServerRequest { number: self.next, command, document, wait: None, attempt: None },
            self.ledger,
        )?;
        self.settle()?;
        let replies = self.server.take_replies().into_iter();
        let mut replies = replies.filter(|published| published.number == self.next);
        match replies.next().map(|published| {
            published.delivery.confirm();
            published.reply
        }) {
            Some(Ok(Decision::Outcome(Outcome::Applied(answer, _)))) => Ok(Some(answer)),
            _ => Ok(None),
        }
    }

    fn settle(&mut self) -> Result<(), ServerError> {
        self.server.settle(&mut self.rng, self.ledger)?;
        self.server.show_state(self.ledger);
        Ok(())
    }

    /// Takes a snapshot, relocates documents, and truncates the log.
    fn checkpoint(&mut self) -> Result<(), ServerError> {
        let Some(plan) = self.server.checkpoint(0)? else { return Ok(()) };
        for step in &plan.moves {
            self.next += 1;
            if let Some(request) = self.server.relocation(step, self.next)? {
                self.server.submit(request, self.ledger)?;
            }
        }
        self.settle()?;
        self.server.raise_floor(plan.floor);
        self.settle()
    }

    fn acquire(&mut self, name: &str) -> Result<Option<Granted>, ServerError> {
        let answer = self.submit(Action::Acquire(grant(key(name), Span(60_000))), None)?;
        Ok(answer.and_then(|answer| match answer {
            Response::Granted(granted) => Some(granted),
            _ => None,
        }))
    }

    /// Does nothing if an earlier run of the script holds the lease.
    fn put(&mut self, name: &str, id: u64, length: usize) -> Result<(), ServerError> {
        let Some(lease) = self.acquire(name)? else { return Ok(()) };
        let content = Content { id, length };
        let key = ResourceName::key(name).expect("a valid key");
        let write =
            Write { held: held(&lease), key, token: None, if_version: None, if_etag: None, release: true };
        let (etag, bytes) = (content.etag(), content.length as u64);
        if length > 1000 {
            let pin = self.server.upload(&content.bytes())?;
            let location = DocumentLocation::Blob(pin.blob()).location();
            self.submit(Action::Commit(Commit { write, etag, bytes, location }), None)?;
        } else {
            let commit = Commit { write, etag, bytes, location: Location::default() };
            self.submit(Action::Commit(commit), Some(content.bytes()))?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), ServerError> {
        self.put("cold", 1, 400)?;
        self.put("long", 2, 2000)?;
        for round in 0..8 {
            for n in 0..12 {
                self.put("hot", 100 + round * 12 + n, 900)?;
            }
            self.put("long", 50 + round, 1500)?;
            if round % 2 == 1 {
                self.checkpoint()?;
                self.server.sweep(&mut self.rng, self.ledger)?;
            }
        }
        self.check_documents()
    }

    fn check_documents(&mut self) -> Result<(), ServerError> {
        for (name, document) in self.server.documents() {
            let bytes = self.server.read(&document)?;
            if bytes != Content::of(document.etag).bytes() {
                return Err(ServerError::Violation(format!("{name} has other contents than committed")));
            }
        }
        Ok(())
    }
}

fn run(fs: &SimFs, ledger: &mut Ledger, writer: u128) -> Result<(), ServerError> {
    let machine = Machine::new(TrueTime(0), 1, 0);
    let server = Server::start(&WorldSize::SMALL, &Backend::Disk(fs.clone()), &machine, writer, ledger)?;
    let mut script = Script { server, ledger, rng: Rng::new(0), next: 0 };
    script.settle()?;
    script.check_documents()?;
    script.run()?;
    script.server.sweep(&mut script.rng, script.ledger)?;
    let documents = script.server.documents().into_iter();
    let wanted = documents
        .filter(|(_, document)| matches!(DocumentLocation::of(document.location), DocumentLocation::Blob(_)));
    let (wanted, found) = (wanted.count(), script.server.blobs()?);
    if found == wanted {
        Ok(())
    } else {
        Err(ServerError::Violation(format!("{found} blobs, expected {wanted}")))
    }
}

fn has_crashed(result: Result<(), ServerError>, at: u64) -> bool {
    match result {
        Ok(()) => false,
        Err(ServerError::Store(_)) => true,
        Err(ServerError::Violation(what)) => panic!("the power failed at call {at}: {what}"),
    }
}

#[test]
fn a_crash_at_every_call_loses_nothing_acknowledged() {
    let fault_free = SimFs::new(FaultPlan::default());
    run(&fault_free, &mut Ledger::default(), 1).expect("the power stays on");
    let calls = fault_free.calls();
    assert!(calls > 900, "{calls}");
    for at in 0..calls {
        let mut ledger = Ledger::default();
        let fs = SimFs::new(FaultPlan { crash_at: Some(at), fail_at: None });
        assert!(has_crashed(run(&fs, &mut ledger, 1), at), "the power failed at call {at}");
        // A second power failure during recovery, and then none.
        let mut rng = Rng::new(at);
        let again = FaultPlan { crash_at: Some(rng.below(200)), fail_at: None };
        let fs = fs.after_crash(&mut rng, again);
        has_crashed(run(&fs, &mut ledger, 2), at);
        let fs = fs.after_crash(&mut rng, FaultPlan::default());
        assert!(!has_crashed(run(&fs, &mut ledger, 3), at), "call {at}: the store does not recover");
    }
}
