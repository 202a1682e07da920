//! ZooKeeper: an ephemeral node per lease; clients that wait use the lock recipe (sequential nodes, each watches the one
//! before it).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;

use crate::server::version_of;
use crate::system::{Client, Durability, Environment, Error, Expiry, Lease, Result, System};
use crate::wire::jute::{Session, Writer, code, operation};

const CLASS_PATH: &str = "/usr/share/java/zookeeper.jar";
const EPHEMERAL: i32 = 1;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
/// Requests in flight when many nodes are created.
const PIPELINE: usize = 500;
/// The server's limit of a packet (`jute.maxbuffer`) by default, less the fields around a document.
const MAX_DOCUMENT: usize = 0xf_ffff - 1024;

/// The system.
pub(super) struct Zookeeper;

#[async_trait]
impl System for Zookeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn durability(&self) -> Durability {
        Durability::Flushed
    }

    fn about(&self) -> &'static str {
        "ephemeral nodes; waits by the lock recipe; a lease lives as long as its session, which one ping renews"
    }

    fn expiry(&self) -> Expiry {
        Expiry::WithSession
    }

    fn version(&self, _environment: &Environment) -> Result<String> {
        version_of("java", &["-cp", CLASS_PATH, "org.apache.zookeeper.version.VersionInfoMain"])
    }

    fn prepare(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir(folder.join("data"))?;
        Ok(())
    }

    fn command(&self, _environment: &Environment, folder: &Path, port: u16) -> Command {
        let settings = format!(
            "tickTime=2000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
             minSessionTimeout=4000\nmaxSessionTimeout=3600000\nadmin.enableServer=false\n",
            folder.join("data").display()
        );
        // A file that cannot be written makes the server end at once, with its own message.
        let _ = std::fs::write(folder.join("zoo.cfg"), settings);
        let mut command = Command::new("java");
        command.args(["-Xmx6g", "-cp", CLASS_PATH, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]);
        command.arg(folder.join("zoo.cfg"));
        command
    }

    async fn set_up(&self, address: &str) -> Result<()> {
        let mut session = Session::open(address, Duration::from_secs(10)).await?;
        for path in ["/locks", "/queues", "/documents"] {
            create_if_absent(&mut session, path).await?;
        }
        Ok(())
    }

    async fn connect(&self, address: &str, session: Duration) -> Result<Box<dyn Client>> {
        let session = Session::open(address, session.max(Duration::from_secs(4))).await?;
        Ok(Box::new(ZookeeperClient { session, documents: Vec::new(), queue: String::new() }))
    }
}

async fn create_if_absent(session: &mut Session, path: &str) -> Result<()> {
    let response = session.call(operation::CREATE, Writer::default().create(path, b"", 0)).await?;
    if response.error == code::NODE_EXISTS { Ok(()) } else { response.succeeded().map(drop) }
}

struct ZookeeperClient {
    session: Session,
    /// Keys whose document node exists.
    documents: Vec<String>,
    /// The queue node that exists.
    queue: String,
}

impl ZookeeperClient {
    /// The node before this one in its queue, or nothing if this is the first.
    async fn predecessor(&mut self, queue: &str, own: &str) -> Result<Option<String>> {
        let body = Writer::default().buffer(queue.as_bytes()).bool(false);
        let response = self.session.call(operation::CHILDREN, body).await?.succeeded()?;
        let mut reader = response.reader();
        let mut before = None;
        for _ in 0..reader.int()? {
            let child = reader.text()?;
            if child.as_str() < own && before.as_ref().is_none_or(|best| *best < child) {
                before = Some(child);
            }
        }
        Ok(before)
    }

    async fn transaction(&mut self, operations: Vec<(i32, Writer)>) -> Result<()> {
        let mut body = Writer::default();
        for (operation, fields) in operations {
            body = body.multi_header(operation, false);
            body.0.extend_from_slice(&fields.0);
        }
        let response = self.session.call(operation::MULTI, body.multi_header(-1, true)).await?;
        match response.error {
            code::NODE_EXISTS => Err(Error::Held),
            _ => response.succeeded().map(drop),
        }
    }
}

fn lock(key: &str) -> String {
    format!("/locks/{key}")
}

#[async_trait]
impl Client for ZookeeperClient {
    async fn acquire(&mut self, key: &str, _ttl: Duration) -> Result<Lease> {
        let path = lock(key);
        let body = Writer::default().create(&path, b"", EPHEMERAL);
        let response = self.session.call(operation::CREATE, body).await?;
        if response.error == code::NODE_EXISTS {
            return Err(Error::Held);
        }
        response.succeeded()?;
        Ok(Lease::new(key, path, 0))
    }

    async fn release(&mut self, lease: Lease) -> Result<()> {
        let delete = |path: &str| Writer::default().buffer(path.as_bytes()).int(-1);
        if lease.rest.is_empty() {
            let response = self.session.call(operation::DELETE, delete(&lease.credential)).await?;
            return response.succeeded().map(drop);
        }
        let all = std::iter::once(&lease.key).chain(&lease.rest);
        self.transaction(all.map(|key| (operation::DELETE, delete(&lock(key)))).collect()).await
    }

    async fn acquire_waiting(&mut self, key: &str, _ttl: Duration) -> Result<Lease> {
        let queue = format!("/queues/{key}");
        if self.queue != queue {
            create_if_absent(&mut self.session, &queue).await?;
            self.queue.clone_from(&queue);
        }
        let body = Writer::default().create(&format!("{queue}/n-"), b"", EPHEMERAL_SEQUENTIAL);
        let path = self.session.call(operation::CREATE, body).await?.succeeded()?.reader().text()?;
        let own = path.rsplit('/').next().unwrap_or_default().to_string();
        while let Some(before) = self.predecessor(&queue, &own).await? {
            let watched = format!("{queue}/{before}");
            let body = Writer::default().buffer(watched.as_bytes()).bool(true);
            let response = self.session.call(operation::EXISTS, body).await?;
            if response.error != code::NO_NODE {
                response.succeeded()?;
                self.session.wait_for(&watched).await?;
            }
        }
        Ok(Lease::new(key, path, 0))
    }

    async fn renew(&mut self, _lease: &Lease, _ttl: Duration) -> Result<()> {
        self.session.call(operation::PING, Writer::default()).await?.succeeded().map(drop)
    }

    async fn renew_many(&mut self, leases: &[Lease], ttl: Duration) -> Result<()> {
        match leases.first() {
            Some(lease) => self.renew(lease, ttl).await,
            None => Ok(()),
        }
    }

    async fn acquire_many(&mut self, keys: &[String], _ttl: Duration) -> Result<Vec<Lease>> {
        let mut leases = Vec::with_capacity(keys.len());
        for part in keys.chunks(PIPELINE) {
            let mut sent = Vec::with_capacity(part.len());
            for key in part {
                let body = Writer::default().create(&lock(key), b"", EPHEMERAL);
                sent.push((self.session.send(operation::CREATE, body).await?, key));
            }
            for (xid, key) in sent {
                self.session.response(xid).await?.succeeded()?;
                leases.push(Lease::new(key, lock(key), 0));
            }
        }
        Ok(leases)
    }

    async fn acquire_bundle(&mut self, keys: &[String], _ttl: Duration) -> Result<Lease> {
        let create = |key: &String| (operation::CREATE, Writer::default().create(&lock(key), b"", EPHEMERAL));
        self.transaction(keys.iter().map(create).collect()).await?;
        Ok(Lease { rest: keys[1..].to_vec(), ..Lease::new(&keys[0], lock(&keys[0]), 0) })
    }

    async fn update(&mut self, lease: &Lease, document: &[u8]) -> Result<()> {
        if document.len() > MAX_DOCUMENT {
            return Err(Error::unsupported("larger than a packet may be (jute.maxbuffer, 1 MiB)"));
        }
        let path = format!("/documents/{}", lease.key);
        if !self.documents.contains(&lease.key) {
            create_if_absent(&mut self.session, &path).await?;
            self.documents.push(lease.key.clone());
        }
        let check = Writer::default().buffer(lease.credential.as_bytes()).int(-1);
        let set = Writer::default().buffer(path.as_bytes()).buffer(document).int(-1);
        self.transaction(vec![(operation::CHECK, check), (operation::SET_DATA, set)]).await
    }

    async fn live(&mut self) -> Result<u64> {
        let body = Writer::default().buffer(b"/locks").bool(false);
        let response = self.session.call(operation::EXISTS, body).await?.succeeded()?;
        Ok(u64::try_from(response.reader().children_of_stat()?).unwrap_or(0))
    }
}
