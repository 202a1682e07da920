//! Replaces `simd` on other processors: there is no [`Simd`] value, so nothing is read by blocks.

use crate::nesting::Nesting;
use crate::state::{State, Stop};

/// Bytes in a block.
pub(crate) const BLOCK: usize = 64;

/// Uninhabited: no vector instructions are supported.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Simd {}

impl Simd {
    pub(crate) fn detect() -> Option<Simd> {
        None
    }

    pub(crate) fn all() -> impl Iterator<Item = Simd> {
        std::iter::empty()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {}
    }

    pub(crate) fn read(self, _: State, _: &mut Nesting, _: &[u8], _: &mut [u8]) -> Option<Stop> {
        match self {}
    }
}
