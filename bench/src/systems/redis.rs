//! Redis: `SET key token NX PX ttl`; a script that compares the token and deletes; the append-only file flushed always or
//! every second. Clients that wait poll.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;

use crate::server::version_of;
use crate::system::{Client, Durability, Environment, Error, Lease, Result, System};
use crate::wire::resp::{Connection, InOrder, Pipeline, Reply, SharedConnection};
use crate::wire::shared::Sharing;

const RELEASE: &str = "for i,k in ipairs(KEYS) do if redis.call('get',k)~=ARGV[1] then return 0 end end return redis.call('del',unpack(KEYS))";
const RENEW: &str = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";
const UPDATE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('set',KEYS[2],ARGV[2]) return 1 else return 0 end";
const BUNDLE: &str = "for i,k in ipairs(KEYS) do if redis.call('exists',k)==1 then return 0 end end \
    for i,k in ipairs(KEYS) do redis.call('set',k,ARGV[1],'px',ARGV[2]) end return 1";
/// Commands of a pipeline when many leases are acquired or renewed.
const PIPELINE: usize = 500;

const ABOUT: &str = "SET NX PX, compare-and-delete script; clients that wait poll every 1 to 10 ms; many renewals by pipeline";

/// The system, with one of two policies, and a connection per client or one for all.
pub(super) struct Redis {
    name: &'static str,
    about: &'static str,
    appendfsync: &'static str,
    durability: Durability,
    sharing: Option<Sharing<InOrder>>,
}

impl Redis {
    pub(super) fn always() -> Redis {
        Redis {
            name: "redis-always",
            about: ABOUT,
            appendfsync: "always",
            durability: Durability::Flushed,
            sharing: None,
        }
    }

    pub(super) fn every_second() -> Redis {
        Redis {
            name: "redis-everysec",
            appendfsync: "everysec",
            durability: Durability::EverySecond,
            ..Redis::always()
        }
    }

    pub(super) fn one_connection() -> Redis {
        Redis {
            name: "redis-one-connection",
            about: "as redis-always, but all clients share one connection, pipelined, replies in order; writes are coalesced",
            sharing: Some(Sharing::default()),
            ..Redis::always()
        }
    }
}

#[async_trait]
impl System for Redis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn version(&self, _environment: &Environment) -> Result<String> {
        version_of("redis-server", &["--version"])
    }

    fn command(&self, _environment: &Environment, folder: &Path, port: u16) -> Command {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
        ]);
        command.args(["--appendfsync", self.appendfsync, "--maxclients", "15000", "--dir"]).arg(folder);
        command
    }

    async fn set_up(&self, address: &str) -> Result<()> {
        Connection::open(address).await?.call(&[b"PING"]).await.map(drop)
    }

    async fn connect(&self, address: &str, _session: Duration) -> Result<Box<dyn Client>> {
        Ok(match &self.sharing {
            None => Box::new(RedisClient::new(Connection::open(address).await?).await?),
            Some(sharing) => {
                let connection = SharedConnection::new(sharing.caller(address).await?);
                Box::new(RedisClient::new(connection).await?)
            }
        })
    }
}

struct RedisClient<P> {
    connection: P,
    /// Hashes of the scripts, in the order in which they are loaded.
    hashes: Vec<Vec<u8>>,
    random: u64,
    token: u64,
}

impl<P: Pipeline> RedisClient<P> {
    async fn new(mut connection: P) -> Result<RedisClient<P>> {
        let mut hashes = Vec::new();
        for script in [RELEASE, RENEW, UPDATE, BUNDLE] {
            match connection.call(&[b"SCRIPT", b"LOAD", script.as_bytes()]).await? {
                Reply::Bulk(Some(hash)) => hashes.push(hash),
                other => return Err(Error::Failed(format!("SCRIPT LOAD: {other:?}"))),
            }
        }
        Ok(RedisClient { connection, hashes, random: super::client_number(), token: 0 })
    }

    fn next_token(&mut self) -> String {
        self.token += 1;
        format!("{:016x}-{}", self.random, self.token)
    }

    /// Runs a script whose result must be at least 1.
    async fn script(&mut self, script: usize, keys: &[&[u8]], arguments: &[&[u8]]) -> Result<i64> {
        let count = keys.len().to_string();
        let hash = self.hashes[script].clone();
        let head: [&[u8]; 3] = [b"EVALSHA", &hash, count.as_bytes()];
        let all: Vec<&[u8]> = head.iter().chain(keys).chain(arguments).copied().collect();
        match self.connection.call(&all).await? {
            Reply::Integer(number) => Ok(number),
            other => Err(Error::Failed(format!("script {script}: {other:?}"))),
        }
    }

    async fn held_script(&mut self, script: usize, keys: &[&[u8]], arguments: &[&[u8]]) -> Result<()> {
        match self.script(script, keys, arguments).await? {
            0 => Err(Error::failed("the lease is not held")),
            _ => Ok(()),
        }
    }

    fn queue_set(&mut self, key: &str, token: &str, ttl: Duration) {
        let ttl = ttl.as_millis().to_string();
        self.connection.queue(&[b"SET", key.as_bytes(), token.as_bytes(), b"NX", b"PX", ttl.as_bytes()]);
    }

    async fn set_reply(&mut self, key: &str, token: String) -> Result<Lease> {
        match self.connection.reply().await? {
            Reply::Status(_) => Ok(Lease::new(key, token, 0)),
            Reply::Bulk(None) => Err(Error::Held),
            other => Err(Error::Failed(format!("SET: {other:?}"))),
        }
    }
}

#[async_trait]
impl<P: Pipeline> Client for RedisClient<P> {
    async fn acquire(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        let token = self.next_token();
        self.queue_set(key, &token, ttl);
        self.connection.flush().await?;
        self.set_reply(key, token).await
    }

    async fn release(&mut self, lease: Lease) -> Result<()> {
        let first = std::iter::once(&lease.key);
        let keys: Vec<&[u8]> = first.chain(&lease.rest).map(|key| key.as_bytes()).collect();
        self.held_script(0, &keys, &[lease.credential.as_bytes()]).await
    }

    async fn acquire_waiting(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        loop {
            match self.acquire(key, ttl).await {
                Err(Error::Held) => tokio::time::sleep(super::poll_pause(&mut self.random)).await,
                other => return other,
            }
        }
    }

    async fn renew(&mut self, lease: &Lease, ttl: Duration) -> Result<()> {
        let ttl = ttl.as_millis().to_string();
        self.held_script(1, &[lease.key.as_bytes()], &[lease.credential.as_bytes(), ttl.as_bytes()]).await
    }

    async fn renew_many(&mut self, leases: &[Lease], ttl: Duration) -> Result<()> {
        let (ttl, hash) = (ttl.as_millis().to_string(), self.hashes[1].clone());
        for part in leases.chunks(PIPELINE) {
            for lease in part {
                let (key, token) = (lease.key.as_bytes(), lease.credential.as_bytes());
                self.connection.queue(&[b"EVALSHA", &hash, b"1", key, token, ttl.as_bytes()]);
            }
            self.connection.flush().await?;
            for _ in part {
                if self.connection.reply().await? != Reply::Integer(1) {
                    return Err(Error::failed("the lease is not held"));
                }
            }
        }
        Ok(())
    }

    async fn acquire_many(&mut self, keys: &[String], ttl: Duration) -> Result<Vec<Lease>> {
        let mut leases = Vec::with_capacity(keys.len());
        for part in keys.chunks(PIPELINE) {
            let tokens: Vec<String> = part.iter().map(|_| self.next_token()).collect();
            part.iter().zip(&tokens).for_each(|(key, token)| self.queue_set(key, token, ttl));
            self.connection.flush().await?;
            for (key, token) in part.iter().zip(tokens) {
                leases.push(self.set_reply(key, token).await?);
            }
        }
        Ok(leases)
    }

    async fn acquire_bundle(&mut self, keys: &[String], ttl: Duration) -> Result<Lease> {
        let (token, ttl) = (self.next_token(), ttl.as_millis().to_string());
        let names: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        match self.script(3, &names, &[token.as_bytes(), ttl.as_bytes()]).await? {
            0 => Err(Error::Held),
            _ => Ok(Lease { rest: keys[1..].to_vec(), ..Lease::new(&keys[0], token, 0) }),
        }
    }

    async fn update(&mut self, lease: &Lease, document: &[u8]) -> Result<()> {
        let name = format!("document:{}", lease.key);
        let keys = [lease.key.as_bytes(), name.as_bytes()];
        self.held_script(2, &keys, &[lease.credential.as_bytes(), document]).await
    }

    async fn live(&mut self) -> Result<u64> {
        match self.connection.call(&[b"DBSIZE"]).await? {
            Reply::Integer(keys) => Ok(keys.cast_unsigned()),
            other => Err(Error::Failed(format!("DBSIZE: {other:?}"))),
        }
    }
}
