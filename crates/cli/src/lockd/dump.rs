//! `lockd store dump`: prints the log's records as lines of JSON.

use std::io::{self, Write};

use cli::untrusted::escape_lines;
use engine::internals::record::decode_batch;
use kernel::Shard;
use store::Batch;
use store::disk::{LogItem, StoreView, TornTail};

use crate::args::Dump;
use crate::audit_line::AuditLine;
use crate::notice;

/// Prints the selected records. A closed pipe is no failure.
pub(crate) fn dump(args: &Dump) -> Result<(), String> {
    let view = StoreView::open(&args.store).map_err(|error| error.to_string())?;
    let shards = args.shard.map_or(0..view.file().shards, |shard| shard..shard.saturating_add(1));
    let mut out = io::stdout().lock();
    for shard in shards {
        match dump_shard(&view, shard, args, &mut out) {
            Ok(()) => {}
            Err(StopReason::ReaderClosed) => return Ok(()),
            Err(StopReason::Failed(what)) => return Err(what),
        }
    }
    Ok(())
}

/// Why the dump stopped.
enum StopReason {
    ReaderClosed,
    Failed(String),
}

impl From<store::StoreError> for StopReason {
    fn from(error: store::StoreError) -> StopReason {
        StopReason::Failed(error.to_string())
    }
}

impl From<io::Error> for StopReason {
    fn from(error: io::Error) -> StopReason {
        match error.kind() {
            io::ErrorKind::BrokenPipe => StopReason::ReaderClosed,
            _ => StopReason::Failed(format!("writing the output: {error}")),
        }
    }
}

fn dump_shard(view: &StoreView, shard: u32, args: &Dump, out: &mut dyn Write) -> Result<(), StopReason> {
    let mut log = view.log(shard)?;
    loop {
        match log.read_next()? {
            // LSNs increase, so nothing further is in range.
            LogItem::Batch(batch) if batch.lsns.first.0 > args.to_lsn => return Ok(()),
            LogItem::Batch(batch) if batch.lsns.last.0 < args.from_lsn => {}
            LogItem::Batch(batch) => print(&batch, shard, args, out)?,
            LogItem::Torn(cut) => {
                notice(&note(shard, &cut));
                return Ok(());
            }
            LogItem::End => return Ok(()),
        }
    }
}

fn print(batch: &Batch, shard: u32, args: &Dump, out: &mut dyn Write) -> Result<(), StopReason> {
    let contents = decode_batch(&batch.payload, Shard(shard)).map_err(|error| {
        let advice = "use the lockd version that wrote it";
        StopReason::Failed(format!("{error}; {advice}: shard={shard} seq={}", batch.seq.0))
    })?;
    for record in &contents.records {
        if (args.from_lsn..=args.to_lsn).contains(&record.lsn.0) {
            let line = serde_json::to_string(&AuditLine::new(shard, batch.seq, record)).expect("plain data");
            let line = escape_lines(&line);
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn note(shard: u32, cut: &TornTail) -> String {
    let lsns = cut.lsns.map_or_else(String::new, |lsns| format!(" lsns={}-{}", lsns.first, lsns.last));
    format!(
        "note: the log ends in an incomplete batch, which is still being written or was torn by a power failure; it was \
         never acknowledged as durable: shard={shard} seq={}{lsns} file={} offset={}",
        cut.seq.0,
        cut.file.display(),
        cut.offset
    )
}
