//! In place of `simd`, on processors for which there is none: there is no [`Simd`], so nothing is read by blocks.

use crate::nesting::Nesting;
use crate::state::{State, Stop};

/// As many bytes would be looked at together.
pub(crate) const BLOCK: usize = 64;

/// What no processor has.
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
