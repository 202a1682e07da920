//! The client and the probe against an object store on loopback that errs on purpose, in each dialect.

mod fixture;
mod outcomes;
mod reads;
mod uploads;
mod wire;
mod conformance;
mod documents;
mod lost_answers;
mod probe;
mod moto;
