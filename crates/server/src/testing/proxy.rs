//! A wire in front of a server that can be cut. For tests only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes bytes on, until it is cut.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    cut: watch::Sender<bool>,
    counts: Counts,
}

/// What becomes of answers.
#[derive(Clone, Default)]
struct Counts {
    swallow: Arc<AtomicUsize>,
    swallowed: Arc<AtomicUsize>,
    hang: Arc<AtomicBool>,
}

impl Proxy {
    /// In front of a server.
    pub async fn before(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("it is bound");
        let (cut, is_cut) = watch::channel(false);
        let counts = Counts::default();
        tokio::spawn(listen(listener, server, is_cut, counts.clone()));
        Proxy { address, cut, counts }
    }

    /// From now on nothing gets through, and what is connected breaks.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// The next answers are read from the server, and then their connections break.
    pub fn swallow(&self, answers: usize) {
        self.counts.swallow.store(answers, Ordering::SeqCst);
    }

    /// How many answers were.
    pub fn swallowed(&self) -> usize {
        self.counts.swallowed.load(Ordering::SeqCst)
    }

    /// From now on no answer gets through, and nothing breaks.
    pub fn hang(&self) {
        self.counts.hang.store(true, Ordering::SeqCst);
    }
}

async fn listen(listener: TcpListener, to: SocketAddr, is_cut: watch::Receiver<bool>, counts: Counts) {
    let mut cut = is_cut.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = cut.wait_for(|cut| *cut) => return,
        };
        let (near, _) = accepted.expect("loopback");
        let far = TcpStream::connect(to).await.expect("the server listens");
        let (mut cut, counts) = (is_cut.clone(), counts.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = pass(near, far, counts) => {}
                _ = cut.wait_for(|cut| *cut) => {}
            }
        });
    }
}

async fn pass(near: TcpStream, far: TcpStream, counts: Counts) {
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let forth = async { drop(tokio::io::copy(&mut near_read, &mut far_write).await) };
    let back = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(length @ 1..) = far_read.read(&mut piece).await {
            if counts.hang.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            let take = |left: usize| left.checked_sub(1);
            if counts.swallow.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                counts.swallowed.fetch_add(1, Ordering::SeqCst);
                return;
            }
            if near_write.write_all(&piece[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = forth => {}
        () = back => {}
    }
}
