//! Wire protocols, each as small as the bench needs it, so that clients cost little CPU.

pub mod http1;
pub mod shared;
pub mod stream;
pub mod jute;
pub mod protobuf;
pub mod grpc;
pub mod resp;

/// A response of lockd: its status, and its body in a buffer of the caller.
pub struct Response<'a> {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: &'a [u8],
}
