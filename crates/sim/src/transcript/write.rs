//! Writes a step as one transcript line, with its LSN and time stamp, so that the line is self-contained.

use std::fmt::{Display, Write as _};

use kernel::{
    Action, Age, Bundle, Command, Credential, Etag, LeaseId, LeaseRequest, Limits, Location, Metadata,
    Namespace, OnExpiry, Open, Party, Paused, Quota, Scope, Slots, Span, Write,
};

use crate::Step;

/// The line that parses back into this step.
pub fn write_step(step: &Step) -> String {
    let Command { identity, request, action } = &step.command;
    let who = identity.as_ref().map_or_else(|| "-".to_string(), |identity| quote(identity.as_str()));
    let mut line = LineWriter(format!("#{} @{} {who}:", step.lsn.0, step.now.0));
    line.action(action);
    if let Some(request) = request {
        line.set("request", format!("{}/{}", hex(&request.key.0), hex(&request.fingerprint)));
    }
    line.0
}

/// `5`, or `shard/term/number/random`.
fn location(location: Location) -> String {
    let Location { shard, term, number, random } = location;
    if location == (Location { number, ..Location::default() }) {
        return number.to_string();
    }
    format!("{}/{term}/{number}/{random}", shard.0)
}

/// `0-5,9-9`.
fn ranges(slots: &Slots) -> String {
    let ranges = slots.ranges().map(|(first, last)| format!("{}-{}", first.number(), last.number()));
    ranges.collect::<Vec<_>>().join(",")
}

struct LineWriter(String);

impl LineWriter {
    fn word(&mut self, word: impl Display) {
        write!(self.0, " {word}").expect("writing to a string");
    }

    fn set(&mut self, name: &str, value: impl Display) {
        write!(self.0, " {name}={value}").expect("writing to a string");
    }

    fn maybe(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    fn action(&mut self, action: &Action) {
        match action {
            Action::Open(open) => self.open(open),
            Action::Close(close) => {
                self.word(action.name());
                self.maybe("to", close.to);
            }
            Action::Tick => self.word(action.name()),
            Action::Acquire(grant) | Action::Reserve(grant) => self.grant(action.name(), grant),
            Action::Activate(held) | Action::Release(held) | Action::Rebind(held) | Action::Touch(held) => {
                self.held(action.name(), *held);
            }
            Action::Renew(renewals) => {
                self.word(action.name());
                for renewal in renewals {
                    let ttl = renewal.ttl.map_or_else(String::new, |ttl| format!(":{}", ttl.0));
                    self.word(format!("{}{ttl}", credential(renewal.held)));
                }
            }
            Action::Commit(commit) => {
                self.write(action.name(), &commit.write);
                self.set("etag", etag(commit.etag));
                self.set("bytes", commit.bytes);
                self.set("at", location(commit.location));
            }
            Action::Remove(removal) => self.write(action.name(), &removal.write),
            Action::Relocate(relocation) => {
                self.word("relocate");
                self.word(quote(relocation.key.as_str()));
                self.namespace(&relocation.namespace);
                self.set("version", relocation.version.0);
                self.set("at", location(relocation.location));
            }
            Action::Retract(retraction) => {
                self.word(format!("retract {}", reference(retraction.lease)));
                self.maybe("of", retraction.request.map(|key| hex(&key.0)));
            }
            other => self.administration(other),
        }
    }

    /// Commands of operators, and announcements of agents.
    fn administration(&mut self, action: &Action) {
        match action {
            Action::Revoke(lease) => self.word(format!("revoke {}", reference(*lease))),
            Action::Reclaim(lease) => self.word(format!("reclaim {}", reference(*lease))),
            Action::RevokeAll(party) => {
                self.word("revoke-all");
                match party {
                    Party::Identity(namespace, identity) => {
                        self.namespace(namespace);
                        self.set("identity", quote(identity.as_str()));
                    }
                    Party::Agent(namespace, agent) => {
                        self.namespace(namespace);
                        self.set("agent", quote(agent.as_str()));
                    }
                }
            }
            Action::Pause(pause) => {
                self.word(if pause.paused { "pause" } else { "resume" });
                match &pause.whom {
                    Paused::Scope(scope) => self.scope(scope),
                    Paused::Agent(namespace, agent) => {
                        self.namespace(namespace);
                        self.set("agent", quote(agent.as_str()));
                    }
                }
            }
            Action::SetQuota(set) => {
                self.word("quota");
                self.scope(&set.scope);
                self.quota(&set.quota);
            }
            Action::DropNamespace(namespace) => {
                self.word("drop");
                self.namespace(namespace);
            }
            Action::Agent(news) => {
                self.word(if news.restarting { "restarting" } else { "alive" });
                self.namespace(&news.namespace);
                self.set("agent", quote(news.agent.as_str()));
                if news.operator {
                    self.word("operator");
                }
            }
            other => unreachable!("written by `action`: {other:?}"),
        }
    }

    fn open(&mut self, open: &Open) {
        self.word("open");
        self.set("term", open.term);
        self.set("version", open.kernel_version);
        self.set("shard", open.store.shard.0);
        self.set("shards", open.store.shards);
        self.set("seed", open.store.hash_seed);
        self.set("writer", open.writer);
        self.set("boot", open.clocks.boot);
        self.set("boot_clock", open.clocks.boot_clock.0);
        self.set("unix_ms", open.clocks.unix_ms);
        if !open.slots.is_all() {
            self.set("slots", ranges(&open.slots));
        }
        for ((name, value), (_, usual)) in open.limits.named().into_iter().zip(Limits::default().named()) {
            if value != usual {
                self.set(name, value);
            }
        }
    }

    fn grant(&mut self, verb: &str, grant: &LeaseRequest) {
        self.word(verb);
        self.bundle(&grant.bundle);
        self.namespace(&grant.namespace);
        self.set("ttl", grant.ttl.0);
        match grant.on_expiry {
            OnExpiry::Free => {}
            OnExpiry::Hold(Span(ms)) => self.set("hold", ms),
            OnExpiry::Manual => self.word("manual"),
        }
        self.maybe("owner", grant.owner.as_ref().map(|owner| quote(owner.as_str())));
        self.maybe("agent", grant.agent.as_ref().map(|agent| quote(agent.as_str())));
        self.maybe("session", grant.session.as_ref().map(|session| quote(session.as_str())));
        self.maybe("attempt", grant.attempt.map(age));
        self.maybe("reason", grant.reason.as_ref().map(|reason| quote(reason.as_str())));
        self.maybe("metadata", grant.metadata.as_ref().map(Metadata::as_bytes).map(hex));
    }

    fn bundle(&mut self, bundle: &Bundle) {
        for member in bundle.members() {
            self.word(quote(&format!("{}:{}", member.predicate.as_str(), member.resource)));
        }
    }

    fn held(&mut self, verb: &str, held: Credential) {
        self.word(format!("{verb} {}", credential(held)));
    }

    fn write(&mut self, verb: &str, write: &Write) {
        self.held(verb, write.held);
        self.word(quote(write.key.as_str()));
        self.maybe("token", write.token.map(|token| token.0));
        self.maybe("if_version", write.if_version.map(|version| version.0));
        self.maybe("if_etag", write.if_etag.map(|tag| tag.map_or_else(|| "none".into(), etag)));
        if write.release {
            self.word("release");
        }
    }

    fn namespace(&mut self, namespace: &Namespace) {
        if namespace.as_str() != "default" {
            self.set("ns", quote(namespace.as_str()));
        }
    }

    fn scope(&mut self, scope: &Scope) {
        self.maybe("ns", scope.namespace.as_ref().map(|namespace| quote(namespace.as_str())));
        self.maybe("identity", scope.identity.as_ref().map(|identity| quote(identity.as_str())));
    }

    fn quota(&mut self, quota: &Quota) {
        self.maybe("leases", quota.leases_max);
        self.maybe("total", quota.total_max.map(|span| span.0));
        self.maybe("idle", quota.idle_max.map(|span| span.0));
        self.maybe("rate", quota.acquires_per_second);
    }
}

fn reference(lease: LeaseId) -> String {
    format!("L{}/{}", lease.lsn.0, lease.shard.0)
}

fn credential(held: Credential) -> String {
    format!("L{}.{}/{}", held.lease.lsn.0, held.epoch.0, held.lease.shard.0)
}

fn age(age: Age) -> String {
    format!("{}.{}", age.at.0, age.tie)
}

fn etag(etag: Etag) -> String {
    hex(&etag.0)
}

/// Bytes in hexadecimal; a run of equal bytes, frequent in tests, as one byte.
fn hex(bytes: &[u8]) -> String {
    let same = bytes.len() > 2 && bytes.windows(2).all(|pair| pair[0] == pair[1]);
    let bytes = if same { &bytes[..1] } else { bytes };
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a string");
    }
    text
}

/// Quoted if it contains white space, a quote or `=`.
fn quote(text: &str) -> String {
    let plain = text.chars().all(|c| !c.is_whitespace() && !matches!(c, '"' | '='));
    if plain { text.to_string() } else { format!("{text:?}") }
}
