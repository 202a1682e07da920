//! Leases many keys, by as many clients as the system is quick with.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::server::Server;
use crate::system::{Client, Error, Lease, Result};

/// Clients that fill.
const CLIENTS: usize = 64;
/// Keys that one client leases between two looks at the clock.
const CHUNK: usize = 500;

/// A client with the leases that it holds.
pub(super) struct Holder {
    pub(super) client: Box<dyn Client>,
    pub(super) leases: Vec<Lease>,
}

/// What the leases of a fill have as their TTL.
#[derive(Clone, Copy)]
pub(super) enum Ttl {
    /// Each the same, from its grant.
    Each(Duration),
    /// All until this moment.
    Until(Instant),
}

/// Leases so many keys; unfinished after the deadline.
pub(super) async fn fill(
    server: &Server,
    leases: usize,
    clients: Option<usize>,
    ttl: Ttl,
    session: Duration,
    deadline: Duration,
) -> Result<Vec<Holder>> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    let count = clients.unwrap_or(CLIENTS).min(leases);
    for (number, client) in server.clients(count, session).await?.into_iter().enumerate() {
        let range = leases * number / count..leases * (number + 1) / count;
        let holder = Holder { client, leases: Vec::with_capacity(range.len()) };
        tasks.spawn(lease_range(holder, range, ttl, began + deadline));
    }
    let mut holders = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        holders.push(joined.map_err(Error::failed)??);
    }
    let granted: usize = holders.iter().map(|holder| holder.leases.len()).sum();
    if granted < leases {
        let (text, seconds) = (super::grouped(granted), began.elapsed().as_secs());
        return Err(Error::Unfinished(format!("{text} leases granted in {seconds} s")));
    }
    Ok(holders)
}

async fn lease_range(
    mut holder: Holder,
    range: std::ops::Range<usize>,
    ttl: Ttl,
    deadline: Instant,
) -> Result<Holder> {
    let keys: Vec<String> = range.map(|key| format!("lease-{key:08}")).collect();
    for part in keys.chunks(CHUNK) {
        if Instant::now() > deadline {
            break;
        }
        let ttl = match ttl {
            Ttl::Each(ttl) => ttl,
            Ttl::Until(moment) => {
                moment.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
            }
        };
        holder.leases.extend(holder.client.acquire_many(part, ttl).await?);
    }
    Ok(holder)
}
