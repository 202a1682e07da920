//! Whether the server can grant leases durably, and if not, why.

use crate::backend::shards::Backend;

/// Why the first shard that does not accept every command does not; or why no client can connect. `None`: ready.
pub(crate) fn unready_reason(backend: &Backend) -> Option<String> {
    if backend.is_draining() {
        return Some("draining".to_string());
    }
    let shard = backend.shards().find_map(|shard| {
        let reason = backend.engine(shard).sequencer().health().reason?;
        Some(format!("shard {}: {reason}", shard.0))
    });
    shard.or_else(|| backend.certificates.expired(backend.clocks.unix_ms() / 1000))
}
