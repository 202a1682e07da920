//! Who is who: the project's CA, the files that carry identities, revocation, and TLS that trusts them.
//!
//! Certificates are trusted, and hostnames are not: whoever holds a certificate that the project's CA has
//! issued, for the purpose at hand, not expired and not revoked, is who its common name says. So an
//! identity file can move from one machine to another, and a server can answer under any address.
//!
//! **What is absent.** HTTP, command lines, any other crate of ours. The clock and the randomness of
//! serials, salts and nonces come in as arguments; keys are made by the library of cryptography, which
//! takes its own randomness from the system.
//!
//! The modules in reading order: [`rights`] says what an identity may do; [`serial`] and [`denylist`] who may
//! no longer; [`certificate`] reads a certificate, [`peer`] the identity in it; [`key`] keeps private keys,
//! [`seal`] encrypts the CA's; [`trust`] judges a chain; [`bundle`] is the three kinds of identity file, made of
//! the sections of `section`; [`authority`] issues what goes into them; [`file`](mod@file) reads and writes them;
//! [`tls`] puts them to work.

pub mod error;
pub mod rights;
pub mod serial;
pub mod denylist;
pub mod certificate;
pub mod peer;
pub mod key;
pub mod seal;
pub mod trust;
mod section;
pub mod bundle;
pub mod authority;
pub mod file;
pub mod tls;

pub use authority::{Algorithm, Authority, Days, Host, Moment};
pub use bundle::{CaBundle, ClientBundle, ServerBundle};
pub use certificate::{Certificate, Name, Purpose};
pub use denylist::{Denylist, Refused, SharedDenylist};
pub use error::{Error, ErrorKind};
pub use key::{CaKey, KeyedCertificate, PrivateKey};
pub use peer::PeerIdentity;
pub use rights::{NamespaceRights, Right, RightSet, Rights, Role, Scope};
pub use rustls::pki_types::UnixTime;
pub use seal::{Cost, Passphrase};
pub use serial::Serial;
pub use tls::{ClientTls, ServerTls};
