//! Parses one line of a transcript.

use std::fmt;
use std::str::FromStr;

use kernel::{
    Action, Age, AgentAnnouncement, AgentName, Bundle, ClockReading, Close, Command, Commit, Credential,
    Epoch, Etag, IdempotencyKey, Identity, LeaseId, LeaseRequest, Limits, Location, Lsn, Member, Metadata,
    Namespace, OnExpiry, Open, Owner, Party, Pause, Paused, Predicate, Quota, Reason, Relocation, Removal,
    Renewal, RequestKey, ResourceName, Retraction, Scope, SessionName, SetQuota, Shard, Slot, Slots, Span,
    Store, Time, Token, Version, Write,
};

use super::LeaseNames;

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    line: usize,
    what: String,
}

impl ParseError {
    fn new(what: impl fmt::Display) -> ParseError {
        ParseError { line: 0, what: what.to_string() }
    }

    pub(super) fn at_line(self, line: usize) -> ParseError {
        ParseError { line, ..self }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ParseError {}

type ParseResult<T> = Result<T, ParseError>;

/// A parsed input line.
#[derive(Debug)]
pub(super) enum InputLine {
    Nothing,
    Time(Time),
    Step { lsn: Option<Lsn>, now: Option<Time>, command: Box<Command>, name: Option<String> },
    StateQuery(StateQuery),
}

/// A query of a transcript.
#[derive(Debug)]
pub(super) enum StateQuery {
    Lease(LeaseId),
    Key(Namespace, ResourceName),
    Judge { namespace: Namespace, attempt: Age, bundle: Bundle, waiters: Vec<Age> },
    Due,
}

/// Parses lines, with the names of the leases granted so far.
pub(super) struct LineParser<'a> {
    pub(super) names: &'a LeaseNames,
    pub(super) shard: Shard,
}

impl LineParser<'_> {
    pub(super) fn line(&self, line: &str) -> ParseResult<InputLine> {
        if line.trim().is_empty() || line.starts_with("//") {
            return Ok(InputLine::Nothing);
        }
        let mut words = LineWords::split(line)?;
        let lsn = words.prefixed('#')?.map(Lsn);
        let now = words.prefixed('@')?.map(Time);
        let Some(first) = words.next_plain() else {
            return now.map(InputLine::Time).ok_or_else(|| ParseError::new("an LSN without a command"));
        };
        let parsed = match first.strip_suffix(':') {
            Some(who) => {
                let verb = words.next_plain().ok_or_else(|| ParseError::new("an identity without a verb"))?;
                let identity = if who == "-" { None } else { Some(valid(Identity::new(who))?) };
                let name = words.take("as");
                let request = words.take("request").map(|text| parse_request(&text)).transpose()?;
                let action = self.action(&verb, &mut words)?;
                InputLine::Step { lsn, now, command: Box::new(Command { identity, request, action }), name }
            }
            None => InputLine::StateQuery(self.query(&first, &mut words)?),
        };
        words.all_used()?;
        Ok(parsed)
    }

    fn query(&self, verb: &str, words: &mut LineWords) -> ParseResult<StateQuery> {
        Ok(match verb {
            "show" => StateQuery::Lease(self.held(&words.need("a lease")?)?.lease),
            "key" => StateQuery::Key(namespace(words)?, valid(ResourceName::key(&words.need("a key")?))?),
            "judge" => {
                let attempt = parse_age(&words.need("an age")?)?;
                let waiters = words.take("waiters").unwrap_or_default();
                let waiters = waiters
                    .split(',')
                    .filter(|age| !age.is_empty())
                    .map(parse_age)
                    .collect::<ParseResult<_>>()?;
                StateQuery::Judge { namespace: namespace(words)?, attempt, bundle: bundle(words)?, waiters }
            }
            "due" => StateQuery::Due,
            other => return Err(ParseError::new(format!("no such query, or a colon is missing: {other}"))),
        })
    }

    fn action(&self, verb: &str, words: &mut LineWords) -> ParseResult<Action> {
        Ok(match verb {
            "open" => Action::Open(open(words)?),
            "close" => Action::Close(Close { to: words.option("to")? }),
            "tick" => Action::Tick,
            "acquire" => Action::Acquire(grant(words)?),
            "reserve" => Action::Reserve(grant(words)?),
            "activate" => Action::Activate(self.one(words)?),
            "release" => Action::Release(self.one(words)?),
            "rebind" => Action::Rebind(self.one(words)?),
            "touch" => Action::Touch(self.one(words)?),
            "renew" => {
                Action::Renew(words.rest().iter().map(|word| self.renewal(word)).collect::<ParseResult<_>>()?)
            }
            "commit" => {
                let (etag, bytes) =
                    (words.take("etag").unwrap_or_else(|| "0".into()), words.number("bytes")?);
                let (etag, location) = (Etag(parse_bytes(&etag)?), location(words)?);
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
            "restarting" | "alive" => Action::Agent(AgentAnnouncement {
                namespace: namespace(words)?,
                agent: valid(AgentName::new(&words.take("agent").unwrap_or_default()))?,
                restarting: verb == "restarting",
                operator: words.flag("operator"),
            }),
            "retract" => {
                let request = words.take("of").map(|key| parse_bytes(&key)).transpose()?.map(RequestKey);
                Action::Retract(Retraction { lease: self.one(words)?.lease, request })
            }
            other => return Err(ParseError::new(format!("no such verb: {other}"))),
        })
    }

    fn one(&self, words: &mut LineWords) -> ParseResult<Credential> {
        self.held(&words.need("a lease")?)
    }

    fn renewal(&self, word: &str) -> ParseResult<Renewal> {
        let (held, ttl) = match word.split_once(':') {
            Some((held, ttl)) => (held, Some(Span(number(ttl)?))),
            None => (word, None),
        };
        Ok(Renewal { held: self.held(held)?, ttl })
    }

    /// `a`, `a.3`, `L7`, `L7.3`, `L7.3/1`.
    fn held(&self, word: &str) -> ParseResult<Credential> {
        let (word, shard) = match word.split_once('/') {
            Some((word, shard)) => (word, Shard(number(shard)?)),
            None => (word, self.shard),
        };
        let (name, epoch) = match word.split_once('.') {
            Some((name, epoch)) => (name, Some(Epoch(number(epoch)?))),
            None => (word, None),
        };
        if let Some(held) = self.names.0.get(name) {
            return Ok(Credential { epoch: epoch.unwrap_or(held.epoch), ..*held });
        }
        let lsn = name.strip_prefix('L').ok_or_else(|| ParseError::new(format!("no such lease: {name}")))?;
        Ok(Credential {
            lease: LeaseId { shard, lsn: Lsn(number(lsn)?) },
            epoch: epoch.unwrap_or(Epoch::FIRST),
        })
    }

    fn write(&self, words: &mut LineWords) -> ParseResult<Write> {
        let release = words.flag("release");
        let if_etag = words.take("if_etag").map(|text| match text.as_str() {
            "none" => Ok(None),
            text => parse_bytes(text).map(|bytes| Some(Etag(bytes))),
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

fn open(words: &mut LineWords) -> ParseResult<Open> {
    let mut limits = Limits::default();
    for (name, _) in Limits::default().named() {
        if let Some(value) = words.number(name)? {
            set_limit(&mut limits, name, value)?;
        }
    }
    Ok(Open {
        store: Store {
            shard: Shard(words.option("shard")?.unwrap_or(0)),
            shards: words.option("shards")?.unwrap_or(1),
            hash_seed: words.number("seed")?.unwrap_or(0),
        },
        writer: words.option("writer")?.unwrap_or(0),
        term: words.number("term")?.unwrap_or(1),
        clocks: ClockReading {
            boot: words.option("boot")?.unwrap_or(0),
            boot_clock: Span(words.number("boot_clock")?.unwrap_or(0)),
            unix_ms: words.number("unix_ms")?.unwrap_or(0),
        },
        kernel_version: words.option("version")?.unwrap_or(kernel::KERNEL_VERSION),
        limits,
        slots: slots(words)?,
    })
}

/// `0-5,9-9`; all slots if missing.
fn slots(words: &mut LineWords) -> ParseResult<Slots> {
    let Some(text) = words.take("slots") else { return Ok(Slots::ALL) };
    let mut slots = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) =
            range.split_once('-').ok_or_else(|| ParseError::new(format!("not a range: {range}")))?;
        for slot in number::<u16>(first)?..=number(last)? {
            slots.push(Slot::new(slot).ok_or_else(|| ParseError::new(format!("no such slot: {slot}")))?);
        }
    }
    Ok(slots.into_iter().collect())
}

/// `5`, or `shard/term/number/random`.
fn location(words: &mut LineWords) -> ParseResult<Location> {
    let Some(text) = words.take("at") else { return Ok(Location::default()) };
    let parts: Vec<u64> = text.split('/').map(number).collect::<ParseResult<_>>()?;
    match parts[..] {
        [number] => Ok(Location { number, ..Location::default() }),
        [shard, term, number, random] => {
            let shard = Shard(u32::try_from(shard).map_err(ParseError::new)?);
            Ok(Location { shard, term, number, random })
        }
        _ => Err(ParseError::new(format!("not a location: {text}"))),
    }
}

fn set_limit(limits: &mut Limits, name: &str, value: u64) -> ParseResult<()> {
    let small = || u32::try_from(value).map_err(|_| ParseError::new(format!("too large: {name}={value}")));
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
        other => return Err(ParseError::new(format!("no such limit: {other}"))),
    }
    Ok(())
}

fn grant(words: &mut LineWords) -> ParseResult<LeaseRequest> {
    let on_expiry = match (words.number("hold")?, words.flag("manual")) {
        (Some(ms), false) => OnExpiry::Hold(Span(ms)),
        (None, true) => OnExpiry::Manual,
        (None, false) => OnExpiry::Free,
        (Some(_), true) => return Err(ParseError::new("hold or manual, not both")),
    };
    let metadata = words.take("metadata").map(|hex| parse_hex(&hex)).transpose()?;
    Ok(LeaseRequest {
        namespace: namespace(words)?,
        ttl: Span(words.number("ttl")?.unwrap_or(60_000)),
        on_expiry,
        owner: words.take("owner").map(|text| valid(Owner::new(&text))).transpose()?,
        agent: words.take("agent").map(|text| valid(AgentName::new(&text))).transpose()?,
        session: words.take("session").map(|text| valid(SessionName::new(&text))).transpose()?,
        attempt: words.take("attempt").map(|text| parse_age(&text)).transpose()?,
        reason: words.take("reason").map(|text| valid(Reason::new(&text))).transpose()?,
        metadata: metadata.map(|bytes| valid(Metadata::new(&bytes))).transpose()?,
        bundle: bundle(words)?,
    })
}

fn bundle(words: &mut LineWords) -> ParseResult<Bundle> {
    let members = words.rest().iter().map(|word| member(word)).collect::<ParseResult<_>>()?;
    valid(Bundle::new(members))
}

/// `MUTATES:KEY:orders`, or `KEY:orders`, which means the same.
fn member(word: &str) -> ParseResult<Member> {
    let first = word.split(':').next().and_then(Predicate::parse);
    let (predicate, resource) = match first {
        Some(predicate) => (predicate, &word[predicate.as_str().len() + 1..]),
        None => (Predicate::Mutates, word),
    };
    Ok(Member { resource: valid(ResourceName::parse(resource, None))?, predicate })
}

fn relocation(words: &mut LineWords) -> ParseResult<Relocation> {
    Ok(Relocation {
        namespace: namespace(words)?,
        version: Version(words.number("version")?.unwrap_or(0)),
        location: location(words)?,
        key: valid(ResourceName::parse(&words.need("a key")?, None))?,
    })
}

fn party(words: &mut LineWords) -> ParseResult<Party> {
    let namespace = namespace(words)?;
    match (words.take("identity"), words.take("agent")) {
        (Some(identity), None) => Ok(Party::Identity(namespace, valid(Identity::new(&identity))?)),
        (None, Some(agent)) => Ok(Party::Agent(namespace, valid(AgentName::new(&agent))?)),
        _ => Err(ParseError::new("an identity or an agent")),
    }
}

fn paused(words: &mut LineWords) -> ParseResult<Paused> {
    match words.take("agent") {
        Some(agent) => Ok(Paused::Agent(namespace(words)?, valid(AgentName::new(&agent))?)),
        None => Ok(Paused::Scope(scope(words)?)),
    }
}

fn scope(words: &mut LineWords) -> ParseResult<Scope> {
    Ok(Scope {
        namespace: words.take("ns").map(|text| valid(Namespace::new(&text))).transpose()?,
        identity: words.take("identity").map(|text| valid(Identity::new(&text))).transpose()?,
    })
}

fn quota(words: &mut LineWords) -> ParseResult<Quota> {
    Ok(Quota {
        leases_max: words.option("leases")?,
        total_max: words.number("total")?.map(Span),
        idle_max: words.number("idle")?.map(Span),
        acquires_per_second: words.option("rate")?,
    })
}

fn namespace(words: &mut LineWords) -> ParseResult<Namespace> {
    valid(Namespace::new(&words.take("ns").unwrap_or_else(|| "default".into())))
}

fn parse_request(text: &str) -> ParseResult<IdempotencyKey> {
    let (key, fingerprint) = text.split_once('/').unwrap_or((text, "0"));
    Ok(IdempotencyKey { key: RequestKey(parse_bytes(key)?), fingerprint: parse_bytes(fingerprint)? })
}

fn parse_age(text: &str) -> ParseResult<Age> {
    let (at, tie) = text.split_once('.').unwrap_or((text, "0"));
    Ok(Age { at: Time(number(at)?), tie: number(tie)? })
}

/// Hexadecimal; a single byte is repeated to fill the array.
fn parse_bytes<const N: usize>(text: &str) -> ParseResult<[u8; N]> {
    let bytes = parse_hex(text)?;
    match bytes[..] {
        [byte] => Ok([byte; N]),
        _ => bytes.try_into().map_err(|_| ParseError::new(format!("not {N} bytes: {text}"))),
    }
}

fn parse_hex(text: &str) -> ParseResult<Vec<u8>> {
    let padded = if text.len() % 2 == 1 { format!("0{text}") } else { text.to_string() };
    let pairs = padded.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or("?"));
    let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16)).collect::<Result<Vec<u8>, _>>();
    bytes.map_err(|_| ParseError::new(format!("not hexadecimal: {text}")))
}

fn number<T: FromStr>(text: &str) -> ParseResult<T> {
    text.parse().map_err(|_| ParseError::new(format!("not a number: {text}")))
}

fn valid<T, E: fmt::Display>(result: Result<T, E>) -> ParseResult<T> {
    result.map_err(ParseError::new)
}

/// The words of a line: plain words, and `name=value` options.
struct LineWords(Vec<String>);

impl LineWords {
    /// Splits at white space outside of quotes.
    fn split(line: &str) -> ParseResult<LineWords> {
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
        if quoted { Err(ParseError::new("unclosed quote")) } else { Ok(LineWords(words)) }
    }

    fn prefixed(&mut self, sign: char) -> ParseResult<Option<u64>> {
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
        let position = self.0.iter().position(|word| !word.contains('='))?;
        Some(self.0.remove(position))
    }

    fn need(&mut self, what: &str) -> ParseResult<String> {
        self.next_plain().ok_or_else(|| ParseError::new(format!("{what} is missing")))
    }

    fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next_plain()).collect()
    }

    fn flag(&mut self, name: &str) -> bool {
        let position = self.0.iter().position(|word| word == name);
        position.map(|position| self.0.remove(position)).is_some()
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let matches = |word: &String| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
        let position = self.0.iter().position(matches)?;
        Some(self.0.remove(position)[name.len() + 1..].to_string())
    }

    fn number(&mut self, name: &str) -> ParseResult<Option<u64>> {
        self.option(name)
    }

    fn option<T: FromStr>(&mut self, name: &str) -> ParseResult<Option<T>> {
        self.take(name).map(|text| number(&text)).transpose()
    }

    fn all_used(&self) -> ParseResult<()> {
        match self.0.first() {
            Some(word) => Err(ParseError::new(format!("unexpected word: {word}"))),
            None => Ok(()),
        }
    }
}
