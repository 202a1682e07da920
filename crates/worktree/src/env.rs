//! The components that come from outside: filesystem, clocks, chance, and the user's sessions.

use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::fs::{Fs, RealFs};
use crate::holder::{HolderId, Maker};
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
    /// This process, as its temporary files name it.
    pub maker: Maker,
    /// This process, as the audit names it.
    pub process: HolderId,
}

impl Env {
    /// The real machine, with sessions kept in `sessions`.
    pub fn system(sessions: SessionStore) -> Self {
        let clock = SystemClock::new();
        let maker = Maker::this_process(&clock.boot_id());
        Self {
            fs: Arc::new(RealFs),
            clock: Arc::new(clock),
            entropy: Arc::new(SystemEntropy),
            sessions,
            maker,
            process: HolderId::this_process(),
        }
    }
}
