//! `state get` and `state update`.

use cli::remote::documents::{commit, open_input, read_input, write_document, write_output};
use cli::remote::{CommandResult, Output, client_failure, print};
use lockd_client::DocumentBody;
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
    let opened = client.get_state(&entry.key, Some(&entry.namespace), &entry.lease_id).await;
    let mut document = forget_if_expired(store, &entry, opened.map_err(client_failure))?;
    let (version, state_etag) = (document.version, document.etag.clone());
    let bytes = match Format::of(args.format, &args.out) {
        // As it arrives: it may be long.
        Format::Json => write_document(&args.out, &mut document).await?,
        format @ Format::Yaml => {
            let json = document.collect().await.map_err(client_failure)?.document.unwrap_or_default();
            let text = format.write(&json)?;
            write_output(&args.out, &text)?;
            text.len()
        }
    };
    if args.out.as_os_str() == "-" {
        return Ok(());
    }
    let read = DocumentInfo { version, state_etag, bytes };
    print(output, &read, || format!("read version={} bytes={}\n", read.version, read.bytes))
}

pub(crate) async fn update(store: &ContextStore, output: Output, args: &LockcUpdateArgs) -> CommandResult {
    let (client, entry) = connect_current(store, args.key.as_deref())?;
    let document = match Format::of(args.format, &args.file) {
        Format::Json => open_input(&args.file)?,
        format @ Format::Yaml => DocumentBody::from(format.read(read_input(Some(&args.file))?)?),
    };
    let lease = entry.credential();
    let done = commit(&client, output, &lease, document, &args.only.conditions(&lease)).await;
    forget_if_expired(store, &entry, done)?;
    if args.only.release { forget(store, &entry) } else { Ok(()) }
}
