//! Which arrays and objects the scanner is in: one bit each.
//!
//! **Invariant.** Never more than [`DEPTH_MAX`] at once, so that its size is fixed.

/// How many arrays and objects may stand inside each other.
pub const DEPTH_MAX: u16 = 512;

const WORDS: usize = DEPTH_MAX as usize / 64;

/// What a member or element stands in.
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
    /// Opens a container; false, and nothing done, if that would be too deep.
    #[inline]
    #[must_use]
    pub(crate) fn open(&mut self, container: Container) -> bool {
        if self.depth == DEPTH_MAX {
            return false;
        }
        let (word, bit) = place(self.depth);
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
        let (word, bit) = place(self.depth.checked_sub(1)?);
        Some(if self.objects[word] & bit == 0 { Container::Array } else { Container::Object })
    }

    /// All bits, if the innermost container is an object; none of them, if an array.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn in_object(&self) -> Option<u64> {
        Some(0_u64.wrapping_sub(u64::from(self.innermost()? == Container::Object)))
    }

    /// Opens and closes what has its bit set, by the place of the bit, and gives the places at which the innermost
    /// container is an object. None, and who knows what done, if one does not fit, if it would be too deep, or if
    /// nothing would be left open.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn pass(&mut self, open: u64, close: u64, object: u64) -> Option<u64> {
        let mut in_object = self.in_object()?;
        let mut brackets = open | close;
        while brackets != 0 {
            let place = brackets.trailing_zeros();
            let container = if object >> place & 1 == 1 { Container::Object } else { Container::Array };
            let fits = if open >> place & 1 == 1 { self.open(container) } else { self.close(container) };
            if !fits {
                return None;
            }
            let behind = !1 << place;
            in_object = in_object & !behind | self.in_object()? & behind;
            brackets &= brackets - 1;
        }
        Some(in_object)
    }

    /// Closes the innermost container; false, and nothing done, if it is none of this kind.
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
fn place(level: u16) -> (usize, u64) {
    (usize::from(level / 64) % WORDS, 1 << (level % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_come_back_in_reverse_across_words() {
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
    fn a_place_that_was_an_object_can_be_an_array() {
        let mut nesting = Nesting::default();
        assert!(nesting.open(Container::Object));
        assert!(!nesting.close(Container::Array));
        assert!(nesting.close(Container::Object));
        assert!(!nesting.close(Container::Object), "nothing is open");
        assert!(nesting.open(Container::Array));
        assert_eq!(nesting.innermost(), Some(Container::Array));
    }
}
