//! The settings of a server as flags, made from the table in [`lockd_server::config`].

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, value_parser};
use lockd_server::Config;
use lockd_server::settings::{Choice, Setting, Syntax};

/// The flag for the settings file, which is not itself a setting.
pub(super) const FILE: &str = "config";

const AFTER_HELP: &str = "Examples:\n  \
    lockd serve                                   all defaults: creates a store, a CA and a client identity\n  \
    lockd serve --listen 127.0.0.1:9341 --mtls=false --store mem://\n  \
    lockd serve --bundle server.pem --store disk:///var/lib/lockd/store\n  \
    lockd config > lockd.toml && lockd serve --config lockd.toml\n\n\
    A flag takes precedence over its variable, and that over the settings file: a TOML table of flags without their \
    dashes, as `lockd config` prints it. Unless --config names it, it is lockd/lockd.toml in $XDG_CONFIG_HOME or \
    ~/.config, then in /etc.\n\n\
    SIGTERM stops the server after the requests in progress; SIGHUP reloads certificates and revocations.";

/// The flags of `serve` and `config`. Values are taken from the matches by [`super::resolve()`].
pub(crate) struct Serve;

impl Serve {
    /// Adds the flags to a command.
    pub(super) fn add_flags(command: Command) -> Command {
        let file = Arg::new(FILE).long(FILE).env("LOCKD_CONFIG").value_name("FILE");
        let file = file.value_parser(value_parser!(PathBuf)).help("File to read settings from");
        command.arg(file).args(Config::SETTINGS.iter().map(flag))
    }
}

impl clap::Args for Serve {
    /// The flags are added when the command is the one that runs: to make them takes the default of every setting, and a
    /// megabyte of pages of the server's code that count as memory of `lockd client`.
    fn augment_args(command: Command) -> Command {
        command.defer(Serve::add_flags).after_help(AFTER_HELP)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Serve::augment_args(command)
    }
}

impl FromArgMatches for Serve {
    fn from_arg_matches(_: &ArgMatches) -> Result<Serve, clap::Error> {
        Ok(Serve)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

/// The flag of a setting.
pub(crate) fn flag(setting: &'static Setting<Config>) -> Arg {
    let default = setting.default_text().map_or_else(String::new, |text| format!(" [default: {text}]"));
    let arg = Arg::new(setting.name).long(setting.name).env(setting.variable).value_name(setting.value_name);
    let arg = arg.help(format!("{}{default}", setting.help)).action(ArgAction::Set);
    match setting.syntax {
        Syntax::Path => arg.value_parser(ValueParser::os_string()),
        Syntax::Switch => arg.value_parser(value_parser!(bool)).num_args(0..=1).default_missing_value("true"),
        Syntax::Choice(choices) => arg.value_parser(PossibleValuesParser::new(choices.iter().map(possible))),
        Syntax::Text | Syntax::Duration | Syntax::Size | Syntax::Count => {
            arg.value_parser(move |text: &str| setting.check(OsStr::new(text)).map(|()| text.to_string()))
        }
    }
}

fn possible(choice: &Choice) -> PossibleValue {
    PossibleValue::new(choice.name).help(choice.help)
}
