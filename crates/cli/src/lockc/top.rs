//! `lockc top`: leases and their waiters, live in a terminal; or once, where the output is no terminal or is parsed.
//!
//! The modules in reading order: `rows` reads the leases; `view` is filter, order and selection, and draws them; `screen`
//! is the terminal in raw mode.

mod rows;
mod screen;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use cli::output::{Column, Output, print_rows};
use cli::remote::{CommandResult, client_failure, connect};
use cli::times::{now_unix_ms, unix_ms_text};
use lockd_client::{Client, Kind};
use tokio::sync::mpsc;

use self::rows::{Snapshot, TopRow};
use self::screen::{Key, Screen};
pub(crate) use self::view::Sort;
use self::view::{Act, View};
use crate::args::LockcTopArgs;

/// Longest time between two reads of the leases.
const REFRESH: Duration = Duration::from_secs(2);
/// Shortest time between two reads, however many events there are.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs until `q`, or prints once.
pub(crate) async fn top(output: Output, args: &LockcTopArgs) -> CommandResult {
    let client = connect(&args.connection)?;
    let namespace = args.connection.namespace.as_deref();
    let snapshot = Snapshot::read(&client, namespace).await.map_err(client_failure)?;
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if output != Output::Text || !is_terminal || args.once {
        return print_once(output, args, snapshot);
    }
    let mut screen = Screen::open()?;
    let mut view = View::new(args.filter.clone().unwrap_or_default(), args.sort, snapshot);
    live(&client, namespace, &mut screen, &mut view).await
}

fn print_once(output: Output, args: &LockcTopArgs, snapshot: Snapshot) -> CommandResult {
    let view = View::new(args.filter.clone().unwrap_or_default(), args.sort, snapshot);
    let rows: Vec<TopRow> = view.rows().into_iter().cloned().collect();
    let columns = [
        Column::new("RESOURCE", |row: &TopRow| row.resource.clone()),
        Column::new("HOLDER", |row: &TopRow| row.party().to_string()),
        Column::new("STATE", |row: &TopRow| row.state.clone()),
        Column::new("SINCE", |row: &TopRow| unix_ms_text(row.acquired_at_unix_ms)),
        Column::new("REMAINING", |row: &TopRow| row.remaining(now_unix_ms())),
        Column::new("WAITERS", |row: &TopRow| row.waiters.to_string()),
        Column::new("TOKEN", |row: &TopRow| row.fencing_token.to_string()),
        Column::wide("LEASE", |row: &TopRow| row.public_id.clone()),
        Column::wide("NAMESPACE", |row: &TopRow| row.namespace.clone()),
    ];
    print_rows(output, &serde_json::json!({ "leases": rows, "more": view.snapshot.more }), &columns, &rows)
}

async fn live(
    client: &Client,
    namespace: Option<&str>,
    screen: &mut Screen,
    view: &mut View,
) -> CommandResult {
    let mut changed = follow(client.clone(), namespace.map(str::to_string));
    loop {
        screen.draw(&view.draw(Screen::size(), now_unix_ms()))?;
        tokio::select! {
            key = screen.key() => match key {
                None | Some(Key::Interrupt) => return Ok(()),
                Some(Key::Character('q')) if !view.is_typing() => return Ok(()),
                Some(key) => {
                    if let Some(act) = view.press(key) {
                        view.note = perform(client, &act).await;
                        reload(client, namespace, view).await;
                    }
                }
            },
            more = changed.recv() => {
                if more.is_some() {
                    tokio::time::sleep(PAUSE).await;
                    while changed.try_recv().is_ok() {}
                }
                reload(client, namespace, view).await;
            }
            () = tokio::time::sleep(REFRESH) => reload(client, namespace, view).await,
        }
    }
}

/// A failure is shown, and the last rows stay.
async fn reload(client: &Client, namespace: Option<&str>, view: &mut View) {
    match Snapshot::read(client, namespace).await {
        Ok(snapshot) => view.update(snapshot),
        Err(error) => view.broken = Some(client_failure(error).message),
    }
}

async fn perform(client: &Client, act: &Act) -> String {
    let (verb, done) = match act {
        Act::Revoke(lease, _) => ("revoked", client.revoke(lease).await),
        Act::Reclaim(lease, _) => ("reclaimed", client.reclaim(lease).await),
    };
    match done {
        Ok(lease) => format!("{verb}: token={}", lease.fencing_token),
        Err(error) => client_failure(error).message,
    }
}

/// Signals events until it is dropped. Without the stream the leases are still read regularly.
fn follow(client: Client, namespace: Option<String>) -> mpsc::Receiver<()> {
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(async move {
        let Ok(mut events) = client.events(namespace.as_deref(), None).await else {
            send.closed().await;
            return;
        };
        loop {
            match events.next().await {
                Ok(_) => drop(send.try_send(())),
                Err(error) if error.kind() == Kind::Unavailable => {}
                Err(_) => break,
            }
            if send.is_closed() {
                return;
            }
        }
        send.closed().await;
    });
    receive
}
