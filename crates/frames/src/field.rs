//! Fields of requests and responses: the headers of HTTP that have a meaning for the calls, by number.

/// A header, by number. The numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Field {
    /// A retry with the same key gets the same response.
    IdempotencyKey = 1,
    /// The client's id of a request; echoed in the response.
    CorrelationId = 2,
    /// Credential of the lease under which a document is written.
    LeaseId = 3,
    /// Reject the request unless this is the lease's fencing token.
    FencingToken = 4,
    /// Reject the request unless the key has this version.
    IfVersion = 5,
    /// Reject the request unless the document has this hash.
    IfStateEtag = 6,
    /// Hash of a document.
    Etag = 7,
    /// Version of a key.
    KeyVersion = 8,
    /// URL of the server that has carried out a forwarded request, or is to be asked.
    Server = 9,
    /// Seconds after which a refused request may be repeated.
    RetryAfter = 10,
}

/// All fields, by rising number, with the names of their headers.
const ALL: [(Field, &str); 10] = [
    (Field::IdempotencyKey, "x-idempotency-key"),
    (Field::CorrelationId, "x-correlation-id"),
    (Field::LeaseId, "x-lease-id"),
    (Field::FencingToken, "x-fencing-token"),
    (Field::IfVersion, "x-if-version"),
    (Field::IfStateEtag, "x-if-state-etag"),
    (Field::Etag, "etag"),
    (Field::KeyVersion, "x-key-version"),
    (Field::Server, "x-lockd-server"),
    (Field::RetryAfter, "retry-after"),
];

impl Field {
    /// The name of the header, in lower case.
    pub fn name(self) -> &'static str {
        ALL[usize::from(self as u8) - 1].1
    }

    /// The field of a header, by its name in lower case.
    pub fn of(name: &str) -> Option<Field> {
        ALL.iter().find(|(_, known)| *known == name).map(|(field, _)| *field)
    }

    /// All fields, by rising number.
    pub fn all() -> impl Iterator<Item = Field> {
        ALL.iter().map(|(field, _)| *field)
    }

    fn from_byte(byte: u8) -> Option<Field> {
        ALL.get(usize::from(byte).checked_sub(1)?).map(|(field, _)| *field)
    }
}

/// The fields of a message, checked: rising, each with visible ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The value of a field, which may be empty.
    pub fn get(self, field: Field) -> Option<&'a [u8]> {
        self.into_iter().find(|(one, _)| *one == field).map(|(_, value)| value)
    }

    /// Splits `count` fields off the front of these bytes. `None` if they are malformed.
    pub(crate) fn split(bytes: &'a [u8], count: u8) -> Option<(Fields<'a>, &'a [u8])> {
        let (mut rest, mut last) = (bytes, None);
        for _ in 0..count {
            let (field, value, behind) = split_one(rest)?;
            if Some(field) <= last || !value.iter().all(|byte| (b' '..=b'~').contains(byte)) {
                return None;
            }
            (rest, last) = (behind, Some(field));
        }
        Some((Fields(&bytes[..bytes.len() - rest.len()]), rest))
    }
}

/// Reads one field: its number, the length of its value (u16), and the value.
fn split_one(bytes: &[u8]) -> Option<(Field, &[u8], &[u8])> {
    let ([number, low, high], rest) = bytes.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
    Some((Field::from_byte(*number)?, value, rest))
}

impl<'a> IntoIterator for Fields<'a> {
    type Item = (Field, &'a [u8]);
    type IntoIter = FieldIter<'a>;

    fn into_iter(self) -> FieldIter<'a> {
        FieldIter(self.0)
    }
}

/// Iterates over the fields of a message.
#[derive(Clone, Debug)]
pub struct FieldIter<'a>(&'a [u8]);

impl<'a> Iterator for FieldIter<'a> {
    type Item = (Field, &'a [u8]);

    fn next(&mut self) -> Option<(Field, &'a [u8])> {
        let (field, value, rest) = split_one(self.0)?;
        self.0 = rest;
        Some((field, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_one_name_and_one_number() {
        for (at, field) in Field::all().enumerate() {
            assert_eq!(usize::from(field as u8), at + 1);
            assert_eq!(Field::of(field.name()), Some(field));
            assert_eq!(Field::from_byte(field as u8), Some(field));
        }
        assert_eq!((Field::from_byte(0), Field::from_byte(11), Field::of("host")), (None, None, None));
    }
}
