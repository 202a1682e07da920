//! The `attempt_id` text: a blocked request presents it with its next try, and keeps its place in the queue.
//!
//! **Invariant.** A text verifies only if this store issued it. It counts only for the request that it was issued to: the
//! same identity, namespace, session and resources. The server stores nothing for it; the engine decides how long it
//! counts.
//!
//! **What would break it.** A text that a client can forge: every request could claim to be the oldest. A text that counts
//! for another request: one could collect places for a cheap resource, and use them for a contended one.

use api::{Code, Refusal};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use engine::waiters::{Arrival, Attempt};
use kernel::{Age, Identity, LeaseRequest, Time};

use crate::backend::credential::{SECRET_BYTES, StoreKey, constant_time_eq};

/// Longer than the 24 bytes that credentials hash, so that the hash of an attempt is never that of a credential.
const PURPOSE: &[u8] = b"lockd: the place of an attempt";
const REQUEST_PURPOSE: &[u8] = b"lockd: the request of an attempt";

/// Term, number, time and tie-breaker of the first try, and the time of the last reply.
const PLACE_BYTES: usize = 40;
const PAYLOAD_BYTES: usize = PLACE_BYTES + SECRET_BYTES;

/// The request that attempts are bound to.
pub(crate) struct RequestBinding<'a> {
    key: &'a StoreKey,
    hash: [u8; SECRET_BYTES],
}

impl<'a> RequestBinding<'a> {
    pub(crate) fn new(key: &'a StoreKey, identity: &Identity, request: &LeaseRequest) -> RequestBinding<'a> {
        let mut bytes = Vec::from(REQUEST_PURPOSE);
        let mut add = |text: &str| {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        };
        add(identity.as_str());
        add(request.namespace.as_str());
        add(request.agent.as_ref().map_or("", |agent| agent.as_str()));
        // A session name is not empty.
        add(request.session.as_ref().map_or("", |session| session.as_str()));
        for member in request.bundle.members() {
            add(member.resource.as_str());
            add(member.predicate.as_str());
        }
        RequestBinding { key, hash: key.mac(&[&bytes]) }
    }

    /// The text of an attempt of this request: `A-`, and its place, this request and a keyed hash in base64url.
    pub(crate) fn issue(&self, attempt: &Attempt) -> String {
        let Attempt { arrival, age, last } = attempt;
        let mut bytes = Vec::with_capacity(PAYLOAD_BYTES + SECRET_BYTES);
        for word in [arrival.term, arrival.number, age.at.0, age.tie, last.0] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(self.hash);
        let secret = self.key.mac(&[PURPOSE, &bytes]);
        bytes.extend(secret);
        format!("A-{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// A refusal whose retry keeps the place of this attempt.
    pub(crate) fn with_attempt(&self, refusal: Refusal, attempt: &Attempt) -> Refusal {
        refusal.with(|hints| hints.attempt_id = Some(self.issue(attempt)))
    }

    /// The attempt in a text; `None` if it is of another request. A text that this store did not issue is refused.
    pub(crate) fn verify(&self, text: &str) -> Result<Option<Attempt>, Refusal> {
        let payload = self.payload(text).ok_or_else(|| {
            let detail = "attempt_id was not issued by this server; omit it to start a new attempt";
            Refusal::new(Code::InvalidBody, detail)
        })?;
        let (place, hash) = payload.split_at(PLACE_BYTES);
        if hash != self.hash && !planted!(AttemptOfAnother) {
            return Ok(None);
        }
        let word = |index: usize| {
            let bytes = place[index * 8..index * 8 + 8].try_into().expect("eight bytes");
            u64::from_be_bytes(bytes)
        };
        let arrival = Arrival { term: word(0), number: word(1) };
        let age = Age { at: Time(word(2)), tie: word(3) };
        Ok(Some(Attempt { arrival, age, last: Time(word(4)) }))
    }

    fn payload(&self, text: &str) -> Option<[u8; PAYLOAD_BYTES]> {
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix("A-")?).ok()?;
        let bytes: [u8; PAYLOAD_BYTES + SECRET_BYTES] = bytes.try_into().ok()?;
        let (payload, shown) = bytes.split_at(PAYLOAD_BYTES);
        let shown: [u8; SECRET_BYTES] = shown.try_into().expect("the rest");
        let is_issued = constant_time_eq(&self.key.mac(&[PURPOSE, payload]), &shown);
        (is_issued || planted!(AttemptForged)).then(|| payload.try_into().expect("the payload"))
    }
}

/// The attempt that a request presents, if any.
pub(crate) fn presented(
    binding: &RequestBinding<'_>,
    text: Option<&str>,
) -> Result<Option<Attempt>, Refusal> {
    text.map_or(Ok(None), |text| binding.verify(text))
}

/// A refusal before the request was decided: its attempt, if it presented one, is as it was.
pub(crate) fn kept(refusal: Refusal, text: Option<&str>) -> Refusal {
    refusal.with(|hints| hints.attempt_id = text.map(str::to_string))
}

#[cfg(test)]
mod tests {
    use kernel::{Bundle, Namespace, OnExpiry, ResourceName, SessionName, Span};

    use super::*;

    fn request(namespace: &str, session: &str, key: &str) -> LeaseRequest {
        LeaseRequest {
            namespace: Namespace::new(namespace).expect("a name"),
            bundle: Bundle::of_key(ResourceName::new("KEY", key).expect("a name")),
            ttl: Span(1000),
            on_expiry: OnExpiry::Free,
            owner: None,
            agent: None,
            session: Some(SessionName::new(session).expect("a name")),
            attempt: None,
            reason: None,
            metadata: None,
        }
    }

    fn attempt() -> Attempt {
        let arrival = Arrival { term: 3, number: 77 };
        Attempt { arrival, age: Age { at: Time(1234), tie: 0xdead_beef }, last: Time(5678) }
    }

    fn bound<'a>(key: &'a StoreKey, identity: &str, request: &LeaseRequest) -> RequestBinding<'a> {
        RequestBinding::new(key, &Identity::new(identity).expect("a name"), request)
    }

    #[test]
    fn a_text_counts_only_for_its_request() {
        let key = StoreKey::new([7; 32]);
        let wanted = request("prod", "s", "orders");
        let text = bound(&key, "ada", &wanted).issue(&attempt());
        assert_eq!(bound(&key, "ada", &wanted).verify(&text), Ok(Some(attempt())));
        let longer = LeaseRequest { ttl: Span(5), ..wanted.clone() };
        assert_eq!(bound(&key, "ada", &longer).verify(&text), Ok(Some(attempt())), "the TTL may change");
        assert_eq!(bound(&key, "bob", &wanted).verify(&text), Ok(None), "another identity");
        // The boundary between names is part of the hash.
        let others = [
            ("test", "s", "orders"),
            ("prod", "t", "orders"),
            ("prod", "s", "order"),
            ("prods", "s", "orders"),
        ];
        for (namespace, session, name) in others {
            let other = request(namespace, session, name);
            assert_eq!(bound(&key, "ada", &other).verify(&text), Ok(None), "{namespace} {session} {name}");
        }
        let without = LeaseRequest { session: None, ..wanted };
        assert_eq!(bound(&key, "ada", &without).verify(&text), Ok(None), "no session");
    }

    #[test]
    fn a_forged_or_malformed_text_is_refused() {
        let key = StoreKey::new([7; 32]);
        let wanted = request("prod", "s", "orders");
        let binding = bound(&key, "ada", &wanted);
        let good = binding.issue(&attempt());
        assert!(bound(&StoreKey::new([8; 32]), "ada", &wanted).verify(&good).is_err(), "another store");
        for at in 2..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(bytes).expect("ASCII");
            assert!(binding.verify(&forged).is_err(), "{at}");
        }
        let cut = &good[..good.len() - 1];
        for bad in
            ["", "A-", "L-1.2.3", cut, &good[1..], &format!("{good}="), &format!("A-{}", "é".repeat(48))]
        {
            assert!(binding.verify(bad).is_err(), "{bad}");
        }
    }
}
