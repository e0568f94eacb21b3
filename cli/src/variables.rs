//! Variables of the environment beside the flags that they stand for: what the command line says goes first.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Error, Id, Parser};

/// Parses `line`. A flag goes before the variables of those that it excludes, and an empty variable is none.
///
/// # Errors
///
/// clap's, among which is the help that was asked for.
pub fn parse<T: Parser>(line: &[OsString]) -> Result<T, Error> {
    let said = without(T::command(), &|_| true).ignore_errors(true).try_get_matches_from(line);
    let mut command = T::command();
    // Help is about all of them.
    if let Ok(said) = said {
        // Groups are known once it is built.
        let mut built = command.clone();
        built.build();
        let outdone = outdone(&built, &said);
        command = without(command, &|arg| is_empty(arg) || outdone.contains(arg.get_id()));
    }
    let matches = command.try_get_matches_from_mut(line)?;
    T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// `command` and those below it, without the variables of `which` flags.
fn without(command: Command, which: &dyn Fn(&Arg) -> bool) -> Command {
    let command =
        command.mut_args(|arg| if which(&arg) { arg.env(None::<&'static str>) } else { arg });
    command.mut_subcommands(|it| without(it, which))
}

/// The flags of `command` that exclude one that was `said`, or are excluded by it.
fn outdone(command: &Command, said: &ArgMatches) -> Vec<Id> {
    let given =
        |arg: &&Arg| said.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let excludes = |arg: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(arg).iter().any(|it| it.get_id() == other.get_id())
    };
    let beaten = |arg: &&Arg| {
        let mut given = command.get_arguments().filter(given);
        given.any(|it| excludes(it, arg) || excludes(arg, it))
    };
    let mut ids: Vec<_> =
        command.get_arguments().filter(beaten).map(|arg| arg.get_id().clone()).collect();
    if let Some((name, said)) = said.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        ids.extend(outdone(command, said));
    }
    ids
}

fn is_empty(arg: &Arg) -> bool {
    arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    /// A variable that is there in every environment stands for ours.
    #[derive(Debug, Parser)]
    enum Line {
        Serve {
            #[arg(long, env = "PATH", default_value = "none")]
            host: String,
            #[arg(long, conflicts_with = "host")]
            socket: Option<String>,
            #[arg(long)]
            port: Option<u16>,
        },
        Ask {
            #[arg(long, env = "PATH", conflicts_with = "port")]
            socket: Option<String>,
            #[arg(long)]
            port: Option<u16>,
        },
    }

    fn parsed(line: &str) -> Result<Line, Error> {
        let words: Vec<_> = ["it"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
        parse(&words)
    }

    #[test]
    fn a_flag_goes_before_variables_of_others_and_not_before_their_flags() {
        let path = std::env::var("PATH").unwrap();
        let host = |line: &str| match parsed(line) {
            Ok(Line::Serve { host, .. }) => host,
            other => panic!("{other:?}"),
        };
        assert_eq!([host("serve"), host("serve --port 5")], [path.clone(), path.clone()]);
        assert_eq!(host("serve --socket s"), "none");
        let asked = |line: &str| match parsed(line) {
            Ok(Line::Ask { socket, port }) => (socket, port),
            other => panic!("{other:?}"),
        };
        assert_eq!(asked("ask"), (Some(path), None));
        assert_eq!(asked("ask --port 5"), (None, Some(5)));
        for line in ["serve --socket s --host h", "ask --port 5 --socket s"] {
            assert_eq!(parsed(line).unwrap_err().kind(), ErrorKind::ArgumentConflict, "{line}");
        }
    }

    #[test]
    fn help_tells_all_variables() {
        for line in ["serve --help", "serve --socket s --help"] {
            let help = parsed(line).unwrap_err();
            assert_eq!(help.kind(), ErrorKind::DisplayHelp);
            assert!(help.to_string().contains("PATH="), "{help}");
        }
    }
}
