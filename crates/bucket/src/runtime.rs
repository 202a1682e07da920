//! Runs the asynchronous requests of a client for callers that block.

use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};

/// Two threads that all requests of a client share.
pub(crate) struct RequestRuntime {
    handle: Handle,
    runtime: Mutex<Option<Runtime>>,
}

impl RequestRuntime {
    pub(crate) fn start() -> std::io::Result<RequestRuntime> {
        let runtime =
            Builder::new_multi_thread().worker_threads(2).thread_name("bucket").enable_all().build()?;
        Ok(RequestRuntime { handle: runtime.handle().clone(), runtime: Mutex::new(Some(runtime)) })
    }

    /// Blocks until the request has its result; `None` if the runtime has ended.
    pub(crate) fn block_on<T: Send + 'static>(
        &self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (send, receive) = sync_channel(1);
        self.spawn(async move { drop(send.send(request.await)) });
        receive.recv().ok()
    }

    /// Runs it in the background.
    pub(crate) fn spawn(&self, request: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(request));
    }
}

impl Drop for RequestRuntime {
    /// Without waiting: the caller may itself be a task, which must not block.
    fn drop(&mut self) {
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take();
        runtime.into_iter().for_each(Runtime::shutdown_background);
    }
}
