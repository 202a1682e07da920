//! etcd over gRPC, in three ways: the server's lock service, the client-side mutex of its Go client, and a lease with a
//! transaction for every lock.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;

use crate::server::version_of;
use crate::system::{Client, Durability, Environment, Error, Lease, Result, System};
use crate::wire::grpc::{Channel, MessageStream};
use crate::wire::protobuf::{Fields, Message, Value, bytes, number};

const TARGET_CREATE: i64 = 1;
const DESCENDING: i64 = 2;
const SORT_BY_CREATE: i64 = 2;
/// The server's limit of a request by default.
const MAX_REQUEST: usize = (1 << 20) + (1 << 19) - 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Lock,
    Mutex,
    Transaction,
}

/// The system, in one of three ways to lock.
pub(super) struct Etcd {
    way: Way,
}

impl Etcd {
    pub(super) fn lock() -> Etcd {
        Etcd { way: Way::Lock }
    }

    pub(super) fn mutex() -> Etcd {
        Etcd { way: Way::Mutex }
    }

    pub(super) fn transaction() -> Etcd {
        Etcd { way: Way::Transaction }
    }
}

#[async_trait]
impl System for Etcd {
    fn name(&self) -> &'static str {
        match self.way {
            Way::Lock => "etcd-lock",
            Way::Mutex => "etcd-mutex",
            Way::Transaction => "etcd-lease-txn",
        }
    }

    fn durability(&self) -> Durability {
        Durability::Flushed
    }

    fn about(&self) -> &'static str {
        match self.way {
            Way::Lock => "Lock and Unlock of the server, under one lease per client",
            Way::Mutex => {
                "client-side mutex: a key per client under one lease, waits by a watch of the key before it"
            }
            Way::Transaction => "a lease for each lock: LeaseGrant, Txn, LeaseRevoke; waits by a watch",
        }
    }

    fn version(&self, _environment: &Environment) -> Result<String> {
        version_of("etcd", &["--version"])
    }

    fn command(&self, _environment: &Environment, folder: &Path, port: u16) -> Command {
        let mut command = Command::new("etcd");
        let url = format!("http://127.0.0.1:{port}");
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:0", "--quota-backend-bytes", "8589934592"]);
        command.args(["--log-level", "error", "--logger", "zap", "--data-dir"]).arg(folder.join("data"));
        command
    }

    async fn set_up(&self, address: &str) -> Result<()> {
        let mut channel = Channel::open(address).await?;
        let put = Message::new().bytes(1, b"ready").bytes(2, b"1").finish();
        channel.call("/etcdserverpb.KV/Put", &put).await.map(drop)
    }

    async fn connect(&self, address: &str, session: Duration) -> Result<Box<dyn Client>> {
        let mut channel = Channel::open(address).await?;
        let lease = match self.way {
            Way::Transaction => 0,
            _ => grant(&mut channel, session).await?,
        };
        Ok(Box::new(EtcdClient { way: self.way, channel, lease, keepalive: None }))
    }
}

async fn grant(channel: &mut Channel, ttl: Duration) -> Result<i64> {
    let seconds = ttl.as_secs_f64().ceil() as i64;
    let response =
        channel.call("/etcdserverpb.Lease/LeaseGrant", &Message::new().number(1, seconds).finish()).await?;
    match number(&response, 2) {
        0 => Err(Error::failed("no lease granted")),
        id => Ok(id),
    }
}

struct EtcdClient {
    way: Way,
    channel: Channel,
    /// The lease of the session, except with a lease for each lock.
    lease: i64,
    keepalive: Option<MessageStream>,
}

/// A condition: the key was created at this revision, 0 for a key that does not exist.
fn created_at(key: &[u8], revision: i64) -> Message {
    Message::new().number(2, TARGET_CREATE).bytes(3, key).present(5, revision)
}

fn put(key: &[u8], value: &[u8], lease: i64) -> Message {
    Message::new().message(2, Message::new().bytes(1, key).bytes(2, value).number(3, lease))
}

/// The end of the range of keys with this prefix.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

impl EtcdClient {
    /// Runs a transaction; returns whether its conditions held, and the response.
    async fn transaction(
        &mut self,
        conditions: Vec<Message>,
        success: Vec<Message>,
    ) -> Result<(bool, Vec<u8>)> {
        let mut message = Message::new();
        for condition in conditions {
            message = message.message(1, condition);
        }
        for operation in success {
            message = message.message(2, operation);
        }
        let response = self.channel.call("/etcdserverpb.KV/Txn", &message.finish()).await?;
        Ok((number(&response, 2) == 1, response))
    }

    /// Creates all keys or none, each as a lease of `lease`.
    async fn create(&mut self, keys: &[String], lease: i64) -> Result<i64> {
        let conditions = keys.iter().map(|key| created_at(key.as_bytes(), 0)).collect();
        let puts = keys.iter().map(|key| put(key.as_bytes(), b"", lease)).collect();
        match self.transaction(conditions, puts).await? {
            (true, response) => Ok(bytes(&response, 1).map_or(0, |header| number(header, 3))),
            (false, _) => Err(Error::Held),
        }
    }

    async fn create_with_lease(&mut self, keys: &[String], ttl: Duration) -> Result<Lease> {
        let id = grant(&mut self.channel, ttl).await?;
        match self.create(keys, id).await {
            Ok(revision) => Ok(Lease::new(&keys[0], format!("{}@{revision}", keys[0]), id)),
            Err(error) => {
                self.revoke(id).await?;
                Err(error)
            }
        }
    }

    async fn revoke(&mut self, id: i64) -> Result<()> {
        let revoke = Message::new().number(1, id).finish();
        self.channel.call("/etcdserverpb.Lease/LeaseRevoke", &revoke).await.map(drop)
    }

    async fn delete(&mut self, key: &str) -> Result<()> {
        let response = self
            .channel
            .call("/etcdserverpb.KV/DeleteRange", &Message::new().bytes(1, key.as_bytes()).finish())
            .await?;
        if number(&response, 2) == 1 { Ok(()) } else { Err(Error::failed("the lock is not held")) }
    }

    async fn lock(&mut self, key: &str) -> Result<Lease> {
        let request = Message::new().bytes(1, key.as_bytes()).number(2, self.lease).finish();
        let response = self.channel.call("/v3lockpb.Lock/Lock", &request).await?;
        let owned = bytes(&response, 2).ok_or_else(|| Error::failed("no key in the response"))?;
        let revision = bytes(&response, 1).map_or(0, |header| number(header, 3));
        Ok(Lease::new(key, format!("{}@{revision}", String::from_utf8_lossy(owned)), 0))
    }

    /// The mutex: own key under the prefix, then wait until no older key is there.
    async fn mutex(&mut self, key: &str, waiting: bool) -> Result<Lease> {
        let (prefix, own) = (format!("{key}/"), format!("{key}/{:x}", self.lease));
        let oldest = Message::new().bytes(1, prefix.as_bytes()).bytes(2, &prefix_end(prefix.as_bytes()));
        let oldest = oldest.number(3, 1).number(5, 1).number(6, SORT_BY_CREATE);
        let operations = vec![put(own.as_bytes(), b"", self.lease), Message::new().message(1, oldest)];
        let (created, response) = self.transaction(vec![created_at(own.as_bytes(), 0)], operations).await?;
        if !created {
            return Err(Error::failed("this client already waits for the key"));
        }
        let revision = bytes(&response, 1).map_or(0, |header| number(header, 3));
        let lease = Lease::new(key, format!("{own}@{revision}"), 0);
        if first_key(&response).is_some_and(|first| first == own.as_bytes()) {
            return Ok(lease);
        }
        if !waiting {
            self.delete(&own).await?;
            return Err(Error::Held);
        }
        self.wait_for_older(&prefix, revision).await?;
        Ok(lease)
    }

    async fn wait_for_older(&mut self, prefix: &str, revision: i64) -> Result<()> {
        loop {
            let range = Message::new().bytes(1, prefix.as_bytes()).bytes(2, &prefix_end(prefix.as_bytes()));
            let range =
                range.number(3, 1).number(5, DESCENDING).number(6, SORT_BY_CREATE).number(13, revision - 1);
            let response = self.channel.call("/etcdserverpb.KV/Range", &range.finish()).await?;
            let Some(before) = bytes(&response, 2).and_then(|kv| bytes(kv, 1)) else { return Ok(()) };
            let seen = bytes(&response, 1).map_or(0, |header| number(header, 3));
            self.wait_for_deletion(&before.to_vec(), seen + 1).await?;
        }
    }

    async fn wait_for_deletion(&mut self, key: &[u8], from: i64) -> Result<()> {
        let mut stream = self.channel.stream("/etcdserverpb.Watch/Watch").await?;
        let create = Message::new().bytes(1, key).number(3, from);
        stream.send(&Message::new().message(1, create).finish(), false).await?;
        loop {
            let Some(response) = stream.receive().await? else {
                return Err(Error::failed("the watch ended"));
            };
            let mut events = Fields(&response).filter(|(field, _)| *field == 11);
            if events.any(|(_, event)| matches!(event, Value::Bytes(event) if number(event, 1) == 1)) {
                return Ok(());
            }
        }
    }
}

/// The first key of the range that is the second operation of a transaction.
fn first_key(response: &[u8]) -> Option<&[u8]> {
    let operations = Fields(response).filter_map(|(field, value)| match value {
        Value::Bytes(value) if field == 3 => Some(value),
        _ => None,
    });
    let range = operations.filter_map(|operation| bytes(operation, 1)).last()?;
    bytes(range, 2).and_then(|kv| bytes(kv, 1))
}

/// The key and the revision of its creation.
fn owned(lease: &Lease) -> Result<(&str, i64)> {
    let (key, revision) =
        lease.credential.rsplit_once('@').ok_or_else(|| Error::failed("not a credential"))?;
    Ok((key, revision.parse().map_err(Error::failed)?))
}

#[async_trait]
impl Client for EtcdClient {
    async fn acquire(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        match self.way {
            Way::Lock => self.lock(key).await,
            Way::Mutex => self.mutex(key, false).await,
            Way::Transaction => self.create_with_lease(&[key.to_string()], ttl).await,
        }
    }

    async fn release(&mut self, lease: Lease) -> Result<()> {
        match self.way {
            Way::Lock => {
                let request = Message::new().bytes(1, owned(&lease)?.0.as_bytes()).finish();
                self.channel.call("/v3lockpb.Lock/Unlock", &request).await.map(drop)
            }
            Way::Mutex => self.delete(owned(&lease)?.0).await,
            Way::Transaction => self.revoke(lease.number).await,
        }
    }

    async fn acquire_waiting(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        match self.way {
            Way::Lock => return self.lock(key).await,
            Way::Mutex => return self.mutex(key, true).await,
            Way::Transaction => {}
        }
        let id = grant(&mut self.channel, ttl).await?;
        loop {
            let range = Message::new().bytes(1, key.as_bytes()).finish();
            match self.create(&[key.to_string()], id).await {
                Ok(revision) => return Ok(Lease::new(key, format!("{key}@{revision}"), id)),
                Err(Error::Held) => {}
                Err(error) => return Err(error),
            }
            let response = self.channel.call("/etcdserverpb.KV/Range", &range).await?;
            if bytes(&response, 2).is_some() {
                let seen = bytes(&response, 1).map_or(0, |header| number(header, 3));
                self.wait_for_deletion(key.as_bytes(), seen + 1).await?;
            }
        }
    }

    async fn renew(&mut self, lease: &Lease, _ttl: Duration) -> Result<()> {
        let id = if self.way == Way::Transaction { lease.number } else { self.lease };
        if self.keepalive.is_none() {
            self.keepalive = Some(self.channel.stream("/etcdserverpb.Lease/LeaseKeepAlive").await?);
        }
        let stream = self.keepalive.as_mut().ok_or_else(|| Error::failed("no stream"))?;
        stream.send(&Message::new().number(1, id).finish(), false).await?;
        let response = stream.receive().await?.ok_or_else(|| Error::failed("the stream ended"))?;
        if number(&response, 3) > 0 { Ok(()) } else { Err(Error::failed("the lease is not held")) }
    }

    async fn acquire_many(&mut self, keys: &[String], ttl: Duration) -> Result<Vec<Lease>> {
        if self.way != Way::Transaction {
            return Err(Error::unsupported("one lease per client: see etcd-lease-txn"));
        }
        let mut leases = Vec::with_capacity(keys.len());
        for key in keys {
            leases.push(self.create_with_lease(std::slice::from_ref(key), ttl).await?);
        }
        Ok(leases)
    }

    async fn acquire_bundle(&mut self, keys: &[String], ttl: Duration) -> Result<Lease> {
        match self.way {
            Way::Transaction => self.create_with_lease(keys, ttl).await,
            _ => Err(Error::unsupported("no atomic lock over several keys: see etcd-lease-txn")),
        }
    }

    async fn update(&mut self, lease: &Lease, document: &[u8]) -> Result<()> {
        if document.len() > MAX_REQUEST {
            return Err(Error::unsupported("larger than a request may be (1.5 MiB)"));
        }
        let (key, revision) = owned(lease)?;
        let name = format!("document:{}", lease.key);
        let write = put(name.as_bytes(), document, 0);
        match self.transaction(vec![created_at(key.as_bytes(), revision)], vec![write]).await?.0 {
            true => Ok(()),
            false => Err(Error::failed("the lock is not held")),
        }
    }

    async fn live(&mut self) -> Result<u64> {
        let range = Message::new().bytes(1, b"lease-").bytes(2, b"lease.").number(9, 1).finish();
        let response = self.channel.call("/etcdserverpb.KV/Range", &range).await?;
        Ok(number(&response, 4).cast_unsigned())
    }
}
