//! A TCP proxy on loopback that can be cut: a partition between two processes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Forwards connections to one address, unless it is cut. Its threads end with their connections, the acceptor with the
/// process.
pub(super) struct Proxy {
    pub(super) address: String,
    link: Arc<Link>,
}

struct Link {
    target: Mutex<String>,
    is_cut: AtomicBool,
    /// Requests that begin like this are held back.
    stalled: Mutex<Option<String>>,
    flows: Condvar,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub(super) fn start(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let address = listener.local_addr().expect("it is bound").to_string();
        let link = Link {
            target: Mutex::new(target.to_string()),
            is_cut: AtomicBool::new(false),
            stalled: Mutex::default(),
            flows: Condvar::new(),
            open: Mutex::default(),
        };
        let link = Arc::new(link);
        let accepting = Arc::clone(&link);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                accepting.connect(client);
            }
        });
        Proxy { address, link }
    }

    /// Later connections go to this address.
    pub(super) fn retarget(&self, target: &str) {
        *self.link.target.lock().unwrap_or_else(PoisonError::into_inner) = target.to_string();
    }

    /// Ends all connections, and refuses new ones.
    pub(super) fn cut(&self) {
        self.link.is_cut.store(true, Ordering::SeqCst);
        for stream in self.link.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn heal(&self) {
        self.link.is_cut.store(false, Ordering::SeqCst);
    }

    /// Holds back requests that begin with this text, each with its connection.
    pub(super) fn stall(&self, begin: &str) {
        *self.link.stalled.lock().unwrap_or_else(PoisonError::into_inner) = Some(begin.to_string());
    }

    /// Sends what was held back.
    pub(super) fn flow(&self) {
        *self.link.stalled.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.link.flows.notify_all();
    }
}

impl Link {
    /// Waits while what a client sends is held back.
    fn wait(&self, sent: &[u8]) {
        let stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stalled = |begin: &mut Option<String>| {
            begin.as_ref().is_some_and(|begin| sent.starts_with(begin.as_bytes()))
        };
        drop(self.flows.wait_while(stalled, is_stalled).unwrap_or_else(PoisonError::into_inner));
    }

    fn connect(self: &Arc<Link>, client: TcpStream) {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Ok(server) = TcpStream::connect(target) else { return };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_cut.load(Ordering::SeqCst) {
            return;
        }
        let requests = Some(Arc::clone(self));
        let ways = [(&client, &server, requests), (&server, &client, None)];
        for (from, to, link) in ways {
            let (from, to) = (from.try_clone().expect("a descriptor"), to.try_clone().expect("a descriptor"));
            std::thread::spawn(move || copy(from, to, link.as_deref()));
        }
        open.retain(|stream| stream.peer_addr().is_ok());
        open.extend([client, server]);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, requests: Option<&Link>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if let Some(link) = requests {
            link.wait(&buffer[..count]);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
