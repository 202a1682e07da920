//! Resolves plain scalars without a tag by the core schema of YAML 1.2.

/// The type of a plain scalar.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plain {
    Null,
    Bool(bool),
    /// In JSON syntax.
    Number(String),
    Text,
    /// JSON cannot represent it, or parsers disagree on it; with a message that says what to do.
    Refused(&'static str),
}

pub(crate) fn resolve(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
        "true" | "True" | "TRUE" => return Plain::Bool(true),
        "false" | "False" | "FALSE" => return Plain::Bool(false),
        _ => {}
    }
    if matches!(text.trim_start_matches(['+', '-']), ".inf" | ".Inf" | ".INF")
        || matches!(text, ".nan" | ".NaN" | ".NAN")
    {
        return Plain::Refused("JSON has no such number; quote it if it is a string");
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && !digits.is_empty()
            && digits.chars().all(|c| c.is_digit(radix))
        {
            return u128::from_str_radix(digits, radix).map_or(
                Plain::Refused("the number is too long for this notation; write it in decimal"),
                |number| Plain::Number(number.to_string()),
            );
        }
    }
    decimal(text).unwrap_or(Plain::Text)
}

/// Converts `[-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?` to JSON syntax.
fn decimal(text: &str) -> Option<Plain> {
    let (minus, rest) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let digits_end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (whole, rest) = rest.split_at(digits_end);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            (Some(&rest[..end]), &rest[end..])
        }
        None => (None, rest),
    };
    let power = rest.strip_prefix(['e', 'E']);
    let power_digits = power.map(|power| power.strip_prefix(['+', '-']).unwrap_or(power));
    let is_power = power_digits
        .map_or(rest.is_empty(), |digits| !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()));
    let has_digits = !whole.is_empty() || fraction.is_some_and(|fraction| !fraction.is_empty());
    if !is_power || !has_digits {
        return None;
    }
    if whole.len() > 1 && whole.starts_with('0') {
        return Some(Plain::Refused(
            "a number with a leading zero is octal to some parsers and decimal to others; quote it if it is a string",
        ));
    }
    let whole = if whole.is_empty() { "0" } else { whole };
    let fraction = match fraction {
        None => String::new(),
        Some("") => ".0".to_string(),
        Some(digits) => format!(".{digits}"),
    };
    Some(Plain::Number(format!("{minus}{whole}{fraction}{rest}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_what_the_core_schema_says() {
        for (text, json) in [
            ("0", "0"),
            ("-0", "-0"),
            ("+12", "12"),
            ("1.50", "1.50"),
            ("1e3", "1e3"),
            ("-1.5E+07", "-1.5E+07"),
            (".5", "0.5"),
            ("-.5e1", "-0.5e1"),
            ("5.", "5.0"),
            ("5.e3", "5.0e3"),
            ("0x1F", "31"),
            ("0o17", "15"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ] {
            assert_eq!(resolve(text), Plain::Number(json.into()), "{text}");
        }
        for text in [
            "no",
            "yes",
            "on",
            "y",
            "0b1",
            "1_000",
            "12:30",
            "2026-11-15",
            "1e",
            "e1",
            ".",
            "-",
            "+",
            "1.2.3",
            "0x",
            "0xg",
            "0o8",
            "-0x1",
            "--1",
            "1 2",
            "tRue",
            "nan",
            "inf",
            "=",
            "٣",
        ] {
            assert_eq!(resolve(text), Plain::Text, "{text}");
        }
        for text in [".inf", "-.INF", ".NaN", "010", "-01.5", "00", "0xfffffffffffffffffffffffffffffffff"] {
            assert!(matches!(resolve(text), Plain::Refused(_)), "{text}");
        }
    }
}
