//! Protocol buffers: the two wire types that etcd's messages use here, numbers and bytes.

/// Builds a message. Fields with the default value are left out, as the format requires of its canonical form.
#[derive(Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// An empty message.
    pub fn new() -> Message {
        Message::default()
    }

    /// A number: integers and enumerations.
    #[must_use]
    pub fn number(mut self, field: u32, value: i64) -> Message {
        if value != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(value.cast_unsigned());
        }
        self
    }

    /// A number that is present although it is 0: a member of a `oneof`.
    #[must_use]
    pub fn present(mut self, field: u32, value: i64) -> Message {
        self.varint(u64::from(field) << 3);
        self.varint(value.cast_unsigned());
        self
    }

    /// A string of bytes.
    #[must_use]
    pub fn bytes(mut self, field: u32, value: &[u8]) -> Message {
        if !value.is_empty() {
            self.raw(field, value);
        }
        self
    }

    /// A message within this one.
    #[must_use]
    pub fn message(mut self, field: u32, value: Message) -> Message {
        self.raw(field, &value.0);
        self
    }

    /// The encoded message.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    fn raw(&mut self, field: u32, value: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// A value of a decoded field.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// Bytes, a text or a message.
    Bytes(&'a [u8]),
}

/// Iterates over the fields of a message; ends at the first byte that is not one.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, Value<'a>);

    fn next(&mut self) -> Option<(u32, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Bytes(self.take(4)?),
            _ => return None,
        };
        Some(((tag >> 3) as u32, value))
    }
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.0.first()?;
            self.0 = &self.0[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

/// The number in a field; 0 if it is missing.
pub fn number(message: &[u8], field: u32) -> i64 {
    let found = Fields(message).find_map(|(number, value)| match value {
        Value::Number(value) if number == field => Some(value.cast_signed()),
        _ => None,
    });
    found.unwrap_or(0)
}

/// The bytes in a field, or nothing.
pub fn bytes(message: &[u8], field: u32) -> Option<&[u8]> {
    Fields(message).find_map(|(number, value)| match value {
        Value::Bytes(value) if number == field => Some(value),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_documented_bytes() {
        // The example of the format's own documentation: field 1 is 150.
        assert_eq!(Message::new().number(1, 150).finish(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::new().bytes(2, b"testing").finish(), b"\x12\x07testing");
        assert_eq!(Message::new().number(1, 0).finish(), Vec::<u8>::new());
        assert_eq!(Message::new().present(1, 0).finish(), [8, 0]);
    }

    #[test]
    fn fields_come_back() {
        let inner = Message::new().number(3, -1).bytes(1, b"k");
        let bytes_of = Message::new().number(2, 7).message(5, inner).finish();
        assert_eq!(number(&bytes_of, 2), 7);
        let inner = bytes(&bytes_of, 5).expect("there");
        assert_eq!((number(inner, 3), bytes(inner, 1)), (-1, Some(&b"k"[..])));
        assert_eq!(Fields(&bytes_of[..bytes_of.len() - 1]).count(), 1, "a cut field is no field");
    }
}
