//! `state get` and `state update`.

use cli::remote::documents::{commit, read_input, write_output};
use cli::remote::{Done, Output, print, told};
use serde::Serialize;

use crate::args::{Get, Update};
use crate::context::Store;
use crate::format::Format;
use crate::leases::{forget, forget_if_over, held};

pub(crate) async fn get(store: &Store, output: Output, args: &Get) -> Done {
    #[derive(Serialize)]
    struct Read {
        version: u64,
        state_etag: String,
        bytes: usize,
    }
    let (client, entry) = held(store, args.key.as_deref())?;
    let read = client.get_state(&entry.key, &entry.lease_id).await.map_err(told);
    let read = forget_if_over(store, &entry, read)?;
    let text = Format::of(args.format, &args.out).write(&read.document.unwrap_or_default())?;
    write_output(&args.out, &text)?;
    if args.out.as_os_str() == "-" {
        return Ok(());
    }
    let read = Read { version: read.version, state_etag: read.etag, bytes: text.len() };
    print(output, &read, || format!("read version={} bytes={}\n", read.version, read.bytes))
}

pub(crate) async fn update(store: &Store, output: Output, args: &Update) -> Done {
    let (client, entry) = held(store, args.key.as_deref())?;
    let document = Format::of(args.format, &args.file).read(read_input(Some(&args.file))?)?;
    let held = entry.held();
    let done = commit(&client, output, &held, document, &args.only.conditions(&held)).await;
    forget_if_over(store, &entry, done)?;
    if args.only.release { forget(store, &entry) } else { Ok(()) }
}
