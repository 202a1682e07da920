//! `revoke`, `reclaim`, `pause`, `resume`, `quotas`, `set-quota`, `namespaces`, `delete-namespace`.

use std::time::Duration;

use api::Code;
use api::requests::{Party, Pause, Quota};
use api::responses::{Lease, Namespaces, Quotas, ScopeQuota};
use lockd_client::{Client, Error};
use serde_json::json;

use super::args::{Common, duration};
use super::views::show;
use super::{CommandResult, Failure, client_failure, print, usage_error};
use crate::exit_codes::USAGE;
use crate::output::{Column, print_rows};
use crate::stderr::notice;
use crate::times::ms_text;
use crate::untrusted::{escape, word};

#[derive(clap::Args)]
#[command(
    after_help = "Its resources stay blocked until they are reclaimed: make sure first that the holder has stopped.\n\n\
                        Examples:\n  lockd client revoke orders\n  \
                        lockd client revoke L-0000000000000001000000000000abcd\n  \
                        lockd client revoke --holder worker-1 --namespace team"
)]
pub(crate) struct RevokeArgs {
    /// Key, or public id of a lease as shown by list.
    #[arg(value_name = "KEY|PUBLIC_ID", required_unless_present_any = ["holder", "agent_id"])]
    target: Option<String>,
    #[command(flatten)]
    party: PartyArgs,
}

/// An identity or an agent.
#[derive(clap::Args)]
#[group(required = false, multiple = false)]
pub(crate) struct PartyArgs {
    /// All leases of this identity in the namespace.
    #[arg(long, value_name = "IDENTITY")]
    holder: Option<String>,
    /// All leases of this agent in the namespace.
    #[arg(long, value_name = "NAME")]
    agent_id: Option<String>,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  lockd client reclaim orders\n  \
                        lockd client reclaim L-0000000000000001000000000000abcd")]
pub(crate) struct ReclaimArgs {
    /// Key, or public id of a lease as shown by list.
    #[arg(value_name = "KEY|PUBLIC_ID")]
    target: String,
}

#[derive(clap::Args)]
#[command(
    after_help = "Leases that exist stay, and can be renewed and released. Without --namespace an identity is paused in \
                        all namespaces, and an agent in `default`.\n\n\
                        Examples:\n  lockd client pause --holder worker-1\n  \
                        lockd client resume --agent-id coder --namespace team"
)]
#[group(required = true, multiple = false)]
pub(crate) struct PauseArgs {
    /// Identity whose grants are concerned.
    #[arg(long, value_name = "IDENTITY")]
    holder: Option<String>,
    /// Agent whose grants are concerned.
    #[arg(long, value_name = "NAME")]
    agent_id: Option<String>,
}

#[derive(clap::Args)]
#[command(
    after_help = "The whole quota of the scope is replaced: a limit that is not given is removed. The scope is \
                        --namespace, --holder, both, or neither: the default for all.\n\n\
                        Examples:\n  lockd client set-quota --namespace team --holder worker-1 --max-leases 100\n  \
                        lockd client set-quota --max-total 8h --idle 10m --acquires-per-second 20"
)]
pub(crate) struct QuotaArgs {
    /// Identity that the quota is for; all if not given.
    #[arg(long, value_name = "IDENTITY")]
    holder: Option<String>,
    /// Maximum number of leases held at the same time.
    #[arg(long, value_name = "N")]
    max_leases: Option<u32>,
    /// Maximum total lifetime of a lease, renewals included.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    max_total: Option<Duration>,
    /// Maximum time that a lease may go without use; renewals are no use.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle: Option<Duration>,
    /// Maximum number of requests for leases per second.
    #[arg(long, value_name = "N")]
    acquires_per_second: Option<u32>,
}

#[derive(clap::Args)]
#[command(after_help = "It is refused while a lease is live in the namespace.\n\n\
                        Example:\n  lockd client delete-namespace team --yes")]
pub(crate) struct DeleteNamespaceArgs {
    /// Namespace to delete.
    name: String,
    /// Delete it; without this, only say what would be deleted.
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn revoke(client: &Client, common: &Common, args: &RevokeArgs) -> CommandResult {
    let PartyArgs { holder, agent_id } = &args.party;
    let Some(target) = &args.target else {
        let namespace = common.connection.namespace.clone();
        let party = Party { namespace, identity: holder.clone(), agent_id: agent_id.clone() };
        let revoked = client.revoke_all(&party).await.map_err(client_failure)?;
        return print(common.output, &revoked, || format!("revoked leases={}\n", revoked.revoked));
    };
    if holder.is_some() || agent_id.is_some() {
        return Err(usage_error("name either a key or lease, or --holder or --agent-id"));
    }
    let public_id = find_lease(client, common, target, &["active", "reserved"]).await?;
    settled(client, common, &public_id, client.revoke(&public_id).await, &["revoking", "revoked"]).await
}

pub(crate) async fn reclaim(client: &Client, common: &Common, args: &ReclaimArgs) -> CommandResult {
    let public_id = find_lease(client, common, &args.target, &["revoking"]).await?;
    settled(client, common, &public_id, client.reclaim(&public_id).await, &["revoked", "expired"]).await
}

/// Prints the lease. One that is already in a state of `done` is as it should be: repeating the command is harmless.
async fn settled(
    client: &Client,
    common: &Common,
    public_id: &str,
    result: Result<Lease, Error>,
    done: &[&str],
) -> CommandResult {
    let error = match result {
        Ok(lease) => return show(common, &lease),
        Err(error) => error,
    };
    if error.code() == Some(Code::InvalidState)
        && let Ok(lease) = client.lease(public_id).await
    {
        if done.contains(&lease.state.as_str()) {
            notice(
                "lockd",
                &format!("nothing to do: the lease is in this state already: state={}", lease.state),
            );
            return show(common, &lease);
        }
        let failure = client_failure(error);
        let what = match lease.state.as_str() {
            "active" | "reserved" => {
                format!("the lease has authority; revoke it first: `lockd client revoke {public_id}`")
            }
            state => format!("the lease has ended, and blocks nothing: state={state}"),
        };
        return Err(Failure { message: what, ..failure });
    }
    Err(client_failure(error))
}

/// The public id of the lease that is named, or that covers the key.
async fn find_lease(
    client: &Client,
    common: &Common,
    target: &str,
    states: &[&str],
) -> Result<String, Failure> {
    let is_public_id = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if target.strip_prefix("L-").is_some_and(is_public_id) {
        return Ok(target.to_string());
    }
    let state = client.resource(&format!("KEY:{target}"), common.connection.namespace.as_deref()).await;
    let leases = state.map_err(client_failure)?.leases;
    let fits = |lease: &&Lease| states.contains(&lease.state.as_str());
    let mut found: Vec<&Lease> = leases.iter().filter(fits).collect();
    if found.is_empty() {
        found = leases.iter().collect();
    }
    let key = word(target);
    match found.as_slice() {
        [] => Err(usage_error(format!("no lease covers this key; it is free: key={key}"))),
        [lease] => Ok(lease.public_id.clone()),
        several => {
            let ids: Vec<&str> = several.iter().map(|lease| lease.public_id.as_str()).collect();
            Err(usage_error(format!(
                "several leases cover this key; name one: key={key} public_ids={}",
                ids.join(",")
            )))
        }
    }
}

pub(crate) async fn pause(client: &Client, common: &Common, args: &PauseArgs, paused: bool) -> CommandResult {
    let namespace = common.connection.namespace.clone();
    let (identity, agent_id) = (args.holder.clone(), args.agent_id.clone());
    let pause = Pause { namespace: namespace.clone(), identity, agent_id, paused };
    client.pause(&pause).await.map_err(client_failure)?;
    print(common.output, &pause, || {
        let who = match (&pause.identity, &pause.agent_id) {
            (Some(identity), _) => format!("holder={}", word(identity)),
            (None, agent) => format!("agent_id={}", word(agent.as_deref().unwrap_or_default())),
        };
        let all = if pause.identity.is_some() { "*" } else { api::DEFAULT_NAMESPACE };
        let what = if paused { "paused" } else { "resumed" };
        escape(&format!("{what} {who} namespace={}", word(namespace.as_deref().unwrap_or(all)))) + "\n"
    })
}

pub(crate) async fn quotas(client: &Client, common: &Common) -> CommandResult {
    let mut quotas = Quotas::default();
    loop {
        let page = client.quotas(quotas.cursor.as_deref()).await.map_err(client_failure)?;
        quotas.quotas.extend(page.quotas);
        quotas.cursor = page.cursor;
        if quotas.cursor.is_none() {
            break;
        }
    }
    quotas.quotas.sort_by_key(|quota| (quota.namespace.clone(), quota.identity.clone()));
    print_rows(common.output, &quotas, &QUOTA_COLUMNS, &quotas.quotas)
}

const QUOTA_COLUMNS: [Column<ScopeQuota>; 7] = [
    Column::new("NAMESPACE", |quota| quota.namespace.as_deref().map_or_else(|| "*".into(), word)),
    Column::new("HOLDER", |quota| quota.identity.as_deref().map_or_else(|| "*".into(), word)),
    Column::new("MAX LEASES", |quota| limit(quota.max_leases)),
    Column::new("MAX TOTAL", |quota| quota.max_total_ms.map(ms_text).unwrap_or_default()),
    Column::new("IDLE", |quota| quota.idle_ms.map(ms_text).unwrap_or_default()),
    Column::new("ACQUIRES/S", |quota| limit(quota.acquires_per_second)),
    Column::new("PAUSED", |quota| if quota.paused { "yes".into() } else { "no".into() }),
];

fn limit(limit: Option<u32>) -> String {
    limit.map(|limit| limit.to_string()).unwrap_or_default()
}

pub(crate) async fn set_quota(client: &Client, common: &Common, args: &QuotaArgs) -> CommandResult {
    let ms = |span: Option<Duration>| span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    let quota = Quota {
        namespace: common.connection.namespace.clone(),
        identity: args.holder.clone(),
        max_leases: args.max_leases,
        max_total_ms: ms(args.max_total),
        idle_ms: ms(args.idle),
        acquires_per_second: args.acquires_per_second,
        paused: None,
    };
    client.set_quota(&quota).await.map_err(client_failure)?;
    print(common.output, &quota, || {
        let scope = |scope: &Option<String>| scope.as_deref().map_or_else(|| "*".to_string(), word);
        let (namespace, holder) = (scope(&quota.namespace), scope(&quota.identity));
        escape(&format!("quota set namespace={namespace} holder={holder}")) + "\n"
    })
}

/// All namespaces that the caller may read.
pub(crate) async fn all_namespaces(client: &Client) -> Result<Namespaces, Failure> {
    let mut listed = Namespaces::default();
    loop {
        let page = client.namespaces(listed.cursor.as_deref()).await.map_err(client_failure)?;
        listed.namespaces.extend(page.namespaces);
        listed.cursor = page.cursor;
        if listed.cursor.is_none() {
            return Ok(listed);
        }
    }
}

pub(crate) async fn namespaces(client: &Client, common: &Common) -> CommandResult {
    let listed = all_namespaces(client).await?;
    print_rows(
        common.output,
        &listed,
        &[Column::new("NAMESPACE", |name: &String| word(name))],
        &listed.namespaces,
    )
}

pub(crate) async fn delete_namespace(
    client: &Client,
    common: &Common,
    args: &DeleteNamespaceArgs,
) -> CommandResult {
    let name = word(&args.name);
    if !args.yes {
        let what = "nothing was deleted; --yes deletes the namespace with its documents, ended leases, agents and quotas";
        return Err(Failure::new(USAGE, format!("{what}: namespace={name}")));
    }
    client.delete_namespace(&args.name).await.map_err(client_failure)?;
    print(common.output, &json!({"deleted": args.name}), || format!("deleted namespace={name}\n"))
}
