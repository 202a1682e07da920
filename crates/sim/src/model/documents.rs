//! Commands on documents: commit, remove, relocate.

use kernel::{
    BoundedTable, Commit, Document, DocumentTag, Event, Identity, KeyData, Location, Lsn, Member, Phase,
    Predicate, Rejection, Relocation, Removal, Response, State, Time, Version, Write,
};

use super::{Model, ModelResult, NotApplied};

impl Model {
    pub(super) fn may_write(
        &self,
        now: Time,
        who: &Identity,
        write: &Write,
    ) -> Result<(Lsn, usize), Rejection> {
        let lsn = self.authority(now, who, write.held)?;
        let lease = self.live(lsn).expect("it has authority");
        if write.token.is_some_and(|token| token != lease.token) {
            return Err(Rejection::FencingMismatch { current: lease.token });
        }
        let covers = |member: &Member| {
            member.resource == write.key
                && matches!(member.predicate, Predicate::Mutates | Predicate::Deletes)
        };
        if write.key.kind() != "KEY" || !lease.members.iter().any(covers) {
            return Err(Rejection::NotHeld);
        }
        if lease.phase == Phase::Reserved {
            return Err(Rejection::InvalidState(State::Reserved));
        }
        let matches = |key: &KeyData| key.namespace == lease.namespace && key.key == write.key;
        let index = self.keys.iter().position(matches).expect("a leased key is known");
        let key = &self.keys[index];
        let tag = DocumentTag { version: key.version, etag: key.document.map(|document| document.etag) };
        if write.if_version.is_some_and(|version| version != tag.version) {
            return Err(Rejection::VersionConflict(tag));
        }
        if write.if_etag.is_some_and(|etag| etag != tag.etag) {
            return Err(Rejection::EtagMismatch(tag));
        }
        Ok((lsn, index))
    }

    pub(super) fn commit(&mut self, lsn: Lsn, now: Time, who: &Identity, commit: &Commit) -> ModelResult {
        let (lease, index) = self.may_write(now, who, &commit.write)?;
        let documents = self.keys.iter().filter(|key| key.document.is_some()).count();
        if self.keys[index].document.is_none() && documents >= self.limits().documents_max as usize {
            return Err(
                Rejection::Full { table: BoundedTable::Documents, max: self.limits().documents_max }.into()
            );
        }
        let (namespace, name) = (self.keys[index].namespace.clone(), commit.write.key.clone());
        self.pass_time(lsn, now, &[]);
        let matches = |key: &&mut KeyData| key.namespace == namespace && key.key == name;
        let key = self.keys.iter_mut().find(matches).expect("a leased key stays");
        let superseded = key.document.map(|document| document.location);
        key.version = Version(key.version.0 + 1);
        let Commit { etag, bytes, location, .. } = *commit;
        key.document = Some(Document { etag, bytes, location, committed_at: now });
        let version = key.version;
        self.events.push(Event::Committed { lease: commit.write.held.lease, key: name, version, superseded });
        self.record_use(lease);
        if commit.write.release {
            self.end_released(lease);
        }
        Ok(Response::Committed(version))
    }

    pub(super) fn remove(
        &mut self,
        lsn: Lsn,
        now: Time,
        who: &Identity,
        removal: &Removal,
        is_keyed: bool,
    ) -> ModelResult {
        let write = &removal.write;
        let (lease, index) = self.may_write(now, who, write)?;
        let KeyData { namespace, key: name, version, document } = self.keys[index].clone();
        let stores = is_keyed && self.tenure.as_ref().is_some_and(|tenure| tenure.open.kernel_version >= 3);
        if document.is_none() && !write.release && !stores {
            return Err(NotApplied::Unchanged(Response::Removed { removed: false, version }));
        }
        self.pass_time(lsn, now, &[]);
        let matches = |key: &&mut KeyData| key.namespace == namespace && key.key == name;
        let key = self.keys.iter_mut().find(matches).expect("a leased key stays");
        let mut version = key.version;
        if let Some(Document { location: superseded, .. }) = key.document.take() {
            key.version = Version(key.version.0 + 1);
            version = key.version;
            self.events.push(Event::Removed { lease: write.held.lease, key: name, version, superseded });
        }
        self.record_use(lease);
        if write.release {
            self.end_released(lease);
        }
        Ok(Response::Removed { removed: document.is_some(), version })
    }

    pub(super) fn relocate(&mut self, lsn: Lsn, now: Time, relocation: &Relocation) -> ModelResult {
        let matches = |key: &KeyData| {
            key.namespace == relocation.namespace
                && key.key == relocation.key
                && key.document.is_some()
                && key.version == relocation.version
        };
        if !self.keys.iter().any(matches) {
            return Err(NotApplied::Unchanged(Response::Relocated { moved: false }));
        }
        self.pass_time(lsn, now, &[]);
        let key = self.keys.iter_mut().find(|key| matches(key)).expect("a document stays");
        let to: Location = relocation.location;
        key.document.as_mut().expect("it has a document").location = to;
        Ok(Response::Relocated { moved: true })
    }
}
