//! Cursors of paged lists: positions as text.
//!
//! A cursor is opaque to clients. Where rows are hidden from a caller, it does not name the row at which a page ended:
//! it is a number, or the last row on the page.

use api::Refusal;
use kernel::{Cursor, Identity, Namespace, Scope, Shard};

use crate::backend::lists::RowPosition;
use crate::present::refusals::bad_cursor;

/// The most rows on a page.
pub(crate) const PAGE_MAX: usize = 1000;
/// No further rows are added to a page of this length, in bytes.
pub(crate) const PAGE_BYTES: usize = 1 << 20;

/// `shard.number`
pub(crate) fn row_position(text: &str) -> Result<RowPosition, Refusal> {
    let position = || {
        let (shard, number) = text.split_once('.')?;
        Some(RowPosition { shard: Shard(shard.parse().ok()?), cursor: Cursor(number.parse().ok()?) })
    };
    position().ok_or_else(bad_cursor)
}

/// The text of a position, as [`row_position`] parses it.
pub(crate) fn row_cursor(position: RowPosition) -> String {
    format!("{}.{}", position.shard.0, position.cursor.0)
}

/// The length of the namespace in bytes, a colon, the namespace, the identity. A missing name is empty.
pub(crate) fn scope(text: &str) -> Result<Scope, Refusal> {
    let scope = || {
        let (length, names) = text.split_once(':')?;
        let (namespace, identity) = names.split_at_checked(length.parse().ok()?)?;
        let namespace = present(namespace).map(Namespace::new).transpose().ok()?;
        Some(Scope { namespace, identity: present(identity).map(Identity::new).transpose().ok()? })
    };
    scope().ok_or_else(bad_cursor)
}

/// The text of a scope, as [`scope`] parses it.
pub(crate) fn scope_cursor(scope: &Scope) -> String {
    let namespace = scope.namespace.as_ref().map_or("", Namespace::as_str);
    let identity = scope.identity.as_ref().map_or("", Identity::as_str);
    format!("{}:{namespace}{identity}", namespace.len())
}

fn present(name: &str) -> Option<&str> {
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_parsed_back_to_the_position_that_they_were_made_of() {
        let position = RowPosition { shard: Shard(3), cursor: Cursor(70) };
        assert_eq!(row_position(&row_cursor(position)), Ok(position));
        let names = [None, Some("a"), Some("1:b"), Some("7:"), Some("äöü")];
        for namespace in names {
            for identity in names {
                let namespace = namespace.map(|name| Namespace::new(name).expect("valid"));
                let identity = identity.map(|name| Identity::new(name).expect("valid"));
                let made = Scope { namespace, identity };
                assert_eq!(scope(&scope_cursor(&made)), Ok(made));
            }
        }
    }

    #[test]
    fn other_texts_are_no_cursors() {
        for text in ["", "1", ".", "1.", ".1", "-1.0", "1.x", "1.2.3", "4294967296.0"] {
            assert_eq!(row_position(text), Err(bad_cursor()), "{text}");
        }
        let long = format!("129:{}", "n".repeat(129));
        for text in ["", ":", "1", "1:", "2:a", "1:ä", "-1:a", "x:a", "1:a\n", "0:\u{7f}", &long] {
            assert_eq!(scope(text), Err(bad_cursor()), "{text}");
        }
    }
}
