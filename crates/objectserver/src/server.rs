//! A running server, and what a test can see and change of it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::absence::AbsenceCache;
use crate::call::Operation;
use crate::counters::{Counters, RequestCounts};
use crate::faults::Fault;
use crate::history::{CreateAttempt, History};
use crate::holds::{Gate, Hold, Moment};
use crate::listen::{self, Listening};
use crate::object::Object;
use crate::options::{Dialect, ServerOptions};
use crate::plan::{FaultId, FaultTable};
use crate::serve::Shared;
use crate::store::{Limits, Store};

/// An object store in memory that serves on loopback until it is dropped.
#[derive(Debug)]
pub struct ObjectServer {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    listening: Mutex<Option<Listening>>,
    runtime: Handle,
    shutdown: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A multipart upload that was begun and neither completed nor aborted, or uncommitted blocks of Azure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenUpload {
    /// The bucket.
    pub bucket: String,
    /// The name of the object to be.
    pub key: String,
    /// The id under which parts are uploaded.
    pub upload_id: String,
    /// The time of its begin, since the Unix epoch.
    pub begun: Duration,
    /// The number of parts.
    pub parts: usize,
    /// The bytes of all parts.
    pub bytes: u64,
}

impl ObjectServer {
    /// Starts a server. It runs on a thread of its own.
    pub fn start(options: ServerOptions) -> io::Result<Self> {
        let listeners = listen::bind_loopback(options.port)?;
        let addresses =
            listeners.iter().map(std::net::TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let shared = Arc::new(Shared::new(options));
        let listening = Listening::start(&handle, &shared, listeners)?;
        let (shutdown, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("objectserver".into()).spawn(move || {
            let _ = runtime.block_on(ended);
        })?;
        Ok(Self {
            shared,
            addresses,
            listening: Mutex::new(Some(listening)),
            runtime: handle,
            shutdown: Some(shutdown),
            thread: Some(thread),
        })
    }

    /// The server as `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addresses[0])
    }

    /// The server as `http://localhost:PORT`, a name that may stand for several of its addresses.
    pub fn endpoint_by_name(&self) -> String {
        format!("http://localhost:{}", self.addresses[0].port())
    }

    /// The addresses it listens on: `127.0.0.1:PORT` and, where the machine has it, `[::1]:PORT`.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Adds a fault, beside those that are active. It concerns requests that arrive from now on.
    pub fn add_fault(&self, fault: Fault) -> FaultId {
        self.shared.faults.add(fault)
    }

    /// Removes a fault.
    pub fn remove_fault(&self, id: FaultId) {
        self.shared.faults.remove(id);
    }

    /// Removes all faults. Holds stay until they are released.
    pub fn clear_faults(&self) {
        self.shared.faults.clear();
    }

    /// Holds all requests of an operation on keys with a prefix, until the returned value is released or dropped.
    pub fn hold(&self, operation: Operation, key_prefix: &str, moment: Moment) -> Hold {
        let gate = Arc::new(Gate::new(operation, key_prefix, moment));
        self.shared.faults.add_gate(Arc::clone(&gate));
        Hold(gate)
    }

    /// Closes all connections and refuses new ones.
    pub fn refuse_connections(&self) {
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listening) = listening {
            listening.stop();
        }
    }

    /// Accepts connections again, at the same addresses. Fails if another program has taken the port.
    pub fn accept_connections(&self) -> io::Result<()> {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        if listening.is_none() {
            let listeners = listen::bind_again(&self.addresses)?;
            *listening = Some(Listening::start(&self.runtime, &self.shared, listeners)?);
        }
        Ok(())
    }

    /// The requests received since the start or the last reset.
    pub fn counts(&self) -> RequestCounts {
        self.shared.counters.read()
    }

    /// Begins to count from zero.
    pub fn reset_counts(&self) {
        self.shared.counters.reset();
    }

    /// The last 100,000 conditional creates, in the order in which they were finished.
    pub fn create_attempts(&self) -> Vec<CreateAttempt> {
        self.shared.history.attempts()
    }

    /// The conditional creates that took effect although the object existed. Empty unless a fault allows them.
    pub fn double_wins(&self) -> Vec<CreateAttempt> {
        self.create_attempts().into_iter().filter(|attempt| attempt.replaced).collect()
    }

    /// A snapshot of a bucket: the objects by name. Empty for a bucket that does not exist.
    pub fn objects(&self, bucket: &str) -> BTreeMap<String, Object> {
        self.shared.store.lock().bucket(bucket).map(|bucket| bucket.objects.clone()).unwrap_or_default()
    }

    /// The content of an object.
    pub fn object(&self, bucket: &str, key: &str) -> Option<Bytes> {
        self.shared.store.lock().bucket(bucket).ok()?.objects.get(key).map(|object| object.body.clone())
    }

    /// Writes an object without a request. Returns false if the bucket does not exist.
    pub fn insert(&self, bucket: &str, key: &str, content: impl Into<Bytes>) -> bool {
        self.shared.store.insert(bucket, key, content.into())
    }

    /// Deletes an object without a request. Returns whether it existed.
    pub fn remove(&self, bucket: &str, key: &str) -> bool {
        self.shared.store.lock().bucket(bucket).is_ok_and(|bucket| bucket.remove(key).is_some())
    }

    /// Inverts the bits of one byte of an object and leaves its metadata. Returns whether there was such a byte.
    pub fn damage(&self, bucket: &str, key: &str, offset: usize) -> bool {
        let mut state = self.shared.store.lock();
        let Some(object) = state.bucket(bucket).ok().and_then(|bucket| bucket.objects.get_mut(key)) else {
            return false;
        };
        let mut content = object.body.to_vec();
        let Some(byte) = content.get_mut(offset) else { return false };
        *byte = !*byte;
        object.body = Bytes::from(content);
        true
    }

    /// The uploads that are open, in all buckets.
    pub fn open_uploads(&self) -> Vec<OpenUpload> {
        let state = self.shared.store.lock();
        let uploads = state.buckets.iter().flat_map(|(bucket, content)| {
            content.uploads.iter().map(move |(id, upload)| OpenUpload {
                bucket: bucket.clone(),
                key: upload.key.clone(),
                upload_id: id.clone(),
                begun: upload.begun,
                parts: upload.parts.len(),
                bytes: upload.parts.values().map(|part| part.body.len() as u64).sum(),
            })
        });
        uploads.collect()
    }

    /// Makes all open uploads, in all buckets, this much older.
    pub fn age_uploads(&self, by: Duration) {
        let mut state = self.shared.store.lock();
        let uploads = state.buckets.values_mut().flat_map(|bucket| bucket.uploads.values_mut());
        uploads.for_each(|upload| upload.begun = upload.begun.saturating_sub(by));
    }

    /// Sets the XML document that `GET ?lifecycle` returns; `None` is refused with `NoSuchLifecycleConfiguration`.
    pub fn set_lifecycle(&self, bucket: &str, configuration: Option<&str>) {
        if let Ok(bucket) = self.shared.store.lock().bucket(bucket) {
            bucket.lifecycle = configuration.map(ToOwned::to_owned);
        }
    }

    /// Sets what `GET ?versioning` reports. Versions are not kept either way.
    pub fn set_versioning(&self, bucket: &str, enabled: bool) {
        if let Ok(bucket) = self.shared.store.lock().bucket(bucket) {
            bucket.versioned = enabled;
        }
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        drop(self.shutdown.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(options: ServerOptions) -> Self {
        let limits = Limits {
            page_size: options.page_size,
            smallest_part: options.smallest_part,
            implicit_uploads: options.dialect == Dialect::Azure,
        };
        Self {
            store: Store::new(&options.buckets, limits),
            faults: FaultTable::new(options.seed, options.latency),
            absence: AbsenceCache::default(),
            history: History::default(),
            counters: Counters::default(),
            options,
        }
    }
}
