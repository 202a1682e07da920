//! The filesystem's clock, and the skew of the local clock against it.
//!
//! A probe creates a file and reads its modification time. Records carry that time, so hosts that share the
//! filesystem compare times of one clock. Some filesystems use the client's clock: then the probe proves
//! nothing, which is why a stealer on another boot also watches the renewals (`lock`).

use crate::atomic;
use crate::clock::{Millis, UnixMs};
use crate::env::Env;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::Durability;
use crate::layout::Layout;
use crate::lease::LeaseTime;

/// The clocks at one moment, the filesystem's included.
#[derive(Clone, Debug)]
pub struct ClockProbe {
    /// The local wall clock before the probe.
    pub wall_before: UnixMs,
    /// The local wall clock after the probe.
    pub wall_after: UnixMs,
    /// The times that decide leases.
    pub now: LeaseTime,
}

impl ClockProbe {
    /// The smallest skew that explains the readings: a slow probe is no sign of a wrong clock.
    pub fn skew_ms(&self) -> Millis {
        // A time of whole seconds may come from a filesystem that has no finer ones.
        let step = if self.now.fs.0 % 1000 == 0 { 1000 } else { FILE_TIME_STEP_MS };
        let behind = self.wall_before.since(self.now.fs.plus(step));
        behind.max(self.now.fs.since(self.wall_after))
    }

    /// Refuses a skew over `max_skew_ms`.
    pub fn within(self, max_skew_ms: Millis) -> Result<Self> {
        let skew_ms = self.skew_ms();
        if skew_ms <= max_skew_ms {
            return Ok(self);
        }
        Err(Error::new(
            ErrorClass::ClockSkewExceeded,
            format!(
                "this machine's clock differs too much from the filesystem's; synchronize it and retry: \
                 skew_ms={skew_ms} max_clock_skew_ms={max_skew_ms}"
            ),
        )
        .with("skew_ms", skew_ms)
        .with("max_clock_skew_ms", max_skew_ms))
    }
}

/// The step of file times, by which they may lag behind their clock.
const FILE_TIME_STEP_MS: Millis = 10;

/// Reads the filesystem's clock and the local ones.
pub fn read(env: &Env, layout: &Layout) -> Result<ClockProbe> {
    let path = atomic::temp_name(env, &layout.tmp());
    let wall_before = env.clock.wall();
    let boot = env.clock.boot();
    let meta = env
        .fs
        .write_new(&path, b"", atomic::FILE_MODE, Durability::Lazy)
        .doing("probe the clock with", &path)?;
    let wall_after = env.clock.wall();
    drop(env.fs.remove_file(&path));
    // The boot clock is read first: a pause in between shortens the lease for its holder only.
    Ok(ClockProbe {
        wall_before,
        wall_after,
        now: LeaseTime { fs: meta.modified, boot, boot_id: env.clock.boot_id() },
    })
}
