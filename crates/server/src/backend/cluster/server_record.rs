//! The object `servers/<id>`: a server's address, and the shards that it owns.
//!
//! Its owner overwrites it several times within the takeover silence, each time with another `beat`. It is a hint: nothing
//! but the time of a takeover attempt and the target of a forwarded request depend on it.

use std::fmt;
use std::str::FromStr;

use kernel::Shard;
use serde::{Deserialize, Serialize};

/// The prefix of all records.
pub(crate) const PREFIX: &str = "servers/";

/// The longest record that is read.
pub(crate) const RECORD_BYTES_MAX: usize = 256 << 10;

/// Identifies one run of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServerId(pub(crate) u128);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for ServerId {
    type Err = ();

    fn from_str(text: &str) -> Result<ServerId, ()> {
        let is_canonical = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_canonical {
            return Err(());
        }
        u128::from_str_radix(text, 16).map(ServerId).map_err(|_| ())
    }
}

impl ServerId {
    /// The name of its record.
    pub(crate) fn object(self) -> String {
        format!("{PREFIX}{self}")
    }

    /// The server whose record has this name.
    pub(crate) fn of_object(name: &str) -> Option<ServerId> {
        name.strip_prefix(PREFIX)?.parse().ok()
    }
}

/// A server, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerRecord {
    /// `https://host:port` or `http://host:port`; empty while the server does not listen yet.
    pub(crate) address: String,
    /// Differs in each two records that the server writes.
    pub(crate) beat: u64,
    /// Hands its shards over, and takes no others.
    #[serde(default)]
    pub(crate) stopping: bool,
    /// The versions of logs that it writes, and reads with all earlier ones: [`engine::LOG_VERSIONS`] of its build. A build that
    /// does not say so reads none.
    #[serde(default)]
    pub(crate) log_versions: Vec<u32>,
    /// The shards that it owns, and whose log takes its appends.
    pub(crate) shards: Vec<OwnedShard>,
    /// The shards that it has handed over, until their new owners say that they own them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) handed_over: Vec<HandedOverShard>,
}

/// A shard that was handed over at the end of a tenure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedOverShard {
    pub(crate) shard: u32,
    /// The term that has ended.
    pub(crate) term: u64,
    /// The id of the server that is to own it.
    pub(crate) to: String,
}

/// A shard, and the tenure in which it is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnedShard {
    pub(crate) shard: u32,
    pub(crate) term: u64,
}

impl ServerRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record serializes")
    }

    /// `None` if it is malformed, or written by a version that this one does not understand.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ServerRecord> {
        serde_json::from_slice(bytes).ok()
    }

    /// Whether it can read logs of these versions.
    pub(crate) fn reads(&self, versions: &[u32]) -> bool {
        let own = self.log_versions.iter().copied().chain(std::iter::repeat(0));
        own.zip(versions).all(|(own, version)| own >= *version)
    }

    /// The term after which it handed the shard over to this server.
    pub(crate) fn handed_to(&self, server: ServerId, shard: Shard) -> Option<u64> {
        let handed = self.handed_over.iter().find(|handed| handed.shard == shard.0)?;
        (handed.to.parse() == Ok(server)).then_some(handed.term)
    }

    /// The term in which it owns the shard.
    pub(crate) fn term_of(&self, shard: Shard) -> Option<u64> {
        self.shards.iter().find(|owned| owned.shard == shard.0).map(|owned| owned.term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_record_is_its_servers_id_in_lower_case() {
        let id = ServerId(0xab);
        assert_eq!(id.object(), "servers/000000000000000000000000000000ab");
        assert_eq!(ServerId::of_object(&id.object()), Some(id));
        for name in ["servers/ab", "servers/000000000000000000000000000000AB", "servers/", "log/0/1"] {
            assert_eq!(ServerId::of_object(name), None, "{name}");
        }
    }

    #[test]
    fn a_record_of_a_later_version_is_read_and_a_damaged_one_is_not() {
        let owned = OwnedShard { shard: 2, term: 7 };
        let record = ServerRecord {
            address: "https://a:1".into(),
            beat: 9,
            shards: vec![owned],
            ..ServerRecord::default()
        };
        assert_eq!(ServerRecord::decode(&record.encode()), Some(record.clone()));
        let later =
            br#"{"address":"https://a:1","beat":9,"shards":[{"shard":2,"term":7,"next":3}],"zone":"b"}"#;
        assert_eq!(ServerRecord::decode(later), Some(record.clone()));
        assert_eq!(ServerRecord::decode(b"{\"address\":"), None);
        assert_eq!((record.term_of(Shard(2)), record.term_of(Shard(1))), (Some(7), None));
    }

    #[test]
    fn a_server_reads_logs_of_its_own_versions_and_of_earlier_ones() {
        let record = ServerRecord { log_versions: vec![4, 2], ..ServerRecord::default() };
        for (versions, is_read) in
            [(&[4, 2][..], true), (&[3, 2], true), (&[5, 2], false), (&[4, 3], false), (&[4, 2, 1], false)]
        {
            assert_eq!(record.reads(versions), is_read, "{versions:?}");
        }
        assert!(!ServerRecord::default().reads(&[1]), "a build from before the field");
    }
}
