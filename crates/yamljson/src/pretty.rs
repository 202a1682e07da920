//! Indents JSON for people. Everything but whitespace stays byte for byte.

use jsonstream::{JsonError, Limits, compact};

/// The same JSON, indented by two spaces, with a final line break.
///
/// ```
/// assert_eq!(yamljson::indent(br#"{"a":[1.0,{}]}"#)?, b"{\n  \"a\": [\n    1.0,\n    {}\n  ]\n}\n");
/// # Ok::<(), jsonstream::JsonError>(())
/// ```
pub fn indent(json: &[u8]) -> Result<Vec<u8>, JsonError> {
    let json = compact(json, Limits { bytes_max: u64::MAX })?;
    let (mut out, mut depth, mut at) = (Vec::with_capacity(json.len() * 2), 0, 0);
    while at < json.len() {
        let byte = json[at];
        let before = at.checked_sub(1).map(|before| json[before]);
        match byte {
            b'"' => {
                let start = at;
                at += 1;
                while json[at] != b'"' {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
                out.extend_from_slice(&json[start..=at]);
            }
            b'{' | b'[' => {
                out.push(byte);
                if !matches!(json[at + 1], b'}' | b']') {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                if !matches!(before, Some(b'{' | b'[')) {
                    depth -= 1;
                    line(&mut out, depth);
                }
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            _ => out.push(byte),
        }
        at += 1;
    }
    out.push(b'\n');
    Ok(out)
}

fn line(out: &mut Vec<u8>, depth: usize) {
    out.push(b'\n');
    out.extend(std::iter::repeat_n(b' ', depth * 2));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn punctuation_in_strings_is_left_alone() {
        let json = br#"{"a\"{[":"],:}\\","b":[[],{},""]}"#;
        let indented = indent(json).expect("it is JSON");
        assert_eq!(compact(&indented, Limits { bytes_max: u64::MAX }).expect("it still is"), json);
        assert_eq!(indented.split(|byte| *byte == b'\n').count(), 9);
    }
}
