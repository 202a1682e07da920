//! The components that come from outside: filesystem, clocks, chance, and the user's sessions.

use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::fs::{Fs, RealFs};
use crate::ids::{Entropy, SystemEntropy};
use crate::session::SessionStore;

/// What `main` or a test hands in.
#[derive(Clone)]
pub struct Env {
    /// The filesystem that the repository is on.
    pub fs: Arc<dyn Fs>,
    /// The clocks of this machine.
    pub clock: Arc<dyn Clock>,
    /// Where nonces and ids come from.
    pub entropy: Arc<dyn Entropy>,
    /// The secrets of the locks that this user holds.
    pub sessions: SessionStore,
}

impl Env {
    /// The real machine, with sessions kept in `sessions`.
    pub fn system(sessions: SessionStore) -> Self {
        Self {
            fs: Arc::new(RealFs),
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
            sessions,
        }
    }
}
