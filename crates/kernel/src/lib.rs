//! The lease state machine.
#![no_std]
