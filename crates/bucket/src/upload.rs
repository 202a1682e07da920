//! An upload in parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use object_store::multipart::PartId;
use object_store::{PutMode, PutOptions, PutPayload};
use store::object::{ObjectUpload, ObjectsError, Part};

use crate::bucket::{Inner, stopped};
use crate::outcome::Effect;
use crate::part_body::{placeholder, with_part};
use crate::url::Provider;

/// An upload in parts. Dropped before it is completed, it is aborted in the background.
pub(crate) struct BucketUpload {
    bucket: Arc<Inner>,
    name: String,
    id: String,
    parts: BTreeMap<usize, PartId>,
    is_completed: bool,
}

impl BucketUpload {
    pub(crate) fn begin(bucket: Arc<Inner>, name: &str) -> Result<BucketUpload, ObjectsError> {
        let (object, client) = (name.to_string(), Arc::clone(&bucket));
        let begun = bucket.runtime.block_on(async move { client.begin_upload(&object).await });
        let id = begun.unwrap_or_else(|| Err(stopped()))?;
        Ok(BucketUpload { bucket, name: name.to_string(), id, parts: BTreeMap::new(), is_completed: false })
    }
}

impl Inner {
    /// Returns the id of the upload.
    pub(crate) async fn begin_upload(&self, name: &str) -> Result<String, ObjectsError> {
        // An upload of Azure begins with its first part: nothing is sent.
        if self.url.provider == Provider::Azure {
            return Ok(String::new());
        }
        let path = self.path(name);
        self.operation(Effect::Create, name, self.library.uploads.create_multipart(&path)).await
    }

    pub(crate) async fn upload_part(
        &self,
        name: &str,
        id: &String,
        number: usize,
        part: &Part,
    ) -> Result<PartId, ObjectsError> {
        let path = self.path(name);
        if let Some(bytes) = part.in_memory() {
            let put = self.library.uploads.put_part(&path, id, number, payload(bytes));
            return self.operation(Effect::Idempotent, name, put).await;
        }
        let put = self.library.spooled.uploads.put_part(&path, id, number, placeholder(part.len()));
        with_part(part.clone(), self.operation(Effect::Idempotent, name, put)).await
    }

    /// Creates an object from a part.
    pub(crate) async fn put_part_if_absent(&self, name: &str, part: &Part) -> Result<(), ObjectsError> {
        let (path, options) =
            (self.path(name), PutOptions { mode: PutMode::Create, ..PutOptions::default() });
        if let Some(bytes) = part.in_memory() {
            let put = self.library.objects.put_opts(&path, payload(bytes), options);
            return self.operation(Effect::Create, name, put).await.map(drop);
        }
        let put = self.library.spooled.objects.put_opts(&path, placeholder(part.len()), options);
        with_part(part.clone(), self.operation(Effect::Create, name, put)).await.map(drop)
    }

    pub(crate) async fn complete_upload(
        &self,
        name: &str,
        id: &String,
        parts: Vec<PartId>,
    ) -> Result<(), ObjectsError> {
        let path = self.path(name);
        let complete = self.library.uploads.complete_multipart(&path, id, parts);
        self.operation(Effect::Idempotent, name, complete).await.map(drop)
    }

    pub(crate) async fn abort_upload(&self, name: &str, id: &String) -> Result<(), ObjectsError> {
        // Azure forgets the parts by itself.
        if self.url.provider == Provider::Azure {
            return Ok(());
        }
        let path = self.path(name);
        self.operation(Effect::Idempotent, name, self.library.uploads.abort_multipart(&path, id)).await
    }
}

/// The bytes without a copy of them.
fn payload(bytes: &Arc<Vec<u8>>) -> PutPayload {
    PutPayload::from_bytes(Bytes::from_owner(SharedPart(Arc::clone(bytes))))
}

struct SharedPart(Arc<Vec<u8>>);

impl AsRef<[u8]> for SharedPart {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl ObjectUpload for BucketUpload {
    fn put_part(&mut self, number: usize, part: &Part) -> Result<(), ObjectsError> {
        let (client, name, id) = (Arc::clone(&self.bucket), self.name.clone(), self.id.clone());
        let part = part.clone();
        let sent =
            self.bucket.runtime.block_on(async move { client.upload_part(&name, &id, number, &part).await });
        self.parts.insert(number, sent.unwrap_or_else(|| Err(stopped()))?);
        Ok(())
    }

    fn complete(&mut self) -> Result<(), ObjectsError> {
        let parts: Vec<PartId> = self.parts.values().cloned().collect();
        let (client, name, id) = (Arc::clone(&self.bucket), self.name.clone(), self.id.clone());
        let completed =
            self.bucket.runtime.block_on(async move { client.complete_upload(&name, &id, parts).await });
        completed.unwrap_or_else(|| Err(stopped()))?;
        self.is_completed = true;
        Ok(())
    }
}

impl Drop for BucketUpload {
    /// What is not aborted here is aborted a day later, as an old upload.
    fn drop(&mut self) {
        if self.is_completed {
            return;
        }
        let (client, name, id) = (Arc::clone(&self.bucket), self.name.clone(), self.id.clone());
        self.bucket.runtime.spawn(async move {
            let _ = client.abort_upload(&name, &id).await;
        });
    }
}
