//! Credentials that the program holds itself, in place of those of the environment.

use std::fmt;

/// Credentials that the program holds itself: for embedders with a store of secrets of their own, and for servers on
/// loopback that accept any.
#[derive(Clone, PartialEq, Eq)]
pub enum StaticCredentials {
    /// S3: an access key.
    AccessKey {
        /// Its id.
        id: String,
        /// Its secret.
        secret: String,
        /// The token of temporary credentials.
        session_token: Option<String>,
    },
    /// GCS: an access token of OAuth 2.0. It is not renewed.
    BearerToken(String),
    /// Azure: a storage account and its key.
    AccountKey {
        /// The name of the storage account.
        account: String,
        /// The key, in base64.
        key: String,
    },
}

impl fmt::Debug for StaticCredentials {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StaticCredentials::AccessKey { id, .. } => {
                f.debug_struct("AccessKey").field("id", id).finish_non_exhaustive()
            }
            StaticCredentials::BearerToken(_) => f.write_str("BearerToken(..)"),
            StaticCredentials::AccountKey { account, .. } => {
                f.debug_struct("AccountKey").field("account", account).finish_non_exhaustive()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let secret = || "hunter2".to_string();
        for credentials in [
            StaticCredentials::AccessKey { id: "id".into(), secret: secret(), session_token: Some(secret()) },
            StaticCredentials::BearerToken(secret()),
            StaticCredentials::AccountKey { account: "account".into(), key: secret() },
        ] {
            assert!(!format!("{credentials:?}").contains("hunter2"), "{credentials:?}");
        }
    }
}
