//! Failures of TLS that are about a certificate: the server's, which this client refuses, or the client's own, which the
//! server refuses.
//!
//! They are no network failures: a retry does not help, and nothing was applied. The message names the identity file and
//! the command that helps.

use std::error::Error as StdError;
use std::io;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as TlsError, OtherError};

use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::identity_files::ClientIdentity;

/// The certificate error behind a failed request, if there is one.
pub(crate) fn find(
    failure: &(dyn StdError + 'static),
    endpoint: &Endpoint,
    identity: Option<&ClientIdentity>,
) -> Option<Error> {
    let what = match tls_error(failure)? {
        TlsError::InvalidCertificate(error) => server_refused(error),
        TlsError::AlertReceived(alert) => own_refused(*alert, identity)?,
        _ => return None,
    };
    let own = identity.map(describe_own).unwrap_or_default();
    let detail = format!("{what}: server={endpoint}{own}");
    Some(Error::new(Kind::Denied, detail))
}

/// Whether an error is one of TLS, and not of the network.
pub(crate) fn is_tls(failure: &(dyn StdError + 'static)) -> bool {
    tls_error(failure).is_some()
}

/// Whether the server responded to the TLS handshake with something else.
pub(crate) fn is_no_tls(failure: &(dyn StdError + 'static)) -> bool {
    matches!(tls_error(failure), Some(TlsError::InvalidMessage(_)))
}

fn describe_own(identity: &ClientIdentity) -> String {
    let file = identity.file().map(|file| format!(" identity={}", file.display())).unwrap_or_default();
    let tls = identity.tls();
    let own = tls.certificate();
    format!("{file} cn={} serial={}", own.name(), own.serial())
}

/// An I/O error does not name the error inside it as its source.
fn tls_error<'a>(failure: &'a (dyn StdError + 'static)) -> Option<&'a TlsError> {
    let mut next = Some(failure);
    while let Some(cause) = next {
        if let Some(found) = cause.downcast_ref::<TlsError>() {
            return Some(found);
        }
        if let Some(inner) = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref)
            && let Some(found) = tls_error(inner)
        {
            return Some(found);
        }
        next = cause.source();
    }
    None
}

fn server_refused(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired; its operator renews it with `lockd auth renew --in server.pem`".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet; check the clocks of both machines".into()
        }
        CertificateError::Revoked => {
            "the server's certificate is revoked; its operator makes a new one with `lockd auth new server`".into()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the server's certificate is of another CA than this identity; use an identity of the server's CA, made \
             with `lockd auth new client --server-in server.pem`"
                .into()
        }
        CertificateError::Other(OtherError(error)) => format!("the server's certificate cannot be trusted: {error}"),
        other => format!("the server's certificate cannot be trusted: {other:?}"),
    }
}

/// `None` for alerts that are not about certificates.
fn own_refused(alert: AlertDescription, identity: Option<&ClientIdentity>) -> Option<String> {
    let why = match alert {
        AlertDescription::CertificateRevoked => {
            "it is revoked; get a new one, made with `lockd auth new client`".to_string()
        }
        AlertDescription::CertificateExpired => not_valid_now(identity),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is of another CA; use an identity of the server's CA, made with `lockd auth new client --server-in \
             server.pem`"
                .to_string()
        }
        AlertDescription::CertificateRequired => "there is none; name an identity file".to_string(),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => {
            let file = shown_file(identity);
            format!("{alert:?}; `lockd auth verify client --server-in server.pem --in {file}` says why")
        }
        _ => return None,
    };
    Some(format!("the server refuses this certificate: {why}"))
}

/// A server reports a certificate that is not valid yet as an expired one: this machine's clock tells them apart.
fn not_valid_now(identity: Option<&ClientIdentity>) -> String {
    let renew = format!("renew it with `lockd auth renew --in {}`", shown_file(identity));
    let Some(tls) = identity.map(ClientIdentity::tls) else { return format!("it has expired; {renew}") };
    let (own, now) = (tls.certificate(), tls.config().time_provider.current_time());
    match now {
        Some(now) if now < own.not_before() => {
            "it is not valid yet; check the clocks of both machines".to_string()
        }
        Some(now) if now <= own.not_after() => {
            format!("it is not valid by the server's clock; check the clocks of both machines, or {renew}")
        }
        _ => format!("it has expired; {renew}"),
    }
}

fn shown_file(identity: Option<&ClientIdentity>) -> String {
    identity
        .and_then(ClientIdentity::file)
        .map_or("client.pem".to_string(), |file| file.display().to_string())
}
