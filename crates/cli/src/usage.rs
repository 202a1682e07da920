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
        ErrorKind::InvalidSubcommand => similar_command_tip(&error, &command),
        ErrorKind::UnknownArgument => unknown_argument_tip(&error, &mut command, words),
        _ => None,
    };
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    // The parser lists options that come from variables as if they were required.
    if error.kind() == ErrorKind::MissingRequiredArgument {
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

/// For `lockd aquire`, which means `lockd client acquire`. A command of a group with exactly this name is a better tip than
/// a similar word that the parser has found.
fn similar_command_tip(error: &Error, command: &Command) -> Option<String> {
    let typed = context(error, ContextKind::InvalidSubcommand)?;
    let similar = similar_commands(command, typed);
    let is_own = |path: &str| path.split(' ').next() == Some(command.get_name());
    let synonym = SYNONYMS.iter().find(|(word, path)| *word == typed && is_own(path));
    let path = match (similar.first(), synonym) {
        (Some((0, path)), _) => path.clone(),
        (_, Some((_, path))) => (*path).to_string(),
        _ if error.get(ContextKind::SuggestedSubcommand).is_some() => return None,
        (Some((_, path)), None) => path.clone(),
        (None, None) => return None,
    };
    Some(format!("a similar command exists: '{path}'"))
}

/// The commands with a similar name, and those of groups, with the number of edits; the most similar first.
fn similar_commands(command: &Command, typed: &str) -> Vec<(usize, String)> {
    let (name, mut similar) = (command.get_name(), Vec::new());
    let mut add = |sub: &Command, path: String| {
        let distance = edit_distance(typed, sub.get_name());
        let is_similar = sub.get_name() != "help" && distance * 3 <= typed.len().max(3);
        similar.extend(is_similar.then_some((distance, path)));
    };
    for group in command.get_subcommands().filter(|group| group.get_name() != "help") {
        add(group, format!("{name} {}", group.get_name()));
        for sub in group.get_subcommands() {
            add(sub, format!("{name} {} {}", group.get_name(), sub.get_name()));
        }
    }
    // Of two with one name, as `auth list` and `client list`, the client's is the likelier.
    similar.sort_by_key(|(distance, path): &(usize, String)| {
        (*distance, !path.contains(" client "), path.clone())
    });
    similar
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
        .or_else(|| command_to_run_tip(found, words))
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

/// The number of characters to insert, delete or replace.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_edits() {
        for (a, b, distance) in
            [("", "abc", 3), ("aquire", "acquire", 1), ("kitten", "sitting", 3), ("x", "x", 0)]
        {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
        }
    }
}
