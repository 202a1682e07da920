//! [`Builder`]: the configuration of a [`Client`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use identity::{ClientTls, IdentityLocation};

use crate::call::{RetryPolicy, Servers};
use crate::client::Client;
use crate::connect::HttpVersion;
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::identity_files::{ClientIdentity, IdentitySource};
use crate::progress::{ProgressSink, TransferProgress};
use crate::stream::StreamProtocol;

/// Configures a [`Client`].
#[derive(Clone)]
pub struct Builder {
    endpoints: Vec<String>,
    plain: bool,
    identity: Option<IdentitySource>,
    denylist: Option<PathBuf>,
    policy: RetryPolicy,
    http_version: HttpVersion,
    stream: StreamProtocol,
    progress: ProgressSink,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Builder { endpoints, plain, identity, denylist, policy, http_version, stream, progress: _ } =
            self;
        let mut shown = f.debug_struct("Builder");
        shown.field("endpoints", endpoints).field("plain", plain);
        shown.field("identity", identity).field("denylist", denylist);
        shown.field("policy", policy).field("http_version", http_version).field("stream", stream);
        shown.finish_non_exhaustive()
    }
}

impl Builder {
    /// Adds a server: `host[:port]`, a URL, or `unix:/path`. Calls go to the server that responded last.
    #[must_use]
    pub fn endpoint(mut self, text: impl Into<String>) -> Builder {
        self.endpoints.push(text.into());
        self
    }

    /// Addresses without a scheme mean HTTP instead of HTTPS.
    #[must_use]
    pub fn plain(mut self) -> Builder {
        self.plain = true;
        self
    }

    /// The client's identity file, or a directory with `tls.crt`, `tls.key` and `ca.crt`, for HTTPS endpoints. It is read
    /// again when it changes, so that a renewal needs no restart.
    #[must_use]
    pub fn identity_file(self, path: impl Into<PathBuf>) -> Builder {
        self.identity_location(IdentityLocation::Path(path.into()))
    }

    /// The same, for an identity in files of any names.
    #[must_use]
    pub fn identity_location(mut self, location: IdentityLocation) -> Builder {
        self.identity = Some(IdentitySource::Files(location));
        self
    }

    /// File of revoked server certificates, one serial per line, in addition to those in the identity file. It is read
    /// again when it changes. Has no effect on an identity that is no file.
    #[must_use]
    pub fn denylist_file(mut self, path: impl Into<PathBuf>) -> Builder {
        self.denylist = Some(path.into());
        self
    }

    /// The client's identity, for HTTPS endpoints, if it is not in a file. It never changes.
    #[must_use]
    pub fn identity(mut self, identity: ClientTls) -> Builder {
        self.identity = Some(IdentitySource::Fixed(identity));
        self
    }

    /// Timeout for opening a connection. 3 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, span: Duration) -> Builder {
        self.policy.connect_timeout = span;
        self
    }

    /// Timeout for a response, in addition to the time spent in a wait queue. 10 s by default.
    #[must_use]
    pub fn answer_timeout(mut self, span: Duration) -> Builder {
        self.policy.response_timeout = span;
        self
    }

    /// Maximum number of attempts of a call over all servers; each server gets at least one. 4 by default.
    #[must_use]
    pub fn tries(mut self, tries: usize) -> Builder {
        self.policy.attempts_max = tries;
        self
    }

    /// The version of HTTP over TLS. HTTP/1.1 by default.
    #[must_use]
    pub fn http_version(mut self, version: HttpVersion) -> Builder {
        self.http_version = version;
        self
    }

    /// When short calls are sent in frames: many in flight on one connection, for less time at both ends than HTTP takes. By
    /// default over TLS, if the server offers it. Documents above 16 KiB, lists and event streams are always sent over HTTP.
    #[must_use]
    pub fn stream(mut self, stream: StreamProtocol) -> Builder {
        self.stream = stream;
        self
    }

    /// Reports the progress of large documents. Not reported by default.
    #[must_use]
    pub fn progress(mut self, progress: Arc<dyn TransferProgress>) -> Builder {
        self.progress = Some(progress);
        self
    }

    /// Builds the client. No connection is opened before the first call.
    pub fn build(self) -> Result<Client, Error> {
        let endpoints: Vec<Endpoint> =
            self.endpoints.iter().map(|text| Endpoint::parse(text, self.plain)).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(Error::new(Kind::Invalid, "no server is configured; name one, as in localhost:9341"));
        }
        let (denylist, version) = (self.denylist, self.http_version);
        let identity =
            self.identity.map(|source| ClientIdentity::load(source, denylist, version)).transpose()?;
        if let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint.tls && identity.is_none()) {
            let detail = "https needs an identity; name a client's identity file, or use an http:// address";
            return Err(Error::new(Kind::Invalid, format!("{detail}: server={endpoint}")));
        }
        let servers = Servers::new(endpoints, self.policy, identity, self.stream, self.progress);
        Ok(Client { servers: Arc::new(servers) })
    }
}

impl Client {
    /// Connects to a server over HTTPS with a client's identity file. Fails if the server does not respond, or one side refuses
    /// the other's certificate. [`Client::builder`] has more options, and opens no connection before the first call.
    pub async fn connect(server: &str, identity_file: impl Into<PathBuf>) -> Result<Client, Error> {
        let client = Client::builder().endpoint(server).identity_file(identity_file).build()?;
        client.alive().await?;
        Ok(client)
    }

    /// A builder with the defaults.
    pub fn builder() -> Builder {
        let policy = RetryPolicy {
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(10),
            attempts_max: 4,
            // A server remembers idempotency keys for 60 s.
            window: Duration::from_secs(45),
        };
        Builder {
            endpoints: Vec::new(),
            plain: false,
            identity: None,
            denylist: None,
            policy,
            http_version: HttpVersion::default(),
            stream: StreamProtocol::default(),
            progress: None,
        }
    }
}
