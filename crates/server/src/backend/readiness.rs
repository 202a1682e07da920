//! Whether the server can grant leases durably, and if not, why.

use crate::backend::shards::Backend;

/// Why the first shard that does not accept every command does not; or why no client can connect. `None`: ready.
pub(crate) fn unready_reason(backend: &Backend) -> Option<String> {
    if backend.is_draining() {
        return Some("draining".to_string());
    }
    let shard = backend.shards().find_map(|shard| {
        let reason = match backend.engine(shard) {
            Ok(engine) => engine.sequencer().health().reason?,
            Err(_) if backend.has_live_owner(shard) => return None,
            Err(_) => "no server owns it".to_string(),
        };
        Some(format!("shard {}: {reason}", shard.0))
    });
    shard.or_else(|| backend.certificates.expired(backend.clocks.unix_ms() / 1000))
}
