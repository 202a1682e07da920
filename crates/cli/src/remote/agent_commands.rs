//! `agents`, `set-agent`, `manifest`, `heartbeat`, `release-all`, `reconcile`.

use api::agents::{
    Agent, AgentState, Agents, Bulk, BulkResult, Intent, ManifestOutcome, Reconcile, ReconciledLease, Verdict,
};
use clap::ValueEnum;
use lockd_client::Client;
use serde::Serialize;

use super::agents::{AgentArgs, intent, rejection};
use super::args::{Common, LeaseTerms};
use super::environment::{Exporter, shell_credentials};
use super::{CommandResult, Failure, client_failure, print, usage_error};
use crate::exit_codes::FENCED;
use crate::output::{Column, print_rows};
use crate::times::ms_text;
use crate::untrusted::{escape, word};

#[derive(clap::Args)]
#[command(after_help = "Example:\n  lockd client set-agent coder die-restart\n  \
                        lockd client set-agent coder paused --namespace team")]
pub(crate) struct SetAgentArgs {
    /// Name of the agent.
    agent_id: String,
    /// New state of the agent.
    #[arg(value_enum)]
    state: AgentStateArg,
}

#[derive(Clone, Copy, ValueEnum)]
enum AgentStateArg {
    /// It runs normally.
    Alive,
    /// It restarts: its leases are held for it for a short time.
    DieRestart,
    /// It gets no more grants; for operators.
    Paused,
}

#[derive(clap::Args)]
#[command(
    after_help = "Prints exports for the shell, as acquire does. A manifest that must back off is retried until --block is \
                        over.\n\n\
                        Example:\n  granted=$(lockd client manifest --intent MUTATES:FILE:src/auth.rs --block 1m) && eval \"$granted\""
)]
pub(crate) struct ManifestArgs {
    /// Resource that the agent uses, and how, as PREDICATE:KIND:name. Repeatable: all are granted together or none.
    #[arg(long = "intent", value_name = "INTENT", value_parser = intent, required = true)]
    intents: Vec<Intent>,
    /// Purpose, shown to clients that are blocked by it.
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    terms: LeaseTerms,
}

#[derive(clap::Args)]
pub(crate) struct BulkArgs {
    /// Credentials of the leases; if not given, all leases in the environment.
    #[arg(value_name = "LEASE_ID")]
    lease_ids: Vec<String>,
    /// Agent that sends this.
    #[arg(long, value_name = "NAME")]
    agent_id: Option<String>,
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  lockd client reconcile\n  lockd client reconcile --rebind --output json | jq .results"
)]
pub(crate) struct ReconcileArgs {
    #[command(flatten)]
    bulk: BulkArgs,
    /// Also take back expired leases whose resources are on hold.
    #[arg(long)]
    rebind: bool,
}

pub(crate) async fn agents(client: &Client, common: &Common) -> CommandResult {
    let mut all = Agents::default();
    loop {
        let page = client.agents(common.connection.namespace.as_deref(), all.cursor.as_deref()).await;
        let page = page.map_err(client_failure)?;
        all.agents.extend(page.agents);
        all.cursor = page.cursor;
        if all.cursor.is_none() {
            break;
        }
    }
    print_rows(common.output, &all, &AGENT_COLUMNS, &all.agents)
}

const AGENT_COLUMNS: [Column<Agent>; 5] = [
    Column::new("AGENT", |agent| word(&agent.agent_id)),
    Column::new("NAMESPACE", |agent| word(&agent.namespace)),
    Column::new("IDENTITY", |agent| word(&agent.identity)),
    Column::new("STATE", |agent| state_word(agent.state)),
    Column::new("LEASES", |agent| agent.leases.to_string()),
];

fn state_word(state: AgentState) -> String {
    let word = serde_json::to_value(state).expect("a word");
    word.as_str().unwrap_or_default().to_string()
}

pub(crate) async fn set_agent(client: &Client, common: &Common, args: &SetAgentArgs) -> CommandResult {
    let state = match args.state {
        AgentStateArg::Alive => AgentState::Alive,
        AgentStateArg::DieRestart => AgentState::DieRestart,
        AgentStateArg::Paused => AgentState::Paused,
    };
    let namespace = common.connection.namespace.as_deref();
    let agent: Agent = client.set_agent(&args.agent_id, namespace, state).await.map_err(client_failure)?;
    print_rows(common.output, &agent, &AGENT_COLUMNS, std::slice::from_ref(&agent))
}

/// Declares the intents. The lease does not renew itself: it is the shell's.
pub(crate) async fn manifest(client: &Client, common: &Common, args: &ManifestArgs) -> CommandResult {
    let exporter = Exporter::new(&common.connection)?;
    let agent = args.agent.begin("client", &common.connection)?;
    let wait_ms = u64::try_from(args.terms.block.as_millis()).ok().filter(|ms| *ms > 0);
    let manifest = api::agents::Manifest {
        ttl_ms: args.terms.ttl_ms()?,
        reason: args.reason.clone(),
        wait_ms,
        ..agent.manifest(common.connection.namespace.clone(), args.intents.clone())
    };
    let judged: ManifestOutcome = client.manifest(&manifest).await.map_err(client_failure)?;
    let Some(granted) = judged.lease.as_ref().filter(|_| judged.verdict == Verdict::Granted) else {
        return Err(rejection(&judged));
    };
    let printed = print(common.output, &judged, || exporter.exports(granted));
    if printed.is_err() {
        let _ = client.release(&granted.lease_id).await;
    }
    printed
}

/// One result for each lease.
#[derive(Serialize)]
struct BulkResults<T> {
    results: Vec<T>,
}

impl BulkArgs {
    fn lease_ids(&self) -> Result<Vec<String>, Failure> {
        let ids = if self.lease_ids.is_empty() { shell_credentials()? } else { self.lease_ids.clone() };
        if ids.is_empty() {
            return Err(usage_error(
                "no lease in the environment; eval the output of acquire, or name lease ids",
            ));
        }
        Ok(ids)
    }

    fn request(&self, common: &Common) -> Result<Bulk, Failure> {
        let namespace = common.connection.namespace.clone();
        Ok(Bulk { namespace, agent_id: self.agent_id.clone(), lease_ids: self.lease_ids()? })
    }
}

pub(crate) async fn heartbeat(client: &Client, common: &Common, args: &BulkArgs) -> CommandResult {
    let results = client.heartbeat(&args.request(common)?).await.map_err(client_failure)?;
    print_bulk(common, results)
}

pub(crate) async fn release_all(client: &Client, common: &Common, args: &BulkArgs) -> CommandResult {
    let results = client.release_all(&args.request(common)?).await.map_err(client_failure)?;
    print_bulk(common, results)
}

fn print_bulk(common: &Common, results: Vec<BulkResult>) -> CommandResult {
    let failed = results.iter().filter(|result| !result.ok).count();
    let results = BulkResults { results };
    print_rows(common.output, &results, &BULK_COLUMNS, &results.results)?;
    all_succeeded(failed, results.results.len())
}

const BULK_COLUMNS: [Column<BulkResult>; 4] = [
    Column::new("PUBLIC ID", |result| public_id(&result.lease_id)),
    Column::new("OK", |result| if result.ok { "yes".into() } else { "no".into() }),
    Column::new("ENDS IN", |result| result.remaining_ms.map(ms_text).unwrap_or_default()),
    Column::new("ERROR", |result| result.error.map(|code| code.to_string()).unwrap_or_default()),
];

/// The part of a credential that is no secret.
fn public_id(lease_id: &str) -> String {
    escape(lease_id.split('.').next().unwrap_or_default())
}

fn all_succeeded(failed: usize, all: usize) -> CommandResult {
    if failed == 0 {
        return Ok(());
    }
    Err(Failure {
        is_shown: true,
        ..Failure::new(FENCED, format!("not all leases are held: failed={failed} of={all}"))
    })
}

pub(crate) async fn reconcile(client: &Client, common: &Common, args: &ReconcileArgs) -> CommandResult {
    let Bulk { namespace, agent_id, lease_ids } = args.bulk.request(common)?;
    let request = Reconcile { namespace, agent_id, lease_ids, rebind: args.rebind.then_some(true) };
    let results: Vec<ReconciledLease> = client.reconcile(&request).await.map_err(client_failure)?;
    let results = BulkResults { results };
    print_rows(common.output, &results, &RECONCILE_COLUMNS, &results.results)?;
    all_succeeded(results.results.iter().filter(|result| !result.valid).count(), results.results.len())
}

const RECONCILE_COLUMNS: [Column<ReconciledLease>; 4] = [
    Column::new("PUBLIC ID", |result| public_id(&result.lease_id)),
    Column::new("VALID", |result| if result.valid { "yes".into() } else { "no".into() }),
    Column::new("STATE", |result| result.view.as_ref().map(|view| view.state.clone()).unwrap_or_default()),
    Column::new("ERROR", |result| result.error.map(|code| code.to_string()).unwrap_or_default()),
];
