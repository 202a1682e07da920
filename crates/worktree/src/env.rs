//! Injected components: filesystem, clocks, randomness, and the user's sessions.

use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::fs::{Fs, RealFs};
use crate::holder::{HolderId, Maker};
use crate::ids::{Entropy, SystemEntropy};
use crate::session::SessionStore;

/// The components that `main` or a test passes in.
#[derive(Clone)]
pub struct Env {
    /// The filesystem that the repository is on.
    pub fs: Arc<dyn Fs>,
    /// The clocks of this machine.
    pub clock: Arc<dyn Clock>,
    /// Randomness for nonces and ids.
    pub entropy: Arc<dyn Entropy>,
    /// The secrets of the locks that this user holds.
    pub sessions: SessionStore,
    /// This process, as named in its temporary files.
    pub maker: Maker,
    /// This process, as named in entries and descriptors.
    pub process: HolderId,
}

impl Env {
    /// The components of this machine, with the given session store.
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
