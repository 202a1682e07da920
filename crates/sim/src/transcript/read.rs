//! One line of a transcript, taken apart.

use std::fmt;
use std::str::FromStr;

use kernel::{
    Action, Age, AgentName, AgentNews, Bundle, Command, Commit, Epoch, Etag, Grant, Held, Identity, LeaseId,
    Limits, Location, Lsn, Member, Metadata, Namespace, OnExpiry, Open, Owner, Party, Pause, Paused,
    Predicate, Quota, Reason, Relocation, Removal, Renewal, Request, RequestKey, ResourceName, Retraction,
    Scope, SessionName, SetQuota, Shard, Span, Store, Time, Token, Version, Write,
};

use super::Names;

/// A line that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    line: usize,
    what: String,
}

impl ReadError {
    fn new(what: impl fmt::Display) -> ReadError {
        ReadError { line: 0, what: what.to_string() }
    }

    pub(super) fn at_line(self, line: usize) -> ReadError {
        ReadError { line, ..self }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ReadError {}

type Read<T> = Result<T, ReadError>;

/// What a line asks for.
#[derive(Debug)]
pub(super) enum Line {
    Nothing,
    Time(Time),
    Step { lsn: Option<Lsn>, now: Option<Time>, command: Box<Command>, name: Option<String> },
    Query(Query),
}

/// What a line wants to see.
#[derive(Debug)]
pub(super) enum Query {
    Lease(LeaseId),
    Key(Namespace, ResourceName),
    Judge { namespace: Namespace, attempt: Age, bundle: Bundle, waiters: Vec<Age> },
    Due,
}

/// Reads lines in which leases may go by names.
pub(super) struct Reader<'a> {
    pub(super) names: &'a Names,
    pub(super) shard: Shard,
}

impl Reader<'_> {
    pub(super) fn line(&self, line: &str) -> Read<Line> {
        if line.trim().is_empty() || line.starts_with("//") {
            return Ok(Line::Nothing);
        }
        let mut words = Words::split(line)?;
        let lsn = words.prefixed('#')?.map(Lsn);
        let now = words.prefixed('@')?.map(Time);
        let Some(first) = words.next_plain() else {
            return now.map(Line::Time).ok_or_else(|| ReadError::new("a number, and nothing to do"));
        };
        let read = match first.strip_suffix(':') {
            Some(who) => {
                let verb = words.next_plain().ok_or_else(|| ReadError::new("who, and no verb"))?;
                let identity = if who == "-" { None } else { Some(valid(Identity::new(who))?) };
                let name = words.take("as");
                let request = words.take("request").map(|text| read_request(&text)).transpose()?;
                let action = self.action(&verb, &mut words)?;
                Line::Step { lsn, now, command: Box::new(Command { identity, request, action }), name }
            }
            None => Line::Query(self.query(&first, &mut words)?),
        };
        words.all_used()?;
        Ok(read)
    }

    fn query(&self, verb: &str, words: &mut Words) -> Read<Query> {
        Ok(match verb {
            "show" => Query::Lease(self.held(&words.need("a lease")?)?.lease),
            "key" => Query::Key(namespace(words)?, valid(ResourceName::key(&words.need("a key")?))?),
            "judge" => {
                let attempt = read_age(&words.need("an age")?)?;
                let waiters = words.take("waiters").unwrap_or_default();
                let waiters =
                    waiters.split(',').filter(|age| !age.is_empty()).map(read_age).collect::<Read<_>>()?;
                Query::Judge { namespace: namespace(words)?, attempt, bundle: bundle(words)?, waiters }
            }
            "due" => Query::Due,
            other => return Err(ReadError::new(format!("no such query, or a colon is missing: {other}"))),
        })
    }

    fn action(&self, verb: &str, words: &mut Words) -> Read<Action> {
        Ok(match verb {
            "open" => Action::Open(open(words)?),
            "tick" => Action::Tick,
            "acquire" => Action::Acquire(grant(words)?),
            "reserve" => Action::Reserve(grant(words)?),
            "activate" => Action::Activate(self.one(words)?),
            "release" => Action::Release(self.one(words)?),
            "rebind" => Action::Rebind(self.one(words)?),
            "touch" => Action::Touch(self.one(words)?),
            "renew" => {
                Action::Renew(words.rest().iter().map(|word| self.renewal(word)).collect::<Read<_>>()?)
            }
            "commit" => {
                let (etag, bytes) =
                    (words.take("etag").unwrap_or_else(|| "0".into()), words.number("bytes")?);
                let location = words.parsed("at")?.unwrap_or(0);
                let (etag, location) = (Etag(read_bytes(&etag)?), Location(location));
                Action::Commit(Commit {
                    write: self.write(words)?,
                    etag,
                    bytes: bytes.unwrap_or(0),
                    location,
                })
            }
            "remove" => Action::Remove(Removal { write: self.write(words)? }),
            "relocate" => Action::Relocate(relocation(words)?),
            "revoke" => Action::Revoke(self.one(words)?.lease),
            "reclaim" => Action::Reclaim(self.one(words)?.lease),
            "revoke-all" => Action::RevokeAll(party(words)?),
            "pause" | "resume" => Action::Pause(Pause { whom: paused(words)?, paused: verb == "pause" }),
            "quota" => Action::SetQuota(SetQuota { scope: scope(words)?, quota: quota(words)? }),
            "drop" => Action::DropNamespace(namespace(words)?),
            "restarting" | "alive" => Action::Agent(AgentNews {
                namespace: namespace(words)?,
                agent: valid(AgentName::new(&words.take("agent").unwrap_or_default()))?,
                restarting: verb == "restarting",
                operator: words.flag("operator"),
            }),
            "retract" => {
                let request = words.take("of").map(|key| read_bytes(&key)).transpose()?.map(RequestKey);
                Action::Retract(Retraction { lease: self.one(words)?.lease, request })
            }
            other => return Err(ReadError::new(format!("no such verb: {other}"))),
        })
    }

    fn one(&self, words: &mut Words) -> Read<Held> {
        self.held(&words.need("a lease")?)
    }

    fn renewal(&self, word: &str) -> Read<Renewal> {
        let (held, ttl) = match word.split_once(':') {
            Some((held, ttl)) => (held, Some(Span(number(ttl)?))),
            None => (word, None),
        };
        Ok(Renewal { held: self.held(held)?, ttl })
    }

    /// `a`, `a.3`, `L7`, `L7.3`, `L7.3/1`.
    fn held(&self, word: &str) -> Read<Held> {
        let (word, shard) = match word.split_once('/') {
            Some((word, shard)) => (word, Shard(number(shard)?)),
            None => (word, self.shard),
        };
        let (name, epoch) = match word.split_once('.') {
            Some((name, epoch)) => (name, Some(Epoch(number(epoch)?))),
            None => (word, None),
        };
        if let Some(held) = self.names.0.get(name) {
            return Ok(Held { epoch: epoch.unwrap_or(held.epoch), ..*held });
        }
        let lsn = name.strip_prefix('L').ok_or_else(|| ReadError::new(format!("no lease goes by {name}")))?;
        Ok(Held { lease: LeaseId { shard, lsn: Lsn(number(lsn)?) }, epoch: epoch.unwrap_or(Epoch::FIRST) })
    }

    fn write(&self, words: &mut Words) -> Read<Write> {
        let release = words.flag("release");
        let if_etag = words.take("if_etag").map(|text| match text.as_str() {
            "none" => Ok(None),
            text => read_bytes(text).map(|bytes| Some(Etag(bytes))),
        });
        Ok(Write {
            held: self.one(words)?,
            key: valid(ResourceName::parse(&words.need("a key")?, None))?,
            token: words.number("token")?.map(Token),
            if_version: words.number("if_version")?.map(Version),
            if_etag: if_etag.transpose()?,
            release,
        })
    }
}

fn open(words: &mut Words) -> Read<Open> {
    let mut limits = Limits::default();
    for (name, _) in Limits::default().named() {
        if let Some(value) = words.number(name)? {
            set_limit(&mut limits, name, value)?;
        }
    }
    Ok(Open {
        store: Store {
            shard: Shard(words.parsed("shard")?.unwrap_or(0)),
            shards: words.parsed("shards")?.unwrap_or(1),
            hash_seed: words.number("seed")?.unwrap_or(0),
        },
        writer: words.parsed("writer")?.unwrap_or(0),
        term: words.number("term")?.unwrap_or(1),
        boot_id: words.parsed("boot_id")?.unwrap_or(0),
        boot_clock: Span(words.number("boot_clock")?.unwrap_or(0)),
        kernel_version: words.parsed("version")?.unwrap_or(kernel::KERNEL_VERSION),
        limits,
    })
}

fn set_limit(limits: &mut Limits, name: &str, value: u64) -> Read<()> {
    let small = || u32::try_from(value).map_err(|_| ReadError::new(format!("too large: {name}={value}")));
    match name {
        "ttl_max" => limits.ttl_max = Span(value),
        "hold_max" => limits.hold_max = Span(value),
        "history_window" => limits.history_window = Span(value),
        "request_window" => limits.request_window = Span(value),
        "leases_max" => limits.leases_max = small()?,
        "leases_per_identity_max" => limits.leases_per_identity_max = small()?,
        "namespaces_max" => limits.namespaces_max = small()?,
        "nodes_max" => limits.nodes_max = small()?,
        "documents_max" => limits.documents_max = small()?,
        "agents_max" => limits.agents_max = small()?,
        "agents_per_identity_max" => limits.agents_per_identity_max = small()?,
        "policies_max" => limits.policies_max = small()?,
        "history_max" => limits.history_max = small()?,
        "history_members_max" => limits.history_members_max = small()?,
        "step_max" => limits.step_max = small()?,
        "requests_max" => limits.requests_max = small()?,
        "requests_per_identity_max" => limits.requests_per_identity_max = small()?,
        other => return Err(ReadError::new(format!("no such limit: {other}"))),
    }
    Ok(())
}

fn grant(words: &mut Words) -> Read<Grant> {
    let on_expiry = match (words.number("hold")?, words.flag("manual")) {
        (Some(ms), false) => OnExpiry::Hold(Span(ms)),
        (None, true) => OnExpiry::Manual,
        (None, false) => OnExpiry::Free,
        (Some(_), true) => return Err(ReadError::new("hold or manual, not both")),
    };
    let metadata = words.take("metadata").map(|hex| read_hex(&hex)).transpose()?;
    Ok(Grant {
        namespace: namespace(words)?,
        ttl: Span(words.number("ttl")?.unwrap_or(60_000)),
        on_expiry,
        owner: words.take("owner").map(|text| valid(Owner::new(&text))).transpose()?,
        agent: words.take("agent").map(|text| valid(AgentName::new(&text))).transpose()?,
        session: words.take("session").map(|text| valid(SessionName::new(&text))).transpose()?,
        attempt: words.take("attempt").map(|text| read_age(&text)).transpose()?,
        reason: words.take("reason").map(|text| valid(Reason::new(&text))).transpose()?,
        metadata: metadata.map(|bytes| valid(Metadata::new(&bytes))).transpose()?,
        bundle: bundle(words)?,
    })
}

fn bundle(words: &mut Words) -> Read<Bundle> {
    let members = words.rest().iter().map(|word| member(word)).collect::<Read<_>>()?;
    valid(Bundle::new(members))
}

/// `MUTATES:KEY:orders`, or `KEY:orders` for short.
fn member(word: &str) -> Read<Member> {
    let first = word.split(':').next().and_then(Predicate::parse);
    let (predicate, resource) = match first {
        Some(predicate) => (predicate, &word[predicate.as_str().len() + 1..]),
        None => (Predicate::Mutates, word),
    };
    Ok(Member { resource: valid(ResourceName::parse(resource, None))?, predicate })
}

fn relocation(words: &mut Words) -> Read<Relocation> {
    Ok(Relocation {
        namespace: namespace(words)?,
        version: Version(words.number("version")?.unwrap_or(0)),
        location: Location(words.parsed("at")?.unwrap_or(0)),
        key: valid(ResourceName::parse(&words.need("a key")?, None))?,
    })
}

fn party(words: &mut Words) -> Read<Party> {
    let namespace = namespace(words)?;
    match (words.take("identity"), words.take("agent")) {
        (Some(identity), None) => Ok(Party::Identity(namespace, valid(Identity::new(&identity))?)),
        (None, Some(agent)) => Ok(Party::Agent(namespace, valid(AgentName::new(&agent))?)),
        _ => Err(ReadError::new("an identity or an agent")),
    }
}

fn paused(words: &mut Words) -> Read<Paused> {
    match words.take("agent") {
        Some(agent) => Ok(Paused::Agent(namespace(words)?, valid(AgentName::new(&agent))?)),
        None => Ok(Paused::Scope(scope(words)?)),
    }
}

fn scope(words: &mut Words) -> Read<Scope> {
    Ok(Scope {
        namespace: words.take("ns").map(|text| valid(Namespace::new(&text))).transpose()?,
        identity: words.take("identity").map(|text| valid(Identity::new(&text))).transpose()?,
    })
}

fn quota(words: &mut Words) -> Read<Quota> {
    Ok(Quota {
        leases_max: words.parsed("leases")?,
        total_max: words.number("total")?.map(Span),
        idle_max: words.number("idle")?.map(Span),
        acquires_per_second: words.parsed("rate")?,
    })
}

fn namespace(words: &mut Words) -> Read<Namespace> {
    valid(Namespace::new(&words.take("ns").unwrap_or_else(|| "default".into())))
}

fn read_request(text: &str) -> Read<Request> {
    let (key, fingerprint) = text.split_once('/').unwrap_or((text, "0"));
    Ok(Request { key: RequestKey(read_bytes(key)?), fingerprint: read_bytes(fingerprint)? })
}

fn read_age(text: &str) -> Read<Age> {
    let (at, tie) = text.split_once('.').unwrap_or((text, "0"));
    Ok(Age { at: Time(number(at)?), tie: number(tie)? })
}

/// Hexadecimal; one byte stands for as many equal ones as are needed.
fn read_bytes<const N: usize>(text: &str) -> Read<[u8; N]> {
    let bytes = read_hex(text)?;
    match bytes[..] {
        [byte] => Ok([byte; N]),
        _ => bytes.try_into().map_err(|_| ReadError::new(format!("not {N} bytes: {text}"))),
    }
}

fn read_hex(text: &str) -> Read<Vec<u8>> {
    let padded = if text.len() % 2 == 1 { format!("0{text}") } else { text.to_string() };
    let pairs = padded.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or("?"));
    let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16)).collect::<Result<Vec<u8>, _>>();
    bytes.map_err(|_| ReadError::new(format!("not hexadecimal: {text}")))
}

fn number<T: FromStr>(text: &str) -> Read<T> {
    text.parse().map_err(|_| ReadError::new(format!("not a number: {text}")))
}

fn valid<T, E: fmt::Display>(result: Result<T, E>) -> Read<T> {
    result.map_err(ReadError::new)
}

/// The words of a line: plain ones, and `name=value`.
struct Words(Vec<String>);

impl Words {
    /// At blanks, but not between quotes.
    fn split(line: &str) -> Read<Words> {
        let (mut words, mut word, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
        for c in line.chars() {
            match c {
                _ if escaped => {
                    word.push(c);
                    escaped = false;
                }
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                c if c.is_whitespace() && !quoted => words.push(std::mem::take(&mut word)),
                c => word.push(c),
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        if quoted { Err(ReadError::new("a quote is not closed")) } else { Ok(Words(words)) }
    }

    fn prefixed(&mut self, sign: char) -> Read<Option<u64>> {
        match self.0.first().and_then(|word| word.strip_prefix(sign)) {
            None => Ok(None),
            Some(text) => {
                let value = number(text)?;
                self.0.remove(0);
                Ok(Some(value))
            }
        }
    }

    fn next_plain(&mut self) -> Option<String> {
        let place = self.0.iter().position(|word| !word.contains('='))?;
        Some(self.0.remove(place))
    }

    fn need(&mut self, what: &str) -> Read<String> {
        self.next_plain().ok_or_else(|| ReadError::new(format!("{what} is missing")))
    }

    fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next_plain()).collect()
    }

    fn flag(&mut self, name: &str) -> bool {
        let place = self.0.iter().position(|word| word == name);
        place.map(|place| self.0.remove(place)).is_some()
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let is_it = |word: &String| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
        let place = self.0.iter().position(is_it)?;
        Some(self.0.remove(place)[name.len() + 1..].to_string())
    }

    fn number(&mut self, name: &str) -> Read<Option<u64>> {
        self.parsed(name)
    }

    fn parsed<T: FromStr>(&mut self, name: &str) -> Read<Option<T>> {
        self.take(name).map(|text| number(&text)).transpose()
    }

    fn all_used(&self) -> Read<()> {
        match self.0.first() {
            Some(word) => Err(ReadError::new(format!("nobody knows what to do with {word}"))),
            None => Ok(()),
        }
    }
}
