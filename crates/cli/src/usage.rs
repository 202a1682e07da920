//! Tips for invalid command lines, beside the ones that the parser has.

use std::borrow::Cow;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::ValueEnum;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

use crate::exit_codes;
use crate::failure::Failure;
use crate::output::{FailureStream, Output, report};
use crate::untrusted::escape;

/// Adds to a refused command line: the variable that an invalid value came from, a command of another level with a similar
/// name, the `--` that is missing before a command to run, the option that was meant; and corrects the usage line.
pub fn with_tips(mut error: Error, command: Command, words: &[OsString]) -> Error {
    let mut command = command;
    command.build();
    let tip = match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => variable_tip(&error, &command, words),
        ErrorKind::InvalidSubcommand => similar_command_tip(&error, &command, words),
        ErrorKind::UnknownArgument => unknown_argument_tip(&error, &mut command, words),
        _ => None,
    };
    let has_tip = tip.is_some();
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    // The parser lists options that come from variables as if they were required, and the option that it suggests.
    let names_suggested = has_tip && error.kind() == ErrorKind::UnknownArgument;
    if names_suggested || error.kind() == ErrorKind::MissingRequiredArgument {
        let usage = used(&mut command, words).render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
    error
}

/// Reports an invalid command line, in the format of the output.
pub fn refuse(program: &str, error: &Error, output: Output, stream: FailureStream) -> ExitCode {
    if !output.is_parsed() {
        error.exit();
    }
    let text = error.render().to_string();
    let detail = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    let failure = Failure::new(exit_codes::USAGE, escape(detail.trim_start_matches("error: ")));
    report(program, &failure, output, stream);
    ExitCode::from(exit_codes::USAGE)
}

fn context(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

/// The command that the words name.
fn used<'a>(command: &'a mut Command, words: &[OsString]) -> &'a mut Command {
    let mut used = command;
    for word in words {
        let Some(name) = word.to_str().filter(|name| used.find_subcommand(name).is_some()) else { continue };
        used = used.find_subcommand_mut(name).expect("it was found");
    }
    used
}

/// The command that the words before `typed` name, with its name in full, as in `lockd client`.
fn command_before<'a>(command: &'a Command, words: &[OsString], typed: &str) -> (String, &'a Command) {
    let start = (command.get_name().to_string(), command);
    words.iter().take_while(|word| *word != typed).fold(start, |(path, command), word| {
        match word.to_str().and_then(|name| command.find_subcommand(name)) {
            Some(sub) => (format!("{path} {}", sub.get_name()), sub),
            None => (path, command),
        }
    })
}

/// For an invalid value of an option that is not on the command line.
fn variable_tip(error: &Error, command: &Command, words: &[OsString]) -> Option<String> {
    let option = context(error, ContextKind::InvalidArg)?.split(' ').next()?;
    let is_named = |word: &OsString| {
        word.to_str().is_some_and(|word| word == option || word.starts_with(&format!("{option}=")))
    };
    let arg = find_arg(command, option.strip_prefix("--")?)?;
    let by_letter =
        |letter: char| words.iter().any(|word| word.to_string_lossy().starts_with(&format!("-{letter}")));
    if words.iter().any(is_named) || arg.get_short().is_some_and(by_letter) {
        return None;
    }
    let variable = arg.get_env()?.to_str()?;
    std::env::var_os(variable).map(|_| format!("the value is that of the variable {variable}"))
}

fn find_arg<'a>(command: &'a Command, long: &str) -> Option<&'a Arg> {
    let own = command.get_arguments().find(|arg| arg.get_long() == Some(long));
    own.or_else(|| command.get_subcommands().find_map(|sub| find_arg(sub, long)))
}

/// Words of other programs, and the command that does it here.
const SYNONYMS: [(&str, &str); 15] = [
    ("lock", "lockd run"),
    ("exec", "lockd run"),
    ("unlock", "lockd client release"),
    ("renew", "lockd client keepalive"),
    ("ls", "lockd client list"),
    ("status", "lockd client why"),
    ("server", "lockd serve"),
    ("start", "lockd serve"),
    ("lock", "lockc acquire"),
    ("unlock", "lockc release"),
    ("unlock", "jvs lock release"),
    ("prune", "jvs gc"),
    ("commit", "jvs snapshot"),
    ("checkout", "jvs restore"),
    ("log", "jvs history"),
];

/// For `lockd aquire`, which means `lockd client acquire`, and for `lockd auth nwe`. The parser's own suggestions, which weigh
/// short words differently and can be many, are for names that are not similar enough.
fn similar_command_tip(error: &Error, command: &Command, words: &[OsString]) -> Option<String> {
    let typed = context(error, ContextKind::InvalidSubcommand)?;
    let (path, parent) = command_before(command, words, typed);
    let similar = similar_commands(&path, parent, typed);
    let is_of_parent = |of: &str| of.strip_prefix(&path).is_some_and(|rest| rest.starts_with(' '));
    let synonym = SYNONYMS.iter().find(|(word, of)| *word == typed && is_of_parent(of));
    let path = match (similar.first(), synonym) {
        (Some((0, path)), _) | (Some((_, path)), None) => path.clone(),
        (_, Some((_, path))) => (*path).to_string(),
        (None, None) => return None,
    };
    Some(format!("a similar command exists: '{path}'"))
}

/// The commands with a similar name, and those of groups, with the number of edits; the most similar first.
fn similar_commands(path: &str, command: &Command, typed: &str) -> Vec<(usize, String)> {
    let mut similar = Vec::new();
    let mut add = |sub: &Command, path: String| {
        let distance = edit_distance(typed, sub.get_name());
        similar.extend(is_within(distance, typed).then_some((distance, path)));
    };
    let is_listed = |sub: &&Command| sub.get_name() != "help" && !sub.is_hide_set();
    for group in command.get_subcommands().filter(is_listed) {
        add(group, format!("{path} {}", group.get_name()));
        for sub in group.get_subcommands().filter(is_listed) {
            add(sub, format!("{path} {} {}", group.get_name(), sub.get_name()));
        }
    }
    // Of two with one name, as `auth list` and `client list`, the client's is the likelier.
    similar.sort_by_key(|(distance, path): &(usize, String)| {
        (*distance, path.split(' ').count(), !path.contains(" client "), path.clone())
    });
    similar
}

/// The name that was perhaps meant by a word.
pub fn most_similar<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let similar = names.map(|name| (edit_distance(typed, name), name));
    similar.filter(|(distance, _)| is_within(*distance, typed)).min().map(|(_, name)| name)
}

/// Whether so many edits may be a typing mistake in this word.
fn is_within(distance: usize, typed: &str) -> bool {
    distance * 3 <= typed.len().max(3)
}

/// Whether a word is this one, perhaps mistyped.
pub fn is_similar(word: &str, name: &str) -> bool {
    edit_distance(word, name) * 3 <= name.len()
}

/// Options of one program that have another name in the other.
const OPTION_SYNONYMS: [(&str, &str); 2] = [("wait", "block"), ("block", "wait")];

fn unknown_argument_tip(error: &Error, command: &mut Command, words: &[OsString]) -> Option<String> {
    let found = context(error, ContextKind::InvalidArg)?;
    let before: Vec<_> =
        words.iter().take_while(|word| *word != "--").map(|word| word.to_string_lossy()).collect();
    let used: &Command = used(command, words);
    let has = |long: &str| used.get_arguments().any(|arg| arg.get_long() == Some(long));
    format_tip(found, &before)
        .filter(|_| has("output"))
        .or_else(|| equals_sign_tip(found, used, &before))
        .or_else(|| {
            let typed = found.strip_prefix("--")?;
            let (_, name) = OPTION_SYNONYMS.iter().find(|(word, name)| *word == typed && has(name))?;
            Some(format!("a similar argument exists: '--{name}'"))
        })
        .or_else(|| similar_option_tip(found, used))
        .or_else(|| command_to_run_tip(found, words))
}

/// For `--tl 30s`: the parser suggests `--mtls`.
fn similar_option_tip(found: &str, used: &Command) -> Option<String> {
    let typed = found.strip_prefix("--")?;
    let options = used.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
    most_similar(typed, options).map(|name| format!("a similar argument exists: '--{name}'"))
}

/// For `lockd client list -o json`: where there is an `-o`, it is a file.
fn format_tip(found: &str, words: &[Cow<'_, str>]) -> Option<String> {
    let at = words.iter().position(|word| word.starts_with("-o")).filter(|_| found == "-o")?;
    let format = match &words[at][2..] {
        "" => words.get(at + 1)?.as_ref(),
        attached => attached.trim_start_matches('='),
    };
    Output::from_str(format, false).ok()?;
    Some(format!("write '--output {format}' for the format, or '> ./{format}' for a file"))
}

/// For `jvs run --wait 10m`, where the value may be left out.
fn equals_sign_tip(found: &str, used: &Command, words: &[Cow<'_, str>]) -> Option<String> {
    let at = words.iter().position(|word| word == found)?;
    let option = words.get(at.checked_sub(1)?)?;
    let long = option.strip_prefix("--")?;
    let arg = used.get_arguments().find(|arg| arg.get_long() == Some(long))?;
    arg.is_require_equals_set().then(|| format!("put an equals sign before the value: '{option}={found}'"))
}

/// For `lockd run --key k echo hi`.
fn command_to_run_tip(found: &str, words: &[OsString]) -> Option<String> {
    let is_run = words.first().is_some_and(|word| word == "run");
    let at = words.iter().position(|word| word == found)?;
    if !is_run || found.starts_with('-') || at == 0 {
        return None;
    }
    let rest: Vec<_> = words[at..].iter().map(|word| word.to_string_lossy()).collect();
    Some(format!("put -- before the command to run: '-- {}'", rest.join(" ")))
}

/// The number of characters to insert, delete or replace, and of neighbours to exchange.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // A row for each prefix of `a`, with a column for each prefix of `b`.
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && (a[i - 1], a[i - 2]) == (b[j - 2], b[j - 1]) {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_edits() {
        for (a, b, distance) in [
            ("", "abc", 3),
            ("aquire", "acquire", 1),
            ("kitten", "sitting", 3),
            ("x", "x", 0),
            ("nwe", "new", 1),
        ] {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
        }
    }
}
