//! The requests of one HTTP/2 connection run in the task of their connection, a few at a time.
//!
//! **Invariant.** A connection is one task of the runtime, whatever the number of its requests. In one turn it polls at most
//! [`POLLS_MAX`] requests, and reads at most [`READ_MAX`] bytes; then all other tasks that are ready have their turn.
//!
//! **What would break it.** A task per request, as hyper has it by default: the runtime serves its tasks in order, so a client
//! with 200 requests on each connection has 200 turns for each one of a client with a single request. A connection that
//! reads all that there is: a client that never stops sending keeps a thread for itself.
//!
//! HTTP/1.1 has one request at a time, and hyper bounds its turns; of this module it has the bound of bytes.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The most requests of a connection that are polled in one turn.
const POLLS_MAX: usize = 4;

/// Bytes that a connection reads in one turn, as long as that is not exceeded by a single read.
const READ_MAX: usize = 32 << 10;

type RequestFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Number of a request on its connection.
type RequestId = u64;

/// Hands the requests of a connection to its task. Clones are of the same connection.
#[derive(Clone, Default)]
pub(crate) struct RequestExecutor(Arc<Mutex<Vec<RequestFuture>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for RequestExecutor {
    /// Called while the connection is polled, whose task then polls the request.
    fn execute(&self, request: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(request));
    }
}

impl RequestExecutor {
    fn take(&self) -> Vec<RequestFuture> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The bytes that a connection may still read in this turn. Clones are of the same connection.
#[derive(Clone, Default)]
pub(crate) struct ReadBudget(Arc<AtomicUsize>);

impl ReadBudget {
    /// Begins a turn.
    pub(crate) fn renew(&self) {
        self.0.store(READ_MAX, Ordering::Relaxed);
    }

    /// Whether the connection has to wait for its next turn.
    pub(crate) fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Only the task of the connection calls this.
    pub(crate) fn read(&self, bytes: usize) {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(bytes);
        self.0.store(left, Ordering::Relaxed);
    }
}

/// A connection and its requests: completes with the connection, and drops the requests that are left then.
pub(crate) struct ConnectionTask<'a, C> {
    pub(crate) connection: Pin<&'a mut C>,
    executor: RequestExecutor,
    reading: ReadBudget,
    requests: RequestSet,
}

impl<'a, C: Future> ConnectionTask<'a, C> {
    /// `connection` starts its requests on `executor`, and counts its reads with `reading`.
    pub(crate) fn new(
        connection: Pin<&'a mut C>,
        executor: RequestExecutor,
        reading: ReadBudget,
    ) -> ConnectionTask<'a, C> {
        ConnectionTask { connection, executor, reading, requests: RequestSet::new() }
    }
}

impl<C: Future> Future for ConnectionTask<'_, C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        self.reading.renew();
        let mut polls_left = POLLS_MAX;
        loop {
            self.requests.poll(context, &mut polls_left);
            // Sends the responses, and begins new requests.
            if let Poll::Ready(done) = self.connection.as_mut().poll(context) {
                return Poll::Ready(done);
            }
            let begun = self.executor.take();
            if begun.is_empty() {
                return Poll::Pending;
            }
            self.requests.begin(begun);
            if polls_left == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

/// Requests in progress.
struct RequestSet {
    running: BTreeMap<RequestId, RunningRequest>,
    next_id: RequestId,
    /// To be polled, in this order.
    ready: VecDeque<RequestId>,
    woken: UnboundedReceiver<RequestId>,
    wake: UnboundedSender<RequestId>,
}

struct RunningRequest {
    future: RequestFuture,
    wake: Arc<RequestWake>,
    /// The same, as futures take it.
    waker: Waker,
}

/// Reports a request that is to be polled.
struct RequestWake {
    id: RequestId,
    /// It was reported, and not polled since: a request is in the channel at most once.
    is_reported: AtomicBool,
    woken: UnboundedSender<RequestId>,
}

impl Wake for RequestWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_reported.swap(true, Ordering::AcqRel) {
            // Without a receiver, the connection has ended.
            let _ = self.woken.send(self.id);
        }
    }
}

impl RequestSet {
    fn new() -> RequestSet {
        let (wake, woken) = unbounded_channel();
        RequestSet { running: BTreeMap::new(), next_id: 0, ready: VecDeque::new(), woken, wake }
    }

    fn begin(&mut self, begun: Vec<RequestFuture>) {
        for future in begun {
            let (id, woken) = (self.next_id, self.wake.clone());
            self.next_id += 1;
            let wake = Arc::new(RequestWake { id, is_reported: AtomicBool::new(true), woken });
            let waker = Waker::from(Arc::clone(&wake));
            self.running.insert(id, RunningRequest { future, wake, waker });
            self.ready.push_back(id);
        }
    }

    /// Polls requests that are ready, at most `polls_left`, of which it subtracts them. If more are ready, the task is woken.
    fn poll(&mut self, context: &mut Context<'_>, polls_left: &mut usize) {
        let is_all_received = self.receive(context);
        while *polls_left > 0 {
            let Some(id) = self.ready.pop_front() else { break };
            *polls_left -= 1;
            self.poll_one(id);
        }
        if !is_all_received || !self.ready.is_empty() {
            context.waker().wake_by_ref();
        }
    }

    /// Takes as many reports as one turn can use. If these are all, the next report wakes the task.
    fn receive(&mut self, context: &mut Context<'_>) -> bool {
        for _ in 0..POLLS_MAX {
            let Poll::Ready(Some(id)) = self.woken.poll_recv(context) else { return true };
            self.ready.push_back(id);
        }
        false
    }

    fn poll_one(&mut self, id: RequestId) {
        // A request that has ended may have been woken before.
        let Some(request) = self.running.get_mut(&id) else { return };
        // Before the poll: a change during it is reported; one before it, by a swap that found `true`, is seen.
        request.wake.is_reported.swap(false, Ordering::AcqRel);
        if request.future.as_mut().poll(&mut Context::from_waker(&request.waker)).is_ready() {
            self.running.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::sync::mpsc;

    use hyper::rt::Executor as _;
    use tokio::io::{AsyncReadExt as _, repeat};

    use super::*;
    use crate::http::timeouts::IdleTimeoutStream;

    /// Counts how often the task of a connection is woken.
    #[derive(Default)]
    struct TaskWake(AtomicUsize);

    impl Wake for TaskWake {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl TaskWake {
        /// Whether the task was woken since the last call.
        fn take(&self) -> bool {
            self.0.swap(0, Ordering::Relaxed) > 0
        }
    }

    /// Requests that count their polls, and complete at the second one.
    fn begin(executor: &RequestExecutor, requests: usize, polls: &Arc<AtomicUsize>) {
        for _ in 0..requests {
            let (polls, mut is_second) = (Arc::clone(polls), false);
            executor.execute(poll_fn(move |context| {
                polls.fetch_add(1, Ordering::Relaxed);
                if std::mem::replace(&mut is_second, true) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            }));
        }
    }

    /// 200 requests on one connection were 200 tasks, and each had its turn before a request of another client.
    #[test]
    fn a_turn_polls_a_few_requests_and_the_others_in_the_next() {
        let (executor, polls) = (RequestExecutor::default(), Arc::new(AtomicUsize::new(0)));
        begin(&executor, 200, &polls);
        let connection = std::pin::pin!(pending::<()>());
        let mut task = ConnectionTask::new(connection, executor, ReadBudget::default());
        let wake = Arc::new(TaskWake::default());
        let waker = Waker::from(Arc::clone(&wake));
        let mut turns = 0;
        loop {
            let before = polls.load(Ordering::Relaxed);
            assert!(Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
            let in_turn = polls.load(Ordering::Relaxed) - before;
            assert!(in_turn <= POLLS_MAX, "{in_turn}");
            turns += 1;
            if !wake.take() {
                break;
            }
        }
        assert_eq!(polls.load(Ordering::Relaxed), 400, "each request was polled twice");
        assert!(task.requests.running.is_empty() && turns >= 400 / POLLS_MAX, "{turns}");
    }

    #[test]
    fn a_request_that_another_thread_wakes_wakes_its_connection() {
        let executor = RequestExecutor::default();
        let (send, wakers) = mpsc::channel();
        executor.execute(poll_fn(move |context| {
            send.send(context.waker().clone()).expect("the test receives");
            Poll::<()>::Pending
        }));
        let connection = std::pin::pin!(pending::<()>());
        let mut task = ConnectionTask::new(connection, executor, ReadBudget::default());
        let wake = Arc::new(TaskWake::default());
        let waker = Waker::from(Arc::clone(&wake));
        for _ in 0..3 {
            assert!(Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
            let request = wakers.try_recv().expect("it was polled");
            assert!(wakers.try_recv().is_err(), "once");
            wake.take();
            assert!(Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
            assert!(wakers.try_recv().is_err() && !wake.take(), "nothing has changed");
            std::thread::spawn(move || request.wake()).join().expect("it wakes");
            assert!(wake.take(), "the connection is woken");
        }
    }

    #[test]
    fn requests_end_with_their_connection() {
        let executor = RequestExecutor::default();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        executor.execute(async move {
            pending::<()>().await;
            drop(held);
        });
        let is_closed = AtomicBool::new(false);
        let connection = std::pin::pin!(poll_fn(|_| {
            if is_closed.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        }));
        let mut task = ConnectionTask::new(connection, executor, ReadBudget::default());
        let waker = Waker::from(Arc::new(TaskWake::default()));
        assert!(Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(Arc::strong_count(&alive), 2, "in progress");
        is_closed.store(true, Ordering::Relaxed);
        assert!(Pin::new(&mut task).poll(&mut Context::from_waker(&waker)).is_ready());
        drop(task);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    /// A client that never stops sending kept the thread that read from it.
    #[tokio::test]
    async fn a_turn_reads_a_bounded_number_of_bytes() {
        use std::time::Duration;
        let budget = ReadBudget::default();
        let long = Duration::from_secs(60);
        let mut stream = IdleTimeoutStream::new(repeat(b'x'), long, long, budget.clone());
        let mut turns = [0; 3];
        for bytes in &mut turns {
            budget.renew();
            let reading = async {
                let mut buffer = [0; 1000];
                loop {
                    *bytes += stream.read(&mut buffer).await.expect("endless");
                }
            };
            let mut reading = std::pin::pin!(reading);
            poll_fn(|context| Poll::Ready(reading.as_mut().poll(context).is_pending())).await;
        }
        assert_eq!(turns, [33_000; 3], "the read that exceeds it is the last");
    }
}
