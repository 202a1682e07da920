//! The agents' protocol from a program, against a real server.

#[allow(dead_code, reason = "it serves several files of tests")]
mod common;

use std::time::Duration;

use api::agents::{AgentState, Bulk, Intent, Manifest, Verdict};
use client::digest::Kept;
use client::{Declared, Digest, Lease, News};
use common::{Server, client};
use server::testing::Proxy;

fn manifest(agent: &str, path: &str) -> Manifest {
    let intents = vec![Intent { predicate: "MUTATES".to_string(), object: format!("FILE:{path}") }];
    let (agent_id, session_id) = (agent.to_string(), agent.to_string());
    Manifest { agent_id, session_id, intents, ..Manifest::default() }
}

fn granted(declared: Declared) -> (Lease, String) {
    match declared {
        Declared::Granted { lease, attempt_id } => (lease, attempt_id),
        Declared::Not(judged) => panic!("{judged:?}"),
    }
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_agent_that_dies_comes_again_until_it_has_its_turn() {
    let server = Server::start().await;
    let (first, second) = (server.client(), server.client());
    let (lease, _) = granted(first.declare(&manifest("a", "/x"), LONG).await.expect("free"));
    assert!(lease.is_live());
    let not = second.declare(&manifest("b", "/x"), Duration::ZERO).await.expect("an answer");
    assert!(
        matches!(not, Declared::Not(judged) if judged.verdict == Verdict::Die && judged.holders.len() == 1)
    );
    let next = tokio::spawn(async move { second.declare(&manifest("b", "/x"), LONG).await });
    while first.contention(None).await.expect("an answer").hotspots[0].blocked < 3 {
        tokio::task::yield_now().await;
    }
    lease.release().await.expect("it is ours");
    let (next, _) = granted(next.await.expect("no panic").expect("its turn"));
    assert!(next.is_live() && next.fencing_token() > 0);
}

/// Waiting would not help: the operator who stopped it may be away for days.
#[tokio::test]
async fn an_agent_whose_grants_are_stopped_is_told_at_once() {
    let server = Server::start().await;
    let client = server.client();
    let (lease, _) = granted(client.declare(&manifest("coder", "/x"), LONG).await.expect("free"));
    client.set_agent("coder", None, AgentState::Paused).await.expect("an operator");
    let for_ever = Duration::from_secs(1_000_000);
    let not = client.declare(&manifest("coder", "/y"), for_ever).await.expect("an answer");
    assert!(matches!(not, Declared::Not(judged) if judged.verdict == Verdict::Paused));
    assert!(lease.is_live(), "what it has it keeps");
}

#[tokio::test]
async fn an_agent_finds_out_after_a_restart_what_is_true() {
    let server = Server::start().await;
    let client = server.client();
    let (lease, attempt_id) = granted(client.declare(&manifest("coder", "/x"), LONG).await.expect("free"));
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("digest.json");
    let kept = Kept {
        lease_id: lease.credential().to_string(),
        lease_epoch: lease.granted().lease_epoch,
        fencing_token: lease.fencing_token(),
    };
    let gone = Kept { lease_id: lease.credential().replace(".1.", ".3."), ..Kept::default() };
    let digest = Digest {
        agent_id: "coder".to_string(),
        session_id: "coder".to_string(),
        attempt_id: Some(attempt_id),
        leases: vec![kept, gone],
        ..Digest::default()
    };
    digest.save(&path).expect("room");
    client.set_agent("coder", None, AgentState::DieRestart).await.expect("its own");
    // The process ends without giving anything back.
    std::mem::forget(lease);

    let digest = Digest::load(&path).expect("readable").expect("fresh");
    let found = client.reconcile(&digest.to_reconcile(true)).await.expect("an answer");
    assert_eq!(found.iter().map(|one| one.valid).collect::<Vec<_>>(), [true, false]);
    let back = client.resume(&found[0]).await.expect("it is valid").expect("it is valid");
    assert!(back.is_live());
    assert!(client.resume(&found[1]).await.expect("nothing to ask").is_none());
    assert_eq!(client.agents(None, None).await.expect("an answer").agents[0].state, AgentState::Alive);
    let bulk = Bulk { lease_ids: vec![back.credential().to_string()], ..Bulk::default() };
    assert!(client.heartbeat(&bulk).await.expect("an answer")[0].ok);
    assert_eq!(client.resource("FILE:/x", None).await.expect("an answer").state, "held");
    for _ in 0..2 {
        assert!(client.release_all(&bulk).await.expect("an answer")[0].ok);
    }
    assert_eq!(client.resource("FILE:/x", None).await.expect("an answer").state, "free");
}

/// The connection broke: what happened meanwhile is told when it is there again.
#[tokio::test]
async fn a_reader_goes_on_from_where_its_connection_broke() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let direct = server.client();
    // The second way is there when the first is cut.
    let mut events = client(&[proxy.address, server.address]).events(None, None).await.expect("it listens");
    let mut names = Vec::new();
    for n in 0..3 {
        let lease = direct.acquire(&format!("k{n}"), &client::Options::default()).await.expect("free");
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

async fn granted_name(events: &mut client::Events) -> String {
    loop {
        match events.next().await.expect("a server is there") {
            News::Happened { event, .. } if event.event == "granted" => {
                return event.public_id.expect("of a lease");
            }
            News::Happened { .. } => {}
            News::Reset => panic!("nothing was missed"),
        }
    }
}
