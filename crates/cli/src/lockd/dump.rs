//! `lockd store dump`: the log, record by record, as lines of JSON.

use std::io::{self, Write};

use engine::record::Record;
use store::Batch;
use store::disk::{Cut, Found, StoreView};

use crate::args::Dump;
use crate::audit_line::Line;
use crate::say;

/// Prints what was asked for. A reader that has gone away has had enough: that is no failure.
pub(crate) fn dump(args: &Dump) -> Result<(), String> {
    let view = StoreView::open(&args.store).map_err(|error| error.to_string())?;
    let shards = args.shard.map_or(0..view.file().shards, |shard| shard..shard.saturating_add(1));
    let mut out = io::stdout().lock();
    for shard in shards {
        match dump_shard(&view, shard, args, &mut out) {
            Ok(()) => {}
            Err(Stop::ReaderGone) => return Ok(()),
            Err(Stop::Failed(what)) => return Err(what),
        }
    }
    Ok(())
}

/// Why no more is printed.
enum Stop {
    ReaderGone,
    Failed(String),
}

impl From<store::StoreError> for Stop {
    fn from(error: store::StoreError) -> Stop {
        Stop::Failed(error.to_string())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Stop::ReaderGone,
            _ => Stop::Failed(format!("writing the output: {error}")),
        }
    }
}

fn dump_shard(view: &StoreView, shard: u32, args: &Dump, out: &mut dyn Write) -> Result<(), Stop> {
    let mut log = view.log(shard)?;
    loop {
        match log.read_next()? {
            // LSNs only grow.
            Found::Batch(batch) if batch.lsns.first > args.to_lsn => return Ok(()),
            Found::Batch(batch) if batch.lsns.last < args.from_lsn => {}
            Found::Batch(batch) => print(&batch, shard, args, out)?,
            Found::Torn(cut) => {
                say(&note(shard, &cut));
                return Ok(());
            }
            Found::End => return Ok(()),
        }
    }
}

fn print(batch: &Batch, shard: u32, args: &Dump, out: &mut dyn Write) -> Result<(), Stop> {
    let records = Record::decode_all(&batch.payload).map_err(|error| {
        let advice = "read it with the build that wrote it";
        Stop::Failed(format!("{error}; {advice}: shard={shard} seq={}", batch.seq.0))
    })?;
    for record in &records {
        if (args.from_lsn..=args.to_lsn).contains(&record.lsn.0) {
            let line = serde_json::to_string(&Line::new(shard, batch.seq, record)).expect("plain data");
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn note(shard: u32, cut: &Cut) -> String {
    let lsns = cut.lsns.map_or_else(String::new, |lsns| format!(" lsns={}-{}", lsns.first, lsns.last));
    format!(
        "note: the log ends in a batch that is not whole; it is being written, or the power failed, and nobody \
         was told that it is durable: shard={shard} seq={}{lsns} file={} offset={}",
        cut.seq.0,
        cut.file.display(),
        cut.offset
    )
}
