//! A CA is replaced by another under held leases, with the commands of the documentation.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockd_client::{AcquireOptions, Client, Lease};
use rustix::process::Signal;

use crate::lockd::identities::IdentityDir;
use crate::lockd::serve::Running;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/identities.md");
const LEASES: usize = 1000;
/// No lease expires by itself during the test, on any machine.
const TTL: Duration = Duration::from_secs(120);
const WORKERS: usize = 4;

/// The commands under the heading, without comments.
fn documented_steps() -> Vec<String> {
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let section = page.split("\n## Replacing the CA\n").nth(1).expect("the section");
    let block = section.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("commands");
    let lines = block.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_string).collect()
}

/// The only way to another CA was a restart of the server and of every client at the same moment.
#[test]
fn no_lease_is_lost_while_the_ca_is_replaced_as_documented() {
    let dir = IdentityDir::new();
    dir.client("client1.pem", "worker-1");
    dir.client("late.pem", "late");
    let bundle = dir.path("server.pem");
    let args = ["--store", "mem://", "--bundle", bundle.to_str().expect("text"), "--log-level", "info"];
    let mut server = Running::start(&dir.path("data"), &args);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let client = Client::builder().identity_file(dir.path("client1.pem")).endpoint(&server.address);
    let client = client.build().expect("sound");
    let leases: Vec<Lease> = runtime.block_on(acquire_all(&client));
    let mut open = server.connect(&dir.path("late.pem"));
    assert_eq!(open.ask("GET", "/v1/leases?limit=1", "").expect("a response").0, 200);

    let leases = Arc::new(leases);
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            runtime.spawn(renew_until(client.clone(), Arc::clone(&leases), worker, Arc::clone(&stop)))
        })
        .collect();
    let steps = documented_steps();
    assert_eq!(steps.len(), 6, "{steps:?}");
    for step in &steps {
        type_command(&dir, step);
        server.signal(Signal::HUP);
        server.log.wait_for("reloaded identities");
    }
    stop.store(true, Ordering::Release);
    let renewals: usize =
        workers.into_iter().map(|worker| runtime.block_on(worker).expect("no renewal failed")).sum();
    assert!(renewals > 0);
    runtime.block_on(async {
        for lease in leases.iter() {
            client.keepalive(lease.credential(), None).await.expect("under the new CA alone");
        }
    });
    assert_eq!(leases.iter().filter_map(Lease::why_lost).collect::<Vec<_>>(), [], "of {LEASES}");
    let refused = open.ask("GET", "/v1/leases?limit=1", "");
    assert!(refused.is_none_or(|(status, _)| status == 401), "its CA is not trusted any more");
    assert!(server.connect(&dir.path("client1.pem")).ask("GET", "/v1/leases", "").is_some());
}

/// Renews the leases of one worker in turn, and panics at the first failure; the number of renewals.
async fn renew_until(client: Client, leases: Arc<Vec<Lease>>, worker: usize, stop: Arc<AtomicBool>) -> usize {
    let mut renewals = 0;
    for lease in leases.iter().skip(worker).step_by(WORKERS).cycle() {
        if stop.load(Ordering::Acquire) {
            break;
        }
        client.keepalive(lease.credential(), None).await.expect("held all along");
        renewals += 1;
    }
    renewals
}

async fn acquire_all(client: &Client) -> Vec<Lease> {
    let options = AcquireOptions { ttl: Some(TTL), ..AcquireOptions::default() };
    let mut leases = Vec::new();
    for number in 0..LEASES {
        leases.push(client.acquire(&format!("k{number}"), &options).await.expect("free"));
    }
    leases
}

fn type_command(dir: &IdentityDir, line: &str) {
    let binary = std::path::Path::new(assert_cmd::cargo::cargo_bin!("lockd"));
    let path =
        format!("{}:{}", binary.parent().expect("a folder").display(), std::env::var("PATH").expect("set"));
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]).env("PATH", path).current_dir(dir.path(""));
    let output = shell.output().expect("a shell");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}
