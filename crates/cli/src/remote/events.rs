//! `events`, and `watch --prefix`: the server's event stream.

use std::time::Duration;

use api::agents::Event;
use lockd_client::{Client, Kind, StreamItem};
use serde::Serialize;

use super::args::{Common, FollowTimeout};
use super::views::resource_text;
use super::{CommandResult, client_failure};
use crate::output::{event_text, write_stdout};
use crate::stderr::notice;
use crate::times::{now, unix_ms_text};
use crate::untrusted::{escape, word};

#[derive(clap::Args)]
#[command(
    after_help = "Each event has its time by the server's clock, and an id: --after ID resumes behind it. If events were \
                        missed, a `reset` says so.\n\n\
                        Example:\n  lockd client events --output json | jq -r 'select(.event == \"expired\") | .holder'"
)]
pub(crate) struct EventsArgs {
    /// Resume behind the event with this id.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    #[command(flatten)]
    follow: FollowTimeout,
}

/// An event with its time in RFC 3339. The JSON form is stable: fields are added, never renamed.
#[derive(Serialize)]
struct TimedEvent<'a> {
    time: String,
    id: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

pub(crate) async fn events(client: &Client, common: &Common, args: &EventsArgs) -> CommandResult {
    let stream = EventFilter { prefix: None, once: false, span: args.follow.timeout };
    stream.follow(client, common, args.after.as_deref()).await
}

/// Which events are printed.
pub(crate) struct EventFilter<'a> {
    /// Only of keys that begin with this.
    pub(crate) prefix: Option<&'a str>,
    /// Ends with the first one.
    pub(crate) once: bool,
    /// How long they are followed.
    pub(crate) span: Option<Duration>,
}

impl EventFilter<'_> {
    /// Prints events until `--timeout`, or until the reader closes the pipe.
    pub(crate) async fn follow(
        &self,
        client: &Client,
        common: &Common,
        after: Option<&str>,
    ) -> CommandResult {
        let end = self.run(client, common, after);
        match self.span {
            None => end.await,
            Some(span) => tokio::time::timeout(span, end).await.unwrap_or(Ok(())),
        }
    }

    async fn run(&self, client: &Client, common: &Common, after: Option<&str>) -> CommandResult {
        let namespace = common.connection.namespace.as_deref();
        let mut events = client.events(namespace, after).await.map_err(client_failure)?;
        let mut unreachable = false;
        loop {
            let item = match events.next().await {
                Ok(item) => item,
                Err(error) if error.kind() == Kind::Unavailable => {
                    if !unreachable {
                        notice("lockd", &format!("{}; retrying", client_failure(error).message));
                    }
                    unreachable = true;
                    continue;
                }
                Err(error) => return Err(client_failure(error)),
            };
            unreachable = false;
            let line = match &item {
                StreamItem::Reset => reset_text(common),
                StreamItem::Event { id, event } if self.selects(event) => text(common, id, event),
                StreamItem::Event { .. } => continue,
            };
            if !write_stdout(line.as_bytes())? || self.once {
                return Ok(());
            }
        }
    }

    fn selects(&self, event: &Event) -> bool {
        let Some(prefix) = self.prefix else { return true };
        event.resources.iter().any(|resource| resource.kind == "KEY" && resource.name.starts_with(prefix))
    }
}

fn reset_text(common: &Common) -> String {
    let time = now();
    let value = serde_json::json!({"time": time, "event": "reset"});
    event_text(common.output, &value, || {
        format!("{time} reset: events were missed; read the current state again\n")
    })
}

fn text(common: &Common, id: &str, event: &Event) -> String {
    let timed = TimedEvent { time: unix_ms_text(event.at_unix_ms), id, event };
    event_text(common.output, &timed, || {
        let names = event.resources.iter().map(|resource| resource_text(&resource.kind, &resource.name));
        let mut line = format!("{} {}", timed.time, event.event);
        let mut add =
            |name: &str, value: Option<String>| line.extend(value.map(|value| format!(" {name}={value}")));
        add("how", event.how.clone());
        add("resources", Some(names.collect::<Vec<_>>().join(",")));
        add("holder", Some(word(&event.holder)));
        add("agent_id", event.agent_id.as_deref().map(word));
        add("namespace", Some(word(&event.namespace)));
        add("public_id", event.public_id.clone());
        add("fencing_token", event.fencing_token.map(|token| token.to_string()));
        add("version", event.version.map(|version| version.to_string()));
        add("blocked_by", Some(event.blocked_by.join(",")).filter(|ids| !ids.is_empty()));
        add("id", Some(id.to_string()));
        escape(&line) + "\n"
    })
}
