//! A ceiling: the least that a server does for durable responses over a protocol of its own, as a process of its own.
//!
//! Frames with a length in front, a connection per client, one request in flight on each. One thread waits for sockets,
//! reads all requests that have arrived, and hands them over as a group; a second one appends the group, flushes, and writes
//! its responses, while the first one collects the next group. Nothing is parsed, decided, encrypted or limited.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use async_trait::async_trait;
use rustix::event::epoll;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::system::{Client, Durability, Environment, Error, Lease, Result, System};

/// The subcommand of this program that serves.
pub const SUBCOMMAND: &str = "serve-frames";
/// Bytes of a request: a key, a TTL, an idempotency key.
const REQUEST: usize = 64;
/// Bytes of a response: a credential, a token, a deadline.
const RESPONSE: usize = 96;
/// What is logged for a request, in bytes.
const RECORD: [u8; 128] = [7; 128];
const FILE_BYTES: u64 = 64 << 20;
/// The token of the listener; those of connections count from 0.
const LISTENER: u64 = u64::MAX;
/// Groups that wait for the log.
const GROUPS: usize = 1;

/// The system.
pub(super) struct Frames;

/// Serves until the process is killed.
pub fn serve(port: u16, folder: &Path) -> Result<()> {
    let file = File::options().create(true).truncate(true).write(true).open(folder.join("frames"))?;
    file.write_all_at(&vec![0; FILE_BYTES as usize], 0)?;
    file.sync_all()?;
    let (send, receive) = sync_channel(GROUPS);
    let log = std::thread::spawn(move || append_groups(&file, &receive));
    read_requests(&TcpListener::bind(("127.0.0.1", port))?, &send)?;
    log.join().map_err(|_| Error::failed("the log's thread panicked"))?
}

/// Reads what has arrived, until there is nothing more, and hands it over as one group.
fn read_requests(listener: &TcpListener, groups: &SyncSender<Vec<Arc<TcpStream>>>) -> Result<()> {
    let failed = |errno: rustix::io::Errno| Error::failed(errno);
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
    epoll::add(&poll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
        .map_err(failed)?;
    let mut streams: HashMap<u64, Arc<TcpStream>> = HashMap::new();
    let (mut next, mut events) = (0, Vec::with_capacity(1024));
    loop {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None).map_err(failed)?;
        let mut group = Vec::with_capacity(events.len());
        for event in &events {
            let number = event.data.u64();
            if number == LISTENER {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                let data = epoll::EventData::new_u64(next);
                epoll::add(&poll, &stream, data, epoll::EventFlags::IN).map_err(failed)?;
                streams.insert(next, Arc::new(stream));
                next += 1;
                continue;
            }
            let Some(stream) = streams.get(&number) else { continue };
            let mut request = [0; REQUEST];
            match (&**stream).read(&mut request) {
                Ok(0) => drop(streams.remove(&number)),
                Ok(_) => group.push(Arc::clone(stream)),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => drop(streams.remove(&number)),
                Err(error) => return Err(error.into()),
            }
        }
        if !group.is_empty() {
            groups.send(group).map_err(Error::failed)?;
        }
    }
}

/// Appends a group, makes it durable, and responds.
fn append_groups(file: &File, groups: &Receiver<Vec<Arc<TcpStream>>>) -> Result<()> {
    let mut offset = 0;
    while let Ok(mut group) = groups.recv() {
        while let Ok(next) = groups.try_recv() {
            group.extend(next);
        }
        file.write_all_at(&RECORD.repeat(group.len()), offset)?;
        file.sync_data()?;
        offset = (offset + (RECORD.len() * group.len()) as u64) % (FILE_BYTES / 2);
        for stream in group {
            // A client that is gone needs no response.
            let _ = (&*stream).write(&[1; RESPONSE]);
        }
    }
    Ok(())
}

#[async_trait]
impl System for Frames {
    fn name(&self) -> &'static str {
        "frames-commit"
    }

    fn durability(&self) -> Durability {
        Durability::Ceiling
    }

    fn about(&self) -> &'static str {
        "reads a frame, appends it with one fdatasync per group, responds with a frame; decides nothing"
    }

    fn version(&self, _environment: &Environment) -> Result<String> {
        Ok("epoll, fdatasync".to_string())
    }

    fn command(&self, _environment: &Environment, folder: &Path, port: u16) -> Command {
        let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
        let mut command = Command::new(program);
        command.args([SUBCOMMAND, &port.to_string()]).arg(folder);
        command
    }

    async fn set_up(&self, address: &str) -> Result<()> {
        self.connect(address, Duration::ZERO).await.map(drop)
    }

    async fn connect(&self, address: &str, _session: Duration) -> Result<Box<dyn Client>> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(FramesClient { stream }))
    }
}

struct FramesClient {
    stream: tokio::net::TcpStream,
}

impl FramesClient {
    async fn call(&mut self) -> Result<()> {
        self.stream.write_all(&[2; REQUEST]).await?;
        let mut response = [0; RESPONSE];
        self.stream.read_exact(&mut response).await?;
        Ok(())
    }
}

#[async_trait]
impl Client for FramesClient {
    async fn acquire(&mut self, key: &str, _ttl: Duration) -> Result<Lease> {
        self.call().await?;
        Ok(Lease::new(key, "", 0))
    }

    async fn release(&mut self, _lease: Lease) -> Result<()> {
        self.call().await
    }

    async fn acquire_many(&mut self, _keys: &[String], _ttl: Duration) -> Result<Vec<Lease>> {
        Err(Error::unsupported("decides nothing"))
    }
}
