//! 13,000 renewals per second over 1,000 connections: the heartbeats of a Kubernetes cluster of 130,000 nodes, each every
//! ten seconds. Open loop: a latency counts from the moment at which the renewal was due.

use async_trait::async_trait;

use crate::results::Round;
use crate::server::Server;
use crate::system::Result;

use super::fill::{Holder, Ttl, fill};
use super::load::{self, Work};
use super::{SESSION, Timing};

const RATE: f64 = 13_000.0;

struct Renewing {
    holder: Holder,
    next: usize,
}

#[async_trait]
impl Work for Renewing {
    async fn step(&mut self) -> Result<()> {
        let lease = &self.holder.leases[self.next % self.holder.leases.len()];
        self.next += 1;
        self.holder.client.renew(lease, SESSION).await
    }
}

pub(super) async fn run(
    server: &Server,
    connections: usize,
    leases: usize,
    timing: &Timing,
) -> Result<Round> {
    let ttl = Ttl::Each(SESSION);
    let holders = fill(server, leases, Some(connections), ttl, SESSION, timing.deadline).await?;
    let works = holders.into_iter().map(|holder| Renewing { holder, next: 0 }).collect();
    let longer =
        Timing { warm_up: timing.warm_up * 2, measured: timing.measured * 5, rate: Some(RATE), ..*timing };
    load::run(server, works, &longer).await
}
