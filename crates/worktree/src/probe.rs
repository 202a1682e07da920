//! The filesystem's own clock, and how far the local one is from it.
//!
//! A file is created and its modification time read. Records carry that time, so hosts that share the
//! filesystem compare times from one clock. Some filesystems stamp with the client's clock: then the probe
//! proves nothing, and a stealer from another boot watches the renewals as well (`lock`).

use crate::atomic;
use crate::clock::{Millis, UnixMs};
use crate::env::Env;
use crate::error::{Class, Context, Error, Result};
use crate::fs::Durability;
use crate::layout::Layout;
use crate::lease::LeaseTime;

/// The clocks at one moment.
#[derive(Clone, Debug)]
pub struct ClockProbe {
    /// The local wall clock before the probe.
    pub wall_before: UnixMs,
    /// The local wall clock after the probe.
    pub wall_after: UnixMs,
    /// The time that judges leases.
    pub now: LeaseTime,
}

impl ClockProbe {
    /// How far the local clock is from the filesystem's, at least: a slow probe is no sign of a wrong clock.
    pub fn skew_ms(&self) -> Millis {
        let behind = self.wall_before.since(self.now.fs.plus(FILE_TIME_STEP_MS));
        behind.max(self.now.fs.since(self.wall_after))
    }

    /// Refuses to go on with a clock that is further off than `max_skew_ms`.
    pub fn within(self, max_skew_ms: Millis) -> Result<Self> {
        let skew_ms = self.skew_ms();
        if skew_ms <= max_skew_ms {
            return Ok(self);
        }
        Err(Error::new(
            Class::ClockSkewExceeded,
            format!(
                "this machine's clock is too far from the filesystem's; set it right and try again: \
                 skew_ms={skew_ms} max_clock_skew_ms={max_skew_ms}"
            ),
        )
        .with("skew_ms", skew_ms)
        .with("max_clock_skew_ms", max_skew_ms))
    }
}

/// File times advance in steps of up to this, so they lag behind the clock they are taken from.
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
    // The boot clock was read first: a pause in between ends the lease earlier for its holder than for others.
    Ok(ClockProbe {
        wall_before,
        wall_after,
        now: LeaseTime { fs: meta.modified, boot, boot_id: env.clock.boot_id() },
    })
}
