//! Polls a future on the thread that wakes it.
//!
//! A batch that becomes durable completes many requests at once. An event loop would queue a task for each, wake a thread,
//! and run them one after the other. Here the thread that publishes the batch runs what is left of each request itself:
//! it presents the response, and writes it to the socket.
//!
//! **Invariant.** The future is polled by one thread at a time, and again after every wake-up that comes while it is polled.
//! A thread polls one future at a time: one that is woken meanwhile is queued behind it.
//!
//! **What would break it.** A wake-up that polls at once, wherever it comes: a request that submits a command publishes the
//! replies of others, their futures submit too, and the stack grows with the number of connections. Or two threads, each of
//! which polls one future and wakes the other's, wait for each other. So a future that is being polled is only marked.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// No future.
const EMPTY: u8 = 0;
/// The future waits to be woken.
const WAITING: u8 = 1;
/// A thread polls the future, or has queued it.
const POLLING: u8 = 2;
/// The same, and it is to be polled again.
const WOKEN: u8 = 3;
/// The same, and it is to be dropped then.
const CANCELLED: u8 = 4;

/// Receives the output of futures.
pub(crate) trait Receiver: Send + Sync + 'static {
    /// The output of a future.
    type Output;

    /// Does what a thread needs before it polls the future. The value is dropped afterwards.
    fn enter(&self) -> impl Sized;

    /// The future has ended. Called by the thread that polled it, and not while it is polled.
    fn complete(&self, completion: Completion<Self::Output>);
}

/// How a future has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Completion<T> {
    Output(T),
    /// Cancelled while a thread polled it.
    Cancelled,
    Panicked,
}

/// A future whose output does not borrow.
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs one future after the other, on the threads that wake them.
pub(crate) struct InlineTask<R: Receiver> {
    state: AtomicU8,
    /// Locked by the thread that has set [`POLLING`], or has found [`WAITING`].
    future: Mutex<Option<BoxFuture<R::Output>>>,
    pub(crate) receiver: R,
}

/// A task of any type, in the queue of a thread.
trait Queued {
    fn run(self: Arc<Self>);
}

thread_local! {
    /// The tasks that were woken while this thread polls another; `None` while it polls none.
    static QUEUE: RefCell<Option<VecDeque<Arc<dyn Queued>>>> = const { RefCell::new(None) };
}

impl<R: Receiver> InlineTask<R> {
    pub(crate) fn new(receiver: R) -> Arc<InlineTask<R>> {
        Arc::new(InlineTask { state: AtomicU8::new(EMPTY), future: Mutex::new(None), receiver })
    }

    /// Polls a future for the first time, on this thread. There must not be another.
    pub(crate) fn start(self: &Arc<Self>, future: BoxFuture<R::Output>) {
        assert_eq!(self.state.load(Ordering::Acquire), EMPTY, "one future at a time");
        *self.lock() = Some(future);
        self.state.store(POLLING, Ordering::Release);
        run_or_queue(Arc::clone(self) as Arc<dyn Queued>);
    }

    /// Drops the future without its output. False if there is none, or while a thread polls it: that thread completes it,
    /// with its output if it has just ended.
    pub(crate) fn cancel(&self) -> bool {
        let is_waiting = |state| (state == WAITING).then_some(POLLING);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_waiting).is_ok() {
            self.discard();
            return true;
        }
        let is_polled = |state| matches!(state, POLLING | WOKEN).then_some(CANCELLED);
        // The other thread may just have stopped polling.
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_polled).is_err()
            && self.state.load(Ordering::Acquire) == WAITING
            && self.cancel()
    }

    fn discard(&self) {
        // Dropped without the lock: its destructor may wake this task.
        let future = self.lock().take();
        self.state.store(EMPTY, Ordering::Release);
        drop(future);
    }

    /// Polls until the future ends or waits. `None` while it waits.
    fn poll(self: &Arc<Self>) -> Option<Completion<R::Output>> {
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        loop {
            let mut future = self.lock().take().expect("the thread that polls has the future");
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
            match polled {
                Ok(Poll::Pending) => *self.lock() = Some(future),
                Ok(Poll::Ready(output)) => {
                    drop(future);
                    self.state.store(EMPTY, Ordering::Release);
                    return Some(Completion::Output(output));
                }
                Err(_) => {
                    drop(catch_unwind(AssertUnwindSafe(|| drop(future))));
                    self.state.store(EMPTY, Ordering::Release);
                    return Some(Completion::Panicked);
                }
            }
            match self.state.compare_exchange(POLLING, WAITING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return None,
                Err(CANCELLED) => {
                    self.discard();
                    return Some(Completion::Cancelled);
                }
                Err(_) => {
                    // A cancellation in between is noticed after the next poll.
                    let _ = self.state.compare_exchange(WOKEN, POLLING, Ordering::AcqRel, Ordering::Acquire);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<BoxFuture<R::Output>>> {
        self.future.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Receiver> Queued for InlineTask<R> {
    fn run(self: Arc<Self>) {
        let entered = self.receiver.enter();
        if let Some(completion) = self.poll() {
            self.receiver.complete(completion);
        }
        drop(entered);
    }
}

impl<R: Receiver> Wake for InlineTask<R> {
    fn wake(self: Arc<Self>) {
        let woken = |state| match state {
            WAITING => Some(POLLING),
            POLLING => Some(WOKEN),
            _ => None,
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, woken) == Ok(WAITING) {
            run_or_queue(self as Arc<dyn Queued>);
        }
    }
}

/// Runs a task on this thread: now, or when the one that it runs is done.
fn run_or_queue(task: Arc<dyn Queued>) {
    let first = QUEUE.with_borrow_mut(|queue| {
        if let Some(queue) = queue {
            queue.push_back(task);
            return None;
        }
        *queue = Some(VecDeque::new());
        Some(task)
    });
    let Some(first) = first else { return };
    let _end = QueueEnd;
    first.run();
    while let Some(next) = QUEUE.with_borrow_mut(|queue| queue.as_mut().and_then(VecDeque::pop_front)) {
        next.run();
    }
}

/// The thread polls nothing any more, also after a panic.
struct QueueEnd;

impl Drop for QueueEnd {
    fn drop(&mut self) {
        drop(QUEUE.take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    struct Outputs(mpsc::Sender<Completion<u32>>);

    impl Receiver for Outputs {
        type Output = u32;

        fn enter(&self) -> impl Sized {}

        fn complete(&self, output: Completion<u32>) {
            let _ = self.0.send(output);
        }
    }

    fn task() -> (Arc<InlineTask<Outputs>>, mpsc::Receiver<Completion<u32>>) {
        let (send, receive) = mpsc::channel();
        (InlineTask::new(Outputs(send)), receive)
    }

    #[test]
    fn a_future_is_completed_by_the_thread_that_wakes_it_and_the_next_one_may_start() {
        let (task, outputs) = task();
        for number in 0..3 {
            let (send, receive) = oneshot::channel();
            task.start(Box::pin(async { receive.await.expect("sent") }));
            assert!(outputs.try_recv().is_err(), "it waits");
            send.send(number).expect("the future waits");
            assert_eq!(outputs.try_recv(), Ok(Completion::Output(number)), "before `send` returned");
        }
    }

    #[test]
    fn a_cancelled_future_is_dropped_and_has_no_output() {
        let (task, outputs) = task();
        let (send, receive) = oneshot::channel::<u32>();
        task.start(Box::pin(async { receive.await.expect("sent") }));
        task.cancel();
        assert!(send.is_closed(), "the future is gone");
        assert!(outputs.try_recv().is_err());
        task.cancel();
    }

    /// A grant was confirmed, and its response dropped: the key was blocked until the TTL, for a client that was told nothing.
    #[test]
    fn a_future_that_ends_while_it_is_cancelled_has_its_output() {
        let (task, outputs) = task();
        let other = Arc::clone(&task);
        task.start(Box::pin(async move {
            assert!(!other.cancel(), "a thread polls it");
            7
        }));
        assert_eq!(outputs.try_recv(), Ok(Completion::Output(7)));
        let other = Arc::clone(&task);
        task.start(Box::pin(async move {
            assert!(!other.cancel(), "a thread polls it");
            std::future::pending().await
        }));
        assert_eq!(outputs.try_recv(), Ok(Completion::Cancelled));
        task.start(Box::pin(std::future::pending()));
        assert!(task.cancel() && !task.cancel(), "once");
        assert!(outputs.try_recv().is_err());
    }

    #[test]
    fn a_panic_ends_the_future_alone() {
        let (task, outputs) = task();
        task.start(Box::pin(async { panic!("a panic of this test") }));
        assert_eq!(outputs.try_recv(), Ok(Completion::Panicked));
        task.start(Box::pin(async { 7 }));
        assert_eq!(outputs.try_recv(), Ok(Completion::Output(7)));
    }

    /// A wake-up that polled at once would put a frame onto the stack for each of 100,000 futures.
    #[test]
    fn futures_that_wake_each_other_do_not_nest() {
        const LENGTH: u32 = 100_000;
        let (mut send, receive) = oneshot::channel::<u32>();
        let (last, outputs) = task();
        last.start(Box::pin(async { receive.await.expect("sent") }));
        for _ in 0..LENGTH {
            let (before, waits) = oneshot::channel::<u32>();
            let next = std::mem::replace(&mut send, before);
            let (link, _) = task();
            link.start(Box::pin(async move {
                let number = waits.await.expect("sent");
                next.send(number + 1).expect("the next waits");
                number
            }));
        }
        send.send(0).expect("the first waits");
        assert_eq!(outputs.try_recv(), Ok(Completion::Output(LENGTH)));
    }

    /// Wake-ups and cancellations race with polls on other threads: none is lost, and nothing is polled after its end.
    #[test]
    fn wake_ups_of_many_threads_are_not_lost() {
        for round in 0..200 {
            let is_cancelled = round % 2 == 1;
            let (task, outputs) = task();
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..8).map(|_| oneshot::channel::<u32>()).unzip();
            task.start(Box::pin(async move {
                let mut sum = 0;
                for receiver in receivers {
                    sum += receiver.await.unwrap_or(0);
                }
                sum
            }));
            let threads: Vec<_> = senders
                .into_iter()
                .map(|send| std::thread::spawn(move || assert!(send.send(1).is_ok() || is_cancelled)))
                .collect();
            if is_cancelled {
                task.cancel();
            }
            for thread in threads {
                thread.join().expect("no panic");
            }
            match outputs.recv_timeout(Duration::from_secs(if is_cancelled { 0 } else { 60 })) {
                Ok(Completion::Output(output)) => assert_eq!(output, 8),
                Ok(Completion::Cancelled) | Err(_) => {
                    assert!(is_cancelled, "only a cancelled one has no output");
                }
                Ok(Completion::Panicked) => panic!("no future panics"),
            }
        }
    }
}
