//! Wire protocols, each as small as the bench needs it, so that clients cost little CPU.

pub mod http1;
pub mod jute;
pub mod protobuf;
pub mod grpc;
pub mod resp;
