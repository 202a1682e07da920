//! Connections before the end of their TLS handshake: few, and limited by address.
//!
//! **Invariant.** A client without a certificate keeps no other client from its handshake: when all places are taken, the
//! oldest handshake of the address with the most of them is ended in favour of a new address.
//!
//! **What would break it.** To refuse new handshakes while all places are taken: a few hundred silent connections, opened
//! again whenever they time out, lock every client out. To end the oldest without regard to its age: a thousand clients
//! behind one address that reconnect after a restart would end each other's handshakes. So within one address only a
//! handshake that has taken longer than [`YOUNG`] is ended.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::http::connections::{AddressPrefix, ConnectionLimit};

/// A handshake of this age takes longer than the network explains.
const YOUNG: Duration = Duration::from_secs(1);

/// The handshakes in progress.
pub(crate) struct Handshakes {
    max: usize,
    per_address_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    /// By address, the oldest first.
    pending: BTreeMap<AddressPrefix, VecDeque<PendingHandshake>>,
    count: usize,
}

struct PendingHandshake {
    id: u64,
    began: Instant,
    end: Arc<Notify>,
}

impl Handshakes {
    pub(crate) fn new(max: usize, per_address_max: usize) -> Arc<Handshakes> {
        Arc::new(Handshakes { max, per_address_max: per_address_max.min(max), state: Mutex::default() })
    }

    /// Takes a place, possibly that of an older handshake; or says which limit is exceeded.
    pub(crate) fn begin(self: &Arc<Self>, address: IpAddr) -> Result<HandshakeSlot, ConnectionLimit> {
        self.begin_at(AddressPrefix::of(address), Instant::now())
    }

    fn begin_at(
        self: &Arc<Self>,
        prefix: AddressPrefix,
        began: Instant,
    ) -> Result<HandshakeSlot, ConnectionLimit> {
        let mut state = self.lock();
        let own = state.len_of(prefix);
        if own >= self.per_address_max && !state.end_oldest_of(prefix, began - YOUNG) {
            return Err(ConnectionLimit::HandshakesPerAddress);
        }
        if state.count >= self.max {
            let most = state.pending.iter().max_by_key(|(_, pending)| pending.len());
            let (most, len) = most.map(|(prefix, pending)| (*prefix, pending.len())).expect("all are taken");
            let newest = if len > own { began } else { began - YOUNG };
            if !state.end_oldest_of(most, newest) {
                return Err(ConnectionLimit::Handshakes);
            }
        }
        let (id, end) = (state.next_id, Arc::new(Notify::new()));
        state.next_id += 1;
        state.count += 1;
        let pending = PendingHandshake { id, began, end: Arc::clone(&end) };
        state.pending.entry(prefix).or_default().push_back(pending);
        Ok(HandshakeSlot { handshakes: Arc::clone(self), prefix, id, end })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn len_of(&self, prefix: AddressPrefix) -> usize {
        self.pending.get(&prefix).map_or(0, VecDeque::len)
    }

    /// Ends the oldest handshake of an address, if it began by `newest`. Returns whether it did.
    fn end_oldest_of(&mut self, prefix: AddressPrefix, newest: Instant) -> bool {
        let oldest = self.pending.get(&prefix).and_then(VecDeque::front);
        let Some(oldest) = oldest.filter(|oldest| oldest.began <= newest) else { return false };
        oldest.end.notify_one();
        let id = oldest.id;
        self.remove(prefix, id);
        true
    }

    fn remove(&mut self, prefix: AddressPrefix, id: u64) {
        let Some(pending) = self.pending.get_mut(&prefix) else { return };
        let before = pending.len();
        pending.retain(|handshake| handshake.id != id);
        self.count -= before - pending.len();
        if pending.is_empty() {
            self.pending.remove(&prefix);
        }
    }
}

/// The place of a handshake. Dropping it frees the place.
pub(crate) struct HandshakeSlot {
    handshakes: Arc<Handshakes>,
    prefix: AddressPrefix,
    id: u64,
    end: Arc<Notify>,
}

impl HandshakeSlot {
    /// Waits until the place is taken by another handshake.
    pub(crate) async fn ended(&self) {
        self.end.notified().await;
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.handshakes.lock().remove(self.prefix, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins handshakes at a number of seconds after the first.
    struct World(Arc<Handshakes>, Instant);

    impl World {
        fn new(max: usize, per_address_max: usize) -> World {
            World(Handshakes::new(max, per_address_max), Instant::now() + YOUNG)
        }

        fn begin(&self, n: u8, seconds: u64) -> Result<HandshakeSlot, ConnectionLimit> {
            let prefix = AddressPrefix::of(IpAddr::from([192, 0, 2, n]));
            self.0.begin_at(prefix, self.1 + Duration::from_secs(seconds))
        }

        fn count(&self) -> usize {
            self.0.lock().count
        }
    }

    #[tokio::test]
    async fn a_new_address_takes_the_place_of_the_oldest_of_the_busiest() {
        let world = World::new(4, 3);
        let busy: Vec<_> = (0..3).map(|_| world.begin(1, 0).expect("free")).collect();
        assert_eq!(world.begin(1, 0).err(), Some(ConnectionLimit::HandshakesPerAddress));
        let _second = world.begin(2, 0).expect("free");
        let _third = world.begin(3, 0).expect("the oldest of the first address goes");
        tokio::time::timeout(Duration::from_secs(60), busy[0].ended()).await.expect("it was ended");
        assert_eq!(world.count(), 4);
        drop(busy);
        assert_eq!(world.count(), 2);
    }

    #[test]
    fn within_one_address_only_a_slow_handshake_makes_room() {
        let world = World::new(8, 2);
        let _pending = [world.begin(1, 0).expect("free"), world.begin(1, 0).expect("free")];
        assert_eq!(world.begin(1, 0).err(), Some(ConnectionLimit::HandshakesPerAddress), "both are young");
        let _next = world.begin(1, 1).expect("the oldest is slow");
        assert_eq!(world.count(), 2);
    }

    #[test]
    fn with_many_addresses_the_slow_handshakes_make_room() {
        let world = World::new(3, 3);
        let _pending: Vec<_> = (0..3).map(|n| world.begin(n, 0).expect("free")).collect();
        let _fourth = world.begin(9, 0).expect("every other address has one more");
        assert_eq!(world.begin(9, 0).err(), Some(ConnectionLimit::Handshakes), "as many as any other");
        assert!(world.begin(9, 1).is_ok(), "now the others are slow");
    }
}
