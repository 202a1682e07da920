//! Which servers follow a shard, and which shards an owner hands over.
//!
//! Rendezvous hashing: every server ranks all servers for a shard by a hash of both, so that all agree without talking, and
//! a server that leaves changes only the shards that it followed. Ownership is sticky: only an owner with more shards than
//! its part hands some over, so that a server that joins moves as few shards as possible.

use std::collections::{BTreeMap, BTreeSet};

use kernel::Shard;

use super::server_record::ServerId;

/// The number of servers that follow each shard.
pub(super) const FOLLOWERS: usize = 2;

/// A score: the highest of all servers comes first for the shard.
fn score(server: ServerId, shard: Shard) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&server.0.to_le_bytes()).update(&shard.0.to_le_bytes());
    u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes"))
}

/// The place of `server` among those that should follow the shard; `None` if it should not. The owner follows nothing.
///
/// Servers that are unable to read the log of a shard do not follow it. Bounded load: a server follows at most its part of all
/// shards, rounded up, and one more for every four; more only if there are too few others.
pub(super) fn follower_rank(
    server: ServerId,
    shard: Shard,
    servers: &[ServerId],
    owners: &BTreeMap<Shard, ServerId>,
    shards: u32,
    unable: &BTreeSet<(ServerId, Shard)>,
) -> Option<usize> {
    let is_able = |server: ServerId, shard: Shard| !unable.contains(&(server, shard));
    let ranked = |shard: Shard| {
        let others = ranked(shard, servers, owners.get(&shard));
        others.filter(move |server| is_able(*server, shard))
    };
    if servers.len() <= FOLLOWERS + 1 {
        return ranked(shard).position(|ranked| ranked == server);
    }
    let part = (shards as usize * FOLLOWERS).div_ceil(servers.len());
    let load_max = part + part.div_ceil(4);
    let mut loads: BTreeMap<ServerId, usize> = BTreeMap::new();
    for number in (0..shards).map(Shard) {
        // Over the bound if there are too few others: a shard without followers has no warm state anywhere.
        let is_free = |server: &ServerId| loads.get(server).copied().unwrap_or(0) < load_max;
        let (free, loaded): (Vec<_>, Vec<_>) = ranked(number).partition(is_free);
        let within: Vec<_> = free.into_iter().chain(loaded).take(FOLLOWERS).collect();
        if number == shard {
            return within.iter().position(|ranked| *ranked == server);
        }
        for server in within {
            *loads.entry(server).or_default() += 1;
        }
    }
    None
}

/// All servers but the owner, the best one for the shard first.
fn ranked(shard: Shard, servers: &[ServerId], owner: Option<&ServerId>) -> impl Iterator<Item = ServerId> {
    let mut others: Vec<_> = servers.iter().copied().filter(|server| Some(server) != owner).collect();
    others.sort_by_key(|server| (std::cmp::Reverse(score(*server, shard)), *server));
    others.into_iter()
}

/// The shards that `server` should hand over, and to which servers: none while it has no more than its part.
pub(super) fn surplus(
    server: ServerId,
    servers: &[ServerId],
    owners: &BTreeMap<Shard, ServerId>,
    shards: u32,
) -> Vec<(Shard, ServerId)> {
    let mut loads: BTreeMap<ServerId, usize> = servers.iter().map(|server| (*server, 0)).collect();
    for owner in owners.values() {
        *loads.entry(*owner).or_default() += 1;
    }
    let part = (shards as usize).div_ceil(servers.len().max(1));
    let mut own: Vec<Shard> =
        owners.iter().filter(|(_, owner)| **owner == server).map(|(shard, _)| *shard).collect();
    // The shards for which this server ranks lowest go first.
    own.sort_by_key(|shard| score(server, *shard));
    // All servers decide at the same time, from the same records. Above its part, a server gives what exceeds it; within it,
    // only the first of those with the most shards gives one.
    let most = loads.values().copied().max().unwrap_or(0);
    let is_first = loads.iter().find(|(_, load)| **load == most).is_some_and(|(first, _)| *first == server);
    let mut moves = Vec::new();
    for shard in own {
        let own_load = loads[&server];
        let target = ranked(shard, servers, Some(&server)).min_by_key(|other| loads[other]);
        let Some(target) = target.filter(|target| loads[target] + 1 < own_load) else { break };
        if own_load <= part && (!is_first || !moves.is_empty()) {
            break;
        }
        *loads.get_mut(&server).expect("it is one of them") -= 1;
        *loads.get_mut(&target).expect("it is one of them") += 1;
        moves.push((shard, target));
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: u128) -> Vec<ServerId> {
        (1..=count).map(ServerId).collect()
    }

    fn loads(owners: &BTreeMap<Shard, ServerId>, servers: &[ServerId]) -> Vec<usize> {
        servers.iter().map(|server| owners.values().filter(|owner| *owner == server).count()).collect()
    }

    /// Lets every server hand over its surplus, at the same time and from the same records, until nothing moves.
    fn settle(owners: &mut BTreeMap<Shard, ServerId>, servers: &[ServerId], shards: u32) -> usize {
        for round in 0..100 {
            let moves: Vec<_> =
                servers.iter().flat_map(|server| surplus(*server, servers, owners, shards)).collect();
            if moves.is_empty() {
                return round;
            }
            owners.extend(moves);
        }
        panic!("shards move for ever");
    }

    #[test]
    fn one_owner_of_everything_hands_over_until_all_have_their_part() {
        for (count, shards) in [(1, 1), (2, 1), (3, 16), (20, 100), (7, 100), (20, 16)] {
            let servers = ids(count);
            let mut owners: BTreeMap<_, _> = (0..shards).map(|shard| (Shard(shard), servers[0])).collect();
            settle(&mut owners, &servers, shards);
            let loads = loads(&owners, &servers);
            let (least, most) = (loads.iter().min(), loads.iter().max());
            assert!(most.unwrap() - least.unwrap() <= 1, "{count} servers, {shards} shards: {loads:?}");
        }
    }

    #[test]
    fn a_server_that_joins_moves_only_its_own_part() {
        let mut servers = ids(4);
        let mut owners: BTreeMap<_, _> = (0..100).map(|shard| (Shard(shard), servers[0])).collect();
        settle(&mut owners, &servers, 100);
        let before = owners.clone();
        servers.push(ServerId(99));
        settle(&mut owners, &servers, 100);
        let moved = owners.iter().filter(|(shard, owner)| before[*shard] != **owner).count();
        assert!((20..=24).contains(&moved), "{moved} shards moved");
    }

    #[test]
    fn every_shard_has_two_followers_that_do_not_own_it_and_the_load_is_bounded() {
        let (servers, shards) = (ids(20), 100);
        let owners: BTreeMap<_, _> =
            (0..shards).map(|shard| (Shard(shard), servers[shard as usize % 20])).collect();
        let mut loads = BTreeMap::<ServerId, usize>::new();
        for shard in (0..shards).map(Shard) {
            let mut ranks = Vec::new();
            for server in &servers {
                if let Some(rank) = follower_rank(*server, shard, &servers, &owners, shards, &BTreeSet::new())
                {
                    assert_ne!(owners[&shard], *server);
                    ranks.push(rank);
                    *loads.entry(*server).or_default() += 1;
                }
            }
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1], "{shard:?}");
        }
        assert!(loads.values().all(|load| *load <= 13), "{loads:?}");
    }

    /// Four servers, one of which owns all shards: within the bound the other three can follow 63 each, and 100 shards need 200
    /// followers: the last ones had one or none, and when the owner died their logs had to be recovered first.
    #[test]
    fn every_shard_has_two_followers_while_one_server_owns_all() {
        let (servers, shards) = (ids(4), 100);
        let owners: BTreeMap<_, _> = (0..shards).map(|shard| (Shard(shard), servers[0])).collect();
        for shard in (0..shards).map(Shard) {
            let rank = |server: &ServerId| {
                follower_rank(*server, shard, &servers, &owners, shards, &BTreeSet::new())
            };
            assert_eq!(servers.iter().filter_map(rank).count(), 2, "{shard:?}");
        }
    }

    /// During an upgrade both followers of a shard were servers of the older version, which could not read its log.
    #[test]
    fn servers_that_cannot_read_a_log_leave_it_to_others() {
        let (servers, shards) = (ids(20), 100);
        let owners: BTreeMap<_, _> = (0..shards).map(|shard| (Shard(shard), servers[0])).collect();
        let old = &servers[3..];
        let unable = old.iter().flat_map(|server| (0..shards).map(|shard| (*server, Shard(shard)))).collect();
        for shard in (0..shards).map(Shard) {
            let rank = |server| follower_rank(server, shard, &servers, &owners, shards, &unable);
            let mut ranks: Vec<_> = servers[1..3].iter().map(|server| rank(*server)).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [Some(0), Some(1)], "{shard:?}");
            assert!(old.iter().all(|server| rank(*server).is_none()));
        }
    }

    #[test]
    fn a_small_cluster_follows_everything() {
        let servers = ids(3);
        let owners = BTreeMap::from([(Shard(0), servers[1])]);
        let ranks = servers
            .iter()
            .map(|server| follower_rank(*server, Shard(0), &servers, &owners, 1, &BTreeSet::new()));
        let mut ranks: Vec<_> = ranks.collect();
        assert_eq!(ranks.remove(1), None);
        ranks.sort_unstable();
        assert_eq!(ranks, [Some(0), Some(1)]);
        let unowned = BTreeMap::new();
        let ranks = servers
            .iter()
            .map(|server| follower_rank(*server, Shard(0), &servers, &unowned, 1, &BTreeSet::new()));
        assert!(ranks.into_iter().all(|rank| rank.is_some()));
    }
}
