//! The calls for agents, against a real server.

use std::time::Duration;

use api::agents::{AgentState, Bulk, Intent, Manifest, Verdict};
use lockd_client::digest::DigestLease;
use lockd_client::{DeclareOutcome, Lease, StateDigest, StreamItem};
use lockd_server::testing::Proxy;

use crate::common::{Server, client};

fn manifest(agent: &str, path: &str) -> Manifest {
    let intents = vec![Intent { predicate: "MUTATES".to_string(), object: format!("FILE:{path}") }];
    let (agent_id, session_id) = (agent.to_string(), agent.to_string());
    Manifest { agent_id, session_id, intents, ..Manifest::default() }
}

fn granted(declared: DeclareOutcome) -> Lease {
    match declared {
        DeclareOutcome::Granted(lease) => lease,
        DeclareOutcome::NotGranted(judged) => panic!("{judged:?}"),
    }
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_agent_with_verdict_die_retries_until_it_is_granted() {
    let server = Server::start().await;
    let (first, second) = (server.client(), server.client());
    let lease = granted(first.declare(&manifest("a", "/x"), LONG).await.expect("free"));
    assert!(lease.is_live());
    let not = second.declare(&manifest("b", "/x"), Duration::ZERO).await.expect("a response");
    assert!(
        matches!(not, DeclareOutcome::NotGranted(judged) if judged.verdict == Verdict::Die && judged.holders.len() == 1)
    );
    let next = tokio::spawn(async move { second.declare(&manifest("b", "/x"), LONG).await });
    while first.contention(None).await.expect("a response").hotspots[0].blocked < 3 {
        tokio::task::yield_now().await;
    }
    lease.release().await.expect("it is ours");
    let next = granted(next.await.expect("no panic").expect("granted"));
    assert!(next.is_live() && next.fencing_token() > 0);
}

/// Waiting would not help: the operator may resume the grants days later.
#[tokio::test]
async fn a_paused_agent_gets_its_verdict_at_once() {
    let server = Server::start().await;
    let client = server.client();
    let lease = granted(client.declare(&manifest("coder", "/x"), LONG).await.expect("free"));
    client.set_agent("coder", None, AgentState::Paused).await.expect("an operator");
    let for_ever = Duration::from_secs(1_000_000);
    let not = client.declare(&manifest("coder", "/y"), for_ever).await.expect("a response");
    assert!(matches!(not, DeclareOutcome::NotGranted(judged) if judged.verdict == Verdict::Paused));
    assert!(lease.is_live(), "it keeps its leases");
}

#[tokio::test]
async fn an_agent_reconciles_its_leases_after_a_restart() {
    let server = Server::start().await;
    let client = server.client();
    let lease = granted(client.declare(&manifest("coder", "/x"), LONG).await.expect("free"));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("digest.json");
    let valid = DigestLease {
        lease_id: lease.credential().to_string(),
        lease_epoch: lease.granted().lease_epoch,
        fencing_token: lease.fencing_token(),
    };
    let invalid =
        DigestLease { lease_id: lease.credential().replace(".1.", ".3."), ..DigestLease::default() };
    let digest = StateDigest {
        agent_id: "coder".to_string(),
        session_id: "coder".to_string(),
        attempt_id: Some("A-1".to_string()),
        leases: vec![valid, invalid],
        ..StateDigest::default()
    };
    digest.save(&path).expect("writable");
    client.set_agent("coder", None, AgentState::DieRestart).await.expect("its own");
    // The process ends without releasing anything.
    std::mem::forget(lease);

    let digest = StateDigest::load(&path).expect("readable").expect("fresh");
    let found = client.reconcile(&digest.to_reconcile(true)).await.expect("a response");
    assert_eq!(found.iter().map(|one| one.valid).collect::<Vec<_>>(), [true, false]);
    let back = client.resume(&found[0]).await.expect("it is valid").expect("it is valid");
    assert!(back.is_live());
    assert!(client.resume(&found[1]).await.expect("no request is sent").is_none());
    assert_eq!(client.agents(None, None).await.expect("a response").agents[0].state, AgentState::Alive);
    let bulk = Bulk { lease_ids: vec![back.credential().to_string()], ..Bulk::default() };
    assert!(client.heartbeat(&bulk).await.expect("a response")[0].ok);
    assert_eq!(client.resource("FILE:/x", None).await.expect("a response").state, "active");
    for _ in 0..2 {
        assert!(client.release_all(&bulk).await.expect("a response")[0].ok);
    }
    assert_eq!(client.resource("FILE:/x", None).await.expect("a response").state, "available");
}

/// The connection breaks: events from that time arrive once it is reopened.
#[tokio::test]
async fn a_reader_resumes_where_its_connection_broke() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let direct = server.client();
    // The second address works when the first is cut.
    let mut events = client(&[proxy.address, server.address]).events(None, None).await.expect("it listens");
    let mut names = Vec::new();
    for n in 0..3 {
        let lease =
            direct.acquire(&format!("k{n}"), &lockd_client::AcquireOptions::default()).await.expect("free");
        names.push(lease.granted().public_id.clone());
        std::mem::forget(lease);
        if n == 0 {
            assert_eq!(granted_name(&mut events).await, names[0]);
            proxy.cut();
        }
    }
    assert_eq!(granted_name(&mut events).await, names[1]);
    assert_eq!(granted_name(&mut events).await, names[2]);
}

async fn granted_name(events: &mut lockd_client::Events) -> String {
    loop {
        match events.next().await.expect("a server is there") {
            StreamItem::Event { event, .. } if event.event == "granted" => {
                return event.public_id.expect("of a lease");
            }
            StreamItem::Event { .. } => {}
            StreamItem::Reset => panic!("nothing was missed"),
        }
    }
}
