//! Credentials that a command prints, as `credential_process` in a profile of the AWS command line: for profile files,
//! single sign-on and everything else that the default chain does not have.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Mutex;

/// The longest time that the command may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Credentials are replaced this long before they expire.
const EARLY: time::Duration = time::Duration::minutes(5);

/// Runs the command when there are no credentials, or they are about to expire.
#[derive(Debug)]
pub(crate) struct CredentialProcess {
    command: String,
    cached: Mutex<Option<Cached>>,
}

#[derive(Debug)]
struct Cached {
    credential: Arc<AwsCredential>,
    expires: Option<OffsetDateTime>,
}

/// What the command prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

impl CredentialProcess {
    pub(crate) fn new(command: &str) -> CredentialProcess {
        CredentialProcess { command: command.to_string(), cached: Mutex::new(None) }
    }

    async fn run(&self) -> Result<Cached, String> {
        let command = tokio::process::Command::new("sh")
            .args(["-c", &self.command])
            .stdin(std::process::Stdio::null())
            .stderr(std::process::Stdio::inherit())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(TIMEOUT, command).await;
        let output = output.map_err(|_| "it did not end within a minute".to_string())?;
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("{}", output.status));
        }
        parse(&output.stdout)
    }
}

fn parse(printed: &[u8]) -> Result<Cached, String> {
    // The text is secret: an error must not repeat it.
    let printed: Printed = serde_json::from_slice(printed).map_err(|error| {
        format!("its output is not the JSON of credentials: line={} column={}", error.line(), error.column())
    })?;
    if printed.version != 1 {
        return Err(format!("its output has a version that is not supported: Version={}", printed.version));
    }
    let expires = printed.expiration.map(|text| OffsetDateTime::parse(&text, &Rfc3339)).transpose();
    let expires = expires.map_err(|_| "its Expiration is not a time as in RFC 3339".to_string())?;
    let credential = AwsCredential {
        key_id: printed.access_key_id,
        secret_key: printed.secret_access_key,
        token: printed.session_token,
    };
    Ok(Cached { credential: Arc::new(credential), expires })
}

#[async_trait]
impl CredentialProvider for CredentialProcess {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut cached = self.cached.lock().await;
        let now = OffsetDateTime::now_utc();
        if let Some(Cached { credential, expires }) = &*cached
            && expires.is_none_or(|expires| expires - EARLY > now)
        {
            return Ok(Arc::clone(credential));
        }
        let fresh = self.run().await.map_err(|why| object_store::Error::Generic {
            store: "S3",
            source: format!("the credential process failed: {why} command={:?}", self.command).into(),
        })?;
        let credential = Arc::clone(&fresh.credential);
        *cached = Some(fresh);
        Ok(credential)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_prints_credentials_which_are_kept_until_they_expire() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("runs");
        for (expires, runs) in [("2999-01-01T00:00:00Z", 1), ("2001-01-01T00:00:00Z", 3)] {
            std::fs::write(&log, "").expect("writable");
            let json = format!(
                r#"{{"Version":1,"AccessKeyId":"id","SecretAccessKey":"secret","Expiration":"{expires}"}}"#
            );
            let process = CredentialProcess::new(&format!("echo run >> {}; echo '{json}'", log.display()));
            for _ in 0..3 {
                assert_eq!(process.get_credential().await.expect("printed").key_id, "id");
            }
            assert_eq!(std::fs::read_to_string(&log).expect("readable").lines().count(), runs, "{expires}");
        }
    }

    #[tokio::test]
    async fn a_failed_command_is_named_and_its_output_is_not_shown() {
        for (command, expected) in [
            ("exit 3", "exit status: 3"),
            ("echo hunter2", "not the JSON of credentials"),
            (r#"echo '{"Version":2,"AccessKeyId":"a","SecretAccessKey":"hunter2"}'"#, "Version=2"),
        ] {
            let error =
                CredentialProcess::new(command).get_credential().await.expect_err("it fails").to_string();
            assert!(error.contains("the credential process failed") && error.contains(expected), "{error}");
            let output = error.split("command=").next().expect("a message");
            assert!(!output.contains("hunter2"), "{error}");
        }
    }
}
