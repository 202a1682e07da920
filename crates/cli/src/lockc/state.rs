//! `state get` and `state update`.

use cli::remote::documents::{commit, read_input, write_output};
use cli::remote::{CommandResult, Output, client_failure, print};
use serde::Serialize;

use crate::args::{LockcGetArgs, LockcUpdateArgs};
use crate::context::ContextStore;
use crate::format::Format;
use crate::leases::{connect_current, forget, forget_if_expired};

pub(crate) async fn get(store: &ContextStore, output: Output, args: &LockcGetArgs) -> CommandResult {
    #[derive(Serialize)]
    struct DocumentInfo {
        version: u64,
        state_etag: String,
        bytes: usize,
    }
    let (client, entry) = connect_current(store, args.key.as_deref())?;
    let read =
        client.read_state(&entry.key, Some(&entry.namespace), &entry.lease_id).await.map_err(client_failure);
    let read = forget_if_expired(store, &entry, read)?;
    let text = Format::of(args.format, &args.out).write(&read.document.unwrap_or_default())?;
    write_output(&args.out, &text)?;
    if args.out.as_os_str() == "-" {
        return Ok(());
    }
    let read = DocumentInfo { version: read.version, state_etag: read.etag, bytes: text.len() };
    print(output, &read, || format!("read version={} bytes={}\n", read.version, read.bytes))
}

pub(crate) async fn update(store: &ContextStore, output: Output, args: &LockcUpdateArgs) -> CommandResult {
    let (client, entry) = connect_current(store, args.key.as_deref())?;
    let document = Format::of(args.format, &args.file).read(read_input(Some(&args.file))?)?;
    let lease = entry.credential();
    let done = commit(&client, output, &lease, document, &args.only.conditions(&lease)).await;
    forget_if_expired(store, &entry, done)?;
    if args.only.release { forget(store, &entry) } else { Ok(()) }
}
