//! The stack of open arrays and objects, one bit each.
//!
//! **Invariant.** At most [`DEPTH_MAX`] are open, so its size is fixed.

/// Maximum nesting depth of arrays and objects.
pub const DEPTH_MAX: u16 = 512;

const WORDS: usize = DEPTH_MAX as usize / 64;

/// The kind of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    Array,
    Object,
}

/// The open containers, the innermost last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nesting {
    objects: [u64; WORDS],
    depth: u16,
}

impl Nesting {
    /// Opens a container; false, without a change, if that would be too deep.
    #[inline]
    #[must_use]
    pub(crate) fn open(&mut self, container: Container) -> bool {
        if self.depth == DEPTH_MAX {
            return false;
        }
        let (word, bit) = bit_of(self.depth);
        match container {
            Container::Object => self.objects[word] |= bit,
            Container::Array => self.objects[word] &= !bit,
        }
        self.depth += 1;
        true
    }

    /// The innermost open container.
    #[inline]
    pub(crate) fn innermost(&self) -> Option<Container> {
        let (word, bit) = bit_of(self.depth.checked_sub(1)?);
        Some(if self.objects[word] & bit == 0 { Container::Array } else { Container::Object })
    }

    /// All ones if the innermost container is an object, zero if it is an array.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn in_object(&self) -> Option<u64> {
        Some(0_u64.wrapping_sub(u64::from(self.innermost()? == Container::Object)))
    }

    /// Applies the opening and closing brackets of a block in order, and returns the positions at which the innermost
    /// container is an object. `None`, leaving an undefined state, if a bracket does not match, the nesting is too deep,
    /// or no container stays open.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn pass(&mut self, open: u64, close: u64, object: u64) -> Option<u64> {
        let mut in_object = self.in_object()?;
        let mut brackets = open | close;
        while brackets != 0 {
            let position = brackets.trailing_zeros();
            let container = if object >> position & 1 == 1 { Container::Object } else { Container::Array };
            let fits = if open >> position & 1 == 1 { self.open(container) } else { self.close(container) };
            if !fits {
                return None;
            }
            let after = !1 << position;
            in_object = in_object & !after | self.in_object()? & after;
            brackets &= brackets - 1;
        }
        Some(in_object)
    }

    /// Closes the innermost container; false, without a change, if it is not of this kind.
    #[inline]
    #[must_use]
    pub(crate) fn close(&mut self, container: Container) -> bool {
        if self.innermost() != Some(container) {
            return false;
        }
        self.depth -= 1;
        true
    }
}

#[inline]
fn bit_of(level: u16) -> (usize, u64) {
    (usize::from(level / 64) % WORDS, 1 << (level % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_close_in_reverse_order_across_words() {
        let kind = |level: u16| if level.is_multiple_of(3) { Container::Object } else { Container::Array };
        let mut nesting = Nesting::default();
        for level in 0..DEPTH_MAX {
            assert!(nesting.open(kind(level)));
        }
        assert!(!nesting.open(Container::Array), "full");
        for level in (0..DEPTH_MAX).rev() {
            assert_eq!(nesting.innermost(), Some(kind(level)));
            assert!(nesting.close(kind(level)));
        }
        assert_eq!(nesting.innermost(), None);
    }

    #[test]
    fn a_level_that_was_an_object_can_become_an_array() {
        let mut nesting = Nesting::default();
        assert!(nesting.open(Container::Object));
        assert!(!nesting.close(Container::Array));
        assert!(nesting.close(Container::Object));
        assert!(!nesting.close(Container::Object), "nothing is open");
        assert!(nesting.open(Container::Array));
        assert_eq!(nesting.innermost(), Some(Container::Array));
    }
}
