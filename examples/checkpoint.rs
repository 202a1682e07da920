//! One worker at a time counts up in a document: each run goes on where the last one stopped.
//!
//! `cargo run -p lockd-client --example checkpoint -- https://localhost:9341 ~/.local/share/lockd/client.pem`

use std::time::Duration;

use lockd_client::{AcquireOptions, Client, Conditions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, identity] = args.as_slice() else {
        return Err("usage: checkpoint SERVER IDENTITY_FILE".into());
    };
    println!("the count is now {}", count(server, identity).await?);
    Ok(())
}

/// Adds one to the count, and returns it.
pub(crate) async fn count(server: &str, identity: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let client = Client::connect(server, identity).await?;
    // Another worker may hold the lease: wait for it.
    let options = AcquireOptions { block: Duration::from_secs(60), ..AcquireOptions::default() };
    let lease = client.acquire("checkpoint", &options).await?;
    let count: u64 = match lease.read_state().await?.document {
        Some(document) => std::str::from_utf8(&document)?.parse()?,
        None => 0,
    };
    lease.update_state((count + 1).to_string(), &Conditions::default()).await?;
    lease.release().await?;
    Ok(count + 1)
}
