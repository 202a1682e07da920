//! `lockd store dump`: prints the log's records as lines of JSON.

use std::io::{self, Write};

use cli::failure::{CommandResult, Failure};
use cli::output::{Output, event_text};
use store::disk::{StoreView, TornTail};

use crate::args::Dump;
use crate::audit_line::AuditLine;
use crate::local_store::LocalStore;
use crate::log_replay::{LogReplay, ReplayItem, TimedRecord};
use crate::notice;

/// Prints the selected records. A closed pipe is no failure.
pub(crate) fn dump(args: &Dump) -> CommandResult {
    let store = LocalStore::open(args.store.as_ref(), &args.bucket, Output::Text)?;
    let view = StoreView::open(&store.path).map_err(|error| Failure::new(1, error.to_string()))?;
    let shards = args.shard.map_or(0..view.file().shards, |shard| shard..shard.saturating_add(1));
    let mut out = io::stdout().lock();
    for shard in shards {
        match dump_shard(&view, shard, args, &mut out) {
            Ok(()) => {}
            Err(StopReason::ReaderClosed) => return Ok(()),
            Err(StopReason::Failed(what)) => return Err(Failure::new(1, what)),
        }
    }
    Ok(())
}

/// Why the dump stopped.
enum StopReason {
    ReaderClosed,
    Failed(String),
}

impl From<String> for StopReason {
    fn from(what: String) -> StopReason {
        StopReason::Failed(what)
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
    let mut replay = LogReplay::open(view, shard)?;
    loop {
        match replay.next()? {
            // LSNs increase, so nothing further is in range.
            ReplayItem::Record(timed) if timed.record.lsn.0 > args.to_lsn => return Ok(()),
            ReplayItem::Record(timed) => print(&mut replay, shard, &timed, args, out)?,
            ReplayItem::Torn(cut) => {
                notice(&note(shard, &cut));
                return Ok(());
            }
            ReplayItem::End => return Ok(()),
        }
    }
}

/// Applies a record, and prints it if it is selected.
fn print(
    replay: &mut LogReplay<'_>,
    shard: u32,
    timed: &TimedRecord,
    args: &Dump,
    out: &mut dyn Write,
) -> Result<(), StopReason> {
    let record = &timed.record;
    let outcome = replay.apply(record);
    if record.lsn.0 < args.from_lsn || args.correlation.is_some_and(|id| record.correlation != id) {
        return Ok(());
    }
    let line = AuditLine::new(shard, timed, outcome.as_ref());
    let output = if args.output == Output::Yaml { Output::Yaml } else { Output::Json };
    out.write_all(event_text(output, &line, String::new).as_bytes())?;
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
